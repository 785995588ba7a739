"""HorizontalPodAutoscaler (v2 and v1) and its metrics. Pure.

autoscaling/v1 has one metric, the CPU usage. Annotations hold the fields that it does not have, as in Kubernetes.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any

import msgspec
from msgspec.structs import asdict, replace

from api.meta import names, quantity
from api.meta.schema import MISSING, NOT_SUPPORTED, TOO_MANY, FieldError, quoted, unsupported_values
from api.meta.selectors import LabelSelector, check_selector
from api.meta.types import Condition, Object, ObjectMeta, Value, merge_keys
from api.meta.values import Int32, Quantity, Time
from api.validation.registry import KindRules
from master.resources.printing import AGE, NAME
from master.resources.resource import Column, Resource, Version
from master.resources.validation import exactly_one, minimum, quantity_at_least, required

METRIC_SOURCES = ("Resource", "Pods", "Object", "External", "ContainerResource")
UTILIZATION_TARGET, VALUE_TARGET, AVERAGE_VALUE_TARGET = "Utilization", "Value", "AverageValue"


class CrossVersionObjectReference(Value, frozen=True):
    """A reference to an object of the same project."""

    kind: str = ""
    name: str = ""
    api_version: str = ""


class MetricIdentifier(Value, frozen=True):
    """The name of a metric, and a selector of its series."""

    name: str = ""
    selector: LabelSelector | None = None


class MetricTarget(Value, frozen=True):
    """The target of a metric. `type` is Utilization, Value or AverageValue, and the field of that name is set."""

    type: str = ""
    value: Quantity | None = None
    average_value: Quantity | None = None
    average_utilization: Int32 | None = None


class ResourceMetricSource(Value, frozen=True):
    """The usage of a resource by the pods."""

    name: str = ""
    target: MetricTarget = MetricTarget()


class ContainerResourceMetricSource(ResourceMetricSource, frozen=True):
    """The usage of a resource by one container of each pod."""

    container: str = ""


class PodsMetricSource(Value, frozen=True):
    """A metric of each pod."""

    metric: MetricIdentifier = MetricIdentifier()
    target: MetricTarget = MetricTarget()


class ObjectMetricSource(PodsMetricSource, frozen=True):
    """A metric of one object."""

    described_object: CrossVersionObjectReference = CrossVersionObjectReference()


class ExternalMetricSource(PodsMetricSource, frozen=True):
    """A metric from outside of the cluster."""


class MetricSpec(Value, frozen=True):
    """A metric and its target. `type` names the field that is set."""

    type: str = ""
    resource: ResourceMetricSource | None = None
    pods: PodsMetricSource | None = None
    object: ObjectMetricSource | None = None
    external: ExternalMetricSource | None = None
    container_resource: ContainerResourceMetricSource | None = None


class MetricValueStatus(Value, frozen=True):
    """The measured value."""

    value: Quantity | None = None
    average_value: Quantity | None = None
    average_utilization: Int32 | None = None


class ResourceMetricStatus(Value, frozen=True):
    """The usage of a resource by the pods."""

    name: str = ""
    current: MetricValueStatus = MetricValueStatus()


class ContainerResourceMetricStatus(ResourceMetricStatus, frozen=True):
    """The usage of a resource by one container of each pod."""

    container: str = ""


class PodsMetricStatus(Value, frozen=True):
    """The measured metric of each pod."""

    metric: MetricIdentifier = MetricIdentifier()
    current: MetricValueStatus = MetricValueStatus()


class ObjectMetricStatus(PodsMetricStatus, frozen=True):
    """The measured metric of one object."""

    described_object: CrossVersionObjectReference = CrossVersionObjectReference()


class ExternalMetricStatus(PodsMetricStatus, frozen=True):
    """The measured metric from outside of the cluster."""


class MetricStatus(Value, frozen=True):
    """The measured value of a metric. `type` names the field that is set; it is empty if the metric has no value."""

    type: str
    resource: ResourceMetricStatus | None = None
    pods: PodsMetricStatus | None = None
    object: ObjectMetricStatus | None = None
    external: ExternalMetricStatus | None = None
    container_resource: ContainerResourceMetricStatus | None = None


def cpu_utilization_metric(percent: int) -> MetricSpec:
    """Return the metric for CPU usage, in percent of the pods' requests."""
    return MetricSpec(
        type="Resource",
        resource=ResourceMetricSource(
            name="cpu", target=MetricTarget(type=UTILIZATION_TARGET, average_utilization=percent)
        ),
    )


