"""Recorded kubectl sessions, replayed: exec, and port-forward with three connections."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from streams.spdy.frames import Decoder, Encoder, Frame, GoAway, RstStream, SynStream
from streams.spdy.session import Session, SpdyStream
from tests.unit.streams.pipes import pair

RECORDED = Path(__file__).parent / "recorded"
EXECS = sorted(RECORDED.glob("exec-*.client"))
FORWARDS = sorted(RECORDED.glob("port-forward-*.client"))
PIECES = pytest.mark.parametrize("piece", [1, 7, 1 << 20])


def test_recordings_of_exec_and_port_forward_exist() -> None:
    assert EXECS
    assert FORWARDS


async def listened(conversation: bytes, piece: int) -> list[tuple[dict[str, str], bytes]]:
    """Give the streams a session offers for it, each with all that came on it before it ended or was reset."""
    ours, pipe_end = pair()
    async with asyncio.timeout(20), asyncio.TaskGroup() as tasks:
        session = Session(ours)
        whole = conversation + Encoder().encode(GoAway(0))
        for at in range(0, len(whole), piece):
            await pipe_end.write(whole[at : at + piece])
        reading = []
        while stream := await session.accept():
            reading.append((dict(stream.headers), tasks.create_task(_all_of(stream))))
        await pipe_end.end()
        await session.close()
    return [(headers, task.result()) for headers, task in reading]


async def _all_of(stream: SpdyStream) -> bytes:
    came = b""
    try:
        while data := await stream.read():
            came += data
    except ConnectionError:
        return came
    return came


@PIECES
@pytest.mark.parametrize("sent", [path.read_bytes() for path in EXECS], ids=[path.stem for path in EXECS])
async def test_recorded_exec_opens_its_streams_in_order_and_ends_stdin(sent: bytes, piece: int) -> None:
    conversation = sent.partition(b"\x80\x03\x00\x03")[0]  # as far as the first reset
    assert await listened(conversation, piece) == [
        ({"streamtype": "error"}, b""),
        ({"streamtype": "stdin"}, b"hello\n"),
        ({"streamtype": "stdout"}, b""),
        ({"streamtype": "stderr"}, b""),
    ]


@PIECES
@pytest.mark.parametrize("sent", [path.read_bytes() for path in FORWARDS], ids=[path.stem for path in FORWARDS])
async def test_recorded_port_forward_opens_a_stream_pair_per_connection(sent: bytes, piece: int) -> None:
    offered = await listened(sent, piece)
    assert all(headers["port"] == "80" for headers, _ in offered)
    kinds = {(headers["streamtype"], headers["requestid"]) for headers, _ in offered}
    assert kinds == {(kind, number) for kind in ("data", "error") for number in "012"}
    assert sorted(data for headers, data in offered if headers["streamtype"] == "data") == [
        bytes([number]) * 100 for number in range(3)
    ]


def test_disconnecting_client_resets_its_streams_and_sends_goaway() -> None:
    frames: list[Frame] = list(Decoder().feed((RECORDED / "exec-1.29.client").read_bytes()))
    assert [type(frame) for frame in frames[:4]] == [SynStream] * 4
    assert {frame for frame in frames if isinstance(frame, RstStream)} == {RstStream(number, 5) for number in (1, 5, 7)}
    assert frames[-1] == GoAway(0, 0)
