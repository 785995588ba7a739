"""The metrics that an autoscaler follows: what is wished, what was found, what is wrong. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from msgspec.structs import asdict

from api.meta import names
from api.meta.schema import MISSING, NOT_SUPPORTED, FieldError, quoted
from api.meta.selectors import LabelSelector, check_selector
from api.meta.types import Value
from master.kinds.checks import amount, at_least, exactly_one, given

SOURCES = ("Resource", "Pods", "Object", "External", "ContainerResource")
UTILIZATION, VALUE, AVERAGE = "Utilization", "Value", "AverageValue"

Amount = str | int | float | None


class CrossVersionObjectReference(Value, frozen=True):
    """An object of the same project."""

    kind: str = ""
    name: str = ""
    api_version: str = ""


class MetricIdentifier(Value, frozen=True):
    """A metric, and which of its series."""

    name: str = ""
    selector: LabelSelector | None = None


class MetricTarget(Value, frozen=True):
    """`type` is Utilization, Value or AverageValue, and the field of that name is set."""

    type: str = ""
    value: Amount = None
    average_value: Amount = None
    average_utilization: int | None = None


class ResourceMetricSource(Value, frozen=True):
    """What pods use of a resource."""

    name: str = ""
    target: MetricTarget = MetricTarget()


class ContainerResourceMetricSource(ResourceMetricSource, frozen=True):
    """What one container of each pod uses of a resource."""

    container: str = ""


class PodsMetricSource(Value, frozen=True):
    """What each pod says."""

    metric: MetricIdentifier = MetricIdentifier()
    target: MetricTarget = MetricTarget()


class ObjectMetricSource(PodsMetricSource, frozen=True):
    """What is said of one object."""

    described_object: CrossVersionObjectReference = CrossVersionObjectReference()


class ExternalMetricSource(PodsMetricSource, frozen=True):
    """What somebody outside of the cluster says."""


class MetricSpec(Value, frozen=True):
    """`type` names the field that is set."""

    type: str = ""
    resource: ResourceMetricSource | None = None
    pods: PodsMetricSource | None = None
    object: ObjectMetricSource | None = None
    external: ExternalMetricSource | None = None
    container_resource: ContainerResourceMetricSource | None = None


class MetricValueStatus(Value, frozen=True):
    """What was found."""

    value: Amount = None
    average_value: Amount = None
    average_utilization: int | None = None


class ResourceMetricStatus(Value, frozen=True):
    """What pods use of a resource."""

    name: str = ""
    current: MetricValueStatus = MetricValueStatus()


class ContainerResourceMetricStatus(ResourceMetricStatus, frozen=True):
    """What one container of each pod uses of a resource."""

    container: str = ""


class PodsMetricStatus(Value, frozen=True):
    """What each pod said."""

    metric: MetricIdentifier = MetricIdentifier()
    current: MetricValueStatus = MetricValueStatus()


class ObjectMetricStatus(PodsMetricStatus, frozen=True):
    """What was said of one object."""

    described_object: CrossVersionObjectReference = CrossVersionObjectReference()


class ExternalMetricStatus(PodsMetricStatus, frozen=True):
    """What somebody outside of the cluster said."""


class MetricStatus(Value, frozen=True):
    """`type` names the field that is set."""

    type: str = ""
    resource: ResourceMetricStatus | None = None
    pods: PodsMetricStatus | None = None
    object: ObjectMetricStatus | None = None
    external: ExternalMetricStatus | None = None
    container_resource: ContainerResourceMetricStatus | None = None


def of_cpu(percent: int) -> MetricSpec:
    """So much of what the pods ask for of the processor."""
    return MetricSpec(
        type="Resource",
        resource=ResourceMetricSource(name="cpu", target=MetricTarget(type=UTILIZATION, average_utilization=percent)),
    )


# --- what is wrong ----------------------------------------------------------------------------------------------------


def _path_segment(text: str) -> str:
    return 'may not contain "/" or "%"' if "/" in text or "%" in text or text in (".", "..") else ""


def check_reference(path: str, reference: CrossVersionObjectReference) -> Iterator[FieldError]:
    """An object of the same project must be named."""
    yield from given(f"{path}.kind", reference.kind, _path_segment)
    yield from given(f"{path}.name", reference.name, _path_segment)


def check_metric(path: str, metric: MetricSpec) -> Iterator[FieldError]:
    """Every problem of a metric that is wished for."""
    held = asdict(metric)
    held.pop("type")
    sources = {("containerResource" if key == "container_resource" else key): row for key, row in held.items()}
    found = list(exactly_one(path, sources))
    field = metric.type[:1].lower() + metric.type[1:]
    if metric.type not in SOURCES:
        yield FieldError(f"{path}.type", quoted(metric.type), f"{', '.join(SOURCES)} are accepted", NOT_SUPPORTED)
    elif found:
        yield from found
    elif sources[field] is None:
        yield FieldError(f"{path}.{field}", "null", f"is required where the type is {metric.type}", MISSING)
    else:
        yield from _check_source(f"{path}.{field}", sources[field])


def _check_source(path: str, source: ResourceMetricSource | PodsMetricSource) -> Iterator[FieldError]:
    if isinstance(source, ResourceMetricSource):
        yield from given(f"{path}.name", source.name, names.label_key)
        accepted: tuple[str, ...] = (UTILIZATION, AVERAGE)
    else:
        yield from given(f"{path}.metric.name", source.metric.name, _path_segment)
        yield from check_selector(f"{path}.metric.selector", source.metric.selector or LabelSelector())
        accepted = (VALUE, AVERAGE) if isinstance(source, ObjectMetricSource | ExternalMetricSource) else (AVERAGE,)
    if isinstance(source, ContainerResourceMetricSource):
        yield from given(f"{path}.container", source.container, names.dns_label)
    if isinstance(source, ObjectMetricSource):
        yield from check_reference(f"{path}.describedObject", source.described_object)
    yield from _check_target(f"{path}.target", source.target, accepted)


def _check_target(path: str, target: MetricTarget, accepted: tuple[str, ...]) -> Iterator[FieldError]:
    if target.type not in accepted:
        yield FieldError(f"{path}.type", quoted(target.type), f"{', '.join(accepted)} are accepted", NOT_SUPPORTED)
        return
    fields = {
        UTILIZATION: ("averageUtilization", target.average_utilization),
        VALUE: ("value", target.value),
        AVERAGE: ("averageValue", target.average_value),
    }
    name, _ = fields[target.type]
    for field, value in fields.values():
        if field == name and value is None:
            yield FieldError(f"{path}.{field}", "null", f"is required where the type is {target.type}", MISSING)
        elif field != name and value is not None:
            yield FieldError(f"{path}.{field}", quoted(value), f"is not accepted where the type is {target.type}")
    yield from at_least((f"{path}.averageUtilization", target.average_utilization, 1))
    yield from amount(f"{path}.value", target.value)
    yield from amount(f"{path}.averageValue", target.average_value)


# --- how it is shown --------------------------------------------------------------------------------------------------


def shown_metric(metric: MetricSpec, status: MetricStatus | None) -> str:
    """A metric as what there is and what there is to be."""
    source = metric.resource or metric.container_resource
    other = metric.pods or metric.object or metric.external
    target = source.target if source else other.target if other else MetricTarget()
    found = None
    if status is not None:
        seen = status.resource or status.container_resource or status.pods or status.object or status.external
        found = seen.current if seen is not None else None
    current: object = None
    if found is not None:
        current = {UTILIZATION: found.average_utilization, VALUE: found.value}.get(target.type, found.average_value)
    wish = {UTILIZATION: target.average_utilization, VALUE: target.value}.get(target.type, target.average_value)
    unit = "%" if target.type == UTILIZATION else ""
    averaged = " (avg)" if target.type == AVERAGE and not (metric.pods or source) else ""
    text = f"{'<unknown>' if current is None else f'{current}{unit}'}/{wish}{unit}{averaged}"
    return f"{source.name}: {text}" if source else text
