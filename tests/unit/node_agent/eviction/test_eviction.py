"""Eviction thresholds, the ranking of pods, and messages."""

from __future__ import annotations

from dataclasses import replace as changed
from datetime import datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from api.core.pod import Pod, PodStatus
from api.meta.types import Condition
from node_agent.config import Settings
from node_agent.eviction.ranking import PodUsage, has_disk_limits, local_storage_evictions, select_pod
from node_agent.eviction.thresholds import (
    HARD,
    BadThreshold,
    Pressure,
    SignalObservation,
    Threshold,
    conditions_last_observed,
    due_thresholds,
    next_threshold_due,
    parse_soft_thresholds,
    parse_thresholds,
    thresholds_first_observed,
    thresholds_met,
)
from node_agent.eviction.thresholds import node_pressure as pressure_of
from node_agent.pods.status import evicted_status, is_evicted, merge_status
from reconcile.config_file import InvalidConfig, merge
from tests.unit.node_agent.examples import NOW, make_pod

MI, GI = 1 << 20, 1 << 30
TRANSITION = timedelta(minutes=5)


def pressure(last: dict[str, datetime], now: datetime) -> Pressure:
    return pressure_of(last, now, TRANSITION)


def make_candidate(name: str, *, priority: int | None = None, resources: str = "{}", spec: str = "") -> Pod:
    pod = make_pod(f"[{{name: main, image: toolbox, resources: {resources}}}]", spec)
    return replace(pod, metadata=replace(pod.metadata, uid=name), spec=replace(pod.spec, priority=priority))


def make_usage(pod: Pod, memory: int = 0, disk: int = 0, **more: Any) -> PodUsage:
    return PodUsage(pod, container_memory={"main": memory}, container_disk={"main": disk}, **more)


def test_eviction_thresholds_are_parsed_in_kubelets_format() -> None:
    assert parse_thresholds("memory.available<100Mi, pid.available<1.5%") == (
        Threshold("memory.available", 100 * MI),
        Threshold("pid.available", percent=1.5),
    )
    assert parse_thresholds("") == ()
    assert len(parse_thresholds(HARD)) == 5


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("memory.available", "found 'memory.available'; for example"),
        ("memory.free<1Gi", "with one of memory.available, nodefs.available"),
        ("memory.available<120%", "0% to 100% is accepted"),
        ("memory.available<1..5%", "could not convert"),
        ("memory.available<12Foo", "'12Foo' is not a quantity"),
    ],
)
def test_invalid_eviction_threshold_is_rejected_with_its_setting(text: str, message: str) -> None:
    with pytest.raises(BadThreshold, match=message):
        parse_thresholds(text)
    with pytest.raises(InvalidConfig, match=f"evictionHard: .*{message}"):
        merge(Settings, {"nodeName": "n", "nodeIp": "1.2.3.4", "evictionHard": text}, {})


def test_eviction_threshold_is_met_below_its_value_and_memory_ranks_first() -> None:
    limits = parse_thresholds("nodefs.available<10%,memory.available<100Mi,pid.available<5")
    observations = {
        "nodefs.available": SignalObservation(9, 100),
        "memory.available": SignalObservation(100 * MI - 1, GI),
    }
    assert [threshold.signal for threshold in thresholds_met(limits, observations)] == [
        "memory.available",
        "nodefs.available",
    ]
    observations = {"nodefs.available": SignalObservation(10, 100), "memory.available": SignalObservation(100 * MI, GI)}
    assert thresholds_met(limits, observations) == ()


def test_pressure_condition_persists_five_minutes() -> None:
    last = conditions_last_observed({}, parse_thresholds("memory.available<1Gi"), NOW)
    assert pressure(last, NOW) == Pressure(memory=True)
    assert pressure(
        conditions_last_observed(last, (), NOW + timedelta(minutes=4)), NOW + timedelta(minutes=4)
    ) == Pressure(memory=True)
    assert pressure(last, NOW + timedelta(minutes=5)) == Pressure()
    again = conditions_last_observed(
        last, parse_thresholds("imagefs.available<1,pid.available<1"), NOW + timedelta(minutes=4)
    )
    assert pressure(again, NOW + timedelta(minutes=6)) == Pressure(disk=True, processes=True)


GREEDY = make_usage(make_candidate("greedy", resources="{requests: {memory: 100Mi}}"), 300 * MI)
MODEST = make_usage(make_candidate("modest", resources="{requests: {memory: 1Gi}}"), 900 * MI)
WORTHY = make_usage(make_candidate("worthy", priority=10, resources="{requests: {memory: 100Mi}}"), 500 * MI)
SMALL = make_usage(make_candidate("small"), 10 * MI)
LOW = {"memory.available": SignalObservation(50 * MI, GI)}


