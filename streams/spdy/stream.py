"""One stream of a SPDY session, with its buffers of unread and of unsent bytes."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Mapping
from typing import Final, Protocol

from streams.spdy.frames import CANCEL, Frame, RstStream, SynReply, data_header
from streams.stream import Stream

RECEIVE_BUFFER_BYTES: Final = 64 * 1024
"""Unread bytes of a stream above which the session stops reading from the carrier."""

SEND_BUFFER_BYTES: Final = 64 * 1024
"""Unsent bytes of a stream above which its writer waits."""

CHUNK_OVERHEAD_BYTES: Final = 64
"""Memory that a stored chunk needs besides its bytes, so that many tiny chunks count as much as they occupy."""

MAX_FRAME_BYTES: Final = 32 * 1024
"""Longest data frame sent. Streams take turns frame by frame; Go copies in pieces of this size."""


class StreamOwner(Protocol):
    """The session of a stream, as the stream uses it."""

    def send(self, frame: Frame) -> None:
        """Queue a control frame, to be sent before all data."""
        ...

    def ready_to_send(self, stream: SpdyStream) -> None:
        """Queue a stream that has data to send."""
        ...

    def bytes_consumed(self, stream: SpdyStream, size: int) -> None:
        """Record that bytes of the stream were read or dropped."""
        ...

    def stream_finished(self, stream: SpdyStream) -> None:
        """Forget a stream that has ended in both directions."""
        ...


class SpdyStream(Stream):
    """One stream of a session. Each direction ends on its own."""

    def __init__(
        self,
        session: StreamOwner,
        stream_id: int,
        headers: Mapping[str, str],
        *,
        replied: bool,
        fin: bool,
        unidirectional: bool,
    ) -> None:
        self.stream_id = stream_id
        self.headers = headers
        """The headers with which the stream was opened; names in lower case."""
        self._session = session
        self._failure = ""
        self._replied = replied or unidirectional
        self._received: deque[bytes] = deque()
        self._received_cost = 0
        self._remote_ended = fin
        self._unread_discarded = False
        self._unsent: deque[memoryview] = deque()
        self._unsent_bytes = 0
        self._local_ended = unidirectional
        self._end_sent = unidirectional
        self._readable = asyncio.Event()
        """Set when bytes or the end of the stream can be read."""
        self._writable = asyncio.Event()
        """Set when bytes were sent, or when the stream has failed."""
        self._accepted = asyncio.Event()

    # --- For the user of the stream ------------------------------------------------------------------------------

    async def read(self) -> bytes:
        """Return the next bytes; empty bytes at the end. Bytes that came before a failure are returned before it."""
        while not self._received:
            if self._remote_ended and not self._unread_discarded:
                return b""
            self._raise_failure()
            self._readable.clear()
            await self._readable.wait()
        data = self._received.popleft()
        self._received_cost -= len(data) + CHUNK_OVERHEAD_BYTES
        self._session.bytes_consumed(self, len(data))
        return data

    async def write(self, data: bytes) -> None:
        """Send bytes and return when the send buffer has room again. The caller must not change the bytes later."""
        self._raise_failure()
        if self._local_ended:
            raise BrokenPipeError(f"stream {self.stream_id} is ended: nothing more can be written to it")
        self._ensure_replied()
        if not data:
            return
        self._unsent.append(memoryview(data))
        self._unsent_bytes += len(data)
        self._session.ready_to_send(self)
        while self._unsent_bytes > SEND_BUFFER_BYTES:
            await self._wait_until_sent()

    async def end(self) -> None:
        """End writing, and return when all written bytes were handed to the carrier."""
        self._raise_failure()
        self._ensure_replied()
        if not self._local_ended:
            self._local_ended = True
            self._session.ready_to_send(self)
        while not self._end_sent:
            await self._wait_until_sent()

    async def reply(self) -> None:
        """Accept a stream that the peer opened. `write` and `end` do this if it was not done before."""
        self._raise_failure()
        self._ensure_replied()

    def reset(self) -> None:
        """Close the stream at once with RST_STREAM; the same as `abort`."""
        self.abort()

    def abort(self) -> None:
        """Close both directions at once, drop unread and unsent bytes, and send RST_STREAM."""
        if not self._failure and not self.finished:
            self._session.send(RstStream(self.stream_id, CANCEL))
        self.fail(f"stream {self.stream_id} was aborted here", discard_unread=True)

    # --- For the session -----------------------------------------------------------------------------------------

    @property
    def finished(self) -> bool:
        """Whether both sides have ended the stream and everything is sent."""
        return self._remote_ended and self._end_sent

    @property
    def remote_ended(self) -> bool:
        """Whether the peer has ended its direction."""
        return self._remote_ended

    @property
    def local_ended(self) -> bool:
        """Whether our direction was ended; bytes may still be unsent."""
        return self._local_ended

    @property
    def is_draining(self) -> bool:
        """Whether our direction was ended and bytes are still being sent."""
        return self._local_ended and not self._end_sent and not self._failure

    @property
    def receive_buffer_full(self) -> bool:
        """Whether the reader has to catch up before the session reads more from the carrier."""
        return self._received_cost > RECEIVE_BUFFER_BYTES

    async def wait_until_accepted(self) -> None:
        """Wait until the peer has accepted the stream. Raises ConnectionResetError if the stream failed before."""
        await self._accepted.wait()
        if not self._replied:
            self._raise_failure()

    def mark_accepted(self) -> bool:
        """Record that the peer has accepted the stream. Returns False if that was recorded before."""
        if self._replied:
            return False
        self._replied = True
        self._accepted.set()
        return True

    def receive(self, data: bytes, fin: bool) -> None:
        """Store bytes that the peer sent."""
        if data:
            self._received.append(data)
            self._received_cost += len(data) + CHUNK_OVERHEAD_BYTES
        self._remote_ended = self._remote_ended or fin
        self._readable.set()

    def next_frame(self) -> tuple[bytes, memoryview] | None:
        """Remove the next data frame from the send buffer. Returns its header and data, or None if there is none."""
        if self._failure or self._end_sent:
            return None
        data = memoryview(b"")
        if self._unsent:
            chunk = self._unsent[0]
            data = chunk[:MAX_FRAME_BYTES]
            if len(data) < len(chunk):
                self._unsent[0] = chunk[MAX_FRAME_BYTES:]
            else:
                self._unsent.popleft()
            self._unsent_bytes -= len(data)
        self._end_sent = self._local_ended and not self._unsent
        self._writable.set()
        if self.finished:
            self._session.stream_finished(self)
        return data_header(self.stream_id, len(data), self._end_sent), data

    @property
    def has_frame(self) -> bool:
        """Whether another frame is to be sent."""
        return not self._failure and (bool(self._unsent) or (self._local_ended and not self._end_sent))

    def fail(self, reason: str, *, discard_unread: bool) -> None:
        """Close the stream in both directions. Unread bytes can still be read unless they are discarded."""
        self._failure = self._failure or reason
        self._unsent.clear()
        self._session.stream_finished(self)
        if discard_unread:
            self._unread_discarded = True
            discarded = sum(map(len, self._received))
            self._received.clear()
            self._received_cost = 0
            self._session.bytes_consumed(self, discarded)
        for event in (self._readable, self._writable, self._accepted):
            event.set()

    def _raise_failure(self) -> None:
        if self._failure:
            raise ConnectionResetError(self._failure)

    def _ensure_replied(self) -> None:
        if not self._replied:
            self._replied = True
            self._session.send(SynReply(self.stream_id))

    async def _wait_until_sent(self) -> None:
        """Wait until a frame of this stream was sent. Raises ConnectionResetError if the stream fails."""
        self._raise_failure()
        self._writable.clear()
        await self._writable.wait()
        if not self._end_sent:
            self._raise_failure()
