"""StorageClass and VolumeAttributesClass: what sorts of storage there are. Kept and served. Pure."""

from __future__ import annotations

import datetime
from collections.abc import Iterable, Iterator

from msgspec.structs import replace

from api.meta import names
from api.meta.schema import FORBIDDEN, MISSING, FieldError, duplicate_values, quoted, unsupported_values
from api.meta.types import Object, Value
from api.validation.registry import KindRules
from master.kinds.checks import given, most, unchanged
from master.kinds.kind import AGE, NAME, Column, Kind, age

DEFAULT_CLASS = ("storageclass.kubernetes.io/is-default-class", "storageclass.beta.kubernetes.io/is-default-class")
"""Annotations that mark the class of claims that name none."""
MOST_PARAMETERS, LONGEST_PARAMETERS = 512, 256 << 10


class TopologySelectorLabelRequirement(Value, frozen=True):
    """The label `key` has one of these values."""

    key: str
    values: tuple[str, ...] = ()


class TopologySelectorTerm(Value, frozen=True):
    """All of it must hold."""

    match_label_expressions: tuple[TopologySelectorLabelRequirement, ...] = ()


class StorageClass(Object, frozen=True):
    """A sort of storage: who makes its volumes, how, and what becomes of them.

    `reclaimPolicy` is Delete or Retain, `volumeBindingMode` Immediate or WaitForFirstConsumer.
    """

    API_VERSION = "storage.k8s.io/v1"
    KIND = "StorageClass"

    provisioner: str = ""
    parameters: dict[str, str] = {}
    reclaim_policy: str | None = None
    mount_options: tuple[str, ...] = ()
    allow_volume_expansion: bool | None = None
    volume_binding_mode: str | None = None
    allowed_topologies: tuple[TopologySelectorTerm, ...] = ()


def usual_class(classes: Iterable[StorageClass]) -> str:
    """The name of the class of claims that name none; of several that say so the newest. Empty if there is none."""
    marked = [one for one in classes if any(one.metadata.annotations.get(key) == "true" for key in DEFAULT_CLASS)]
    newest = max(marked, key=lambda one: (one.metadata.creation_timestamp or "", one.metadata.name), default=None)
    return "" if newest is None else newest.metadata.name


class VolumeAttributesClass(Object, frozen=True):
    """Attributes that a driver can give to a volume that there is."""

    API_VERSION = "storage.k8s.io/v1"
    KIND = "VolumeAttributesClass"

    driver_name: str = ""
    parameters: dict[str, str] = {}


def qualified(text: str) -> str:
    """The syntax of a provisioner: a qualified name in lower case."""
    return names.label_key(text.lower())


def _default(item: StorageClass) -> StorageClass:
    return replace(
        item,
        reclaim_policy=item.reclaim_policy or "Delete",
        volume_binding_mode=item.volume_binding_mode or "Immediate",
    )


def _parameters(found: dict[str, str]) -> Iterator[FieldError]:
    yield from most("parameters", found, MOST_PARAMETERS)
    if "" in found:
        yield FieldError("parameters", '""', "a key must not be empty")
    if sum(len(key) + len(value) for key, value in found.items()) > LONGEST_PARAMETERS:
        yield FieldError("parameters", "given", f"must have at most {LONGEST_PARAMETERS} bytes")


def _check(item: StorageClass) -> Iterator[FieldError]:
    yield from given("provisioner", item.provisioner, qualified)
    yield from _parameters(item.parameters)
    yield from unsupported_values(
        ("reclaimPolicy", item.reclaim_policy or "", ("Delete", "Retain")),
        ("volumeBindingMode", item.volume_binding_mode or "", ("Immediate", "WaitForFirstConsumer")),
    )
    for number, term in enumerate(item.allowed_topologies):
        path = f"allowedTopologies[{number}].matchLabelExpressions"
        for index, row in enumerate(term.match_label_expressions):
            yield from given(f"{path}[{index}].key", row.key, names.label_key)
            if not row.values:
                yield FieldError(f"{path}[{index}].values", "[]", "at least one value is required", MISSING)
            yield from duplicate_values(f"{path}[{index}].values[{{}}]", list(row.values))
        yield from duplicate_values(f"{path}[{{}}].key", [row.key for row in term.match_label_expressions])


def _immutable(old: StorageClass, new: StorageClass) -> Iterator[FieldError]:
    rows = (
        ("parameters", old.parameters, new.parameters),
        ("provisioner", old.provisioner, new.provisioner),
        ("reclaimPolicy", old.reclaim_policy, new.reclaim_policy),
    )
    for name, before, after in rows:
        if before != after:
            yield FieldError(name, quoted(after), f"updates to {name} are forbidden.", FORBIDDEN)
    yield from unchanged(("volumeBindingMode", old.volume_binding_mode, new.volume_binding_mode))


def _cells(item: StorageClass, now: datetime.datetime) -> tuple[object, ...]:
    is_default = any(item.metadata.annotations.get(key) == "true" for key in DEFAULT_CLASS)
    return (
        item.metadata.name + (" (default)" if is_default else ""),
        item.provisioner,
        item.reclaim_policy,
        item.volume_binding_mode,
        bool(item.allow_volume_expansion),
        age(item.metadata.creation_timestamp, now),
    )


def _check_attributes(item: VolumeAttributesClass) -> Iterator[FieldError]:
    yield from given("driverName", item.driver_name, driver)
    if not item.parameters:
        yield FieldError("parameters", "{}", "must contain at least one key/value pair", MISSING)
    yield from _parameters(item.parameters)


def driver(text: str) -> str:
    """The syntax of the name of a driver: a domain of up to 63 characters."""
    return names.dns_subdomain(text.lower()) if len(text) <= 63 else "up to 63 characters are accepted"


def _immutable_attributes(old: VolumeAttributesClass, new: VolumeAttributesClass) -> Iterator[FieldError]:
    yield from unchanged(
        ("driverName", old.driver_name, new.driver_name), ("parameters", old.parameters, new.parameters)
    )


def _attributes_cells(item: VolumeAttributesClass, now: datetime.datetime) -> tuple[object, ...]:
    return item.metadata.name, item.driver_name, age(item.metadata.creation_timestamp, now)


STORAGE_CLASS = Kind(
    type=StorageClass,
    plural="storageclasses",
    singular="storageclass",
    namespaced=False,
    short=("sc",),
    columns=(
        NAME,
        Column("Provisioner", "Who makes its volumes."),
        Column("ReclaimPolicy", "What becomes of a volume when its claim is gone."),
        Column("VolumeBindingMode", "When a claim gets its volume."),
        Column("AllowVolumeExpansion", "Whether a volume can grow."),
        AGE,
    ),
    cells=_cells,
    own_rules=KindRules(_default, _check, _immutable),
)
VOLUME_ATTRIBUTES_CLASS = Kind(
    type=VolumeAttributesClass,
    plural="volumeattributesclasses",
    singular="volumeattributesclass",
    namespaced=False,
    short=("vac",),
    columns=(NAME, Column("DriverName", "The driver that gives the attributes."), AGE),
    cells=_attributes_cells,
    own_rules=KindRules(check=_check_attributes, immutable=_immutable_attributes),
)
