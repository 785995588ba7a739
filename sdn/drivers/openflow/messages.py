"""OpenFlow 1.4 messages as bytes, as far as the pipeline needs them. Pure.

The formats are those of the OpenFlow Switch Specification 1.4.0 and, to delete conntrack entries, of Open vSwitch's
`nicira-ext.h`. A flow that the pipeline never writes is read as an `UnknownFlow`.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum
from ipaddress import IPv4Address

from sdn.drivers.openflow.actions import ANY, NICIRA, bucket_bytes, instruction_bytes, read_buckets, read_instructions
from sdn.drivers.openflow.oxm import Unknown, match_bytes, padded, read_match
from sdn.model.flow import Flow, Group
from sdn.model.host import ConntrackFilter
from sdn.model.match import Match

VERSION = 0x05
HEADER = struct.Struct("!BBHI")
ALL_TABLES = 0xFF


class Type(IntEnum):
    """Message types."""

    HELLO = 0
    ERROR = 1
    ECHO_REQUEST = 2
    ECHO_REPLY = 3
    EXPERIMENTER = 4
    FLOW_MOD = 14
    GROUP_MOD = 15
    MULTIPART_REQUEST = 18
    MULTIPART_REPLY = 19
    BARRIER_REQUEST = 20
    BARRIER_REPLY = 21
    BUNDLE_CONTROL = 33
    BUNDLE_ADD = 34


class FlowCommand(IntEnum):
    """Commands of flow messages (ofp_flow_mod_command)."""

    ADD = 0
    DELETE_STRICT = 4


class GroupCommand(IntEnum):
    """Commands of group messages; `PUT` is Open vSwitch's ADD_OR_MOD, which creates a group or changes it."""

    DELETE = 2
    PUT = 0x8000


class Bundle(IntEnum):
    """Types of bundle control messages; the type of the reply is greater by one."""

    OPEN = 0
    COMMIT = 4
    DISCARD = 6


class Multipart(IntEnum):
    """Types of multipart messages."""

    FLOW = 1
    TABLE = 3
    GROUP_DESC = 7
    FLOW_MONITOR = 16


SELECT = 1
ATOMIC_AND_ORDERED = 3
MORE = 1
MONITOR_CHANGES = 2 | 4 | 8
FULL_EVENTS = frozenset({1, 2, 3})
MONITORED_TABLE = 4
_FLOW_MOD = struct.Struct("!BBHIQQBBHHHIIIHH")
_BUNDLE_ADD = struct.Struct("!BBHIIHH")
_FLOW_STATS = struct.Struct("!HBxIIHHHHH2xQQQ")


@dataclass(frozen=True, slots=True)
class UnknownFlow:
    """A flow that the pipeline never writes; `match` is kept as bytes, so that the flow can be deleted."""

    table: int
    priority: int
    match: bytes


@dataclass(frozen=True, slots=True)
class UnknownGroup:
    """A group that the pipeline never writes."""

    number: int


def message(kind: Type, xid: int, body: bytes = b"") -> bytes:
    """Encode a message with its header; the reply has the same `xid`."""
    return HEADER.pack(VERSION, kind, HEADER.size + len(body), xid) + body


def hello() -> bytes:
    """Encode a hello that offers version 1.4 only."""
    return message(Type.HELLO, 0, struct.pack("!HHI", 1, 8, 1 << VERSION))


def offers_our_version(newest: int, hello_body: bytes) -> bool:
    """Return True if a hello offers version 1.4, in its version bitmap or, without one, by its newest version."""
    while hello_body:
        kind, length = struct.unpack_from("!HH", hello_body)
        if kind == 1:
            return bool(int.from_bytes(hello_body[4:8], "big") >> VERSION & 1)
        if length < 4:
            break
        hello_body = hello_body[padded(length) :]
    return newest >= VERSION


def flow_mod(command: FlowCommand, flow: Flow | UnknownFlow, xid: int) -> bytes:
    """Encode a message that adds a flow, replacing the one with the same key, or that deletes exactly this flow."""
    if isinstance(flow, UnknownFlow):
        cookie, match, instructions = 0, flow.match, b""
    else:
        cookie, match = flow.cookie, match_bytes(flow.match)
        instructions = instruction_bytes(flow.actions) if command is FlowCommand.ADD else b""
    head = (VERSION, Type.FLOW_MOD, _FLOW_MOD.size + len(match) + len(instructions), xid)
    timeouts_and_priority = (0, 0, flow.priority)
    body = (cookie, 0, flow.table, command, *timeouts_and_priority, ANY, ANY, ANY, 0, 0)
    return _FLOW_MOD.pack(*head, *body) + match + instructions


def group_mod(command: GroupCommand, group: Group | UnknownGroup, xid: int) -> bytes:
    """Encode a message that creates or changes a group, or deletes it with every flow that refers to it."""
    is_put = command is GroupCommand.PUT and isinstance(group, Group)
    buckets = b"".join(map(bucket_bytes, group.buckets)) if is_put and isinstance(group, Group) else b""
    return message(Type.GROUP_MOD, xid, struct.pack("!HBxI", command, SELECT, group.number) + buckets)


def bundle_control(bundle: int, step: Bundle, xid: int) -> bytes:
    """Encode a message that opens, commits or discards a bundle, which is applied in order and as a whole."""
    return message(Type.BUNDLE_CONTROL, xid, struct.pack("!IHH", bundle, step, ATOMIC_AND_ORDERED))


