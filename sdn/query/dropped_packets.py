"""Finds, in the datapath's flows, the packets of pods that are dropped, and says so in an event. Pure.

The datapath keeps a flow (megaflow) for about ten seconds after its last packet. A flow that drops has the port of the
sender, because each pod has one, and as much of the destination as the decision needed.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from ipaddress import IPv4Address

from sdn.cniserver.pod_ports import PodIdentity
from sdn.pipeline.drops import DropReason

MAX_PACKETS, MAX_PACKETS_PER_POD = 256, 16
"""Different packets of one sample. A pod that scans the network makes thousands."""

_DATAPATH = re.compile(r"^(\S+@\S+):$", re.MULTILINE)
_FLOW_COUNT = re.compile(r"\(current (\d+)\)")
_IN_PORT = re.compile(r"in_port\(([^()]+)\)")
_DESTINATION = re.compile(r"ipv4\((?:[^()]*,)?dst=([0-9.]{7,15})(/[0-9.]+)?[,)]")
_PROTOCOL = re.compile(r"ipv4\((?:[^()]*,)?proto=(\d{1,3})[,)]")
_PORT = re.compile(r"(?:tcp|udp)\((?:[^()]*,)?dst=(\d{1,5})(/[0-9xa-f]+)?[,)]")
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


def dropped_packets(text: str, pods: Mapping[str, PodIdentity]) -> Iterator[DroppedPacket]:
    """Yield the different IPv4 packets of pods that are dropped, at most MAX_PACKETS, and few of each pod.

    `text` is the output of `dpctl/dump-flows --names`, `pods` are the pods by interface. A flow that covers more than
    one destination is skipped: which address the pod has used is not known.
    """
    seen: set[DroppedPacket] = set()
    pod_packets = Counter[PodIdentity]()
    for line in text.splitlines():
        if _DROP not in line or (packet := _dropped_packet(line, pods)) is None or packet in seen:
            continue
        if pod_packets[packet.pod] == MAX_PACKETS_PER_POD:
            continue
        seen.add(packet)
        pod_packets[packet.pod] += 1
        yield packet
        if len(seen) == MAX_PACKETS:
            return


def _dropped_packet(line: str, pods: Mapping[str, PodIdentity]) -> DroppedPacket | None:
    in_port, destination = _IN_PORT.search(line), _DESTINATION.search(line)
    pod = pods.get(in_port[1]) if in_port is not None else None
    if pod is None or destination is None or destination[2] not in (None, _EXACT):
        return None
    protocol, port = _PROTOCOL.search(line), _PORT.search(line)
    number = int(port[1]) if port is not None and port[2] in (None, "/0xffff") else 0
    name = _PROTOCOLS.get(protocol[1], "icmp") if protocol is not None and number else "icmp"
    return DroppedPacket(pod, IPv4Address(destination[1]), name, number)


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
    port = f"{packet.port}/{packet.protocol}" if packet.port else ""
    words = f" -p {port}" if port else ""
    command = f"podlane why {packet.pod.namespace}/{packet.pod.name} {packet.target}{words}"
    where = f"{packet.target} port {port}" if port else str(packet.target)
    return (
        f"packets to {where} are dropped: {SENTENCES[reason]}. "
        f"An administrator sees the reason and what would change it by: {command}"
    )
