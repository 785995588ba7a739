"""HorizontalPodAutoscaler of autoscaling/v1, which knows one metric: what pods use of the processor. Pure.

What it has no fields for stands in annotations, as in Kubernetes.
"""

from __future__ import annotations

import datetime
from collections.abc import Iterator
from typing import Any

import msgspec
from msgspec.structs import replace

from api.meta.schema import FieldError, quoted
from api.meta.types import Condition, Object, ObjectMeta, Value
from api.validation.registry import KindRules
from master.kinds import horizontal_pod_autoscaler
from master.kinds.horizontal_pod_autoscaler import HORIZONTAL_POD_AUTOSCALER, HorizontalPodAutoscalerBehavior
from master.kinds.kind import Conversion, Kind
from master.kinds.metrics import CrossVersionObjectReference, MetricSpec, MetricStatus, of_cpu

_PREFIX = "autoscaling.alpha.kubernetes.io/"
METRICS, BEHAVIOR = f"{_PREFIX}metrics", f"{_PREFIX}behavior"
CURRENT, CONDITIONS = f"{_PREFIX}current-metrics", f"{_PREFIX}conditions"
_TYPES: dict[str, Any] = {
    METRICS: tuple[MetricSpec, ...],
    BEHAVIOR: HorizontalPodAutoscalerBehavior,
    CURRENT: tuple[MetricStatus, ...],
    CONDITIONS: tuple[Condition, ...],
}
"""Annotation → what it is as JSON."""


class HorizontalPodAutoscalerSpec(Value, frozen=True):
    """`scaleTargetRef` gets as many pods as keep their use of the processor at this part of what they ask for."""

    scale_target_ref: CrossVersionObjectReference = CrossVersionObjectReference()
    min_replicas: int | None = None
    max_replicas: int = 0
    target_cpu_utilization_percentage: int | None = msgspec.field(default=None, name="targetCPUUtilizationPercentage")


class HorizontalPodAutoscalerStatus(Value, frozen=True, omit_defaults=False):
    """Written by its controller."""

    observed_generation: int | None = None
    last_scale_time: str | None = None
    current_replicas: int = 0
    desired_replicas: int = 0
    current_cpu_utilization_percentage: int | None = msgspec.field(default=None, name="currentCPUUtilizationPercentage")


class HorizontalPodAutoscaler(Object, frozen=True):
    """How many pods there are to be follows what they do with the processor."""

    API_VERSION = "autoscaling/v1"
    KIND = "HorizontalPodAutoscaler"

    spec: HorizontalPodAutoscalerSpec = HorizontalPodAutoscalerSpec()
    status: HorizontalPodAutoscalerStatus = HorizontalPodAutoscalerStatus()


def _percent(metric: MetricSpec) -> int | None:
    """How much of the processor is asked for, if the metric is one that this form has a field for."""
    asked = metric.resource.target.average_utilization if metric.resource is not None else None
    return asked if asked is not None and metric == of_cpu(asked) else None


def _seen(item: horizontal_pod_autoscaler.HorizontalPodAutoscaler) -> HorizontalPodAutoscaler:
    spec, status = item.spec, item.status
    percents = [_percent(metric) for metric in spec.metrics]
    used = [row.resource.current.average_utilization for row in status.current_metrics if row.resource is not None]
    more: dict[str, object] = {CONDITIONS: status.conditions, BEHAVIOR: spec.behavior, CURRENT: status.current_metrics}
    if len(percents) > 1 or None in percents:
        more[METRICS] = spec.metrics
    noted = {key: msgspec.json.encode(value).decode() for key, value in more.items() if value}
    return HorizontalPodAutoscaler(
        metadata=replace(item.metadata, annotations=item.metadata.annotations | noted),
        spec=HorizontalPodAutoscalerSpec(
            scale_target_ref=spec.scale_target_ref,
            min_replicas=spec.min_replicas,
            max_replicas=spec.max_replicas,
            target_cpu_utilization_percentage=next((one for one in percents if one is not None), None),
        ),
        status=HorizontalPodAutoscalerStatus(
            observed_generation=status.observed_generation,
            last_scale_time=status.last_scale_time,
            current_replicas=status.current_replicas,
            desired_replicas=status.desired_replicas,
            current_cpu_utilization_percentage=next((one for one in used if one is not None), None),
        ),
    )


