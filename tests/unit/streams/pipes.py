"""Two ends of one connection in memory, bounded as a socket is."""

from __future__ import annotations

import asyncio
from collections import deque

LIMIT = 64 * 1024


class PipeEnd:
    """One end of a pipe. The other end reads the data that this end writes."""

    other: PipeEnd

    def __init__(self) -> None:
        self.came: deque[bytes] = deque()
        self.size = 0
        self.finished = False
        self.aborted = False
        self.broken = False
        self._changed = asyncio.Event()

    def _change(self) -> None:
        for end in (self, self.other):
            end._changed.set()

    async def _change_comes(self) -> None:
        self._changed.clear()
        await self._changed.wait()

    async def read(self) -> bytes:
        while not self.came:
            if self.aborted or self.broken:
                raise ConnectionResetError("the connection was reset")
            if self.other.finished or self.other.aborted:
                return b""
            await self._change_comes()
        data = self.came.popleft()
        self.size -= len(data)
        self._change()
        return data

    async def write(self, data: bytes) -> None:
        while True:
            if self.aborted or self.broken or self.other.aborted or self.finished:
                raise ConnectionResetError("the connection was reset")
            if self.other.size < LIMIT:
                break
            await self._change_comes()
        if data:
            self.other.came.append(data)
            self.other.size += len(data)
            self._change()

    async def end(self) -> None:
        self.finished = True
        self._change()

    def abort(self) -> None:
        self.aborted = True
        self._change()

    def break_off(self) -> None:
        """Lose the connection at both ends."""
        self.broken = self.other.broken = True
        self.came.clear()
        self._change()


def pair() -> tuple[PipeEnd, PipeEnd]:
    pipe_end, other = PipeEnd(), PipeEnd()
    pipe_end.other, other.other = other, pipe_end
    return pipe_end, other
