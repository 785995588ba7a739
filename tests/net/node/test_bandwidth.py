"""Bandwidth limits of pods."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from api.network.attach import NODE_AGENT, AttachRequest
from lab.process import run
from sdn.cniserver.pod_ports import host_veth_name, kernel_rate_limit
from tests.testbed.netns.packet_world import PacketWorld
from tests.testbed.wait import wait_until


@pytest.fixture(scope="module")
def cluster() -> Iterator[PacketWorld]:
    with PacketWorld("podbw", 23) as running:
        yield running


def shaped(text: str) -> dict[str, int]:
    """Return the rates of the token buckets, in bits a second, by device."""
    return {load["dev"]: load["options"]["rate"] * 8 for load in json.loads(text) if load["kind"] == "tbf"}


def test_ingress_and_egress_bandwidth_are_limited_separately(cluster: PacketWorld) -> None:
    namespace = cluster.pod_namespace("slow")
    run("ip", "netns", "add", namespace)
    request = AttachRequest(
        sandbox="slow",
        netns=f"/run/netns/{namespace}",
        namespace="default",
        name="slow",
        runtime=NODE_AGENT,
        ingress_bandwidth=8_000_000,
        egress_bandwidth=2_000_000,
    )
    cluster.attach("node-1", request)
    show = ("tc", "-json", "qdisc", "show")
    assert shaped(run("ip", "netns", "exec", namespace, *show)) == {"eth0": 2_000_000}
    assert shaped(cluster.in_node("node-1", *show)) == {host_veth_name("slow"): 8_000_000}
    cluster.kill("node-1 ovs-vswitchd")
    cluster.start_switch("node-1")
    wait_until(lambda: cluster.network_ready("node-1"), "the network")
    wait_until(
        lambda: shaped(cluster.in_node("node-1", *show)) == {host_veth_name("slow"): 8_000_000}, "the limit is back"
    )
    cluster.detach("node-1", "slow")
    assert shaped(cluster.in_node("node-1", *show)) == {}


def test_bandwidth_limit_beyond_the_kernels_range_is_its_maximum(cluster: PacketWorld) -> None:
    namespace = cluster.pod_namespace("fat")
    run("ip", "netns", "add", namespace)
    request = AttachRequest(
        sandbox="fat",
        netns=f"/run/netns/{namespace}",
        namespace="default",
        name="fat",
        runtime=NODE_AGENT,
        ingress_bandwidth=10**15,
        egress_bandwidth=10**15,
    )
    cluster.attach("node-1", request)
    show = ("tc", "-json", "qdisc", "show")
    highest = kernel_rate_limit(10**15)
    assert shaped(run("ip", "netns", "exec", namespace, *show)) == {"eth0": highest}
    assert shaped(cluster.in_node("node-1", *show)) == {host_veth_name("fat"): highest}
    cluster.detach("node-1", "fat")
