"""Multicast arrives on every node within a project that enables it, and nowhere else."""

from __future__ import annotations

from collections.abc import Iterator
from ipaddress import IPv4Address

import pytest

from api.network.types import NetNamespace
from sdn.topology import MULTICAST_ENABLED
from tests.testbed.isolation.world import PlannedPod, arrives
from tests.testbed.netns.packet_world import PacketWorld, running_world
from tests.testbed.wait import wait_until

GROUP, GROUP_MAC = IPv4Address("239.1.2.3"), 0x01005E010203


@pytest.fixture(scope="module")
def cluster() -> Iterator[PacketWorld]:
    with running_world("podmcs", 26) as running:
        yield running


def switch(cluster: PacketWorld, project: str, on: bool) -> None:
    reported = {"metadata": {"annotations": {MULTICAST_ENABLED: "true" if on else None}}}
    cluster.call_api(lambda client: client.patch(NetNamespace, project, "", reported))


def hears(cluster: PacketWorld, source: str) -> set[str]:
    """Return the pods that receive a multicast packet of `source`."""
    others = [name for name in cluster.pods if name != source]
    return {name for name in others if arrives(cluster, source, name, ip_dst=GROUP, eth_dst=GROUP_MAC)}


def test_multicast_arrives_only_in_projects_that_enable_it(cluster: PacketWorld) -> None:
    assert hears(cluster, "red-a") == set()
    before = {node: cluster.flows(node) for node in cluster.nodes}
    switch(cluster, "red", on=True)
    wait_until(lambda: hears(cluster, "red-a") == {"red-b", "red-c"}, "the project hears it")
    assert hears(cluster, "red-c") == {"red-a", "red-b"}
    assert hears(cluster, "blue-a") == set()
    assert hears(cluster, "admin-a") == set()
    borrowed = cluster.pods["red-b"].address
    assert not arrives(cluster, "blue-a", "red-a", ip_dst=GROUP, eth_dst=GROUP_MAC, ip_src=borrowed)
    cluster.kill("node-1 sdn")
    cluster.start("node-1 sdn")
    wait_until(lambda: cluster.network_ready("node-1"), "the daemon")
    assert hears(cluster, "red-a") == {"red-b", "red-c"}, "also after a restart"
    cluster.add(PlannedPod("red-d", "red", "node-2"))
    assert hears(cluster, "red-a") == {"red-b", "red-c", "red-d"}
    cluster.remove("red-d")
    switch(cluster, "red", on=False)
    wait_until(lambda: {node: cluster.flows(node) for node in cluster.nodes} == before, "all is as before")
    assert hears(cluster, "red-a") == set()
