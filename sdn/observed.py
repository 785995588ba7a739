"""What the drivers see of the switch, as frozen values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from ipaddress import IPv4Interface, IPv4Network
from types import MappingProxyType

Words = tuple[tuple[str, str], ...]
"""A map of words as a sorted, hashable tuple."""


def words(mapping: Mapping[str, str]) -> Words:
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
    options: Words = ()
    external_ids: Words = ()
    error: str = ""

    @property
    def marks(self) -> Mapping[str, str]:
        """`external_ids` as a map."""
        return MappingProxyType(dict(self.external_ids))


@dataclass(frozen=True, slots=True)
class Bridge:
    """A bridge; `datapath_type` is "system" (the kernel's) or "netdev" (in user space)."""

    name: str
    datapath_type: str = "system"
    fail_mode: str = ""
    external_ids: Words = ()
    table_names: tuple[tuple[int, str], ...] = ()
    ports: tuple[Port, ...] = ()

    @property
    def marks(self) -> Mapping[str, str]:
        """`external_ids` as a map."""
        return MappingProxyType(dict(self.external_ids))

    def port(self, name: str) -> Port | None:
        """The port of this name."""
        return next((port for port in self.ports if port.name == name), None)


@dataclass(frozen=True, slots=True)
class Zone:
    """A zone of a datapath's connection tracking, and for how many seconds it remembers connections in some states.

    The names of states are those of CT_Timeout_Policy in ovs-vswitchd.conf.db(5); sorted. Others keep their defaults.
    """

    datapath_type: str
    number: int
    timeouts: tuple[tuple[str, int], ...]


@dataclass(frozen=True, slots=True)
class Switch:
    """Every bridge of this host's Open vSwitch, and the zones that somebody has given timeouts."""

    bridges: tuple[Bridge, ...] = ()
    zones: frozenset[Zone] = frozenset()

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
