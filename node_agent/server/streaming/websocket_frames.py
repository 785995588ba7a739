"""WebSocket frames (RFC 6455). Pure.

However long a message is, its bytes are given as they come: who reads slowly holds up the client in the middle of one.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

CONTINUATION, TEXT, BINARY, CLOSE, PING, PONG = 0, 1, 2, 8, 9, 10
DATA = frozenset({CONTINUATION, TEXT, BINARY})
KNOWN = DATA | {CLOSE, PING, PONG}
FIN, RESERVED, MASKED = 0x80, 0x70, 0x80
MOST_CONTROL = 125


@dataclass(frozen=True, slots=True)
class MessagePart:
    """The next bytes of a message; `last` says that it ends with them."""

    data: bytes
    last: bool


@dataclass(frozen=True, slots=True)
class ControlFrame:
    """A close, ping or pong."""

    kind: int
    data: bytes


class WebSocketFrameParser:
    """Reads the frames of a client."""

    def __init__(self) -> None:
        self._head = bytearray()
        self._kind = CONTINUATION
        self._final = True
        self._mask = b""
        self._left = 0
        """Bytes of this frame that have not come."""
        self._inside = False
        """A message has begun and not ended."""
        self._control = bytearray()

    def feed(self, data: bytes) -> list[MessagePart | ControlFrame]:
        """Give what these bytes carry. Raises ValueError for what breaks the protocol; nothing can follow it."""
        found: list[MessagePart | ControlFrame] = []
        at = 0
        while at < len(data):
            if not self._left:
                missing = self._head_size() - len(self._head)
                self._head += data[at : at + missing]
                at += missing
                if len(self._head) == self._head_size():
                    self._begin()
                    if not self._left:
                        self._take(b"", found)
                continue
            piece = data[at : at + self._left]
            at += len(piece)
            self._left -= len(piece)
            self._take(self._unmasked(piece), found)
        return found

    def _head_size(self) -> int:
        if len(self._head) < 2:
            return 2
        return 2 + {126: 2, 127: 8}.get(self._head[1] & 0x7F, 0) + (4 if self._head[1] & MASKED else 0)

    def _begin(self) -> None:
        head, self._head = bytes(self._head), bytearray()
        kind, final, size = head[0] & 0x0F, bool(head[0] & FIN), head[1] & 0x7F
        if head[0] & RESERVED or kind not in KNOWN:
            raise ValueError(f"frames have no reserved bits and known kinds only, found {head[0]:#04x}")
        if not head[1] & MASKED:
            raise ValueError("frames of a client are masked")
        if size == 126:
            (size,) = struct.unpack_from(">H", head, 2)
        elif size == 127:
            (size,) = struct.unpack_from(">Q", head, 2)
            if size >> 63:
                raise ValueError(f"a frame has at most 2^63-1 bytes, found {size}")
        if kind not in DATA:
            if not final or size > MOST_CONTROL:
                raise ValueError(f"close, ping and pong are one frame of at most {MOST_CONTROL} bytes")
        elif self._inside is not (kind == CONTINUATION):
            raise ValueError(f"a message goes on until its last frame, found a frame of kind {kind}")
        self._kind, self._final, self._left = kind, final, size
        self._mask = head[-4:]
        if kind in DATA:
            self._inside = not final

    def _take(self, data: bytes, found: list[MessagePart | ControlFrame]) -> None:
        """Bytes of the frame that has begun; all that came of it when nothing is left."""
        if self._kind in DATA:
            last = self._final and not self._left
            if data or last:
                found.append(MessagePart(data, last))
            return
        self._control += data
        if not self._left:
            found.append(ControlFrame(self._kind, bytes(self._control)))
            self._control.clear()

    def _unmasked(self, data: bytes) -> bytes:
        size, mask = len(data), self._mask
        key = (mask * (size // 4 + 1))[:size]
        self._mask = mask[size % 4 :] + mask[: size % 4]
        return (int.from_bytes(data) ^ int.from_bytes(key)).to_bytes(size)


def encode_frame(kind: int, payload: bytes) -> bytes:
    """A whole message, or a control frame, as a server sends it."""
    size = len(payload)
    if size <= 125:
        head = struct.pack(">BB", FIN | kind, size)
    elif size <= 0xFFFF:
        head = struct.pack(">BBH", FIN | kind, 126, size)
    else:
        head = struct.pack(">BBQ", FIN | kind, 127, size)
    return head + payload
