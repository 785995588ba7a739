"""One pass over an autoscaler: status, conditions, events and the new number of pods, in the words of Kubernetes."""

from __future__ import annotations

import datetime
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from api.core.pod import Pod
from api.meta.selectors import LabelSelector, LabelSelectorRequirement
from master.config import AutoscalingConfig
from master.controllers.autoscaling.decisions import (
    MAX_MESSAGE,
    Clocks,
    Decision,
    Measurements,
    NoTarget,
    Target,
    decide,
    format_go_selector,
    queries_of,
)
from master.controllers.autoscaling.metric_queries import Answer, MetricValue
from master.controllers.autoscaling.replica_calculator import MetricError, PodMetric
from master.controllers.autoscaling.scaling_rules import History
from master.resources.autoscaling import (
    ContainerResourceMetricSource,
    CrossVersionObjectReference,
    ExternalMetricSource,
    HorizontalPodAutoscaler,
    HorizontalPodAutoscalerBehavior,
    HPAScalingRules,
    MetricIdentifier,
    MetricSpec,
    MetricTarget,
    ObjectMetricSource,
    PodsMetricSource,
    ResourceMetricSource,
    cpu_utilization_metric,
)
from tests.unit.master.controllers.autoscaling.examples import NOW, WINDOW, autoscaler, measured, pod, pods

SETTINGS = AutoscalingConfig()
CPU = cpu_utilization_metric(50)
QUEUE = MetricIdentifier(name="queue", selector=LabelSelector(match_labels={"of": "mail"}))


def resource(name: str, **target: Any) -> MetricSpec:
    return MetricSpec(type="Resource", resource=ResourceMetricSource(name=name, target=MetricTarget(**target)))


AVERAGE_OF_10 = MetricTarget(type="AverageValue", average_value="10")
VALUE_OF_10 = MetricTarget(type="Value", value="10")
PODS_METRIC = MetricSpec(type="Pods", pods=PodsMetricSource(metric=QUEUE, target=AVERAGE_OF_10))
EXTERNAL = MetricSpec(type="External", external=ExternalMetricSource(metric=QUEUE, target=AVERAGE_OF_10))
EXTERNAL_VALUE = MetricSpec(
    type="External", external=ExternalMetricSource(metric=MetricIdentifier(name="queue"), target=VALUE_OF_10)
)
SERVICE = CrossVersionObjectReference(api_version="v1", kind="Service", name="front")
OBJECT = MetricSpec(
    type="Object", object=ObjectMetricSource(metric=QUEUE, target=VALUE_OF_10, described_object=SERVICE)
)


def target(replicas: int, of: tuple[Pod, ...] | None = None, **more: Any) -> Target:
    return Target(replicas, replicas, "app=web", pods=pods(replicas) if of is None else of, **more)


def run(
    scaler: HorizontalPodAutoscaler,
    of: Target | NoTarget,
    *milli_cores: int,
    answer: Answer | None = None,
    history: History = History(),  # noqa: B008 - frozen
    monotonic: float = 0.0,
) -> Decision:
    answers = {} if answer is None else dict.fromkeys(queries_of(scaler, "app=web"), answer)
    return decide(scaler, of, Measurements(measured(*milli_cores), answers), history, SETTINGS, Clocks(NOW, monotonic))


def conditions(decision: Decision) -> dict[str, tuple[str, str, str]]:
    return {each.type: (each.status, each.reason, each.message) for each in decision.status.conditions}


def reports(decision: Decision) -> list[tuple[str, str, str]]:
    return [(report.type, report.reason, report.message) for report in decision.reports]


def values(*amounts: int, name: str = "p") -> tuple[MetricValue, ...]:
    return tuple(
        MetricValue(f"{name}{index}", PodMetric(amount * 1000, NOW, WINDOW)) for index, amount in enumerate(amounts)
    )


# --- scaling ----------------------------------------------------------------------------------------------------------


