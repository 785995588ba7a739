"""One pass over a HorizontalPodAutoscaler: its status, the new number of pods, and the events to report. Pure.

Reasons and messages are those of Kubernetes.
"""

from __future__ import annotations

import datetime
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from msgspec.structs import replace

from api.core.events import NORMAL, WARNING
from api.core.pod import Pod
from api.meta import quantity
from api.meta.quantity import Amount
from api.meta.selectors import LabelSelector
from api.meta.types import Condition, transition_time
from master.config import AutoscalingConfig
from master.controllers.autoscaling import metric_queries, replica_calculator, scaling_rules
from master.controllers.autoscaling.metric_queries import Answers, MetricQuery, MetricValue
from master.controllers.autoscaling.replica_calculator import (
    MetricError,
    PodMetric,
    Proposal,
    ReadinessTiming,
    Tolerances,
    Usage,
    milli,
)
from master.controllers.autoscaling.scaling_rules import Bounds, History, Reason
from master.resources import metrics as resource_metrics
from master.resources.autoscaling import (
    MAX_METRICS,
    ContainerResourceMetricSource,
    ContainerResourceMetricStatus,
    ExternalMetricStatus,
    HorizontalPodAutoscaler,
    HorizontalPodAutoscalerStatus,
    MetricIdentifier,
    MetricSpec,
    MetricStatus,
    MetricTarget,
    MetricValueStatus,
    ObjectMetricStatus,
    PodsMetricStatus,
    ResourceMetricSource,
    ResourceMetricStatus,
)
from master.resources.metadata import format_time

ABLE_TO_SCALE, SCALING_ACTIVE, SCALING_LIMITED = "AbleToScale", "ScalingActive", "ScalingLimited"

MAX_MESSAGE = 1024
"""Characters of a message of a condition or event. Names that users choose are part of messages."""

MAX_READINGS, METRICS_PER_READING = 10_000, 5
"""Pods and containers that are read for all metrics of one autoscaler: some 50 ms. Metrics of the same resource share
what is read, and some of them cost as much as a reading.
"""

MAX_NAMED_AUTOSCALERS = 10
"""Autoscalers that are named in the message about pods that several of them select."""


@dataclass(frozen=True, slots=True)
class Target:
    """The scale of the workload, the pods that its selector selects, and which autoscalers select one of these.

    `selector_error` says why there are no pods: the selector is invalid.
    """

    replicas: int
    status_replicas: int
    selector: str
    selector_error: str = ""
    pods: Sequence[Pod] = ()
    autoscalers: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class NoTarget:
    """Why the scale of the workload cannot be read."""

    error: str


@dataclass(frozen=True, slots=True)
class Measurements:
    """What was measured before the pass: the usage of pods, and the answers to queries."""

    pods: Mapping[str, resource_metrics.PodMetrics] = field(default_factory=dict)
    answers: Answers = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Report:
    """An event about the autoscaler."""

    type: str
    reason: str
    message: str


@dataclass(frozen=True, slots=True)
class Decision:
    """The result of a pass. `replicas` is the new number of pods, None if it stays."""

    status: HorizontalPodAutoscalerStatus
    replicas: int | None
    reports: tuple[Report, ...]
    history: History


@dataclass(frozen=True, slots=True)
class Clocks:
    """The time of day, and that of a clock that never jumps."""

    now: datetime.datetime
    monotonic: float


def decide(
    autoscaler: HorizontalPodAutoscaler,
    target: Target | NoTarget,
    measured: Measurements,
    history: History,
    settings: AutoscalingConfig,
    clocks: Clocks,
) -> Decision:
    """Return the decision about one autoscaler."""
    return _Pass(autoscaler, measured, settings, clocks).decide(target, history)


