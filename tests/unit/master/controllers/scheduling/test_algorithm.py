"""The selection of a node for a pod."""

from __future__ import annotations

from msgspec.structs import replace

from api.core.node import Node, NodeSpec, Taint
from api.core.placement import (
    Affinity,
    NodeAffinity,
    NodeSelector,
    NodeSelectorRequirement,
    NodeSelectorTerm,
    Toleration,
)
from api.core.pod import Container, ContainerPort, Pod, ResourceRequirements
from master.controllers.scheduling.algorithm import Scheduled, Unschedulable, schedule
from tests.unit.master.examples import node, pod


def answers(nodes: list[Node], pods: list[Pod]) -> dict[str, str]:
    actual = {}
    for answer in schedule(nodes, pods):
        assert isinstance(answer, Scheduled | Unschedulable)
        actual[answer.pod.metadata.name] = answer.node if isinstance(answer, Scheduled) else answer.message
    return actual


def test_pods_are_spread_to_the_node_with_fewest_pods_then_by_name() -> None:
    nodes = [node("n2"), node("n1"), node("n3")]
    pods = [pod("there", node="n1", phase="Running"), *(pod(f"p{i}") for i in range(5))]
    assert answers(nodes, pods) == {"p0": "n2", "p1": "n3", "p2": "n1", "p3": "n2", "p4": "n3"}


def test_scheduling_does_not_depend_on_input_order() -> None:
    nodes, pods = [node("a"), node("b")], [pod(f"p{i}") for i in range(4)]
    assert answers(nodes, pods) == answers(nodes[::-1], pods[::-1])


def test_terminated_pods_use_no_resources() -> None:
    pods = [pod("old", node="a", phase="Succeeded"), pod("gone", node="a", phase="Failed"), pod("new")]
    assert answers([node("a"), node("b")], pods) == {"new": "a"}


def test_older_pods_are_scheduled_first() -> None:
    nodes = [node("a", capacity={"pods": "1"})]
    pods = [pod("young", created="2026-01-02T00:00:00Z"), pod("old", created="2026-01-01T00:00:00Z")]
    assert answers(nodes, pods)["old"] == "a"
    assert answers(nodes, pods)["young"] == "0/1 nodes are available: 1 Too many pods."


def test_scheduling_respects_node_selector_readiness_and_cordon() -> None:
    nodes = [
        node("a", labels={"disk": "ssd"}, ready="Unknown"),
        node("b", labels={"disk": "ssd"}, unschedulable=True),
        node("c", labels={"disk": "hdd"}),
    ]
    wanted = pod("p", selector={"disk": "ssd"})
    assert answers(nodes, [wanted]) == {
        "p": "0/3 nodes are available: 1 node(s) didn't match Pod's node affinity/selector, "
        "1 node(s) had untolerated taint {node.kubernetes.io/unreachable: }, 1 node(s) were unschedulable."
    }
    assert answers([*nodes, node("d", labels={"disk": "ssd"})], [wanted]) == {"p": "d"}


def test_pod_requests_must_fit_into_remaining_resources() -> None:
    nodes = [node("a", capacity={"cpu": "1", "memory": "1Gi"}), node("b", capacity={"cpu": "500m", "memory": "1Gi"})]
    pods = [pod("p1", requests={"cpu": "600m"}), pod("p2", requests={"cpu": "500m"}), pod("p3", requests={"cpu": "1m"})]
    assert answers(nodes, pods) == {"p1": "a", "p2": "b", "p3": "a"}
    assert "Insufficient memory" in answers(nodes, [pod("big", requests={"memory": "2Gi"})])["big"]


def test_init_container_must_fit_beside_an_earlier_sidecar() -> None:
    def container(cpu: str, restart_policy: str | None = None) -> Container:
        return Container(resources=ResourceRequirements(requests={"cpu": cpu}), restart_policy=restart_policy)

    wanted = pod("p", requests={"cpu": "100m"})
    wanted = replace(
        wanted, spec=replace(wanted.spec, init_containers=(container("300m", "Always"), container("500m")))
    )
    small, large = (node(name, capacity={"cpu": cpu, "memory": "1Gi"}) for name, cpu in (("a", "799m"), ("b", "800m")))
    assert answers([small, large], [wanted]) == {"p": "b"}
    assert "Insufficient cpu" in answers([small], [wanted])["p"]


def test_missing_nodes_are_reported() -> None:
    assert answers([], [pod("p")]) == {"p": "0/0 nodes are available: no node has registered."}


def test_bound_deleted_and_foreign_pods_are_not_scheduled() -> None:
    foreign = pod("foreign")
    foreign = Pod(metadata=foreign.metadata, spec=type(foreign.spec)(scheduler_name="mine"))
    assert answers([node("a")], [pod("bound", node="x"), pod("going", deleted="2026-01-01T00:00:00Z"), foreign]) == {}


def test_unschedulable_pod_stays_pending() -> None:
    waiting = pod("p")
    assert list(schedule([], [waiting])) == [Unschedulable(waiting, "0/0 nodes are available: no node has registered.")]


def test_scheduling_respects_affinity_and_taints() -> None:
    names = NodeSelectorRequirement(key="metadata.name", operator="In", values=("b", "c"))
    selector = NodeSelector(node_selector_terms=(NodeSelectorTerm(match_fields=(names,)),))
    affinity = Affinity(node_affinity=NodeAffinity(required_during_scheduling_ignored_during_execution=selector))
    wanted = pod("p")
    wanted = replace(wanted, spec=replace(wanted.spec, affinity=affinity))
    tainted = replace(node("b"), spec=NodeSpec(taints=(Taint(key="gpu", effect="NoSchedule"),)))
    assert answers([node("a"), tainted], [wanted]) == {
        "p": "0/2 nodes are available: 1 node(s) didn't match Pod's node affinity/selector, "
        "1 node(s) had untolerated taint {gpu: }."
    }
    tolerant = replace(wanted, spec=replace(wanted.spec, tolerations=(Toleration(key="gpu", operator="Exists"),)))
    assert answers([node("a"), tainted], [tolerant]) == {"p": "b"}


def test_pods_with_the_same_host_port_go_to_different_nodes() -> None:
    port = ContainerPort(container_port=80, host_port=8080)
    served = [with_port(pod(f"p{number}"), port) for number in range(3)]
    actual = answers([node("a"), node("b")], served)
    assert sorted(actual[name] for name in ("p0", "p1")) == ["a", "b"]
    assert actual["p2"] == "0/2 nodes are available: 2 node(s) didn't have free ports for the requested pod ports."
    there = with_port(pod("there", node="a", phase="Running"), port)
    assert answers([node("a")], [there, with_port(pod("p"), replace(port, protocol="UDP"))]) == {"p": "a"}


def with_port(of: Pod, port: ContainerPort) -> Pod:
    [container] = of.spec.containers
    return replace(of, spec=replace(of.spec, containers=(replace(container, ports=(port,)),)))


def test_pod_is_scheduled_to_a_node_with_its_extended_resource() -> None:
    nodes = [node("a"), node("b", capacity={"example.com/gpu": "1"})]
    asking = [pod(f"p{number}", requests={"example.com/gpu": "1"}) for number in range(2)]
    assert answers(nodes, asking) == {
        "p0": "b",
        "p1": "0/2 nodes are available: 2 Insufficient example.com/gpu (the pod requests 1).",
    }
    assert answers([node("c")], [pod("p", requests={"ephemeral-storage": "1Gi"})]) == {"p": "c"}
