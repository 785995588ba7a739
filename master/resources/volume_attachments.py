"""VolumeAttachment: a volume that is to be at a node. Kept and served. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from msgspec.structs import asdict

from api.core.storage import PersistentVolumeSpec
from api.meta import names
from api.meta.schema import FieldError
from api.meta.types import Object, Value
from api.validation.registry import KindRules
from master.resources.printing import AGE, NAME
from master.resources.resource import Column, Resource
from master.resources.validation import exactly_one, immutable, required
from master.resources.volumes import driver_name_problem


class VolumeAttachmentSource(Value, frozen=True):
    """The volume; exactly one of the two fields is set."""

    persistent_volume_name: str | None = None
    inline_volume_spec: PersistentVolumeSpec | None = None


class VolumeAttachmentSpec(Value, frozen=True):
    """`attacher` is the driver."""

    attacher: str = ""
    source: VolumeAttachmentSource = VolumeAttachmentSource()
    node_name: str = ""


class VolumeError(Value, frozen=True):
    """An error message of the driver, with its time."""

    time: str | None = None
    message: str = ""
    error_code: int | None = None


class VolumeAttachmentStatus(Value, frozen=True, omit_defaults=False):
    """Written by the driver."""

    attached: bool = False
    attachment_metadata: dict[str, str] = {}
    attach_error: VolumeError | None = None
    detach_error: VolumeError | None = None


class VolumeAttachment(Object, frozen=True):
    """A request to attach a volume to a node, and its state."""

    API_VERSION = "storage.k8s.io/v1"
    KIND = "VolumeAttachment"

    spec: VolumeAttachmentSpec = VolumeAttachmentSpec()
    status: VolumeAttachmentStatus = VolumeAttachmentStatus()


def _validate_volume_attachment(item: VolumeAttachment) -> Iterator[FieldError]:
    spec = item.spec
    yield from required("spec.attacher", spec.attacher, driver_name_problem)
    yield from required("spec.nodeName", spec.node_name, names.dns_subdomain_error)
    source = asdict(spec.source)
    fields = {"persistentVolumeName": source["persistent_volume_name"]}
    yield from exactly_one("spec.source", fields | {"inlineVolumeSpec": source["inline_volume_spec"]})
    if spec.source.persistent_volume_name is not None:
        name = spec.source.persistent_volume_name
        yield from required("spec.source.persistentVolumeName", name, names.dns_subdomain_error)


VOLUME_ATTACHMENTS = Resource(
    type=VolumeAttachment,
    plural="volumeattachments",
    namespaced=False,
    columns=(
        NAME,
        Column("Attacher", "The driver.", lambda attachment, _: attachment.spec.attacher, format="name"),
        Column("PV", "The volume.", lambda attachment, _: attachment.spec.source.persistent_volume_name or ""),
        Column("Node", "The node where it is to be.", lambda attachment, _: attachment.spec.node_name),
        Column("Attached", "Whether it is there.", lambda attachment, _: attachment.status.attached, type="boolean"),
        AGE,
    ),
    rules=KindRules(
        validate=_validate_volume_attachment, validate_update=lambda old, new: immutable(("spec", old.spec, new.spec))
    ),
)
