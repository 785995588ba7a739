"""Frames of SPDY/3.1 as values, and their bytes: draft-mbelshe-httpbis-spdy-00 plus the session window of 3.1. Pure."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from streams.spdy.headers import UINT32, HeaderCompressor, HeaderDecompressor, ProtocolError

VERSION: Final = 3

FLAG_FIN, FLAG_UNIDIRECTIONAL = 1, 2

MAX_CONTROL_BYTES: Final = 64 * 1024
"""Longest accepted control frame. Data frames have no limit, because their bytes are passed on as they arrive."""

STREAM_ID_MASK: Final = 0x7FFFFFFF
FRAME_HEADER: Final = struct.Struct(">II")
CONTROL_HEADER: Final = struct.Struct(">HHI")

PROTOCOL_ERROR, INVALID_STREAM, REFUSED_STREAM, CANCEL, STREAM_IN_USE, STREAM_ALREADY_CLOSED = 1, 2, 3, 5, 8, 9
"""Status codes of RST_STREAM."""

GOAWAY_OK, GOAWAY_PROTOCOL_ERROR = 0, 1
"""Status codes of GOAWAY."""


@dataclass(frozen=True, slots=True)
class SynStream:
    """SYN_STREAM: opens a stream. With `fin` the opener sends no data, with `unidirectional` the peer sends none."""

    stream_id: int
    headers: Mapping[str, str]
    fin: bool = False
    unidirectional: bool = False


@dataclass(frozen=True, slots=True)
class SynReply:
    """SYN_REPLY: accepts a stream."""

    stream_id: int
    headers: Mapping[str, str] = field(default_factory=dict)
    fin: bool = False


@dataclass(frozen=True, slots=True)
class RstStream:
    """RST_STREAM: closes a stream at once, in both directions."""

    stream_id: int
    status: int


@dataclass(frozen=True, slots=True)
class Settings:
    """SETTINGS: ID, flags and value of each setting that the sender announces."""

    values: tuple[tuple[int, int, int], ...] = ()


@dataclass(frozen=True, slots=True)
class Ping:
    """PING: returned unchanged by the receiver. The client's pings have odd IDs, the server's even ones."""

    ping_id: int


@dataclass(frozen=True, slots=True)
class GoAway:
    """GOAWAY: the sender accepts no stream with an ID above `last_stream_id`."""

    last_stream_id: int
    status: int = GOAWAY_OK


@dataclass(frozen=True, slots=True)
class Headers:
    """HEADERS: additional headers of a stream."""

    stream_id: int
    headers: Mapping[str, str]
    fin: bool = False


@dataclass(frozen=True, slots=True)
class WindowUpdate:
    """WINDOW_UPDATE: `delta` bytes were consumed, of one stream or, with stream ID 0, of the session."""

    stream_id: int
    delta: int


@dataclass(frozen=True, slots=True)
class Data:
    """Bytes of a stream: a whole data frame when sent, a part of a data frame when received."""

    stream_id: int
    data: bytes
    fin: bool = False


Frame = SynStream | SynReply | RstStream | Settings | Ping | GoAway | Headers | WindowUpdate | Data


def data_header(stream_id: int, length: int, fin: bool) -> bytes:
    """Return the header of a data frame, for a sender that does not copy the data behind it."""
    return FRAME_HEADER.pack(stream_id, FLAG_FIN * fin << 24 | length)


class Encoder:
    """An encoder of frames. Frames are encoded in the order of sending, because headers depend on earlier ones."""

    def __init__(self) -> None:
        self._compressor = HeaderCompressor()

    def encode(self, frame: Frame) -> bytes:
        """Return the bytes of a frame."""
        match frame:
            case Data(stream_id, data, fin):
                encoded = data_header(stream_id, len(data), fin) + data
            case SynStream(stream_id, headers, fin, unidirectional):
                flags = FLAG_FIN * fin | FLAG_UNIDIRECTIONAL * unidirectional
                body = struct.pack(">IIH", stream_id, 0, 0) + self._compressor.compress(headers)
                encoded = _encode_control(1, flags, body)
            case SynReply(stream_id, headers, fin):
                body = UINT32.pack(stream_id) + self._compressor.compress(headers)
                encoded = _encode_control(2, FLAG_FIN * fin, body)
            case RstStream(stream_id, status):
                encoded = _encode_control(3, 0, FRAME_HEADER.pack(stream_id, status))
            case Settings(values):
                entries = (FRAME_HEADER.pack(flags << 24 | setting_id, value) for setting_id, flags, value in values)
                encoded = _encode_control(4, 0, UINT32.pack(len(values)) + b"".join(entries))
            case Ping(ping_id):
                encoded = _encode_control(6, 0, UINT32.pack(ping_id))
            case GoAway(last_stream_id, status):
                encoded = _encode_control(7, 0, FRAME_HEADER.pack(last_stream_id, status))
            case Headers(stream_id, headers, fin):
                body = UINT32.pack(stream_id) + self._compressor.compress(headers)
                encoded = _encode_control(8, FLAG_FIN * fin, body)
            case WindowUpdate(stream_id, delta):
                encoded = _encode_control(9, 0, FRAME_HEADER.pack(stream_id, delta))
        return encoded


class Decoder:
    """A decoder of frames from bytes that arrive in pieces of any size."""

    def __init__(self) -> None:
        self._decompressor = HeaderDecompressor()
        self._buffer = bytearray()
        """The start of a frame header, or of a control frame with its header."""
        self._needed = FRAME_HEADER.size
        """Length that the buffer must have before it can be parsed."""
        self._data_stream_id = 0
        """Stream of the data frame that is being received; 0 for an unknown control frame, which is skipped."""
        self._data_remaining = 0
        self._data_fin = False
        self._parsers: dict[int, tuple[str, Callable[[int, bytes], Frame]]] = {
            1: ("SYN_STREAM", self._parse_syn_stream),
            2: ("SYN_REPLY", self._parse_syn_reply),
            3: ("RST_STREAM", _parse_rst_stream),
            4: ("SETTINGS", _parse_settings),
            6: ("PING", _parse_ping),
            7: ("GOAWAY", _parse_go_away),
            8: ("HEADERS", self._parse_headers),
            9: ("WINDOW_UPDATE", _parse_window_update),
        }

    @property
    def at_frame_boundary(self) -> bool:
        """Whether the input so far ends with a complete frame."""
        return not self._buffer and not self._data_remaining

    def feed(self, data: bytes) -> Iterator[Frame]:
        """Yield the frames that these bytes complete and the parts of data frames in them. Raises ProtocolError.

        The iterator must be exhausted, because it decodes while it is consumed.
        """
        view = memoryview(data)
        position = 0
        while position < len(view):
            if self._data_remaining:
                part = view[position : position + self._data_remaining]
                self._data_remaining -= len(part)
                position += len(part)
                if self._data_stream_id:
                    yield Data(self._data_stream_id, bytes(part), self._data_fin and not self._data_remaining)
                continue
            part = view[position : position + self._needed - len(self._buffer)]
            self._buffer += part
            position += len(part)
            if len(self._buffer) == self._needed and (frame := self._parse_buffer()):
                yield frame

    def _parse_buffer(self) -> Frame | None:
        """Parse the buffer, which has the needed length: a frame header, or a control frame with its header.

        Returns None if the rest of the frame is still to come.
        """
        first, second = FRAME_HEADER.unpack_from(self._buffer)
        flags = second >> 24
        length = second & 0xFFFFFF
        if not first >> 31:
            self._buffer.clear()
            return self._start_data(first, flags, length)
        version = first >> 16 & 0x7FFF
        frame_type = first & 0xFFFF
        if version != VERSION:
            raise ProtocolError(f"a control frame of SPDY version {version}; version {VERSION} is accepted")
        if frame_type not in self._parsers:
            self._buffer.clear()
            self._data_stream_id = 0
            self._data_remaining = length
            self._data_fin = False
            return None
        name, parse = self._parsers[frame_type]
        if len(self._buffer) < FRAME_HEADER.size + length:
            if length > MAX_CONTROL_BYTES:
                raise ProtocolError(
                    f"{name} of {length} bytes; control frames of up to {MAX_CONTROL_BYTES} are accepted"
                )
            self._needed = FRAME_HEADER.size + length
            return None
        body = bytes(memoryview(self._buffer)[FRAME_HEADER.size :])
        self._buffer = bytearray()
        self._needed = FRAME_HEADER.size
        try:
            return parse(flags, body)
        except struct.error as error:
            raise ProtocolError(f"{name} of {length} bytes, which is too short") from error
        except ProtocolError as error:
            raise ProtocolError(f"{name}: {error}") from error

    def _start_data(self, stream_id: int, flags: int, length: int) -> Frame | None:
        if not stream_id:
            raise ProtocolError("data for stream 0, which is the session itself")
        fin = bool(flags & FLAG_FIN)
        if not length:
            return Data(stream_id, b"", fin)
        self._data_stream_id = stream_id
        self._data_remaining = length
        self._data_fin = fin
        return None

    def _parse_syn_stream(self, flags: int, body: bytes) -> SynStream:
        word, _, _ = struct.unpack_from(">IIH", body)
        headers = self._decompressor.decompress(body[10:])
        return SynStream(_nonzero_stream_id(word), headers, bool(flags & FLAG_FIN), bool(flags & FLAG_UNIDIRECTIONAL))

    def _parse_syn_reply(self, flags: int, body: bytes) -> SynReply:
        (word,) = UINT32.unpack_from(body)
        return SynReply(_nonzero_stream_id(word), self._decompressor.decompress(body[4:]), bool(flags & FLAG_FIN))

    def _parse_headers(self, flags: int, body: bytes) -> Headers:
        (word,) = UINT32.unpack_from(body)
        return Headers(_nonzero_stream_id(word), self._decompressor.decompress(body[4:]), bool(flags & FLAG_FIN))


def _encode_control(frame_type: int, flags: int, body: bytes) -> bytes:
    return CONTROL_HEADER.pack(0x8000 | VERSION, frame_type, flags << 24 | len(body)) + body


def _nonzero_stream_id(word: int) -> int:
    if not word & STREAM_ID_MASK:
        raise ProtocolError("stream 0, which is the session itself")
    return word & STREAM_ID_MASK


def _check_length(body: bytes, length: int) -> bytes:
    if len(body) != length:
        raise ProtocolError(f"{len(body)} bytes; it has {length}")
    return body


def _parse_rst_stream(_: int, body: bytes) -> RstStream:
    word, status = FRAME_HEADER.unpack(_check_length(body, 8))
    if not status:
        raise ProtocolError("status 0, which is no reason")
    return RstStream(_nonzero_stream_id(word), status)


def _parse_settings(_: int, body: bytes) -> Settings:
    (entries,) = UINT32.unpack_from(body)
    words = struct.iter_unpack(">II", _check_length(body, 4 + 8 * entries)[4:])
    return Settings(tuple((word & 0xFFFFFF, word >> 24, value) for word, value in words))


def _parse_ping(_: int, body: bytes) -> Ping:
    return Ping(*UINT32.unpack(_check_length(body, 4)))


def _parse_go_away(_: int, body: bytes) -> GoAway:
    last_stream_id, status = FRAME_HEADER.unpack(_check_length(body, 8))
    return GoAway(last_stream_id & STREAM_ID_MASK, status)


def _parse_window_update(_: int, body: bytes) -> WindowUpdate:
    stream_id, delta = FRAME_HEADER.unpack(_check_length(body, 8))
    return WindowUpdate(stream_id & STREAM_ID_MASK, delta & STREAM_ID_MASK)
