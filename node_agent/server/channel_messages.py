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


class Decoder:
    """Says what the messages of a client mean, as their bytes come."""

    def __init__(self, dialect: Dialect) -> None:
        self._dialect = dialect
        self._begin()

    def _begin(self) -> None:
        self._channel: int | None = None
        self._rest = b""
        """What means nothing before more has come."""
        self._spoilt = False

    def feed(self, data: bytes, *, last: bool) -> Piece | None:
        """Give what the next bytes of a message carry, which may be `last`.

        Nothing for a message that is empty, and from where one is not base64, which clients of old may send. Raises
        ValueError for a message that breaks the protocol, after which the connection makes no sense any more.
        """
        if self._channel is None and data:
            self._channel, data = data[0], data[1:]
        piece = None if self._channel is None else self._piece(self._channel, data, last)
        if last:
            self._begin()
        return piece

    def _piece(self, channel: int, data: bytes, last: bool) -> Piece | None:
        if self._dialect.closes and channel == CLOSE:
            self._rest += data[:2]
            if len(self._rest) > 1 or (last and not self._rest):
                raise ValueError(f"byte 255 says which channel ends by one byte, found {len(self._rest)} or more")
            return Piece(self._rest[0], b"", last=True) if last else None
        if not self._dialect.in_base64:
            return Piece(channel, data)
        return self._of_base64((channel - DIGIT) & 0xFF, data, last)

    def _of_base64(self, channel: int, data: bytes, last: bool) -> Piece | None:
        """Four characters are three bytes; after `=` no character has a meaning."""
        if self._spoilt:
            return None
        data = self._rest + data
        whole = len(data) if last else len(data) // 4 * 4
        text, self._rest = data[:whole], data[whole:]
        try:
            found = base64.b64decode(text, validate=True)
        except binascii.Error:
            self._spoilt = True
            return None
        self._spoilt = text.endswith(b"=")
        return Piece(channel, found)
