"""ReplicationController: some pods that are all alike, the first of its kind. Pure."""

from __future__ import annotations

import datetime
from collections.abc import Iterator
from typing import Annotated

from msgspec.structs import replace

from api.meta.schema import MISSING, FieldError
from api.meta.selectors import LabelSelector, check_selector
from api.meta.types import ATOMIC, Object, Value
from api.validation.registry import KindRules
from master.kinds.kind import AGE, NAME, Kind, Scaling, age, or_none
from master.kinds.workload import (
    COUNTED,
    WIDE,
    PodTemplateSpec,
    ReplicasStatus,
    check_replicas,
    check_template,
    defaulted_template,
    wide_cells,
)


class ReplicationControllerSpec(Value, frozen=True):
    """A pod counts as available when it has been ready for `min_ready_seconds`."""

    replicas: int | None = None
    min_ready_seconds: int = 0
    selector: Annotated[dict[str, str], ATOMIC] = {}
    template: PodTemplateSpec | None = None


class ReplicationController(Object, frozen=True):
    """Keeps `replicas` pods that are made from `template`."""

    API_VERSION = "v1"
    KIND = "ReplicationController"

    spec: ReplicationControllerSpec = ReplicationControllerSpec()
    status: ReplicasStatus = ReplicasStatus()


def _default(item: ReplicationController) -> ReplicationController:
    spec, template = item.spec, item.spec.template
    labels = template.metadata.labels if template else {}
    spec = replace(
        spec,
        replicas=1 if spec.replicas is None else spec.replicas,
        selector=spec.selector or labels,
        template=None if template is None else defaulted_template(template),
    )
    return replace(item, metadata=replace(item.metadata, labels=item.metadata.labels or labels), spec=spec)


def _check(item: ReplicationController) -> Iterator[FieldError]:
    spec = item.spec
    yield from check_replicas(spec.replicas)
    if spec.template is None:
        yield FieldError("spec.template", "null", "a template is required", MISSING)
        return
    wish = LabelSelector(match_labels=spec.selector or spec.template.metadata.labels)
    if not wish.match_labels:
        yield FieldError("spec.selector", "{}", "a selector, or labels of the template, are required", MISSING)
    yield from check_selector("spec", wish)
    yield from check_template(spec.template, wish)


def _cells(item: ReplicationController, now: datetime.datetime) -> tuple[object, ...]:
    selector = ",".join(f"{key}={value}" for key, value in sorted(item.spec.selector.items()))
    return (
        item.metadata.name,
        item.spec.replicas or 0,
        item.status.replicas,
        item.status.ready_replicas,
        age(item.metadata.creation_timestamp, now),
        *wide_cells(item.spec.template or PodTemplateSpec(), or_none(selector)),
    )


REPLICATION_CONTROLLER = Kind(
    type=ReplicationController,
    plural="replicationcontrollers",
    singular="replicationcontroller",
    namespaced=True,
    short=("rc",),
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
        selector=lambda item: ",".join(f"{key}={value}" for key, value in sorted(item.spec.selector.items())),
        scaled=lambda item, replicas: replace(item, spec=replace(item.spec, replicas=replicas)),
    ),
    own_rules=KindRules(default=_default, check=_check),
    orphans=True,
)