def test_busy_workload_gets_more_pods() -> None:
    actual = run(autoscaler(), target(2), 700, 800)
    assert actual.replicas == 3  # 75 % of 50 %: 1.5 times 2
    assert reports(actual) == [
        ("Normal", "SuccessfulRescale",
         "New size: 3; reason: cpu resource utilization (percentage of request) above target")
    ]  # fmt: skip
    assert conditions(actual) == {
        "AbleToScale": (
            "True",
            "SucceededRescale",
            "the HPA controller was able to update the target scale to 3",
        ),
        "ScalingActive": (
            "True",
            "ValidMetricFound",
            "the HPA was able to successfully calculate a replica count from cpu resource utilization (percentage of "
            "request)",
        ),
        "ScalingLimited": ("False", "DesiredWithinRange", "the desired count is within the acceptable range"),
    }
    status = actual.status
    assert (status.current_replicas, status.desired_replicas, status.observed_generation) == (2, 3, 3)
    assert status.last_scale_time == "2026-01-31T12:00:00Z"
    assert status.current_metrics[0].resource is not None
    current = status.current_metrics[0].resource.current
    assert (current.average_utilization, current.average_value) == (75, "750m")


def test_idle_workload_keeps_its_pods_until_the_window_has_passed() -> None:
    scaler = autoscaler()
    first = run(scaler, target(4), 100, 100, 100, 100, monotonic=0.0)
    assert first.replicas is None
    assert conditions(first)["AbleToScale"][1] == "ScaleDownStabilized"
    later = run(scaler, target(4), 100, 100, 100, 100, history=first.history, monotonic=300.5)
    assert later.replicas == 1  # 10 % of 50 %: 0.2 times 4
    assert reports(later) == [("Normal", "SuccessfulRescale", "New size: 1; reason: All metrics below target")]


def test_usage_near_the_target_changes_nothing() -> None:
    actual = run(autoscaler(), target(2), 540, 540)
    assert (actual.replicas, reports(actual)) == (None, [])
    assert conditions(actual)["AbleToScale"][1:] == ("ReadyForNewScale", "recommended size matches current size")
    assert (actual.status.desired_replicas, actual.status.last_scale_time) == (2, None)


@pytest.mark.parametrize(
    ("current", "expected", "reason"),
    [
        (11, 10, "Current number of replicas above Spec.MaxReplicas"),
        (1, 2, "Current number of replicas below Spec.MinReplicas"),
    ],
)
def test_number_outside_of_the_bounds_is_corrected_without_metrics(current: int, expected: int, reason: str) -> None:
    actual = run(autoscaler(minimum=2), target(current))
    assert actual.replicas == expected
    assert reports(actual) == [("Normal", "SuccessfulRescale", f"New size: {expected}; reason: {reason}")]
    assert "ScalingActive" not in conditions(actual)


def test_workload_with_0_replicas_is_left_alone() -> None:
    actual = run(autoscaler(minimum=2), target(0))
    assert (actual.replicas, reports(actual)) == (None, [])
    assert conditions(actual)["ScalingActive"] == (
        "False", "ScalingDisabled", "scaling is disabled since the replica count of the target is zero"
    )  # fmt: skip


def test_greatest_number_of_all_metrics_counts() -> None:
    memory = resource("memory", type="AverageValue", average_value="512Ki")
    actual = run(autoscaler(CPU, memory), target(2), 100, 100)
    assert actual.replicas == 4  # 1 MiB of 512 KiB, times 2
    assert "reason: memory resource above target" in actual.reports[0].message
    assert actual.status.current_metrics[1].resource is not None
    assert actual.status.current_metrics[1].resource.current.average_value == "1Mi"


