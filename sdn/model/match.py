"""Fields and matches as values, in the text that `ovs-ofctl` prints. Pure.

- An address is an `IPv4Address` or `IPv4Network` and is matched only through `ip()` or `arp()`, which add the match on
  the protocol: Open vSwitch silently ignores an address without one and then matches every packet.
- A field has one value: `&` of two matches with different values of a field is a `ValueError`; the second value does
  not silently replace the first. Equal values are accepted, so `ip(src=...) & dst_port(...)` is a match.
- Values are whole numbers; nothing here knows the meaning of a register.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from ipaddress import IPv4Address, IPv4Network
from itertools import pairwise

from msgspec import Struct

ETH_IPV4 = 0x0800
ETH_ARP = 0x0806
VLAN_ID_AND_PRESENT = 0x1FFF
CT_BITS = {"new": 1, "est": 2, "rel": 4, "rpl": 8, "inv": 16, "trk": 32, "snat": 64, "dnat": 128}
"""Bits of ct_state, with the names of ovs-fields(7)."""


class Field(Struct, frozen=True, gc=False, order=True, cache_hash=True):
    """A field of a packet or of its metadata, with its name in Open vSwitch; `bits` is its width.

    `rank` orders the fields of a match. A prerequisite comes before the fields that need it; apart from that, the order
    is that of `ovs-ofctl`.
    """

    rank: int
    name: str
    bits: int

    @property
    def all_ones(self) -> int:
        """The value of the field with all bits set."""
        return (1 << self.bits) - 1


ETH_TYPE = Field(0, "eth_type", 16)
REG0 = Field(1, "reg0", 32)
REG1 = Field(2, "reg1", 32)
REG2 = Field(3, "reg2", 32)
REG3 = Field(4, "reg3", 32)
REG4 = Field(5, "reg4", 32)
REG5 = Field(6, "reg5", 32)
REG6 = Field(7, "reg6", 32)
TUN_ID = Field(8, "tun_id", 64)
TUN_SRC = Field(9, "tun_src", 32)
TUN_DST = Field(10, "tun_dst", 32)
IN_PORT = Field(11, "in_port", 32)
VLAN_TCI = Field(12, "vlan_tci", 16)
ETH_SRC = Field(13, "eth_src", 48)
ETH_DST = Field(14, "eth_dst", 48)
IP_SRC = Field(15, "nw_src", 32)
IP_DST = Field(16, "nw_dst", 32)
IP_PROTO = Field(17, "nw_proto", 8)
IP_FRAG = Field(18, "nw_frag", 8)
ICMP_TYPE = Field(19, "icmp_type", 8)
TCP_SRC = Field(20, "tcp_src", 16)
TCP_DST = Field(21, "tcp_dst", 16)
UDP_SRC = Field(22, "udp_src", 16)
UDP_DST = Field(23, "udp_dst", 16)
SCTP_SRC = Field(24, "sctp_src", 16)
SCTP_DST = Field(25, "sctp_dst", 16)
CT_STATE = Field(26, "ct_state", 32)
CT_PROTO = Field(27, "ct_nw_proto", 8)
CT_TP_DST = Field(28, "ct_tp_dst", 16)
ARP_SPA = Field(29, "arp_spa", 32)
ARP_TPA = Field(30, "arp_tpa", 32)
ARP_OP = Field(31, "arp_op", 16)
ARP_SHA = Field(32, "arp_sha", 48)
ARP_THA = Field(33, "arp_tha", 48)

_UDP = 17
_ICMP = 1
_DST_PORTS = {6: TCP_DST, _UDP: UDP_DST, 132: SCTP_DST}
_SRC_PORTS = {6: TCP_SRC, _UDP: UDP_SRC, 132: SCTP_SRC}
_ETHERNET = frozenset({ETH_SRC, ETH_DST, ARP_SHA, ARP_THA})
_IPV4 = frozenset({IP_SRC, IP_DST, ARP_SPA, ARP_TPA, TUN_SRC, TUN_DST})
_HEX = frozenset({TUN_ID, REG0, REG1, REG2, REG3, REG4, REG5, REG6, ETH_TYPE, VLAN_TCI, CT_STATE, IP_FRAG})


_NEEDS_PROTOCOL = frozenset(
    {IP_SRC, IP_DST, ARP_SPA, ARP_TPA, ARP_SHA, ARP_THA, ARP_OP, IP_PROTO, ETH_TYPE}
    | {ICMP_TYPE, TCP_SRC, TCP_DST, UDP_SRC, UDP_DST, SCTP_SRC, SCTP_DST, CT_PROTO, CT_TP_DST}
)


def mac_number(text: str) -> int:
    """Return a MAC such as `0a:58:0a:80:00:02` as a number of 48 bits."""
    return int(text.replace(":", ""), 16)


def mac_text(number: int) -> str:
    """Return a number of 48 bits as a MAC such as `0a:58:0a:80:00:02`."""
    return number.to_bytes(6, "big").hex(":")


def value_text(field: Field, value: int) -> str:
    """Return a value of this field as `ovs-ofctl` prints it."""
    if field in _ETHERNET:
        return mac_text(value)
    if field in _IPV4:
        return str(IPv4Address(value))
    return hex(value) if field in _HEX else str(value)


def _state_text(value: int, mask: int) -> str:
    return "".join(f"{'+' if value & bit else '-'}{name}" for name, bit in CT_BITS.items() if mask & bit)


class FieldMatch(Struct, frozen=True, gc=False, order=True):
    """A match on packets whose field has `value` in the bits of `mask`. Bits outside the mask are zero in the value."""

    field: Field
    value: int
    mask: int

    def __post_init__(self) -> None:
        if not 0 < self.mask < 1 << self.field.bits or self.value & ~self.mask:
            raise ValueError(f"{self.field.name}={self.value:#x}/{self.mask:#x} does not fit {self.field.bits} bits")

    def __str__(self) -> str:
        if self.field == CT_STATE:
            return f"ct_state={_state_text(self.value, self.mask)}"
        text = f"{self.field.name}={value_text(self.field, self.value)}"
        if self.mask == self.field.all_ones:
            return text
        if self.field in _IPV4:
            return f"{text}/{self.mask.bit_count()}"
        return f"{text}/{value_text(self.field, self.mask)}"


class Match(Struct, frozen=True, gc=False):
    """A match on packets that all of `fields` match; without fields, on all packets."""

    fields: tuple[FieldMatch, ...] = ()

    def __and__(self, other: Match) -> Match:
        """Match packets that both match. Raises ValueError if they have different values of a field."""
        if self.fields and other.fields and _rank(self.fields[-1]) < _rank(other.fields[0]):
            return Match(self.fields + other.fields)
        fields = tuple(sorted(self.fields + other.fields, key=_rank))
        has_repeated_fields = False
        for first, second in pairwise(fields):
            if first.field.rank == second.field.rank:
                if first != second:
                    raise ValueError(f"{first.field.name} is matched twice: {first} and {second}")
                has_repeated_fields = True
        return Match(tuple(dict.fromkeys(fields)) if has_repeated_fields else fields)

    def __str__(self) -> str:
        return ",".join(_abbreviated(self.fields))


def _rank(match: FieldMatch) -> int:
    """Return the sort key of a field match.

    To compare the fields themselves would take a third of the time in which ten thousand services are compiled.
    """
    return match.field.rank


def _abbreviated(fields: tuple[FieldMatch, ...]) -> Iterable[str]:
    for match in fields:
        if match.field == ETH_TYPE and match.value == ETH_IPV4:
            yield "ip"
        elif match.field == ETH_TYPE and match.value == ETH_ARP:
            yield "arp"
        else:
            yield str(match)


def field_equals(field: Field, value: int) -> Match:
    """Match packets whose field has this value.

    Raises ValueError for a field that needs its protocol, such as an address: use `ip()` or `arp()`.
    """
    if field in _NEEDS_PROTOCOL:
        raise ValueError(f"{field.name} needs its protocol; use ip(), dst_port(), new_connection() or arp()")
    return Match((FieldMatch(field, value, field.all_ones),))


def in_port(port: int) -> Match:
    """Match packets that come in from this OpenFlow port."""
    return field_equals(IN_PORT, port)


def untagged() -> Match:
    """Match packets without a VLAN tag."""
    return Match((FieldMatch(VLAN_TCI, 0, VLAN_ID_AND_PRESENT),))


def _network(field: Field, network: IPv4Address | IPv4Network | None) -> Iterable[FieldMatch]:
    if isinstance(network, IPv4Address):
        yield FieldMatch(field, int(network), field.all_ones)
    elif network is not None and network.prefixlen:
        yield FieldMatch(field, int(network.network_address), int(network.netmask))


_IS_IPV4 = FieldMatch(ETH_TYPE, ETH_IPV4, ETH_TYPE.all_ones)


def ip(src: IPv4Address | IPv4Network | None = None, dst: IPv4Address | IPv4Network | None = None) -> Match:
    """Match IPv4 packets from `src` to `dst`; None is any address."""
    return Match((_IS_IPV4, *_network(IP_SRC, src), *_network(IP_DST, dst)))


def dst_port(protocol: int, port: int) -> Match:
    """Match TCP (6), UDP (17) or SCTP (132) over IPv4 to this port.

    Fragments do not match, because Open vSwitch sees no ports in them.
    """
    port_field = _DST_PORTS[protocol]
    fields = (FieldMatch(IP_PROTO, protocol, IP_PROTO.all_ones), FieldMatch(port_field, port, port_field.all_ones))
    return ip() & Match(fields)


@lru_cache
def ct_state(state: str) -> Match:
    """Match tracked packets in a connection state: `new`, `est` (established), `rel` (related), `dnat` (translated)."""
    bits = CT_BITS[state] | CT_BITS["trk"]
    return Match((FieldMatch(CT_STATE, bits, bits),))


def new_connection(protocol: int, port: int, mask: int = 0xFFFF, dst: IPv4Address | None = None) -> Match:
    """Match tracked packets that begin a connection to a port of `dst` (None: any address)."""
    return ip(dst=dst) & _new_to_port(protocol, port, mask)


@lru_cache(maxsize=4096)
def _new_to_port(protocol: int, port: int, mask: int) -> Match:
    fields = (FieldMatch(IP_PROTO, protocol, IP_PROTO.all_ones), FieldMatch(_DST_PORTS[protocol], port, mask))
    return ct_state("new") & Match(fields)


def new_connection_fragment(protocol: int, port: int, mask: int = 0xFFFF, dst: IPv4Address | None = None) -> Match:
    """Match the first fragment of a packet that begins a connection to a port of `dst` (None: any address).

    Open vSwitch sees no ports in fragments. Connection tracking knows those of the first one.
    """
    fields = (FieldMatch(CT_PROTO, protocol, CT_PROTO.all_ones), FieldMatch(CT_TP_DST, port, mask))
    return ip(dst=dst) & ct_state("new") & Match((FieldMatch(IP_FRAG, 1, 1), *fields))


def from_port(protocol: int, port: int) -> tuple[Match, ...]:
    """Match packets of this protocol from a port.

    The second match, for UDP only, takes all fragments, because Open vSwitch sees no ports in them.
    """
    unfragmented = (FieldMatch(IP_PROTO, protocol, IP_PROTO.all_ones), FieldMatch(_SRC_PORTS[protocol], port, 0xFFFF))
    if protocol != _UDP:
        return (ip() & Match(unfragmented),)
    fragments = (FieldMatch(IP_FRAG, 1, 1), FieldMatch(IP_PROTO, _UDP, IP_PROTO.all_ones))
    return ip() & Match(unfragmented), ip() & Match(fragments)


def icmp(
    icmp_type: int | None = None,
    src: IPv4Address | IPv4Network | None = None,
    dst: IPv4Address | IPv4Network | None = None,
) -> Match:
    """Match ICMP messages of this type from `src` to `dst`; None is any type or address.

    Open vSwitch sees type 0 (echo reply) in all fragments, whatever their type is.
    """
    fields = [FieldMatch(IP_PROTO, _ICMP, IP_PROTO.all_ones)]
    if icmp_type is not None:
        fields.append(FieldMatch(ICMP_TYPE, icmp_type, ICMP_TYPE.all_ones))
    return ip(src, dst) & Match(tuple(fields))


def arp(
    op: int | None = None,
    spa: IPv4Address | IPv4Network | None = None,
    tpa: IPv4Address | IPv4Network | None = None,
    sha: int | None = None,
) -> Match:
    """Match ARP for IPv4 with this operation (1 request, 2 reply), sender and target; None is any."""
    fields = [FieldMatch(ETH_TYPE, ETH_ARP, ETH_TYPE.all_ones), *_network(ARP_SPA, spa), *_network(ARP_TPA, tpa)]
    if op is not None:
        fields.append(FieldMatch(ARP_OP, op, ARP_OP.all_ones))
    if sha is not None:
        fields.append(FieldMatch(ARP_SHA, sha, ARP_SHA.all_ones))
    return Match(tuple(sorted(fields)))
