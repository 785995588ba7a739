"""One conversation in SPDY over a carrier: the streams the other side opens, and what holds for all of them."""

from __future__ import annotations

from collections.abc import Mapping
from types import TracebackType
from typing import Self

from streams.stream import Stream

IDLE_SECONDS = 4 * 3600.0
MAX_STREAMS = 1_000


class SpdyStream(Stream):
    """One stream of a session: bytes both ways, each way ended on its own."""

    stream_id: int
    headers: Mapping[str, str]
    """As the side that opened the stream sent them; names in lower case."""

    async def reply(self) -> None:
        """Accept a stream the other side opened; `write` and `end` do it first where it was not done."""
        raise NotImplementedError

    def reset(self) -> None:
        """End the stream at once, both ways, and tell the other side; the same as `abort`."""
        raise NotImplementedError


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
        max_streams: int = MAX_STREAMS,
    ) -> None:
        raise NotImplementedError

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def accept(self) -> SpdyStream | None:
        """Wait for the next stream the other side opens; nothing when the session has ended."""
        raise NotImplementedError

    async def open(self, headers: Mapping[str, str]) -> SpdyStream:
        """Open a stream to the other side and wait until it has accepted it."""
        raise NotImplementedError

    async def close(self) -> None:
        """Send what ended streams still hold, reset the others, say goodbye and end the carrier."""
        raise NotImplementedError

    def abort(self) -> None:
        """End the session and its carrier at once."""
        raise NotImplementedError