def bundle_add(bundle: int, inner: bytes, xid: int) -> bytes:
    """Encode a message that adds another one, which has the same `xid`, to an open bundle."""
    length = _BUNDLE_ADD.size + len(inner)
    return _BUNDLE_ADD.pack(VERSION, Type.BUNDLE_ADD, length, xid, bundle, 0, ATOMIC_AND_ORDERED) + inner


def flows_request(xid: int, cookie_bits: int = 0) -> bytes:
    """Encode a request for all flows whose cookie has all these bits set."""
    body = struct.pack("!HHIB3xII4xQQ", Multipart.FLOW, 0, 0, ALL_TABLES, ANY, ANY, cookie_bits, cookie_bits)
    return message(Type.MULTIPART_REQUEST, xid, body + match_bytes(Match()))


def groups_request(xid: int) -> bytes:
    """Encode a request for all groups."""
    return message(Type.MULTIPART_REQUEST, xid, struct.pack("!HH4x", Multipart.GROUP_DESC, 0))


def reported_groups(body: bytes) -> Iterator[Group | UnknownGroup]:
    """Decode the groups in one part of the reply to `groups_request`."""
    while body:
        length, kind, number = struct.unpack_from("!HBxI", body)
        try:
            if kind != SELECT:
                raise Unknown(f"a group of type {kind}")
            yield Group(number, tuple(read_buckets(body[8:length])))
        except (ValueError, struct.error):
            yield UnknownGroup(number)
        body = body[length:]


def tables_request(xid: int) -> bytes:
    """Encode a request for the packet counters of all tables."""
    return message(Type.MULTIPART_REQUEST, xid, struct.pack("!HH4x", Multipart.TABLE, 0))


def reported_misses(body: bytes) -> Iterator[tuple[int, int]]:
    """Decode one part of the reply to `tables_request`: a table, and the packets that matched none of its flows."""
    for table, _, looked_up, matched in struct.iter_unpack("!B3xIQQ", body):
        yield table, looked_up - matched


def monitor_request(xid: int) -> bytes:
    """Encode a subscription to changes of flows; our own changes are reported in abbreviated form."""
    body = struct.pack("!HHIIIIHBB", Multipart.FLOW_MONITOR, 0, 0, 1, ANY, ANY, MONITOR_CHANGES, ALL_TABLES, 0)
    return message(Type.MULTIPART_REQUEST, xid, body + match_bytes(Match()))


def multipart_head(body: bytes) -> tuple[int, bool, bytes]:
    """Decode the head of a multipart reply: its type, whether more parts follow, and the rest."""
    kind, flags = struct.unpack_from("!HH", body)
    return kind, bool(flags & MORE), body[8:]


def reported_flows(body: bytes, learned_tables: frozenset[int]) -> Iterator[tuple[Flow | UnknownFlow, int]]:
    """Decode the flows in one part of the reply to `flows_request`, with their packet counters.

    Flows of `learned_tables` that expire are skipped, because the switch has written them itself.
    """
    begin = 0
    while begin < len(body):
        length, table, _, _, priority, idle, hard, _, _, cookie, packets, _ = _FLOW_STATS.unpack_from(body, begin)
        rest = body[begin + _FLOW_STATS.size : begin + length]
        begin += length
        if idle and table in learned_tables:
            continue
        match_length = padded(struct.unpack_from("!HH", rest)[1])
        try:
            if idle or hard:
                raise Unknown("a flow that expires")
            match = read_match(rest[:match_length])
            yield Flow(table, priority, match, tuple(read_instructions(rest[match_length:])), cookie), packets
        except (ValueError, struct.error):
            yield UnknownFlow(table, priority, rest[:match_length]), packets


def reports_foreign_change(body: bytes, learned_tables: frozenset[int]) -> bool:
    """Return True if one part of a flow monitor's report has a change by another program.

    Changes of `learned_tables` are ignored, because the switch itself adds its flows and lets them expire.
    """
    while body:
        length, event = struct.unpack_from("!HH", body)
        if event in FULL_EVENTS and body[MONITORED_TABLE] not in learned_tables:
            return True
        body = body[length:]
    return False


def ct_flush_request(entries: ConntrackFilter, xid: int) -> bytes:
    """Encode a request to delete conntrack entries (NXT_CT_FLUSH)."""
    original = _tuple(0, 1, entries.address, entries.port)
    reply = _tuple(1, 0, entries.endpoint, entries.endpoint_port)
    zone = struct.pack("!HHH2x", 2, 8, entries.zone)
    body = struct.pack("!IIB7x", NICIRA, 32, entries.protocol) + original + reply + zone
    return message(Type.EXPERIMENTER, xid, body)


def _tuple(kind: int, end: int, address: IPv4Address | None, port: int) -> bytes:
    """Encode one direction of a connection; `end` is 0 for its source, 1 for its destination."""
    mapped = bytes(10) + b"\xff\xff" + address.packed if address is not None else b""
    parts = struct.pack("!HH16s4x", end, 20, mapped) if mapped else b""
    parts += struct.pack("!HHH2x", end + 2, 8, port)
    return struct.pack("!HH4x", kind, 8 + len(parts)) + parts


def error_text(body: bytes) -> str:
    """Return the type and code of an error message; `ofp-errors(7)` explains them."""
    kind, code = struct.unpack_from("!HH", body)
    return f"OpenFlow error type {kind} code {code}"
