"""Namespace: a project. Pure."""

from __future__ import annotations

import datetime

import msgspec

from api.core.node import NODE_LEASES, Namespace, NamespaceSpec, NamespaceStatus
from api.meta.schema import FieldError
from master.kinds.kind import AGE, NAME, VERBS, Column, Kind, Subresource, age, with_metadata

FINALIZER = "kubernetes"
"""Stands in `spec.finalizers` until everything in the namespace is gone."""

NAME_LABEL = "kubernetes.io/metadata.name"

LASTING = ("default", NODE_LEASES, "kube-public", "kube-system")
"""Namespaces that are always there. They belong to the cluster: their lane is the one that reaches all."""


def _cells(item: Namespace, now: datetime.datetime) -> tuple[object, ...]:
    return item.metadata.name, item.status.phase or "Active", age(item.metadata.creation_timestamp, now)


def _labelled(item: Namespace) -> Namespace:
    return with_metadata(item, labels={**item.metadata.labels, NAME_LABEL: item.metadata.name})


def _on_create(item: Namespace) -> Namespace:
    finalizers = tuple(dict.fromkeys((*item.spec.finalizers, FINALIZER)))
    spec, status = NamespaceSpec(finalizers=finalizers), NamespaceStatus(phase="Active")
    return msgspec.structs.replace(_labelled(item), spec=spec, status=status)


def _on_update(new: Namespace, old: Namespace) -> Namespace:
    return msgspec.structs.replace(_labelled(new), spec=old.spec, status=old.status)


def _with_status(new: Namespace, old: Namespace) -> Namespace:
    phase = old.status.phase  # Whether a namespace is on its way out is decided by its deletion alone.
    return msgspec.structs.replace(old, status=msgspec.structs.replace(new.status, phase=phase))


def _finalized(new: Namespace, old: Namespace) -> tuple[Namespace, tuple[FieldError, ...]]:
    return msgspec.structs.replace(old, spec=new.spec), ()


NAMESPACE = Kind(
    type=Namespace,
    plural="namespaces",
    singular="namespace",
    namespaced=False,
    short=("ns",),
    columns=(NAME, Column("Status", "Active, or Terminating while its contents go away."), AGE),
    cells=_cells,
    fields=lambda item: {"status.phase": item.status.phase, "name": item.metadata.name},
    on_create=_on_create,
    on_update=_on_update,
    with_status=_with_status,
    held=lambda item: bool(item.spec.finalizers),
    more=(Subresource("finalize", part=_finalized, verbs=("update",)),),
    verbs=tuple(verb for verb in VERBS if verb != "deletecollection"),
)
