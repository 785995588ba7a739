"""WebSocket frames (RFC 6455). Pure.

The bytes of a message are returned as they arrive, however long the message is. So a slow reader can stop the client in
the middle of a message.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

CONTINUATION, TEXT, BINARY, CLOSE, PING, PONG = 0, 1, 2, 8, 9, 10
DATA_OPCODES = frozenset({CONTINUATION, TEXT, BINARY})
OPCODES = DATA_OPCODES | {CLOSE, PING, PONG}
FIN, RESERVED, MASKED = 0x80, 0x70, 0x80
MAX_CONTROL_BYTES = 125


@dataclass(frozen=True, slots=True)
class MessagePart:
    """The next bytes of a message. `last` says whether the message ends with them."""

    data: bytes
    last: bool


@dataclass(frozen=True, slots=True)
class ControlFrame:
    """A close, ping or pong."""

    opcode: int
    data: bytes


class WebSocketFrameParser:
    """A parser of the frames of a client."""

    def __init__(self) -> None:
        self._header = bytearray()
        self._opcode = CONTINUATION
        self._final = True
        self._mask = b""
        self._remaining = 0
        """Bytes of the current frame that have not arrived."""
        self._in_message = False
        """Whether a message has begun and not ended."""
        self._control = bytearray()

    def feed(self, data: bytes) -> list[MessagePart | ControlFrame]:
        """Return what these bytes carry. Raises ValueError for a protocol error, after which no bytes are accepted."""
        received: list[MessagePart | ControlFrame] = []
        position = 0
        while position < len(data):
            if not self._remaining:
                missing = self._header_size() - len(self._header)
                self._header += data[position : position + missing]
                position += missing
                if len(self._header) == self._header_size():
                    self._begin_frame()
                    if not self._remaining:
                        self._add_payload(b"", received)
                continue
            payload = data[position : position + self._remaining]
            position += len(payload)
            self._remaining -= len(payload)
            self._add_payload(self._unmask(payload), received)
        return received

    def _header_size(self) -> int:
        if len(self._header) < 2:
            return 2
        length_size = {126: 2, 127: 8}.get(self._header[1] & 0x7F, 0)
        mask_size = 4 if self._header[1] & MASKED else 0
        return 2 + length_size + mask_size

    def _begin_frame(self) -> None:
        header = bytes(self._header)
        self._header = bytearray()
        opcode = header[0] & 0x0F
        final = bool(header[0] & FIN)
        size = header[1] & 0x7F
        if header[0] & RESERVED or opcode not in OPCODES:
            raise ValueError(f"frames have no reserved bits and known opcodes only, found {header[0]:#04x}")
        if not header[1] & MASKED:
            raise ValueError("frames of a client are masked")
        if size == 126:
            (size,) = struct.unpack_from(">H", header, 2)
        elif size == 127:
            (size,) = struct.unpack_from(">Q", header, 2)
            if size >> 63:
                raise ValueError(f"a frame has at most 2^63-1 bytes, found {size}")
        if opcode not in DATA_OPCODES:
            if not final or size > MAX_CONTROL_BYTES:
                raise ValueError(f"close, ping and pong are one frame of at most {MAX_CONTROL_BYTES} bytes")
        elif self._in_message is not (opcode == CONTINUATION):
            raise ValueError(f"a message continues until its last frame, found a frame with opcode {opcode}")
        self._opcode = opcode
        self._final = final
        self._remaining = size
        self._mask = header[-4:]
        if opcode in DATA_OPCODES:
            self._in_message = not final

    def _add_payload(self, payload: bytes, received: list[MessagePart | ControlFrame]) -> None:
        """Add bytes of the current frame: data at once, a control frame when it is complete."""
        if self._opcode in DATA_OPCODES:
            last = self._final and not self._remaining
            if payload or last:
                received.append(MessagePart(payload, last))
            return
        self._control += payload
        if not self._remaining:
            received.append(ControlFrame(self._opcode, bytes(self._control)))
            self._control.clear()

    def _unmask(self, data: bytes) -> bytes:
        size = len(data)
        key = (self._mask * (size // 4 + 1))[:size]
        offset = size % 4
        self._mask = self._mask[offset:] + self._mask[:offset]
        return (int.from_bytes(data) ^ int.from_bytes(key)).to_bytes(size)


def encode_frame(opcode: int, payload: bytes) -> bytes:
    """Return the frame of a complete message, or of a control frame, as a server sends it."""
    size = len(payload)
    if size <= 125:
        header = struct.pack(">BB", FIN | opcode, size)
    elif size <= 0xFFFF:
        header = struct.pack(">BBH", FIN | opcode, 126, size)
    else:
        header = struct.pack(">BBQ", FIN | opcode, 127, size)
    return header + payload
