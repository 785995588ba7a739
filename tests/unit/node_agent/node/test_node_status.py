"""The Node object, its conditions and reserved resources."""

from __future__ import annotations

from dataclasses import replace as changed
from datetime import timedelta

import pytest
from msgspec.structs import replace

from api.core.node import ContainerImage, Node, NodeStatus, Taint
from api.meta.types import Condition, ObjectMeta
from api.network.attach import NetworkStatus
from api.validation.registry import check
from node_agent.cgroups.hierarchy import PodsCapacity, pod_limits
from node_agent.eviction.thresholds import HARD, Pressure, parse_thresholds
from node_agent.node.lease import node_lease
from node_agent.node.node_status import (
    BadReservation,
    NodeHealth,
    NodeIdentity,
    ReservedResources,
    condition_events,
    largest_images,
    new_node,
    node_status,
    parse_reserved,
    parse_taint,
    status_differs,
)
from tests.unit.node_agent.examples import HOST_FACTS, NOW, make_pod

SELF = NodeIdentity(name="node-1", address="10.245.2.3", max_pods=20, eviction_hard=parse_thresholds(HARD))
WELL = NodeHealth("")


def make_status(health: NodeHealth = WELL, old: tuple[Condition, ...] = (), later: int = 0) -> NodeStatus:
    return node_status(SELF, HOST_FACTS, health, NOW + timedelta(seconds=later), old)


def test_allocatable_is_capacity_minus_reserved_resources() -> None:
    status = make_status()
    assert status.capacity == {
        "cpu": "4",
        "memory": "8388608Ki",
        "ephemeral-storage": "104857600Ki",
        "pods": "20",
        "hugepages-2Mi": "1073741824",
        "hugepages-1Gi": "0",
    }
    assert status.allocatable == status.capacity | {"memory": "7237632Ki", "ephemeral-storage": "96636764160"}


@pytest.mark.parametrize(
    ("thresholds", "memory", "disk"),
    [
        ("", "7340032Ki", "107374182400"),
        ("memory.available<1Gi,nodefs.available<50%", "6291456Ki", "53687091200"),
        ("imagefs.available<90%,nodefs.inodesFree<90%,pid.available<90%", "7340032Ki", "107374182400"),
        ("memory.available<100%,nodefs.available<100%", "0Ki", "0"),
    ],
)
def test_allocatable_excludes_hard_eviction_thresholds(thresholds: str, memory: str, disk: str) -> None:
    identity = changed(SELF, eviction_hard=parse_thresholds(thresholds))
    allocatable = node_status(identity, HOST_FACTS, WELL, NOW, ()).allocatable
    assert (allocatable["memory"], allocatable["ephemeral-storage"]) == (memory, disk)


def test_node_registers_with_labels_and_taints() -> None:
    node = new_node(changed(SELF, taints=(parse_taint("gpu=a100:NoSchedule"),)), HOST_FACTS, WELL, NOW)
    assert node.metadata.labels == {
        "kubernetes.io/hostname": "node-1",
        "kubernetes.io/os": "linux",
        "kubernetes.io/arch": "amd64",
        "beta.kubernetes.io/os": "linux",
        "beta.kubernetes.io/arch": "amd64",
        "podlane.io/local-volumes": "true",
    }
    without = new_node(changed(SELF, has_local_volumes=False), HOST_FACTS, WELL, NOW)
    assert without.metadata.labels["podlane.io/local-volumes"] == "false"
    assert node.spec.taints == (Taint(key="gpu", value="a100", effect="NoSchedule"),)
    assert parse_taint("down:NoExecute") == Taint(key="down", effect="NoExecute")
    assert list(check(node)) == []


@pytest.mark.parametrize(
    ("health", "kind", "expected"),
    [
        (WELL, "Ready", ("True", "KubeletReady")),
        (NodeHealth("no Docker"), "Ready", ("False", "KubeletNotReady")),
        (WELL, "MemoryPressure", ("False", "KubeletHasSufficientMemory")),
        (NodeHealth("", Pressure(memory=True)), "MemoryPressure", ("True", "KubeletHasInsufficientMemory")),
        (NodeHealth("", Pressure(disk=True)), "DiskPressure", ("True", "KubeletHasDiskPressure")),
        (NodeHealth("", Pressure(processes=True)), "PIDPressure", ("True", "KubeletHasInsufficientPID")),
    ],
)
def test_node_conditions_have_kubelets_reasons(health: NodeHealth, kind: str, expected: tuple[str, str]) -> None:
    by_type = {condition.type: condition for condition in make_status(health).conditions}
    assert list(by_type) == ["MemoryPressure", "DiskPressure", "PIDPressure", "Ready"]
    assert (by_type[kind].status, by_type[kind].reason) == expected


TUNNELS, FORWARDING = "podlane.io/TunnelsLost", "podlane.io/ForwardingBlocked"


