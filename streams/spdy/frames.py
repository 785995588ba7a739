"""Frames of SPDY/3.1 as values, and their bytes: draft-mbelshe-httpbis-spdy-00 with the session window of 3.1."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from streams.spdy.headers import WORD, Malformed, Packer, Unpacker

VERSION: Final = 3
FIN, UNIDIRECTIONAL = 1, 2
LONGEST_CONTROL: Final = 64 * 1024
"""The longest control frame accepted; data is handed on as it comes and may be as long as SPDY allows."""

LONGEST_DATA: Final = 0xFFFFFF
ID: Final = 0x7FFFFFFF
HEAD: Final = struct.Struct(">II")
CONTROL_HEAD: Final = struct.Struct(">HHI")

PROTOCOL_ERROR, INVALID_STREAM, REFUSED_STREAM, CANCEL, STREAM_IN_USE, STREAM_ALREADY_CLOSED = 1, 2, 3, 5, 8, 9
"""Why a stream is reset."""

WENT_WELL, WENT_AGAINST_PROTOCOL = 0, 1
"""Why a session is left."""


@dataclass(frozen=True, slots=True)
class SynStream:
    """Opens a stream; `fin` says that its opener sends nothing, `unidirectional` that nothing is to be answered."""

    stream_id: int
    headers: Mapping[str, str]
    fin: bool = False
    unidirectional: bool = False


@dataclass(frozen=True, slots=True)
class SynReply:
    """Accepts a stream."""

    stream_id: int
    headers: Mapping[str, str] = field(default_factory=dict)
    fin: bool = False


@dataclass(frozen=True, slots=True)
class RstStream:
    """Ends a stream at once, both ways."""

    stream_id: int
    status: int


@dataclass(frozen=True, slots=True)
class Settings:
    """What a side would have the other know: number, flags and value of each."""

    values: tuple[tuple[int, int, int], ...] = ()


@dataclass(frozen=True, slots=True)
class Ping:
    """To be sent back as it is by the side that did not think it up: odd numbers are the client's."""

    number: int


@dataclass(frozen=True, slots=True)
class GoAway:
    """No stream above the last one has been or will be taken."""

    last_stream_id: int
    status: int = WENT_WELL


@dataclass(frozen=True, slots=True)
class Headers:
    """More headers of a stream."""

    stream_id: int
    headers: Mapping[str, str]
    fin: bool = False


@dataclass(frozen=True, slots=True)
class WindowUpdate:
    """So many bytes were consumed, of one stream or, with number 0, of the session."""

    stream_id: int
    consumed: int


@dataclass(frozen=True, slots=True)
class Data:
    """Bytes of a stream: a whole frame when sent, as much as has come of one when received."""

    stream_id: int
    data: bytes
    fin: bool = False


Frame = SynStream | SynReply | RstStream | Settings | Ping | GoAway | Headers | WindowUpdate | Data


def data_head(stream_id: int, length: int, fin: bool) -> bytes:
    """Give what stands before the bytes of a data frame, for those who send them without copying."""
    return HEAD.pack(stream_id, FIN * fin << 24 | length)


class Encoder:
    """Frames into bytes, in the order in which they are sent: the headers of one rest on those before."""

    def __init__(self) -> None:
        self._packer = Packer()

    def encode(self, frame: Frame) -> bytes:
        """Give the bytes of a frame."""
        match frame:
            case Data(stream_id, data, fin):
                return data_head(stream_id, len(data), fin) + data
            case SynStream(stream_id, headers, fin, unidirectional):
                flags = FIN * fin | UNIDIRECTIONAL * unidirectional
                encoded = _control(1, flags, struct.pack(">IIH", stream_id, 0, 0) + self._packer.pack(headers))
            case SynReply(stream_id, headers, fin):
                encoded = _control(2, FIN * fin, WORD.pack(stream_id) + self._packer.pack(headers))
            case RstStream(stream_id, status):
                encoded = _control(3, 0, HEAD.pack(stream_id, status))
            case Settings(values):
                entries = b"".join(HEAD.pack(flags << 24 | number, value) for number, flags, value in values)
                encoded = _control(4, 0, WORD.pack(len(values)) + entries)
            case Ping(number):
                encoded = _control(6, 0, WORD.pack(number))
            case GoAway(last_stream_id, status):
                encoded = _control(7, 0, HEAD.pack(last_stream_id, status))
            case Headers(stream_id, headers, fin):
                encoded = _control(8, FIN * fin, WORD.pack(stream_id) + self._packer.pack(headers))
            case WindowUpdate(stream_id, consumed):
                encoded = _control(9, 0, HEAD.pack(stream_id, consumed))
        return encoded


def _control(kind: int, flags: int, body: bytes) -> bytes:
    return CONTROL_HEAD.pack(0x8000 | VERSION, kind, flags << 24 | len(body)) + body


