"""Pods of a cluster of two nodes, and views of its nodes' state."""

from __future__ import annotations

from tests.testbed.isolation.world import PlannedPod
from tests.testbed.netns.packet_world import PacketWorld
from tests.testbed.traffic import Ping

RED = (PlannedPod("red-a", "red", "node-1"), PlannedPod("red-b", "red", "node-1"), PlannedPod("red-c", "red", "node-2"))


ADMINS = (PlannedPod("admin-a", "default", "node-1"), PlannedPod("admin-b", "default", "node-2"))


def ping(cluster: PacketWorld, source: str, target: str) -> Ping:
    return Ping(f"/run/netns/{cluster.pod_namespace(source)}", str(cluster.pods[target].address))


def links(cluster: PacketWorld, node: str) -> str:
    return cluster.in_node(node, "ip", "-br", "link")
