"""Terminal sizes sent by clients (kubelet: TerminalSizeQueue)."""

from __future__ import annotations

import asyncio
import json
from typing import Self

from node_agent.docker.exec import TerminalSize

MOST_PENDING = 4 << 10
MOST_CELLS = 0xFFFF


class SizeParser:
    """Reads sizes out of bytes in any cuts. After something that is no size it is deaf, as the reference is."""

    def __init__(self) -> None:
        self._pending = ""
        self._deaf = False

    def feed(self, data: bytes) -> list[TerminalSize]:
        """Give the sizes that are complete with these bytes."""
        if self._deaf:
            return []
        self._pending = (self._pending + data.decode("utf-8", "replace")).lstrip()
        sizes = []
        while self._pending:
            try:
                found, end = json.JSONDecoder().raw_decode(self._pending)
                sizes.append(_size(found))
            except json.JSONDecodeError:
                self._deaf = not self._pending.startswith("{") or len(self._pending) > MOST_PENDING
                break
            except (ValueError, RecursionError):
                self._deaf = True
                break
            self._pending = self._pending[end:].lstrip()
        if self._deaf:
            self._pending = ""
        return sizes


def _size(found: object) -> TerminalSize:
    if not isinstance(found, dict):
        raise ValueError(f"a size is an object with Width and Height, found {found!r}")
    by_name = {name.lower(): value for name, value in found.items()}
    width, height = by_name.get("width", 0), by_name.get("height", 0)
    for cells in (width, height):
        if type(cells) is not int or not 0 <= cells <= MOST_CELLS:
            raise ValueError(f"columns and rows are 0 to {MOST_CELLS}, found {cells!r}")
    return TerminalSize(width, height)


class TerminalSizeQueue:
    """The sizes that a client's terminal takes, for one reader; of those not fetched in time only the last."""

    def __init__(self) -> None:
        self._reader = SizeParser()
        self._last: TerminalSize | None = None
        self._news = asyncio.Event()
        self._ended = False

    def feed(self, data: bytes) -> None:
        """Take bytes as they came."""
        if sizes := self._reader.feed(data):
            self._last = sizes[-1]
            self._news.set()

    def end(self) -> None:
        """No more sizes will come."""
        self._ended = True
        self._news.set()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> TerminalSize:
        while self._last is None:
            if self._ended:
                raise StopAsyncIteration
            self._news.clear()
            await self._news.wait()
        size, self._last = self._last, None
        return size
