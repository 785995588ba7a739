"""PersistentVolume, PersistentVolumeClaim, LocalVolume and StorageClass. Pure."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Mapping

import msgspec
from msgspec.structs import replace

from api.core.storage import (
    ACCESS_MODES,
    LOCAL_VOLUMES_LABEL,
    LocalVolume,
    PersistentVolume,
    PersistentVolumeClaim,
    PersistentVolumeClaimStatus,
    PersistentVolumeStatus,
)
from api.meta import names
from api.meta.schema import FORBIDDEN, MISSING, FieldError, duplicate_values, quoted, unsupported_values
from api.meta.types import Object, ObjectMeta, Value
from api.validation.registry import RULES, KindRules
from master.resources.metadata import with_metadata
from master.resources.printing import AGE, NAME
from master.resources.resource import READ_VERBS, Column, Resource, Subresource, accept_status
from master.resources.validation import immutable, max_items, required

VOLUME_FINALIZER = "kubernetes.io/pv-protection"
"""The finalizer that delays the deletion while the object is in use."""


def access_modes_text(names: tuple[str, ...]) -> str:
    """Return access modes in the short form of tables."""
    return ",".join(ACCESS_MODES.get(name, name) for name in names)


def unset_if_empty(text: str | None) -> str:
    """Return the text, or `<unset>` if it is empty."""
    return text or "<unset>"


def _prepare_volume_for_create(volume: PersistentVolume) -> PersistentVolume:
    finalizers = tuple(dict.fromkeys((*volume.metadata.finalizers, VOLUME_FINALIZER)))
    return with_metadata(
        msgspec.structs.replace(volume, status=PersistentVolumeStatus(phase="Pending")), finalizers=finalizers
    )


PERSISTENT_VOLUMES = Resource(
    type=PersistentVolume,
    short_names=("pv",),
    columns=(
        NAME,
        Column("Capacity", "Capacity of the volume.", lambda volume, _: str(volume.spec.capacity.get("storage", ""))),
        Column(
            "Access Modes",
            "Access modes of the volume.",
            lambda volume, _: access_modes_text(volume.spec.access_modes),
        ),
        Column(
            "Reclaim Policy",
            "Treatment of the volume after its claim is deleted.",
            lambda volume, _: volume.spec.persistent_volume_reclaim_policy,
        ),
        Column(
            "Status",
            "Pending, Available, Bound, Released or Failed.",
            lambda volume, _: "Terminating" if volume.metadata.deletion_timestamp else volume.status.phase,
        ),
        Column(
            "Claim",
            "The claim that has it.",
            lambda volume, _: (
                f"{volume.spec.claim_ref.namespace}/{volume.spec.claim_ref.name}"
                if volume.spec.claim_ref is not None
                else ""
            ),
        ),
        Column("StorageClass", "Name of the storage class.", lambda volume, _: volume.spec.storage_class_name),
        Column(
            "VolumeAttributesClass",
            "Name of the volume attributes class.",
            lambda volume, _: unset_if_empty(volume.spec.volume_attributes_class_name),
        ),
        Column("Reason", "Reason of the status.", lambda volume, _: volume.status.reason),
        AGE,
        Column(
            "VolumeMode",
            "Filesystem or Block.",
            lambda volume, _: volume.spec.volume_mode or "<unset>",
            wide=True,
        ),
    ),
    rules=RULES[PersistentVolume],
    prepare_for_create=_prepare_volume_for_create,
    acted_on_by=(
        "node agents (local, hostPath, NFS); the master creates and reclaims those of provisioner "
        "`podlane.io/local-volume`"
    ),
)


def _replace_local_volume_status(new: LocalVolume, old: LocalVolume) -> tuple[LocalVolume, tuple[FieldError, ...]]:
    """Replace the status alone. Its errors are those of the whole object."""
    return msgspec.structs.replace(old, status=new.status), ()


LOCAL_VOLUMES = Resource(
    type=LocalVolume,
    columns=(
        NAME,
        Column("Node", "The node with the directory.", lambda volume, _: volume.spec.node_name),
        Column("State", "Created, Present, Scrubbed or Absent: what it is to become.", lambda vol, _: vol.spec.state),
        Column("Phase", "Ready, Scrubbed or Deleted: what the node reports.", lambda vol, _: vol.status.phase),
        Column("Message", "Why the node has not reached the state.", lambda volume, _: volume.status.message),
        AGE,
        Column("Path", "The directory on the node.", lambda volume, _: volume.status.path, wide=True),
    ),
    rules=RULES[LocalVolume],
    selectable_fields=lambda volume: {"spec.nodeName": volume.spec.node_name},
    prepare_for_create=accept_status,
    verbs=READ_VERBS,
    create_denial="the master creates a LocalVolume for each PersistentVolume that it provisions: create a claim",
    subresources=(Subresource("status", _replace_local_volume_status, verbs=("get", "update")),),
    acted_on_by="the node agent of its node creates, empties and deletes the directory, and reports it; read only",
)

CLAIM_FINALIZER = "kubernetes.io/pvc-protection"
"""The finalizer that delays the deletion while the object is in use."""


def _prepare_claim_for_create(claim: PersistentVolumeClaim) -> PersistentVolumeClaim:
    finalizers = tuple(dict.fromkeys((*claim.metadata.finalizers, CLAIM_FINALIZER)))
    return with_metadata(
        msgspec.structs.replace(claim, status=PersistentVolumeClaimStatus(phase="Pending")), finalizers=finalizers
    )


PERSISTENT_VOLUME_CLAIMS = Resource(
    type=PersistentVolumeClaim,
    short_names=("pvc",),
    columns=(
        NAME,
        Column(
            "Status",
            "Pending, Bound or Lost.",
            lambda claim, _: "Terminating" if claim.metadata.deletion_timestamp else claim.status.phase,
        ),
        Column("Volume", "Name of the volume.", lambda claim, _: claim.spec.volume_name),
        Column("Capacity", "Capacity of the volume.", lambda claim, _: str(claim.status.capacity.get("storage", ""))),
        Column(
            "Access Modes",
            "Access modes of the volume.",
            lambda claim, _: access_modes_text(claim.status.access_modes),
        ),
        Column("StorageClass", "Name of the storage class.", lambda claim, _: claim.spec.storage_class_name or ""),
        Column(
            "VolumeAttributesClass",
            "Name of the volume attributes class.",
            lambda claim, _: unset_if_empty(claim.spec.volume_attributes_class_name),
        ),
        AGE,
        Column("VolumeMode", "Filesystem or Block.", lambda claim, _: claim.spec.volume_mode or "<unset>", wide=True),
    ),
    rules=RULES[PersistentVolumeClaim],
    prepare_for_create=_prepare_claim_for_create,
    acted_on_by=(
        "the master binds it to a volume that names it, or to the smallest that matches, or creates one if its class "
        "has the provisioner `podlane.io/local-volume`"
    ),
)

DEFAULT_CLASS_ANNOTATIONS = (
    "storageclass.kubernetes.io/is-default-class",
    "storageclass.beta.kubernetes.io/is-default-class",
)
"""Annotations that mark the class of claims that name none."""
MAX_PARAMETERS, MAX_PARAMETER_BYTES = 512, 256 << 10


class TopologySelectorLabelRequirement(Value, frozen=True):
    """A requirement that the label `key` has one of these values."""

    key: str
    values: tuple[str, ...] = ()


class TopologySelectorTerm(Value, frozen=True):
    """Requirements that must all be met."""

    match_label_expressions: tuple[TopologySelectorLabelRequirement, ...] = ()


class StorageClass(Object, frozen=True):
    """A class of storage: its provisioner, the parameters of volumes, and their reclaim policy.

    `reclaimPolicy` is Delete or Retain, `volumeBindingMode` Immediate or WaitForFirstConsumer.
    """

    API_VERSION = "storage.k8s.io/v1"
    KIND = "StorageClass"
    PLURAL = "storageclasses"
    NAMESPACED = False

    provisioner: str = ""
    parameters: dict[str, str] = {}
    reclaim_policy: str | None = None
    mount_options: tuple[str, ...] = ()
    allow_volume_expansion: bool | None = None
    volume_binding_mode: str | None = None
    allowed_topologies: tuple[TopologySelectorTerm, ...] = ()


LOCAL_PROVISIONER = "podlane.io/local-volume"
"""The provisioner of volumes that are directories of nodes. The master and the node agents are this provisioner."""
NO_PROVISIONER = "kubernetes.io/no-provisioner"
"""The provisioner of classes for whose claims an administrator creates volumes."""
WAIT_FOR_FIRST_CONSUMER = "WaitForFirstConsumer"
"""The binding mode with which a claim waits until the scheduler has selected a node for a pod that uses it."""
BETA_CLASS_ANNOTATION = "volume.beta.kubernetes.io/storage-class"
"""The annotation of a claim that names its class, before there was a field."""

LOCAL_CLASS = StorageClass(
    metadata=ObjectMeta(name="local"),
    provisioner=LOCAL_PROVISIONER,
    reclaim_policy="Delete",
    volume_binding_mode=WAIT_FOR_FIRST_CONSUMER,
    allowed_topologies=(
        TopologySelectorTerm(
            match_label_expressions=(TopologySelectorLabelRequirement(key=LOCAL_VOLUMES_LABEL, values=("true",)),)
        ),
    ),
)
"""The class that the master creates."""


def matches_topology(storage_class: StorageClass, labels: Mapping[str, str]) -> bool:
    """Return whether the class allows volumes on a node with these labels."""
    return not storage_class.allowed_topologies or any(
        all(labels.get(expression.key) in expression.values for expression in term.match_label_expressions)
        for term in storage_class.allowed_topologies
    )


def claim_class(claim: PersistentVolumeClaim) -> str | None:
    """Return the class that a claim names; None if it names none."""
    return claim.metadata.annotations.get(BETA_CLASS_ANNOTATION) or claim.spec.storage_class_name


def is_default_class(storage_class: StorageClass) -> bool:
    """Return whether claims that name no class get this one, unless there is a newer default class."""
    return any(storage_class.metadata.annotations.get(key) == "true" for key in DEFAULT_CLASS_ANNOTATIONS)


def default_class(classes: Iterable[StorageClass]) -> str:
    """Return the name of the default class, the newest if there are several. Empty if there is none."""
    newest = max(
        filter(is_default_class, classes),
        key=lambda storage_class: (storage_class.metadata.creation_timestamp or "", storage_class.metadata.name),
        default=None,
    )
    return "" if newest is None else newest.metadata.name


def qualified_name_problem(text: str) -> str:
    """Return why a provisioner is not valid: it must be a qualified name. Case is ignored. Empty if it is."""
    return names.label_key_error(text.lower())


def _default_storage_class(storage_class: StorageClass) -> StorageClass:
    return replace(
        storage_class,
        reclaim_policy=storage_class.reclaim_policy or "Delete",
        volume_binding_mode=storage_class.volume_binding_mode or "Immediate",
    )


def _validate_parameters(parameters: dict[str, str]) -> Iterator[FieldError]:
    yield from max_items("parameters", parameters, MAX_PARAMETERS)
    if "" in parameters:
        yield FieldError("parameters", '""', "a key must not be empty")
    if sum(len(key) + len(value) for key, value in parameters.items()) > MAX_PARAMETER_BYTES:
        yield FieldError("parameters", "given", f"must have at most {MAX_PARAMETER_BYTES} bytes")


def _validate_storage_class(storage_class: StorageClass) -> Iterator[FieldError]:
    yield from required("provisioner", storage_class.provisioner, qualified_name_problem)
    yield from _validate_parameters(storage_class.parameters)
    yield from unsupported_values(
        ("reclaimPolicy", storage_class.reclaim_policy or "", ("Delete", "Retain")),
        ("volumeBindingMode", storage_class.volume_binding_mode or "", ("Immediate", "WaitForFirstConsumer")),
    )
    for number, term in enumerate(storage_class.allowed_topologies):
        path = f"allowedTopologies[{number}].matchLabelExpressions"
        for index, expression in enumerate(term.match_label_expressions):
            yield from required(f"{path}[{index}].key", expression.key, names.label_key_error)
            if not expression.values:
                yield FieldError(f"{path}[{index}].values", "[]", "at least one value is required", MISSING)
            yield from duplicate_values(f"{path}[{index}].values[{{}}]", list(expression.values))
        yield from duplicate_values(
            f"{path}[{{}}].key", [expression.key for expression in term.match_label_expressions]
        )


def _validate_storage_class_update(old: StorageClass, new: StorageClass) -> Iterator[FieldError]:
    fields = (
        ("parameters", old.parameters, new.parameters),
        ("provisioner", old.provisioner, new.provisioner),
        ("reclaimPolicy", old.reclaim_policy, new.reclaim_policy),
    )
    for name, before, after in fields:
        if before != after:
            yield FieldError(name, quoted(after), f"updates to {name} are forbidden.", FORBIDDEN)
    yield from immutable(("volumeBindingMode", old.volume_binding_mode, new.volume_binding_mode))


def _class_name_text(storage_class: StorageClass) -> str:
    return storage_class.metadata.name + (" (default)" if is_default_class(storage_class) else "")


STORAGE_CLASSES = Resource(
    type=StorageClass,
    short_names=("sc",),
    columns=(
        dataclasses.replace(NAME, cell=lambda storage_class, _: _class_name_text(storage_class)),
        Column("Provisioner", "Provisioner of the volumes.", lambda storage_class, _: storage_class.provisioner),
        Column(
            "ReclaimPolicy",
            "Treatment of a volume after its claim is deleted.",
            lambda storage_class, _: storage_class.reclaim_policy,
        ),
        Column(
            "VolumeBindingMode",
            "Time of binding: Immediate or WaitForFirstConsumer.",
            lambda storage_class, _: storage_class.volume_binding_mode,
        ),
        Column(
            "AllowVolumeExpansion",
            "True if volumes can be expanded.",
            lambda storage_class, _: bool(storage_class.allow_volume_expansion),
        ),
        AGE,
    ),
    rules=KindRules(_default_storage_class, _validate_storage_class, _validate_storage_class_update),
    acted_on_by=(
        "a claim that names no class gets the default class; the master creates the volumes of provisioner "
        "`podlane.io/local-volume`, other provisioners run in the cluster"
    ),
)
