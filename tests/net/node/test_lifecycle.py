"""The network of a node through kills, restarts and changes of the topology, under real traffic."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from ipaddress import IPv4Address
from pathlib import Path
from typing import Any

import pytest

from api.core.node import Namespace, Node, NodeAddress, NodeStatus
from api.meta.types import ObjectMeta
from api.network.attach import NODE_AGENT, AttachRequest
from api.network.types import HostSubnet, NetNamespace
from lab.process import run
from reconcile.errors import NotReady
from sdn.cniserver.pod_ports import host_veth_name
from tests.testbed.isolation.world import PlannedPod, arrives, reaches
from tests.testbed.netns.packet_world import PacketWorld
from tests.testbed.traffic import Ping
from tests.testbed.wait import wait_until

RED = (PlannedPod("red-a", "red", "node-1"), PlannedPod("red-b", "red", "node-1"), PlannedPod("red-c", "red", "node-2"))
ADMINS = (PlannedPod("admin-a", "default", "node-1"), PlannedPod("admin-b", "default", "node-2"))


@pytest.fixture(scope="module")
def cluster() -> Iterator[PacketWorld]:
    with PacketWorld("podlife", 15) as running:
        running.add_project("red")
        for place in (*RED, *ADMINS):
            running.add(place)
        running.warm_up("admin-a", "admin-b")
        yield running


def ping(cluster: PacketWorld, source: str, target: str) -> Ping:
    return Ping(f"/run/netns/{cluster.pod_namespace(source)}", str(cluster.pods[target].address))


def links(cluster: PacketWorld, node: str) -> str:
    return cluster.in_node(node, "ip", "-br", "link")


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
    # Not across nodes meanwhile: the switch in user space may lose a tunnelled packet whenever a link comes or goes.
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
    """Without its database a switch in user space forwards nothing, one in the kernel goes on."""
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


def is_attached(cluster: PacketWorld, place: PlannedPod) -> bool:
    """Ask once."""
    try:
        cluster.add(place)
    except NotReady:
        return False
    return True


def test_pod_mtu_follows_the_underlay(cluster: PacketWorld) -> None:
    ours = cluster.specification("node-1 sdn")
    cluster.kill("node-1 sdn")
    cluster.start("node-1 sdn", replace(ours, command=(*ours.command, "--resync-seconds", "0.3")))
    wait_until(lambda: cluster.network_ready("node-1"), "the daemon")

    def mtu(device: str) -> int:
        return int(cluster.in_node("node-1", "cat", f"/sys/class/net/{device}/mtu"))

    before = mtu("brphy")
    for base in (before - 100, before):
        cluster.vsctl("node-1", "set", "interface", "brphy", f"mtu_request={base}")
        wait_until(lambda base=base: mtu("tun0") == base - 50, f"tun0 follows {base}")  # type: ignore[misc]
        assert cluster.add(PlannedPod("red-late", "red", "node-1")).mtu == base - 50
        cluster.remove("red-late")
    cluster.vsctl("node-1", "clear", "interface", "brphy", "mtu_request")
    cluster.kill("node-1 sdn")
    cluster.start("node-1 sdn")
    wait_until(lambda: cluster.network_ready("node-1"), "the daemon")


DRIFT = {
    "a pod's link": (("ip", "link", "set", "PORT", "down"), "links PORT"),
    "a flow": (("ovs-ofctl", "-O", "OpenFlow14", "del-flows", "OVS/br0.mgmt", "table=30"), "flows"),
    "a foreign flow": (("ovs-ofctl", "-O", "OpenFlow14", "add-flow", "OVS/br0.mgmt", "actions=NORMAL"), "flows"),
    "a route": (("ip", "route", "del", "10.128.0.0/14", "dev", "tun0"), "address or routes of tun0"),
    "an address": (("ip", "addr", "add", "10.9.9.9/32", "dev", "tun0"), "address or routes of tun0"),
    "the nft table": (("nft", "delete", "table", "ip", "podlane"), "nft table podlane"),
    "a rule": (("nft", "add", "rule", "ip", "podlane", "forward", "drop"), "nft table podlane"),
    "a sysctl": (("sysctl", "-q", "-w", "net.ipv4.ip_forward=0"), "sysctl net.ipv4.ip_forward"),
    "a port": (("ovs-vsctl", "--db=unix:OVS/db.sock", "del-port", "br0", "PORT"), "ports PORT"),
    "the tunnel": (("ovs-vsctl", "--db=unix:OVS/db.sock", "del-port", "br0", "vxlan0"), "bridge br0"),
    "the bridge": (("ovs-vsctl", "--db=unix:OVS/db.sock", "del-br", "br0"), "bridge br0"),
    "timeouts of a zone": (
        ("ovs-vsctl", "--db=unix:OVS/db.sock", "del-zone-tp", "netdev", "zone=1"),
        "timeouts of connection tracking",
    ),
}


def all_of_it(cluster: PacketWorld) -> tuple[object, ...]:
    columns = "--columns=name,ofport,external_ids,mtu_request"
    ports = cluster.vsctl("node-1", columns, "list", "interface").split("\n\n")
    addresses = re.findall(r"inet (\S+)", cluster.in_node("node-1", "ip", "-4", "addr", "show", "tun0"))
    words = ("ip", "route"), ("nft", "list", "table", "ip", "podlane")
    guard = cluster.in_node("node-1", "nft", "list", "table", "netdev", "podlane-guard")
    kernel = [addresses, *(cluster.in_node("node-1", *each) for each in words)]
    return (
        cluster.flows("node-1"),
        sorted(port.strip() for port in ports),
        kernel,
        sorted(cluster.vsctl("node-1", "list-zone-tp", "netdev").splitlines()),
        sorted(re.findall(r'device "(\w+)"', guard)),
    )


@pytest.mark.parametrize("what", DRIFT)
def test_drift_is_repaired_and_reported(cluster: PacketWorld, what: str) -> None:
    ours = cluster.specification("node-1 sdn")
    cluster.kill("node-1 sdn")
    cluster.start("node-1 sdn", replace(ours, command=(*ours.command, "--resync-seconds", "0.3")))
    wait_until(lambda: cluster.network_ready("node-1"), "the daemon")
    before, told = all_of_it(cluster), cluster.log("node-1")
    port = host_veth_name("red-a")
    command, sentence = DRIFT[what]
    words = [word.replace("OVS", str(cluster.nodes["node-1"].ovs)).replace("PORT", port) for word in command]
    cluster.in_node("node-1", *words)
    wait_until(lambda: sentence.replace("PORT", port) in cluster.log("node-1")[len(told) :], "the log line")
    wait_until(lambda: all_of_it(cluster) == before, f"{what} is put right")
    assert reaches(cluster, "red-a", "red-b")
    cluster.kill("node-1 sdn")
    cluster.start("node-1 sdn")
    wait_until(lambda: cluster.network_ready("node-1"), "the daemon")


def test_dropped_packets_are_counted_by_reason(cluster: PacketWorld) -> None:
    ours = cluster.specification("node-1 sdn")
    cluster.kill("node-1 sdn")
    cluster.start("node-1 sdn", replace(ours, command=(*ours.command, "--resync-seconds", "0.3")))
    wait_until(lambda: cluster.network_ready("node-1"), "the daemon")

    def dropped(reason: str, owner: str) -> int:
        text = cluster.in_node("node-1", "curl", "-s", "http://127.0.0.1:10249/metrics")
        labels = f'owner="{owner}",reason="{reason}"'
        found = re.search(rf"podlane_sdn_dropped_packets{{{labels}}} ([0-9.e+]+)", text)
        return int(float(found[1])) if found else -1

    spoofed, nobody = ("spoofed", "pod red/red-a"), ("no such pod", "node")
    wait_until(lambda: dropped(*spoofed) >= 0, "the first count")
    before = {one: dropped(*one) for one in (spoofed, nobody)}
    for _ in range(5):
        assert not arrives(cluster, "red-a", "red-b", ip_src=cluster.pods["red-c"].address)
        assert not arrives(cluster, "red-a", "red-b", ip_dst=IPv4Address("10.128.0.250"))
    wait_until(lambda: dropped(*spoofed) >= before[spoofed] + 5, "borrowed addresses are counted")
    wait_until(lambda: dropped(*nobody) >= before[nobody] + 5, "what may not arrive is counted")


def test_repeated_attach_and_detach_change_nothing(cluster: PacketWorld) -> None:
    place = PlannedPod("red-twice", "red", "node-1")
    before = cluster.flows("node-1"), links(cluster, "node-1")
    first = cluster.add(place)
    assert cluster.add(place) == first
    cluster.remove("red-twice")
    for _ in range(2):
        cluster.detach("node-1", "red-twice")
    assert (cluster.flows("node-1"), links(cluster, "node-1")) == before
    assert cluster.add(place).ip != first.ip, "a freed address rests"
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


def test_node_agent_lists_its_attached_sandboxes_after_a_restart(cluster: PacketWorld) -> None:
    ours = {place.name for place in (*RED, *ADMINS) if place.node == "node-1"}
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
    way_out = ("route", "add", "default", "via", result["ips"][0]["gateway"])
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


def test_pods_of_a_deleted_project_are_disconnected(cluster: PacketWorld) -> None:
    cluster.add_project("doomed")
    for name, node in (("doomed-a", "node-1"), ("doomed-b", "node-1")):
        cluster.add(PlannedPod(name, "doomed", node))
    assert reaches(cluster, "doomed-a", "doomed-b")
    cluster.call_api(lambda client: client.delete(Namespace, "doomed"))

    def lane_gone() -> bool:
        lanes = cluster.call_api(lambda client: client.list(NetNamespace)).items
        address = str(cluster.pods["doomed-a"].address)
        return "doomed" not in {lane.netname for lane in lanes} and not any(
            address in f for f in cluster.flows("node-1")
        )

    wait_until(lane_gone, "the lane and its flows")
    assert not reaches(cluster, "doomed-a", "admin-a")
    for name in ("doomed-a", "doomed-b"):
        cluster.remove(name)


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
    """Also one that it has not spoken to: nobody has told it the MAC."""
    pod = str(cluster.pods["red-a"].address)
    for address in (cluster.gateway("node-1"), cluster.node_address("node-1")):
        cluster.in_node("node-1", "ip", "neigh", "flush", "dev", "tun0")
        cluster.in_node("node-1", "ping", "-c", "1", "-W", "2", "-I", str(address), pod)


def test_new_node_becomes_a_peer_and_a_deleted_node_stops_being_one(cluster: PacketWorld) -> None:
    before = cluster.flows("node-1")
    address = NodeAddress(type="InternalIP", address="10.245.15.99")
    newcomer = Node(metadata=ObjectMeta(name="node-9"), status=NodeStatus(addresses=(address,)))
    cluster.call_api(lambda client: client.create(newcomer))
    wait_until(lambda: any("10.245.15.99" in flow for flow in cluster.flows("node-1")), "the peer's flows")
    subnet = cluster.call_api(lambda client: client.get(HostSubnet, "node-9")).subnet
    assert any(f"nw_dst={subnet}" in flow for flow in cluster.flows("node-1"))
    cluster.call_api(lambda client: client.delete(Node, "node-9"))
    wait_until(lambda: cluster.has_flows("node-1", before), "the peer's flows are gone")


def test_node_with_a_changed_address_keeps_its_subnet(cluster: PacketWorld) -> None:
    before = cluster.flows("node-1")
    subnet = cluster.call_api(lambda client: client.get(HostSubnet, "node-2")).subnet
    old = str(cluster.node_address("node-2"))

    def moved_to(address: str) -> None:
        told = {"status": {"addresses": [{"type": "InternalIP", "address": address}]}}
        cluster.call_api(lambda client: client.patch_status(Node, "node-2", "", told))
        wait_until(lambda: any(f"set_field:{address}->tun_dst" in flow for flow in cluster.flows("node-1")), address)
        assert cluster.call_api(lambda client: client.get(HostSubnet, "node-2")).subnet == subnet

    moved_to("10.245.15.77")
    moved_to(old)
    wait_until(lambda: cluster.has_flows("node-1", before), "the flows are as before")
    wait_until(lambda: cluster.network_ready("node-2"), "node-2 has its address again")
    wait_until(lambda: arrives(cluster, "admin-a", "admin-b"), "packets")


def test_node_is_as_before_when_all_pods_are_gone(cluster: PacketWorld) -> None:
    cluster.add_project("green")
    empty = cluster.flows("node-2"), links(cluster, "node-2")
    for number in range(5):
        cluster.add(PlannedPod(f"green-{number}", "green", "node-2"))
    for number in reversed(range(5)):
        cluster.remove(f"green-{number}")
    assert (cluster.flows("node-2"), links(cluster, "node-2")) == empty
    guard = cluster.in_node("node-2", "nft", "list", "table", "netdev", "podlane-guard")
    assert guard.count("chain") == 1 + len([place for place in (*RED, *ADMINS) if place.node == "node-2"])


def test_foreign_bridge_is_not_changed(cluster: PacketWorld) -> None:
    cluster.vsctl("node-2", "remove", "bridge", "br0", "external_ids", "podlane")
    cluster.kill("node-2 sdn")
    cluster.start("node-2 sdn")
    wait_until(lambda: "that Podlane did not make" in cluster.log("node-2"), "the refusal")
    cluster.vsctl("node-2", "set", "bridge", "br0", "external_ids:podlane=owner")
    wait_until(lambda: cluster.network_ready("node-2"), "the daemon")
