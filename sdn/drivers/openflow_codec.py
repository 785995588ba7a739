"""OpenFlow 1.4 messages as bytes, only as large as the pipeline needs.

Shapes are those of the OpenFlow Switch Specification 1.4.0 and, for registers, tunnel addresses, move and load, of
Open vSwitch's `nicira-ext.h` and `ovs-fields(7)`. Whatever a switch sends that is not in this file raises `Unknown`.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum

from sdn import match as f
from sdn.flow import Action, Flow, Goto, Load, Move, Output, SetField, ToInPort
from sdn.match import Field, FieldMatch, Match

VERSION = 0x05
HEADER = struct.Struct("!BBHI")
NICIRA = 0x00002320
ANY = 0xFFFFFFFF
IN_PORT = 0xFFFFFFF8
ALL_TABLES = 0xFF


class Unknown(ValueError):
    """Bytes that follow the specification but mean something that the pipeline never writes."""


class Type(IntEnum):
    """Message types."""

    HELLO = 0
    ERROR = 1
    ECHO_REQUEST = 2
    ECHO_REPLY = 3
    FLOW_MOD = 14
    MULTIPART_REQUEST = 18
    MULTIPART_REPLY = 19
    BARRIER_REQUEST = 20
    BARRIER_REPLY = 21
    BUNDLE_CONTROL = 33
    BUNDLE_ADD = 34


class Command(IntEnum):
    """What a flow message asks for."""

    ADD = 0
    DELETE_STRICT = 4


class Bundle(IntEnum):
    """What a bundle control message asks for; the answer is one more."""

    OPEN = 0
    COMMIT = 4
    DISCARD = 6


class Multipart(IntEnum):
    """Bodies of multipart messages."""

    FLOW = 1
    TABLE = 3
    FLOW_MONITOR = 16


ATOMIC_AND_ORDERED = 3
MORE = 1
MONITOR_CHANGES = 2 | 4 | 8
OWN_CHANGE = 4
FOREIGN_EVENTS = frozenset({1, 2, 3})

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
    f.UDP_DST: (_BASIC, 16),
    f.ARP_OP: (_BASIC, 21),
    f.ARP_SPA: (_BASIC, 22),
    f.ARP_TPA: (_BASIC, 23),
    f.ARP_SHA: (_BASIC, 24),
    f.ARP_THA: (_BASIC, 25),
    f.TUN_ID: (_BASIC, 38),
    f.REG0: (_NICIRA_1, 0),
    f.REG1: (_NICIRA_1, 1),
    f.REG2: (_NICIRA_1, 2),
    f.TUN_SRC: (_NICIRA_1, 31),
    f.TUN_DST: (_NICIRA_1, 32),
}
_OLD_CODES: dict[tuple[int, int], Field] = {
    (_NICIRA_0, 1): f.ETH_DST,
    (_NICIRA_0, 2): f.ETH_SRC,
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
"""Inside moves and loads the switch reads fields back under the numbers they had before OpenFlow 1.2."""
_FIELDS = {code: field for field, code in _CODES.items()} | _OLD_CODES


@dataclass(frozen=True, slots=True)
class Foreign:
    """A row that the pipeline cannot have written; `match` is kept as bytes so that the row can be deleted."""

    table: int
    priority: int
    match: bytes


def message(kind: Type, xid: int, body: bytes = b"") -> bytes:
    """One message with its header; `xid` is echoed in the answer."""
    return HEADER.pack(VERSION, kind, HEADER.size + len(body), xid) + body


def hello() -> bytes:
    """Offer version 1.4 and no other."""
    return message(Type.HELLO, 0, struct.pack("!HHI", 1, 8, 1 << VERSION))


def offers_our_version(newest: int, hello_body: bytes) -> bool:
    """Whether a hello has ours: in its bitmap of versions, or, without one, between 1.0 and its newest."""
    while hello_body:
        kind, length = struct.unpack_from("!HH", hello_body)
        if kind == 1:
            return bool(int.from_bytes(hello_body[4:8], "big") >> VERSION & 1)
        if length < 4:
            break
        hello_body = hello_body[_padded(length) :]
    return newest >= VERSION


def flow_mod(command: Command, flow: Flow | Foreign, xid: int) -> bytes:
    """Add a row (replacing one with the same table, priority and match), or delete exactly that row."""
    if isinstance(flow, Foreign):
        cookie, match, instructions = 0, flow.match, b""
    else:
        cookie, match = flow.cookie, _match_bytes(flow.match)
        instructions = _instruction_bytes(flow.actions) if command is Command.ADD else b""
    timeouts_and_priority = (0, 0, flow.priority)
    body = struct.pack("!QQBBHHHIIIHH", cookie, 0, flow.table, command, *timeouts_and_priority, ANY, ANY, ANY, 0, 0)
    return message(Type.FLOW_MOD, xid, body + match + instructions)


def bundle_control(bundle: int, step: Bundle, xid: int) -> bytes:
    """Open, commit or discard a bundle that is applied in order and as a whole."""
    return message(Type.BUNDLE_CONTROL, xid, struct.pack("!IHH", bundle, step, ATOMIC_AND_ORDERED))


def bundle_add(bundle: int, inner: bytes, xid: int) -> bytes:
    """Put a message, made with the same `xid`, into an open bundle."""
    return message(Type.BUNDLE_ADD, xid, struct.pack("!IHH", bundle, 0, ATOMIC_AND_ORDERED) + inner)


def flows_request(xid: int, cookie_bits: int = 0) -> bytes:
    """Ask for every row of every table that has all these bits in its cookie."""
    body = struct.pack("!HHIB3xII4xQQ", Multipart.FLOW, 0, 0, ALL_TABLES, ANY, ANY, cookie_bits, cookie_bits)
    return message(Type.MULTIPART_REQUEST, xid, body + _match_bytes(Match()))


def tables_request(xid: int) -> bytes:
    """Ask how many packets each table has seen."""
    return message(Type.MULTIPART_REQUEST, xid, struct.pack("!HH4x", Multipart.TABLE, 0))


def reported_misses(body: bytes) -> Iterator[tuple[int, int]]:
    """Number of a table and of the packets that no row of it matched, from one part of the answer."""
    for table, _, looked_up, matched in struct.iter_unpack("!B3xIQQ", body):
        yield table, looked_up - matched


def monitor_request(xid: int) -> bytes:
    """Ask to be told of every change; our own are told in short."""
    body = struct.pack("!HHIIIIHBB", Multipart.FLOW_MONITOR, 0, 0, 1, ANY, ANY, MONITOR_CHANGES, ALL_TABLES, 0)
    return message(Type.MULTIPART_REQUEST, xid, body + _match_bytes(Match()))


def multipart_head(body: bytes) -> tuple[int, bool, bytes]:
    """A multipart answer's type, whether more parts follow, and the rest of it."""
    kind, flags = struct.unpack_from("!HH", body)
    return kind, bool(flags & MORE), body[8:]


