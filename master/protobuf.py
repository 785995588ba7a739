"""Reads the few protobuf bodies that kubectl 1.32 and newer send for our kinds. Pure.

`kubectl create namespace NAME` has no JSON form any more, and kubectl does not fall back. The wire format is that of
Protocol Buffers; field numbers are those of Kubernetes' generated.proto files. Only what the commands can express is
read: the metadata's name, generateName, labels and annotations, and what ConfigMaps and Secrets hold.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterator, Mapping
from typing import Any

MAGIC = b"k8s\0"


class Unreadable(ValueError):
    """The bytes are no such message."""


def document(body: bytes) -> dict[str, Any]:
    """The JSON document of an object in a protobuf envelope. Raises Unreadable, also for kinds not listed in _READ."""
    if not body.startswith(MAGIC):
        raise Unreadable("the body does not begin with the protobuf envelope of Kubernetes")
    envelope = dict(_fields(body[len(MAGIC) :]))
    types = {number: _text(value) for number, value in _fields(_part(envelope, 1))}
    kind = types.get(2, "")
    if types.get(1) != "v1" or kind not in _READ:
        raise Unreadable(f"{kind or 'this kind'} is accepted as application/json only")
    content = list(_fields(_part(envelope, 2)))
    found: dict[str, Any] = {"apiVersion": "v1", "kind": kind, "metadata": _metadata(_part(dict(content), 1))}
    for number, value in content:
        if number in _READ[kind]:
            _READ[kind][number](found, value)
    return found


def _metadata(message: bytes) -> dict[str, Any]:
    metadata: dict[str, Any] = {}
    for number, value in _fields(message):
        if number == 1:
            metadata["name"] = _text(value)
        elif number == 2:
            metadata["generateName"] = _text(value)
        elif number in (11, 12):
            entry = dict(_fields(value if isinstance(value, bytes) else b""))
            field = "labels" if number == 11 else "annotations"
            metadata.setdefault(field, {})[_text(entry.get(1, b""))] = _text(entry.get(2, b""))
    return {key: value for key, value in metadata.items() if value}


_Reader = Callable[[dict[str, Any], "int | bytes"], None]


def _map(name: str, show: Callable[[bytes], str]) -> _Reader:
    def read(found: dict[str, Any], value: int | bytes) -> None:
        entry = dict(_fields(value if isinstance(value, bytes) else b""))
        found.setdefault(name, {})[_text(entry.get(1, b""))] = show(_part(entry, 2))

    return read


def _read_type(found: dict[str, Any], value: int | bytes) -> None:
    found["type"] = _text(value)


def _read_immutable(found: dict[str, Any], value: int | bytes) -> None:
    found["immutable"] = bool(value)


def _base64(data: bytes) -> str:
    return base64.b64encode(data).decode("ascii")


def _part(fields: dict[int, int | bytes], number: int) -> bytes:
    value = fields.get(number, b"")
    if not isinstance(value, bytes):
        raise Unreadable(f"field {number} is not a message")
    return value


def _text(value: int | bytes) -> str:
    if not isinstance(value, bytes):
        raise Unreadable("a number stands where a text belongs")
    try:
        return value.decode("utf-8")
    except UnicodeDecodeError as error:
        raise Unreadable(str(error)) from error


def _fields(data: bytes) -> Iterator[tuple[int, int | bytes]]:
    """The fields of one message: numbers as they are, everything with a length as bytes."""
    place = 0
    while place < len(data):
        tag, place = _varint(data, place)
        number, wire = tag >> 3, tag & 7
        if wire == 0:
            value, place = _varint(data, place)
            yield number, value
            continue
        if wire == 2:
            size, place = _varint(data, place)
        elif wire in (1, 5):
            size = 8 if wire == 1 else 4
        else:
            raise Unreadable(f"wire type {wire} is not in use")
        if place + size > len(data):
            raise Unreadable("the message is cut short")
        yield number, data[place : place + size]
        place += size


def _varint(data: bytes, place: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, 70, 7):
        if place >= len(data):
            raise Unreadable("the message is cut short")
        byte = data[place]
        place += 1
        value |= (byte & 0x7F) << shift
        if not byte & 0x80:
            return value, place
    raise Unreadable("a number is longer than 64 bits")


_READ: Mapping[str, Mapping[int, _Reader]] = {
    "Namespace": {},
    "ConfigMap": {2: _map("data", _text), 3: _map("binaryData", _base64), 4: _read_immutable},
    "Secret": {2: _map("data", _base64), 3: _read_type, 4: _map("stringData", _text), 5: _read_immutable},
}
"""Kind → number of a field beside the metadata (1) → how it is read."""