def order(signal: str, *pods: PodUsage) -> list[str]:
    """Return the order in which pods are evicted."""
    limits, names, rest = parse_thresholds(f"{signal}<100%"), [], list(pods)
    while eviction := select_pod(limits, {signal: SignalObservation(0, 1)}, rest):
        names.append(eviction.uid)
        rest = [usage for usage in rest if usage.pod.metadata.uid != eviction.uid]
    return names


def test_memory_ranking_is_by_exceeded_request_priority_and_excess() -> None:
    assert order("memory.available", SMALL, MODEST, WORTHY, GREEDY) == ["greedy", "small", "worthy", "modest"]


def test_disk_ranking_includes_volumes() -> None:
    within = make_usage(make_candidate("within", resources="{limits: {ephemeral-storage: 1Gi}}"), disk=900 * MI)
    layers, volumes = (
        make_usage(make_candidate("layers"), disk=20 * MI),
        make_usage(make_candidate("volumes"), disk=MI, volumes={"v": 40 * MI}),
    )
    assert order("nodefs.available", within, layers, volumes) == ["volumes", "layers", "within"]
    larger, smaller = (
        make_usage(make_candidate("many"), inodes=1000),
        make_usage(make_candidate("few"), disk=GI, inodes=10),
    )
    assert order("imagefs.inodesFree", smaller, larger) == ["many", "few"]


def test_pid_ranking_is_by_priority_and_process_count() -> None:
    pods = [
        make_usage(make_candidate("p1"), processes=5),
        make_usage(make_candidate("p2"), processes=50),
        make_usage(make_candidate("p3", priority=-1), processes=1),
    ]
    assert order("pid.available", *pods) == ["p3", "p2", "p1"]


def test_critical_pods_are_never_evicted() -> None:
    critical = make_usage(make_candidate("critical", priority=2_000_000_000), 10 * GI)
    assert select_pod(parse_thresholds("memory.available<1Gi"), LOW, [critical]) is None
    assert order("memory.available", critical, SMALL) == ["small"]
    assert select_pod((), LOW, [SMALL]) is None


@given(st.permutations([SMALL, MODEST, WORTHY, GREEDY]))
def test_eviction_ranking_does_not_depend_on_input_order(pods: list[PodUsage]) -> None:
    assert order("memory.available", *pods) == ["greedy", "small", "worthy", "modest"]


def test_eviction_message_equals_kubelets() -> None:
    eviction = select_pod(parse_thresholds("memory.available<100Mi"), LOW, [GREEDY])
    assert eviction is not None
    assert eviction.message == (
        "The node was low on resource: memory. Threshold quantity: 100Mi, available: 50Mi. "
        "Container main was using 300Mi, request is 100Mi, has larger consumption of memory. "
    )
    eviction = select_pod(parse_thresholds("pid.available<10"), {"pid.available": SignalObservation(3, 100)}, [GREEDY])
    assert eviction is not None
    assert eviction.message == "The node was low on resource: pids. Threshold quantity: 10, available: 3. "


@pytest.mark.parametrize(
    ("usage", "message"),
    [
        (
            make_usage(
                make_candidate("v", spec="  volumes: [{name: v, emptyDir: {sizeLimit: 1Mi}}]"), volumes={"v": MI + 1}
            ),
            'Usage of EmptyDir volume "v" exceeds the limit "1Mi". ',
        ),
        (
            make_usage(
                make_candidate("p", resources="{limits: {ephemeral-storage: 2Mi}}"), disk=MI, volumes={"v": MI + 1}
            ),
            "Pod ephemeral local storage usage exceeds the total limit of containers 2Mi. ",
        ),
        (
            make_usage(
                make_candidate("v", spec="  volumes: [{name: v, emptyDir: {sizeLimit: 1Mi}}]"), volumes={"v": MI}
            ),
            "",
        ),
        (make_usage(make_candidate("p", resources="{limits: {ephemeral-storage: 2Mi}}"), disk=2 * MI), ""),
        (make_usage(make_candidate("free"), disk=GI, volumes={"v": GI}), ""),
    ],
)
def test_pod_over_its_ephemeral_storage_limit_is_evicted(usage: PodUsage, message: str) -> None:
    assert [eviction.message for eviction in local_storage_evictions([usage])] == ([message] if message else [])


def test_container_over_its_own_storage_limit_is_evicted() -> None:
    limit = "resources: {limits: {ephemeral-storage: 4Mi}}"
    pod = make_pod(f"[{{name: main, image: toolbox, {limit}}}, {{name: side, image: toolbox, {limit}}}]")
    [eviction] = local_storage_evictions([PodUsage(pod, container_disk={"main": 5 * MI, "side": MI})])
    assert eviction.message == 'Container main exceeded its local ephemeral storage limit "4Mi". '