def test_container_metric_has_the_usage_of_one_container() -> None:
    source = ContainerResourceMetricSource(
        name="cpu", container="main", target=MetricTarget(type="Utilization", average_utilization=50)
    )
    scaler = autoscaler(MetricSpec(type="ContainerResource", container_resource=source))
    actual = run(scaler, target(2), 900, 900)
    assert actual.replicas == 4
    assert "cpu container resource utilization (percentage of request) above target" in actual.reports[0].message
    other = autoscaler(MetricSpec(type="ContainerResource", container_resource=replace(source, container="x")))
    failed = run(other, target(2), 900, 900)
    assert reports(failed)[0][1] == "FailedGetContainerResourceMetric"
    assert reports(failed)[1][2].startswith(
        "invalid metrics (1 invalid out of 1), first error is: failed to get x container metric value: failed to get "
        "cpu utilization: "
    )


def test_tolerance_of_the_behavior_replaces_that_of_the_settings() -> None:
    down = HPAScalingRules(stabilization_window_seconds=0, select_policy="Max")
    how = HorizontalPodAutoscalerBehavior(scale_up=replace(down, tolerance="0.6"), scale_down=down)
    assert run(autoscaler(behavior=how), target(2), 790, 790).replicas is None
    assert run(autoscaler(), target(2), 790, 790).replicas == 4


# --- what fails -------------------------------------------------------------------------------------------------------


def test_target_that_cannot_be_read_is_reported() -> None:
    before = autoscaler()
    actual = run(before, NoTarget('deployments.apps "web" not found'))
    message = 'the HPA controller was unable to get the target\'s current scale: deployments.apps "web" not found'
    assert conditions(actual) == {"AbleToScale": ("False", "FailedGetScale", message)}
    assert reports(actual) == [("Warning", "FailedGetScale", 'deployments.apps "web" not found')]
    assert (actual.replicas, actual.status.observed_generation) == (None, None)


@pytest.mark.parametrize(
    ("metrics", "of", "used", "reason", "error", "prefix"),
    [
        (
            (CPU,), pods(2), (), "FailedGetResourceMetric",
            "failed to get cpu utilization: unable to get metrics for resource cpu: no metrics returned from resource "
            "metrics API",
            "failed to get cpu resource metric value: ",
        ),
        (
            (CPU,), pods(2, ready=""), (1, 1), "FailedGetResourceMetric",
            "failed to get cpu utilization: did not receive metrics for targeted pods (pods might be unready)",
            "failed to get cpu resource metric value: ",
        ),
        (
            (resource("memory", type="Utilization", average_utilization=5),), (pod("p0", ""), pod("p1", "")), (1, 1),
            "FailedGetResourceMetric",
            "failed to get memory utilization: missing request for memory in container main of Pod p0",
            "failed to get memory resource metric value: ",
        ),
        (
            (resource("nvidia.com/gpu", type="AverageValue", average_value="1"),), pods(2), (1, 1),
            "FailedGetResourceMetric",
            "failed to get nvidia.com/gpu usage: did not receive metrics for targeted pods (pods might be unready)",
            "failed to get nvidia.com/gpu resource metric value: ",
        ),
    ],
)  # fmt: skip
def test_metric_without_a_result_is_reported(
    metrics: tuple[MetricSpec, ...], of: tuple[Pod, ...], used: tuple[int, ...], reason: str, error: str, prefix: str
) -> None:
    actual = run(autoscaler(*metrics), target(2, of), *used)
    assert actual.replicas is None
    message = f"the HPA was unable to compute the replica count: {error}"
    assert conditions(actual)["ScalingActive"] == ("False", reason, message)
    assert reports(actual) == [
        ("Warning", reason, error),
        (
            "Warning",
            "FailedComputeMetricsReplicas",
            f"invalid metrics (1 invalid out of 1), first error is: {prefix}{error}",
        ),
    ]
    assert [metric.type for metric in actual.status.current_metrics] == [""]


def test_metric_that_fails_prevents_only_the_removal_of_pods() -> None:
    scaler, error = autoscaler(CPU, EXTERNAL), MetricError("down")
    up, down = run(scaler, target(2), 900, 900, answer=error), run(scaler, target(2), 100, 100, answer=error)
    assert (up.replicas, conditions(up)["ScalingActive"][1]) == (4, "ValidMetricFound")
    assert (down.replicas, conditions(down)["ScalingActive"][1]) == (None, "FailedGetExternalMetric")
    assert reports(down)[-1][2].startswith("invalid metrics (1 invalid out of 2), first error is: ")
    assert [metric.type for metric in down.status.current_metrics] == ["Resource", ""]


