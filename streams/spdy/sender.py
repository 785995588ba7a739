"""The sending half of a SPDY session: control frames first, then one data frame of each stream in turn."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Final

from streams.spdy.frames import Encoder, Frame, GoAway, WindowUpdate
from streams.spdy.stream import SpdyStream
from streams.stream import Stream

BATCH_BYTES: Final = 256 * 1024
"""Data bytes that are written to the carrier at once, so that one system call sends many frames."""

MAX_CONTROL_BACKLOG_BYTES: Final = 64 * 1024
"""Unsent bytes of control frames above which the session stops reading, because the peer's frames cause them."""

WINDOW_UPDATE_BYTES: Final = 32 * 1024
"""Consumed bytes after which a WINDOW_UPDATE is sent: half of the window of a peer that has one."""

MAX_WINDOW_DELTA: Final = 0x7FFFFFFF


class Sender:
    """Queues of unsent frames, and the loop that writes them to the carrier as fast as the carrier accepts them."""

    def __init__(self, carrier: Stream) -> None:
        self._carrier = carrier
        self._encoder = Encoder()
        self._control: deque[bytes] = deque()
        self._control_bytes = 0
        self._queue: deque[SpdyStream] = deque()
        self._queued: set[SpdyStream] = set()
        self._consumed: dict[int, int] = {}
        """Consumed bytes that no WINDOW_UPDATE has reported yet, by stream ID; 0 is the session."""
        self._updates_due: set[int] = set()
        self._goaway: GoAway | None = None
        self._pending = asyncio.Event()
        self._drained = asyncio.Event()
        self._drained.set()

    def send_control(self, frame: Frame) -> None:
        """Queue a control frame. Control frames keep their order and are sent before all data."""
        data = self._encoder.encode(frame)
        self._control.append(data)
        self._control_bytes += len(data)
        if self._control_bytes > MAX_CONTROL_BACKLOG_BYTES:
            self._drained.clear()
        self._pending.set()

    def enqueue(self, stream: SpdyStream) -> None:
        """Append a stream to the queue of streams that have data to send, unless it is queued already."""
        if stream not in self._queued:
            self._queued.add(stream)
            self._queue.append(stream)
        self._pending.set()

    def bytes_consumed(self, stream_id: int, size: int) -> None:
        """Count bytes of a stream, or of the session with ID 0, that were read or dropped, for WINDOW_UPDATE."""
        self._consumed[stream_id] = self._consumed.get(stream_id, 0) + size
        if self._consumed[stream_id] >= WINDOW_UPDATE_BYTES:
            self._updates_due.add(stream_id)
            self._pending.set()

    def forget_stream(self, stream_id: int) -> None:
        """Send no further WINDOW_UPDATE for a stream."""
        self._consumed.pop(stream_id, None)
        self._updates_due.discard(stream_id)

    def finish(self, goaway: GoAway) -> None:
        """Send everything that is queued, then this GOAWAY, then nothing more."""
        self._goaway = goaway
        self._pending.set()

    async def wait_until_drained(self) -> None:
        """Wait until few control frames are queued."""
        await self._drained.wait()

    async def run(self, on_progress: Callable[[], None]) -> None:
        """Send until `finish` was called, then end the carrier. `on_progress` is called after each write."""
        while True:
            batch = self._next_batch()
            if batch:
                await self._carrier.write(b"".join(batch))
                on_progress()
            elif self._goaway:
                await self._carrier.write(self._encoder.encode(self._goaway))
                await self._carrier.end()
                return
            else:
                self._pending.clear()
                await self._pending.wait()

    def _next_batch(self) -> list[bytes | memoryview]:
        batch: list[bytes | memoryview] = list(self._control)
        size = self._control_bytes
        self._control.clear()
        self._control_bytes = 0
        self._drained.set()
        batch += [self._window_update(stream_id) for stream_id in self._updates_due]
        self._updates_due.clear()
        while size < BATCH_BYTES and self._queue:
            stream = self._queue.popleft()
            self._queued.discard(stream)
            if frame := stream.next_frame():
                batch += frame
                size += len(frame[1])
            if stream.has_frame:
                self.enqueue(stream)
        return batch

    def _window_update(self, stream_id: int) -> bytes:
        delta = min(self._consumed.pop(stream_id), MAX_WINDOW_DELTA)
        return self._encoder.encode(WindowUpdate(stream_id, delta))
