"""Two streams joined: what comes from one goes to the other."""

from __future__ import annotations

import asyncio

from streams.stream import Stream


async def splice(a: Stream, b: Stream, idle_seconds: float) -> None:
    """Join two streams, both ways, until both have ended; at most what was read last waits in here.

    Bytes that had come before a side was lost are still delivered to the other one. When nothing has come from either
    for `idle_seconds`, or when it is cancelled, both are aborted.
    """
    clock = _Clock()
    try:
        async with asyncio.TaskGroup() as group:
            idle = group.create_task(_idle(clock, idle_seconds, a, b))
            ways = [group.create_task(_pump(a, b, clock)), group.create_task(_pump(b, a, clock))]
            for way in ways:
                await way
            idle.cancel()
    except BaseException:
        a.abort()
        b.abort()
        raise


class _Clock:
    """When bytes came last."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self.last = self._loop.time()

    def touch(self) -> None:
        """Now."""
        self.last = self._loop.time()

    def left(self, seconds: float) -> float:
        """How long it is until nothing has come for so many seconds."""
        return self.last + seconds - self._loop.time()


async def _pump(source: Stream, sink: Stream, clock: _Clock) -> None:
    """One way."""
    while True:
        try:
            data = await source.read()
        except ConnectionError:
            # Nothing can be sent there either: after what had come, nobody needs what the sink would still say.
            await sink.end()
            sink.abort()
            return
        if not data:
            await sink.end()
            return
        clock.touch()
        try:
            await sink.write(data)
        except ConnectionError:
            # The way back ends by itself, after what had come from there has been delivered.
            return
        clock.touch()


async def _idle(clock: _Clock, seconds: float, a: Stream, b: Stream) -> None:
    """Abort both when nothing comes for so long."""
    left = seconds
    while left > 0:
        await asyncio.sleep(left)
        left = clock.left(seconds)
    a.abort()
    b.abort()