def test_only_pods_with_storage_limits_are_measured() -> None:
    assert has_disk_limits(make_candidate("p", resources="{limits: {ephemeral-storage: 2Mi}}"))
    assert has_disk_limits(make_candidate("v", spec="  volumes: [{name: v, emptyDir: {sizeLimit: 1Mi}}]"))
    assert not has_disk_limits(
        make_candidate("m", spec="  volumes: [{name: v, emptyDir: {sizeLimit: 1Mi, medium: Memory}}]")
    )
    assert not has_disk_limits(make_candidate("p", resources="{limits: {memory: 2Mi}}"))


def test_evicted_status_is_final() -> None:
    ready = Condition(type="Ready", status="True")
    status = evicted_status(PodStatus(phase="Running", conditions=(ready,)), "words", NOW)
    assert is_evicted(status)
    assert (status.phase, status.reason, status.message) == ("Failed", "Evicted", "words")
    condition = status.conditions[-1]
    assert (condition.type, condition.status, condition.reason) == ("DisruptionTarget", "True", "TerminationByKubelet")
    assert [condition.type for condition in evicted_status(status, "again", NOW).conditions] == [
        "Ready",
        "DisruptionTarget",
    ]
    written = merge_status(status, PodStatus(conditions=(Condition(type="example.com/gate", status="True"),)))
    assert [condition.type for condition in written.conditions] == ["Ready", "DisruptionTarget", "example.com/gate"]
    assert [condition.type for condition in merge_status(PodStatus(), written).conditions] == [
        "DisruptionTarget",
        "example.com/gate",
    ]
    assert not is_evicted(PodStatus(phase="Failed"))


# --- soft thresholds --------------------------------------------------------------------------------------------------

SOFT = parse_soft_thresholds("memory.available<1Gi,nodefs.available<20%", "memory.available=1m30s,nodefs.available=2h")


def test_soft_thresholds_need_a_grace_period_each() -> None:
    assert [threshold.grace for threshold in SOFT] == [timedelta(seconds=90), timedelta(hours=2)]
    assert parse_soft_thresholds("", "") == ()


@pytest.mark.parametrize(
    ("limits", "periods", "message"),
    [
        ("memory.available<1Gi", "", "memory.available has no grace period"),
        ("", "memory.available=1m", "memory.available has no soft threshold"),
        ("memory.available<1Gi", "memory.available=soon", "found 'memory.available=soon'; for example"),
        ("memory.available<1Gi", "memory.available", "found 'memory.available'"),
        ("memory.available<1Gi", "free=1m", "found 'free=1m'"),
        ("memory.available", "memory.available=1m", "found 'memory.available'; for example"),
    ],
)
def test_invalid_soft_threshold_is_rejected_with_its_setting(limits: str, periods: str, message: str) -> None:
    with pytest.raises(BadThreshold, match=message):
        parse_soft_thresholds(limits, periods)
    settings = {"nodeName": "n", "nodeIp": "1.2.3.4", "evictionSoft": limits, "evictionSoftGracePeriod": periods}
    with pytest.raises(InvalidConfig, match=f"evictionSoft, evictionSoftGracePeriod: .*{message}"):
        merge(Settings, settings, {})


def test_soft_threshold_is_due_when_met_for_its_whole_grace_period() -> None:
    memory, disk = SOFT
    [hard] = parse_thresholds("pid.available<5")
    since = thresholds_first_observed({}, (hard, memory), NOW)
    assert due_thresholds(since, NOW) == (hard,)
    assert next_threshold_due(since, NOW) == NOW + timedelta(seconds=90)
    later = NOW + timedelta(seconds=60)
    since = thresholds_first_observed(since, (memory, disk), later)
    assert due_thresholds(since, NOW + timedelta(seconds=89)) == ()
    assert due_thresholds(since, NOW + timedelta(seconds=90)) == (memory,)
    assert thresholds_first_observed(thresholds_first_observed(since, (), later), (memory,), later)[memory] == later, (
        "a break counts"
    )


def test_hard_threshold_precedes_soft_and_the_shorter_grace_period_applies() -> None:
    limits = (*SOFT, *parse_thresholds("memory.available<100Mi"))
    low = thresholds_met(limits, {"memory.available": SignalObservation(1, GI)})
    assert [threshold.grace for threshold in low] == [None, timedelta(seconds=90)]
    slow = replace(GREEDY.pod, spec=replace(GREEDY.pod.spec, termination_grace_period_seconds=20))
    for grace, max_grace, expected in (
        (None, 60, 1),
        (SOFT[0].grace, 60, 20),
        (SOFT[0].grace, 5, 5),
        (SOFT[0].grace, 0, 0),
    ):
        eviction = select_pod((changed(low[0], grace=grace),), LOW, [changed(GREEDY, pod=slow)], max_grace)
        assert eviction is not None
        assert eviction.grace == expected
