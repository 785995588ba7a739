"""Finds, in the datapath's flows, the packets from and to pods that are dropped, and says so in events. Pure.

The datapath keeps a flow (megaflow) for about ten seconds after its last packet. A flow that drops has the port of the
sender, because each pod has one, and as much of the destination as the decision needed. If the packet came through the
tunnel, it has the sending node and the VNID in place of the sender.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from ipaddress import IPv4Address
from typing import Protocol, TypeVar

from sdn.cniserver.pod_ports import PodIdentity
from sdn.pipeline.drops import DropReason
from sdn.proxy.service_ports import Key

MAX_PACKETS_PER_POD = 16
"""Different packets of a pod in one sample. A pod that scans the network makes thousands."""

_DATAPATH = re.compile(r"^(\S+@\S+):$", re.MULTILINE)
_FLOW_COUNT = re.compile(r"\(current (\d+)\)")
_IN_PORT = re.compile(r"in_port\(([^()]+)\)")
_DESTINATION = re.compile(r"ipv4\((?:[^()]*,)?dst=([0-9.]{7,15})(/[0-9.]+)?[,)]")
_PROTOCOL = re.compile(r"ipv4\((?:[^()]*,)?proto=(\d{1,3})[,)]")
_PORT = re.compile(r"(?:tcp|udp)\((?:[^()]*,)?dst=(\d{1,5})(/[0-9xa-f]+)?[,)]")
_TUNNEL = re.compile(r"tunnel\((?:[^()]*,)?tun_id=0x([0-9a-f]{1,8})(?:/0xf+)?,src=([0-9.]{7,15})(/[0-9.]+)?,")
_NOT_FIRST = re.compile(r"ct_state\([^()]*(?:-new|\+est|\+rel)")
_PROTOCOLS = {"1": "icmp", "6": "tcp", "17": "udp"}
_EXACT = "/255.255.255.255"

_DROP = "actions:drop"


@dataclass(frozen=True, slots=True)
class DatapathSize:
    """A datapath (TYPE@NAME), and how many flows it has now."""

    name: str
    flows: int


def datapath_size(text: str) -> DatapathSize | None:
    """Return the datapath in the output of `upcall/show`; None unless there is exactly one."""
    names, counts = _DATAPATH.findall(text), _FLOW_COUNT.findall(text)
    return DatapathSize(names[0], int(counts[0])) if len(names) == len(counts) == 1 else None


@dataclass(frozen=True, slots=True, order=True)
class DroppedPacket:
    """A packet of a pod that was dropped. `port` is 0 if it did not matter, `protocol` is icmp then."""

    pod: PodIdentity
    target: IPv4Address
    protocol: str
    port: int


@dataclass(frozen=True, slots=True, order=True)
class RefusedPacket:
    """A packet to a pod of this node that was dropped here. It was sent on `node`, by a pod with this VNID."""

    pod: PodIdentity
    node: IPv4Address
    vnid: int


class PacketOfPod(Protocol):
    """A packet that a pod has sent or should have received."""

    @property
    def pod(self) -> PodIdentity:
        """The pod that gets an event."""

    def __hash__(self) -> int: ...


P = TypeVar("P", bound=PacketOfPod)


def dropped_packets(text: str, pods: Mapping[str, PodIdentity]) -> Iterator[DroppedPacket]:
    """Yield the different IPv4 packets of pods that are dropped, few of each pod.

    `text` is the output of `dpctl/dump-flows --names`, `pods` are the pods by interface. A flow that covers more than
    one destination is skipped: which address the pod has used is not known. So are all but the first packets of
    connections to services: they have the address of an endpoint, which the client has not used, and may not know, or
    are of a connection that the node has forgotten.
    """
    return _few_of_each_pod(_dropped_packet(line, pods) for line in text.splitlines() if _DROP in line)


def refused_packets(text: str, pods: Mapping[str, PodIdentity]) -> Iterator[RefusedPacket]:
    """Yield the different packets from other nodes to pods that are dropped here, few of each pod."""
    by_address = {str(pod.address): pod for pod in pods.values()}
    return _few_of_each_pod(_refused_packet(line, by_address) for line in text.splitlines() if _DROP in line)


def _few_of_each_pod(packets: Iterable[P | None]) -> Iterator[P]:
    """Yield the different packets, and few of each pod."""
    seen: set[P] = set()
    pod_packets = Counter[PodIdentity]()
    for packet in packets:
        if packet is None or packet in seen or pod_packets[packet.pod] == MAX_PACKETS_PER_POD:
            continue
        seen.add(packet)
        pod_packets[packet.pod] += 1
        yield packet


def _dropped_packet(line: str, pods: Mapping[str, PodIdentity]) -> DroppedPacket | None:
    in_port, destination = _IN_PORT.search(line), _DESTINATION.search(line)
    pod = pods.get(in_port[1]) if in_port is not None else None
    if pod is None or destination is None or destination[2] not in (None, _EXACT) or _NOT_FIRST.search(line):
        return None
    protocol, port = _PROTOCOL.search(line), _PORT.search(line)
    number = int(port[1]) if port is not None and port[2] in (None, "/0xffff") else 0
    name = _PROTOCOLS.get(protocol[1], "icmp") if protocol is not None and number else "icmp"
    return DroppedPacket(pod, IPv4Address(destination[1]), name, number)


def _refused_packet(line: str, pods: Mapping[str, PodIdentity]) -> RefusedPacket | None:
    tunnel, destination = _TUNNEL.search(line), _DESTINATION.search(line)
    if tunnel is None or tunnel[3] not in (None, _EXACT) or destination is None or destination[2] not in (None, _EXACT):
        return None
    pod = pods.get(destination[1])
    return None if pod is None else RefusedPacket(pod, IPv4Address(tunnel[2]), int(tunnel[1], 16))


_UNREACHABLE = "nothing that this project may reach is there"

SENTENCES = {
    DropReason.NO_SERVICE.label: _UNREACHABLE,
    DropReason.OTHER_PROJECT.label: _UNREACHABLE,
    DropReason.NO_POD.label: _UNREACHABLE,
    DropReason.NO_ROUTE.label: _UNREACHABLE,
    DropReason.VXLAN_FROM_POD.label: "pods may not send VXLAN out of the cluster",
}
"""What an event says, by drop reason; for other reasons there is no event. The sender's project reads it: whether the
address is that of another project's pod or of none, the text must not tell."""


