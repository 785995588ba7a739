"""Reasons of dropped packets, and the pods concerned."""

from __future__ import annotations

from sdn.cniserver.pod_ports import InterfaceConfig, bridge_with_ports, names_of_pods, plan_attach
from sdn.model.flow import Flow
from sdn.model.host import Bridge
from sdn.pipeline.compiler import compile_flows
from sdn.pipeline.cookies import DROP_BIT
from sdn.pipeline.drops import MISS_REASONS, drop_counters, drop_reason
from sdn.pipeline.tables import Table
from sdn.topology import DockerNetwork, NodeNetwork, Pod, docker_subnet
from tests.unit.sdn.examples import CLUSTER, NODE

WISH = InterfaceConfig(
    sandbox="s1",
    namespace="red",
    name="web",
    uid="uid",
    netns="/proc/1/ns/net",
    netns_id="0:1",
    ifname="eth0",
    runtime="cni",
)
BRIDGE = bridge_with_ports(Bridge("br0"), plan_attach(Bridge("br0"), NODE, [WISH]).to_attach)
ADDRESS = NODE.first_pod
NAMES = names_of_pods(BRIDGE)
VIEW = NodeNetwork(
    CLUSTER,
    NODE,
    frozenset(),
    frozenset({Pod(16, ADDRESS, 10)}),
    docker=DockerNetwork(docker_subnet(NODE.subnet), 3, 10),
)


def counted(**packets: int) -> dict[tuple[str, str], int]:
    """What is told when each row that drops for a reason has matched so many packets."""
    rows = {row: packets.get(drop_reason(row), 0) for row in compile_flows(VIEW) if row.cookie & DROP_BIT}
    return {(reason, owner): count for reason, owner, count in drop_counters(rows, {}, NAMES) if count}


def test_every_drop_flow_has_a_reason_and_no_other_flow_does() -> None:
    assert all(bool(row.cookie & DROP_BIT) == (not row.actions) for row in compile_flows(VIEW))


def test_drops_are_attributed_to_pods_by_name() -> None:
    assert counted(spoofed=2) == {("spoofed", "pod red/web"): 2, ("spoofed", "docker"): 2 * 2}
    assert counted(other_project=3) == {("other_project", "pod red/web"): 3}
    assert counted(unknown_tunnel_peer=5) == {("unknown_tunnel_peer", "node"): 5}
    assert counted(vxlan_from_pod=1) == {("vxlan_from_pod", "node"): 1}


def test_unmatched_packets_are_counted_as_drops() -> None:
    found = {(reason, owner): count for reason, owner, count in drop_counters({}, {int(Table.POD_OUTPUT): 4}, NAMES)}
    assert found == {(reason, "node"): 4 * (table == Table.POD_OUTPUT) for table, reason in MISS_REASONS.items()}


def test_drops_of_a_deleted_pod_are_attributed_to_none() -> None:
    rows = {row: 1 for row in compile_flows(VIEW) if reason_of_drop(row) == "other_project"}
    assert list(drop_counters(rows, {}, {}))[-1][1] in {"a pod that is gone", "node"}
    assert ("other_project", "a pod that is gone", 1) in drop_counters(rows, {}, {})


def reason_of_drop(row: Flow) -> str:
    return drop_reason(row) if row.cookie & DROP_BIT else ""
