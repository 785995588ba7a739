"""Two streams joined: what comes from one goes to the other."""

from __future__ import annotations

import asyncio
import contextlib

from streams.stream import Stream

FAREWELL_SECONDS = 10.0
"""So long what had come from a side that is lost may take to be delivered to the other."""


async def splice(
    a: Stream,
    b: Stream,
    idle_seconds: float,
    farewell_seconds: float = FAREWELL_SECONDS,
    gone: asyncio.Event | None = None,
) -> None:
    """Join two streams, both ways, until both have ended; at most what was read last waits in here.

    When `gone` is set nobody is there any more for whom they were joined.

    Bytes that had come before a side was lost are still delivered to the other one, if it takes them in time. When
    nothing has come from either for `idle_seconds`, or when it is cancelled, both are aborted.
    """
    state = _State()
    try:
        async with asyncio.TaskGroup() as group:
            limits = [group.create_task(_limit(state, idle_seconds, farewell_seconds, a, b))]
            if gone is not None:
                limits.append(group.create_task(_when(gone, a, b)))
            ways = [group.create_task(_pump(a, b, state)), group.create_task(_pump(b, a, state))]
            for way in ways:
                await way
            for limit in limits:
                limit.cancel()
    except BaseException:
        a.abort()
        b.abort()
        raise


class _State:
    """When bytes came last, and whether a side is lost."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._last = self._loop.time()
        self.lost = asyncio.Event()

    def touch(self) -> None:
        """Now."""
        self._last = self._loop.time()

    def left(self, seconds: float) -> float:
        """How long it is until nothing has come for so many seconds."""
        return self._last + seconds - self._loop.time()


async def _pump(source: Stream, sink: Stream, state: _State) -> None:
    """One way."""
    while True:
        try:
            data = await source.read()
        except ConnectionError:
            state.lost.set()
            # Nothing can be sent there either: after what had come, nobody needs what the sink would still say.
            await _end(sink)
            sink.abort()
            return
        if not data:
            await _end(sink)
            return
        state.touch()
        try:
            await sink.write(data)
        except ConnectionError:
            # The way back ends by itself, after what had come from there has been delivered.
            state.lost.set()
            return
        state.touch()


async def _end(sink: Stream) -> None:
    with contextlib.suppress(ConnectionError):
        await sink.end()


async def _limit(state: _State, idle_seconds: float, farewell_seconds: float, a: Stream, b: Stream) -> None:
    """Abort both when nothing comes for so long, or when one is lost and the other does not take what it had said."""
    while not state.lost.is_set() and (left := state.left(idle_seconds)) > 0:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(left):
                await state.lost.wait()
    if state.lost.is_set():
        await asyncio.sleep(farewell_seconds)
    a.abort()
    b.abort()


async def _when(gone: asyncio.Event, a: Stream, b: Stream) -> None:
    await gone.wait()
    a.abort()
    b.abort()
