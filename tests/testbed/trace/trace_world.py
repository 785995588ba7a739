"""A cluster on Open vSwitch's dummy datapath: no root, no packets, answers by trace."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from ipaddress import IPv4Address, IPv4Network

from sdn.pipeline.compiler import compile_flows
from sdn.topology import GATEWAY_OFPORT, VXLAN_OFPORT, Cluster, Node, NodeNetwork, Peer, Pod
from tests.testbed.isolation.world import NODES, PODS, RunningPod
from tests.testbed.trace.dummy_switch import DummySwitch

HASHES = (1, 2, 3)
CLUSTER = Cluster((IPv4Network("10.128.0.0/14"),), IPv4Network("172.30.0.0/16"), True, 4789, 1450)


@dataclass(slots=True)
class TraceWorld:
    """A cluster with one dummy switch a node. A frame that enters the tunnel is traced in the peer's switch too."""

    switches: dict[str, DummySwitch]
    networks: dict[str, NodeNetwork]
    vnids: dict[str, int]
    pods: dict[str, RunningPod]
    ports: dict[str, int] = field(default_factory=dict)

    def vnid(self, project: str) -> int:
        return self.vnids[project]

    def node_address(self, node: str) -> IPv4Address:
        return self.networks[node].node.address

    def gateway(self, node: str) -> IPv4Address:
        return self.networks[node].node.gateway

    def delivers(self, source: str, target: str, frame: bytes, marker: bytes) -> bool:
        assert marker in frame
        pod = self.pods[source]
        return (self.pods[target].node, self.ports[target]) in self._follow(
            pod.node, f"in_port={self.ports[source]}", frame
        )

    def leaves_cluster(self, source: str, frame: bytes, marker: bytes) -> bool:
        assert marker in frame
        pod = self.pods[source]
        return (pod.node, GATEWAY_OFPORT) in self._follow(pod.node, f"in_port={self.ports[source]}", frame)

    def ends(self, source: str, frame: bytes) -> set[tuple[str, int]]:
        """Return every (node, OpenFlow port) at which a frame of `source` leaves a switch, for several hashes of its
        connection.
        """
        node, port = self.pods[source].node, self.ports[source]
        return set().union(*(self._follow(node, f"in_port={port},dp_hash={number}", frame) for number in HASHES))

    def delivers_from_tunnel(
        self, sender: IPv4Address, node: str, vnid: int, target: str, frame: bytes, marker: bytes
    ) -> bool:
        assert marker in frame
        return (self.pods[target].node, self.ports[target]) in self._follow(
            node, self._tunnel(sender, node, vnid), frame
        )

    def _tunnel(self, sender: IPv4Address, node: str, vnid: int) -> str:
        """Return the fields of a packet from a tunnel. Without tun_dst the switch takes it for one that is not from a
        tunnel.
        """
        return f"in_port={VXLAN_OFPORT},tun_src={sender},tun_dst={self.node_address(node)},tun_id={vnid}"

    def _follow(self, node: str, flow: str, frame: bytes) -> set[tuple[str, int]]:
        """Return every (node, OpenFlow port) at which the frame leaves a switch."""
        text = self.switches[node].trace(flow, frame)
        assert "Datapath actions" in text, text
        outputs = {int(port) for port in re.findall(r"^\s+output:(\d+)$", text, re.MULTILINE)}
        places = {(node, port) for port in outputs - {VXLAN_OFPORT}}
        if VXLAN_OFPORT in outputs:
            [key] = re.findall(r"TUN_ID\[0\.\.31\] is now (0x[0-9a-f]+)", text) or ["0x0"]
            [far] = re.findall(r"set_field:([0-9.]+)->tun_dst", text)
            sender = self.networks[node].node.address
            peer = next(name for name, network in self.networks.items() if str(network.node.address) == far)
            places |= self._follow(peer, self._tunnel(sender, peer, int(key, 16)), _as_translated(text, frame))
        return places


def _as_translated(text: str, frame: bytes) -> bytes:
    """Return an untagged frame with the destination address and port after connection tracking, as the trace reports
    them.
    """
    actual = re.findall(r"^ Modified flow: .*nw_dst=([0-9.]+),tp_dst=(\d+)$", text, re.MULTILINE)
    if not actual:
        return frame
    address, port = actual[-1]
    return frame[:30] + IPv4Address(address).packed + frame[34:36] + int(port).to_bytes(2, "big") + frame[38:]


def networks_of(
    nodes: Mapping[str, Node], pods: Mapping[str, RunningPod], ports: Mapping[str, int], vnids: Mapping[str, int]
) -> dict[str, NodeNetwork]:
    """Return the desired network of each node."""
    return {
        name: NodeNetwork(
            CLUSTER,
            node,
            frozenset(Peer(other.name, other.address, other.subnet) for other in nodes.values() if other != node),
            frozenset(
                Pod(ports[pod.name], pod.address, vnids[pod.project]) for pod in pods.values() if pod.node == name
            ),
        )
        for name, node in nodes.items()
    }


def build(multitenant: bool) -> tuple[dict[str, NodeNetwork], dict[str, int], dict[str, RunningPod], dict[str, int]]:
    """Return the networks, the VNIDs, the pods by name and the port numbers of the standard cluster."""
    vnids = {"default": 0, "red": 10, "blue": 11} if multitenant else dict.fromkeys(("default", "red", "blue"), 0)
    nodes = {
        name: Node(name, IPv4Address("10.245.2.3") + number, IPv4Network((0x0A800000 + 512 * number, 23)))
        for number, name in enumerate(NODES)
    }
    pods, ports = {}, {}
    for number, planned_pod in enumerate(PODS):
        address = nodes[planned_pod.node].subnet.network_address + 2 + number
        pods[planned_pod.name] = RunningPod(planned_pod.name, planned_pod.project, planned_pod.node, address)
        ports[planned_pod.name] = 16 + number
    networks = networks_of(nodes, pods, ports, vnids)
    return networks, vnids, pods, ports


def populate(switches: dict[str, DummySwitch], multitenant: bool) -> TraceWorld:
    """Give every switch its ports and flows."""
    networks, vnids, pods, ports = build(multitenant)
    for name, switch in switches.items():
        here = {pod: port for pod, port in ports.items() if pods[pod].node == name}
        switch.add_ports({"vxlan0": VXLAN_OFPORT, "tun0": GATEWAY_OFPORT, **here})
        switch.replace(compile_flows(networks[name]))
    return TraceWorld(switches, networks, vnids, pods, ports)