class Decoder:
    """Bytes into frames, however the bytes are cut; what is malformed or too long ends it with `Malformed`."""

    def __init__(self) -> None:
        self._unpacker = Unpacker()
        self._held = bytearray()
        """The beginning of a head, or of a control frame with its head."""
        self._wanted = HEAD.size
        self._stream_id, self._left, self._fin = 0, 0, False
        """Of the data frame whose bytes are coming; stream 0 is a control frame that is passed over."""
        self._readers: dict[int, tuple[str, Callable[[int, bytes], Frame]]] = {
            1: ("SYN_STREAM", self._syn_stream),
            2: ("SYN_REPLY", self._syn_reply),
            3: ("RST_STREAM", _rst_stream),
            4: ("SETTINGS", _settings),
            6: ("PING", _ping),
            7: ("GOAWAY", _go_away),
            8: ("HEADERS", self._headers),
            9: ("WINDOW_UPDATE", _window_update),
        }

    @property
    def between_frames(self) -> bool:
        """Whether what was fed ends with a whole frame."""
        return not self._held and not self._left

    def feed(self, data: bytes) -> Iterator[Frame]:
        """Give the frames that these bytes complete, and the parts of data frames they bring; to be exhausted."""
        view = memoryview(data)
        at = 0
        while at < len(view):
            if self._left:
                part = view[at : at + self._left]
                self._left -= len(part)
                at += len(part)
                if self._stream_id:
                    yield Data(self._stream_id, bytes(part), self._fin and not self._left)
                continue
            part = view[at : at + self._wanted - len(self._held)]
            self._held += part
            at += len(part)
            if len(self._held) == self._wanted and (frame := self._take()):
                yield frame

    def _take(self) -> Frame | None:
        """Read what is held, now that it is as long as was wanted: a head, or a control frame with its head."""
        first, second = HEAD.unpack_from(self._held)
        flags, length = second >> 24, second & 0xFFFFFF
        if not first >> 31:
            self._held.clear()
            return self._data(first, flags, length)
        version, kind = first >> 16 & 0x7FFF, first & 0xFFFF
        if version != VERSION:
            raise Malformed(f"a control frame of SPDY version {version}; version {VERSION} is accepted")
        if kind not in self._readers:
            self._held.clear()
            self._stream_id, self._left, self._fin = 0, length, False
            return None
        name, read = self._readers[kind]
        if len(self._held) < HEAD.size + length:
            if length > LONGEST_CONTROL:
                raise Malformed(f"{name} of {length} bytes; control frames of up to {LONGEST_CONTROL} are accepted")
            self._wanted = HEAD.size + length
            return None
        body = bytes(memoryview(self._held)[HEAD.size :])
        self._held = bytearray()
        self._wanted = HEAD.size
        try:
            return read(flags, body)
        except struct.error as error:
            raise Malformed(f"{name} of {length} bytes, which is too short") from error
        except Malformed as error:
            raise Malformed(f"{name}: {error}") from error

    def _data(self, stream_id: int, flags: int, length: int) -> Frame | None:
        if not stream_id:
            raise Malformed("data for stream 0, which is the session itself")
        fin = bool(flags & FIN)
        if not length:
            return Data(stream_id, b"", fin)
        self._stream_id, self._left, self._fin = stream_id, length, fin
        return None

    def _syn_stream(self, flags: int, body: bytes) -> SynStream:
        first, _, _ = struct.unpack_from(">IIH", body)
        headers = self._unpacker.unpack(body[10:])
        return SynStream(_stream_id(first), headers, bool(flags & FIN), bool(flags & UNIDIRECTIONAL))

    def _syn_reply(self, flags: int, body: bytes) -> SynReply:
        (first,) = WORD.unpack_from(body)
        return SynReply(_stream_id(first), self._unpacker.unpack(body[4:]), bool(flags & FIN))

    def _headers(self, flags: int, body: bytes) -> Headers:
        (first,) = WORD.unpack_from(body)
        return Headers(_stream_id(first), self._unpacker.unpack(body[4:]), bool(flags & FIN))


def _stream_id(word: int) -> int:
    if not word & ID:
        raise Malformed("stream 0, which is the session itself")
    return word & ID


def _exactly(body: bytes, length: int) -> bytes:
    if len(body) != length:
        raise Malformed(f"{len(body)} bytes; it has {length}")
    return body


def _rst_stream(_: int, body: bytes) -> RstStream:
    stream_id, status = HEAD.unpack(_exactly(body, 8))
    if not status:
        raise Malformed("status 0, which is no reason")
    return RstStream(_stream_id(stream_id), status)


def _settings(_: int, body: bytes) -> Settings:
    (entries,) = WORD.unpack_from(body)
    words = struct.iter_unpack(">II", _exactly(body, 4 + 8 * entries)[4:])
    return Settings(tuple((first & 0xFFFFFF, first >> 24, value) for first, value in words))


def _ping(_: int, body: bytes) -> Ping:
    return Ping(*WORD.unpack(_exactly(body, 4)))


def _go_away(_: int, body: bytes) -> GoAway:
    last, status = HEAD.unpack(_exactly(body, 8))
    return GoAway(last & ID, status)


def _window_update(_: int, body: bytes) -> WindowUpdate:
    stream_id, consumed = HEAD.unpack(_exactly(body, 8))
    return WindowUpdate(stream_id & ID, consumed & ID)
