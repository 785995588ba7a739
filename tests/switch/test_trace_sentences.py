"""Traces of real switches, with our names of tables, and the resulting sentences."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from ipaddress import IPv4Address, IPv4Network

import pytest

from api.network.queries import TraceRequest
from sdn.config import DNS_PORTS
from sdn.pipeline.compiler import compile_flows
from sdn.query.trace import InvalidTrace, trace_request
from sdn.topology import DOCKER_OFPORT, AttachedPod, DockerNetwork, Peer, docker_subnet
from tests.testbed.isolation.world import NODES
from tests.testbed.trace.dummy_switch import DummySwitch
from tests.testbed.trace.trace_command import hops, sentence_for
from tests.testbed.trace.trace_world import TraceWorld, populate

EXTERNAL = Peer("vm-host", IPv4Address("10.245.2.77"), IPv4Network("10.128.64.0/23"))
NEAR_BOX, OTHER_BOX, FAR_BOX = "10.128.1.130", "10.128.1.131", "10.128.3.130"


@pytest.fixture(scope="module")
def world() -> Iterator[TraceWorld]:
    """Red has multicast enabled, Docker's own containers have the VNID of blue, and one host is no node."""
    with ExitStack() as stack:
        made = populate({name: stack.enter_context(DummySwitch()) for name in NODES}, multitenant=True)
        for name, network in made.networks.items():
            docker = DockerNetwork(docker_subnet(network.node.subnet), DOCKER_OFPORT, 11)
            made.switches[name].add_ports({"vovsbr": DOCKER_OFPORT})
            node = replace(network.node, open_ports=DNS_PORTS | {("tcp", 5000)})
            made.networks[name] = replace(
                network, node=node, peers=network.peers | {EXTERNAL}, multicast=frozenset({10}), docker=docker
            )
            made.switches[name].replace(compile_flows(made.networks[name]))
        yield made


