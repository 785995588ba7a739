"""From a metric to a number of pods: cases computed by hand."""

from __future__ import annotations

import datetime
import math
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from api.core.pod import Pod
from master.controllers.autoscaling.replica_calculator import (
    MAX_MILLI,
    MAX_REPLICAS,
    MetricError,
    PodGroups,
    PodMetrics,
    Proposal,
    ReadinessTiming,
    Tolerances,
    average_replicas,
    group_pods,
    milli,
    per_pod_replicas,
    pod_request,
    pod_requests,
    usage_of,
    utilization_replicas,
    value_replicas,
)
from tests.unit.master.controllers.autoscaling.examples import LONG_AGO, NOW, container, pod, pods, usage

TENTH = Tolerances(0.1, 0.1)
TIMING = ReadinessTiming(datetime.timedelta(seconds=300), datetime.timedelta(seconds=30))


def ago(seconds: float) -> datetime.datetime:
    return NOW - datetime.timedelta(seconds=seconds)


def utilization(
    current: int, target: int, of: Sequence[Pod], metrics: PodMetrics, tolerances: Tolerances = TENTH, **more: str
) -> Proposal:
    resource, only = more.get("resource", "cpu"), more.get("container", "")
    measured = usage_of(of, metrics, resource, TIMING, NOW)
    return utilization_replicas(current, target, measured, pod_requests(of, resource, only), tolerances)


def average(current: int, target: int, of: Sequence[Pod], metrics: PodMetrics, resource: str = "") -> Proposal:
    return average_replicas(current, target, usage_of(of, metrics, resource, TIMING, NOW), TENTH)


