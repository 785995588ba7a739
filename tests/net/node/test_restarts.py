"""Restarts and kills of the sdn daemon, the master, the switch and its database, under real traffic."""

from __future__ import annotations

import pytest

from reconcile.errors import NotReady
from tests.net.node.examples import ADMINS, RED, links, ping
from tests.testbed.isolation.world import PlannedPod, reaches
from tests.testbed.netns.packet_world import PacketWorld
from tests.testbed.wait import wait_until


@pytest.mark.parametrize("target", ["red-b", "red-c"])
def test_killed_sdn_daemon_loses_no_packet_and_changes_no_flow(cluster: PacketWorld, target: str) -> None:
    before = cluster.flows("node-1"), links(cluster, "node-1"), cluster.in_node("node-1", "ip", "route")
    stream = ping(cluster, "red-a", target)
    for _ in range(3):
        cluster.kill("node-1 sdn")
        stream.wait_for_answers(5)
        cluster.start("node-1 sdn")
        wait_until(lambda: cluster.network_ready("node-1"), "the daemon")
        stream.wait_for_answers(5)
    assert stream.lost() == 0
    assert (cluster.flows("node-1"), links(cluster, "node-1"), cluster.in_node("node-1", "ip", "route")) == before
    assert cluster.log("node-1").count("flows changed") <= len(RED) + len(ADMINS) + 3
    assert cluster.log("node-1").count('what="nft table podlane"') == 1


def test_killed_master_loses_no_packet_and_pods_still_attach(cluster: PacketWorld) -> None:
    before = cluster.flows("node-1")
    near, far = ping(cluster, "red-a", "red-b"), ping(cluster, "red-a", "red-c")
    cluster.kill("master")
    far.wait_for_answers(25)
    # Not between nodes: the switch in user space may lose a tunnelled packet whenever a link is added or removed.
    assert far.lost() == 0
    cluster.add(PlannedPod("red-late", "red", "node-1"))
    assert reaches(cluster, "red-late", "red-c")
    cluster.remove("red-late")
    far = ping(cluster, "red-a", "red-c")
    cluster.start("master")
    wait_until(cluster.master_answers, "the master")
    for stream in (near, far):
        stream.wait_for_answers(25)
        assert stream.lost() == 0
    assert cluster.flows("node-1") == before


def test_restarted_switch_recovers_by_itself(cluster: PacketWorld) -> None:
    before = cluster.flows("node-1")
    cluster.kill("node-1 ovs-vswitchd")
    cluster.start_switch("node-1")
    wait_until(lambda: cluster.has_flows("node-1", before), "the flows")
    wait_until(lambda: cluster.network_ready("node-1"), "the daemon")
    cluster.warm_up("admin-a", "admin-b")
    assert reaches(cluster, "red-a", "red-b")
    assert reaches(cluster, "red-a", "red-c")
    assert (
        cluster.in_node("node-1", "ip", "-br", "addr", "show", "tun0").split()[2] == f"{cluster.gateway('node-1')}/23"
    )


def test_restarted_database_is_reconnected(cluster: PacketWorld) -> None:
    """Without its database a switch in user space forwards nothing; one in the kernel continues."""
    before = cluster.flows("node-1")
    streams = [ping(cluster, "red-a", "red-b"), ping(cluster, "red-a", "red-c")]
    for _ in range(2):
        cluster.kill("node-1 ovsdb-server")
        cluster.start("node-1 ovsdb-server")
        for stream in streams:
            stream.wait_for_answers(10)
    assert cluster.has_flows("node-1", before)
    for stream in streams:
        stream.lost()
    late = PlannedPod("red-late", "red", "node-1")
    wait_until(lambda: is_attached(cluster, late), "a pod can be attached")
    assert reaches(cluster, "red-late", "red-c")
    cluster.remove("red-late")
    assert cluster.flows("node-1") == before


def is_attached(cluster: PacketWorld, planned_pod: PlannedPod) -> bool:
    """Try to attach a pod once, and return whether it is attached."""
    try:
        cluster.add(planned_pod)
    except NotReady:
        return False
    return True
