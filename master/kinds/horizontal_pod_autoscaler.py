"""HorizontalPodAutoscaler: how many pods there are to be follows what they do. Kept and served. Pure."""

from __future__ import annotations

import datetime
from collections.abc import Iterator
from typing import Annotated

from msgspec.structs import replace

from api.meta.schema import NOT_SUPPORTED, FieldError, quoted, unsupported_values
from api.meta.types import Condition, Object, Value, merge_keys
from api.validation.registry import KindRules
from master.kinds.checks import amount, at_least
from master.kinds.kind import AGE, NAME, Column, Kind, age
from master.kinds.metrics import (
    Amount,
    CrossVersionObjectReference,
    MetricSpec,
    MetricStatus,
    check_metric,
    check_reference,
    of_cpu,
    shown_metric,
)

SELECT_POLICIES, POLICY_TYPES = ("Max", "Min", "Disabled"), ("Pods", "Percent")
USUAL_UTILIZATION, LONGEST_PERIOD, LONGEST_WINDOW, MOST_SHOWN = 80, 1800, 3600, 2
UNHEEDED = "no controller of this master acts on a HorizontalPodAutoscaler: replicas stay as they are"


class HPAScalingPolicy(Value, frozen=True):
    """So many pods, or so much of them in percent, within so many seconds."""

    type: str = ""
    value: int = 0
    period_seconds: int = 0


class HPAScalingRules(Value, frozen=True):
    """How fast it may go."""

    stabilization_window_seconds: int | None = None
    select_policy: str | None = None
    policies: tuple[HPAScalingPolicy, ...] = ()
    tolerance: Amount = None


class HorizontalPodAutoscalerBehavior(Value, frozen=True):
    """Up and down."""

    scale_up: HPAScalingRules | None = None
    scale_down: HPAScalingRules | None = None


class HorizontalPodAutoscalerSpec(Value, frozen=True):
    """`scaleTargetRef` gets between `minReplicas` and `maxReplicas` pods, as the metrics ask for."""

    scale_target_ref: CrossVersionObjectReference = CrossVersionObjectReference()
    min_replicas: int | None = None
    max_replicas: int = 0
    metrics: tuple[MetricSpec, ...] = ()
    behavior: HorizontalPodAutoscalerBehavior | None = None


class HorizontalPodAutoscalerStatus(Value, frozen=True, omit_defaults=False):
    """Written by its controller."""

    observed_generation: int | None = None
    last_scale_time: str | None = None
    current_replicas: int = 0
    desired_replicas: int = 0
    current_metrics: tuple[MetricStatus, ...] = ()
    conditions: Annotated[tuple[Condition, ...], merge_keys("type")] = ()


class HorizontalPodAutoscaler(Object, frozen=True):
    """How many pods there are to be follows what they do."""

    API_VERSION = "autoscaling/v2"
    KIND = "HorizontalPodAutoscaler"

    spec: HorizontalPodAutoscalerSpec = HorizontalPodAutoscalerSpec()
    status: HorizontalPodAutoscalerStatus = HorizontalPodAutoscalerStatus()


_UP = HPAScalingRules(
    stabilization_window_seconds=0,
    select_policy="Max",
    policies=(
        HPAScalingPolicy(type="Pods", value=4, period_seconds=15),
        HPAScalingPolicy(type="Percent", value=100, period_seconds=15),
    ),
)
_DOWN = HPAScalingRules(select_policy="Max", policies=(HPAScalingPolicy(type="Percent", value=100, period_seconds=15),))


def _default(item: HorizontalPodAutoscaler) -> HorizontalPodAutoscaler:
    spec = item.spec
    behavior = spec.behavior
    if behavior is not None:
        behavior = HorizontalPodAutoscalerBehavior(
            scale_up=_default_rules(behavior.scale_up, _UP), scale_down=_default_rules(behavior.scale_down, _DOWN)
        )
    spec = replace(
        spec,
        min_replicas=1 if spec.min_replicas is None else spec.min_replicas,
        metrics=spec.metrics or (of_cpu(USUAL_UTILIZATION),),
        behavior=behavior,
    )
    return replace(item, spec=spec)


