"""One conversation in SPDY over a carrier: the streams the other side opens, and what holds for all of them."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Mapping
from types import TracebackType
from typing import Final, Self

from streams.spdy import frames
from streams.spdy.frames import (
    Data,
    Decoder,
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
from streams.spdy.headers import Malformed
from streams.spdy.sender import Sender
from streams.spdy.stream import SpdyStream
from streams.stream import Stream

__all__ = ["Session", "SpdyStream"]

IDLE_SECONDS: Final = 4 * 3600.0
"""A session in which nothing comes and nothing goes for so long is ended, as a kubelet does."""

LINGER_SECONDS: Final = 600.0
"""So long a session that was left waits for the other side: to take what was sent last, and to close the carrier."""

PROBE_SECONDS: Final = 5.0
"""While a slow reader stops the carrier, which then cannot tell that the other side has gone, a ping asks so often."""

MAX_STREAMS: Final = 1_000
"""So many streams may be open at once; one above is refused, and the session goes on."""


class Session:
    """The server's side of a session, or the client's; it works from its making until it is closed or aborted.

    It owns the carrier. To be made inside a running loop, best as `async with Session(carrier) as session`.
    """

    def __init__(
        self,
        carrier: Stream,
        *,
        client: bool = False,
        idle_seconds: float = IDLE_SECONDS,
        linger_seconds: float = LINGER_SECONDS,
        probe_seconds: float = PROBE_SECONDS,
        max_streams: int = MAX_STREAMS,
    ) -> None:
        self.reason = ""
        """Why the session has ended; empty while it lives."""
        self._carrier = carrier
        self._patience, self._linger_seconds = idle_seconds, linger_seconds
        self._probe_seconds, self._max_streams = probe_seconds, max_streams
        self._sender = Sender(carrier)
        self._streams: dict[int, SpdyStream] = {}
        self._offered: deque[SpdyStream] = deque()
        self._next_id = 1 if client else 2
        self._last_theirs = 0
        self._they_go = False
        self._leaving = False
        self._full: set[SpdyStream] = set()
        self._news = asyncio.Event()
        self._relief = asyncio.Event()
        self._over = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self._touch()
        self._timer = self._loop.call_later(self._patience, self._look_for_life)
        self._tasks = {self._loop.create_task(run) for run in (self._receive(), self._send())}

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def accept(self) -> SpdyStream | None:
        """Wait for the next stream the other side opens; nothing when the session has ended, or the other side goes."""
        while not self._offered:
            if self._leaving or self._they_go:
                return None
            self._news.clear()
            await self._news.wait()
        return self._offered.popleft()

    async def open(self, headers: Mapping[str, str]) -> SpdyStream:
        """Open a stream to the other side and wait until it has accepted it."""
        if self._leaving or self._they_go:
            raise ConnectionResetError(self.reason or "the other side takes no more streams")
        stream = SpdyStream(self, self._next_id, headers, replied=False, fin=False, unidirectional=False)
        self._next_id += 2
        self._streams[stream.stream_id] = stream
        self.send(SynStream(stream.stream_id, headers))
        try:
            await stream.accepted()
        except asyncio.CancelledError:
            stream.abort()
            raise
        return stream

    async def close(self) -> None:
        """Send what ended streams still hold, reset the others, say goodbye and wait for the other side to close."""
        self._leave(frames.WENT_WELL, "the session was closed here")
        try:
            await self._over.wait()
        finally:
            self.abort()
            await asyncio.wait(self._tasks)

    def abort(self) -> None:
        """End the session and its carrier at once."""
        self._end("the session was given up here")

    # What follows is for its streams.

    def send(self, frame: Frame) -> None:
        """Send a control frame before all data that waits."""
        if not self._leaving:
            self._sender.control(frame)

    def ready(self, stream: SpdyStream) -> None:
        """Take the turn of a stream that has something to send."""
        self._sender.ready(stream)

    def consumed(self, stream: SpdyStream, size: int) -> None:
        """Tell the other side, in big enough steps, that bytes were read or dropped; nobody may mind, but some do."""
        if not stream.full and stream in self._full:
            self._full.discard(stream)
            self._relief.set()
        self._sender.consumed(0, size)
        if stream.stream_id in self._streams and not stream.heard_out:
            self._sender.consumed(stream.stream_id, size)

    def settled(self, stream: SpdyStream) -> None:
        """Forget a stream that is over both ways."""
        self._streams.pop(stream.stream_id, None)
        self._sender.forget(stream.stream_id)

    # What comes.

    async def _receive(self) -> None:
        decoder = Decoder()
        try:
            while data := await self._carrier.read():
                self._touch()
                # A session that was left reads on: a carrier closed over unread bytes may drop what was sent last.
                if not self._leaving:
                    self._hear(decoder, data)
                    await self._caught_up()
            within = "" if decoder.between_frames or self._leaving else ", in the middle of a frame"
            self._end(f"the other side closed the connection{within}")
        except ConnectionError as error:
            self._end(f"the connection was lost: {error}")
        except BaseException:
            self._end("the session failed here")
            raise

    def _hear(self, decoder: Decoder, data: bytes) -> None:
        try:
            for frame in decoder.feed(data):
                self._handle(frame)
        except Malformed as error:
            self._leave(frames.WENT_AGAINST_PROTOCOL, f"the other side does not speak SPDY/3.1: {error}")

    async def _caught_up(self) -> None:
        """Wait until no stream is full and what the other side asked for is sent: so it cannot fill our memory."""
        while self._full:
            self._relief.clear()
            try:
                async with asyncio.timeout(self._probe_seconds):
                    await self._relief.wait()
            except TimeoutError:
                self.send(Ping(self._next_id))
        await self._sender.light()

    def _handle(self, frame: Frame) -> None:
        match frame:
            case Data(stream_id, data, fin):
                self._take(stream_id, data, fin)
            case SynStream():
                self._offer(frame)
            case SynReply(stream_id, _, fin):
                self._accepted(stream_id, fin)
            case Headers(stream_id, _, fin):
                self._take(stream_id, b"", fin)
            case RstStream(stream_id, status):
                self._forget(stream_id, f"the other side reset stream {stream_id}, with status {status}")
            case Ping(number) if self._is_theirs(number):
                self.send(frame)
            case GoAway():
                self._they_go = True
                self._news.set()
            case Settings() | WindowUpdate() | Ping():
                # Peers in Go send neither and mind no window: one that waited for theirs would wait for ever.
                pass

    def _offer(self, opened: SynStream) -> None:
        number = opened.stream_id
        if not self._is_theirs(number) or number <= self._last_theirs:
            raise Malformed(f"stream {number} opened after stream {self._last_theirs}: numbers of a side only grow")
        self._last_theirs = number
        if len(self._streams) >= self._max_streams or self._they_go:
            self.send(RstStream(number, frames.REFUSED_STREAM))
            return
        stream = SpdyStream(
            self, number, opened.headers, replied=False, fin=opened.fin, unidirectional=opened.unidirectional
        )
        self._streams[number] = stream
        self._offered.append(stream)
        self._news.set()

    def _take(self, stream_id: int, data: bytes, fin: bool) -> None:
        stream = self._streams.get(stream_id)
        if stream and not stream.heard_out:
            stream.arrive(data, fin)
            if stream.full:
                self._full.add(stream)
            if stream.over:
                self.settled(stream)
            return
        self._sender.consumed(0, len(data))
        if stream and data:
            self._refuse(stream_id, frames.STREAM_ALREADY_CLOSED, "was sent more after its end")
        elif not stream and self._is_new(stream_id):
            self.send(RstStream(stream_id, frames.INVALID_STREAM))

    def _is_new(self, stream_id: int) -> bool:
        return stream_id > self._last_theirs if self._is_theirs(stream_id) else stream_id >= self._next_id

    def _accepted(self, stream_id: int, fin: bool) -> None:
        stream = self._streams.get(stream_id)
        if stream and (self._is_theirs(stream_id) or not stream.accept()):
            self._refuse(stream_id, frames.STREAM_IN_USE, "was accepted by its opener, or twice")
        else:
            self._take(stream_id, b"", fin)

    def _refuse(self, stream_id: int, status: int, why: str) -> None:
        self.send(RstStream(stream_id, status))
        self._forget(stream_id, f"stream {stream_id} {why}")

    def _forget(self, stream_id: int, reason: str) -> None:
        if stream := self._streams.get(stream_id):
            if stream in self._offered:
                self._offered.remove(stream)
            stream.lose(reason, drop=not stream.heard_out)

    def _is_theirs(self, number: int) -> bool:
        return number % 2 != self._next_id % 2

    # How it ends.

    async def _send(self) -> None:
        try:
            await self._sender.run(self._touch)
        except ConnectionError as error:
            self._end(f"the connection was lost: {error}")
        except BaseException:
            self._end("the session failed here")
            raise

    def _touch(self) -> None:
        self._last_active = self._loop.time()

    def _look_for_life(self) -> None:
        left = self._last_active + self._patience - self._loop.time()
        if left > 0:
            self._timer = self._loop.call_later(left, self._look_for_life)
        elif self._leaving:
            self._end(self.reason)
        else:
            self._leave(frames.WENT_WELL, f"nothing came and nothing went for {self._patience:g} seconds")

    def _leave(self, status: int, reason: str) -> None:
        """Say goodbye; unless the other side broke the protocol, streams that were ended are sent to their end."""
        if self._leaving:
            return
        self.reason = reason
        for stream in list(self._streams.values()):
            if status == frames.WENT_WELL:
                if stream.ending:
                    continue
                if not stream.ended:
                    self.send(RstStream(stream.stream_id, frames.CANCEL))
            stream.lose(reason, drop=False)
        self._leaving = True
        self._sender.finish(GoAway(self._last_theirs, status))
        self._wake()
        self._timer.cancel()
        self._patience = self._linger_seconds
        self._touch()
        self._look_for_life()

    def _end(self, reason: str) -> None:
        if self._over.is_set():
            return
        self.reason = self.reason or reason
        self._leaving = True
        for stream in list(self._streams.values()):
            stream.lose(self.reason, drop=False)
        self._wake()
        self._over.set()
        self._timer.cancel()
        self._carrier.abort()
        current = asyncio.current_task()
        for task in self._tasks:
            if task is not current:
                task.cancel()

    def _wake(self) -> None:
        self._offered.clear()
        self._full.clear()
        self._news.set()
        self._relief.set()