SENTENCES = {
    # IPv4 from pods
    "red/red-a red/red-b": "delivered: red/red-a reaches red/red-b on node-1",
    "red/red-a red/red-c --proto tcp --port 80": "delivered: red/red-a reaches red/red-c on node-2",
    "default/admin-a blue/blue-b": "delivered: default/admin-a reaches blue/blue-b on node-2",
    "red/red-a blue/blue-a": "dropped because red (VNID 10) may not reach blue (VNID 11)",
    "red/red-c blue/blue-a": "dropped because red (VNID 10) may not reach blue (VNID 11)",
    "red/red-a 8.8.8.8": "delivered: red/red-a reaches the outside, with the address of node-1",
    # nodes, and their firewall
    "red/red-a node-1": "delivered: red/red-a reaches node-1 itself by ICMP echo; "
    "of connections the firewall decides by the port, so name a protocol and a port",
    "red/red-a 10.245.2.3": "delivered: red/red-a reaches node-1 itself by ICMP echo; "
    "of connections the firewall decides by the port, so name a protocol and a port",
    "red/red-a 10.245.2.4": "delivered: red/red-a reaches node-2, with the address of node-1 by ICMP echo; "
    "of connections the firewall decides by the port, so name a protocol and a port",
    "red/red-a node-2": "delivered: red/red-a reaches node-2 itself by ICMP echo; "
    "of connections the firewall decides by the port, so name a protocol and a port",
    "red/red-a node-1 --proto tcp --port 22": "dropped because the firewall of node-1 rejects what comes from "
    "the pod network to tcp port 22 of node-1: podToNodePorts does not name it, unless it is a host port of a pod "
    "on node-1",
    "red/red-a 10.245.2.3 --proto tcp --port 22": "dropped because the firewall of node-1 rejects what comes from "
    "the pod network to tcp port 22 of node-1: podToNodePorts does not name it, unless it is a host port of a pod "
    "on node-1",
    "red/red-a 10.245.2.4 --proto tcp --port 22": "dropped because the firewall of node-1 rejects what comes from "
    "the pod network to tcp port 22 of node-2: podToNodePorts does not name it",
    "red/red-a node-2 --proto tcp --port 22": "dropped because the firewall of node-2 rejects what comes from "
    "the pod network to tcp port 22 of node-2: podToNodePorts does not name it, unless it is a host port of a pod "
    "on node-2",
    "red/red-a node-1 --proto udp --port 53": "delivered: red/red-a reaches node-1 itself",
    "red/red-a node-1 --proto tcp --port 5000": "delivered: red/red-a reaches node-1 itself",
    "red/red-a node-1 --proto udp --fragment later": "delivered: red/red-a reaches node-1 itself, "
    "if the firewall of node-1 accepts the port in the first fragment",
    "default/admin-a 10.245.2.3 --proto tcp --port 22": "delivered: default/admin-a reaches node-1 itself",
    f"{NEAR_BOX} node-1 --proto tcp --port 22": "dropped because the firewall of node-1 rejects what comes from "
    "the pod network to tcp port 22 of node-1: podToNodePorts does not name it, unless it is a host port of a pod "
    "on node-1",
    "node-1 node-2 --proto tcp --port 22": "dropped because the firewall of node-2 rejects what comes from "
    "the pod network to tcp port 22 of node-2: podToNodePorts does not name it, unless it is a host port of a pod "
    "on node-2",
    "red/red-a 10.131.0.9": "dropped because 10.131.0.9 belongs to no node's subnet",
    "red/red-a 172.30.0.1": "dropped because 172.30.0.1 is a service address, and no service has it",
    "red/red-a 10.128.0.200": "dropped because no pod on node-1 has the address 10.128.0.200",
    "red/red-a 10.128.2.200": "dropped because no pod on node-2 has the address 10.128.2.200",
    "red/red-a red/red-a": "delivered: red/red-a reaches red/red-a on node-1",
    "red/red-a 10.128.64.9": "forwarded to vm-host (10.245.2.77): "
    "this host runs no podlane-sdn, so the trace ends here",
    # loopback addresses, broadcast and multicast
    "red/red-a 127.0.0.1 --proto tcp --port 22": "dropped because 127.0.0.1 is an address of processes of one host: "
    "the switch forwards nothing to 127.0.0.0/8",
    "red/red-a 255.255.255.255": "dropped because broadcast is not allowed",
    "red/red-a 10.128.1.255": "dropped because red (VNID 10) may not reach containers outside of any pod (VNID 11)",
    "red/red-a red/red-c --target-mac ff:ff:ff:ff:ff:ff": "delivered: red/red-a reaches red/red-c on node-2",
    "red/red-a 224.0.0.5": "delivered: red/red-a reaches red/red-b on node-1, red/red-c on node-2",
    "blue/blue-a 224.0.0.5": "dropped because multicast is disabled for blue (VNID 11)",
    "red/red-c 224.0.0.5 --from-tunnel node-2 --vnid 11 --on node-1": "dropped because "
    "multicast is disabled for VNID 11",
    # through the gateway, fragments, tags, MACs
    "red/red-a red/red-c --target-mac 0a:58:0a:80:00:01": "delivered: red/red-a reaches red/red-c on node-2",
    "red/red-a blue/blue-a --target-mac 0a:58:0a:80:00:01": "dropped because "
    "red (VNID 10) may not reach blue (VNID 11)",
    "red/red-a red/red-c --proto udp --fragment later": "delivered: red/red-a reaches red/red-c on node-2",
    "red/red-a blue/blue-b --proto tcp --fragment later": "dropped because red (VNID 10) may not reach blue (VNID 11)",
    "red/red-a red/red-b --vlan 10": "dropped because red/red-a's frames may carry no VLAN tag",
    "red/red-a red/red-b --vlan 0": "dropped because red/red-a's frames may carry no VLAN tag",
    "red/red-a red/red-b --source-mac 0a:58:0a:80:00:03": "dropped because 0a:58:0a:80:00:03 is not red/red-a's MAC",
    "red/red-a red/red-b --source-address 10.128.0.9": "dropped because 10.128.0.9 is not red/red-a's address",
    "red/red-a 10.245.2.4 --proto udp --port 4789 --fragment first": "dropped because red/red-a may not send VXLAN "
    "to the outside: the firewall of node-1 puts the fragments together and drops them",
    "red/red-a 10.245.2.4 --proto udp --port 4790 --fragment first": "dropped because the firewall of node-1 rejects "
    "what comes from the pod network to udp port 4790 of node-2: podToNodePorts does not name it",
    # IPv6 and ARP
    "red/red-a red/red-b --proto ipv6": "dropped because it is IPv6, which the pod network does not carry",
    "red/red-a red/red-b --proto arp": "answered: the switch of node-1 gives red/red-a the MAC of red/red-b, "
    "0a:58:0a:80:00:03",
    "red/red-a node-1 --proto arp": "answered: the switch of node-1 gives red/red-a the MAC of node-1, "
    "0a:58:0a:80:00:01",
    "red/red-a red/red-c --proto arp": "answered: the switch of node-1 gives red/red-a the MAC of red/red-c, "
    "0a:58:0a:80:02:04",
    "red/red-a 10.128.0.200 --proto arp": "dropped because no pod on node-1 has the address 10.128.0.200",
    "red/red-a 8.8.8.8 --proto arp": "dropped because 8.8.8.8 is no address of the cluster: "
    "the switch answers for no other",
    "red/red-a red/red-a --proto arp": "dropped because the switch ignores announcements: red/red-a has the address "
    "10.128.0.2",
    "red/red-a red/red-b --proto arp --source-address 10.128.0.9": "dropped because 10.128.0.9 is not red/red-a's "
    "address",
    "red/red-a red/red-b --proto arp-reply": "dropped because only the switch answers ARP requests: "
    "no ARP packet reaches another pod",
    # VXLAN by hand, and tunnels of strangers and peers
    "red/red-a 10.245.2.4 --proto udp --port 4789": "dropped because red/red-a may not send VXLAN to the outside: "
    "nodes would accept it as a tunnel packet",
    "red/red-c red/red-a --from-tunnel node-2 --vnid 10": "delivered: red/red-c reaches red/red-a on node-1",
    "red/red-c red/red-a --from-tunnel 10.9.9.9 --vnid 10": "dropped because "
    "node-1 rejects tunnel packets from 10.9.9.9: "
    "no node has this address",
    "red/red-c red/red-a --from-tunnel node-1 --vnid 10": "dropped because "
    "node-1 rejects tunnel packets from 10.245.2.3: "
    "it is the node's own address",
    "red/red-c red/red-a --from-tunnel vm-host --vnid 10": "dropped because "
    "node-1 rejects tunnel packets from 10.245.2.77: "
    "10.128.2.0/23 is the subnet of node-2",
    "10.131.0.9 red/red-a --from-tunnel node-2 --vnid 10": "dropped because "
    "node-1 rejects tunnel packets from 10.245.2.4: "
    "10.131.0.9 is in no node's subnet",
    "red/red-b red/red-a --from-tunnel node-2 --vnid 10": "dropped because "
    "node-1 rejects tunnel packets from 10.245.2.4: "
    "10.128.0.0/23 is the subnet of node-1",
    "red/red-c red/red-a --from-tunnel node-2 --vnid 12": "dropped because VNID 12 may not reach red (VNID 10)",
    "red/red-c red/red-a --from-tunnel node-2 --vnid 11": "dropped because VNID 11 may not reach red (VNID 10)",
    "blue/blue-b red/red-a --from-tunnel node-2 --vnid 11": "dropped because "
    "blue (VNID 11) may not reach red (VNID 10)",
    "red/red-c 10.128.64.9 --from-tunnel node-2 --vnid 10 --on node-1": "dropped because 10.128.64.9 "
    "is in the subnet of vm-host, and node-1 does not forward packets from tunnels",
    "red/red-c 8.8.8.8 --from-tunnel node-2 --vnid 0 --on node-1": "dropped because 8.8.8.8 is not in 10.128.0.0/23, "
    "and node-1 does not forward packets from tunnels",
    "red/red-c red/red-a --from-tunnel node-2 --vnid 10 --vlan 7": "dropped because frames in a tunnel may carry "
    "no VLAN tag",
    "red/red-c red/red-a --from-tunnel node-2 --vnid 10 --proto arp": "dropped because no ARP packet goes through "
    "a tunnel: the switch of each node answers by itself",
    "red/red-c red/red-a --from-tunnel node-2 --vnid 0 --proto ipv6": "dropped because it is IPv6, "
    "which the pod network does not carry",
    # from a node and from outside
    "node-1 red/red-a": "delivered: node-1 reaches red/red-a on node-1",
    "node-1 red/red-c": "delivered: node-1 reaches red/red-c on node-2",
    "node-1 node-2": "delivered: node-1 reaches node-2 itself by ICMP echo; of connections the firewall "
    "decides by the port, so name a protocol and a port",
    "node-1 8.8.8.8": "dropped because node-1 sends to 8.8.8.8 by its other links: "
    "only addresses of the cluster are reached through br0",
    "node-1 red/red-c --source-address 10.128.0.2": "dropped because 10.128.0.2 is not node-1's address",
    "node-1 red/red-a --proto arp": "answered: the switch of node-1 gives node-1 the MAC of red/red-a, "
    "0a:58:0a:80:00:02",
    "node-1 red/red-a --proto arp --source-mac 02:00:00:00:00:01": "dropped because 02:00:00:00:00:01 is not "
    "node-1's MAC",
    "node-1 red/red-a --vlan 3": "dropped because node-1's frames may carry no VLAN tag",
    "node-1 red/red-a --proto ipv6": "dropped because it is IPv6, which the pod network does not carry",
    "8.8.8.8 red/red-a --from-outside --proto tcp --port 80": "delivered: 8.8.8.8 reaches red/red-a on node-1, "
    "if it is a reply or for a host port: the firewall of node-1 drops all other external packets",
    "8.8.8.8 red/red-a --from-outside --on node-2": "dropped because red/red-a is not in 10.128.2.0/23: "
    "external packets are for node-2 only",
    "red/red-c red/red-a --from-outside": "dropped because 10.128.2.4 is an address of the cluster, "
    "and does not come from outside",
    "8.8.8.8 red/red-a --from-outside --proto arp": "dropped because 8.8.8.8 is not node-1's address",
    # containers outside of any pod
    f"{NEAR_BOX} blue/blue-a": f"delivered: {NEAR_BOX} reaches blue/blue-a on node-1",
    f"{NEAR_BOX} blue/blue-b": f"delivered: {NEAR_BOX} reaches blue/blue-b on node-2",
    f"{NEAR_BOX} red/red-c": "dropped because containers outside of any pod (VNID 11) may not reach red (VNID 10)",
    f"{NEAR_BOX} 8.8.8.8": f"delivered: {NEAR_BOX} reaches the outside, with the address of node-1",
    f"blue/blue-a {NEAR_BOX}": "delivered: blue/blue-a reaches Docker's bridge on node-1, "
    f"where a container may have {NEAR_BOX}",
    f"blue/blue-a {FAR_BOX}": "delivered: blue/blue-a reaches Docker's bridge on node-2, "
    f"where a container may have {FAR_BOX}",
    f"red/red-a {FAR_BOX}": "dropped because red (VNID 10) may not reach containers outside of any pod (VNID 11)",
    f"{NEAR_BOX} blue/blue-a --source-address 10.128.0.5": "dropped because 10.128.0.5 is not in 10.128.1.128/25, "
    "from which Docker gives addresses on node-1",
    f"{NEAR_BOX} {OTHER_BOX}": "dropped because it would leave by the port through which it came, "
    "and the switch of node-1 sends nothing back",
    f"{NEAR_BOX} {OTHER_BOX} --proto arp": f"dropped because {OTHER_BOX} is a container outside of any pod as well: "
    "they reach each other without the switch",
    f"{NEAR_BOX} blue/blue-a --proto arp": f"answered: the switch of node-1 gives {NEAR_BOX} the MAC of blue/blue-a, "
    "0a:58:0a:80:00:05",
    f"{NEAR_BOX} blue/blue-a --vlan 1": f"dropped because {NEAR_BOX}'s frames may carry no VLAN tag",
    f"{NEAR_BOX} blue/blue-a --proto ipv6": "dropped because it is IPv6, which the pod network does not carry",
    f"{NEAR_BOX} 10.245.2.4 --proto udp --port 4789": f"dropped because {NEAR_BOX} may not send VXLAN to the outside: "
    "nodes would accept it as a tunnel packet",
}


