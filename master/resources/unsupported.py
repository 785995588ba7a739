"""Resources that are listed empty and cannot be created, because a stored object would have no effect. Pure.

Components of Kubernetes open informers on them at startup, and wait until these are in sync. Each is a row of data.
See docs/adr/0015-kinds-without-a-controller.md.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple, cast

import msgspec

from api.meta.types import Object
from api.validation.registry import KindRules
from master.resources.printing import AGE, NAME
from master.resources.resource import READ_VERBS, Resource


class UnsupportedKind(NamedTuple):
    """A row of `UNSUPPORTED_KINDS`. `description` is that of the kind in OpenAPI."""

    kind: str
    plural: str
    description: str
    short_names: tuple[str, ...] = ()
    namespaced: bool = False
    selectable_fields: Mapping[str, str] = {}
    """The fields that field selectors may name, each with an empty value."""
    verbs: tuple[str, ...] = READ_VERBS


UNSUPPORTED_KINDS: Mapping[tuple[str, str], tuple[UnsupportedKind, ...]] = {
    (
        "resource.k8s.io/v1",
        "dynamic resource allocation is not supported: pods with resourceClaims are rejected",
    ): (
        UnsupportedKind("ResourceClaim", "resourceclaims",
                        "A request for devices. Not supported: none can be created.", namespaced=True),
        UnsupportedKind("ResourceClaimTemplate", "resourceclaimtemplates",
                        "The template of a claim of each pod. Not supported: none can be created.", namespaced=True),
        UnsupportedKind("ResourceSlice", "resourceslices",
                        "The devices that a driver has on a node. Not supported: none can be created.",
                        selectable_fields={"spec.nodeName": "", "spec.driver": ""},
                        # A kubelet deletes the slices of its node at startup, and repeats a request that failed.
                        verbs=("deletecollection", *READ_VERBS)),
        UnsupportedKind("DeviceClass", "deviceclasses",
                        "A class of devices. Not supported: none can be created."),
    ),
    ("storage.k8s.io/v1", "CSI volumes are not supported: no component would act on the object"): (
        UnsupportedKind("VolumeAttachment", "volumeattachments",
                        "A request to attach a volume to a node. Not supported: none can be created."),
        UnsupportedKind("VolumeAttributesClass", "volumeattributesclasses",
                        "Attributes that a CSI driver gives to a volume. Not supported: none can be created.",
                        ("vac",)),
        UnsupportedKind("CSIStorageCapacity", "csistoragecapacities",
                        "The storage that a CSI driver has left. Not supported: none can be created.",
                        namespaced=True),
    ),
}  # fmt: skip
"""(apiVersion, why objects cannot be created) → the kinds."""


def _resources() -> Iterator[Resource[Any]]:
    for (api_version, reason), kinds in UNSUPPORTED_KINDS.items():
        for kind in kinds:
            yield _resource(api_version, reason, kind)


def _resource(api_version: str, reason: str, kind: UnsupportedKind) -> Resource[Any]:
    attributes = {
        "API_VERSION": api_version,
        "KIND": kind.kind,
        "PLURAL": kind.plural,
        "NAMESPACED": kind.namespaced,
        "__doc__": kind.description,
    }
    of = msgspec.defstruct(kind.kind, [], bases=(Object,), module=__name__, namespace=attributes, frozen=True)
    return Resource(
        type=cast("type[Object]", of),
        short_names=kind.short_names,
        columns=(NAME, AGE),
        rules=KindRules(),
        selectable_fields=lambda obj: kind.selectable_fields,
        verbs=kind.verbs,
        create_denial=reason,
        listed_empty=True,
    )


UNSUPPORTED: tuple[Resource[Any], ...] = tuple(_resources())
