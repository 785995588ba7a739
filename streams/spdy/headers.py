"""Blocks of names and values: compressed in SPDY as one stream for each direction, with the dictionary of SPDY/3."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator, Mapping

from streams.spdy.dictionary import DICTIONARY

LONGEST_BLOCK = 64 * 1024
"""The most bytes that one block may have when it is unpacked."""

WORD = struct.Struct(">I")
WINDOW_BITS = 12
"""4 KiB see the whole dictionary and what went before; a session holds them as long as it lives."""


class Malformed(Exception):
    """What came is not SPDY/3.1, or more than is accepted; `str(error)` says what was found and what is accepted."""


class Packer:
    """Makes the blocks of one direction: each rests on those before it, so all of them are to be sent, in order."""

    def __init__(self) -> None:
        self._stream = zlib.compressobj(wbits=WINDOW_BITS, zdict=DICTIONARY)

    def pack(self, headers: Mapping[str, str]) -> bytes:
        """Give the compressed block; names are written in lower case."""
        words = [WORD.pack(len(headers))]
        for name, value in headers.items():
            for word in (_bytes(name.lower()), _bytes(value)):
                words += (WORD.pack(len(word)), word)
        return self._stream.compress(b"".join(words)) + self._stream.flush(zlib.Z_SYNC_FLUSH)


class Unpacker:
    """Reads the blocks of one direction, all of them and in order."""

    def __init__(self) -> None:
        self._stream = zlib.decompressobj(zdict=DICTIONARY)

    def unpack(self, packed: bytes) -> dict[str, str]:
        """Give names and values; several values of one name come joined by `, `, as in HTTP."""
        try:
            block = self._stream.decompress(packed, LONGEST_BLOCK + 1)
        except zlib.error as error:
            raise Malformed(f"a block of headers that zlib does not unpack: {error}") from error
        if len(block) > LONGEST_BLOCK:
            raise Malformed(f"a block of headers of more than {LONGEST_BLOCK} bytes, which is the most accepted")
        if self._stream.eof:
            raise Malformed("a block of headers that ends the compressed stream; it goes on for the whole session")
        return _headers(block)


def _bytes(text: str) -> bytes:
    if "\0" in text:
        raise ValueError(f"a header with a zero byte: {text!r}")
    return text.encode("latin-1")


def _headers(block: bytes) -> dict[str, str]:
    words = _words(block)
    headers: dict[str, str] = {}
    for name, value in zip(words, words, strict=True):
        if not name or name != name.lower() or b"\0" in name:
            raise Malformed(f"a header named {name[:64]!r}: names are in lower case and not empty")
        key = name.decode("latin-1")
        if key in headers:
            raise Malformed(f"header {key[:64]!r} twice in one block")
        headers[key] = value.replace(b"\0", b", ").decode("latin-1")
    return headers


def _words(block: bytes) -> Iterator[bytes]:
    """Walk over names and values in turn; the number of pairs stands in front and must fit."""
    if len(block) < WORD.size:
        raise Malformed(f"a block of headers of {len(block)} bytes; it begins with their number in 4")
    (pairs,) = WORD.unpack_from(block)
    at = WORD.size
    for _ in range(pairs * 2):
        if at + WORD.size > len(block):
            raise Malformed(f"a block of {pairs} headers that ends within them, at byte {at}")
        (length,) = WORD.unpack_from(block, at)
        at += WORD.size
        if length > len(block) - at:
            raise Malformed(f"a header of {length} bytes where {len(block) - at} are left in its block")
        yield block[at : at + length]
        at += length
    if at != len(block):
        raise Malformed(f"{len(block) - at} bytes behind the last of {pairs} headers")