@pytest.mark.parametrize(("words", "expected"), SENTENCES.items())
def test_trace_sentence_states_the_outcome_of_a_packet(world: TraceWorld, words: str, expected: str) -> None:
    assert sentence_for(world, words) == expected


@pytest.mark.parametrize(
    ("words", "reasons"),
    [
        ("red/red-a blue/blue-a", ["other_project"]),
        ("red/red-c blue/blue-a", ["other_project"]),
        ("red/red-a 172.30.0.1", ["no_service"]),
        ("red/red-a 10.128.0.200", ["no_pod"]),
        ("red/red-a red/red-b --source-address 10.128.0.9", ["spoofed"]),
        ("red/red-c red/red-a --from-tunnel 10.9.9.9 --vnid 10", ["unknown_tunnel_peer"]),
        ("red/red-a red/red-c", []),
    ],
)
def test_trace_step_that_drops_has_the_reason_of_the_metric(world: TraceWorld, words: str, reasons: list[str]) -> None:
    traced = [step.drop_reason for hop in hops(world, words) for step in hop.result.steps]
    assert [reason for reason in traced if reason] == reasons
    assert traced[-1:] == (reasons or [""])


def test_trace_sentence_states_that_multicast_has_no_receiver(world: TraceWorld) -> None:
    network = world.networks["node-1"]
    lonely = replace(network, pods=frozenset(pod for pod in network.pods if pod.vnid != 10 or pod.ofport == 16))
    world.switches["node-1"].replace(compile_flows(lonely))
    words = "red/red-c 224.0.0.5 --from-tunnel node-2 --vnid 10 --on node-1"
    assert sentence_for(world, words) == "delivered: red/red-c reaches red/red-a on node-1"
    nobody = replace(network, pods=frozenset(pod for pod in network.pods if pod.vnid != 10))
    world.switches["node-1"].replace(compile_flows(nobody))
    try:
        assert sentence_for(world, words) == "dropped because no other pod receives multicast of red (VNID 10)"
        assert sentence_for(world, "blue/blue-a red/red-b").startswith(
            "dropped because blue (VNID 11) may not reach red"
        )
        assert (
            sentence_for(world, "default/admin-a red/red-a")
            == "dropped because red/red-a is not attached to the switch of node-1"
        )
    finally:
        world.switches["node-1"].replace(compile_flows(network))


