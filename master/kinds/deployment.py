"""Deployment: some pods that are all alike, and change to another template step by step. Pure."""

from __future__ import annotations

import datetime
from collections.abc import Iterator
from typing import Annotated

from msgspec.structs import replace

from api.meta.schema import FORBIDDEN, NOT_SUPPORTED, FieldError, quoted
from api.meta.selectors import LabelSelector, check_selector, shown_selector
from api.meta.types import Condition, Object, Value, merge_keys
from api.validation.registry import KindRules
from master.kinds.kind import AGE, NAME, Column, Kind, Scaling, age
from master.kinds.workload import (
    WIDE,
    PodTemplateSpec,
    check_replicas,
    check_required_selector,
    check_share,
    check_template,
    defaulted_template,
    wide_cells,
)

ROLLING, RECREATE = "RollingUpdate", "Recreate"
QUARTER = "25%"
HISTORY, PROGRESS_SECONDS = 10, 600


class RollingUpdateDeployment(Value, frozen=True):
    """How many pods may be missing, and how many too many, on the way; a number or a part in percent."""

    max_unavailable: int | str | None = None
    max_surge: int | str | None = None


class DeploymentStrategy(Value, frozen=True):
    """`type` is RollingUpdate or Recreate."""

    type: str = ""
    rolling_update: RollingUpdateDeployment | None = None


class DeploymentSpec(Value, frozen=True):
    """`paused` keeps a change of the template waiting."""

    replicas: int | None = None
    selector: LabelSelector | None = None
    template: PodTemplateSpec = PodTemplateSpec()
    strategy: DeploymentStrategy = DeploymentStrategy()
    min_ready_seconds: int = 0
    revision_history_limit: int | None = None
    paused: bool = False
    progress_deadline_seconds: int | None = None


class DeploymentCondition(Condition, frozen=True):
    """`type` is Available, Progressing or ReplicaFailure."""

    last_update_time: str | None = None


class DeploymentStatus(Value, frozen=True):
    """What its replica sets have together; `collision_count` keeps their names apart."""

    observed_generation: int = 0
    replicas: int = 0
    updated_replicas: int = 0
    ready_replicas: int = 0
    available_replicas: int = 0
    unavailable_replicas: int = 0
    conditions: Annotated[tuple[DeploymentCondition, ...], merge_keys("type")] = ()
    collision_count: int | None = None


class Deployment(Object, frozen=True):
    """Keeps `replicas` pods; another `template` replaces them step by step, and can be undone."""

    API_VERSION = "apps/v1"
    KIND = "Deployment"

    spec: DeploymentSpec = DeploymentSpec()
    status: DeploymentStatus = DeploymentStatus()


def _default(item: Deployment) -> Deployment:
    spec = item.spec
    strategy = replace(spec.strategy, type=spec.strategy.type or ROLLING)
    if strategy.type == ROLLING:
        rolling = strategy.rolling_update or RollingUpdateDeployment()
        unavailable = QUARTER if rolling.max_unavailable is None else rolling.max_unavailable
        surge = QUARTER if rolling.max_surge is None else rolling.max_surge
        strategy = replace(
            strategy, rolling_update=RollingUpdateDeployment(max_unavailable=unavailable, max_surge=surge)
        )
    deadline = spec.progress_deadline_seconds
    spec = replace(
        spec,
        replicas=1 if spec.replicas is None else spec.replicas,
        template=defaulted_template(spec.template),
        strategy=strategy,
        revision_history_limit=HISTORY if spec.revision_history_limit is None else spec.revision_history_limit,
        progress_deadline_seconds=PROGRESS_SECONDS if deadline is None else deadline,
    )
    return replace(item, spec=spec)


def _check(item: Deployment) -> Iterator[FieldError]:
    spec = item.spec
    yield from check_replicas(spec.replicas)
    yield from check_required_selector(spec.selector)
    bad = list(check_selector("spec.selector", spec.selector or LabelSelector()))
    yield from bad
    yield from check_template(spec.template, None if bad else spec.selector)
    yield from _check_strategy(spec.strategy)
    rows = (("minReadySeconds", spec.min_ready_seconds), ("revisionHistoryLimit", spec.revision_history_limit))
    for name, value in (*rows, ("progressDeadlineSeconds", spec.progress_deadline_seconds)):
        if value is not None and value < 0:
            yield FieldError(f"spec.{name}", quoted(value), "must be greater than or equal to 0")
    if spec.progress_deadline_seconds is not None and spec.progress_deadline_seconds <= spec.min_ready_seconds:
        found = quoted(spec.progress_deadline_seconds)
        yield FieldError("spec.progressDeadlineSeconds", found, "must be greater than minReadySeconds")


def _check_strategy(strategy: DeploymentStrategy) -> Iterator[FieldError]:
    if strategy.type not in ("", ROLLING, RECREATE):
        accepted = f"{ROLLING} and {RECREATE} are accepted"
        yield FieldError("spec.strategy.type", quoted(strategy.type), accepted, NOT_SUPPORTED)
    rolling = strategy.rolling_update
    if rolling is None:
        return
    if strategy.type == RECREATE:
        why = f"may not be specified when strategy `type` is '{RECREATE}'"
        yield FieldError("spec.strategy.rollingUpdate", "given", why, FORBIDDEN)
    path = "spec.strategy.rollingUpdate"
    yield from check_share(f"{path}.maxUnavailable", rolling.max_unavailable)
    yield from check_share(f"{path}.maxSurge", rolling.max_surge)
    if rolling.max_unavailable in (0, "0%") and rolling.max_surge in (0, "0%"):
        why = "may not be 0 when `maxSurge` is 0"
        yield FieldError(f"{path}.maxUnavailable", quoted(rolling.max_unavailable), why)


def _immutable(old: Deployment, new: Deployment) -> Iterator[FieldError]:
    if old.spec.selector != new.spec.selector:
        yield FieldError("spec.selector", quoted(new.spec.selector), "field is immutable", FORBIDDEN)


def _cells(item: Deployment, now: datetime.datetime) -> tuple[object, ...]:
    status = item.status
    return (
        item.metadata.name,
        f"{status.ready_replicas}/{item.spec.replicas or 0}",
        status.updated_replicas,
        status.available_replicas,
        age(item.metadata.creation_timestamp, now),
        *wide_cells(item.spec.template, shown_selector(item.spec.selector)),
    )


DEPLOYMENT = Kind(
    type=Deployment,
    plural="deployments",
    singular="deployment",
    namespaced=True,
    short=("deploy",),
    categories=("all",),
    columns=(
        NAME,
        Column("Ready", "How many pods are ready, of how many."),
        Column("Up-to-date", "How many are made from the newest template."),
        Column("Available", "How many have been ready for minReadySeconds."),
        AGE,
        *WIDE,
    ),
    cells=_cells,
    on_create=lambda item: replace(item, status=DeploymentStatus()),
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
