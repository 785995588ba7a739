"""Taints of nodes, and evictions that follow from them."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from api.core.node import Node, NodeStatus, Taint
from api.core.placement import Toleration
from api.core.pod import Pod
from api.meta.types import Condition
from master.admission.defaults import apply_default_tolerations
from master.controllers.actions import Create, Delete, Update
from master.controllers.nodes import taint_eviction
from master.controllers.nodes import taints as node_taints
from master.controllers.nodes.lifecycle import was_suspended
from master.controllers.scheduling.algorithm import Scheduled, Unschedulable, schedule
from tests.unit.master.action_lines import NOW, lines
from tests.unit.master.examples import meta, node, pod

PREFIX = "node.kubernetes.io/"
NOON = "2026-01-01T12:00:00Z"


def states(obj: Node, **statuses: str) -> Node:
    conditions = tuple(Condition(type=kind, status=status) for kind, status in statuses.items())
    return replace(obj, status=replace(obj.status, conditions=(*obj.status.conditions, *conditions)))


def shown(taints: tuple[Taint, ...]) -> list[str]:
    return [f"{taint.key.removeprefix(PREFIX)}:{taint.effect}" for taint in taints]


def with_taints(obj: Node, *taints: Taint) -> Node:
    return replace(obj, spec=replace(obj.spec, taints=taints))


def changed(*nodes: Node) -> dict[str, list[str]]:
    actual = {}
    for change in node_taints.reconcile(nodes, NOW):
        assert isinstance(change.object, Node)
        actual[change.object.metadata.name] = shown(change.object.spec.taints)
    return actual


@pytest.mark.parametrize(
    ("obj", "wanted"),
    [
        (node("a"), []),
        (node("a", ready="False"), ["not-ready:NoExecute", "not-ready:NoSchedule"]),
        (node("a", ready="Unknown"), ["unreachable:NoExecute", "unreachable:NoSchedule"]),
        (replace(node("a"), status=NodeStatus()), ["not-ready:NoSchedule"]),
        (node("a", unschedulable=True), ["unschedulable:NoSchedule"]),
        (states(node("a"), MemoryPressure="True", DiskPressure="False"), ["memory-pressure:NoSchedule"]),
        (states(node("a"), DiskPressure="True"), ["disk-pressure:NoSchedule"]),
        (states(node("a"), PIDPressure="True"), ["pid-pressure:NoSchedule"]),
        (states(node("a"), NetworkUnavailable="True"), ["network-unavailable:NoSchedule"]),
        (states(node("a"), NetworkUnavailable="Unknown"), []),
        (
            states(node("a", ready="False", unschedulable=True), DiskPressure="True"),
            ["disk-pressure:NoSchedule", "not-ready:NoExecute", "not-ready:NoSchedule", "unschedulable:NoSchedule"],
        ),
    ],
)
def test_node_taints_follow_its_conditions(obj: Node, wanted: list[str]) -> None:
    assert changed(obj, node("b")) == ({"a": wanted} if wanted else {})
    assert shown(node_taints.effective_taints(obj)) == wanted
    (change,) = (*node_taints.reconcile([obj, node("b")], NOW), None)[:1]
    if change is not None:
        assert isinstance(change.object, Node)
        assert {taint.time_added for taint in change.object.spec.taints} == {NOON}
        assert changed(change.object, node("b")) == {}, "once is enough"
        well = replace(change.object, spec=replace(change.object.spec, unschedulable=False), status=node("a").status)
        assert changed(well, node("b")) == {"a": []}, "it is well again"


def test_foreign_taints_are_kept_and_existing_ones_keep_their_time() -> None:
    gpu, old = Taint(key="gpu", effect="NoSchedule"), Taint(PREFIX + "not-ready", effect="NoExecute", time_added="then")
    (change,) = node_taints.reconcile([with_taints(node("a", ready="False"), old, gpu), node("b")], NOW)
    assert isinstance(change.object, Node)
    assert change.object.spec.taints == (
        old,
        gpu,
        Taint(PREFIX + "not-ready", effect="NoSchedule", time_added=NOON),
    )
    (change,) = node_taints.reconcile([with_taints(node("a", ready="Unknown"), old, gpu), node("b")], NOW)
    assert isinstance(change.object, Node)
    assert shown(change.object.spec.taints) == ["gpu:NoSchedule", "unreachable:NoExecute", "unreachable:NoSchedule"]


def silent(*names: str) -> list[Node]:
    return [node(name, ready="Unknown") for name in names]


def test_no_pod_is_evicted_when_every_node_is_unreachable() -> None:
    assert changed(*silent("a", "b")) == {"a": ["unreachable:NoSchedule"], "b": ["unreachable:NoSchedule"]}
    marked = Taint(PREFIX + "unreachable", effect="NoExecute")
    unchanged = with_taints(silent("a")[0], marked)
    assert changed(unchanged, *silent("b"))["a"] == ["unreachable:NoSchedule"], "what was said before is taken back"


def test_evictions_stop_when_most_nodes_are_unreachable() -> None:
    marked = Taint(PREFIX + "unreachable", effect="NoExecute")
    away = [with_taints(node("a", ready="Unknown"), marked), *silent("b", "c")]
    assert changed(*away, node("d")) == {
        "a": ["unreachable:NoExecute", "unreachable:NoSchedule"],
        "b": ["unreachable:NoSchedule"],
        "c": ["unreachable:NoSchedule"],
    }
    few = [node(name) for name in "defg"]
    assert changed(*away, *few)["b"] == ["unreachable:NoExecute", "unreachable:NoSchedule"]


# --- who leaves, and when ---------------------------------------------------------------------------------------------

UNREACHABLE = Taint(PREFIX + "unreachable", effect="NoExecute")
DRAIN = Taint("drain", effect="NoExecute")


def on(name: str, *tolerations: Toleration, **rest: str) -> Pod:
    result = pod(name, node="a", phase=rest.get("phase", "Running"), deleted=rest.get("deleted"))
    return replace(result, spec=replace(result.spec, tolerations=tolerations))


def bears(key: str = "", seconds: int | None = None) -> Toleration:
    return Toleration(key=key, operator="Exists", effect="NoExecute", toleration_seconds=seconds)


@pytest.mark.parametrize(
    ("taints", "tolerations", "after"),
    [
        ((), (), None),
        ((Taint("k", effect="NoSchedule"),), (), None),
        ((DRAIN,), (), 0),
        ((DRAIN,), (bears("drain"),), None),
        ((DRAIN,), (bears("drain", 7),), 7),
        ((DRAIN,), (bears("drain", -5),), 0),
        ((DRAIN,), (bears("drain", 7), bears("drain", 9)), 7),
        ((DRAIN,), (bears(),), None),
        ((DRAIN, UNREACHABLE), (bears("drain", 7), bears(UNREACHABLE.key, 5)), 5),
        ((DRAIN, UNREACHABLE), (bears(UNREACHABLE.key, 5),), 0),
        ((UNREACHABLE,), apply_default_tolerations(on("p")).spec.tolerations, 300),
    ],
)
def test_pod_is_evicted_when_its_toleration_expires(
    taints: tuple[Taint, ...], tolerations: tuple[Toleration, ...], after: int | None
) -> None:
    nodes = [with_taints(node("a"), *taints), node("b")]
    since = taint_eviction.taint_times({}, nodes, grace=40, monotonic=100.0)

    def leaves(now: float) -> bool:
        return bool(list(taint_eviction.evictions(nodes, [on("p", *tolerations)], since, now, NOW)))

    assert leaves(1_000_000.0) == (after is not None)
    if after is not None:
        assert leaves(100.0 + after)
        assert not after or not leaves(99.0 + after)


def test_evicted_pods_get_an_event_and_others_are_kept() -> None:
    nodes = [with_taints(node("a"), DRAIN), node("b")]
    mirror = replace(on("mirror"), metadata=meta("mirror", annotations={"kubernetes.io/config.mirror": "x"}))
    elsewhere = [pod("waiting"), pod("well", node="b", phase="Running"), pod("lost", node="gone")]
    pods = [on("goes"), on("ended", phase="Succeeded"), on("going", deleted=NOON), mirror, *elsewhere]
    since = taint_eviction.taint_times({}, nodes, 40, 0.0)
    end, event = taint_eviction.evictions(nodes, pods, since, 0.0, NOW)
    assert isinstance(end, Delete)
    assert isinstance(end.object, Pod)
    assert lines([end]) == ["end Pod goes"]
    (condition,) = end.object.status.conditions
    assert (condition.type, condition.status, condition.reason) == (
        "DisruptionTarget",
        "True",
        "DeletionByTaintManager",
    )
    assert isinstance(event, Create)
    assert event.object.reason == "TaintManagerEviction"  # type: ignore[attr-defined]


def test_toleration_seconds_count_from_first_observation_and_after_a_start_grace_period() -> None:
    nodes = [with_taints(node("a"), DRAIN, UNREACHABLE)]
    first = taint_eviction.taint_times(None, nodes, grace=40, monotonic=100.0)
    assert first == {("uid-a", "drain"): 100.0, ("uid-a", UNREACHABLE.key): 140.0}
    assert taint_eviction.taint_times(first, nodes, grace=40, monotonic=160.0) == first
    assert taint_eviction.taint_times(first, [node("a")], grace=40, monotonic=170.0) == {}
    assert taint_eviction.taint_times({}, nodes, grace=40, monotonic=180.0)["uid-a", UNREACHABLE.key] == 180.0
    hasty = on("p", bears("drain"), bears(UNREACHABLE.key, 0))
    assert not list(taint_eviction.evictions(nodes, [hasty], first, 139.0, NOW))
    assert list(taint_eviction.evictions(nodes, [hasty], first, 140.0, NOW))


def test_suspended_master_evicts_no_pod() -> None:
    assert was_suspended(float("-inf"), 5.0, 40)
    assert was_suspended(100.0, 121.0, 40)
    assert not was_suspended(100.0, 105.0, 40)


# --- what else --------------------------------------------------------------------------------------------------------


def test_pods_of_an_unreachable_node_become_unready() -> None:
    rows = (Condition(type="Initialized", status="True"), Condition(type="Ready", status="True", observed_generation=3))
    here, there = (replace(pod(name, node=name), status=replace(pod("p").status, conditions=rows)) for name in "ab")
    (change,) = node_taints.pods_not_ready([node("a", ready="Unknown"), node("b", ready="False")], [here, there], NOW)
    assert isinstance(change, Update)
    assert isinstance(change.object, Pod)
    assert change.object.status.conditions == (
        rows[0],
        Condition(type="Ready", status="False", last_transition_time=NOON, observed_generation=3),
    )
    assert not list(node_taints.pods_not_ready([node("a", ready="Unknown")], [change.object], NOW))


def test_scheduler_respects_pending_node_taints() -> None:
    tired = states(node("a"), MemoryPressure="True")
    (answer,) = schedule([tired, node("b", ready="False")], [apply_default_tolerations(pod("p"))])
    assert isinstance(answer, Unschedulable)
    assert answer.message == (
        "0/2 nodes are available: 1 node(s) had untolerated taint {node.kubernetes.io/memory-pressure: }, "
        "1 node(s) had untolerated taint {node.kubernetes.io/not-ready: }."
    )
    (answer,) = schedule([tired], [apply_default_tolerations(pod("p", requests={"cpu": "1m"}))])
    assert isinstance(answer, Scheduled)
    everywhere = replace(pod("p"), spec=replace(pod("p").spec, tolerations=(Toleration(operator="Exists"),)))
    (answer,) = schedule([node("b", ready="False")], [everywhere])
    assert isinstance(answer, Scheduled)


@pytest.mark.parametrize(
    ("obj", "added"),
    [
        (on("p"), ["not-ready", "unreachable"]),
        (pod("p", requests={"cpu": "1m"}), ["not-ready", "unreachable", "memory-pressure"]),
        (on("p", bears(PREFIX + "not-ready", 5)), ["unreachable"]),
        (on("p", bears()), []),
        (on("p", Toleration(operator="Exists", effect="NoSchedule")), ["not-ready", "unreachable"]),
        (on("p", Toleration(PREFIX + "unreachable", value="x")), ["not-ready"]),
    ],
)
def test_pod_gets_default_tolerations(obj: Pod, added: list[str]) -> None:
    made = apply_default_tolerations(obj)
    assert made.spec.tolerations[: len(obj.spec.tolerations)] == obj.spec.tolerations
    assert [
        toleration.key.removeprefix(PREFIX) for toleration in made.spec.tolerations[len(obj.spec.tolerations) :]
    ] == added
    assert apply_default_tolerations(made) is made
