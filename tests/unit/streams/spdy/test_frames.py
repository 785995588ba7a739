"""Frames and headers of SPDY."""

from __future__ import annotations

import hashlib
import struct
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streams.spdy.dictionary import DICTIONARY
from streams.spdy.frames import (
    Data,
    Decoder,
    Encoder,
    Frame,
    GoAway,
    Headers,
    Ping,
    RstStream,
    Settings,
    SynReply,
    SynStream,
    WindowUpdate,
    data_header,
)
from streams.spdy.headers import MAX_BLOCK_BYTES, HeaderCompressor, HeaderDecompressor, ProtocolError

IDS = st.integers(1, 2**31 - 1)
WORDS = st.integers(0, 2**31 - 1)
LATIN = st.characters(min_codepoint=1, max_codepoint=255)
NAMES = st.text(st.characters(codec="ascii", exclude_characters="\0", exclude_categories=["Lu"]), min_size=1)
HEADERS = st.dictionaries(NAMES, st.text(LATIN), max_size=5)
FRAMES: st.SearchStrategy[Frame] = st.one_of(
    st.builds(SynStream, IDS, HEADERS, st.booleans(), st.booleans()),
    st.builds(SynReply, IDS, HEADERS, st.booleans()),
    st.builds(RstStream, IDS, st.integers(1, 2**32 - 1)),
    st.builds(
        Settings,
        st.lists(st.tuples(st.integers(0, 2**24 - 1), st.integers(0, 255), st.integers(0, 2**32 - 1))).map(tuple),
    ),
    st.builds(Ping, st.integers(0, 2**32 - 1)),
    st.builds(GoAway, WORDS, st.integers(0, 2**32 - 1)),
    st.builds(Headers, IDS, HEADERS, st.booleans()),
    st.builds(WindowUpdate, WORDS, WORDS),
    st.builds(Data, IDS, st.binary(), st.booleans()),
)


def whole(frames: list[Frame]) -> list[Frame]:
    """Join the parts of data frames as they came; an end stands alone or on the last part."""
    joined: list[Frame] = []
    for frame in frames:
        last = joined[-1] if joined else None
        same = isinstance(frame, Data) and isinstance(last, Data) and frame.stream_id == last.stream_id
        if same and isinstance(frame, Data) and isinstance(last, Data) and not last.fin:
            joined[-1] = Data(frame.stream_id, last.data + frame.data, frame.fin)
        else:
            joined.append(frame)
    return joined


def control(kind: int, body: bytes, flags: int = 0, version: int = 3) -> bytes:
    return struct.pack(">HHI", 0x8000 | version, kind, flags << 24 | len(body)) + body


def packed(block: bytes) -> bytes:
    stream = zlib.compressobj(zdict=DICTIONARY)
    return stream.compress(block) + stream.flush(zlib.Z_SYNC_FLUSH)


def block(*pairs: tuple[bytes, bytes]) -> bytes:
    words = [word for pair in pairs for word in pair]
    return struct.pack(">I", len(pairs)) + b"".join(struct.pack(">I", len(word)) + word for word in words)


def test_spdy_dictionary_equals_the_specification() -> None:
    # 0xe3c6a7c2 stands in front of the first block of headers of every session.
    assert len(DICTIONARY) == 1423
    assert zlib.adler32(DICTIONARY) == 0xE3C6A7C2
    assert hashlib.sha256(DICTIONARY).hexdigest() == "51d27341373f923f3cd88e1eb7162aeaa3723d7585ff2399201dc06498407f02"


@given(st.lists(FRAMES, max_size=12), st.data())
def test_encoded_frames_are_decoded_at_any_split(sent: list[Frame], data: st.DataObject) -> None:
    encoder, decoder = Encoder(), Decoder()
    wire = b"".join(map(encoder.encode, sent))
    cuts = sorted(data.draw(st.sets(st.integers(0, len(wire)), max_size=8)))
    pieces = [wire[start:stop] for start, stop in zip([0, *cuts], [*cuts, len(wire)], strict=True)]
    came = [frame for piece in pieces for frame in decoder.feed(piece)]
    assert whole(came) == whole(sent)
    assert decoder.at_frame_boundary