# --- validation -------------------------------------------------------------------------------------------------------


def _path_segment(text: str) -> str:
    return 'may not contain "/" or "%"' if "/" in text or "%" in text or text in (".", "..") else ""


def validate_reference(path: str, reference: CrossVersionObjectReference) -> Iterator[FieldError]:
    """Yield the errors of a reference to an object of the same project."""
    yield from required(f"{path}.kind", reference.kind, _path_segment)
    yield from required(f"{path}.name", reference.name, _path_segment)


def validate_metric(path: str, metric: MetricSpec) -> Iterator[FieldError]:
    """Yield every error of a metric."""
    held = asdict(metric)
    held.pop("type")
    sources = {("containerResource" if key == "container_resource" else key): source for key, source in held.items()}
    errors = list(exactly_one(path, sources))
    field = metric.type[:1].lower() + metric.type[1:]
    if metric.type not in METRIC_SOURCES:
        yield FieldError(
            f"{path}.type", quoted(metric.type), f"{', '.join(METRIC_SOURCES)} are accepted", NOT_SUPPORTED
        )
    elif errors:
        yield from errors
    elif sources[field] is None:
        yield FieldError(f"{path}.{field}", "null", f"is required where the type is {metric.type}", MISSING)
    else:
        yield from _validate_source(f"{path}.{field}", sources[field])


def _validate_source(path: str, source: ResourceMetricSource | PodsMetricSource) -> Iterator[FieldError]:
    if isinstance(source, ResourceMetricSource):
        yield from required(f"{path}.name", source.name, names.label_key_error)
        accepted: tuple[str, ...] = (UTILIZATION_TARGET, AVERAGE_VALUE_TARGET)
    else:
        yield from required(f"{path}.metric.name", source.metric.name, _path_segment)
        yield from check_selector(f"{path}.metric.selector", source.metric.selector or LabelSelector())
        accepted = (
            (VALUE_TARGET, AVERAGE_VALUE_TARGET)
            if isinstance(source, ObjectMetricSource | ExternalMetricSource)
            else (AVERAGE_VALUE_TARGET,)
        )
    if isinstance(source, ContainerResourceMetricSource):
        yield from required(f"{path}.container", source.container, names.dns_label_error)
    if isinstance(source, ObjectMetricSource):
        yield from validate_reference(f"{path}.describedObject", source.described_object)
    yield from _validate_target(f"{path}.target", source.target, accepted)


def _validate_target(path: str, target: MetricTarget, accepted: tuple[str, ...]) -> Iterator[FieldError]:
    if target.type not in accepted:
        yield FieldError(f"{path}.type", quoted(target.type), f"{', '.join(accepted)} are accepted", NOT_SUPPORTED)
        return
    fields = {
        UTILIZATION_TARGET: ("averageUtilization", target.average_utilization),
        VALUE_TARGET: ("value", target.value),
        AVERAGE_VALUE_TARGET: ("averageValue", target.average_value),
    }
    name, _ = fields[target.type]
    for field, value in fields.values():
        if field == name and value is None:
            yield FieldError(f"{path}.{field}", "null", f"is required where the type is {target.type}", MISSING)
        elif field != name and value is not None:
            yield FieldError(f"{path}.{field}", quoted(value), f"is not accepted where the type is {target.type}")
    yield from minimum((f"{path}.averageUtilization", target.average_utilization, 1))
    yield from _positive_quantity(f"{path}.value", target.value)
    yield from _positive_quantity(f"{path}.averageValue", target.average_value)