def _noted(metadata: ObjectMeta, key: str, otherwise: Any) -> Any:
    """What an annotation holds. Raises ValidationError."""
    text = metadata.annotations.get(key)
    return otherwise if text is None else msgspec.json.decode(text, type=_TYPES[key])


def _kept(item: HorizontalPodAutoscaler) -> horizontal_pod_autoscaler.HorizontalPodAutoscaler:
    spec, status, metadata = item.spec, item.status, item.metadata
    metrics = list(_noted(metadata, METRICS, ()))
    asked = spec.target_cpu_utilization_percentage
    known = next((number for number, metric in enumerate(metrics) if _percent(metric) is not None), len(metrics))
    metrics[known : known + 1] = [] if asked is None else [of_cpu(asked)]
    others = {key: value for key, value in metadata.annotations.items() if key not in _TYPES}
    return horizontal_pod_autoscaler.HorizontalPodAutoscaler(
        metadata=replace(metadata, annotations=others),
        spec=horizontal_pod_autoscaler.HorizontalPodAutoscalerSpec(
            scale_target_ref=spec.scale_target_ref,
            min_replicas=spec.min_replicas,
            max_replicas=spec.max_replicas,
            metrics=tuple(metrics),
            behavior=_noted(metadata, BEHAVIOR, None),
        ),
        status=horizontal_pod_autoscaler.HorizontalPodAutoscalerStatus(
            observed_generation=status.observed_generation,
            last_scale_time=status.last_scale_time,
            current_replicas=status.current_replicas,
            desired_replicas=status.desired_replicas,
            current_metrics=_noted(metadata, CURRENT, ()),
            conditions=_noted(metadata, CONDITIONS, ()),
        ),
    )


def _check(item: HorizontalPodAutoscaler) -> Iterator[FieldError]:
    """What annotations hold has to be what they say; what is wrong with the whole is told by this form's fields."""
    bad = False
    for key in _TYPES:
        try:
            _noted(item.metadata, key, None)
        except msgspec.DecodeError as error:
            bad = True
            yield FieldError(f"metadata.annotations[{key}]", quoted(item.metadata.annotations[key]), str(error))
    if bad:
        return
    for problem in HORIZONTAL_POD_AUTOSCALER.rules.check(_kept(item)):
        path = problem.path
        if path.startswith("spec.behavior"):
            path = f"metadata.annotations[{BEHAVIOR}]"
        elif path.startswith("spec.metrics"):
            noted = METRICS in item.metadata.annotations
            path = f"metadata.annotations[{METRICS}]" if noted else "spec.targetCPUUtilizationPercentage"
        yield problem._replace(path=path)


def _default(item: HorizontalPodAutoscaler) -> HorizontalPodAutoscaler:
    return HORIZONTAL_POD_AUTOSCALER_V1.seen(HORIZONTAL_POD_AUTOSCALER.rules.default(_kept(item)))


def _with_status_of(new: HorizontalPodAutoscaler, old: HorizontalPodAutoscaler) -> HorizontalPodAutoscaler:
    """The new one with the status of the old, of which a part stands in annotations."""
    notes = {key: text for key, text in new.metadata.annotations.items() if key not in (CURRENT, CONDITIONS)}
    notes |= {key: text for key, text in old.metadata.annotations.items() if key in (CURRENT, CONDITIONS)}
    return replace(new, metadata=replace(new.metadata, annotations=notes), status=old.status)


def _cells(item: HorizontalPodAutoscaler, now: datetime.datetime) -> tuple[object, ...]:
    return HORIZONTAL_POD_AUTOSCALER.cells(_kept(item), now)


HORIZONTAL_POD_AUTOSCALER_V1 = Kind(
    type=HorizontalPodAutoscaler,
    plural="horizontalpodautoscalers",
    singular="horizontalpodautoscaler",
    namespaced=True,
    short=("hpa",),
    categories=("all",),
    columns=horizontal_pod_autoscaler.COLUMNS,
    cells=_cells,
    on_create=lambda item: _with_status_of(item, HorizontalPodAutoscaler()),
    on_update=_with_status_of,
    with_status=lambda new, old: replace(old, status=new.status),
    spec=lambda item: _kept(item).spec,
    own_rules=KindRules(_default, _check, warnings=lambda item: iter((horizontal_pod_autoscaler.UNHEEDED,))),
    conversion=Conversion(HORIZONTAL_POD_AUTOSCALER, _seen, _kept),
)
