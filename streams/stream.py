"""The protocol that every byte stream implements: TCP and TLS connections, streams of SPDY, channels of WebSockets."""

from __future__ import annotations

from typing import Protocol


class Stream(Protocol):
    """A byte stream to and from a peer, with at most one reader and one writer at a time."""

    async def read(self) -> bytes:
        """Return the next bytes as they arrived; empty bytes at the end. Raises ConnectionError if the peer is lost."""
        ...

    async def write(self, data: bytes) -> None:
        """Send bytes and return when the send buffer has room again. Raises ConnectionError if the peer is lost."""
        ...

    async def end(self) -> None:
        """End writing. Reading continues if the transport can be closed in one direction only."""
        ...

    def abort(self) -> None:
        """Close both directions at once and drop unsent bytes. A second call does nothing."""
        ...