def test_workload_without_pods_of_its_own_is_not_scaled() -> None:
    missing = run(autoscaler(), Target(2, 2, ""))
    assert reports(missing)[0] == ("Warning", "SelectorRequired", "selector is required")
    assert conditions(missing)["ScalingActive"] == (
        "False", "InvalidSelector", "the HPA target's scale is missing a selector"
    )  # fmt: skip
    invalid = run(autoscaler(), Target(2, 2, "!!", selector_error="found '!'"))
    text = "couldn't convert selector into a corresponding internal selector object: found '!'"
    assert conditions(invalid)["ScalingActive"] == ("False", "InvalidSelector", text)
    shared = run(autoscaler(), target(2, autoscalers=("other", "web")), 900, 900)
    text = "pods by selector app=web are controlled by multiple HPAs: [{other red} {web red}]"
    assert shared.replicas is None
    assert conditions(shared)["ScalingActive"] == ("False", "AmbiguousSelector", text)
    assert reports(shared) == [
        ("Warning", "AmbiguousSelector", text),
        ("Warning", "FailedComputeMetricsReplicas", text),
    ]
    assert run(autoscaler(), target(2, autoscalers=("web",)), 900, 900).replicas == 4


def test_transition_time_of_a_condition_is_that_of_its_status() -> None:
    scaler = autoscaler()
    first = run(scaler, target(2), 540, 540)
    again = replace(scaler, status=first.status)
    later = Clocks(NOW + datetime.timedelta(hours=1), 3600.0)
    second = decide(again, target(2), Measurements(measured(540, 540)), first.history, SETTINGS, later)
    assert second.status == first.status
    failed = decide(again, target(2), Measurements(), first.history, SETTINGS, later)
    times = {condition.type: condition.last_transition_time for condition in failed.status.conditions}
    assert (times["AbleToScale"], times["ScalingActive"]) == ("2026-01-31T12:00:00Z", "2026-01-31T13:00:00Z")


# --- other metrics ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("metric", "answer", "replicas", "name"),
    [
        (PODS_METRIC, values(15, 25), 4, "pods metric queue"),
        (OBJECT, values(15, name="front"), 3, "Service metric queue"),
        (
            EXTERNAL, values(20, 15), 4,
            "external metric queue(&LabelSelector{MatchLabels:map[string]string{of: mail,},"
            "MatchExpressions:[]LabelSelectorRequirement{},})",
        ),
        (EXTERNAL_VALUE, values(5, 15), 4, "external metric queue(nil)"),
    ],
)  # fmt: skip
def test_metric_of_an_extension_server_scales(metric: MetricSpec, answer: Answer, replicas: int, name: str) -> None:
    actual = run(autoscaler(metric), target(2), answer=answer)
    assert actual.replicas == replicas
    assert actual.reports[0].message == f"New size: {replicas}; reason: {name} above target"
    assert actual.status.current_metrics[0].type == metric.type


@pytest.mark.parametrize(
    ("metric", "reason", "error"),
    [
        (PODS_METRIC, "FailedGetPodsMetric", "unable to get metric queue: E"),
        (OBJECT, "FailedGetObjectMetric", "unable to get metric queue: Service on red front/E"),
        (EXTERNAL_VALUE, "FailedGetExternalMetric", "unable to get external metric red/queue/nil: E"),
    ],
)
def test_metric_without_an_answer_is_reported(metric: MetricSpec, reason: str, error: str) -> None:
    actual = run(autoscaler(metric), target(2), answer=MetricError("E"))
    message = f"the HPA was unable to compute the replica count: {error}"
    assert conditions(actual)["ScalingActive"] == ("False", reason, message)


