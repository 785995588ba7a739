"""Turns in which a server does TLS handshakes, shared fairly among the sources of connections."""

from __future__ import annotations

import asyncio
from collections import OrderedDict

MAX_IMPATIENT = 10_000
"""Sources with short turns that are kept in mind."""

_Queue = OrderedDict[str, dict[asyncio.Future[None], None]]
"""Connections that wait, the oldest first, by source; the source that is next first."""


class HandshakeTurns:
    """At most `at_once` turns at a time. One lasts until its handshake is done, and no longer than `begin` returns.

    Sources from which a user has authenticated, and all others, take turns; so do the sources among them, and the
    connections of a source. So a source that waits for one turn waits for one of each other source, whatever number
    of connections these have.

    A turn lasts `longest` seconds. That of a source whose handshakes take longer is halved each time, down to
    `shortest`, because users and clients that do not answer may share a source, as a node and its pods do. Each
    handshake that is done in time makes it longer by `shortest`.
    """

    def __init__(self, at_once: int, shortest: float, longest: float) -> None:
        self._free = at_once
        self._shortest, self._longest = shortest, longest
        self._impatient: OrderedDict[str, float] = OrderedDict()
        """Seconds of a turn, by source, where these are less than `longest`; the latest last."""
        self._waiting: dict[bool, _Queue] = {True: OrderedDict(), False: OrderedDict()}
        """Those that wait, by whether their source is known."""
        self._known_before = False
        """Whether the latest turn was one of a known source."""

    async def begin(self, source: str, *, is_known: bool) -> float:
        """Wait for a turn, and return its seconds. `end` must be called after them at the latest."""
        if self._free:
            self._free -= 1
        else:
            queue = self._waiting[is_known]
            granted = asyncio.get_running_loop().create_future()
            queue.setdefault(source, {})[granted] = None
            try:
                await granted
            except asyncio.CancelledError:
                if granted.cancelled():
                    self._forget(queue, source, granted)
                else:
                    self._pass_on()
                raise
        return self._impatient.get(source, self._longest)

    def end(self, source: str, *, is_done: bool) -> None:
        """End a turn of a source; `is_done`: its handshake has ended, too."""
        before = self._impatient.pop(source, self._longest)
        after = before + self._shortest if is_done else max(before / 2, self._shortest)
        if after < self._longest:
            self._impatient[source] = after
            if len(self._impatient) > MAX_IMPATIENT:
                self._impatient.popitem(last=False)
        self._pass_on()

    def _pass_on(self) -> None:
        """Give a turn that has ended to the connection that is next."""
        self._known_before = not self._known_before
        for is_known in (self._known_before, not self._known_before):
            queue = self._waiting[is_known]
            while queue:
                source, connections = next(iter(queue.items()))
                granted = next(iter(connections))
                self._forget(queue, source, granted)
                if source in queue:
                    queue.move_to_end(source)
                if not granted.done():
                    self._known_before = is_known
                    granted.set_result(None)
                    return
        self._free += 1

    @staticmethod
    def _forget(queue: _Queue, source: str, granted: asyncio.Future[None]) -> None:
        """Remove a connection that does not wait any more, if it is still there."""
        connections = queue.get(source, {})
        connections.pop(granted, None)
        if not connections:
            queue.pop(source, None)