@pytest.mark.parametrize(
    ("network", "expected"),
    [
        (None, {}),
        (NetworkStatus(ready=True), {}),
        (NetworkStatus(ready=True, lost_peers=()), {TUNNELS: ("False", "PeersAnswer")}),
        (NetworkStatus(ready=True, lost_peers=("node-2",)), {TUNNELS: ("True", "PeersLost")}),
        (NetworkStatus(ready=True, firewall_problem=""), {FORWARDING: ("False", "FirewallAccepts")}),
        (NetworkStatus(ready=True, firewall_problem="drop"), {FORWARDING: ("True", "FirewallPolicyDrop")}),
    ],
)
def test_conditions_of_the_pod_network(network: NetworkStatus | None, expected: dict[str, tuple[str, str]]) -> None:
    conditions = make_status(NodeHealth("", network=network)).conditions
    found = {each.type: (each.status, each.reason) for each in conditions if each.type.startswith("podlane.io/")}
    assert found == expected


def test_lost_peers_are_named_up_to_a_number() -> None:
    health = NodeHealth("", network=NetworkStatus(ready=True, lost_peers=tuple(f"n{number}" for number in range(9))))
    [message] = [each.message for each in make_status(health).conditions if each.type == TUNNELS]
    assert "n0, n1, n2, n3, n4 and 4 more" in message


def test_what_is_not_known_leaves_a_condition_as_it_is() -> None:
    lost = make_status(NodeHealth("", network=NetworkStatus(ready=True, lost_peers=("node-2",))))
    assert not status_differs(make_status(NodeHealth("", network=None), lost.conditions), lost)
    assert status_differs(make_status(NodeHealth("", network=NetworkStatus(ready=True, lost_peers=()))), lost)


def test_node_status_lists_the_fifty_largest_images() -> None:
    images = tuple(ContainerImage(names=tuple(f"i{n}:{t}" for t in range(7)), size_bytes=n) for n in range(60))
    result = largest_images((*images, ContainerImage(names=(), size_bytes=1 << 40)))
    assert [image.size_bytes for image in result] == list(range(59, 9, -1))
    assert {len(image.names) for image in result} == {5}


def test_status_differs_ignores_heartbeat_times_and_foreign_conditions() -> None:
    first = make_status()
    later = make_status(old=first.conditions, later=10)
    assert later != first
    assert not status_differs(later, first)
    foreign_condition = Condition(type="NetworkUnavailable", status="False")
    assert not status_differs(later, replace(first, conditions=(foreign_condition, *first.conditions)))
    assert status_differs(make_status(NodeHealth("no Docker"), first.conditions), first)
    unknown = tuple(replace(condition, status="Unknown", reason="NodeStatusUnknown") for condition in first.conditions)
    assert status_differs(later, replace(first, conditions=unknown))
    assert status_differs(later, replace(first, addresses=()))


def test_status_differs_compares_features_that_the_api_server_stores() -> None:
    status = make_status()
    assert status_differs(status, replace(status, features={"supplementalGroupsPolicy": False}))
    assert not status_differs(status, replace(status, features=None)), "an older API server does not store features"


def test_condition_change_emits_an_event() -> None:
    before = make_status(NodeHealth("starting")).conditions
    after = make_status(old=before).conditions
    assert list(condition_events(before, after)) == [("NodeReady", "")]
    assert list(condition_events(after, before)) == [("NodeNotReady", " (starting)")]
    short = make_status(NodeHealth("", Pressure(disk=True)), after).conditions
    assert list(condition_events(after, short)) == [("NodeHasDiskPressure", "")]
    assert list(condition_events(short, after)) == [("NodeHasNoDiskPressure", "")]
    assert list(condition_events((), after)) == [("NodeReady", "")]


def test_node_lease_is_owned_by_the_node_and_lasts_four_renewals() -> None:
    owner = Node(metadata=ObjectMeta(name="node-1", uid="u-1"))
    lease = node_lease(SELF, owner, 10.0, NOW)
    assert (lease.metadata.namespace, lease.metadata.name) == ("kube-node-lease", "node-1")
    assert [owner.uid for owner in lease.metadata.owner_references] == ["u-1"]
    assert (lease.spec.holder_identity, lease.spec.lease_duration_seconds) == ("node-1", 40)
    assert lease.spec.renew_time == "2026-01-31T12:00:00.000000Z"
    assert node_lease(SELF, None, 0.1, NOW).metadata.owner_references == ()
    assert node_lease(SELF, None, 0.1, NOW).spec.lease_duration_seconds == 1


def test_reserved_resources_of_system_and_agent_are_added() -> None:
    result = parse_reserved("cpu=100m,memory=200Mi", " memory=56Mi, ephemeral-storage=1Gi,")
    assert result == ReservedResources(cpu=100, memory=256 << 20, disk=1 << 30)
    assert parse_reserved("", "") == ReservedResources()


@pytest.mark.parametrize("text", ["cpu", "cpu=", "cores=1", "memory=much"])
def test_invalid_reserved_resources_are_rejected(text: str) -> None:
    with pytest.raises(BadReservation, match=r"accepted|quantity"):
        parse_reserved(text)


def test_cpu_cfs_quota_can_be_disabled() -> None:
    pod = make_pod("[{name: main, image: a, resources: {limits: {cpu: 500m, memory: 64Mi}}}]")
    assert pod_limits(pod, PodsCapacity(4, 8 << 30)).quota == 50000
    assert pod_limits(pod, PodsCapacity(4, 8 << 30, cpu_cfs_quota=False)).quota == 0