def _positive_quantity(path: str, text: str | float | None) -> Iterator[FieldError]:
    """Yield an error unless the quantity is above 0; an omitted quantity is accepted."""
    if text is None:
        return
    try:
        if quantity.parse(text) <= 0:
            yield FieldError(path, quoted(text), "must be positive")
    except quantity.BadQuantity as error:
        yield FieldError(path, quoted(text), str(error))


# --- columns ----------------------------------------------------------------------------------------------------------


def metric_text(metric: MetricSpec, status: MetricStatus | None) -> str:
    """Return a metric as text: its current and its target value."""
    source = metric.resource or metric.container_resource
    other = metric.pods or metric.object or metric.external
    target = source.target if source else other.target if other else MetricTarget()
    measured = None
    if status is not None:
        metric_status = status.resource or status.container_resource or status.pods or status.object or status.external
        measured = metric_status.current if metric_status is not None else None
    current: object = None
    if measured is not None:
        current = {UTILIZATION_TARGET: measured.average_utilization, VALUE_TARGET: measured.value}.get(
            target.type, measured.average_value
        )
    target_value = {UTILIZATION_TARGET: target.average_utilization, VALUE_TARGET: target.value}.get(
        target.type, target.average_value
    )
    unit = "%" if target.type == UTILIZATION_TARGET else ""
    averaged = " (avg)" if target.type == AVERAGE_VALUE_TARGET and not (metric.pods or source) else ""
    text = f"{'<unknown>' if current is None else f'{current}{unit}'}/{target_value}{unit}{averaged}"
    return f"{source.name}: {text}" if source else text


SELECT_POLICIES, POLICY_TYPES = ("Max", "Min", "Disabled"), ("Pods", "Percent")
DEFAULT_UTILIZATION, MAX_PERIOD_SECONDS, MAX_WINDOW_SECONDS, MAX_METRICS_SHOWN = 80, 1800, 3600, 2
MAX_METRICS, MAX_POLICIES = 100, 100
"""Metrics of an autoscaler, and policies of a direction. All of them are computed in each pass."""


class HPAScalingPolicy(Value, frozen=True):
    """A number of pods, or a percentage of them, that may change within a number of seconds."""

    type: str = ""
    value: Int32 = 0
    period_seconds: Int32 = 0


class HPAScalingRules(Value, frozen=True):
    """The limits of the rate at which the number of pods changes."""

    stabilization_window_seconds: Int32 | None = None
    select_policy: str | None = None
    policies: tuple[HPAScalingPolicy, ...] = ()
    tolerance: Quantity | None = None


class HorizontalPodAutoscalerBehavior(Value, frozen=True):
    """The rules for scaling up and down."""

    scale_up: HPAScalingRules | None = None
    scale_down: HPAScalingRules | None = None


class HorizontalPodAutoscalerSpec(Value, frozen=True):
    """The desired state.

    The workload `scaleTargetRef` gets between `minReplicas` and `maxReplicas` pods, as the metrics require.
    """

    scale_target_ref: CrossVersionObjectReference = CrossVersionObjectReference()
    min_replicas: Int32 | None = None
    max_replicas: Int32 = 0
    metrics: tuple[MetricSpec, ...] = ()
    behavior: HorizontalPodAutoscalerBehavior | None = None


class HorizontalPodAutoscalerStatus(Value, frozen=True, omit_defaults=False):
    """The state that the controller reports."""

    observed_generation: int | None = None
    last_scale_time: Time | None = None
    current_replicas: Int32 = 0
    desired_replicas: Int32 = 0
    current_metrics: tuple[MetricStatus, ...] = ()
    conditions: Annotated[tuple[Condition, ...], merge_keys("type")] = ()


