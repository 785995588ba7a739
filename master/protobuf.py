"""Reads the few protobuf bodies that kubectl 1.32 and newer send for our kinds. Pure.

`kubectl create namespace NAME` has no JSON form any more, and kubectl does not fall back. The wire format is that of
Protocol Buffers; field numbers are those of Kubernetes' generated.proto files. Only what the command can express is
read: the metadata's name, generateName, labels and annotations.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

MAGIC = b"k8s\0"


class Unreadable(ValueError):
    """The bytes are no such message."""


def namespace(body: bytes) -> dict[str, Any]:
    """The JSON document of a Namespace in a protobuf envelope. Raises Unreadable; other kinds too are unreadable."""
    if not body.startswith(MAGIC):
        raise Unreadable("the body does not begin with the protobuf envelope of Kubernetes")
    envelope = dict(_fields(body[len(MAGIC) :]))
    types = {number: _text(value) for number, value in _fields(_part(envelope, 1))}
    if (types.get(1), types.get(2)) != ("v1", "Namespace"):
        raise Unreadable(f"{types.get(2) or 'this kind'} is accepted as application/json only")
    metadata: dict[str, Any] = {}
    for number, value in _fields(_part(dict(_fields(_part(envelope, 2))), 1)):
        if number == 1:
            metadata["name"] = _text(value)
        elif number == 2:
            metadata["generateName"] = _text(value)
        elif number in (11, 12):
            entry = dict(_fields(value if isinstance(value, bytes) else b""))
            field = "labels" if number == 11 else "annotations"
            metadata.setdefault(field, {})[_text(entry.get(1, b""))] = _text(entry.get(2, b""))
    return {
        "apiVersion": "v1",
        "kind": "Namespace",
        "metadata": {key: value for key, value in metadata.items() if value},
    }


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
