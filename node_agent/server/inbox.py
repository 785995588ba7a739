"""What has come for one reader and was not yet fetched. Who feeds it never waits: he looks at how much there is."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable


class Inbox:
    """Bytes in the order in which they came; `fetched` is called whenever a reader has taken some."""

    def __init__(self, fetched: Callable[[], None]) -> None:
        self._fetched = fetched
        self._pieces: deque[bytes] = deque()
        self._news = asyncio.Event()
        self._closed = False
        self._lost = ""
        self.size = 0

    def feed(self, data: bytes) -> None:
        """Take bytes; after the end they are dropped."""
        if data and not self._closed:
            self._pieces.append(data)
            self.size += len(data)
            self._news.set()

    def end(self) -> None:
        """Nothing more will come; what is here can still be fetched."""
        self._closed = True
        self._news.set()

    def lose(self, why: str) -> None:
        """Nothing more will come because the other side is lost, which the reader learns after what is here."""
        if not self._closed:
            self._lost = why
        self.end()

    def clear(self) -> None:
        """Drop what is here: nobody will fetch it."""
        self._pieces.clear()
        self.size = 0
        self.end()
        self._fetched()

    async def read(self) -> bytes:
        """Give the next bytes, nothing at the end; raises ConnectionError when the other side was lost."""
        while not self._pieces:
            if self._lost:
                raise ConnectionResetError(self._lost)
            if self._closed:
                return b""
            self._news.clear()
            await self._news.wait()
        piece = self._pieces.popleft()
        self.size -= len(piece)
        self._fetched()
        return piece