class _Pass:
    """A pass over one autoscaler: its conditions and reports so far."""

    def __init__(
        self, autoscaler: HorizontalPodAutoscaler, measured: Measurements, settings: AutoscalingConfig, clocks: Clocks
    ) -> None:
        self._autoscaler = autoscaler
        self._measured = measured
        self._settings = settings
        self._clocks = clocks
        self._conditions = {condition.type: condition for condition in autoscaler.status.conditions}
        self._reports: list[Report] = []
        self._usage: dict[tuple[str, str], Usage | MetricError] = {}
        self._requests: dict[tuple[str, str], dict[str, int]] = {}
        """By resource and container: what all metrics of them share."""
        self._timing = ReadinessTiming(
            datetime.timedelta(seconds=settings.cpu_initialization_period),
            datetime.timedelta(seconds=settings.initial_readiness_delay),
        )
        self._tolerances = tolerances_of(autoscaler, settings.tolerance)

    def decide(self, target: Target | NoTarget, history: History) -> Decision:
        spec, status = self._autoscaler.spec, self._autoscaler.status
        if isinstance(target, NoTarget):
            self._report(WARNING, "FailedGetScale", target.error)
            message = f"the HPA controller was unable to get the target's current scale: {target.error}"
            self._set(ABLE_TO_SCALE, "False", Reason("FailedGetScale", message))
            return self._decision(replace(status, conditions=self._conditions_now()), None, history)
        message = "the HPA controller was able to get the target's current scale"
        self._set(ABLE_TO_SCALE, "True", Reason("SucceededGetScale", message))
        current, clocks = target.replicas, self._clocks
        history = scaling_rules.begin(history, current, clocks.monotonic)
        minimum = 1 if spec.min_replicas is None else spec.min_replicas
        statuses: tuple[MetricStatus, ...] = ()
        if current == 0:
            message = "scaling is disabled since the replica count of the target is zero"
            self._set(SCALING_ACTIVE, "False", Reason("ScalingDisabled", message))
            desired, reason = 0, ""
        elif current > spec.max_replicas:
            desired, reason = spec.max_replicas, "Current number of replicas above Spec.MaxReplicas"
        elif current < minimum:
            desired, reason = minimum, "Current number of replicas below Spec.MinReplicas"
        else:
            statuses, proposed, metric = self._proposal(target)
            if proposed is None:
                counted = self._status(current, status.desired_replicas, statuses)
                return self._decision(counted, None, history)
            reason = f"{metric} above target" if proposed > current else ""
            reason = "All metrics below target" if proposed < current else reason
            normalized = scaling_rules.normalize(
                spec.behavior,
                current,
                proposed,
                Bounds(minimum, spec.max_replicas),
                history,
                self._settings.downscale_stabilization,
                clocks.monotonic,
            )
            desired, history = normalized.replicas, normalized.history
            self._set(ABLE_TO_SCALE, "True", normalized.able)
            self._set(SCALING_LIMITED, str(normalized.is_limited), normalized.limited)
        if desired == current:
            return self._decision(self._status(current, current, statuses), None, history)
        message = f"the HPA controller was able to update the target scale to {desired}"
        self._set(ABLE_TO_SCALE, "True", Reason("SucceededRescale", message))
        self._report(NORMAL, "SuccessfulRescale", f"New size: {desired}; reason: {reason}")
        history = scaling_rules.with_scale_event(history, spec.behavior, current, desired, clocks.monotonic)
        scaled = replace(self._status(current, desired, statuses), last_scale_time=format_time(clocks.now))
        return self._decision(scaled, desired, history)

    # --- metrics ------------------------------------------------------------------------------------------------------

    def _proposal(self, target: Target) -> tuple[tuple[MetricStatus, ...], int | None, str]:
        """Return the status of all metrics, the greatest number of pods that one requires, and this metric.

        The number is None if there is none, or if metrics without a number might require more than the others.
        """
        problem = self._selector_problem(target)
        if problem:
            self._report(WARNING, "FailedComputeMetricsReplicas", problem)
            return (), None, ""
        statuses: list[MetricStatus] = []
        proposed, metric_name = None, ""
        failures: list[tuple[Reason, str]] = []
        metrics = self._autoscaler.spec.metrics[:MAX_METRICS]
        for metric in metrics:
            try:
                proposal, name, measured = self._evaluate(metric, target)
            except MetricError as error:
                reason = Reason(f"FailedGet{metric.type}Metric", f"{error}")
                self._report(WARNING, reason.reason, reason.message)
                failures.append((reason, f"{_failure_prefix(metric)}: {error}"))
                statuses.append(MetricStatus(type=""))
                continue
            statuses.append(measured)
            if proposed is None or proposal > proposed:
                proposed, metric_name = proposal, name
        if failures and (proposed is None or proposed < target.replicas):
            reason, text = failures[0]
            message = f"the HPA was unable to compute the replica count: {reason.message}"
            self._set(SCALING_ACTIVE, "False", Reason(reason.reason, message))
            text = f"invalid metrics ({len(failures)} invalid out of {len(metrics)}), first error is: {text}"
            self._report(WARNING, "FailedComputeMetricsReplicas", text)
            return tuple(statuses), None, ""
        message = f"the HPA was able to successfully calculate a replica count from {metric_name}"
        self._set(SCALING_ACTIVE, "True", Reason("ValidMetricFound", message))
        return tuple(statuses), proposed, metric_name

    def _selector_problem(self, target: Target) -> str:
        """Report why the pods of the target are not known, or not its own. Return the error, empty if there is none."""
        if not target.selector:
            error, report = "selector is required", "SelectorRequired"
            reason = Reason("InvalidSelector", "the HPA target's scale is missing a selector")
        elif target.selector_error:
            report = "InvalidSelector"
            error = f"couldn't convert selector into a corresponding internal selector object: {target.selector_error}"
            reason = Reason("InvalidSelector", error)
        elif len(target.autoscalers) > 1:
            report = "AmbiguousSelector"
            namespace = self._autoscaler.metadata.namespace
            named = [f"{{{name} {namespace}}}" for name in target.autoscalers[:MAX_NAMED_AUTOSCALERS]]
            names = " ".join(named) + (" ..." if len(target.autoscalers) > MAX_NAMED_AUTOSCALERS else "")
            error = f"pods by selector {target.selector} are controlled by multiple HPAs: [{names}]"
            reason = Reason("AmbiguousSelector", error)
        else:
            return ""
        self._report(WARNING, report, error)
        self._set(SCALING_ACTIVE, "False", reason)
        return error

    def _evaluate(self, metric: MetricSpec, target: Target) -> tuple[int, str, MetricStatus]:
        """Return the number of pods that a metric requires, the metric as text, and its status. Raises MetricError."""
        match metric.type:
            case "Resource" if metric.resource is not None:
                proposal, name = self._evaluate_resource(metric.resource, target, "")
                current = _resource_status(metric.resource.name, proposal)
                status = MetricStatus(
                    type="Resource", resource=ResourceMetricStatus(name=metric.resource.name, current=current)
                )
            case "ContainerResource" if metric.container_resource is not None:
                source = metric.container_resource
                proposal, name = self._evaluate_resource(source, target, source.container)
                container_status = ContainerResourceMetricStatus(
                    name=source.name, container=source.container, current=_resource_status(source.name, proposal)
                )
                status = MetricStatus(type="ContainerResource", container_resource=container_status)
            case "Pods" if metric.pods is not None:
                proposal = self._evaluate_pods(metric.pods.metric, metric.pods.target, target)
                name = f"pods metric {metric.pods.metric.name}"
                pods_status = PodsMetricStatus(metric=metric.pods.metric, current=_average_status(proposal))
                status = MetricStatus(type="Pods", pods=pods_status)
            case "Object" if metric.object is not None:
                described, identifier = metric.object.described_object, metric.object.metric
                query = metric_queries.object_query(self._autoscaler.metadata.namespace, described, identifier)
                where = f"{described.kind} on {self._autoscaler.metadata.namespace} {described.name}"
                prefix = f"unable to get metric {identifier.name}: {where}/"
                value = self._answer(query, prefix)[0].metric.value
                proposal, name, current = self._evaluate_value(value, metric.object.target, identifier, target)
                if current.value is not None:
                    name = f"{described.kind} metric {identifier.name}"
                object_status = ObjectMetricStatus(metric=identifier, described_object=described, current=current)
                status = MetricStatus(type="Object", object=object_status)
            case "External" if metric.external is not None:
                identifier, namespace = metric.external.metric, self._autoscaler.metadata.namespace
                query = metric_queries.external_query(namespace, identifier)
                selector = format_go_selector(identifier.selector)
                prefix = f"unable to get external metric {namespace}/{identifier.name}/{selector}: "
                value = replica_calculator.clamp_milli(sum(each.metric.value for each in self._answer(query, prefix)))
                proposal, name, current = self._evaluate_value(value, metric.external.target, identifier, target)
                status = MetricStatus(
                    type="External", external=ExternalMetricStatus(metric=identifier, current=current)
                )
            case _:
                raise MetricError(f'unknown metric source type "{metric.type}"')
        return proposal.replicas, name, status

    def _evaluate_resource(self, source: ResourceMetricSource, target: Target, container: str) -> tuple[Proposal, str]:
        is_average = source.target.average_value is not None
        key = (source.name, container)
        try:
            usage = self._read_usage(source.name, container, target)
            if source.target.average_value is not None:
                wanted = _positive(source.target.average_value)
                proposal = replica_calculator.average_replicas(target.replicas, wanted, usage, self._tolerances)
                return proposal, f"{source.name} resource"
            if key not in self._requests:
                self._requests[key] = replica_calculator.pod_requests(target.pods, source.name, container)
            percent = _positive_percent(source.target)
            proposal = replica_calculator.utilization_replicas(
                target.replicas, percent, usage, self._requests[key], self._tolerances
            )
        except MetricError as error:
            raise MetricError(
                f"failed to get {source.name} {'usage' if is_average else 'utilization'}: {error}"
            ) from error
        kind = "container resource" if isinstance(source, ContainerResourceMetricSource) else "resource"
        return proposal, f"{source.name} {kind} utilization (percentage of request)"

    def _read_usage(self, resource: str, container: str, target: Target) -> Usage:
        """Return the usage of a resource by the pods of the target, read once. Raises MetricError."""
        key = (resource, container)
        if key not in self._usage:
            try:
                self._usage[key] = self._usage_of(resource, container, target)
            except MetricError as error:
                self._usage[key] = error
        usage = self._usage[key]
        if isinstance(usage, MetricError):
            raise MetricError(str(usage))
        return usage

    def _usage_of(self, resource: str, container: str, target: Target) -> Usage:
        check_readings(self._autoscaler, target.pods)
        pods = self._measured.pods
        measured = [pods[pod.metadata.name] for pod in target.pods if pod.metadata.name in pods]
        if not measured:
            raise MetricError(
                f"unable to get metrics for resource {resource}: no metrics returned from resource metrics API"
            )
        usage = metric_queries.usage_of_pods(measured, resource, container, self._clocks.now)
        return replica_calculator.usage_of(target.pods, usage, resource, self._timing, self._clocks.now)

    def _evaluate_pods(self, identifier: MetricIdentifier, wanted: MetricTarget, target: Target) -> Proposal:
        query = metric_queries.pods_query(self._autoscaler.metadata.namespace, target.selector, identifier)
        answers = self._answer(query, f"unable to get metric {identifier.name}: ")
        values: dict[str, PodMetric] = {answer.name: answer.metric for answer in answers}
        if wanted.average_value is None:
            raise MetricError("invalid pods metric source: no average value target was set")
        usage = replica_calculator.usage_of(target.pods, values, "", self._timing, self._clocks.now)
        return replica_calculator.average_replicas(
            target.replicas, _positive(wanted.average_value), usage, self._tolerances
        )

    def _evaluate_value(
        self, value: int, wanted: MetricTarget, identifier: MetricIdentifier, target: Target
    ) -> tuple[Proposal, str, MetricValueStatus]:
        """Return the proposal for a value of an object or of the outside, the metric as text, and its status."""
        name = f"external metric {identifier.name}({format_go_selector(identifier.selector)})"
        if wanted.average_value is not None:
            proposal = replica_calculator.per_pod_replicas(
                target.status_replicas, _positive(wanted.average_value), value, self._tolerances
            )
            return proposal, name, _average_status(proposal)
        if wanted.value is None:
            raise MetricError("invalid metric source: neither a value target nor an average value target was set")
        proposal = replica_calculator.value_replicas(
            target.replicas, _positive(wanted.value), value, target.pods, self._tolerances
        )
        return proposal, name, MetricValueStatus(value=str(Amount(proposal.value)))

    def _answer(self, query: MetricQuery, prefix: str) -> tuple[MetricValue, ...]:
        """Return the values of a metric. Raises MetricError."""
        answer = self._measured.answers.get(query)
        if isinstance(answer, tuple):
            return answer
        raise MetricError(f"{prefix}{answer if answer is not None else 'the metric was not asked for yet'}")

    # --- status -------------------------------------------------------------------------------------------------------

    def _report(self, event_type: str, reason: str, message: str) -> None:
        self._reports.append(Report(event_type, reason, message[:MAX_MESSAGE]))

    def _set(self, condition_type: str, status: str, reason: Reason) -> None:
        old = self._conditions.get(condition_type)
        self._conditions[condition_type] = Condition(
            type=condition_type,
            status=status,
            reason=reason.reason,
            message=reason.message[:MAX_MESSAGE],
            last_transition_time=transition_time(old, status, self._clocks.now),
        )

    def _conditions_now(self) -> tuple[Condition, ...]:
        return tuple(self._conditions.values())

    def _status(self, current: int, desired: int, statuses: tuple[MetricStatus, ...]) -> HorizontalPodAutoscalerStatus:
        return replace(
            self._autoscaler.status,
            observed_generation=self._autoscaler.metadata.generation,
            current_replicas=current,
            desired_replicas=desired,
            current_metrics=statuses,
            conditions=self._conditions_now(),
        )

    def _decision(self, status: HorizontalPodAutoscalerStatus, replicas: int | None, history: History) -> Decision:
        return Decision(status, replicas, tuple(self._reports), history)


