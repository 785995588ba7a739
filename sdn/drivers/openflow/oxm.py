"""Fields and matches as bytes (OXM). Pure.

The formats are those of the OpenFlow Switch Specification 1.4.0 and, for registers, tunnels and connection tracking,
of Open vSwitch's `nicira-ext.h` and `ovs-fields(7)`.
"""

from __future__ import annotations

import struct
from functools import lru_cache

from sdn.model import match as f
from sdn.model.match import Field, FieldMatch, Match


class Unknown(ValueError):
    """Raised for bytes that are valid OpenFlow but that the pipeline never writes."""


_MATCH_HEAD = struct.Struct("!HH")
_BASIC, _NICIRA_0, _NICIRA_1 = 0x8000, 0x0000, 0x0001
_CODES: dict[Field, tuple[int, int]] = {
    f.IN_PORT: (_BASIC, 0),
    f.ETH_DST: (_BASIC, 3),
    f.ETH_SRC: (_BASIC, 4),
    f.ETH_TYPE: (_BASIC, 5),
    f.VLAN_TCI: (_BASIC, 6),
    f.IP_PROTO: (_BASIC, 10),
    f.IP_SRC: (_BASIC, 11),
    f.IP_DST: (_BASIC, 12),
    f.ICMP_TYPE: (_BASIC, 19),
    f.TCP_SRC: (_BASIC, 13),
    f.TCP_DST: (_BASIC, 14),
    f.UDP_SRC: (_BASIC, 15),
    f.UDP_DST: (_BASIC, 16),
    f.SCTP_SRC: (_BASIC, 17),
    f.SCTP_DST: (_BASIC, 18),
    f.ARP_OP: (_BASIC, 21),
    f.ARP_SPA: (_BASIC, 22),
    f.ARP_TPA: (_BASIC, 23),
    f.ARP_SHA: (_BASIC, 24),
    f.ARP_THA: (_BASIC, 25),
    f.TUN_ID: (_BASIC, 38),
    f.REG0: (_NICIRA_1, 0),
    f.REG1: (_NICIRA_1, 1),
    f.REG2: (_NICIRA_1, 2),
    f.REG3: (_NICIRA_1, 3),
    f.REG4: (_NICIRA_1, 4),
    f.REG5: (_NICIRA_1, 5),
    f.REG6: (_NICIRA_1, 6),
    f.IP_FRAG: (_NICIRA_1, 26),
    f.CT_STATE: (_NICIRA_1, 105),
    f.CT_PROTO: (_NICIRA_1, 119),
    f.CT_TP_DST: (_NICIRA_1, 125),
    f.TUN_SRC: (_NICIRA_1, 31),
    f.TUN_DST: (_NICIRA_1, 32),
}
_OLD_CODES: dict[tuple[int, int], Field] = {
    (_NICIRA_0, 1): f.ETH_DST,
    (_NICIRA_0, 2): f.ETH_SRC,
    (_NICIRA_0, 3): f.ETH_TYPE,
    (_NICIRA_0, 7): f.IP_SRC,
    (_NICIRA_0, 8): f.IP_DST,
    (_NICIRA_0, 12): f.UDP_DST,
    (_NICIRA_0, 15): f.ARP_OP,
    (_NICIRA_0, 16): f.ARP_SPA,
    (_NICIRA_0, 17): f.ARP_TPA,
    (_NICIRA_1, 16): f.TUN_ID,
    (_NICIRA_1, 17): f.ARP_SHA,
    (_NICIRA_1, 18): f.ARP_THA,
}
"""In the actions move and load, the switch reports fields with their numbers from before OpenFlow 1.2."""
_OLD_NUMBERS = {field: code for code, field in _OLD_CODES.items()}
_FIELDS = {code: field for field, code in _CODES.items()} | _OLD_CODES


def padded(length: int) -> int:
    """Return the length rounded up to a multiple of eight bytes."""
    return (length + 7) // 8 * 8


def pad(data: bytes) -> bytes:
    """Pad with zeros to a multiple of eight bytes."""
    return data + bytes(-len(data) % 8)


@lru_cache
def field_header(field: Field, masked: bool = False, old: bool = False) -> bytes:
    """Encode the header of a field; `old` selects the number that the field had before OpenFlow 1.2."""
    space, number = _OLD_NUMBERS.get(field, _CODES[field]) if old else _CODES[field]
    length = field.bits // 8 * (2 if masked else 1)
    return struct.pack("!HBB", space, number << 1 | masked, length)


def _oxm(match: FieldMatch) -> bytes:
    field, value, mask = match.field, match.value, match.mask
    size = field.bits // 8
    if field.rank == f.VLAN_TCI.rank:
        if (value, mask) != (0, f.VLAN_ID_AND_PRESENT):
            raise Unknown(f"{match}: only packets without a VLAN tag can be matched")
        return field_header(field) + bytes(size)
    if mask + 1 == 1 << field.bits:
        return field_header(field) + value.to_bytes(size, "big")
    return field_header(field, masked=True) + value.to_bytes(size, "big") + mask.to_bytes(size, "big")


def match_bytes(match: Match) -> bytes:
    """Encode a match with its header, padded."""
    fields = b"".join(map(_oxm, match.fields))
    return pad(_MATCH_HEAD.pack(1, 4 + len(fields)) + fields)


def read_field(data: bytes) -> tuple[Field, bool, int]:
    """Decode a header: the field, whether a mask follows, and the length of value and mask. Raises Unknown."""
    space, number, length = struct.unpack_from("!HBB", data)
    field = _FIELDS.get((space, number >> 1))
    if field is None:
        raise Unknown(f"field {number >> 1} of class {space:#x}")
    return field, bool(number & 1), length


def read_match(data: bytes) -> Match:
    """Decode a match with its header. Raises Unknown."""
    _, length = struct.unpack_from("!HH", data)
    data, fields = data[4:length], []
    while data:
        field, masked, size = read_field(data)
        value = data[4 : 4 + size]
        mask = int.from_bytes(value[size // 2 :], "big") if masked else field.all_ones
        number = int.from_bytes(value[: size // 2] if masked else value, "big")
        if field == f.VLAN_TCI:
            if number or masked:
                raise Unknown("a VLAN tag")
            mask = f.VLAN_ID_AND_PRESENT
        fields.append(FieldMatch(field, number, mask))
        data = data[4 + size :]
    return Match(tuple(sorted(fields)))