class HorizontalPodAutoscaler(Object, frozen=True):
    """Scales a workload between a minimum and a maximum number of pods by metrics."""

    API_VERSION = "autoscaling/v2"
    KIND = "HorizontalPodAutoscaler"
    PLURAL = "horizontalpodautoscalers"
    NAMESPACED = True

    spec: HorizontalPodAutoscalerSpec = HorizontalPodAutoscalerSpec()
    status: HorizontalPodAutoscalerStatus = HorizontalPodAutoscalerStatus()


_DEFAULT_SCALE_UP = HPAScalingRules(
    stabilization_window_seconds=0,
    select_policy="Max",
    policies=(
        HPAScalingPolicy(type="Pods", value=4, period_seconds=15),
        HPAScalingPolicy(type="Percent", value=100, period_seconds=15),
    ),
)
_DEFAULT_SCALE_DOWN = HPAScalingRules(
    select_policy="Max", policies=(HPAScalingPolicy(type="Percent", value=100, period_seconds=15),)
)


def _default_autoscaler(autoscaler: HorizontalPodAutoscaler) -> HorizontalPodAutoscaler:
    spec = autoscaler.spec
    behavior = spec.behavior
    if behavior is not None:
        behavior = HorizontalPodAutoscalerBehavior(
            scale_up=_default_scaling_rules(behavior.scale_up, _DEFAULT_SCALE_UP),
            scale_down=_default_scaling_rules(behavior.scale_down, _DEFAULT_SCALE_DOWN),
        )
    spec = replace(
        spec,
        min_replicas=1 if spec.min_replicas is None else spec.min_replicas,
        metrics=spec.metrics or (cpu_utilization_metric(DEFAULT_UTILIZATION),),
        behavior=behavior,
    )
    return replace(autoscaler, spec=spec)


def _default_scaling_rules(rules: HPAScalingRules | None, usual: HPAScalingRules) -> HPAScalingRules:
    if rules is None:
        return usual
    window = rules.stabilization_window_seconds
    return replace(
        rules,
        stabilization_window_seconds=usual.stabilization_window_seconds if window is None else window,
        select_policy=rules.select_policy or usual.select_policy,
        policies=rules.policies or usual.policies,
    )


# --- validation -------------------------------------------------------------------------------------------------------


def _validate_autoscaler(autoscaler: HorizontalPodAutoscaler) -> Iterator[FieldError]:
    spec = autoscaler.spec
    yield from validate_reference("spec.scaleTargetRef", spec.scale_target_ref)
    yield from minimum(("spec.minReplicas", spec.min_replicas, 1), ("spec.maxReplicas", spec.max_replicas, 1))
    if 1 <= spec.max_replicas < (spec.min_replicas or 1):
        yield FieldError(
            "spec.maxReplicas", quoted(spec.max_replicas), "must be greater than or equal to `minReplicas`"
        )
    yield from _at_most("spec.metrics", len(spec.metrics), MAX_METRICS)
    for number, metric in enumerate(spec.metrics[:MAX_METRICS]):
        yield from validate_metric(f"spec.metrics[{number}]", metric)
    if spec.behavior is not None:
        yield from _validate_scaling_rules("spec.behavior.scaleUp", spec.behavior.scale_up)
        yield from _validate_scaling_rules("spec.behavior.scaleDown", spec.behavior.scale_down)


def _validate_scaling_rules(path: str, rules: HPAScalingRules | None) -> Iterator[FieldError]:
    if rules is None:
        return
    yield from _validate_range(
        f"{path}.stabilizationWindowSeconds", rules.stabilization_window_seconds, 0, MAX_WINDOW_SECONDS
    )
    yield from unsupported_values((f"{path}.selectPolicy", rules.select_policy or "", SELECT_POLICIES))
    yield from quantity_at_least(f"{path}.tolerance", rules.tolerance)
    yield from _at_most(f"{path}.policies", len(rules.policies), MAX_POLICIES)
    for number, policy in enumerate(rules.policies[:MAX_POLICIES]):
        policy_path = f"{path}.policies[{number}]"
        if policy.type not in POLICY_TYPES:
            accepted = f"{', '.join(POLICY_TYPES)} are accepted"
            yield FieldError(f"{policy_path}.type", quoted(policy.type), accepted, NOT_SUPPORTED)
        yield from minimum((f"{policy_path}.value", policy.value, 1))
        yield from _validate_range(f"{policy_path}.periodSeconds", policy.period_seconds, 1, MAX_PERIOD_SECONDS)


