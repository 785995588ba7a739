"""ReplicaSet: some pods that are all alike. Pure."""

from __future__ import annotations

import datetime
from collections.abc import Iterator

from msgspec.structs import replace

from api.meta.schema import FORBIDDEN, FieldError, quoted
from api.meta.selectors import LabelSelector, check_selector, shown_selector
from api.meta.types import Object, Value
from api.validation.registry import KindRules
from master.kinds.kind import AGE, NAME, Kind, Scaling, age
from master.kinds.workload import (
    COUNTED,
    WIDE,
    PodTemplateSpec,
    ReplicasStatus,
    check_replicas,
    check_required_selector,
    check_template,
    defaulted_template,
    wide_cells,
)


class ReplicaSetSpec(Value, frozen=True):
    """A pod counts as available when it has been ready for `min_ready_seconds`."""

    replicas: int | None = None
    min_ready_seconds: int = 0
    selector: LabelSelector | None = None
    template: PodTemplateSpec = PodTemplateSpec()


class ReplicaSet(Object, frozen=True):
    """Keeps `replicas` pods that are made from `template`."""

    API_VERSION = "apps/v1"
    KIND = "ReplicaSet"

    spec: ReplicaSetSpec = ReplicaSetSpec()
    status: ReplicasStatus = ReplicasStatus()


def _default(item: ReplicaSet) -> ReplicaSet:
    spec = item.spec
    replicas = 1 if spec.replicas is None else spec.replicas
    return replace(item, spec=replace(spec, replicas=replicas, template=defaulted_template(spec.template)))


def _check(item: ReplicaSet) -> Iterator[FieldError]:
    spec = item.spec
    yield from check_replicas(spec.replicas)
    yield from check_required_selector(spec.selector)
    bad = list(check_selector("spec.selector", spec.selector or LabelSelector()))
    yield from bad
    yield from check_template(spec.template, None if bad else spec.selector)


def _immutable(old: ReplicaSet, new: ReplicaSet) -> Iterator[FieldError]:
    if old.spec.selector != new.spec.selector:
        yield FieldError("spec.selector", quoted(new.spec.selector), "field is immutable", FORBIDDEN)


def _cells(item: ReplicaSet, now: datetime.datetime) -> tuple[object, ...]:
    return (
        item.metadata.name,
        item.spec.replicas or 0,
        item.status.replicas,
        item.status.ready_replicas,
        age(item.metadata.creation_timestamp, now),
        *wide_cells(item.spec.template, shown_selector(item.spec.selector)),
    )


REPLICA_SET = Kind(
    type=ReplicaSet,
    plural="replicasets",
    singular="replicaset",
    namespaced=True,
    short=("rs",),
    categories=("all",),
    columns=(
        NAME,
        *COUNTED,
        AGE,
        *WIDE,
    ),
    cells=_cells,
    fields=lambda item: {"status.replicas": str(item.status.replicas)},
    on_create=lambda item: replace(item, status=ReplicasStatus()),
    on_update=lambda new, old: replace(new, status=old.status),
    with_status=lambda new, old: replace(old, status=new.status),
    spec=lambda item: item.spec,
    scaling=Scaling(
        replicas=lambda item: item.spec.replicas or 0,
        current=lambda item: item.status.replicas,
        selector=lambda item: shown_selector(item.spec.selector),
        scaled=lambda item, replicas: replace(item, spec=replace(item.spec, replicas=replicas)),
    ),
    own_rules=KindRules(default=_default, check=_check, immutable=_immutable),
)