def steps(world: TraceWorld, words: str) -> list[tuple[str, str, str]]:
    """Node, table and owner, one by one."""
    return [(hop.node, step.table, step.owner) for hop in hops(world, words) for step in hop.result.steps]


def test_trace_lists_the_tables_between_pods_of_one_node(world: TraceWorld) -> None:
    assert steps(world, "red/red-a red/red-b") == [
        ("node-1", "classifier", "pod 10.128.0.2"),
        ("node-1", "service_conntrack", "node node-1"),
        ("node-1", "l3_forwarding", "node node-1"),
        ("node-1", "endpoint_lookup", "node node-1"),
        ("node-1", "service_undnat", "node node-1"),
        ("node-1", "pod_output", "pod 10.128.0.3"),
    ]


def test_trace_lists_the_tables_between_pods_of_two_nodes(world: TraceWorld) -> None:
    words = "red/red-a red/red-c"
    assert steps(world, words) == [
        ("node-1", "classifier", "pod 10.128.0.2"),
        ("node-1", "service_conntrack", "node node-1"),
        ("node-1", "l3_forwarding", "node node-2"),
        ("node-2", "classifier", "node node-1"),
        ("node-2", "endpoint_lookup", "node node-2"),
        ("node-2", "service_undnat", "node node-2"),
        ("node-2", "pod_output", "pod 10.128.2.4"),
    ]
    first, second = hops(world, words)
    assert (first.result.outputs, first.result.vnid) == (("tunnel 10.245.2.4",), 10)
    assert (second.request.tunnel_source, second.request.vnid) == ("10.245.2.3", 10)
    assert (second.result.outputs, second.result.vnid) == (("pod 10.128.2.4",), 10)