def _at_most(path: str, number: int, most: int) -> Iterator[FieldError]:
    if number > most:
        yield FieldError(path, str(number), f"must have at most {most} items", TOO_MANY)


def _validate_range(path: str, value: int | None, least: int, most: int) -> Iterator[FieldError]:
    if value is not None and not least <= value <= most:
        yield FieldError(path, quoted(value), f"must be between {least} and {most}")


# --- columns ----------------------------------------------------------------------------------------------------------


def _metrics_text(autoscaler: HorizontalPodAutoscaler) -> str:
    specs, statuses = autoscaler.spec.metrics, autoscaler.status.current_metrics
    pairs = [(spec, statuses[number] if number < len(statuses) else None) for number, spec in enumerate(specs)]
    more = f" + {len(specs) - MAX_METRICS_SHOWN} more..." if len(specs) > MAX_METRICS_SHOWN else ""
    return ", ".join(metric_text(*pair) for pair in pairs[:MAX_METRICS_SHOWN]) + more if pairs else "<none>"


AUTOSCALER_COLUMNS = (
    NAME,
    Column(
        "Reference",
        "The workload that is scaled.",
        lambda autoscaler, _: f"{autoscaler.spec.scale_target_ref.kind}/{autoscaler.spec.scale_target_ref.name}",
    ),
    Column("Targets", "Current and target values of the metrics.", lambda autoscaler, _: _metrics_text(autoscaler)),
    Column(
        "MinPods",
        "The least number of pods.",
        lambda autoscaler, _: "<unset>" if autoscaler.spec.min_replicas is None else str(autoscaler.spec.min_replicas),
    ),
    Column("MaxPods", "The greatest number of pods.", lambda autoscaler, _: autoscaler.spec.max_replicas),
    Column("Replicas", "Number of pods of the workload.", lambda autoscaler, _: autoscaler.status.current_replicas),
    AGE,
)

HORIZONTAL_POD_AUTOSCALERS = Resource(
    type=HorizontalPodAutoscaler,
    short_names=("hpa",),
    categories=("all",),
    columns=AUTOSCALER_COLUMNS,
    spec=lambda autoscaler: autoscaler.spec,
    rules=KindRules(_default_autoscaler, _validate_autoscaler),
    acted_on_by="the controller `horizontal-pod-autoscaler-controller`, for every kind with the subresource `scale`. "
    "Usage of CPU and memory is measured; metrics of other types need an extension API server",
)

_ANNOTATION_PREFIX = "autoscaling.alpha.kubernetes.io/"
METRICS_ANNOTATION, BEHAVIOR_ANNOTATION = f"{_ANNOTATION_PREFIX}metrics", f"{_ANNOTATION_PREFIX}behavior"
CURRENT_METRICS_ANNOTATION, CONDITIONS_ANNOTATION = (
    f"{_ANNOTATION_PREFIX}current-metrics",
    f"{_ANNOTATION_PREFIX}conditions",
)
_ANNOTATION_TYPES: dict[str, Any] = {
    METRICS_ANNOTATION: tuple[MetricSpec, ...],
    BEHAVIOR_ANNOTATION: HorizontalPodAutoscalerBehavior,
    CURRENT_METRICS_ANNOTATION: tuple[MetricStatus, ...],
    CONDITIONS_ANNOTATION: tuple[Condition, ...],
}
"""Annotations that hold fields as JSON, with these fields."""