def reported_flows(body: bytes) -> Iterator[Flow | Foreign]:
    """The rows in one part of the answer to `flows_request`."""
    return (flow for flow, _ in counted_flows(body))


def counted_flows(body: bytes) -> Iterator[tuple[Flow | Foreign, int]]:
    """The rows in one part of the answer to `flows_request`, each with the packets that it has matched."""
    row = struct.Struct("!HBxIIHHHHH2xQQQ")
    while body:
        length, table, _, _, priority, idle, hard, _, _, cookie, packets, _ = row.unpack_from(body)
        rest = body[row.size : length]
        match_length = _padded(struct.unpack_from("!HH", rest)[1])
        try:
            if idle or hard:
                raise Unknown("a row that expires")
            match = _match(rest[:match_length])
            yield Flow(table, priority, match, tuple(_actions(rest[match_length:])), cookie), packets
        except ValueError:
            yield Foreign(table, priority, rest[:match_length]), packets
        body = body[length:]


def reports_foreign_change(body: bytes) -> bool:
    """Whether one part of a flow monitor's report tells of a change that somebody else made."""
    while body:
        length, event = struct.unpack_from("!HH", body)
        if event in FOREIGN_EVENTS:
            return True
        body = body[length:]
    return False


def error_text(body: bytes) -> str:
    """An error message's numbers; OpenFlow carries no words (`ofp-errors(7)` has them)."""
    kind, code = struct.unpack_from("!HH", body)
    return f"OpenFlow error type {kind} code {code}"


def _padded(length: int) -> int:
    return (length + 7) // 8 * 8


def _pad(data: bytes) -> bytes:
    return data.ljust(_padded(len(data)), b"\0")


def _oxm_header(field: Field, masked: bool = False) -> bytes:
    space, number = _CODES[field]
    length = field.bits // 8 * (2 if masked else 1)
    return struct.pack("!HBB", space, number << 1 | masked, length)