# --- utilization ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("target", "used", "replicas", "percent"),
    [
        # Each of three pods requests 1000m.
        (50, (600, 700, 800), 5, 70),  # 70/50 = 1.4, times 3 = 4.2
        (100, (300, 300, 300), 1, 30),  # 0.3 times 3 = 0.9
        (30, (300, 500, 700), 5, 50),  # 1.67 times 3 = 5.0
        (100, (1010, 1030, 1020), 3, 102),  # within a tenth
        (100, (1100, 1100, 1100), 3, 110),  # the bound of the tolerance belongs to it
        (100, (1110, 1110, 1110), 4, 111),
        (100, (900, 900, 900), 3, 90),
        (100, (899, 899, 899), 3, 89),  # outside, but 0.89 times 3 is 3 again
        (100, (599, 599, 599), 2, 59),  # 59.9 % is cut to 59
        (1, (MAX_MILLI, MAX_MILLI, MAX_MILLI), MAX_REPLICAS, MAX_MILLI // 10),
        (50, (0, 0, 0), 0, 0),
    ],
)
def test_ready_pods_times_the_ratio_are_required(
    target: int, used: tuple[int, ...], replicas: int, percent: int
) -> None:
    actual = utilization(3, target, pods(3), usage(*used))
    assert (actual.replicas, actual.utilization, actual.value) == (replicas, percent, sum(used) // 3)


def test_pods_with_different_requests_are_weighed_by_them() -> None:
    of = (pod("p0", "2"), pod("p1", "500m"))
    assert utilization(2, 50, of, usage(1800, 200)) == Proposal(4, 1000, 80)  # 2000 of 2500 = 80 %; 1.6 times 2


def test_each_direction_has_a_tolerance_of_its_own() -> None:
    wide_up = Tolerances(scale_down=0.0, scale_up=0.5)
    assert utilization(2, 50, pods(2), usage(750, 750), wide_up).replicas == 2
    assert utilization(2, 50, pods(2), usage(760, 760), wide_up).replicas == 4
    assert utilization(10, 50, pods(10), usage(*[490] * 10), wide_up).replicas == 10  # ceil(9.8)
    assert utilization(10, 50, pods(10), usage(*[440] * 10), wide_up).replicas == 9
    assert utilization(10, 50, pods(10), usage(*[460] * 10)).replicas == 10


def test_missing_pods_use_their_requests_when_pods_would_be_removed() -> None:
    # 4 pods, one without a value. 10 % of 50 %: the ratio is 0.2. With 1000m for p3 it is (300 + 1000) / 4000 = 32 %.
    assert utilization(4, 50, pods(4), usage(100, 100, 100)).replicas == 3  # 0.64 times 4 = 2.56
    # With a target of 200 %, p3 is taken for 2000m: 2300 / 4000 = 57 %, and 0.285 times 4 is 1.14.
    assert utilization(4, 200, pods(4), usage(100, 100, 100)).replicas == 2
    # Two pods without a value turn the direction: (200 + 2000) / 4000 = 55 % of 50 %.
    assert utilization(4, 50, pods(4), usage(100, 100)).replicas == 4


def test_missing_pods_use_nothing_when_pods_would_be_added() -> None:
    # 90 % of 50 % for three pods: 1.8. With 0 for p3: 2700 / 4000 = 67 %, and 1.34 times 4 = 5.36.
    assert utilization(4, 50, pods(4), usage(900, 900, 900)).replicas == 6
    # 60 % of 50 % for two pods; with 0 for two others it is 30 %, the other direction.
    assert utilization(4, 50, pods(4), usage(600, 600)).replicas == 4


def test_unready_pods_use_nothing_when_pods_would_be_added() -> None:
    starting = pod("p3", phase="Pending")
    of = (*pods(3), starting)
    assert utilization(4, 50, of, usage(900, 900, 900)).replicas == 6  # 1.34 times 4, as above
    assert utilization(4, 50, of, usage(500, 500, 500)).replicas == 4
    # When pods are removed, unready ones do not count at all: 10/50 = 0.2, times 3.
    assert utilization(4, 50, of, usage(100, 100, 100)).replicas == 1


def test_number_of_pods_that_differs_from_the_current_one_does_not_turn_the_direction() -> None:
    # The scale is 10 already, and 4 pods exist. 1.34 times 4 would be fewer pods although more are required.
    assert utilization(10, 50, pods(4), usage(900, 900, 900)).replicas == 10


def test_failed_and_deleted_pods_do_not_count() -> None:
    of = (*pods(2), pod("p2", phase="Failed"), pod("p3", deleted=True))
    assert utilization(4, 50, of, usage(800, 800, 5000, 5000)) == Proposal(4, 800, 80)  # 1.6 times 2 = 3.2


def test_metric_without_values_that_count_is_an_error() -> None:
    with pytest.raises(MetricError, match="no pods returned by selector while calculating replica count"):
        utilization(1, 50, (), {})
    with pytest.raises(MetricError, match=r"did not receive metrics for targeted pods \(pods might be unready\)"):
        utilization(1, 50, pods(1), {})
    with pytest.raises(MetricError, match="no metrics returned matched known pods"):
        utilization(1, 50, (pod("p0", "0"),), usage(5))


# --- requests ---------------------------------------------------------------------------------------------------------


def test_request_of_a_pod_is_the_sum_of_containers_and_sidecars() -> None:
    sidecar = container("side", "20m", restart_policy="Always")
    init = container("init", "8")
    of = pod("p", containers=(container("a", "100m"), container("b", "0.05")), init_containers=(init, sidecar))
    assert pod_request(of, "cpu", "") == 170
    assert pod_request(of, "cpu", "b") == 50
    assert pod_request(of, "cpu", "side") == 20
    assert pod_request(of, "memory", "a") == (1 << 30) * 1000


def test_missing_request_is_an_error_that_names_the_container() -> None:
    of = pod("p7", containers=(container("a", "1"), container("b")))
    with pytest.raises(MetricError, match="missing request for cpu in container b of Pod p7"):
        pod_request(of, "cpu", "")
    assert pod_request(of, "cpu", "a") == 1000
    with pytest.raises(MetricError, match="container c not found in Pod p7"):
        pod_request(of, "cpu", "c")


def test_amount_beyond_64_bits_is_bounded() -> None:
    assert milli("1e30") == MAX_MILLI
    assert milli("-1e30") == -MAX_MILLI
    assert milli("1500m") == 1500


# --- readiness --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "sample", "is_ready"),
    [
        ({}, NOW, True),
        ({"ready": ""}, NOW, False),
        ({"started": None}, NOW, False),
        # Within five minutes after the start.
        ({"started": ago(299), "changed": ago(60)}, ago(50), True),
        ({"started": ago(299), "changed": ago(60)}, ago(51), False),  # the sample's window begins before it was ready
        ({"started": ago(299), "changed": ago(60), "ready": "False"}, NOW, False),
        # Later.
        ({"started": ago(300), "changed": ago(60)}, ago(200), True),
        ({"started": ago(400), "changed": ago(60), "ready": "False"}, NOW, True),  # it was ready once
        ({"started": ago(400), "changed": ago(371), "ready": "False"}, NOW, False),  # never since its first 30 s
        ({"started": ago(400), "changed": ago(370), "ready": "False"}, NOW, True),
        ({"started": ago(-3600), "changed": ago(-3600)}, NOW, False),  # a start and a change in the future
    ],
)
def test_cpu_usage_of_a_start_does_not_count(
    changes: dict[str, Any], sample: datetime.datetime, is_ready: bool
) -> None:
    of = (pod("p0", **changes),)
    expected = PodGroups(("p0",), (), ()) if is_ready else PodGroups((), ("p0",), ())
    assert group_pods(of, usage(5, timestamp=sample), "cpu", TIMING, NOW) == expected
    assert group_pods(of, usage(5, timestamp=sample), "memory", TIMING, NOW) == PodGroups(("p0",), (), ())