def test_selector_is_shown_as_kubernetes_shows_it() -> None:
    selector = LabelSelector(
        match_labels={"b": "2", "a": "1"},
        match_expressions=(LabelSelectorRequirement(key="k", operator="In", values=("x", "y")),),
    )
    assert format_go_selector(selector) == (
        "&LabelSelector{MatchLabels:map[string]string{a: 1,b: 2,},MatchExpressions:[]LabelSelectorRequirement{"
        "LabelSelectorRequirement{Key:k,Operator:In,Values:[x y],},},}"
    )


# --- hostile objects --------------------------------------------------------------------------------------------------


def test_target_value_of_0_is_a_failed_metric() -> None:
    for metric in (
        resource("cpu", type="AverageValue", average_value="0"),
        resource("cpu", type="AverageValue", average_value="-5"),
        resource("cpu", type="Utilization", average_utilization=0),
    ):
        actual = run(autoscaler(metric), target(2), 5, 5)
        assert actual.replicas is None
        assert "it must be positive" in conditions(actual)["ScalingActive"][2]
    assert run(autoscaler(resource("cpu", type="AverageValue", average_value="1n")), target(2), 5, 5).replicas == 4


def test_metrics_of_too_many_pods_are_not_read() -> None:
    source = ContainerResourceMetricSource(name="cpu", target=MetricTarget(type="Utilization", average_utilization=50))
    of_containers = [
        MetricSpec(type="ContainerResource", container_resource=replace(source, container=f"c{number}"))
        for number in range(99)
    ]
    of = pods(200)
    few, many = autoscaler(*[CPU] * 100, maximum=10**9), autoscaler(CPU, *of_containers, maximum=10**9)
    assert run(few, target(200, of), *[900] * 200).replicas == 360
    actual = run(many, target(200, of), *[900] * 200)
    assert actual.replicas is None
    assert "100 metrics of 200 pods with 200 containers are too many" in conditions(actual)["ScalingActive"][2]


def test_long_names_do_not_make_long_messages() -> None:
    metric = replace(
        EXTERNAL, external=ExternalMetricSource(metric=MetricIdentifier(name="q" * 10**6), target=VALUE_OF_10)
    )
    actual = run(autoscaler(metric), target(2), answer=MetricError("E"))
    assert max(len(report.message) for report in actual.reports) == MAX_MESSAGE
    assert len(conditions(actual)["ScalingActive"][2]) == MAX_MESSAGE


@settings(max_examples=60)
@given(
    current=st.integers(0, 40),
    minimum=st.integers(1, 10),
    extra=st.integers(0, 10**9),
    used=st.lists(st.integers(-(10**6), 10**12), max_size=4),
    amount=st.integers(-(1 << 63), 1 << 63),
    hours=st.integers(-48, 48),
    metrics=st.lists(st.sampled_from([CPU, PODS_METRIC, OBJECT, EXTERNAL, EXTERNAL_VALUE]), min_size=1, max_size=3),
)
def test_number_is_within_the_bounds_or_stays(
    current: int, minimum: int, extra: int, used: list[int], amount: int, hours: int, metrics: list[MetricSpec]
) -> None:
    """The clock may have been set by two days, and values may be negative."""
    scaler = autoscaler(*metrics, minimum=minimum, maximum=minimum + extra)
    of = target(current, pods(min(current, 4)))
    answer = (MetricValue("p0", PodMetric(amount, NOW, WINDOW)),)
    clocks = Clocks(NOW + datetime.timedelta(hours=hours), 5.0)
    answers = dict.fromkeys(queries_of(scaler, "app=web"), answer)
    actual = decide(scaler, of, Measurements(measured(*used), answers), History(), SETTINGS, clocks)
    assert actual.replicas is None or minimum <= actual.replicas <= minimum + extra
    if minimum <= current <= minimum + extra and actual.replicas is not None:
        assert actual.replicas > current, "the first recommendation is the current number"
