"""OpenFlow 1.4 messages as bytes, as far as the pipeline needs them. Pure.

Shapes are those of the OpenFlow Switch Specification 1.4.0 and, to delete conntrack entries, of Open vSwitch's
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
from sdn.pipeline.tables import Table

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


class Command(IntEnum):
    """What a flow message asks for."""

    ADD = 0
    DELETE_STRICT = 4


class GroupCommand(IntEnum):
    """What a group message asks for; `PUT` is Open vSwitch's and makes a group or changes it."""

    DELETE = 2
    PUT = 0x8000


class Bundle(IntEnum):
    """What a bundle control message asks for; the answer is one more."""

    OPEN = 0
    COMMIT = 4
    DISCARD = 6


class Multipart(IntEnum):
    """Bodies of multipart messages."""

    FLOW = 1
    TABLE = 3
    GROUP_DESC = 7
    FLOW_MONITOR = 16


SELECT = 1
ATOMIC_AND_ORDERED = 3
MORE = 1
MONITOR_CHANGES = 2 | 4 | 8
OWN_CHANGE = 4
FOREIGN_EVENTS = frozenset({1, 2, 3})
MONITORED_TABLE = 4
_ROW = struct.Struct("!HBxIIHHHHH2xQQQ")


@dataclass(frozen=True, slots=True)
class UnknownFlow:
    """A row that the pipeline cannot have written; `match` is kept as bytes so that the row can be deleted."""

    table: int
    priority: int
    match: bytes


@dataclass(frozen=True, slots=True)
class UnknownGroup:
    """A group that the pipeline cannot have written."""

    number: int


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
        hello_body = hello_body[padded(length) :]
    return newest >= VERSION


def flow_mod(command: Command, flow: Flow | UnknownFlow, xid: int) -> bytes:
    """Add a row (replacing one with the same table, priority and match), or delete exactly that row."""
    if isinstance(flow, UnknownFlow):
        cookie, match, instructions = 0, flow.match, b""
    else:
        cookie, match = flow.cookie, match_bytes(flow.match)
        instructions = instruction_bytes(flow.actions) if command is Command.ADD else b""
    timeouts_and_priority = (0, 0, flow.priority)
    body = struct.pack("!QQBBHHHIIIHH", cookie, 0, flow.table, command, *timeouts_and_priority, ANY, ANY, ANY, 0, 0)
    return message(Type.FLOW_MOD, xid, body + match + instructions)


def group_mod(command: GroupCommand, group: Group | UnknownGroup, xid: int) -> bytes:
    """Make a group, change it, or delete it and every row that leads to it."""
    is_put = command is GroupCommand.PUT and isinstance(group, Group)
    buckets = b"".join(map(bucket_bytes, group.buckets)) if is_put and isinstance(group, Group) else b""
    return message(Type.GROUP_MOD, xid, struct.pack("!HBxI", command, SELECT, group.number) + buckets)


def bundle_control(bundle: int, step: Bundle, xid: int) -> bytes:
    """Open, commit or discard a bundle that is applied in order and as a whole."""
    return message(Type.BUNDLE_CONTROL, xid, struct.pack("!IHH", bundle, step, ATOMIC_AND_ORDERED))


def bundle_add(bundle: int, inner: bytes, xid: int) -> bytes:
    """Put a message, made with the same `xid`, into an open bundle."""
    return message(Type.BUNDLE_ADD, xid, struct.pack("!IHH", bundle, 0, ATOMIC_AND_ORDERED) + inner)


def flows_request(xid: int, cookie_bits: int = 0) -> bytes:
    """Ask for every row of every table that has all these bits in its cookie."""
    body = struct.pack("!HHIB3xII4xQQ", Multipart.FLOW, 0, 0, ALL_TABLES, ANY, ANY, cookie_bits, cookie_bits)
    return message(Type.MULTIPART_REQUEST, xid, body + match_bytes(Match()))


def groups_request(xid: int) -> bytes:
    """Ask for every group."""
    return message(Type.MULTIPART_REQUEST, xid, struct.pack("!HH4x", Multipart.GROUP_DESC, 0))


def reported_groups(body: bytes) -> Iterator[Group | UnknownGroup]:
    """The groups in one part of the answer to `groups_request`."""
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
    """Ask how many packets each table has seen."""
    return message(Type.MULTIPART_REQUEST, xid, struct.pack("!HH4x", Multipart.TABLE, 0))


def reported_misses(body: bytes) -> Iterator[tuple[int, int]]:
    """Number of a table and of the packets that no row of it matched, from one part of the answer."""
    for table, _, looked_up, matched in struct.iter_unpack("!B3xIQQ", body):
        yield table, looked_up - matched


def monitor_request(xid: int) -> bytes:
    """Ask to be told of every change; our own are told in short."""
    body = struct.pack("!HHIIIIHBB", Multipart.FLOW_MONITOR, 0, 0, 1, ANY, ANY, MONITOR_CHANGES, ALL_TABLES, 0)
    return message(Type.MULTIPART_REQUEST, xid, body + match_bytes(Match()))


def multipart_head(body: bytes) -> tuple[int, bool, bytes]:
    """A multipart answer's type, whether more parts follow, and the rest of it."""
    kind, flags = struct.unpack_from("!HH", body)
    return kind, bool(flags & MORE), body[8:]


def reported_flows(body: bytes) -> Iterator[Flow | UnknownFlow]:
    """The rows in one part of the answer to `flows_request`."""
    return (flow for flow, _ in counted_flows(body))


def counted_flows(body: bytes) -> Iterator[tuple[Flow | UnknownFlow, int]]:
    """The rows in one part of the answer to `flows_request`, each with the packets that it has matched.

    Rows that the switch has learned are left out.
    """
    begin = 0
    while begin < len(body):
        length, table, _, _, priority, idle, hard, _, _, cookie, packets, _ = _ROW.unpack_from(body, begin)
        rest = body[begin + _ROW.size : begin + length]
        begin += length
        if table == Table.AFFINITY and idle:
            continue
        match_length = padded(struct.unpack_from("!HH", rest)[1])
        try:
            if idle or hard:
                raise Unknown("a row that expires")
            match = read_match(rest[:match_length])
            yield Flow(table, priority, match, tuple(read_instructions(rest[match_length:])), cookie), packets
        except (ValueError, struct.error):
            yield UnknownFlow(table, priority, rest[:match_length]), packets


def reports_foreign_change(body: bytes) -> bool:
    """Whether one part of a flow monitor's report tells of a change that somebody else made.

    Rows that the switch has learned, and lets expire, are none.
    """
    while body:
        length, event = struct.unpack_from("!HH", body)
        if event in FOREIGN_EVENTS and body[MONITORED_TABLE] != Table.AFFINITY:
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
    """One direction of a connection; `end` is 0 for its source, 1 for its destination."""
    mapped = bytes(10) + b"\xff\xff" + address.packed if address is not None else b""
    parts = struct.pack("!HH16s4x", end, 20, mapped) if mapped else b""
    parts += struct.pack("!HHH2x", end + 2, 8, port)
    return struct.pack("!HH4x", kind, 8 + len(parts)) + parts


def error_text(body: bytes) -> str:
    """An error message's numbers; OpenFlow carries no words (`ofp-errors(7)` has them)."""
    kind, code = struct.unpack_from("!HH", body)
    return f"OpenFlow error type {kind} code {code}"
