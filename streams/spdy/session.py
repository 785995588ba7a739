"""A SPDY/3.1 session over one connection: it opens and accepts streams, and ends them all when it ends."""

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
from streams.spdy.headers import ProtocolError
from streams.spdy.sender import Sender
from streams.spdy.stream import SpdyStream
from streams.stream import Stream

__all__ = ["Session", "SpdyStream"]

IDLE_SECONDS: Final = 4 * 3600.0
"""Time without any data in either direction after which a session is closed, as in kubelet."""

LINGER_SECONDS: Final = 600.0
"""Time that a closing session waits for the peer to read the last bytes and to close the connection."""

PING_SECONDS: Final = 5.0
"""Interval of pings while a slow reader stops the carrier, which then cannot detect that the peer has gone."""

MAX_STREAMS: Final = 1_000
"""Open streams allowed at once. A further stream is refused; the session continues."""


class Session:
    """A SPDY session, of the server or of the client. It runs from its construction until it is closed or aborted.

    The session owns its carrier. It must be created in a running loop, preferably by
    `async with Session(carrier) as session`.
    """

    def __init__(
        self,
        carrier: Stream,
        *,
        client: bool = False,
        idle_seconds: float = IDLE_SECONDS,
        linger_seconds: float = LINGER_SECONDS,
        ping_seconds: float = PING_SECONDS,
        max_streams: int = MAX_STREAMS,
    ) -> None:
        self.reason = ""
        """Why the session has ended; empty while it is open."""
        self._carrier = carrier
        self._timeout_seconds = idle_seconds
        self._linger_seconds = linger_seconds
        self._ping_seconds = ping_seconds
        self._max_streams = max_streams
        self._sender = Sender(carrier)
        self._streams: dict[int, SpdyStream] = {}
        self._incoming: deque[SpdyStream] = deque()
        self._next_id = 1 if client else 2
        self._last_remote_id = 0
        self._goaway_received = False
        self._closing = False
        self._full_streams: set[SpdyStream] = set()
        self._incoming_changed = asyncio.Event()
        self._buffer_drained = asyncio.Event()
        self._closed = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self._record_activity()
        self._timer = self._loop.call_later(self._timeout_seconds, self._check_activity)
        self._tasks = {self._loop.create_task(run) for run in (self._receive(), self._send())}

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def accept(self) -> SpdyStream | None:
        """Wait for the next stream that the peer opens. Returns None if the session ends or the peer sends GOAWAY."""
        while not self._incoming:
            if self._closing or self._goaway_received:
                return None
            self._incoming_changed.clear()
            await self._incoming_changed.wait()
        return self._incoming.popleft()

    async def open(self, headers: Mapping[str, str]) -> SpdyStream:
        """Open a stream and wait until the peer has accepted it. Raises ConnectionResetError if it cannot be opened."""
        if self._closing or self._goaway_received:
            raise ConnectionResetError(self.reason or "the other side takes no more streams")
        stream = SpdyStream(self, self._next_id, headers, replied=False, fin=False, unidirectional=False)
        self._next_id += 2
        self._streams[stream.stream_id] = stream
        self.send(SynStream(stream.stream_id, headers))
        try:
            await stream.wait_until_accepted()
        except asyncio.CancelledError:
            stream.abort()
            raise
        return stream

    async def close(self) -> None:
        """Send the unsent bytes of ended streams, reset the others, send GOAWAY, and wait for the peer to close."""
        self._start_close(frames.GOAWAY_OK, "the session was closed here")
        try:
            await self._closed.wait()
        finally:
            self.abort()
            await asyncio.wait(self._tasks)

    def abort(self) -> None:
        """Close the session and its carrier at once."""
        self._terminate("the session was aborted here")

    # --- For the streams (StreamOwner) -------------------------------------------------------------------------

    def send(self, frame: Frame) -> None:
        """Queue a control frame, to be sent before all data."""
        if not self._closing:
            self._sender.send_control(frame)

    def ready_to_send(self, stream: SpdyStream) -> None:
        """Queue a stream that has data to send."""
        self._sender.enqueue(stream)

    def bytes_consumed(self, stream: SpdyStream, size: int) -> None:
        """Record that bytes were read or dropped, and send WINDOW_UPDATE in large steps, for peers that use windows."""
        if not stream.receive_buffer_full and stream in self._full_streams:
            self._full_streams.discard(stream)
            self._buffer_drained.set()
        self._sender.bytes_consumed(0, size)
        if stream.stream_id in self._streams and not stream.remote_ended:
            self._sender.bytes_consumed(stream.stream_id, size)

    def stream_finished(self, stream: SpdyStream) -> None:
        """Forget a stream that has ended in both directions."""
        self._streams.pop(stream.stream_id, None)
        self._sender.forget_stream(stream.stream_id)

    # --- Receiving -----------------------------------------------------------------------------------------------

    async def _receive(self) -> None:
        decoder = Decoder()
        try:
            while data := await self._carrier.read():
                self._record_activity()
                # A closing session reads on, because closing a carrier with unread bytes may drop the last bytes sent.
                if not self._closing:
                    self._decode(decoder, data)
                    await self._wait_for_readers()
            position = "" if decoder.at_frame_boundary or self._closing else ", in the middle of a frame"
            self._terminate(f"the other side closed the connection{position}")
        except ConnectionError as error:
            self._terminate(f"the connection was lost: {error}")
        except BaseException:
            self._terminate("the session failed here")
            raise

    def _decode(self, decoder: Decoder, data: bytes) -> None:
        try:
            for frame in decoder.feed(data):
                self._handle(frame)
        except ProtocolError as error:
            self._start_close(frames.GOAWAY_PROTOCOL_ERROR, f"the other side does not speak SPDY/3.1: {error}")

    async def _wait_for_readers(self) -> None:
        """Wait until no stream's buffer is full and few replies to the peer are unsent. This bounds our memory."""
        while self._full_streams:
            self._buffer_drained.clear()
            try:
                async with asyncio.timeout(self._ping_seconds):
                    await self._buffer_drained.wait()
            except TimeoutError:
                self.send(Ping(self._next_id))
        await self._sender.wait_until_drained()

    def _handle(self, frame: Frame) -> None:
        match frame:
            case Data(stream_id, data, fin):
                self._handle_data(stream_id, data, fin)
            case SynStream():
                self._handle_syn_stream(frame)
            case SynReply(stream_id, _, fin):
                self._handle_syn_reply(stream_id, fin)
            case Headers(stream_id, _, fin):
                self._handle_data(stream_id, b"", fin)
            case RstStream(stream_id, status):
                self._fail_stream(stream_id, f"the other side reset stream {stream_id}, with status {status}")
            case Ping(ping_id) if self._is_remote(ping_id):
                self.send(frame)
            case GoAway():
                self._goaway_received = True
                self._incoming_changed.set()
            case Settings() | WindowUpdate() | Ping():
                # Peers written in Go send neither SETTINGS nor WINDOW_UPDATE. Waiting for them would never end.
                pass

    def _handle_syn_stream(self, frame: SynStream) -> None:
        stream_id = frame.stream_id
        if not self._is_remote(stream_id) or stream_id <= self._last_remote_id:
            raise ProtocolError(
                f"stream {stream_id} opened after stream {self._last_remote_id}: numbers of a side only grow"
            )
        self._last_remote_id = stream_id
        if len(self._streams) >= self._max_streams or self._goaway_received:
            self.send(RstStream(stream_id, frames.REFUSED_STREAM))
            return
        stream = SpdyStream(
            self, stream_id, frame.headers, replied=False, fin=frame.fin, unidirectional=frame.unidirectional
        )
        self._streams[stream_id] = stream
        self._incoming.append(stream)
        self._incoming_changed.set()

    def _handle_data(self, stream_id: int, data: bytes, fin: bool) -> None:
        stream = self._streams.get(stream_id)
        if stream and not stream.remote_ended:
            stream.receive(data, fin)
            if stream.receive_buffer_full:
                self._full_streams.add(stream)
            if stream.finished:
                self.stream_finished(stream)
            return
        self._sender.bytes_consumed(0, len(data))
        if stream and data:
            self._reset_stream(stream_id, frames.STREAM_ALREADY_CLOSED, "received data after its end")
        elif not stream and self._is_unopened(stream_id):
            self.send(RstStream(stream_id, frames.INVALID_STREAM))

    def _handle_syn_reply(self, stream_id: int, fin: bool) -> None:
        stream = self._streams.get(stream_id)
        if stream and (self._is_remote(stream_id) or not stream.mark_accepted()):
            self._reset_stream(stream_id, frames.STREAM_IN_USE, "was accepted by its opener, or twice")
        else:
            self._handle_data(stream_id, b"", fin)

    def _reset_stream(self, stream_id: int, status: int, reason: str) -> None:
        self.send(RstStream(stream_id, status))
        self._fail_stream(stream_id, f"stream {stream_id} {reason}")

    def _fail_stream(self, stream_id: int, reason: str) -> None:
        if stream := self._streams.get(stream_id):
            if stream in self._incoming:
                self._incoming.remove(stream)
            stream.fail(reason, discard_unread=not stream.remote_ended)

    def _is_unopened(self, stream_id: int) -> bool:
        if self._is_remote(stream_id):
            return stream_id > self._last_remote_id
        return stream_id >= self._next_id

    def _is_remote(self, number: int) -> bool:
        """Return whether the peer assigned this stream ID or ping ID: odd numbers are the client's."""
        return number % 2 != self._next_id % 2

    # --- Sending and ending --------------------------------------------------------------------------------------

    async def _send(self) -> None:
        try:
            await self._sender.run(self._record_activity)
        except ConnectionError as error:
            self._terminate(f"the connection was lost: {error}")
        except BaseException:
            self._terminate("the session failed here")
            raise

    def _record_activity(self) -> None:
        self._last_active = self._loop.time()

    def _check_activity(self) -> None:
        """Close a session that is idle for too long; terminate one that has lingered for too long."""
        remaining = self._last_active + self._timeout_seconds - self._loop.time()
        if remaining > 0:
            self._timer = self._loop.call_later(remaining, self._check_activity)
        elif self._closing:
            self._terminate(self.reason)
        else:
            self._start_close(frames.GOAWAY_OK, f"no data was sent or received for {self._timeout_seconds:g} seconds")

    def _start_close(self, status: int, reason: str) -> None:
        """Send GOAWAY and accept nothing more.

        With GOAWAY_OK the unsent bytes of ended streams are still sent. After a protocol error all streams fail.
        """
        if self._closing:
            return
        self.reason = reason
        for stream in list(self._streams.values()):
            if status == frames.GOAWAY_OK:
                if stream.is_draining:
                    continue
                if not stream.local_ended:
                    self.send(RstStream(stream.stream_id, frames.CANCEL))
            stream.fail(reason, discard_unread=False)
        self._closing = True
        self._sender.finish(GoAway(self._last_remote_id, status))
        self._wake_waiters()
        self._timer.cancel()
        self._timeout_seconds = self._linger_seconds
        self._record_activity()
        self._check_activity()

    def _terminate(self, reason: str) -> None:
        if self._closed.is_set():
            return
        self.reason = self.reason or reason
        self._closing = True
        for stream in list(self._streams.values()):
            stream.fail(self.reason, discard_unread=False)
        self._wake_waiters()
        self._closed.set()
        self._timer.cancel()
        self._carrier.abort()
        current = asyncio.current_task()
        for task in self._tasks:
            if task is not current:
                task.cancel()

    def _wake_waiters(self) -> None:
        self._incoming.clear()
        self._full_streams.clear()
        self._incoming_changed.set()
        self._buffer_drained.set()