class HorizontalPodAutoscalerV1Spec(Value, frozen=True):
    """The desired state.

    The workload `scaleTargetRef` gets as many pods as keep their CPU usage at this percentage of their requests.
    """

    scale_target_ref: CrossVersionObjectReference = CrossVersionObjectReference()
    min_replicas: Int32 | None = None
    max_replicas: Int32 = 0
    target_cpu_utilization_percentage: Int32 | None = msgspec.field(default=None, name="targetCPUUtilizationPercentage")


class HorizontalPodAutoscalerV1Status(Value, frozen=True, omit_defaults=False):
    """The state that the controller reports."""

    observed_generation: int | None = None
    last_scale_time: Time | None = None
    current_replicas: Int32 = 0
    desired_replicas: Int32 = 0
    current_cpu_utilization_percentage: Int32 | None = msgspec.field(
        default=None, name="currentCPUUtilizationPercentage"
    )


class HorizontalPodAutoscalerV1(Object, frozen=True):
    """Scales a workload between a minimum and a maximum number of pods by CPU usage."""

    API_VERSION = "autoscaling/v1"
    KIND = "HorizontalPodAutoscaler"
    PLURAL = "horizontalpodautoscalers"
    NAMESPACED = True

    spec: HorizontalPodAutoscalerV1Spec = HorizontalPodAutoscalerV1Spec()
    status: HorizontalPodAutoscalerV1Status = HorizontalPodAutoscalerV1Status()


def _cpu_utilization(metric: MetricSpec) -> int | None:
    """Return the target CPU usage of a metric that autoscaling/v1 has a field for; None for others."""
    percent = metric.resource.target.average_utilization if metric.resource is not None else None
    return percent if percent is not None and metric == cpu_utilization_metric(percent) else None


def _autoscaler_v1_from_stored(autoscaler: HorizontalPodAutoscaler) -> HorizontalPodAutoscalerV1:
    spec, status = autoscaler.spec, autoscaler.status
    percents = [_cpu_utilization(metric) for metric in spec.metrics]
    used = [
        metric.resource.current.average_utilization for metric in status.current_metrics if metric.resource is not None
    ]
    more: dict[str, object] = {
        CONDITIONS_ANNOTATION: status.conditions,
        BEHAVIOR_ANNOTATION: spec.behavior,
        CURRENT_METRICS_ANNOTATION: status.current_metrics,
    }
    if len(percents) > 1 or None in percents:
        more[METRICS_ANNOTATION] = spec.metrics
    noted = {key: msgspec.json.encode(value).decode() for key, value in more.items() if value}
    return HorizontalPodAutoscalerV1(
        metadata=replace(autoscaler.metadata, annotations=autoscaler.metadata.annotations | noted),
        spec=HorizontalPodAutoscalerV1Spec(
            scale_target_ref=spec.scale_target_ref,
            min_replicas=spec.min_replicas,
            max_replicas=spec.max_replicas,
            target_cpu_utilization_percentage=next((percent for percent in percents if percent is not None), None),
        ),
        status=HorizontalPodAutoscalerV1Status(
            observed_generation=status.observed_generation,
            last_scale_time=status.last_scale_time,
            current_replicas=status.current_replicas,
            desired_replicas=status.desired_replicas,
            current_cpu_utilization_percentage=next((percent for percent in used if percent is not None), None),
        ),
    )


def _decode_annotation(metadata: ObjectMeta, key: str, otherwise: Any) -> Any:
    """Return the content of an annotation. Raise ValidationError."""
    text = metadata.annotations.get(key)
    return otherwise if text is None else msgspec.json.decode(text, type=_ANNOTATION_TYPES[key])


