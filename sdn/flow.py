"""A flow as a value: what it matches, what becomes of the packet, and its text as `ovs-ofctl` would print it.

Rules of this file:

- An address is an `IPv4Address` or `IPv4Network` and is matched only through `ip()` or `arp()`, which bring the
  protocol along: Open vSwitch silently ignores an address without one and then matches every packet.
- A field is matched once; a second match of the same field is a `ValueError`, not a silent last-one-wins.
- `goto` only moves forward.
- Values are whole numbers; nothing here knows the meaning of a table or a register.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Network
from itertools import pairwise

ETH_IPV4 = 0x0800
ETH_ARP = 0x0806
VLAN_ID_AND_PRESENT = 0x1FFF


@dataclass(frozen=True, slots=True, order=True)
class Field:
    """A field of a packet or of its metadata, by the name that Open vSwitch gives it; `bits` is its width.

    `rank` orders fields in a match: prerequisites come before what needs them, otherwise as `ovs-ofctl` prints them.
    """

    rank: int
    name: str
    bits: int

    @property
    def ones(self) -> int:
        """All bits of the field set."""
        return (1 << self.bits) - 1


ETH_TYPE = Field(0, "eth_type", 16)
REG0 = Field(1, "reg0", 32)
REG1 = Field(2, "reg1", 32)
REG2 = Field(3, "reg2", 32)
TUN_ID = Field(4, "tun_id", 64)
TUN_SRC = Field(5, "tun_src", 32)
TUN_DST = Field(6, "tun_dst", 32)
IN_PORT = Field(7, "in_port", 32)
VLAN_TCI = Field(8, "vlan_tci", 16)
ETH_SRC = Field(9, "eth_src", 48)
ETH_DST = Field(10, "eth_dst", 48)
IP_SRC = Field(11, "nw_src", 32)
IP_DST = Field(12, "nw_dst", 32)
IP_PROTO = Field(13, "nw_proto", 8)
UDP_DST = Field(14, "udp_dst", 16)
ARP_SPA = Field(15, "arp_spa", 32)
ARP_TPA = Field(16, "arp_tpa", 32)
ARP_OP = Field(17, "arp_op", 16)
ARP_SHA = Field(18, "arp_sha", 48)
ARP_THA = Field(19, "arp_tha", 48)

_ETHERNET = frozenset({ETH_SRC, ETH_DST, ARP_SHA, ARP_THA})
_IPV4 = frozenset({IP_SRC, IP_DST, ARP_SPA, ARP_TPA, TUN_SRC, TUN_DST})
_HEX = frozenset({TUN_ID, REG0, REG1, REG2, ETH_TYPE, VLAN_TCI})


def mac_number(text: str) -> int:
    """`0a:58:0a:80:00:02` as a number of 48 bits."""
    return int(text.replace(":", ""), 16)


def mac_text(number: int) -> str:
    """The number as `0a:58:0a:80:00:02`."""
    return number.to_bytes(6, "big").hex(":")


def _value_text(field: Field, value: int) -> str:
    if field in _ETHERNET:
        return mac_text(value)
    if field in _IPV4:
        return str(IPv4Address(value))
    return hex(value) if field in _HEX else str(value)


@dataclass(frozen=True, slots=True, order=True)
class FieldMatch:
    """The packets whose field has `value` in the bits of `mask`. Bits outside the mask are zero in the value."""

    field: Field
    value: int
    mask: int

    def __post_init__(self) -> None:
        if not 0 < self.mask <= self.field.ones or self.value & ~self.mask:
            raise ValueError(f"{self.field.name}={self.value:#x}/{self.mask:#x} does not fit {self.field.bits} bits")

    def __str__(self) -> str:
        text = f"{self.field.name}={_value_text(self.field, self.value)}"
        if self.mask == self.field.ones:
            return text
        if self.field in _IPV4:
            return f"{text}/{self.mask.bit_count()}"
        return f"{text}/{_value_text(self.field, self.mask)}"


@dataclass(frozen=True, slots=True)
class Match:
    """The packets that every one of `fields` matches; no fields match all packets."""

    fields: tuple[FieldMatch, ...] = ()

    def __and__(self, other: Match) -> Match:
        both = tuple(sorted(self.fields + other.fields))
        for one, next_one in pairwise(both):
            if one.field == next_one.field:
                raise ValueError(f"{one.field.name} is matched twice: {one} and {next_one}")
        return Match(both)

    def __str__(self) -> str:
        return ",".join(_abbreviated(self.fields))


def _abbreviated(fields: tuple[FieldMatch, ...]) -> Iterable[str]:
    for match in fields:
        if match.field == ETH_TYPE and match.value == ETH_IPV4:
            yield "ip"
        elif match.field == ETH_TYPE and match.value == ETH_ARP:
            yield "arp"
        else:
            yield str(match)


def exactly(field: Field, value: int) -> Match:
    """Packets whose field has this value. Addresses of IP and ARP are refused: use `ip()` and `arp()`."""
    if field in {IP_SRC, IP_DST, ARP_SPA, ARP_TPA, ARP_SHA, ARP_THA, ARP_OP, IP_PROTO, UDP_DST, ETH_TYPE}:
        raise ValueError(f"{field.name} needs its protocol: match it through ip(), udp() or arp()")
    return Match((FieldMatch(field, value, field.ones),))


def in_port(port: int) -> Match:
    """Packets that come in from this OpenFlow port."""
    return exactly(IN_PORT, port)


def untagged() -> Match:
    """Packets without a VLAN tag."""
    return Match((FieldMatch(VLAN_TCI, 0, VLAN_ID_AND_PRESENT),))


def _network(field: Field, network: IPv4Address | IPv4Network | None) -> Iterable[FieldMatch]:
    if isinstance(network, IPv4Address):
        yield FieldMatch(field, int(network), field.ones)
    elif network is not None and network.prefixlen:
        yield FieldMatch(field, int(network.network_address), int(network.netmask))


def ip(src: IPv4Address | IPv4Network | None = None, dst: IPv4Address | IPv4Network | None = None) -> Match:
    """IPv4 packets from `src` to `dst`; None is any address."""
    fields = [FieldMatch(ETH_TYPE, ETH_IPV4, ETH_TYPE.ones), *_network(IP_SRC, src), *_network(IP_DST, dst)]
    return Match(tuple(sorted(fields)))


def udp(dst_port: int) -> Match:
    """UDP over IPv4 to this port; later fragments, which carry no port, do not match."""
    fields = (FieldMatch(IP_PROTO, 17, IP_PROTO.ones), FieldMatch(UDP_DST, dst_port, UDP_DST.ones))
    return ip() & Match(tuple(sorted(fields)))


def arp(
    op: int | None = None,
    spa: IPv4Address | IPv4Network | None = None,
    tpa: IPv4Address | IPv4Network | None = None,
    sha: int | None = None,
) -> Match:
    """ARP for IPv4 with this operation (1 request, 2 reply), sender and target; None is any."""
    fields = [FieldMatch(ETH_TYPE, ETH_ARP, ETH_TYPE.ones), *_network(ARP_SPA, spa), *_network(ARP_TPA, tpa)]
    if op is not None:
        fields.append(FieldMatch(ARP_OP, op, ARP_OP.ones))
    if sha is not None:
        fields.append(FieldMatch(ARP_SHA, sha, ARP_SHA.ones))
    return Match(tuple(sorted(fields)))


@dataclass(frozen=True, slots=True)
class Output:
    """Send the packet out of an OpenFlow port. Open vSwitch never sends it back to where it came from."""

    port: int

    def __str__(self) -> str:
        return f"output:{self.port}"


@dataclass(frozen=True, slots=True)
class ToInPort:
    """Send the packet back to where it came from."""

    def __str__(self) -> str:
        return "IN_PORT"


@dataclass(frozen=True, slots=True)
class SetField:
    """Write a whole field."""

    field: Field
    value: int

    def __str__(self) -> str:
        return f"set_field:{_value_text(self.field, self.value)}->{self.field.name}"


@dataclass(frozen=True, slots=True)
class Load:
    """Write the `bits` bits of a field that begin at bit `low` (0 is the least significant)."""

    field: Field
    low: int
    bits: int
    value: int

    def __str__(self) -> str:
        return f"load:{self.value:#x}->{self.field.name}[{self.low}..{self.low + self.bits - 1}]"


@dataclass(frozen=True, slots=True)
class Move:
    """Copy `bits` bits from bit 0 of one field to bit 0 of another."""

    source: Field
    target: Field
    bits: int

    def __str__(self) -> str:
        if self.bits == self.source.bits == self.target.bits:
            return f"move:{self.source.name}->{self.target.name}"
        last = self.bits - 1
        return f"move:{self.source.name}[0..{last}]->{self.target.name}[0..{last}]"


@dataclass(frozen=True, slots=True)
class Goto:
    """Go on in a later table; always the last action."""

    table: int

    def __str__(self) -> str:
        return f"goto_table:{self.table}"


Action = Output | ToInPort | SetField | Load | Move | Goto


@dataclass(frozen=True, slots=True)
class Flow:
    """One row of one table. No actions means that the packet is dropped.

    `cookie` tells whose row it is; two flows with the same table, priority and match are the same row to the switch.
    """

    table: int
    priority: int
    match: Match
    actions: tuple[Action, ...] = ()
    cookie: int = 0

    def __post_init__(self) -> None:
        for action in self.actions[:-1]:
            if isinstance(action, Goto):
                raise ValueError(f"goto_table:{action.table} is not the last action")
        last = self.actions[-1] if self.actions else None
        if isinstance(last, Goto) and last.table <= self.table:
            raise ValueError(f"table {self.table} cannot go back to table {last.table}")

    @property
    def row(self) -> tuple[int, int, Match]:
        """What makes the switch take two flows for the same row."""
        return self.table, self.priority, self.match

    def __str__(self) -> str:
        match = f",{self.match}" if self.match.fields else ""
        actions = ",".join(map(str, self.actions)) or "drop"
        return f"table={self.table},priority={self.priority}{match} actions={actions}"
