"""The way out of a session: control frames first, then streams in turn, a frame of each."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Final

from streams.spdy.frames import Encoder, Frame, WindowUpdate
from streams.spdy.stream import SpdyStream
from streams.stream import Stream

BATCH: Final = 256 * 1024
"""So much is handed to the carrier at once: one call of the system for many frames."""

BACKLOG_LIMIT: Final = 64 * 1024
"""So many bytes of control frames may wait; above it the other side, which asks for them, is not read."""

WINDOW_STEP: Final = 32 * 1024
"""Consumed bytes are told when they are so many: half of the window of a peer that minds it."""

MOST_TOLD: Final = 0x7FFFFFFF


class Sender:
    """Collects what is to be sent and hands it to the carrier as fast as that takes it."""

    def __init__(self, carrier: Stream) -> None:
        self._carrier = carrier
        self._encoder = Encoder()
        self._control: deque[bytes] = deque()
        self._backlog = 0
        self._turns: deque[SpdyStream] = deque()
        self._waiting: set[SpdyStream] = set()
        self._consumed: dict[int, int] = {}
        """Bytes consumed and not yet told, of streams and, under 0, of the session."""
        self._due: set[int] = set()
        self._farewell: Frame | None = None
        self._work = asyncio.Event()
        self._light = asyncio.Event()
        self._light.set()

    def control(self, frame: Frame) -> None:
        """Send a control frame, in order among its like and before all data."""
        data = self._encoder.encode(frame)
        self._control.append(data)
        self._backlog += len(data)
        if self._backlog > BACKLOG_LIMIT:
            self._light.clear()
        self._work.set()

    def ready(self, stream: SpdyStream) -> None:
        """Put a stream at the end of the turns, unless it has one."""
        if stream not in self._waiting:
            self._waiting.add(stream)
            self._turns.append(stream)
        self._work.set()

    def consumed(self, stream_id: int, size: int) -> None:
        """Tell the other side, in big enough steps, that bytes of a stream, or of all with 0, were read or dropped."""
        self._consumed[stream_id] = self._consumed.get(stream_id, 0) + size
        if self._consumed[stream_id] >= WINDOW_STEP:
            self._due.add(stream_id)
            self._work.set()

    def forget(self, stream_id: int) -> None:
        """Tell nothing more of a stream."""
        self._consumed.pop(stream_id, None)
        self._due.discard(stream_id)

    def finish(self, farewell: Frame) -> None:
        """Send what waits, then this, then nothing more."""
        self._farewell = farewell
        self._work.set()

    async def light(self) -> None:
        """Wait until few control frames wait."""
        await self._light.wait()

    async def run(self, progress: Callable[[], None]) -> None:
        """Send until `finish`, then end the carrier; `progress` is called whenever the carrier has taken something."""
        while True:
            batch = self._batch()
            if batch:
                await self._carrier.write(b"".join(batch))
                progress()
            elif self._farewell:
                await self._carrier.write(self._encoder.encode(self._farewell))
                await self._carrier.end()
                return
            else:
                self._work.clear()
                await self._work.wait()

    def _batch(self) -> list[bytes | memoryview]:
        batch: list[bytes | memoryview] = list(self._control)
        self._control.clear()
        size, self._backlog = self._backlog, 0
        self._light.set()
        batch += [self._told(stream_id) for stream_id in self._due]
        self._due.clear()
        while size < BATCH and self._turns:
            stream = self._turns.popleft()
            self._waiting.discard(stream)
            if frame := stream.next_frame():
                batch += frame
                size += len(frame[1])
            if stream.has_more:
                self.ready(stream)
        return batch

    def _told(self, stream_id: int) -> bytes:
        return self._encoder.encode(WindowUpdate(stream_id, min(self._consumed.pop(stream_id), MOST_TOLD)))