def _default_rules(rules: HPAScalingRules | None, usual: HPAScalingRules) -> HPAScalingRules:
    if rules is None:
        return usual
    window = rules.stabilization_window_seconds
    return replace(
        rules,
        stabilization_window_seconds=usual.stabilization_window_seconds if window is None else window,
        select_policy=rules.select_policy or usual.select_policy,
        policies=rules.policies or usual.policies,
    )


# --- what is wrong ----------------------------------------------------------------------------------------------------


def _check(item: HorizontalPodAutoscaler) -> Iterator[FieldError]:
    spec = item.spec
    yield from check_reference("spec.scaleTargetRef", spec.scale_target_ref)
    yield from at_least(("spec.minReplicas", spec.min_replicas, 1), ("spec.maxReplicas", spec.max_replicas, 1))
    if 1 <= spec.max_replicas < (spec.min_replicas or 1):
        yield FieldError(
            "spec.maxReplicas", quoted(spec.max_replicas), "must be greater than or equal to `minReplicas`"
        )
    for number, metric in enumerate(spec.metrics):
        yield from check_metric(f"spec.metrics[{number}]", metric)
    if spec.behavior is not None:
        yield from _check_rules("spec.behavior.scaleUp", spec.behavior.scale_up)
        yield from _check_rules("spec.behavior.scaleDown", spec.behavior.scale_down)


def _check_rules(path: str, rules: HPAScalingRules | None) -> Iterator[FieldError]:
    if rules is None:
        return
    yield from _within(f"{path}.stabilizationWindowSeconds", rules.stabilization_window_seconds, 0, LONGEST_WINDOW)
    yield from unsupported_values((f"{path}.selectPolicy", rules.select_policy or "", SELECT_POLICIES))
    yield from amount(f"{path}.tolerance", rules.tolerance)
    for number, row in enumerate(rules.policies):
        place = f"{path}.policies[{number}]"
        if row.type not in POLICY_TYPES:
            accepted = f"{', '.join(POLICY_TYPES)} are accepted"
            yield FieldError(f"{place}.type", quoted(row.type), accepted, NOT_SUPPORTED)
        yield from at_least((f"{place}.value", row.value, 1))
        yield from _within(f"{place}.periodSeconds", row.period_seconds, 1, LONGEST_PERIOD)


def _within(path: str, value: int | None, least: int, most: int) -> Iterator[FieldError]:
    if value is not None and not least <= value <= most:
        yield FieldError(path, quoted(value), f"must be between {least} and {most}")


# --- how it is shown --------------------------------------------------------------------------------------------------


def _metrics(item: HorizontalPodAutoscaler) -> str:
    specs, found = item.spec.metrics, item.status.current_metrics
    pairs = [(spec, found[number] if number < len(found) else None) for number, spec in enumerate(specs)]
    more = f" + {len(specs) - MOST_SHOWN} more..." if len(specs) > MOST_SHOWN else ""
    return ", ".join(shown_metric(*pair) for pair in pairs[:MOST_SHOWN]) + more if pairs else "<none>"


def _cells(item: HorizontalPodAutoscaler, now: datetime.datetime) -> tuple[object, ...]:
    reference = item.spec.scale_target_ref
    return (
        item.metadata.name,
        f"{reference.kind}/{reference.name}",
        _metrics(item),
        "<unset>" if item.spec.min_replicas is None else str(item.spec.min_replicas),
        item.spec.max_replicas,
        item.status.current_replicas,
        age(item.metadata.creation_timestamp, now),
    )


COLUMNS = (
    NAME,
    Column("Reference", "Whose pods are counted."),
    Column("Targets", "What there is, and what there is to be."),
    Column("MinPods", "The least number of pods."),
    Column("MaxPods", "The greatest number of pods."),
    Column("Replicas", "How many there are."),
    AGE,
)

HORIZONTAL_POD_AUTOSCALER = Kind(
    type=HorizontalPodAutoscaler,
    plural="horizontalpodautoscalers",
    singular="horizontalpodautoscaler",
    namespaced=True,
    short=("hpa",),
    categories=("all",),
    columns=COLUMNS,
    cells=_cells,
    on_create=lambda item: replace(item, status=HorizontalPodAutoscalerStatus()),
    on_update=lambda new, old: replace(new, status=old.status),
    with_status=lambda new, old: replace(old, status=new.status),
    spec=lambda item: item.spec,
    own_rules=KindRules(_default, _check, warnings=lambda item: iter((UNHEEDED,))),
)