def check_readings(autoscaler: HorizontalPodAutoscaler, pods: Sequence[Pod]) -> None:
    """Require that the metrics of an autoscaler do not read too much. Raises MetricError."""
    metrics = autoscaler.spec.metrics[:MAX_METRICS]
    sources = {
        (source.name, getattr(source, "container", ""))
        for metric in metrics
        if (source := metric.resource or metric.container_resource) is not None
    }
    containers = sum(len(pod.spec.containers) for pod in pods)
    readings = len(sources) * (len(pods) + containers) + len(metrics) * len(pods) // METRICS_PER_READING
    if readings > MAX_READINGS:
        raise MetricError(
            f"{len(metrics)} metrics of {len(pods)} pods with {containers} containers are too many: they count "
            f"{readings} readings; {MAX_READINGS} are accepted"
        )


def tolerances_of(autoscaler: HorizontalPodAutoscaler, tolerance: float) -> Tolerances:
    """Return the tolerances of an autoscaler: those of its behavior, or that of the settings."""
    behavior = autoscaler.spec.behavior
    down = behavior.scale_down.tolerance if behavior is not None and behavior.scale_down is not None else None
    up = behavior.scale_up.tolerance if behavior is not None and behavior.scale_up is not None else None
    return Tolerances(
        tolerance if down is None else float(quantity.parse(down)),
        tolerance if up is None else float(quantity.parse(up)),
    )


