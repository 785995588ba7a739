"""Why packets were dropped, and whose they were."""

from __future__ import annotations

from sdn.drops import dropped, reason_of
from sdn.flow import Flow
from sdn.flows import DROPS, compile_flows
from sdn.observed import Bridge
from sdn.pipeline import MISSES, Table
from sdn.plan import Wish, arrivals, ports_for
from sdn.view import DockerLane, Pod, View, docker_part
from tests.unit.sdn.test_flows import CLUSTER, NODE

WISH = Wish("s1", "red", "web", "uid", "/proc/1/ns/net", "0:1", "eth0", "cni")
BRIDGE = ports_for(Bridge("br0"), arrivals(Bridge("br0"), NODE, [WISH]).coming)
ADDRESS = NODE.first_pod
VIEW = View(
    CLUSTER,
    NODE,
    frozenset(),
    frozenset({Pod(16, ADDRESS, 10)}),
    docker=DockerLane(docker_part(NODE.subnet), 3, 10),
)


def counted(**packets: int) -> dict[tuple[str, str], int]:
    """What is told when each row that drops for a reason has matched so many packets."""
    rows = {row: packets.get(reason_of(row).replace(" ", "_"), 0) for row in compile_flows(VIEW) if row.cookie & DROPS}
    return {(reason, owner): count for reason, owner, count in dropped(rows, {}, BRIDGE) if count}


def test_every_row_that_drops_is_marked_and_no_other() -> None:
    assert all(bool(row.cookie & DROPS) == (not row.actions) for row in compile_flows(VIEW))


def test_what_pods_send_and_get_is_told_by_their_names() -> None:
    assert counted(spoofed=2) == {("spoofed", "pod red/web"): 2, ("spoofed", "docker"): 2 * 2}
    assert counted(other_project=3) == {("other project", "pod red/web"): 3}
    assert counted(unknown_tunnel=5) == {("unknown tunnel", "node"): 5}
    assert counted(tunnel_packet_of_a_pod=1) == {("tunnel packet of a pod", "node"): 1}


def test_what_no_row_matched_is_added() -> None:
    found = {(reason, owner): count for reason, owner, count in dropped({}, {int(Table.DELIVER): 4}, BRIDGE)}
    assert found == {(reason, "node"): 4 * (table == Table.DELIVER) for table, reason in MISSES.items()}


def test_rows_of_a_pod_that_has_gone_meanwhile_are_nobodys() -> None:
    rows = {row: 1 for row in compile_flows(VIEW) if reason_of_drop(row) == "other project"}
    assert list(dropped(rows, {}, Bridge("br0")))[-1][1] in {"a pod that is gone", "node"}
    assert ("other project", "a pod that is gone", 1) in dropped(rows, {}, None)


def reason_of_drop(row: Flow) -> str:
    return reason_of(row) if row.cookie & DROPS else ""