@given(FRAMES)
def test_frames_decode_equally_byte_by_byte_and_at_once(frame: Frame) -> None:
    wire = Encoder().encode(frame)
    decoder = Decoder()
    came = [actual for at in range(len(wire)) for actual in decoder.feed(wire[at : at + 1])]
    assert whole(came) == [frame]


@pytest.mark.parametrize(
    ("frame", "wire"),
    [
        (RstStream(5, 5), "80030003 00000008 00000005 00000005"),
        (Settings(((4, 1, 100),)), "80030004 0000000c 00000001 01000004 00000064"),
        (Ping(7), "80030006 00000004 00000007"),
        (GoAway(9, 1), "80030007 00000008 00000009 00000001"),
        (WindowUpdate(3, 65536), "80030009 00000008 00000003 00010000"),
        (Data(1, b"ab"), "00000001 00000002 6162"),
        (Data(1, b"", fin=True), "00000001 01000000"),
    ],
)
def test_frame_encodes_to_golden_bytes(frame: Frame, wire: str) -> None:
    assert Encoder().encode(frame) == bytes.fromhex(wire)
    assert list(Decoder().feed(bytes.fromhex(wire))) == [frame]


def test_syn_stream_equals_the_drafts_bytes() -> None:
    wire = Encoder().encode(SynStream(1, {"streamType": "error"}, fin=True, unidirectional=True))
    assert wire[:5] == bytes.fromhex("80030001 03")
    assert wire[8:18] == bytes.fromhex("00000001 00000000 0000")
    unpacked = zlib.decompressobj(zdict=DICTIONARY).decompress(wire[18:])
    assert unpacked == block((b"streamtype", b"error"))


def test_data_frame_head_describes_the_whole_frame() -> None:
    assert data_header(3, 4, True) + b"data" == Encoder().encode(Data(3, b"data", fin=True))


def test_data_is_delivered_before_its_frame_is_complete() -> None:
    decoder = Decoder()
    assert list(decoder.feed(data_header(1, 10, True) + b"four")) == [Data(1, b"four")]
    assert not decoder.at_frame_boundary
    assert list(decoder.feed(b"sixsix")) == [Data(1, b"sixsix", fin=True)]


def test_unknown_control_frames_are_ignored() -> None:
    wire = control(10, b"credentials" * 10_000) + Encoder().encode(Ping(1))
    assert list(Decoder().feed(wire)) == [Ping(1)]


def test_repeated_header_values_are_joined_as_in_http() -> None:
    wire = control(2, struct.pack(">I", 1) + packed(block((b"accept", b"a\0b"))))
    assert list(Decoder().feed(wire)) == [SynReply(1, {"accept": "a, b"})]


