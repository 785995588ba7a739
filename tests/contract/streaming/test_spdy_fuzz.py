"""SPDY sessions on arbitrary input: each ends cleanly and leaves no task, stream or socket."""

from __future__ import annotations

import asyncio
import gc
import os
import random
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from streams.connection import Connection
from streams.spdy.frames import (
    INVALID_STREAM,
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
)
from streams.spdy.headers import ProtocolError
from streams.spdy.session import Session, SpdyStream
from streams.stream import Stream
from tests.unit.streams.pipes import pair

FRAMES = int(os.environ.get("PODLANE_FUZZ_FRAMES", "8000"))
SEED = int(os.environ.get("PODLANE_FUZZ_SEED", "0")) or random.SystemRandom().randrange(1, 1 << 32)
RECORDED = [path.read_bytes() for path in sorted((Path(__file__).parents[2] / "unit/streams/spdy/recorded").iterdir())]
PATIENCE = 20.0


def frames_of(conversation: bytes) -> list[Frame]:
    return list(Decoder().feed(conversation))


def any_frame(dice: random.Random) -> Frame:
    number = dice.choice([1, 2, 3, 5, 7, 9, 11, 13, dice.randrange(1, 1 << 31)])
    fin, headers = dice.random() < 0.3, {"streamtype": dice.choice(["data", "error", "stdin"]), "port": "80"}
    makers: list[Callable[[], Frame]] = [
        lambda: SynStream(number, headers, fin, dice.random() < 0.1),
        lambda: SynReply(number, headers, fin),
        lambda: RstStream(number, dice.randrange(1, 12)),
        lambda: Settings(tuple((dice.randrange(9), 0, dice.randrange(99)) for _ in range(dice.randrange(4)))),
        lambda: Ping(dice.randrange(1 << 32)),
        lambda: GoAway(number, dice.randrange(3)),
        lambda: Headers(number, headers, fin),
        lambda: WindowUpdate(number, dice.randrange(1 << 31)),
        lambda: Data(number, dice.randbytes(dice.choice([0, 1, 100, 40_000])), fin),
    ]
    return dice.choice(makers)()


def shuffled(dice: random.Random, frames: list[Frame]) -> list[Frame]:
    """Frames of one or two conversations, some left out, doubled, moved, or made up."""
    mixed = list(frames)
    if dice.random() < 0.3:
        other = iter(frames_of(dice.choice(RECORDED)))
        mixed = [frame for own in frames for frame in (own, next(other, None)) if frame]
    for _ in range(dice.randrange(6)):
        at = dice.randrange(len(mixed) + 1)
        match dice.randrange(4):
            case 0:
                mixed.insert(at, any_frame(dice))
            case 1:
                mixed[at : at + 1] = []
            case 2:
                mixed[at:at] = mixed[at : at + 2]
            case _:
                mixed.insert(at, mixed.pop(dice.randrange(len(mixed)))) if mixed else None
    return mixed


def spoilt(dice: random.Random, wire: bytes) -> bytes:
    """Return the bytes with some of them changed, lost, doubled, inserted or cut off."""
    data = bytearray(wire)
    for _ in range(dice.choice([0, 0, 1, 1, 2, 8])):
        at, size = dice.randrange(len(data) + 1), dice.choice([1, 1, 2, 4, 8, 30])
        match dice.randrange(6):
            case 0:
                data[at : at + 1] = bytes([dice.randrange(256)])
            case 1:
                del data[at : at + size]
            case 2:
                data[at:at] = data[at : at + size]
            case 3:
                data[at:at] = dice.randbytes(size)
            case 4:
                data[at : at + 4] = dice.choice([b"\xff\xff\xff\xff", b"\x00\x00\x00\x00", b"\x80\x03\x00\x01"])
            case _:
                del data[at:]
    return bytes(data)


def conversation(dice: random.Random) -> tuple[int, bytes]:
    """Return the number of frames of a conversation, and its mutated bytes."""
    frames = shuffled(dice, frames_of(dice.choice(RECORDED)))
    encoder = Encoder()
    return len(frames), spoilt(dice, b"".join(map(encoder.encode, frames)))


class Carrier:
    """A carrier that knows whether it was let go."""

    def __init__(self, carrier: Stream) -> None:
        self.carrier = carrier
        self.let_go = False

    async def read(self) -> bytes:
        return await self.carrier.read()

    async def write(self, data: bytes) -> None:
        await self.carrier.write(data)

    async def end(self) -> None:
        await self.carrier.end()

    def abort(self) -> None:
        self.let_go = True
        self.carrier.abort()


