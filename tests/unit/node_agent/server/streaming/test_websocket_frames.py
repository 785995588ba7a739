"""WebSocket frames at any split, protocol violations, and bounded buffers."""

from __future__ import annotations

import struct
import tracemalloc
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from node_agent.server.streaming.websocket_frames import (
    BINARY,
    CLOSE,
    CONTINUATION,
    FIN,
    PING,
    PONG,
    TEXT,
    ControlFrame,
    MessagePart,
    WebSocketFrameParser,
    encode_frame,
)
from tests.testbed.streaming.mutations import masked

MESSAGES = st.lists(
    st.tuples(st.sampled_from([BINARY, TEXT, CLOSE, PING, PONG]), st.binary(max_size=125)), min_size=1, max_size=6
)


def in_cuts(frames: WebSocketFrameParser, data: bytes, cuts: list[int]) -> list[MessagePart | ControlFrame]:
    offsets = [0, *sorted(min(offset, len(data)) for offset in cuts), len(data)]
    return [frame for start, end in pairwise(offsets) for frame in frames.feed(data[start:end])]


def joined(received: list[MessagePart | ControlFrame]) -> list[bytes]:
    """Return the messages."""
    messages, message = [], b""
    for frame in received:
        if isinstance(frame, MessagePart):
            message += frame.data
            if frame.last:
                messages.append(message)
                message = b""
    assert not message
    return messages


@given(MESSAGES, st.lists(st.integers(0, 400)))
def test_websocket_frames_decode_at_any_split(sent: list[tuple[int, bytes]], cuts: list[int]) -> None:
    data = b"".join(masked(FIN | kind, payload) for kind, payload in sent)
    received = in_cuts(WebSocketFrameParser(), data, cuts)
    assert joined(received) == [payload for kind, payload in sent if kind in (BINARY, TEXT)]
    assert [frame for frame in received if isinstance(frame, ControlFrame)] == [
        ControlFrame(kind, payload) for kind, payload in sent if kind not in (BINARY, TEXT)
    ]


@pytest.mark.parametrize("size", [0, 1, 125, 126, 0xFFFF, 0x10000, 200_001])
def test_websocket_length_encodings_are_decoded(size: int) -> None:
    data = (bytes(range(256)) * (size // 256 + 1))[:size]
    sent = masked(FIN | BINARY, data)
    assert joined(WebSocketFrameParser().feed(sent)) == [data]
    size_field = sent[2 : len(sent) - size - 4]
    assert encode_frame(BINARY, data) == bytes([sent[0], sent[1] & 0x7F]) + size_field + data, "a server does not mask"


def test_control_frames_interleave_with_message_fragments() -> None:
    sent = masked(BINARY, b"one ") + masked(FIN | PING, b"?") + masked(CONTINUATION, b"") + masked(FIN, b"two")
    received = WebSocketFrameParser().feed(sent)
    assert received == [MessagePart(b"one ", last=False), ControlFrame(PING, b"?"), MessagePart(b"two", last=True)]


@pytest.mark.parametrize(
    "sent",
    [
        masked(FIN | 0x40 | BINARY, b"compressed"),
        masked(FIN | 3, b"unknown"),
        masked(PING, b"in fragments"),
        masked(FIN | PING, b"x" * 126),
        masked(FIN | CONTINUATION, b"of nothing"),
        masked(BINARY, b"a") + masked(FIN | BINARY, b"within"),
        struct.pack(">BBQ", FIN | BINARY, 0x80 | 127, 1 << 63) + b"mask",
        encode_frame(BINARY, b"not masked"),
    ],
)
def test_websocket_protocol_violations_are_rejected(sent: bytes) -> None:
    with pytest.raises(ValueError, match=r"found|one frame|masked"):
        WebSocketFrameParser().feed(sent)


def test_endless_websocket_message_is_not_buffered() -> None:
    frames, chunk = WebSocketFrameParser(), b"x" * (64 << 10)
    frames.feed(struct.pack(">BBQ", FIN | BINARY, 0x80 | 127, 1 << 40) + b"mask")
    tracemalloc.start()
    try:
        for _ in range(500):
            (part,) = frames.feed(chunk)
            assert isinstance(part, MessagePart)
            assert (len(part.data), part.last) == (len(chunk), False)
            del part
        assert tracemalloc.get_traced_memory()[0] < len(chunk)
    finally:
        tracemalloc.stop()
