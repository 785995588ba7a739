"""How Docker sends the output of a program without a terminal: frames of one stream each. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

STDOUT, STDERR, TROUBLE = 1, 2, 3
"""Streams; TROUBLE is what Docker itself has to say, when it cannot go on."""

HEADER_BYTES = 8


class Piece(NamedTuple):
    """Bytes of one frame; whether it `begins` with the first and `ends` with the last of them."""

    stream: int
    data: bytes
    begins: bool
    ends: bool


class Frames:
    """Takes frames apart, in any cuts, and keeps no bytes but those of a header.

    A frame is a header of eight bytes, the first being the stream and the last four the length, and the payload.
    """

    def __init__(self) -> None:
        self._header = b""
        self._stream = 0
        self._left = 0
        self._fresh = False

    @property
    def whole(self) -> bool:
        """Whether the last frame was complete."""
        return not self._left and not self._header

    def cut(self, data: bytes) -> Iterator[Piece]:
        """The pieces of frames that these bytes are."""
        at, end = 0, len(data)
        while at < end:
            if not self._left:
                taken = data[at : at + HEADER_BYTES - len(self._header)]
                self._header += taken
                at += len(taken)
                if len(self._header) < HEADER_BYTES:
                    return
                self._stream, self._left = self._header[0], int.from_bytes(self._header[4:])
                self._header, self._fresh = b"", True
            payload = data[at : at + self._left]
            at += len(payload)
            self._left -= len(payload)
            if payload:
                yield Piece(self._stream, payload, self._fresh, not self._left)
                self._fresh = False
