"""Attaching and detaching of pods, and their connectivity afterwards."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from api.network.attach import NODE_AGENT, AttachRequest
from lab.process import run
from reconcile.errors import NotReady
from sdn.cniserver.pod_ports import host_veth_name
from tests.net.node.examples import ADMINS, RED, links
from tests.testbed.isolation.world import PlannedPod
from tests.testbed.netns.packet_world import PacketWorld
from tests.testbed.wait import wait_until


def test_repeated_attach_and_detach_change_nothing(cluster: PacketWorld) -> None:
    planned_pod = PlannedPod("red-twice", "red", "node-1")
    before = cluster.flows("node-1"), links(cluster, "node-1")
    first = cluster.add(planned_pod)
    assert cluster.add(planned_pod) == first
    cluster.remove("red-twice")
    for _ in range(2):
        cluster.detach("node-1", "red-twice")
    assert (cluster.flows("node-1"), links(cluster, "node-1")) == before
    assert cluster.add(planned_pod).ip != first.ip, "a freed address rests"
    cluster.remove("red-twice")


def test_pod_with_the_longest_name_is_attached(cluster: PacketWorld) -> None:
    namespace = cluster.pod_namespace("red-long")
    run("ip", "netns", "add", namespace)
    try:
        request = AttachRequest(
            sandbox="red-long",
            netns=f"/run/netns/{namespace}",
            namespace="red",
            name="n" * 253,
            runtime=NODE_AGENT,
            uid="0b7c0b7c-0b7c-0b7c-0b7c-0b7c0b7c0b7c",
        )
        attached = cluster.attach("node-1", request)
        assert f"podlane red/{'n' * 200}" in cluster.in_node(
            "node-1", "ip", "-d", "link", "show", host_veth_name("red-long")
        )
        assert attached.ip
        assert cluster.network_ready("node-1")
    finally:
        cluster.detach("node-1", "red-long")
        run("ip", "netns", "del", namespace)


def test_pod_reaches_all_others_through_one_neighbour(cluster: PacketWorld) -> None:
    namespace = cluster.pod_namespace("red-a")
    for name in ("red-b", "red-c"):
        run("ip", "netns", "exec", namespace, "ping", "-c", "1", "-W", "5", str(cluster.pods[name].address))
    neighbours = run("ip", "-n", namespace, "neigh", "show", "dev", "eth0").splitlines()
    assert [line.split()[0] for line in neighbours] == [str(cluster.gateway("node-1"))]


def test_node_agent_lists_its_attached_sandboxes_after_a_restart(cluster: PacketWorld) -> None:
    ours = {planned_pod.name for planned_pod in (*RED, *ADMINS) if planned_pod.node == "node-1"}
    assert cluster.sandboxes("node-1") == ours
    cluster.add(PlannedPod("red-extra", "red", "node-1"))
    subprocess.run(["ip", "-n", cluster.pod_namespace("red-extra"), "link", "set", "eth0", "down"], check=True)
    assert cluster.sandboxes("node-1") == ours | {"red-extra"}
    cluster.kill("node-1 sdn")
    cluster.start("node-1 sdn")
    wait_until(lambda: cluster.network_ready("node-1"), "the daemon")
    assert cluster.sandboxes("node-1") == ours | {"red-extra"}
    cluster.remove("red-extra")
    assert cluster.sandboxes("node-1") == ours


def test_cni_plugin_attaches_and_detaches(cluster: PacketWorld) -> None:
    plugin = Path(sys.executable).with_name("podlane-cni")
    socket = cluster.nodes["node-1"].sdn_socket
    configuration = json.dumps({"cniVersion": "1.0.0", "name": "p", "type": plugin.name, "socket": str(socket)})
    namespace = cluster.pod_namespace("by-cni")
    before = cluster.flows("node-1"), links(cluster, "node-1")
    subprocess.run(["ip", "netns", "add", namespace], check=True)

    def call(verb: str) -> dict[str, Any]:
        words = {
            "CNI_COMMAND": verb,
            "CNI_CONTAINERID": "by-cni",
            "CNI_NETNS": f"/run/netns/{namespace}",
            "CNI_IFNAME": "eth0",
            "CNI_ARGS": "K8S_POD_NAMESPACE=red;K8S_POD_NAME=by-cni",
        }
        done = subprocess.run(
            [plugin], input=configuration, env={**os.environ, **words}, capture_output=True, text=True, check=False
        )
        assert (done.returncode == 0) == ("code" not in done.stdout), done.stdout + done.stderr
        return dict(json.loads(done.stdout or "{}"))

    result = call("ADD")
    assert call("ADD") == result
    assert call("CHECK") == {}
    inside = ("ip", "-n", namespace)
    way_out = ("route", "add", "default", "via", result["ips"][0]["gateway"], "dev", "eth0", "onlink")
    for harm, undone in (
        (("link", "set", "eth0", "down"), (("link", "set", "eth0", "up"), way_out)),
        (("route", "del", "default"), (way_out,)),
    ):
        subprocess.run([*inside, *harm], check=True)
        assert call("CHECK")["code"] == 3, harm
        for words in undone:
            subprocess.run([*inside, *words], check=True)
    assert call("CHECK") == {}
    assert "by-cni" not in cluster.sandboxes("node-1"), "it is not the node agent's"
    address = result["ips"][0]["address"]
    assert address in cluster.in_node("node-1", "ip", "-n", namespace, "-br", "addr", "show", "eth0")
    neighbour = str(cluster.pods["red-c"].address)
    subprocess.run(["ip", "netns", "exec", namespace, "ping", "-c", "3", "-A", "-W", "1", neighbour], check=True)
    subprocess.run(["ip", "-n", namespace, "link", "del", "eth0"], check=True)
    assert call("CHECK")["code"] == 3
    for _ in range(2):
        assert call("DEL") == {}
    assert (cluster.flows("node-1"), links(cluster, "node-1")) == before
    subprocess.run(["ip", "netns", "del", namespace], check=True)


def test_pod_without_a_project_is_not_attached(cluster: PacketWorld) -> None:
    before = cluster.flows("node-1"), links(cluster, "node-1")
    with pytest.raises(NotReady, match="project nowhere has no NetNamespace yet"):
        cluster.add(PlannedPod("stray", "nowhere", "node-1"))
    wait_until(lambda: (cluster.flows("node-1"), links(cluster, "node-1")) == before, "nothing half-done")
    subprocess.run(["ip", "netns", "del", cluster.pod_namespace("stray")], check=True)


def test_pod_reaches_the_outside_with_its_nodes_address(cluster: PacketWorld) -> None:
    outside = str(cluster.nodes["node-1"].site.outside)
    with subprocess.Popen(
        ["tcpdump", "-nli", cluster.nodes["node-1"].veth, "-c", "1", f"icmp and dst host {outside}"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as watch:
        assert watch.stderr is not None
        assert watch.stdout is not None
        assert "listening" in watch.stderr.readline() + watch.stderr.readline()
        namespace = cluster.pod_namespace("red-a")
        subprocess.run(["ip", "netns", "exec", namespace, "ping", "-c", "2", "-W", "2", outside], check=True)
        assert f"IP {cluster.node_address('node-1')} > {outside}" in watch.stdout.readline()


def test_node_reaches_its_pods_from_any_of_its_addresses(cluster: PacketWorld) -> None:
    """Includes an address from which the node has sent nothing, so that no pod knows its MAC."""
    pod = str(cluster.pods["red-a"].address)
    for address in (cluster.gateway("node-1"), cluster.node_address("node-1")):
        cluster.in_node("node-1", "ip", "neigh", "flush", "dev", "tun0")
        cluster.in_node("node-1", "ping", "-c", "1", "-W", "2", "-I", str(address), pod)


def test_node_is_as_before_when_all_pods_are_gone(cluster: PacketWorld) -> None:
    cluster.add_project("green")
    empty = cluster.flows("node-2"), links(cluster, "node-2")
    for number in range(5):
        cluster.add(PlannedPod(f"green-{number}", "green", "node-2"))
    for number in reversed(range(5)):
        cluster.remove(f"green-{number}")
    assert (cluster.flows("node-2"), links(cluster, "node-2")) == empty
    guard = cluster.in_node("node-2", "nft", "list", "table", "netdev", "podlane-guard")
    assert guard.count("chain") == 1 + len(
        [planned_pod for planned_pod in (*RED, *ADMINS) if planned_pod.node == "node-2"]
    )
