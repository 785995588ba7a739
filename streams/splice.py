"""Joins two streams: the bytes of each are written to the other."""

from __future__ import annotations

import asyncio
import contextlib

from streams.stream import Stream

DRAIN_SECONDS = 10.0
"""Time limit for delivering the bytes that a lost peer had sent before it was lost."""


async def splice(
    a: Stream,
    b: Stream,
    idle_seconds: float,
    drain_seconds: float = DRAIN_SECONDS,
    client_gone: asyncio.Event | None = None,
) -> None:
    """Copy bytes between two streams, in both directions, until both have ended. Buffers only the last bytes read.

    Bytes that arrived before a peer was lost are still delivered to the other peer, within `drain_seconds`. Both
    streams are aborted when neither has sent anything for `idle_seconds`, when `client_gone` is set because the client
    that they were joined for has left, and when this coroutine is cancelled.
    """
    activity = _Activity()
    try:
        async with asyncio.TaskGroup() as group:
            watchers = [group.create_task(_enforce_limits(activity, idle_seconds, drain_seconds, a, b))]
            if client_gone is not None:
                watchers.append(group.create_task(_abort_when(client_gone, a, b)))
            copies = [group.create_task(_copy(a, b, activity)), group.create_task(_copy(b, a, activity))]
            for copy in copies:
                await copy
            for watcher in watchers:
                watcher.cancel()
    except BaseException:
        a.abort()
        b.abort()
        raise


class _Activity:
    """The time of the last bytes in either direction, and whether a peer is lost."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._last_active = self._loop.time()
        self.peer_lost = asyncio.Event()

    def record(self) -> None:
        """Record that bytes were received or sent now."""
        self._last_active = self._loop.time()

    def remaining(self, idle_seconds: float) -> float:
        """Return the seconds until the streams have been idle for `idle_seconds`."""
        return self._last_active + idle_seconds - self._loop.time()


async def _copy(source: Stream, sink: Stream, activity: _Activity) -> None:
    while True:
        try:
            data = await source.read()
        except ConnectionError:
            activity.peer_lost.set()
            # The source is lost in both directions, so the sink's own bytes could not be delivered any more.
            await _end(sink)
            sink.abort()
            return
        if not data:
            await _end(sink)
            return
        activity.record()
        try:
            await sink.write(data)
        except ConnectionError:
            # The copy in the other direction ends by itself, after it has delivered what the sink had sent.
            activity.peer_lost.set()
            return
        activity.record()


async def _end(sink: Stream) -> None:
    with contextlib.suppress(ConnectionError):
        await sink.end()


async def _enforce_limits(activity: _Activity, idle_seconds: float, drain_seconds: float, a: Stream, b: Stream) -> None:
    """Abort both streams when they are idle for too long, or `drain_seconds` after one of them was lost."""
    while not activity.peer_lost.is_set() and (remaining := activity.remaining(idle_seconds)) > 0:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(remaining):
                await activity.peer_lost.wait()
    if activity.peer_lost.is_set():
        await asyncio.sleep(drain_seconds)
    a.abort()
    b.abort()


async def _abort_when(client_gone: asyncio.Event, a: Stream, b: Stream) -> None:
    await client_gone.wait()
    a.abort()
    b.abort()