def test_pods_are_grouped_by_what_is_known() -> None:
    of = (*pods(2), pod("pending", phase="Pending"), pod("failed", phase="Failed"), pod("gone", deleted=True))
    assert group_pods(of, usage(5), "cpu", TIMING, NOW) == PodGroups(("p0",), ("pending",), ("p1",))


# --- averages and values ----------------------------------------------------------------------------------------------


def test_average_is_compared_with_the_target() -> None:
    assert average(3, 10_000, pods(3), usage(20_000, 10_000, 12_000)) == Proposal(5, 14_000)  # 1.4 times 3 = 4.2
    assert average(3, 10_000, pods(3), usage(10_000, 11_000, 9_500)) == Proposal(3, 10_166)
    assert average(3, 10_000, pods(3), usage(-5_000, -5_000, -5_000)) == Proposal(0, -5_000)
    # Removal: the missing pod is taken for the target, (2000 + 2000 + 10000) / 3 = 4666, and 0.4666 times 3 = 1.4.
    assert average(3, 10_000, pods(3), usage(2_000, 2_000)) == Proposal(2, 2_000)
    # Addition: 0 for the missing pod, (20000 + 20000) / 3 = 13333, and 1.3333 times 3 = 3.9999.
    assert average(3, 10_000, pods(3), usage(20_000, 20_000)) == Proposal(4, 20_000)
    # The usage at the start of a pod counts for every resource but the CPU.
    young = pods(2, started=ago(10), changed=LONG_AGO, ready="False")
    assert average(2, 1000, young, usage(3000, 3000), "memory").replicas == 6
    with pytest.raises(MetricError):
        average(2, 1000, young, usage(3000, 3000), "cpu")


def test_whole_value_is_compared_with_the_target() -> None:
    of = (*pods(2), pod("p2", ready="False"), pod("p3", phase="Pending"))
    assert value_replicas(4, 10_000, 30_000, of, TENTH) == Proposal(6, 30_000)  # 3 times 2 ready pods
    assert value_replicas(4, 10_000, 10_999, (), TENTH) == Proposal(4, 10_999)
    assert value_replicas(4, 10_000, -7, of, TENTH) == Proposal(0, -7)
    with pytest.raises(MetricError, match="unable to calculate ready pods: no pods returned by selector"):
        value_replicas(4, 10_000, 20_000, (), TENTH)


def test_value_is_divided_by_the_target_of_one_pod() -> None:
    assert per_pod_replicas(3, 10_000, 50_001, TENTH) == Proposal(6, 16_667)
    assert per_pod_replicas(3, 10_000, 33_000, TENTH) == Proposal(3, 11_000)
    assert per_pod_replicas(0, 10_000, 33_000, TENTH) == Proposal(4, 33_000)
    assert per_pod_replicas(3, 1, MAX_MILLI, TENTH).replicas == MAX_REPLICAS


# --- properties -------------------------------------------------------------------------------------------------------


@given(
    current=st.integers(1, 20),
    target=st.integers(1, 300),
    used=st.lists(st.none() | st.integers(-(1 << 64), 1 << 64), min_size=1, max_size=8),
    phases=st.lists(st.sampled_from(["Running", "Pending", "Failed"]), min_size=8, max_size=8),
)
def test_any_usage_gives_a_number_or_a_metric_error(
    current: int, target: int, used: list[int | None], phases: list[str]
) -> None:
    of = [pod(f"p{index}", phase=phases[index]) for index in range(len(used))]
    values = {
        name: metric
        for (name, metric), value in zip(usage(*(value or 0 for value in used)).items(), used, strict=True)
        if value is not None
    }
    try:
        actual = utilization(current, target, of, values)
    except MetricError:
        return
    assert 0 <= actual.replicas <= MAX_REPLICAS


@given(ratio=st.floats(0.9, 1.1), target=st.integers(1_000, 1_000_000), number=st.integers(1, 30))
def test_average_within_the_tolerance_changes_nothing(ratio: float, target: int, number: int) -> None:
    value = math.ceil(0.9 * target) if ratio < 1 else math.floor(ratio * target)
    assert average(number, target, pods(number), usage(*[value] * number)).replicas == number