@asynccontextmanager
async def ends(dice: random.Random) -> AsyncIterator[tuple[Carrier, Stream]]:
    """Two ends of a connection: in memory, or now and then of sockets, which are closed in the end."""
    if dice.random() < 0.8:
        ours, pipe_end = pair()
        yield Carrier(ours), pipe_end
        return
    loop, sockets = asyncio.get_running_loop(), socket.socketpair()
    created = [await loop.create_connection(Connection, sock=sock) for sock in sockets]
    yield Carrier(created[0][1]), created[1][1]
    while any(sock.fileno() != -1 for sock in sockets):
        await asyncio.sleep(0)


async def use(dice: random.Random, stream: SpdyStream) -> None:
    """Use a stream as programs do, and as they must not."""
    try:
        if dice.random() < 0.8:
            await stream.reply()
        if dice.random() < 0.1:
            stream.abort()
        while (data := await stream.read()) and dice.random() < 0.9:
            if dice.random() < 0.7:
                await stream.write(data)
        if dice.random() < 0.7:
            await stream.end()
        if dice.random() < 0.5:
            stream.reset()
    except ConnectionError:
        pass


async def serve(dice: random.Random, session: Session) -> None:
    async with asyncio.TaskGroup() as users:
        while stream := await session.accept():
            users.create_task(use(dice, stream))
        await session.close()


async def hear(dice: random.Random, end: Stream) -> None:
    """Check that the output of the session is SPDY, and that it and its streams send nothing after their end."""
    decoder, over, removed = Decoder(), set[int](), False
    try:
        while data := await end.read():
            for frame in decoder.feed(data):
                assert not removed, f"{frame} after the goodbye"
                removed = isinstance(frame, GoAway)
                if isinstance(frame, Data | Headers | SynReply):
                    assert frame.stream_id not in over, f"{frame} after the end of its stream"
                    over |= {frame.stream_id} if frame.fin else set()
                elif isinstance(frame, RstStream) and frame.status != INVALID_STREAM:
                    over.add(frame.stream_id)
            if dice.random() < 0.005:
                end.abort()
    except ConnectionError:
        pass


async def talk(dice: random.Random, end: Stream, wire: bytes) -> None:
    try:
        while wire:
            size = dice.choice([1, 8, 50, 1000, len(wire)])
            await end.write(wire[:size])
            wire = wire[size:]
            if dice.random() < 0.2:
                await asyncio.sleep(0)
        match dice.randrange(3):
            case 0:
                end.abort()
            case 1:
                await end.end()
            case _:
                pass  # the client waits for the server to go
    except ConnectionError:
        pass


async def case(dice: random.Random, wire: bytes) -> None:
    before = asyncio.all_tasks()
    async with asyncio.timeout(PATIENCE), ends(dice) as (carrier, stream):
        session = Session(carrier, client=dice.random() < 0.2, idle_seconds=0.02, linger_seconds=0.02, max_streams=5)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(serve(dice, session))
            tasks.create_task(hear(dice, stream))
            tasks.create_task(talk(dice, stream, wire))
            if dice.random() < 0.1:
                asyncio.get_running_loop().call_later(dice.random() * 0.01, session.abort)
        stream.abort()
        assert session.reason
        assert carrier.let_go
    assert asyncio.all_tasks() == before
    assert not session._streams
    assert not session._full_streams
    assert session._sender._consumed.keys() <= {0}
    assert session._timer.cancelled() or session._timer.when() <= asyncio.get_running_loop().time()


def test_spdy_session_ends_cleanly_on_any_input() -> None:
    dice = random.Random(SEED)
    reported: list[dict[str, Any]] = []

    async def cases() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: reported.append(context))
        left, at = FRAMES, 0
        while left > 0:
            number, wire = conversation(dice)
            left, at = left - max(number, 1), at + 1
            try:
                await case(dice, wire)
            except BaseException as error:
                error.add_note(f"case {at} of PODLANE_FUZZ_SEED={SEED}: {wire.hex()}")
                raise
        gc.collect()

    asyncio.run(cases())
    assert not reported


@pytest.mark.parametrize("cut", [1, 3, 1000])
def test_spdy_decoder_accepts_or_rejects_any_input(cut: int) -> None:
    dice = random.Random(SEED)
    for _ in range(FRAMES // 30):
        _, wire = conversation(dice)
        decoder = Decoder()
        try:
            for at in range(0, len(wire), cut):
                for frame in decoder.feed(wire[at : at + cut]):
                    assert isinstance(frame, Frame)
        except ProtocolError:
            pass