def _autoscaler_v1_to_stored(autoscaler: HorizontalPodAutoscalerV1) -> HorizontalPodAutoscaler:
    spec, status, metadata = autoscaler.spec, autoscaler.status, autoscaler.metadata
    metrics = list(_decode_annotation(metadata, METRICS_ANNOTATION, ()))
    percent = spec.target_cpu_utilization_percentage
    known = next(
        (number for number, metric in enumerate(metrics) if _cpu_utilization(metric) is not None), len(metrics)
    )
    metrics[known : known + 1] = [] if percent is None else [cpu_utilization_metric(percent)]
    others = {key: value for key, value in metadata.annotations.items() if key not in _ANNOTATION_TYPES}
    return HorizontalPodAutoscaler(
        metadata=replace(metadata, annotations=others),
        spec=HorizontalPodAutoscalerSpec(
            scale_target_ref=spec.scale_target_ref,
            min_replicas=spec.min_replicas,
            max_replicas=spec.max_replicas,
            metrics=tuple(metrics),
            behavior=_decode_annotation(metadata, BEHAVIOR_ANNOTATION, None),
        ),
        status=HorizontalPodAutoscalerStatus(
            observed_generation=status.observed_generation,
            last_scale_time=status.last_scale_time,
            current_replicas=status.current_replicas,
            desired_replicas=status.desired_replicas,
            current_metrics=_decode_annotation(metadata, CURRENT_METRICS_ANNOTATION, ()),
            conditions=_decode_annotation(metadata, CONDITIONS_ANNOTATION, ()),
        ),
    )


def _validate_autoscaler_v1(autoscaler: HorizontalPodAutoscalerV1) -> Iterator[FieldError]:
    """Yield the errors of annotations; errors of the whole object are reported at the fields of this version."""
    bad = False
    for key in _ANNOTATION_TYPES:
        try:
            _decode_annotation(autoscaler.metadata, key, None)
        except msgspec.DecodeError as error:
            bad = True
            yield FieldError(f"metadata.annotations[{key}]", quoted(autoscaler.metadata.annotations[key]), str(error))
    if bad:
        return
    for problem in HORIZONTAL_POD_AUTOSCALERS.rules.validate(_autoscaler_v1_to_stored(autoscaler)):
        path = problem.path
        if path.startswith("spec.behavior"):
            path = f"metadata.annotations[{BEHAVIOR_ANNOTATION}]"
        elif path.startswith("spec.metrics"):
            noted = METRICS_ANNOTATION in autoscaler.metadata.annotations
            path = f"metadata.annotations[{METRICS_ANNOTATION}]" if noted else "spec.targetCPUUtilizationPercentage"
        yield problem._replace(path=path)


def _default_autoscaler_v1(autoscaler: HorizontalPodAutoscalerV1) -> HorizontalPodAutoscalerV1:
    return HORIZONTAL_POD_AUTOSCALERS_V1.from_stored(
        HORIZONTAL_POD_AUTOSCALERS.rules.default(_autoscaler_v1_to_stored(autoscaler))
    )


def _with_old_status(new: HorizontalPodAutoscalerV1, old: HorizontalPodAutoscalerV1) -> HorizontalPodAutoscalerV1:
    """Return the new object with the status of the old one, a part of which is in annotations."""
    notes = {
        key: text
        for key, text in new.metadata.annotations.items()
        if key not in (CURRENT_METRICS_ANNOTATION, CONDITIONS_ANNOTATION)
    }
    notes |= {
        key: text
        for key, text in old.metadata.annotations.items()
        if key in (CURRENT_METRICS_ANNOTATION, CONDITIONS_ANNOTATION)
    }
    return replace(new, metadata=replace(new.metadata, annotations=notes), status=old.status)


HORIZONTAL_POD_AUTOSCALERS_V1 = Resource(
    type=HorizontalPodAutoscalerV1,
    short_names=("hpa",),
    categories=("all",),
    columns=AUTOSCALER_COLUMNS,
    prepare_for_create=lambda autoscaler: _with_old_status(autoscaler, HorizontalPodAutoscalerV1()),
    prepare_for_update=_with_old_status,
    spec=lambda autoscaler: _autoscaler_v1_to_stored(autoscaler).spec,
    rules=KindRules(_default_autoscaler_v1, _validate_autoscaler_v1),
    stored_as=Version(HORIZONTAL_POD_AUTOSCALERS, _autoscaler_v1_from_stored, _autoscaler_v1_to_stored),
)
