"""Bridges, ports, links, routes and conntrack entries as values that drivers report and apply. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Interface, IPv4Network
from types import MappingProxyType

from sdn.model.service_port import Protocol

StringMap = tuple[tuple[str, str], ...]
"""A map of words as a sorted, hashable tuple."""


def string_map(mapping: Mapping[str, str]) -> StringMap:
    """The mapping in its hashable form."""
    return tuple(sorted(mapping.items()))


@dataclass(frozen=True, slots=True)
class Port:
    """A port and its only interface.

    `type` is "" for a device of the kernel; `ofport` is None until the switch has given a number and -1 when it could
    not take the device in; `error` then has its words. `mac` and `mtu_request` are wishes of internal ports.
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

    @property
    def ids(self) -> Mapping[str, str]:
        """`external_ids` as a map."""
        return MappingProxyType(dict(self.external_ids))


@dataclass(frozen=True, slots=True)
class Bridge:
    """A bridge; `datapath_type` is "system" (the kernel's) or "netdev" (in user space)."""

    name: str
    datapath_type: str = "system"
    fail_mode: str = ""
    external_ids: StringMap = ()
    table_names: tuple[tuple[int, str], ...] = ()
    ports: tuple[Port, ...] = ()

    @property
    def ids(self) -> Mapping[str, str]:
        """`external_ids` as a map."""
        return MappingProxyType(dict(self.external_ids))

    def port(self, name: str) -> Port | None:
        """The port of this name."""
        return next((port for port in self.ports if port.name == name), None)


@dataclass(frozen=True, slots=True)
class ConntrackZone:
    """A zone of a datapath's connection tracking, and for how many seconds it remembers connections in some states.

    The names of states are those of CT_Timeout_Policy in ovs-vswitchd.conf.db(5); sorted. Others keep their defaults.
    """

    datapath_type: str
    number: int
    timeouts: tuple[tuple[str, int], ...]


@dataclass(frozen=True, slots=True)
class OvsState:
    """Every bridge of this host's Open vSwitch, and the zones that somebody has given timeouts."""

    bridges: tuple[Bridge, ...] = ()
    zones: frozenset[ConntrackZone] = frozenset()

    def bridge(self, name: str) -> Bridge | None:
        """The bridge of this name."""
        return next((bridge for bridge in self.bridges if bridge.name == name), None)


@dataclass(frozen=True, slots=True)
class Link:
    """A link of the node's network namespace; `mtu` is in bytes, `master` the bridge that it is a port of."""

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
TUNNEL_PORT = "vxlan0"
GATEWAY_PORT = "tun0"
DOCKER_PORT = "vovsbr"

OWNER = ("podlane", "owner")
NETDEV = "netdev"

DOCKER_BRIDGE, BRIDGE_END = "lbr0", "vlinuxbr"
DOCKER_LINKS = (DOCKER_BRIDGE, BRIDGE_END, DOCKER_PORT)
ALIAS = "podlane"
"""Our mark on Docker's bridge and its cable."""


@dataclass(frozen=True, slots=True)
class GatewayConfig:
    """What the node's network stack holds: tun0's address, routes through it, and kernel settings (sysctl → value)."""

    device: str
    address: IPv4Interface
    routes: frozenset[IPv4Network]
    sysctls: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class DockerBridgeConfig:
    """Docker's own bridge lbr0 and its cable vlinuxbr-vovsbr to br0.

    The bridge carries the gateway's address because Docker gives its containers the bridge's address as their gateway;
    the packets go through br0 all the same, since lbr0 itself hands nothing to the node (`guarded_devices`).
    `checksums` is False when the datapath needs the sender to fill in checksums itself.
    """

    address: IPv4Interface
    mtu: int
    tx_checksum_offload: bool


@dataclass(frozen=True, slots=True, order=True)
class ConntrackFilter:
    """Packets that were addressed to `port` of `address` (None: of any node) and went to this backend."""

    protocol: Protocol
    address: IPv4Address | None
    port: int
    endpoint: IPv4Address
    endpoint_port: int


@dataclass(frozen=True, slots=True)
class ConntrackEntry:
    """Packets over UDP that a client sends to a front, and the backend that answers them.

    The backend is the front itself where nothing was translated.
    """

    client: IPv4Address
    client_port: int
    frontend: IPv4Address
    frontend_port: int
    endpoint: IPv4Address
    endpoint_port: int


@dataclass(frozen=True, slots=True)
class VethPair:
    """A veth pair to make: `device` here, `ifname` inside `netns` with its address and routes.

    `checksums` is False when the datapath needs the sender to fill in checksums itself. `egress_bandwidth` limits what
    the pod sends, in bits a second; 0 is no limit.
    """

    device: str
    netns: str
    ifname: str
    mac: str
    address: IPv4Interface
    gateway: IPv4Address
    networks: tuple[IPv4Network, ...]
    mtu: int
    tx_checksum_offload: bool
    egress_bandwidth: int = 0
