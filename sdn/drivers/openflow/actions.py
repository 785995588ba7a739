"""Actions and buckets as bytes. Pure.

The formats are those of the OpenFlow Switch Specification 1.4.0 and of Open vSwitch's `nicira-ext.h`.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from ipaddress import IPv4Address
from typing import Any

from sdn.drivers.openflow.oxm import Unknown, field_header, pad, padded, read_field
from sdn.model import match
from sdn.model.flow import (
    Action,
    Bucket,
    Ct,
    Goto,
    GroupAction,
    Learn,
    Multipath,
    Output,
    OutputInPort,
    RegLoad,
    RegMove,
    Resubmit,
    SetField,
)
from sdn.model.match import Field

NICIRA = 0x00002320
IN_PORT = 0xFFFFFFF8
ANY = 0xFFFFFFFF

_OUTPUT, _GROUP, _SET_FIELD, _EXPERIMENTER = 0, 22, 25, 0xFFFF
_MOVE, _LOAD, _MULTIPATH, _RESUBMIT, _LEARN, _CT, _NAT, _LIMITED_LEARN = 6, 7, 10, 14, 16, 35, 36, 45
_HASH_CONNECTION, _MODULO_N = 3, 0
_SAME_PORT = 0xFFF8
_COMMIT = 1
_NAT_SRC, _NAT_DST = 1, 2
_HAS_IP, _HAS_PORT = 1, 1 << 4
_IMMEDIATE, _LOADS = 1 << 13, 1 << 11
_NUMBER_OF_BITS = 0x3FF
_APPLY_HEAD = struct.Struct("!HHI")
_NICIRA_HEAD = struct.Struct("!HHIH")
_CT_HEAD = struct.Struct("!HIHBxxxH")
_NAT_HEAD = struct.Struct("!2xHH")
_DNAT = struct.Struct("!HHIH HIHBxxxH HHIH 2xHH 4sH2x")
_DNAT_CT = (_EXPERIMENTER, _DNAT.size, NICIRA, _CT)
_DNAT_NAT = (_EXPERIMENTER, 24, NICIRA, _NAT, _NAT_DST, _HAS_IP | _HAS_PORT)
"""ct(commit) with nat(dst=ADDRESS:PORT)."""
_MULTIPATH_HEAD = struct.Struct("!HHHHHIHH")
_LEARN_HEAD = struct.Struct("!HHHQHBxHH")
_LEARN_LIMIT = struct.Struct("!I4x")
_BUCKET_HEAD = struct.Struct("!HHII4x")


def instruction_bytes(actions: tuple[Action, ...]) -> bytes:
    """Encode the actions of a flow as instructions: apply the actions, then go to another table if there is one."""
    goto = b""
    if actions and isinstance(actions[-1], Goto):  # only the last action can be one
        goto, actions = struct.pack("!HHB3x", 1, 8, actions[-1].table), actions[:-1]
    apply = b"".join(map(_action_bytes, actions))
    return _APPLY_HEAD.pack(4, 8 + len(apply), 0) + apply + goto if apply else goto


def bucket_bytes(bucket: Bucket) -> bytes:
    """Encode a bucket in the format of OpenFlow 1.1 to 1.4."""
    body = b"".join(map(_action_bytes, bucket.actions))
    return _BUCKET_HEAD.pack(_BUCKET_HEAD.size + len(body), bucket.weight, ANY, ANY) + body


def read_buckets(data: bytes) -> Iterator[Bucket]:
    """Decode the buckets of a group. Raises Unknown."""
    while data:
        length, weight, watched_port, watched_group = _BUCKET_HEAD.unpack_from(data)
        if (watched_port, watched_group) != (ANY, ANY):
            raise Unknown("a bucket that watches a port")
        yield Bucket(weight, tuple(_read_actions(data[_BUCKET_HEAD.size : length])))
        data = data[length:]


def read_instructions(data: bytes) -> Iterator[Action]:
    """Decode the instructions of a flow. Raises Unknown."""
    while data:
        kind, length = struct.unpack_from("!HH", data)
        if kind == 4:
            yield from _read_actions(data[8:length])
        elif kind == 1:
            yield Goto(data[4])
        else:
            raise Unknown(f"instruction {kind}")
        data = data[length:]


def _action_bytes(action: Action) -> bytes:
    return _WRITERS[type(action)](action)


def _set_field_bytes(action: SetField) -> bytes:
    field = field_header(action.field) + action.value.to_bytes(action.field.bits // 8, "big")
    return struct.pack("!HH", _SET_FIELD, padded(4 + len(field))) + pad(b"\0\0\0\0" + field)[4:]


def _load_body(load: RegLoad) -> bytes:
    ofs_nbits = struct.pack("!H", load.low << 6 | load.bits - 1)
    return ofs_nbits + field_header(load.field) + load.value.to_bytes(8, "big")


def _move_body(move: RegMove) -> bytes:
    return struct.pack("!HHH", move.bits, 0, 0) + field_header(move.source) + field_header(move.target)


def _multipath_body(multipath: Multipath) -> bytes:
    head = _MULTIPATH_HEAD.pack(
        _HASH_CONNECTION, 0, 0, _MODULO_N, multipath.choices - 1, 0, 0, multipath.target.bits - 1
    )
    return head + field_header(multipath.target)


def _nicira(subtype: int, body: bytes) -> bytes:
    length = padded(_NICIRA_HEAD.size + len(body))
    return pad(_NICIRA_HEAD.pack(_EXPERIMENTER, length, NICIRA, subtype) + body)


def _ct_bytes(ct: Ct) -> bytes:
    """Encode the action. That of an endpoint, of which there can be hundreds of thousands, in one step."""
    if not (ct.dst and ct.port and ct.commit):
        return _nicira(_CT, _ct_body(ct))
    return _DNAT.pack(*_DNAT_CT, _COMMIT, 0, ct.zone, ct.table, 0, *_DNAT_NAT, ct.dst.packed, ct.port)


def _ct_body(ct: Ct) -> bytes:
    head = _CT_HEAD.pack(_COMMIT if ct.commit else 0, 0, ct.zone, ct.table, 0)
    address = ct.dst or ct.src
    flags = _NAT_DST if ct.dst else _NAT_SRC if ct.src else 0
    present = (_HAS_IP if address else 0) | (_HAS_PORT if ct.port else 0)
    body = _NAT_HEAD.pack(flags, present)
    body += address.packed if address else b""
    body += struct.pack("!H", ct.port) if ct.port else b""
    return head + _nicira(_NAT, body)


def _learn_body(learn: Learn) -> bytes:
    head = _LEARN_HEAD.pack(learn.idle_seconds, 0, learn.priority, learn.cookie, 0, learn.table, 0, 0)
    if learn.limit:
        head += _LEARN_LIMIT.pack(learn.limit)
    copied = match.IP_DST if learn.of_destination else match.IP_SRC
    body = head + _constant(match.ETH_TYPE, match.ETH_IPV4, 0) + struct.pack("!H", match.IP_SRC.bits)
    body += field_header(copied, old=True) + bytes(2) + field_header(match.IP_SRC, old=True) + bytes(2)
    if learn.key is not None:
        body += _constant(*learn.key, 0)
    for target, value in learn.loads:
        body += _constant(target, value, _LOADS)
    return body


def _constant(field: Field, value: int, purpose: int) -> bytes:
    head = struct.pack("!H", _IMMEDIATE | purpose | field.bits)
    return head + value.to_bytes(field.bits // 8, "big") + field_header(field, old=True) + bytes(2)


def _read_actions(data: bytes) -> Iterator[Action]:
    while data:
        kind, length = struct.unpack_from("!HH", data)
        body = data[4:length]
        if kind == _OUTPUT:
            port = int.from_bytes(body[:4], "big")
            yield OutputInPort() if port == IN_PORT else Output(port)
        elif kind == _GROUP:
            yield GroupAction(int.from_bytes(body, "big"))
        elif kind == _SET_FIELD:
            field, masked, size = read_field(body)
            if masked:
                raise Unknown(f"a masked write of {field.name}")
            yield SetField(field, int.from_bytes(body[4 : 4 + size], "big"))
        elif kind == _EXPERIMENTER:
            yield _read_nicira(body)
        else:
            raise Unknown(f"action {kind}")
        data = data[length:]


def _read_nicira(body: bytes) -> Action:
    vendor, subtype = struct.unpack_from("!IH", body)
    if vendor != NICIRA or subtype not in _READERS:
        raise Unknown(f"action {subtype} of vendor {vendor:#x}")
    return _READERS[subtype](body[6:])


def _read_load(body: bytes) -> RegLoad:
    ofs_nbits = int.from_bytes(body[:2], "big")
    return RegLoad(read_field(body[2:])[0], ofs_nbits >> 6, (ofs_nbits & 0x3F) + 1, int.from_bytes(body[6:14], "big"))


def _read_move(body: bytes) -> RegMove:
    if body[2:6] != bytes(4):
        raise Unknown("a move that does not begin at bit 0")
    return RegMove(read_field(body[6:])[0], read_field(body[10:])[0], int.from_bytes(body[:2], "big"))


def _read_resubmit(body: bytes) -> Resubmit:
    if int.from_bytes(body[:2], "big") != _SAME_PORT:
        raise Unknown("a resubmit with another port")
    return Resubmit(body[2])


def _read_multipath(body: bytes) -> Multipath:
    multipath = Multipath(int.from_bytes(body[8:10], "big") + 1, read_field(body[_MULTIPATH_HEAD.size :])[0])
    if body != _multipath_body(multipath):
        raise Unknown("a multipath action with another hash")
    return multipath


def _read_ct(body: bytes) -> Ct:
    flags, _, zone, table, _ = _CT_HEAD.unpack_from(body)
    nat = body[_CT_HEAD.size + _NICIRA_HEAD.size :]
    side, present = _NAT_HEAD.unpack_from(nat)
    rest = nat[_NAT_HEAD.size :]
    address = IPv4Address(rest[:4]) if present & _HAS_IP else None
    port = int.from_bytes(rest[4:6], "big") if present & _HAS_PORT else 0
    dst, src = (address, None) if side == _NAT_DST else (None, address)
    ct = Ct(zone, table, bool(flags & _COMMIT), dst, port, src)
    if body != _ct_body(ct):
        raise Unknown("a ct action of another form")
    return ct


def _read_limited_learn(body: bytes) -> Learn:
    begin, end = _LEARN_HEAD.size, _LEARN_HEAD.size + _LEARN_LIMIT.size
    return _read_learn(body, begin=end, limit=_LEARN_LIMIT.unpack(body[begin:end])[0])


def _read_learn(body: bytes, begin: int = _LEARN_HEAD.size, limit: int = 0) -> Learn:
    """Decode the action, whose fields begin at `begin`."""
    idle, _, priority, cookie, _, table, _, _ = _LEARN_HEAD.unpack_from(body)
    key, loads, of_destination, rest = None, [], False, body[begin:]
    while len(rest) >= 2 and (head := int.from_bytes(rest[:2], "big")):
        size = (head & _NUMBER_OF_BITS) // 8
        end = 2 + (size if head & _IMMEDIATE else 6)
        target = read_field(rest[end:])[0]
        value = int.from_bytes(rest[2:end], "big")
        if head & _LOADS:
            loads.append((target, value))
        elif not head & _IMMEDIATE:
            of_destination = read_field(rest[2:end])[0] == match.IP_DST
        elif target != match.ETH_TYPE:
            key = (target, value)
        rest = rest[end + 6 :]
    learn = Learn(table, priority, cookie, idle, key, tuple(loads), of_destination, limit)
    if pad(bytes(_NICIRA_HEAD.size) + _learn_body(learn))[_NICIRA_HEAD.size :] != body:
        raise Unknown("a learn action of another form")
    return learn


_WRITERS: dict[type[Action], Callable[[Any], bytes]] = {
    Output: lambda action: struct.pack("!HHIH6x", _OUTPUT, 16, action.port, 0),
    OutputInPort: lambda _: struct.pack("!HHIH6x", _OUTPUT, 16, IN_PORT, 0),
    GroupAction: lambda action: struct.pack("!HHI", _GROUP, 8, action.group),
    SetField: _set_field_bytes,
    RegLoad: lambda action: _nicira(_LOAD, _load_body(action)),
    RegMove: lambda action: _nicira(_MOVE, _move_body(action)),
    Resubmit: lambda action: _nicira(_RESUBMIT, struct.pack("!HB3x", _SAME_PORT, action.table)),
    Multipath: lambda action: _nicira(_MULTIPATH, _multipath_body(action)),
    Ct: _ct_bytes,
    Learn: lambda action: _nicira(_LIMITED_LEARN if action.limit else _LEARN, _learn_body(action)),
}
_READERS: dict[int, Callable[[bytes], Action]] = {
    _LOAD: _read_load,
    _MOVE: _read_move,
    _RESUBMIT: _read_resubmit,
    _MULTIPATH: _read_multipath,
    _CT: _read_ct,
    _LEARN: _read_learn,
    _LIMITED_LEARN: _read_limited_learn,
}