def _oxm(match: FieldMatch) -> bytes:
    size = match.field.bits // 8
    if match.field == f.VLAN_TCI:
        if (match.value, match.mask) != (0, f.VLAN_ID_AND_PRESENT):
            raise Unknown(f"{match}: only the absence of a tag can be matched")
        return _oxm_header(match.field) + bytes(size)
    masked = match.mask != match.field.ones
    data = match.value.to_bytes(size, "big")
    return _oxm_header(match.field, masked) + data + (match.mask.to_bytes(size, "big") if masked else b"")


def _match_bytes(match: Match) -> bytes:
    fields = b"".join(map(_oxm, match.fields))
    return _pad(struct.pack("!HH", 1, 4 + len(fields)) + fields)


def _field(data: bytes) -> tuple[Field, bool, int]:
    space, number, length = struct.unpack_from("!HBB", data)
    field = _FIELDS.get((space, number >> 1))
    if field is None:
        raise Unknown(f"field {number >> 1} of class {space:#x}")
    return field, bool(number & 1), length


def _match(data: bytes) -> Match:
    _, length = struct.unpack_from("!HH", data)
    data, fields = data[4:length], []
    while data:
        field, masked, size = _field(data)
        value = data[4 : 4 + size]
        mask = int.from_bytes(value[size // 2 :], "big") if masked else field.ones
        number = int.from_bytes(value[: size // 2] if masked else value, "big")
        if field == f.VLAN_TCI:
            if number or masked:
                raise Unknown("a tag")
            mask = f.VLAN_ID_AND_PRESENT
        fields.append(FieldMatch(field, number, mask))
        data = data[4 + size :]
    return Match(tuple(sorted(fields)))


def _instruction_bytes(actions: tuple[Action, ...]) -> bytes:
    apply = b"".join(_action_bytes(action) for action in actions if not isinstance(action, Goto))
    instructions = struct.pack("!HHI", 4, 8 + len(apply), 0) + apply if apply else b""
    for action in actions:
        if isinstance(action, Goto):
            instructions += struct.pack("!HHB3x", 1, 8, action.table)
    return instructions


def _action_bytes(action: Output | ToInPort | SetField | Load | Move) -> bytes:
    if isinstance(action, Output):
        return struct.pack("!HHIH6x", 0, 16, action.port, 0)
    if isinstance(action, ToInPort):
        return struct.pack("!HHIH6x", 0, 16, IN_PORT, 0)
    if isinstance(action, SetField):
        field = _oxm_header(action.field) + action.value.to_bytes(action.field.bits // 8, "big")
        return struct.pack("!HH", 25, _padded(4 + len(field))) + _pad(b"\0\0\0\0" + field)[4:]
    if isinstance(action, Load):
        place = action.low << 6 | action.bits - 1
        head = struct.pack("!HHIHH", 0xFFFF, 24, NICIRA, 7, place)
        return head + _oxm_header(action.field) + action.value.to_bytes(8, "big")
    head = struct.pack("!HHIHHHH", 0xFFFF, 24, NICIRA, 6, action.bits, 0, 0)
    return head + _oxm_header(action.source) + _oxm_header(action.target)


def _actions(data: bytes) -> Iterator[Action]:
    while data:
        kind, length = struct.unpack_from("!HH", data)
        if kind == 4:
            yield from _applied(data[8:length])
        elif kind == 1:
            yield Goto(data[4])
        else:
            raise Unknown(f"instruction {kind}")
        data = data[length:]


def _applied(data: bytes) -> Iterator[Action]:
    while data:
        kind, length = struct.unpack_from("!HH", data)
        body = data[4:length]
        if kind == 0:
            port = int.from_bytes(body[:4], "big")
            yield ToInPort() if port == IN_PORT else Output(port)
        elif kind == 25:
            field, masked, size = _field(body)
            if masked:
                raise Unknown(f"a masked write of {field.name}")
            yield SetField(field, int.from_bytes(body[4 : 4 + size], "big"))
        elif kind == 0xFFFF:
            yield _nicira_action(body)
        else:
            raise Unknown(f"action {kind}")
        data = data[length:]


def _nicira_action(body: bytes) -> Action:
    vendor, subtype, first = struct.unpack_from("!IHH", body)
    if (vendor, subtype) == (NICIRA, 7):
        return Load(_field(body[8:12])[0], first >> 6, (first & 0x3F) + 1, int.from_bytes(body[12:20], "big"))
    if (vendor, subtype) == (NICIRA, 6) and body[8:12] == bytes(4):
        return Move(_field(body[12:16])[0], _field(body[16:20])[0], first)
    raise Unknown(f"action {subtype} of vendor {vendor:#x}")
