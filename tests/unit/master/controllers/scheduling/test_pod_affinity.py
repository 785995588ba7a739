"""Pod affinity and topology spread constraints."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from api.core.node import Namespace, Node, Taint
from api.core.placement import (
    Affinity,
    NodeAffinity,
    NodeSelectorRequirement,
    NodeSelectorTerm,
    PodAffinity,
    PodAffinityTerm,
    PodAntiAffinity,
    PreferredSchedulingTerm,
    TopologySpreadConstraint,
    WeightedPodAffinityTerm,
)
from api.core.pod import Pod, PodSchedulingGate
from api.meta.selectors import LabelSelector, LabelSelectorRequirement
from api.meta.types import ObjectMeta, OwnerReference
from api.validation.registry import check_update
from master.controllers.scheduling.algorithm import Scheduled, Unschedulable, schedule
from master.resources.pods import PODS, pod_state
from tests.unit.master.examples import node, pod

HOST, ZONE = "kubernetes.io/hostname", "zone"
WEB = LabelSelector(match_labels={"app": "web"})


def host(name: str, zone: str = "") -> Node:
    return node(name, labels={HOST: name, **({ZONE: zone} if zone else {})})


ZONES = [host("a1", "a"), host("a2", "a"), host("b1", "b"), host("b2", "b")]


def web(name: str, node: str = "", namespace: str = "default", app: str = "web", **spec: object) -> Pod:
    made = pod(name, node=node)
    metadata = replace(made.metadata, labels={"app": app}, namespace=namespace)
    return replace(made, metadata=metadata, spec=replace(made.spec, **spec))


def near(key: str = ZONE, selector: LabelSelector | None = WEB, **more: Any) -> Affinity:
    term = PodAffinityTerm(topology_key=key, label_selector=selector, **more)
    return Affinity(pod_affinity=PodAffinity(required_during_scheduling_ignored_during_execution=(term,)))


def far(key: str = HOST, selector: LabelSelector | None = WEB, **more: Any) -> Affinity:
    term = PodAffinityTerm(topology_key=key, label_selector=selector, **more)
    return Affinity(pod_anti_affinity=PodAntiAffinity(required_during_scheduling_ignored_during_execution=(term,)))


def answers(nodes: list[Node], pods: list[Pod], namespaces: tuple[Namespace, ...] = ()) -> dict[str, str]:
    actual = {}
    for answer in schedule(nodes, pods, namespaces):
        assert isinstance(answer, Scheduled | Unschedulable)
        actual[answer.pod.metadata.name] = answer.node if isinstance(answer, Scheduled) else answer.message
    return actual


def test_pod_affinity_schedules_next_to_matching_pods() -> None:
    there = web("web", node="b2")
    assert answers(ZONES, [there, web("cache", app="cache", affinity=near())]) == {"cache": "b1"}
    assert answers(ZONES, [there, web("cache", app="cache", affinity=near(HOST))]) == {"cache": "b2"}
    lonely = answers(ZONES, [web("cache", app="cache", affinity=near())])
    assert lonely == {"cache": "0/4 nodes are available: 4 node(s) didn't match pod affinity rules."}


def test_self_matching_affinity_places_the_first_pod_anywhere() -> None:
    series = [web(f"w{number}", affinity=near()) for number in range(4)]
    actual = answers(ZONES, series)
    assert sorted(actual.values()) == ["a1", "a1", "a2", "a2"]


def test_pod_anti_affinity_separates_pods() -> None:
    series = [web(f"w{number}", affinity=far()) for number in range(5)]
    actual = answers(ZONES, series)
    assert sorted(actual[f"w{number}"] for number in range(4)) == ["a1", "a2", "b1", "b2"]
    assert actual["w4"] == "0/4 nodes are available: 4 node(s) didn't match pod anti-affinity rules."


def test_anti_affinity_of_an_existing_pod_repels_new_ones() -> None:
    there = web("loner", node="a1", app="loner", affinity=far(ZONE))
    assert answers(ZONES[:3], [there, web("w")]) == {"w": "b1"}
    words = "0/2 nodes are available: 2 node(s) didn't satisfy existing pods anti-affinity rules."
    assert answers(ZONES[:2], [there, web("w")]) == {"w": words}
    assert answers(ZONES[:2], [there, web("other", app="other")]) == {"other": "a2"}


@pytest.mark.parametrize(
    ("more", "kept_off"),
    [
        ({}, False),
        ({"namespaces": ("red",)}, True),
        ({"namespaces": ("green",)}, False),
        ({"namespace_selector": LabelSelector()}, True),
        ({"namespace_selector": LabelSelector(match_labels={"team": "r"})}, True),
        ({"namespace_selector": LabelSelector(match_labels={"team": "g"})}, False),
    ],
)
def test_affinity_term_covers_its_own_or_named_namespaces(more: dict[str, Any], kept_off: bool) -> None:
    namespaces = (
        Namespace(metadata=ObjectMeta(name="red", labels={"team": "r"})),
        Namespace(metadata=ObjectMeta(name="blue", labels={"team": "b"})),
    )
    pods = [web("there", node="a1", namespace="red"), web("new", namespace="blue", affinity=far(**more))]
    assert (answers([ZONES[0]], pods, namespaces)["new"] != "a1") == kept_off


def test_affinity_term_without_a_selector_matches_no_pod() -> None:
    pods = [web("there", node="a1"), web("new", affinity=far(selector=None))]
    assert answers([ZONES[0]], pods) == {"new": "a1"}


def test_match_label_keys_distinguish_pod_revisions() -> None:
    def edition(name: str, version: str, node: str = "") -> Pod:
        made = web(name, node=node, affinity=far(match_label_keys=("version",)))
        return replace(made, metadata=replace(made.metadata, labels={"app": "web", "version": version}))

    pods = [edition("old", "1", "a1"), edition("same", "1"), edition("other", "2")]
    actual = answers([ZONES[0]], pods)
    assert actual["other"] == "a1"
    assert "anti-affinity" in actual["same"]


def test_preferred_affinity_decides_among_feasible_nodes() -> None:
    disk = NodeSelectorTerm(match_expressions=(NodeSelectorRequirement(key=HOST, operator="In", values=("b2",)),))
    liked = NodeAffinity(
        preferred_during_scheduling_ignored_during_execution=(PreferredSchedulingTerm(weight=1, preference=disk),)
    )
    assert answers(ZONES, [web("w", affinity=Affinity(node_affinity=liked))]) == {"w": "b2"}
    term = WeightedPodAffinityTerm(weight=5, pod_affinity_term=PodAffinityTerm(topology_key=ZONE, label_selector=WEB))
    with_web = PodAffinity(preferred_during_scheduling_ignored_during_execution=(term,))
    without = PodAntiAffinity(preferred_during_scheduling_ignored_during_execution=(term,))
    there = [web("there", node="a1")]
    assert answers(ZONES, [*there, web("w", affinity=Affinity(pod_affinity=with_web))]) == {"w": "a2"}
    assert answers(ZONES, [*there, web("w", affinity=Affinity(pod_anti_affinity=without))]) == {"w": "b1"}
    soiled = replace(ZONES[0], spec=replace(ZONES[0].spec, taints=(Taint(key="k", effect="PreferNoSchedule"),)))
    assert answers([soiled, ZONES[1]], [web("w")]) == {"w": "a2"}


def spread(skew: int = 1, key: str = ZONE, when: str = "DoNotSchedule", **more: Any) -> TopologySpreadConstraint:
    return TopologySpreadConstraint(
        max_skew=skew,
        topology_key=key,
        when_unsatisfiable=when,
        label_selector=WEB,
        **more,
    )


def test_topology_spread_balances_pods_over_zones() -> None:
    series = [web(f"w{number}", topology_spread_constraints=(spread(),)) for number in range(6)]
    actual = Counter(name[0] for name in answers(ZONES[:3], series).values())
    assert actual == {"a": 3, "b": 3}
    full = replace(ZONES[2], spec=replace(ZONES[2].spec, unschedulable=True))
    words = answers([*ZONES[:2], full], series)
    assert Counter(name[:1] for name in words.values()) == {"a": 1, "0": 5}
    assert words["w5"] == (
        "0/3 nodes are available: 2 node(s) didn't match pod topology spread constraints, 1 node(s) were unschedulable."
    )


def test_topology_spread_excludes_unlabelled_nodes_and_honours_min_domains() -> None:
    words = answers([host("x")], [web("w", topology_spread_constraints=(spread(),))])["w"]
    assert words.endswith("1 node(s) didn't match pod topology spread constraints (missing required label).")
    wide = (spread(min_domains=3),)
    series = [web(f"w{number}", topology_spread_constraints=wide) for number in range(3)]
    actual = answers(ZONES, series)
    assert {actual["w0"][0], actual["w1"][0]} == {"a", "b"}
    assert "topology spread" in actual["w2"]


def test_topology_spread_counts_unusable_nodes_by_its_policies() -> None:
    shut = replace(ZONES[2], spec=replace(ZONES[2].spec, taints=(Taint(key="k", effect="NoSchedule"),)))
    there, topology_spread_constraint = [web("there", node="a1")], spread(node_taints_policy="Honor")
    assert answers([ZONES[0], shut], [*there, web("w", topology_spread_constraints=(topology_spread_constraint,))]) == {
        "w": "a1"
    }
    assert "spread" in answers([ZONES[0], shut], [*there, web("w", topology_spread_constraints=(spread(),))])["w"]


def test_schedule_anyway_spread_is_a_preference() -> None:
    soft = (spread(when="ScheduleAnyway"),)
    there = [web("t1", node="a1"), web("t2", node="b1"), web("t3", node="b2"), web("o", node="a2", app="other")]
    assert answers(ZONES, [*there, web("w", topology_spread_constraints=soft)]) == {"w": "a1"}
    assert answers(ZONES[2:], [*there[1:3], web("w", topology_spread_constraints=soft)]) == {"w": "b1"}


def test_pods_of_one_owner_are_spread_before_balancing_nodes() -> None:
    owner = (OwnerReference(api_version="apps/v1", kind="ReplicaSet", name="rs", uid="u", controller=True),)

    def of(name: str, node: str = "") -> Pod:
        made = web(name, node=node)
        return replace(made, metadata=replace(made.metadata, owner_references=owner))

    others = [web(f"o{number}", node="b1") for number in range(5)]
    assert answers([ZONES[0], ZONES[2]], [*others, of("r1", "a1"), of("r2")]) == {"r2": "b1"}


def test_higher_priority_pod_is_scheduled_first() -> None:
    small = [node("a", capacity={"pods": "1"})]
    urgent = replace(pod("z"), spec=replace(pod("z").spec, priority=1000))
    assert answers(small, [pod("a"), urgent])["z"] == "a"


@given(st.lists(st.sampled_from(["web", "db"]), max_size=14), st.integers(1, 3), st.integers(1, 4))
def test_topology_spread_never_exceeds_max_skew(apps: list[str], skew: int, count: int) -> None:
    pods = [web(f"p{n:02d}", app=app, topology_spread_constraints=(spread(skew),)) for n, app in enumerate(apps)]
    zones, counts = (
        {zone_node.metadata.name: zone_node.metadata.labels[ZONE] for zone_node in ZONES[:count]},
        Counter[str](),
    )
    for answer in schedule(ZONES[:count], pods):
        assert isinstance(answer, Scheduled)
        if answer.pod.metadata.labels["app"] == "web":
            counts[zones[answer.node]] += 1
        assert max(counts.values(), default=0) - min(counts[zone] for zone in zones.values()) <= skew


def test_affinity_expressions_match_pods() -> None:
    selector = LabelSelector(match_expressions=(LabelSelectorRequirement(key="app", operator="NotIn", values=("db",)),))
    pods = [web("there", node="a1"), web("new", app="db", affinity=far(selector=selector))]
    assert "anti-affinity" in answers([ZONES[0]], pods)["new"]


def test_pod_with_scheduling_gates_is_not_scheduled() -> None:
    gated = web("w", scheduling_gates=(PodSchedulingGate(name="me/later"),))
    assert answers(ZONES, [gated]) == {}
    assert answers(ZONES, [replace(gated, spec=replace(gated.spec, scheduling_gates=()))]) == {"w": "a1"}
    begun = PODS.prepare_for_create(gated)
    assert pod_state(begun) == "SchedulingGated"
    problems = list(check_update(web("w"), gated, PODS.rules))
    assert [error.path for error in problems] == ["spec.schedulingGates"]
    assert not list(check_update(gated, web("w"), PODS.rules))
