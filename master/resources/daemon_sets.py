"""DaemonSet. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

from msgspec.structs import replace

from api.meta.schema import MISSING, NOT_SUPPORTED, FieldError, quoted
from api.meta.selectors import LabelSelector, check_selector, format_selector
from api.meta.types import Condition, Object, Value, merge_keys
from api.meta.values import Int32, IntOrString
from api.validation.registry import KindRules
from master.resources.pod_template import (
    TEMPLATE_COLUMNS,
    PodTemplateSpec,
    default_template,
    is_zero_share,
    validate_int_or_percent,
    validate_required_selector,
    validate_template,
)
from master.resources.printing import AGE, NAME
from master.resources.resource import Column, Resource
from master.resources.validation import immutable, minimum

ROLLING_UPDATE, ON_DELETE = "RollingUpdate", "OnDelete"
DEFAULT_HISTORY_LIMIT = 10


class RollingUpdateDaemonSet(Value, frozen=True):
    """The number or percentage of nodes on which the pod may be missing during an update, or exist twice."""

    max_unavailable: IntOrString | None = None
    max_surge: IntOrString | None = None


class DaemonSetUpdateStrategy(Value, frozen=True):
    """The way in which pods are replaced after a change of the template.

    `type` is RollingUpdate, or OnDelete: a pod is replaced when a client deletes it.
    """

    type: str = ""
    rolling_update: RollingUpdateDaemonSet | None = None


class DaemonSetSpec(Value, frozen=True):
    """The desired state of a DaemonSet. A pod counts as available when it has been ready for `min_ready_seconds`."""

    selector: LabelSelector | None = None
    template: PodTemplateSpec = PodTemplateSpec()
    update_strategy: DaemonSetUpdateStrategy = DaemonSetUpdateStrategy()
    min_ready_seconds: Int32 = 0
    revision_history_limit: Int32 | None = None


class DaemonSetStatus(Value, frozen=True, omit_defaults=False):
    """The actual state of a DaemonSet: numbers of nodes that should have a pod, that have one, that have one although
    they should not, and so on."""

    current_number_scheduled: Int32 = 0
    number_misscheduled: Int32 = 0
    desired_number_scheduled: Int32 = 0
    number_ready: Int32 = 0
    observed_generation: int = 0
    updated_number_scheduled: Int32 = 0
    number_available: Int32 = 0
    number_unavailable: Int32 = 0
    collision_count: Int32 = 0
    conditions: Annotated[tuple[Condition, ...], merge_keys("type")] = ()


class DaemonSet(Object, frozen=True):
    """Keeps one pod made from `template` on each node that its node selector, affinity and tolerations allow."""

    API_VERSION = "apps/v1"
    KIND = "DaemonSet"
    PLURAL = "daemonsets"
    NAMESPACED = True

    spec: DaemonSetSpec = DaemonSetSpec()
    status: DaemonSetStatus = DaemonSetStatus()


def _default_daemon_set(daemon_set: DaemonSet) -> DaemonSet:
    spec = daemon_set.spec
    strategy = replace(spec.update_strategy, type=spec.update_strategy.type or ROLLING_UPDATE)
    if strategy.type == ROLLING_UPDATE:
        rolling = strategy.rolling_update or RollingUpdateDaemonSet()
        rolling = RollingUpdateDaemonSet(
            max_unavailable=1 if rolling.max_unavailable is None else rolling.max_unavailable,
            max_surge=0 if rolling.max_surge is None else rolling.max_surge,
        )
        strategy = replace(strategy, rolling_update=rolling)
    spec = replace(
        spec,
        template=default_template(spec.template),
        update_strategy=strategy,
        revision_history_limit=DEFAULT_HISTORY_LIMIT
        if spec.revision_history_limit is None
        else spec.revision_history_limit,
    )
    return replace(daemon_set, spec=spec)


def _validate_daemon_set(daemon_set: DaemonSet) -> Iterator[FieldError]:
    spec = daemon_set.spec
    yield from validate_required_selector(spec.selector)
    bad = list(check_selector("spec.selector", spec.selector or LabelSelector()))
    yield from bad
    yield from validate_template(spec.template, None if bad else spec.selector)
    yield from minimum(
        ("spec.minReadySeconds", spec.min_ready_seconds, 0),
        ("spec.revisionHistoryLimit", spec.revision_history_limit, 0),
    )
    yield from _validate_strategy(spec.update_strategy)


def _validate_strategy(strategy: DaemonSetUpdateStrategy) -> Iterator[FieldError]:
    if strategy.type not in ("", ROLLING_UPDATE, ON_DELETE):
        accepted = f"{ROLLING_UPDATE} and {ON_DELETE} are accepted"
        yield FieldError("spec.updateStrategy.type", quoted(strategy.type), accepted, NOT_SUPPORTED)
    rolling = strategy.rolling_update
    if strategy.type == ON_DELETE or rolling is None:
        return
    path = "spec.updateStrategy.rollingUpdate"
    unavailable = 1 if rolling.max_unavailable is None else rolling.max_unavailable
    bad = [
        *validate_int_or_percent(f"{path}.maxUnavailable", unavailable),
        *validate_int_or_percent(f"{path}.maxSurge", rolling.max_surge),
    ]
    yield from bad
    surge = not is_zero_share(rolling.max_surge)
    if not bad and surge and not is_zero_share(unavailable):
        yield FieldError(
            f"{path}.maxSurge", quoted(rolling.max_surge), "may not be set when maxUnavailable is non-zero"
        )
    elif not bad and not surge and is_zero_share(unavailable):
        yield FieldError(f"{path}.maxUnavailable", quoted(unavailable), "cannot be 0 when maxSurge is 0", MISSING)


DAEMON_SETS = Resource(
    type=DaemonSet,
    short_names=("ds",),
    categories=("all",),
    columns=(
        NAME,
        Column(
            "Desired",
            "Number of nodes that should have a pod.",
            lambda daemon_set, _: daemon_set.status.desired_number_scheduled,
            type="integer",
        ),
        Column(
            "Current",
            "On how many there is one.",
            lambda daemon_set, _: daemon_set.status.current_number_scheduled,
            type="integer",
        ),
        Column(
            "Ready",
            "Number of nodes whose pod is ready.",
            lambda daemon_set, _: daemon_set.status.number_ready,
            type="integer",
        ),
        Column(
            "Up-to-date",
            "Number of nodes whose pod is of the newest template.",
            lambda daemon_set, _: daemon_set.status.updated_number_scheduled,
            type="integer",
        ),
        Column(
            "Available",
            "On how many it has been ready for minReadySeconds.",
            lambda daemon_set, _: daemon_set.status.number_available,
            type="integer",
        ),
        Column(
            "Node Selector",
            "Labels that a node must have.",
            lambda daemon_set, _: format_selector(
                LabelSelector(match_labels=daemon_set.spec.template.spec.node_selector)
            ),
        ),
        AGE,
        *TEMPLATE_COLUMNS,
    ),
    spec=lambda daemon_set: daemon_set.spec,
    rules=KindRules(
        default=_default_daemon_set,
        validate=_validate_daemon_set,
        validate_update=lambda old, new: immutable(("spec.selector", old.spec.selector, new.spec.selector)),
    ),
    acted_on_by="the daemon set controller of the master",
)
