"""Channels inside the messages of a WebSocket, as clients of Kubernetes have them.

The first byte of a message names its channel. In the base64 protocols messages are text: the first character is the
digit of the channel, the rest is base64. In v5 a message of two bytes, 255 and a channel, says that nothing more will
come on that channel.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterable
from dataclasses import dataclass

CLOSE = 255
DIGIT = ord("0")


@dataclass(frozen=True, slots=True)
class Dialect:
    """One protocol of channels, by the name that a client asks for."""

    name: str
    in_base64: bool = False
    closes: bool = False
    """Whether a client can say that nothing more will come on a channel."""
    status_as_json: bool = False
    """Whether the end of a command is told as a Status, else as text and only when it failed."""


COMMAND_DIALECTS = (
    Dialect(""),
    Dialect("channel.k8s.io"),
    Dialect("base64.channel.k8s.io", in_base64=True),
    Dialect("v4.channel.k8s.io", status_as_json=True),
    Dialect("v4.base64.channel.k8s.io", in_base64=True, status_as_json=True),
    Dialect("v5.channel.k8s.io", closes=True, status_as_json=True),
)
PORT_DIALECTS = (
    Dialect(""),
    Dialect("v4.channel.k8s.io"),
    Dialect("v4.base64.channel.k8s.io", in_base64=True),
)


@dataclass(frozen=True, slots=True)
class Piece:
    """Bytes for a channel; `last` says that nothing more will come on it."""

    channel: int
    data: bytes
    last: bool = False


def choose(asked: Iterable[str], known: tuple[Dialect, ...]) -> Dialect | None:
    """Find the first protocol in the client's order that is known; nothing when there is none.

    `asked` are the lines of Sec-WebSocket-Protocol; a client without any speaks the protocol without a name.
    """
    names = [name.strip() for line in asked for name in line.split(",") if name.strip()] or [""]
    by_name = {dialect.name: dialect for dialect in known}
    return next((by_name[name] for name in names if name in by_name), None)


def encode(dialect: Dialect, channel: int, data: bytes) -> bytes:
    """Give the message that carries bytes of a channel."""
    if dialect.in_base64:
        return bytes((DIGIT + channel,)) + base64.b64encode(data)
    return bytes((channel,)) + data


def decode(dialect: Dialect, message: bytes) -> Piece | None:
    """Say what a client's message means; nothing for one that is empty or not base64, which clients of old may send.

    Raises ValueError for a message that breaks the protocol, after which the connection makes no sense any more.
    """
    if not message:
        return None
    if dialect.closes and message[0] == CLOSE:
        if len(message) != 2:
            raise ValueError(f"byte 255 says which channel ends by one byte, found {len(message) - 1}")
        return Piece(message[1], b"", last=True)
    if not dialect.in_base64:
        return Piece(message[0], message[1:])
    try:
        return Piece((message[0] - DIGIT) & 0xFF, base64.b64decode(message[1:], validate=True))
    except binascii.Error:
        return None
