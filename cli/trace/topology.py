"""Hosts, pods and services of the cluster, and the next switch on the way of a packet. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from ipaddress import IPv4Address, IPv4Network

from msgspec.structs import replace

from api.network.queries import TraceRequest, TraceResult


@dataclass(frozen=True, slots=True)
class Host:
    """A sender or receiver of packets.

    - a pod has name, project and node
    - the network stack of a node has name and node
    - a container outside of pods, or an unused address of a node's subnet, has a node
    - a service has a name; it only receives
    - an external host has an address only
    """

    address: IPv4Address
    name: str = ""
    project: str = ""
    node: str = ""

    def __str__(self) -> str:
        return self.name or str(self.address)

    @property
    def enters(self) -> str:
        """How packets of the host enter a switch, as `enters` of a TraceRequest; empty if they enter none."""
        if self.project:
            return "pod"
        if self.name and self.node:
            return "node"
        return "docker" if self.node else ""


@dataclass(frozen=True, slots=True)
class Frontend:
    """A frontend of a service: `name` is PROJECT/SERVICE, `protocol` is tcp or udp."""

    name: str
    address: IPv4Address
    protocol: str
    port: int


@dataclass(frozen=True, slots=True)
class Hop:
    """One switch on the path of a packet, with its request and result."""

    node: str
    request: TraceRequest
    result: TraceResult


@dataclass(frozen=True, slots=True)
class ClusterTopology:
    """The network objects of the API: pods, VNIDs by project, subnets and underlay addresses by host, and networks.

    `nodes` are the hosts that run podlane-sdn. `host_network_pods` has the node of each pod with hostNetwork.
    `frontends` are those of all services, in the order of their ports. `services` is the service network.
    """

    pods: tuple[Host, ...]
    vnids: Mapping[str, int]
    subnets: Mapping[str, IPv4Network]
    addresses: Mapping[str, IPv4Address]
    nodes: frozenset[str]
    networks: tuple[IPv4Network, ...]
    services: IPv4Network
    vxlan_port: int
    host_network_pods: Mapping[str, str] = field(default_factory=dict)
    frontends: tuple[Frontend, ...] = ()

    def find_host(self, text: str) -> Host | None:
        """Return the host with an address or the name PROJECT/POD, PROJECT/SERVICE or of a node, or None.

        A pod with hostNetwork is its node.
        """
        text = self.host_network_pods.get(text, text)
        pod = find_pod(text, self.pods)
        if pod is not None:
            return pod
        if text in self.nodes & self.subnets.keys():
            return Host(self.gateway(text), text, node=text)
        frontend = next(
            (candidate for candidate in self.frontends if text in {candidate.name, str(candidate.address)}), None
        )
        if frontend is not None:
            return Host(frontend.address, frontend.name)
        try:
            address = IPv4Address(text)
        except ValueError:
            return None
        node = self.node_of(address)
        if node in self.nodes:
            return Host(address, node if address == self.gateway(node) else "", node=node)
        return Host(address)

    def gateway(self, host: str) -> IPv4Address:
        """Return the address of a node's own network stack on the cluster network."""
        return self.subnets[host].network_address + 1

    def node_of(self, address: IPv4Address) -> str:
        """Return the host with the subnet of an address; empty if there is none."""
        return next((host for host, subnet in self.subnets.items() if address in subnet), "")

    def node_at(self, address: IPv4Address) -> str:
        """Return the host with this underlay address; empty if there is none."""
        return next((host for host, own in self.addresses.items() if own == address), "")

    def vnid_text(self, host: Host, vnid: int) -> str:
        """Return the project of a host and its VNID, or only the VNID if that is not the project's."""
        if self.vnids.get(host.project) == vnid:
            return f"{host.project} (VNID {vnid})"
        return f"containers outside of any pod (VNID {vnid})" if host.enters == "docker" else f"VNID {vnid}"

    def frontend(self, address: IPv4Address, port: int = 0, protocol: str = "") -> Frontend | None:
        """Return the first frontend at an address; 0 and the empty string stand for any port and protocol."""
        for frontend in self.frontends:
            is_match = port in {0, frontend.port} and protocol in {"", frontend.protocol}
            if frontend.address == address and is_match:
                return frontend
        return None

    def is_inside(self, address: IPv4Address) -> bool:
        """Return True if the address is in the cluster network."""
        return any(address in network for network in self.networks)


@dataclass(frozen=True, slots=True)
class Drop:
    """A dropped packet: its sender, its receiver, and the switch that drops it."""

    source: Host
    target: Host
    last: Hop
    topology: ClusterTopology

    @property
    def source_ip(self) -> IPv4Address:
        """The source address of the packet, which may be spoofed."""
        return IPv4Address(self.last.request.source)

    @property
    def sender_vnid_text(self) -> str:
        """The sender's project with its VNID, or only the VNID that the switch determined."""
        return self.topology.vnid_text(self.source, self.last.result.vnid)

    @property
    def docker(self) -> IPv4Network | None:
        """The subnet of the node's containers outside of pods."""
        docker = self.last.result.docker
        return None if docker is None else IPv4Network(docker.subnet)


def find_pod(text: str, pods: Iterable[Host]) -> Host | None:
    """Return the pod with this address or name PROJECT/POD."""
    return next((pod for pod in pods if text in {pod.name, str(pod.address)}), None)


def next_hops(hop: Hop, topology: ClusterTopology) -> Iterator[tuple[str, TraceRequest]]:
    """Yield the nodes to which the packet goes through tunnels, and the request for each of them.

    A packet to a service has the endpoint's address there, and the gateway's source address if a node sent it.
    """
    request = hop.request
    if hop.result.endpoint:
        address, _, port = hop.result.endpoint.partition(":")
        request = replace(request, target=address, port=int(port))
    if hop.result.endpoint and request.enters == "node":
        request = replace(request, source=str(topology.gateway(hop.node)))
    for output in hop.result.outputs:
        kind, _, address = output.partition(" ")
        far = topology.node_at(IPv4Address(address)) if kind == "tunnel" else ""
        if far in topology.nodes:
            own = str(topology.addresses[hop.node])
            yield far, replace(request, enters="tunnel", sender="", tunnel_source=own, vnid=hop.result.vnid)