def event_message(packet: DroppedPacket, reason: str) -> str:
    """Return the message of the event about a dropped packet, with the command that names the cause."""
    words = f" -p {_port_text(packet)}" if packet.port else ""
    command = f"podlane why {packet.pod.namespace}/{packet.pod.name} {packet.target}{words}"
    return (
        f"packets to {_target_text(packet)} are dropped: {SENTENCES[reason]}. "
        f"An administrator sees the reason and what would change it by: {command}"
    )


def missing_port_message(packet: DroppedPacket, service: Key) -> str:
    """Return the message of the event about a packet to a service that its sender may use, but not at this port."""
    namespace, name = service
    problem = f"it has no port {_port_text(packet)}" if packet.port else "none of its ports accepts them"
    return (
        f"packets to {_target_text(packet)}, the service {namespace}/{name}, are dropped: {problem}. "
        f"To see its ports: kubectl get service -n {namespace} {name}"
    )


_ISOLATED = "are dropped, because projects are isolated"


def refused_message(pod: PodIdentity) -> str:
    """Return the message of the event on a pod that should have received a packet of another project.

    It is the same for all senders: the pod's project must not learn who they are and where they run.
    """
    return f"packets from a pod of another project {_ISOLATED}. {_join_hint(pod.namespace)}"


def service_message(packet: DroppedPacket, service: Key, *, is_usable: bool) -> str:
    """Return the message of the event on a service to which a packet was sent. `is_usable`: its sender may use it.

    The port is named only if it comes from the service's own project: another one could make an event for each port.
    """
    namespace, name = service
    if not is_usable:
        return f"packets from a pod of another project to this service {_ISOLATED}. {_join_hint(namespace)}"
    change = f"To add a port: kubectl edit service -n {namespace} {name}"
    if packet.pod.namespace != namespace:
        return f"packets from a pod of another project to this service are dropped: it lacks their port. {change}"
    if packet.port:
        return f"packets to port {_port_text(packet)} of this service are dropped: it has no such port. {change}"
    return f"packets to this service are dropped: none of its ports accepts them. {change}"


def _join_hint(project: str) -> str:
    return f"An administrator lets another project in by: podlane network join PROJECT --to {project}"


def _port_text(packet: DroppedPacket) -> str:
    return f"{packet.port}/{packet.protocol}"


def _target_text(packet: DroppedPacket) -> str:
    return f"{packet.target} port {_port_text(packet)}" if packet.port else str(packet.target)
