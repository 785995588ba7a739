"""Header blocks of SPDY: names and values, compressed as one zlib stream for each direction of a session. Pure."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator, Mapping

from streams.spdy.dictionary import DICTIONARY

MAX_BLOCK_BYTES = 64 * 1024
"""Largest accepted header block, uncompressed."""

UINT32 = struct.Struct(">I")

WINDOW_BITS = 12
"""zlib window of 4 KiB, which covers the dictionary and recent headers. A session keeps it in memory while it lives."""


class ProtocolError(Exception):
    """Input that is not SPDY/3.1 or exceeds a limit. The message says what was found and what is accepted."""


class HeaderCompressor:
    """A compressor of the header blocks of one direction.

    All blocks have to be sent, in order, because each block depends on earlier ones.
    """

    def __init__(self) -> None:
        self._stream = zlib.compressobj(wbits=WINDOW_BITS, zdict=DICTIONARY)

    def compress(self, headers: Mapping[str, str]) -> bytes:
        """Return the compressed block. Names are converted to lower case."""
        parts = [UINT32.pack(len(headers))]
        for name, value in headers.items():
            for text in (_encode(name.lower()), _encode(value)):
                parts += (UINT32.pack(len(text)), text)
        return self._stream.compress(b"".join(parts)) + self._stream.flush(zlib.Z_SYNC_FLUSH)


class HeaderDecompressor:
    """A decompressor of the header blocks of one direction. It needs all blocks, in order."""

    def __init__(self) -> None:
        self._stream = zlib.decompressobj(zdict=DICTIONARY)

    def decompress(self, compressed: bytes) -> dict[str, str]:
        """Return values by name. Several values of a name are joined by `, `, as in HTTP. Raises ProtocolError."""
        try:
            block = self._stream.decompress(compressed, MAX_BLOCK_BYTES + 1)
        except zlib.error as error:
            raise ProtocolError(f"a block of headers that zlib does not unpack: {error}") from error
        if len(block) > MAX_BLOCK_BYTES:
            raise ProtocolError(f"a block of headers of more than {MAX_BLOCK_BYTES} bytes, which is the most accepted")
        if self._stream.eof:
            raise ProtocolError("a block of headers that ends the compressed stream; it goes on for the whole session")
        return _parse_block(block)


def _encode(text: str) -> bytes:
    if "\0" in text:
        raise ValueError(f"a header with a zero byte: {text!r}")
    return text.encode("latin-1")


def _parse_block(block: bytes) -> dict[str, str]:
    strings = _block_strings(block)
    headers: dict[str, str] = {}
    for name, value in zip(strings, strings, strict=True):
        if not name or name != name.lower() or b"\0" in name:
            raise ProtocolError(f"a header named {name[:64]!r}: names are in lower case and not empty")
        key = name.decode("latin-1")
        if key in headers:
            raise ProtocolError(f"header {key[:64]!r} twice in one block")
        headers[key] = value.replace(b"\0", b", ").decode("latin-1")
    return headers


def _block_strings(block: bytes) -> Iterator[bytes]:
    """Yield names and values alternately. Raises ProtocolError if the block does not contain the announced pairs."""
    if len(block) < UINT32.size:
        raise ProtocolError(f"a block of headers of {len(block)} bytes; it begins with their number in 4")
    (pairs,) = UINT32.unpack_from(block)
    position = UINT32.size
    for _ in range(pairs * 2):
        if position + UINT32.size > len(block):
            raise ProtocolError(f"a block of {pairs} headers that ends within them, at byte {position}")
        (length,) = UINT32.unpack_from(block, position)
        position += UINT32.size
        if length > len(block) - position:
            raise ProtocolError(f"a header of {length} bytes where {len(block) - position} are left in its block")
        yield block[position : position + length]
        position += length
    if position != len(block):
        raise ProtocolError(f"{len(block) - position} bytes behind the last of {pairs} headers")
