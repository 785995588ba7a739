"""Hosts, pods and services of the cluster, and the next switch on the way of a packet. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from ipaddress import IPv4Address, IPv4Network

from msgspec.structs import replace

from api.network.queries import TraceRequest, TraceResult


@dataclass(frozen=True, slots=True)
class Host:
    """Who sends or receives.

    A pod has name, project and node; a node's own network stack has name and node; a container outside of any pod, or
    an address of a node's subnet that nobody has, has a node; a service, which only receives, has a name; an address
    outside has nothing else.
    """

    address: IPv4Address
    name: str = ""
    project: str = ""
    node: str = ""

    def __str__(self) -> str:
        return self.name or str(self.address)

    @property
    def enters(self) -> str:
        """How its packets enter the switch, as a TraceQuestion says it; empty where none does."""
        if self.project:
            return "pod"
        if self.name and self.node:
            return "node"
        return "docker" if self.node else ""


@dataclass(frozen=True, slots=True)
class Frontend:
    """Where a service is called: `name` is PROJECT/SERVICE, `protocol` tcp or udp."""

    name: str
    address: IPv4Address
    protocol: str
    port: int


@dataclass(frozen=True, slots=True)
class Hop:
    """One switch: what it was asked and what it said."""

    node: str
    asked: TraceRequest
    answer: TraceResult


@dataclass(frozen=True, slots=True)
class ClusterTopology:
    """What the API says: pods, VNIDs by project, addresses and subnets by host, and the networks.

    `nodes` are the hosts that have an sdn daemon to ask; `guests` are the hosts of pods in their host's network;
    `fronts` are those of all services, in the order of their ports; `services` is the network of their cluster IPs.
    """

    pods: tuple[Host, ...]
    vnids: Mapping[str, int]
    subnets: Mapping[str, IPv4Network]
    addresses: Mapping[str, IPv4Address]
    nodes: frozenset[str]
    networks: tuple[IPv4Network, ...]
    services: IPv4Network
    vxlan_port: int
    guests: Mapping[str, str] = field(default_factory=dict)
    fronts: tuple[Frontend, ...] = ()

    def end(self, text: str) -> Host | None:
        """Whom PROJECT/POD, a node's name, PROJECT/SERVICE or an address means; None where it is none of these.

        A pod in its host's network sends and receives as the host.
        """
        text = self.guests.get(text, text)
        pod = find_pod(text, self.pods)
        if pod is not None:
            return pod
        if text in self.nodes & self.subnets.keys():
            return Host(self.gateway(text), text, node=text)
        front = next((one for one in self.fronts if text in {one.name, str(one.address)}), None)
        if front is not None:
            return Host(front.address, front.name)
        try:
            address = IPv4Address(text)
        except ValueError:
            return None
        node = self.behind(address)
        if node in self.nodes:
            return Host(address, node if address == self.gateway(node) else "", node=node)
        return Host(address)

    def gateway(self, host: str) -> IPv4Address:
        """The address of a node's own network stack on the cluster network."""
        return self.subnets[host].network_address + 1

    def behind(self, address: IPv4Address) -> str:
        """The host in whose subnet an address lies; empty where there is none."""
        return next((host for host, subnet in self.subnets.items() if address in subnet), "")

    def host_at(self, address: IPv4Address) -> str:
        """The host whose tunnel ends at an address; empty where there is none."""
        return next((host for host, own in self.addresses.items() if own == address), "")

    def lane(self, end: Host, vnid: int) -> str:
        """The project of an end with its VNID, unless the packet has got another one."""
        if self.vnids.get(end.project) == vnid:
            return f"{end.project} (VNID {vnid})"
        return f"containers outside of any pod (VNID {vnid})" if end.enters == "docker" else f"VNID {vnid}"

    def front(self, address: IPv4Address, port: int = 0, protocol: str = "") -> Frontend | None:
        """Where a service is called at this address: the first that has this port and protocol, as far as given."""
        fronts = (one for one in self.fronts if one.address == address)
        return next((one for one in fronts if port in {0, one.port} and protocol in {"", one.protocol}), None)

    def is_inside(self, address: IPv4Address) -> bool:
        """Whether the cluster network has this address."""
        return any(address in network for network in self.networks)


@dataclass(frozen=True, slots=True)
class Drop:
    """From whom to whom, and the switch that drops it."""

    source: Host
    target: Host
    last: Hop
    known: ClusterTopology

    @property
    def claimed(self) -> IPv4Address:
        """The address that the packet says it comes from."""
        return IPv4Address(self.last.asked.source)

    @property
    def lane(self) -> str:
        """The project of the sender with its VNID, unless the packet has got another one."""
        return self.known.lane(self.source, self.last.answer.vnid)

    @property
    def docker(self) -> IPv4Network | None:
        """The addresses of this node's containers outside of any pod."""
        docker = self.last.answer.docker
        return None if docker is None else IPv4Network(docker.subnet)


def find_pod(text: str, pods: Iterable[Host]) -> Host | None:
    """The pod that PROJECT/POD or an address means."""
    return next((pod for pod in pods if text in {pod.name, str(pod.address)}), None)


def next_hops(hop: Hop, known: ClusterTopology) -> Iterator[tuple[str, TraceRequest]]:
    """The nodes into whose tunnel the packet goes, and what comes out of it there.

    A service has given it the endpoint's address; what it led from a node's own network stack has the gateway's source.
    """
    asked = hop.asked
    if hop.answer.endpoint:
        address, _, port = hop.answer.endpoint.partition(":")
        asked = replace(asked, target=address, port=int(port))
    if hop.answer.endpoint and asked.enters == "node":
        asked = replace(asked, source=str(known.gateway(hop.node)))
    for output in hop.answer.outputs:
        kind, _, address = output.partition(" ")
        far = known.host_at(IPv4Address(address)) if kind == "tunnel" else ""
        if far in known.nodes:
            own = str(known.addresses[hop.node])
            yield far, replace(asked, enters="tunnel", sender="", tunnel_source=own, vnid=hop.answer.vnid)