def test_trace_lists_the_tables_to_the_outside_and_back(world: TraceWorld) -> None:
    assert steps(world, "red/red-a 8.8.8.8") == [
        ("node-1", "classifier", "pod 10.128.0.2"),
        ("node-1", "service_conntrack", "node node-1"),
        ("node-1", "l3_forwarding", "node node-1"),
        ("node-1", "external_output", "node node-1"),
    ]
    assert steps(world, "8.8.8.8 red/red-a --from-outside") == [
        ("node-1", "classifier", "node node-1"),
        ("node-1", "endpoint_lookup", "node node-1"),
        ("node-1", "service_undnat", "node node-1"),
        ("node-1", "pod_output", "pod 10.128.0.2"),
    ]


def test_trace_of_an_unknown_pod_is_rejected(world: TraceWorld) -> None:
    network = world.networks["node-1"]
    pod_without_vnid = AttachedPod("s", "green", 99, IPv4Address("10.128.0.77"))
    for enters, sender, changed, reason in (
        ("pod", "10.128.0.78", network, "no pod on node-1 has the address 10.128.0.78"),
        (
            "pod",
            "10.128.0.77",
            replace(network, pods_without_vnid=(pod_without_vnid,)),
            "its project green has no VNID",
        ),
        ("docker", "10.128.0.78", network, "and Docker gives those of 10.128.1.128/25"),
        ("docker", "10.128.0.78", replace(network, docker=None), "and Docker has no bridge there"),
    ):
        packet = TraceRequest(enters=enters, sender=sender, source=sender, target="10.128.0.2")
        with pytest.raises(InvalidTrace, match=reason):
            trace_request(packet, changed)
