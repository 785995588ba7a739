"""Sessions and streams of SPDY."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

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
)
from streams.spdy.sender import BATCH_BYTES, MAX_CONTROL_BACKLOG_BYTES
from streams.spdy.session import Session, SpdyStream
from streams.spdy.stream import MAX_FRAME_BYTES, RECEIVE_BUFFER_BYTES, SEND_BUFFER_BYTES
from streams.stream import Stream
from tests.unit.streams.pipes import LIMIT, PipeEnd, pair

OPEN = SynStream(1, {"streamtype": "stdin"})


class Peer:
    """A peer that is driven by the test: it sends given frames and records received ones."""

    def __init__(self, end: PipeEnd) -> None:
        self.end = end
        self._encoder, self._decoder = Encoder(), Decoder()
        self._received_frames: list[Frame] = []

    async def say(self, *frames: Frame) -> None:
        await self.end.write(b"".join(map(self._encoder.encode, frames)))

    async def hear(self) -> Frame | None:
        while not self._received_frames:
            data = await self.end.read()
            if not data:
                return None
            self._received_frames += self._decoder.feed(data)
        return self._received_frames.pop(0)

    async def hear_all(self) -> list[Frame]:
        return [frame async for frame in self._rest()]

    async def _rest(self) -> AsyncIterator[Frame]:
        while frame := await self.hear():
            yield frame


@pytest.fixture(autouse=True)
async def _everything_ends_soon_and_nothing_is_left() -> AsyncIterator[None]:
    yield
    assert asyncio.all_tasks() == {asyncio.current_task()}


@asynccontextmanager
async def served(**settings: float) -> AsyncIterator[tuple[Session, Peer]]:
    """Yield a session of the server's side and a client that is driven by the test. A hanging test fails after a
    timeout.
    """
    ours, pipe_end = pair()
    async with asyncio.timeout(20):
        session = Session(ours, **settings)  # type: ignore[arg-type]
        try:
            yield session, Peer(pipe_end)
        finally:
            pipe_end.abort()
            await session.close()


async def offered(session: Session) -> SpdyStream:
    stream = await session.accept()
    assert stream
    return stream


async def drained(stream: Stream) -> bytes:
    came = bytearray()
    while data := await stream.read():
        came += data
    return bytes(came)


async def test_stream_is_offered_accepted_read_and_written() -> None:
    async with served() as (session, peer):
        await peer.say(OPEN, Data(1, b"hel"), Data(1, b"lo", fin=True))
        stream = await offered(session)
        assert (stream.stream_id, stream.headers) == (1, {"streamtype": "stdin"})
        await stream.reply()
        await stream.reply()
        assert await peer.hear() == SynReply(1)
        assert [await stream.read() for _ in range(4)] == [b"hel", b"lo", b"", b""]
        await stream.write(b"answer")
        await stream.end()
        await stream.end()
        assert await peer.hear() == Data(1, b"answer", fin=True)
        with pytest.raises(BrokenPipeError, match="stream 1 is ended"):
            await stream.write(b"more")


async def test_data_written_before_the_reply_is_sent_after_it() -> None:
    async with served() as (session, peer):
        await peer.say(OPEN)
        stream = await offered(session)
        await stream.write(b"early")
        assert [await peer.hear(), await peer.hear()] == [SynReply(1), Data(1, b"early")]


async def test_fin_has_its_own_frame_when_no_data_waits() -> None:
    async with served() as (session, peer):
        await peer.say(OPEN)
        stream = await offered(session)
        await stream.write(b"before")
        assert [await peer.hear(), await peer.hear()] == [SynReply(1), Data(1, b"before")]
        await stream.end()
        assert await peer.hear() == Data(1, b"", fin=True)


async def test_large_data_is_sent_in_several_frames() -> None:
    async with served() as (session, peer):
        await peer.say(OPEN)
        stream = await offered(session)
        sent = bytes(range(256)) * 1024
        writing = asyncio.create_task(stream.write(sent))
        received = [await peer.hear()]
        came = bytearray()
        while len(came) < len(sent):
            frame = await peer.hear()
            assert isinstance(frame, Data)
            assert len(frame.data) <= MAX_FRAME_BYTES
            came += frame.data
        await writing
        assert received == [SynReply(1)]
        assert bytes(came) == sent


async def test_stream_opened_with_fin_has_nothing_to_read() -> None:
    async with served() as (session, peer):
        await peer.say(SynStream(1, {}, fin=True))
        assert await (await offered(session)).read() == b""


async def test_unidirectional_stream_takes_no_reply() -> None:
    async with served() as (session, peer):
        await peer.say(SynStream(1, {}, unidirectional=True))
        stream = await offered(session)
        await stream.reply()
        await stream.end()
        await peer.say(Ping(1))
        with pytest.raises(BrokenPipeError):
            await stream.write(b"answer")
        assert await peer.hear() == Ping(1)


async def test_pings_are_answered_and_settings_ignored() -> None:
    async with served() as (_, peer):
        await peer.say(Settings(((4, 0, 100),)), WindowUpdate(0, 1), WindowUpdate(9, 1), Ping(2), Ping(3))
        assert await peer.hear() == Ping(3)


async def test_headers_frame_with_fin_ends_a_stream() -> None:
    async with served() as (session, peer):
        await peer.say(OPEN, Headers(1, {"more": "headers"}, fin=True))
        assert await (await offered(session)).read() == b""


async def test_reset_ends_reading_and_writing() -> None:
    async with served() as (session, peer):
        await peer.say(OPEN, Data(1, b"lost"))
        stream = await offered(session)
        reading = asyncio.gather(*[stream.read() for _ in range(1)])
        assert await reading == [b"lost"]
        await peer.say(Data(1, b"lost"), RstStream(1, 5), OPEN2)
        await offered(session)
        with pytest.raises(ConnectionResetError, match="the other side reset stream 1, with status 5"):
            await stream.read()
        with pytest.raises(ConnectionResetError, match="reset stream 1"):
            await stream.write(b"x")
        with pytest.raises(ConnectionResetError, match="reset stream 1"):
            await stream.end()


OPEN2 = SynStream(3, {"streamtype": "second"})


async def test_reset_wakes_waiting_readers_and_writers() -> None:
    async with served() as (session, peer):
        await peer.say(OPEN)
        stream = await offered(session)
        waiting = [asyncio.create_task(stream.read()), asyncio.create_task(stream.write(bytes(64 * LIMIT)))]
        await peer.say(RstStream(1, 5))
        await asyncio.wait(waiting)
        assert all(isinstance(task.exception(), ConnectionResetError) for task in waiting)


async def test_stream_reset_before_acceptance_is_not_offered() -> None:
    async with served() as (session, peer):
        await peer.say(OPEN, RstStream(1, 5), OPEN2)
        assert (await offered(session)).stream_id == 3


async def test_reset_after_fin_keeps_received_data() -> None:
    async with served() as (session, peer):
        await peer.say(OPEN, Data(1, b"whole", fin=True))
        stream = await offered(session)
        await peer.say(RstStream(1, 5), OPEN2)
        await offered(session)
        assert [await stream.read(), await stream.read()] == [b"whole", b""]


async def test_own_reset_is_sent_and_later_data_is_dropped() -> None:
    async with served() as (session, peer):
        await peer.say(OPEN)
        stream = await offered(session)
        await stream.reply()
        stream.reset()
        stream.abort()
        for _ in range(64):
            await peer.say(Data(1, bytes(MAX_FRAME_BYTES)))
        await peer.say(Data(1, b"", fin=True), Ping(1))
        received = [await peer.hear()]
        while received[-1] != Ping(1):
            received.append(await peer.hear())
        assert received[:2] == [SynReply(1), RstStream(1, 5)]
        window_updates = [frame for frame in received[2:-1] if isinstance(frame, WindowUpdate)]
        assert window_updates
        assert {frame.stream_id for frame in window_updates} == {0}
        with pytest.raises(ConnectionResetError, match="aborted here"):
            await stream.read()


async def test_aborting_a_finished_stream_sends_nothing() -> None:
    async with served() as (session, peer):
        await peer.say(SynStream(1, {}, fin=True))
        stream = await offered(session)
        await stream.end()
        stream.abort()
        await peer.say(Ping(1))
        assert [await peer.hear() for _ in range(3)] == [SynReply(1), Data(1, b"", fin=True), Ping(1)]


async def test_slow_reader_pauses_the_connection_and_bounds_the_buffer() -> None:
    async with served() as (session, peer):
        await peer.say(OPEN)
        stream = await offered(session)
        sent = 0

        async def flood() -> None:
            nonlocal sent
            for _ in range(256):
                await peer.say(Data(1, bytes(MAX_FRAME_BYTES)))
                sent += MAX_FRAME_BYTES

        flooding = asyncio.create_task(flood())
        while not stream.receive_buffer_full or session._carrier.size < LIMIT:  # type: ignore[attr-defined]
            await asyncio.sleep(0)
        assert sent <= RECEIVE_BUFFER_BYTES + LIMIT + 3 * MAX_FRAME_BYTES
        came = 0
        while came < 256 * MAX_FRAME_BYTES:
            came += len(await stream.read())
        await flooding


async def test_disconnect_is_noticed_while_the_connection_is_paused() -> None:
    async with served(ping_seconds=0.01) as (session, peer):
        await peer.say(OPEN)
        stream = await offered(session)
        await peer.say(Data(1, bytes(2 * RECEIVE_BUFFER_BYTES)))
        assert [await peer.hear(), await peer.hear()] == [Ping(2), Ping(2)]
        peer.end.abort()
        assert await session.accept() is None
        assert "the connection was lost" in session.reason
        assert await stream.read()


async def test_many_tiny_frames_count_with_their_overhead() -> None:
    async with served() as (session, peer):
        await peer.say(OPEN)
        stream = await offered(session)
        encoder = Encoder()
        tiny = encoder.encode(Data(1, b"x"))
        flooding = asyncio.create_task(_write_all(peer.end, [tiny] * 200_000))
        while not stream.receive_buffer_full or session._carrier.size < LIMIT:  # type: ignore[attr-defined]
            await asyncio.sleep(0)
        assert len(stream._received) <= RECEIVE_BUFFER_BYTES // 64 + LIMIT // len(tiny)
        stream.abort()
        await flooding


async def _write_all(end: PipeEnd, pieces: list[bytes]) -> None:
    for start in range(0, len(pieces), 1000):
        await end.write(b"".join(pieces[start : start + 1000]))


async def test_aborting_a_full_stream_resumes_the_others() -> None:
    async with served() as (session, peer):
        await peer.say(OPEN, OPEN2)
        full, other = await offered(session), await offered(session)
        saying = asyncio.create_task(peer.say(Data(1, bytes(4 * RECEIVE_BUFFER_BYTES))))
        await saying
        saying = asyncio.create_task(peer.say(Data(3, b"through")))
        full.abort()
        assert await other.read() == b"through"
        await saying


async def test_writers_wait_for_window_space() -> None:
    async with served() as (session, peer):
        await peer.say(OPEN)
        stream = await offered(session)
        written = 0

        async def write() -> None:
            nonlocal written
            for _ in range(512):
                await stream.write(bytes(MAX_FRAME_BYTES))
                written += MAX_FRAME_BYTES

        writing = asyncio.create_task(write())
        while peer.end.size < LIMIT or not stream._unsent_bytes > SEND_BUFFER_BYTES:
            await asyncio.sleep(0)
        assert written < 4 * LIMIT + 2 * BATCH_BYTES
        received = 0
        while received < 512 * MAX_FRAME_BYTES:
            frame = await peer.hear()
            received += len(frame.data) if isinstance(frame, Data) else 0
        await writing


async def test_hundred_streams_are_sent_in_turn() -> None:
    async with served() as (session, peer):
        numbers = range(1, 201, 2)
        await peer.say(*[SynStream(number, {}) for number in numbers])
        streams = [await offered(session) for _ in numbers]
        writing = [asyncio.create_task(stream.write(bytes(8 * MAX_FRAME_BYTES))) for stream in streams]
        sent = dict.fromkeys(numbers, 0)
        while min(sent.values()) < 8 * MAX_FRAME_BYTES:
            frame = await peer.hear()
            if isinstance(frame, Data):
                sent[frame.stream_id] += len(frame.data)
                assert max(sent.values()) - min(sent.values()) <= 2 * MAX_FRAME_BYTES
        await asyncio.gather(*writing)


async def test_many_small_writes_of_one_stream_do_not_delay_another() -> None:
    async with served() as (session, peer):
        await peer.say(OPEN, OPEN2)
        talkative, other = await offered(session), await offered(session)
        for _ in range(100):
            await talkative.write(b"word")
        await other.write(b"answer")
        received = [await peer.hear() for _ in range(5)]
        assert received == [SynReply(1), SynReply(3), Data(1, b"word"), Data(3, b"answer"), Data(1, b"word")]


async def test_aborted_stream_is_not_read_as_complete() -> None:
    async with served() as (session, peer):
        await peer.say(OPEN, Data(1, b"whole", fin=True), OPEN2)
        stream = await offered(session)
        await offered(session)
        stream.abort()
        with pytest.raises(ConnectionResetError, match="aborted here"):
            await stream.read()


async def test_close_keeps_reading_while_a_stream_is_full() -> None:
    async with asyncio.timeout(20):
        ours, pipe_end = pair()
        session, peer = Session(ours), Peer(pipe_end)
        await peer.say(OPEN)
        stream = await offered(session)
        await peer.say(Data(1, bytes(2 * RECEIVE_BUFFER_BYTES)))
        while not stream.receive_buffer_full:
            await asyncio.sleep(0)
        timer = session._timer
        closing = asyncio.create_task(session.close())
        assert [await peer.hear(), await peer.hear()] == [RstStream(1, 5), GoAway(1, 0)]
        for _ in range(8):
            await peer.say(Data(1, bytes(LIMIT)))
        await pipe_end.end()
        await closing
        assert timer.cancelled()
        assert session._timer.cancelled()


async def test_window_updates_are_sent_for_stream_and_session() -> None:
    async with served() as (session, peer):
        await peer.say(OPEN, Data(1, bytes(20_000)))
        stream = await offered(session)
        assert len(await stream.read()) == 20_000
        await peer.say(Data(1, bytes(20_000)), Ping(1))
        assert await peer.hear() == Ping(1)
        await stream.read()
        assert {await peer.hear(), await peer.hear()} == {WindowUpdate(0, 40_000), WindowUpdate(1, 40_000)}


async def test_window_updates_are_merged_while_sending_is_blocked() -> None:
    async with served() as (session, peer):
        await peer.say(OPEN, OPEN2)
        read, written = await offered(session), await offered(session)
        writing = asyncio.create_task(written.write(bytes(2 * BATCH_BYTES + SEND_BUFFER_BYTES)))
        while peer.end.size < BATCH_BYTES:
            await asyncio.sleep(0)
        for _ in range(100):
            await peer.say(Data(1, bytes(MAX_FRAME_BYTES)))
            assert len(await read.read()) == MAX_FRAME_BYTES
        received = [await peer.hear()]
        while not isinstance(received[-1], WindowUpdate):
            received.append(await peer.hear())
        assert {received[-1], await peer.hear()} == {WindowUpdate(number, 100 * MAX_FRAME_BYTES) for number in (0, 1)}
        await writing


async def test_concurrent_streams_are_limited() -> None:
    async with served(max_streams=2) as (session, peer):
        await peer.say(OPEN, OPEN2, SynStream(5, {}))
        assert await peer.hear() == RstStream(5, 3)
        stream = await offered(session)
        stream.abort()
        assert await peer.hear() == RstStream(1, 5)
        await peer.say(SynStream(7, {"x": "y"}))
        assert [(await offered(session)).stream_id for _ in range(2)] == [3, 7]


@pytest.mark.parametrize("at_once", [True, False])
async def test_finished_stream_frees_its_slot(at_once: bool) -> None:
    async with served(max_streams=1) as (session, peer):
        for number in range(1, 9, 2):
            await peer.say(SynStream(number, {}, fin=at_once))
            stream = await offered(session)
            await stream.end()
            if not at_once:
                await peer.say(Data(number, b"", fin=True))


async def test_data_for_unknown_streams_is_answered_with_a_reset() -> None:
    async with served() as (_, peer):
        await peer.say(Data(7, b"x"), Data(8, b"x"))
        assert [await peer.hear(), await peer.hear()] == [RstStream(7, 2), RstStream(8, 2)]


async def test_data_after_fin_resets_the_stream() -> None:
    async with served() as (session, peer):
        await peer.say(SynStream(1, {}, fin=True), Data(1, b"more"))
        assert await peer.hear() == RstStream(1, 9)
        await peer.say(OPEN2)
        assert (await offered(session)).stream_id == 3


@pytest.mark.parametrize("numbers", [(2,), (3, 1), (1, 1)])
async def test_invalid_stream_id_ends_the_session(numbers: tuple[int, ...]) -> None:
    async with served() as (session, peer):
        await peer.say(*[SynStream(number, {}) for number in numbers])
        received = await peer.hear()
        assert received == GoAway(numbers[0] if len(numbers) > 1 else 0, 1)
        assert f"stream {numbers[-1]} opened" in session.reason
        assert await session.accept() is None


async def test_malformed_frame_ends_the_session_with_its_reason() -> None:
    async with served() as (session, peer):
        await peer.say(OPEN)
        stream = await offered(session)
        await peer.end.write(b"\x80\x02\x00\x01\x00\x00\x00\x00")
        assert await peer.hear() == GoAway(1, 1)
        assert await peer.hear() is None
        for act in (stream.read(), stream.write(b"x"), stream.end(), stream.reply(), session.open({})):
            with pytest.raises(ConnectionResetError, match="SPDY version 2; version 3 is accepted"):
                await act
        await peer.end.write(b"anything" * 1000)


async def test_connection_end_ends_all_streams() -> None:
    async with served() as (session, peer):
        await peer.say(OPEN, Data(1, b"came"), OPEN2, Data(3, b"whole", fin=True))
        cut, whole = await offered(session), await offered(session)
        await peer.end.end()
        assert await session.accept() is None
        assert [await cut.read(), await whole.read(), await whole.read()] == [b"came", b"whole", b""]
        with pytest.raises(ConnectionResetError, match="the other side closed the connection"):
            await cut.read()
        assert session.reason == "the other side closed the connection"


async def test_connection_end_within_a_frame_is_an_error() -> None:
    async with served() as (session, peer):
        await peer.end.write(Encoder().encode(Data(1, b"1234"))[:-1])
        await peer.end.end()
        assert await session.accept() is None
        assert session.reason.endswith("in the middle of a frame")


async def test_lost_connection_wakes_all_waiters() -> None:
    async with served() as (session, peer):
        await peer.say(OPEN)
        stream = await offered(session)
        waiting = [
            asyncio.create_task(stream.read()),
            asyncio.create_task(stream.write(bytes(64 * LIMIT))),
            asyncio.create_task(session.open({})),
        ]
        accepting = asyncio.create_task(session.accept())
        await peer.hear()
        peer.end.break_off()
        await asyncio.wait([*waiting, accepting])
        assert all(isinstance(task.exception(), ConnectionResetError) for task in waiting)
        assert accepting.result() is None
        assert "the connection was lost" in session.reason


async def test_close_flushes_finished_streams_resets_others_and_sends_goaway() -> None:
    ours, pipe_end = pair()
    session, peer = Session(ours), Peer(pipe_end)
    await peer.say(OPEN, OPEN2, SynStream(5, {}))
    ended, open_still, over = await offered(session), await offered(session), await offered(session)
    await open_still.reply()
    await over.end()
    ending = asyncio.create_task(_write_and_end(ended, bytes(2 * BATCH_BYTES + SEND_BUFFER_BYTES)))
    while not ended.is_draining:
        await asyncio.sleep(0)
    closing = asyncio.create_task(session.close())
    rest = await peer.hear_all()
    assert [frame for frame in rest if isinstance(frame, RstStream)] == [RstStream(3, 5)]
    assert rest[-2:] == [Data(1, bytes(MAX_FRAME_BYTES), fin=True), GoAway(5, 0)]
    assert not closing.done()
    await pipe_end.end()
    await closing
    await ending
    with pytest.raises(ConnectionResetError, match="closed here"):
        await open_still.read()
    await session.close()


async def _write_and_end(stream: SpdyStream, data: bytes) -> None:
    await stream.write(data)
    await stream.end()


async def test_goaway_of_the_peer_ends_offers_and_keeps_streams() -> None:
    async with served() as (session, peer):
        await peer.say(OPEN, GoAway(0), OPEN2)
        stream = await offered(session)
        assert await session.accept() is None
        assert await peer.hear() == RstStream(3, 3)
        await stream.write(b"still")
        assert [await peer.hear(), await peer.hear()] == [SynReply(1), Data(1, b"still")]
        with pytest.raises(ConnectionResetError, match="takes no more streams"):
            await session.open({})


async def test_idle_session_ends() -> None:
    async with served(idle_seconds=0.01) as (session, peer):
        assert await session.accept() is None
        assert await peer.hear() == GoAway(0, 0)
        assert session.reason == "no data was sent or received for 0.01 seconds"


async def test_close_times_out_when_the_peer_does_not_read() -> None:
    ours, pipe_end = pair()
    session, peer = Session(ours, linger_seconds=0.01), Peer(pipe_end)
    await peer.say(OPEN)
    stream = await offered(session)
    writing = asyncio.create_task(stream.write(bytes(64 * LIMIT)))
    while pipe_end.size < LIMIT:
        await asyncio.sleep(0)
    await session.close()
    assert ours.aborted
    with pytest.raises(ConnectionResetError):
        await writing


async def test_cancelled_close_leaves_nothing() -> None:
    ours, pipe_end = pair()
    session, peer = Session(ours), Peer(pipe_end)
    closing = asyncio.create_task(session.close())
    assert await peer.hear() == GoAway(0, 0)
    closing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await closing
    assert ours.aborted


async def test_abort_ends_everything_at_once() -> None:
    async with served() as (session, peer):
        await peer.say(OPEN)
        stream = await offered(session)
        session.abort()
        session.abort()
        with pytest.raises(ConnectionResetError, match="aborted here"):
            await stream.read()
        assert await session.accept() is None


async def test_peer_that_sends_pings_without_reading_is_paused() -> None:
    async with served() as (session, peer):
        pings = Encoder().encode(Ping(1)) * 1_000
        flooding = asyncio.create_task(_write_forever(peer.end, pings))
        while peer.end.size < LIMIT or session._carrier.size < LIMIT:  # type: ignore[attr-defined]
            await asyncio.sleep(0)
        for _ in range(100):
            await asyncio.sleep(0)
        assert session._sender._control_bytes <= MAX_CONTROL_BACKLOG_BYTES + len(pings)
        flooding.cancel()


async def _write_forever(end: PipeEnd, data: bytes) -> None:
    while True:
        await end.write(data)


async def test_own_client_and_server_interoperate() -> None:
    ours, pipe_end = pair()
    async with asyncio.timeout(20), Session(pipe_end) as server, Session(ours, client=True) as client:
        opening = asyncio.create_task(client.open({"StreamType": "data", "port": "80"}))
        there = await offered(server)
        assert there.headers == {"streamtype": "data", "port": "80"}
        await there.reply()
        here = await opening
        sent = bytes(range(256)) * 4096
        results = await asyncio.gather(
            _write_and_end(here, sent), _write_and_end(there, sent[::-1]), drained(here), drained(there)
        )
        assert (results[2], results[3]) == (sent[::-1], sent)
        client.abort()


async def test_cancelled_stream_open_resets_the_stream() -> None:
    ours, pipe_end = pair()
    async with asyncio.timeout(20):
        client, peer = Session(ours, client=True), Peer(pipe_end)
        opening = asyncio.create_task(client.open({}))
        assert await peer.hear() == SynStream(1, {})
        opening.cancel()
        assert await peer.hear() == RstStream(1, 5)
        pipe_end.abort()
        await client.close()


async def test_rejected_stream_is_not_opened() -> None:
    ours, pipe_end = pair()
    async with asyncio.timeout(20):
        client, peer = Session(ours, client=True), Peer(pipe_end)
        opening = asyncio.create_task(client.open({}))
        assert await peer.hear() == SynStream(1, {})
        await peer.say(RstStream(1, 3))
        with pytest.raises(ConnectionResetError, match="with status 3"):
            await opening
        pipe_end.abort()
        await client.close()


async def test_duplicate_reply_resets_the_stream() -> None:
    ours, pipe_end = pair()
    async with asyncio.timeout(20):
        client, peer = Session(ours, client=True), Peer(pipe_end)
        opening = asyncio.create_task(client.open({}))
        assert await peer.hear() == SynStream(1, {})
        await peer.say(SynStream(2, {}), SynReply(2))
        assert await peer.hear() == RstStream(2, 8)
        await peer.say(SynReply(1), SynReply(1))
        await opening
        assert await peer.hear() == RstStream(1, 8)
        pipe_end.abort()
        await client.close()
