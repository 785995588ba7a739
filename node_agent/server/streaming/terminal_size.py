"""Terminal sizes sent by clients (kubelet: TerminalSizeQueue)."""

from __future__ import annotations

import asyncio
import json
from typing import Self

from node_agent.docker.exec import TerminalSize

MAX_PENDING_CHARACTERS = 4 << 10
MAX_CELLS = 0xFFFF


class SizeParser:
    """A parser of JSON terminal sizes in a byte stream. Like the kubelet, it ignores everything after invalid input."""

    def __init__(self) -> None:
        self._pending = ""
        self._broken = False

    def feed(self, data: bytes) -> list[TerminalSize]:
        """Return the sizes that are complete with these bytes."""
        if self._broken:
            return []
        self._pending = (self._pending + data.decode("utf-8", "replace")).lstrip()
        sizes = []
        while self._pending:
            try:
                document, end = json.JSONDecoder().raw_decode(self._pending)
                sizes.append(_parse_size(document))
            except json.JSONDecodeError:
                self._broken = not self._pending.startswith("{") or len(self._pending) > MAX_PENDING_CHARACTERS
                break
            except (ValueError, RecursionError):
                self._broken = True
                break
            self._pending = self._pending[end:].lstrip()
        if self._broken:
            self._pending = ""
        return sizes


def _parse_size(document: object) -> TerminalSize:
    if not isinstance(document, dict):
        raise ValueError(f"found {document!r}; an object with Width and Height is accepted")
    by_name = {name.lower(): value for name, value in document.items()}
    width = by_name.get("width", 0)
    height = by_name.get("height", 0)
    for cells in (width, height):
        if type(cells) is not int or not 0 <= cells <= MAX_CELLS:
            raise ValueError(f"found {cells!r} columns or rows; 0 to {MAX_CELLS} are accepted")
    return TerminalSize(width, height)


class TerminalSizeQueue:
    """The sizes of a client's terminal, for one reader. A newer size replaces one that was not read yet."""

    def __init__(self) -> None:
        self._parser = SizeParser()
        self._latest: TerminalSize | None = None
        self._changed = asyncio.Event()
        self._ended = False

    def feed(self, data: bytes) -> None:
        """Add received bytes."""
        if sizes := self._parser.feed(data):
            self._latest = sizes[-1]
            self._changed.set()

    def end(self) -> None:
        """End the queue."""
        self._ended = True
        self._changed.set()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> TerminalSize:
        while self._latest is None:
            if self._ended:
                raise StopAsyncIteration
            self._changed.clear()
            await self._changed.wait()
        size = self._latest
        self._latest = None
        return size