@pytest.mark.parametrize(
    ("wire", "bad_value"),
    [
        (control(6, b"1234", version=2), "a control frame of SPDY version 2; version 3 is accepted"),
        (b"GET / HTTP/1.1\r\n", None),
        (b"\xff\xff\xff\xff\xff\xff\xff\xff", "SPDY version 32767"),
        (control(6, b"123"), "PING: 3 bytes; it has 4"),
        (control(6, b"12345"), "PING: 5 bytes; it has 4"),
        (control(3, b"1234"), "RST_STREAM: 4 bytes; it has 8"),
        (control(3, bytes(4) + b"\0\0\0\1"), "RST_STREAM: stream 0"),
        (control(3, b"\0\0\0\1" + bytes(4)), "RST_STREAM: status 0"),
        (control(4, b""), "SETTINGS of 0 bytes, which is too short"),
        (control(4, struct.pack(">I", 2) + bytes(8)), "SETTINGS: 12 bytes; it has 20"),
        (control(4, struct.pack(">I", 2**32 - 1)), "SETTINGS: 4 bytes; it has"),
        (control(7, b"1234"), "GOAWAY: 4 bytes; it has 8"),
        (control(9, bytes(9)), "WINDOW_UPDATE: 9 bytes; it has 8"),
        (control(1, bytes(9)), "SYN_STREAM of 9 bytes, which is too short"),
        (control(2, bytes(3)), "SYN_REPLY of 3 bytes, which is too short"),
        (control(8, b""), "HEADERS of 0 bytes, which is too short"),
        (control(1, bytes(10) + packed(block())), "SYN_STREAM: stream 0"),
        (struct.pack(">HHI", 0x8003, 1, 65537), "SYN_STREAM of 65537 bytes; control frames of up to 65536"),
        (struct.pack(">II", 0, 1), "data for stream 0"),
        (control(2, b"\0\0\0\1" + b"nonsense"), "SYN_REPLY: a block of headers that zlib does not unpack"),
        (control(2, b"\0\0\0\1"), "a block of headers of 0 bytes"),
        (control(2, b"\0\0\0\1" + packed(b"")), "a block of headers of 0 bytes"),
        (control(2, b"\0\0\0\1" + packed(struct.pack(">I", 1))), "a block of 1 headers that ends within them"),
        (control(2, b"\0\0\0\1" + packed(struct.pack(">I", 2**32 - 1))), "that ends within them"),
        (control(2, b"\0\0\0\1" + packed(struct.pack(">II", 1, 2**32 - 1))), "a header of 4294967295 bytes where 0"),
        (control(2, b"\0\0\0\1" + packed(block() + b"!")), "1 bytes behind the last of 0 headers"),
        (control(2, b"\0\0\0\1" + packed(block((b"Upper", b"")))), "a header named b'Upper'"),
        (control(2, b"\0\0\0\1" + packed(block((b"", b"")))), "a header named b''"),
        (control(2, b"\0\0\0\1" + packed(block((b"a", b""), (b"a", b"")))), "header 'a' twice in one block"),
    ],
)
def test_malformed_frame_is_rejected_with_what_was_found(wire: bytes, bad_value: str | None) -> None:
    if bad_value is None:  # plain text begins with a clear top bit: it is data of a high stream, which no session has
        assert [type(frame) for frame in Decoder().feed(wire)] == [Data]
        return
    with pytest.raises(ProtocolError) as error:
        list(Decoder().feed(wire))
    assert bad_value in str(error.value)


def test_frames_before_a_malformed_one_are_delivered() -> None:
    coming = Decoder().feed(Encoder().encode(Ping(1)) + control(6, b""))
    assert next(coming) == Ping(1)
    with pytest.raises(ProtocolError):
        next(coming)


def test_decompression_bomb_is_rejected_without_unpacking_it() -> None:
    bomb = packed(block((b"a", bytes(48 * 1024 * 1024))))
    assert len(bomb) < 64 * 1024
    with pytest.raises(ProtocolError, match="more than 65536 bytes, which is the most accepted"):
        list(Decoder().feed(control(2, b"\0\0\0\1" + bomb)))


def test_header_block_of_maximum_size_is_accepted() -> None:
    value = "x" * (MAX_BLOCK_BYTES - 4 - 4 - 1 - 4)
    assert HeaderDecompressor().decompress(HeaderCompressor().compress({"a": value})) == {"a": value}
    with pytest.raises(ProtocolError, match="more than"):
        HeaderDecompressor().decompress(HeaderCompressor().compress({"a": value + "x"}))


def test_header_block_that_ends_the_compressed_stream_is_rejected() -> None:
    stream = zlib.compressobj(zdict=DICTIONARY)
    with pytest.raises(ProtocolError, match="ends the compressed stream"):
        HeaderDecompressor().decompress(stream.compress(block()) + stream.flush())


def test_header_block_with_another_dictionary_is_rejected() -> None:
    stream = zlib.compressobj(zdict=b"another")
    with pytest.raises(ProtocolError, match="zlib does not unpack"):
        HeaderDecompressor().decompress(stream.compress(block()) + stream.flush(zlib.Z_SYNC_FLUSH))


def test_header_with_a_zero_byte_is_not_sent() -> None:
    with pytest.raises(ValueError, match="zero byte"):
        HeaderCompressor().compress({"a": "b\0c"})
