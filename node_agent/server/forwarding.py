"""Connections of a client, each joined to one inside the pod. None of them ends or holds up the others."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable

from reconcile.errors import DriverError
from streams.stream import Stream

log = logging.getLogger(__name__)

FAREWELL_SECONDS = 1.0
"""So long connections get to deliver what a client sent before it went."""


class Forwarding:
    """`dial` connects to a port of the pod; `whom` names the pod to clients."""

    def __init__(self, dial: Callable[[int], Awaitable[Stream]], whom: str) -> None:
        self._dial = dial
        self._whom = whom
        self._tasks: set[asyncio.Task[None]] = set()

    def begin(self, port: int, data: Stream, error: Stream, *, half_closes: bool) -> None:
        """Join the two streams of a connection to the pod. Without `half_closes` the end of either side ends both."""
        task = asyncio.create_task(self._forward(port, data, error, half_closes))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def done(self, left: asyncio.Event) -> None:
        """Wait for the end of all connections, and not much longer than the client stays."""
        leaving = asyncio.create_task(left.wait())
        everything = asyncio.gather(*self._tasks, return_exceptions=True)
        try:
            await asyncio.wait((everything, leaving), return_when=asyncio.FIRST_COMPLETED)
            if not everything.done():
                await asyncio.wait((everything,), timeout=FAREWELL_SECONDS)
        finally:
            leaving.cancel()

    async def stop(self) -> None:
        """End those that are left."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _forward(self, port: int, data: Stream, error: Stream, half_closes: bool) -> None:
        with contextlib.suppress(ConnectionError):
            try:
                pod = await self._dial(port)
            except (DriverError, OSError) as problem:
                log.info("port is not forwarded", extra={"port": port, "pod": self._whom, "error": problem})
                await error.write(f"error forwarding port {port} to {self._whom}: {problem}".encode())
                await error.end()
                data.abort()
                return
            await _join(data, error, pod, half_closes)


async def _join(data: Stream, error: Stream, pod: Stream, half_closes: bool) -> None:
    up = asyncio.create_task(_up(data, pod))
    try:
        await _down(pod, data)
        # kubectl closes its side only when the stream of errors has ended.
        await error.end()
        if half_closes:
            await up
    finally:
        # Before anything waits: this may be cancelled here once more.
        data.abort()
        pod.abort()
        up.cancel()
        await asyncio.wait((up,))


async def _up(data: Stream, pod: Stream) -> None:
    """From the client to the pod. What a program does not want to read is dropped: it may still speak."""
    heard = True
    try:
        while piece := await data.read():
            if heard:
                try:
                    await pod.write(piece)
                except ConnectionError:
                    heard = False
    except ConnectionError:
        pod.abort()
        return
    with contextlib.suppress(ConnectionError):
        await pod.end()


async def _down(pod: Stream, data: Stream) -> None:
    """From the pod to the client. Raises ConnectionError when the client has gone."""
    while True:
        try:
            piece = await pod.read()
        except ConnectionError:
            data.abort()
            return
        if not piece:
            await data.end()
            return
        await data.write(piece)
