"""Changes by others to the switch and to links are repaired and reported; foreign bridges are not touched."""

from __future__ import annotations

import re
from dataclasses import replace
from ipaddress import IPv4Address

import pytest

from sdn.cniserver.pod_ports import host_veth_name
from sdn.topology import mac_of
from tests.testbed import frames
from tests.testbed.isolation.world import arrives, reaches
from tests.testbed.netns.packet_world import PacketWorld
from tests.testbed.wait import wait_until

DRIFT = {
    "a pod's link": (("ip", "link", "set", "PORT", "down"), "links PORT"),
    "a flow": (("ovs-ofctl", "-O", "OpenFlow14", "del-flows", "OVS/br0.mgmt", "table=70"), "flows"),
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


def node_state(cluster: PacketWorld) -> tuple[object, ...]:
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


@pytest.fixture(scope="module")
def resyncing(cluster: PacketWorld) -> PacketWorld:
    """The cluster. The daemon of node-1 compares the node with what it should be three times a second."""
    process = cluster.specification("node-1 sdn")
    cluster.kill("node-1 sdn")
    cluster.start("node-1 sdn", replace(process, command=(*process.command, "--resync-seconds", "0.3")))
    wait_until(lambda: cluster.network_ready("node-1"), "the daemon")
    return cluster


@pytest.mark.parametrize("what", DRIFT)
def test_drift_is_repaired_and_reported(resyncing: PacketWorld, what: str) -> None:
    cluster = resyncing
    before, reported = node_state(cluster), cluster.log("node-1")
    port = host_veth_name("red-a")
    command, sentence = DRIFT[what]
    words = [word.replace("OVS", str(cluster.nodes["node-1"].ovs)).replace("PORT", port) for word in command]
    cluster.in_node("node-1", *words)
    wait_until(lambda: sentence.replace("PORT", port) in cluster.log("node-1")[len(reported) :], "the log line")
    wait_until(lambda: node_state(cluster) == before, f"{what} is put right")
    assert reaches(cluster, "red-a", "red-b")
    wait_until(lambda: cluster.network_ready("node-1"), "the daemon")


def test_firewall_that_drops_forwarded_packets_gets_rules_for_pods(resyncing: PacketWorld) -> None:
    """The counter of the rule shows that the packet has met the chain, whose policy would have dropped it."""
    cluster, chain = resyncing, ("nft", "list", "chain", "ip", "filter", "FORWARD")
    policy = "add table ip filter; add chain ip filter FORWARD { type filter hook forward priority 0; policy drop; }"
    cluster.in_node("node-1", "nft", policy)
    try:
        wait_until(lambda: cluster.in_node("node-1", *chain).count('comment "podlane"') == 2, "the rules")
        pod, marker = cluster.pods["red-a"], frames.new_marker()
        body = frames.udp(pod.address, cluster.lab.site.outside, marker)
        frame = frames.ethernet(mac_of(cluster.gateway("node-1")), pod.mac, frames.IPV4, body)
        assert cluster.leaves_cluster("red-a", frame, marker)
        assert re.search('iifname "tun0" counter packets [1-9]', cluster.in_node("node-1", *chain))
        assert "FORWARD chain is DROP" in cluster.log("node-1")
    finally:
        cluster.in_node("node-1", "nft", "delete", "table", "ip", "filter")


def test_dropped_packets_are_counted_by_reason(resyncing: PacketWorld) -> None:
    cluster = resyncing

    def dropped(reason: str, owner: str) -> int:
        text = cluster.in_node("node-1", "curl", "-s", "http://127.0.0.1:10249/metrics")
        labels = f'owner="{owner}",reason="{reason}"'
        actual = re.search(rf"podlane_sdn_dropped_packets{{{labels}}} ([0-9.e+]+)", text)
        return int(float(actual[1])) if actual else -1

    spoofed, nobody = ("spoofed", "pod red/red-a"), ("no_pod", "node")
    wait_until(lambda: dropped(*spoofed) >= 0, "the first count")
    before = {counter: dropped(*counter) for counter in (spoofed, nobody)}
    for _ in range(5):
        assert not arrives(cluster, "red-a", "red-b", ip_src=cluster.pods["red-c"].address)
        assert not arrives(cluster, "red-a", "red-b", ip_dst=IPv4Address("10.128.0.250"))
    wait_until(lambda: dropped(*spoofed) >= before[spoofed] + 5, "borrowed addresses are counted")
    wait_until(lambda: dropped(*nobody) >= before[nobody] + 5, "what may not arrive is counted")


def test_foreign_bridge_is_not_changed(cluster: PacketWorld) -> None:
    cluster.vsctl("node-2", "remove", "bridge", "br0", "external_ids", "podlane")
    cluster.kill("node-2 sdn")
    cluster.start("node-2 sdn")
    wait_until(lambda: "that Podlane did not make" in cluster.log("node-2"), "the refusal")
    cluster.vsctl("node-2", "set", "bridge", "br0", "external_ids:podlane=owner")
    wait_until(lambda: cluster.network_ready("node-2"), "the daemon")
