"""Bridges, ports, links, routes and conntrack entries as values that drivers report and apply. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from ipaddress import IPv4Address, IPv4Interface, IPv4Network
from types import MappingProxyType

from sdn.model.service_port import Protocol

StringMap = tuple[tuple[str, str], ...]
"""A map column of the Open vSwitch database as a sorted, hashable tuple."""


def string_map(mapping: Mapping[str, str]) -> StringMap:
    """Return the mapping in its hashable form."""
    return tuple(sorted(mapping.items()))


@dataclass(frozen=True, slots=True)
class Port:
    """A port of a bridge and its only interface.

    `type` is "" for a device of the kernel. `ofport` is None until the switch has assigned a number, and -1 if the
    switch could not add the device; `error` then has its message. `mac` and `mtu_request` configure internal ports.
    """

    name: str
    type: str = ""
    ofport: int | None = None
    ofport_request: int | None = None
    mac: str = ""
    mtu_request: int | None = None
    options: StringMap = ()
    external_ids: StringMap = ()
    error: str = ""
    ids: Mapping[str, str] = field(init=False, repr=False, compare=False)
    """`external_ids` as a mapping."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "ids", MappingProxyType(dict(self.external_ids)))

    def __hash__(self) -> int:
        """Hash the name only, because a pass looks all ports up, and their names differ."""
        return hash(self.name)


@dataclass(frozen=True, slots=True)
class Bridge:
    """A bridge; `datapath_type` is "system" (the kernel's) or "netdev" (userspace)."""

    name: str
    datapath_type: str = "system"
    fail_mode: str = ""
    external_ids: StringMap = ()
    table_names: tuple[tuple[int, str], ...] = ()
    ports: tuple[Port, ...] = ()

    def __hash__(self) -> int:
        """Hash the name only: what follows from a bridge is kept for the last one, which has hundreds of ports."""
        return hash(self.name)

    @property
    def ids(self) -> Mapping[str, str]:
        """`external_ids` as a mapping."""
        return MappingProxyType(dict(self.external_ids))

    def port(self, name: str) -> Port | None:
        """Return the port with this name."""
        return next((port for port in self.ports if port.name == name), None)


@dataclass(frozen=True, slots=True)
class ConntrackZone:
    """A conntrack zone of a datapath, and its timeouts in seconds by connection state.

    The states have the names of the table CT_Timeout_Policy in ovs-vswitchd.conf.db(5), and are sorted. All other
    states keep their default timeout.
    """

    datapath_type: str
    number: int
    timeouts: tuple[tuple[str, int], ...]


@dataclass(frozen=True, slots=True)
class OvsState:
    """All bridges of this host's Open vSwitch, and the conntrack zones that have timeouts of their own."""

    bridges: tuple[Bridge, ...] = ()
    zones: frozenset[ConntrackZone] = frozenset()

    def bridge(self, name: str) -> Bridge | None:
        """Return the bridge with this name."""
        return next((bridge for bridge in self.bridges if bridge.name == name), None)


@dataclass(frozen=True, slots=True)
class Link:
    """A link of the node's network namespace; `mtu` is in bytes, `master` is the bridge whose port the link is."""

    name: str
    mtu: int
    addresses: frozenset[IPv4Interface]
    alias: str = ""
    master: str = ""
    up: bool = True


@dataclass(frozen=True, slots=True)
class Route:
    """A route of the node's main table."""

    target: IPv4Network
    device: str


BRIDGE = "br0"
VXLAN_PORT_NAME = "vxlan0"
GATEWAY_PORT_NAME = "tun0"
DOCKER_PORT_NAME = "vovsbr"

OWNER = ("podlane", "owner")
NETDEV = "netdev"

DOCKER_BRIDGE, BRIDGE_END = "lbr0", "vlinuxbr"
DOCKER_LINKS = (DOCKER_BRIDGE, BRIDGE_END, DOCKER_PORT_NAME)
ALIAS = "podlane"
"""The alias of Docker's bridge and its veth pair, by which we know that they are ours."""


@dataclass(frozen=True, slots=True)
class BaseChain:
    """A chain of nftables that the kernel calls by itself, at a hook such as "forward"; its policy, in lower case."""

    family: str
    table: str
    name: str
    hook: str
    policy: str


@dataclass(frozen=True, slots=True)
class GatewayConfig:
    """Configuration of tun0 in the node's network stack: address, routes, and sysctls by name.

    `guarded_sysctls` are safe only with the firewall, and are set after it.
    """

    device: str
    address: IPv4Interface
    routes: frozenset[IPv4Network]
    sysctls: tuple[tuple[str, str], ...]
    guarded_sysctls: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class DockerBridgeConfig:
    """Docker's bridge lbr0 and its veth pair vlinuxbr-vovsbr to br0.

    The bridge has the gateway's address, because Docker gives its containers the bridge's address as their gateway.
    Their packets still go through br0, since the ingress guard drops packets from lbr0 to the node
    (`guarded_devices`). `tx_checksum_offload` is False if the datapath needs checksums that the sender has filled in.
    """

    address: IPv4Interface
    mtu: int
    tx_checksum_offload: bool


@dataclass(frozen=True, slots=True, order=True, kw_only=True)
class ConntrackFilter:
    """A filter for conntrack entries of a zone, by their original destination and their endpoint.

    The original destination is `port` of `address`; None stands for any address. The endpoint is the destination after
    DNAT.
    """

    zone: int
    protocol: Protocol
    address: IPv4Address | None
    port: int
    endpoint: IPv4Address
    endpoint_port: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ConntrackEntry:
    """A conntrack entry of UDP: a client, the frontend to which it sends, and the endpoint that replies.

    Without DNAT, the endpoint is the frontend.
    """

    client: IPv4Address
    client_port: int
    frontend: IPv4Address
    frontend_port: int
    endpoint: IPv4Address
    endpoint_port: int


@dataclass(frozen=True, slots=True, kw_only=True)
class VethPair:
    """A veth pair to create: `device` on the node, `ifname` inside `netns` with its address and route.

    The only route leads to the gateway, so a pod has one neighbour, however many others it talks to.
    `tx_checksum_offload` is False if the datapath needs checksums that the sender has filled in. `egress_bandwidth`
    limits what the pod sends, in bits per second; 0 means no limit.
    """

    device: str
    netns: str
    ifname: str
    mac: str
    address: IPv4Interface
    gateway: IPv4Address
    mtu: int
    tx_checksum_offload: bool
    egress_bandwidth: int = 0
