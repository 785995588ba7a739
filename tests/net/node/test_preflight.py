"""A node with a conflicting link, route or address: the daemon reports it and changes nothing."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from lab.process import run
from tests.testbed.isolation.world import PlannedPod, reaches
from tests.testbed.netns.packet_world import PacketWorld
from tests.testbed.wait import wait_until


@pytest.fixture(scope="module")
def cluster() -> Iterator[PacketWorld]:
    with PacketWorld("podref", 22) as running:
        running.add(PlannedPod("admin-a", "default", "node-1"))
        yield running


OBSTACLES = {
    "a network of a link": (
        (("link", "add", "lan0", "type", "bridge"), ("addr", "add", "10.131.0.1/24", "dev", "lan0")),
        "lan0 has the address 10.131.0.1/24, which overlaps the cluster network 10.128.0.0/14",
    ),
    "a route": (
        (
            ("link", "add", "lan0", "type", "bridge"),
            ("link", "set", "lan0", "up"),
            ("route", "add", "172.30.5.0/24", "dev", "lan0"),
        ),
        "there is a route to 172.30.5.0/24 through lan0, which overlaps the service network 172.30.0.0/16",
    ),
    "a VPN under our name": (
        (("link", "add", "tun0", "type", "bridge"), ("addr", "add", "10.8.0.2/24", "dev", "tun0")),
        "there is a link tun0 that Podlane did not make",
    ),
}


@pytest.mark.parametrize("obstacle", OBSTACLES)
def test_preflight_conflict_is_reported_and_nothing_is_changed(cluster: PacketWorld, obstacle: str) -> None:
    commands, sentence = OBSTACLES[obstacle]
    inside = ("ip", "-n", cluster.nodes["node-2"].namespace)
    cluster.kill("node-2 sdn")
    cluster.vsctl("node-2", "--if-exists", "del-br", "br0")
    for words in commands:
        run(*inside, *words)
    cluster.start("node-2 sdn")
    wait_until(lambda: sentence in cluster.log("node-2"), "the refusal")
    assert "nothing is set up" in cluster.log("node-2")
    assert "br0" not in cluster.vsctl("node-2", "list-br").split()
    device = commands[0][2]
    addresses = run(*inside, "-4", "-br", "addr", "show", "dev", device)
    assert [words[2] for words in commands if words[0] == "addr"] == addresses.split()[2:]
    run(*inside, "link", "del", device)
    wait_until(lambda: cluster.network_ready("node-2"), "the network, once nothing is in the way")
    cluster.add(PlannedPod("admin-b", "default", "node-2"))
    cluster.warm_up("admin-b", "admin-a")
    assert reaches(cluster, "admin-b", "admin-a")
    cluster.remove("admin-b")


def test_preflight_conflict_on_a_running_node_is_reported_and_traffic_continues(cluster: PacketWorld) -> None:
    inside = ("ip", "-n", cluster.nodes["node-1"].namespace)
    run(*inside, "link", "add", "lan0", "type", "bridge")
    run(*inside, "addr", "add", "10.131.0.1/24", "dev", "lan0")
    before = cluster.flows("node-1")
    cluster.kill("node-1 sdn")
    cluster.start("node-1 sdn")
    wait_until(lambda: "conflicts with the cluster" in cluster.log("node-1"), "the warning")
    wait_until(lambda: cluster.network_ready("node-1"), "the network")
    assert cluster.flows("node-1") == before
    run(*inside, "link", "del", "lan0")