def queries_of(autoscaler: HorizontalPodAutoscaler, selector: str) -> tuple[MetricQuery, ...]:
    """Return the queries for the metrics of an autoscaler. Usage of resources needs none."""
    queries = []
    namespace = autoscaler.metadata.namespace
    for metric in autoscaler.spec.metrics[:MAX_METRICS]:
        if metric.pods is not None:
            queries.append(metric_queries.pods_query(namespace, selector, metric.pods.metric))
        elif metric.external is not None:
            queries.append(metric_queries.external_query(namespace, metric.external.metric))
        elif metric.object is not None:
            described = metric.object.described_object
            try:
                queries.append(metric_queries.object_query(namespace, described, metric.object.metric))
            except MetricError:
                continue  # The pass reports it.
    return tuple(queries)


def _failure_prefix(metric: MetricSpec) -> str:
    """Return how the error of a metric begins in the report about all metrics."""
    match metric.type:
        case "Resource" if metric.resource is not None:
            return f"failed to get {metric.resource.name} resource metric value"
        case "ContainerResource" if metric.container_resource is not None:
            return f"failed to get {metric.container_resource.container} container metric value"
        case "External" if metric.external is not None:
            name, is_average = metric.external.metric.name, metric.external.target.average_value is not None
            inner = f"failed to get {name} external metric" if is_average else f"failed to get external metric {name}"
            return f"failed to get {name} external metric value: {inner}"
        case "Object" if metric.object is not None and metric.object.target.average_value is not None:
            return f"failed to get object metric value: failed to get {metric.object.metric.name} object metric"
        case _:
            return f"failed to get {metric.type.lower()} metric value"


def _resource_status(resource: str, proposal: Proposal) -> MetricValueStatus:
    return MetricValueStatus(
        average_utilization=None if proposal.utilization is None else min(proposal.utilization, (1 << 31) - 1),
        average_value=str(Amount(proposal.value, binary=resource == "memory")),
    )


def _average_status(proposal: Proposal) -> MetricValueStatus:
    return MetricValueStatus(average_value=str(Amount(proposal.value)))


def _positive(target: str | float) -> int:
    """Return a target in thousandths. Raises MetricError if nothing can be divided by it."""
    amount = milli(target)
    if amount <= 0:
        raise MetricError(f"the target is {target}; it must be positive")
    return amount


def _positive_percent(target: MetricTarget) -> int:
    percent = target.average_utilization
    if percent is None:
        raise MetricError(
            "invalid resource metric source: neither an average utilization target nor an average value (usage) "
            "target was set"
        )
    if percent <= 0:
        raise MetricError(f"the target is {percent} %; it must be positive")
    return percent


def format_go_selector(selector: LabelSelector | None) -> str:
    """Return a selector as Kubernetes prints it in messages about external metrics."""
    if selector is None:
        return "nil"
    labels = "".join(f"{key}: {value}," for key, value in sorted(selector.match_labels.items()))
    expressions = "".join(
        f"LabelSelectorRequirement{{Key:{each.key},Operator:{each.operator},Values:[{' '.join(each.values)}],}},"
        for each in selector.match_expressions
    )
    return (
        f"&LabelSelector{{MatchLabels:map[string]string{{{labels}}},"
        f"MatchExpressions:[]LabelSelectorRequirement{{{expressions}}},}}"
    )
