"""Reads and follows container logs. Driver."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncGenerator, AsyncIterator

import aiohttp

from api.core.log_options import NANOSECONDS, STDERR, STDOUT, PodLogOptions, nanoseconds
from node_agent.docker.http import docker_request, docker_timeout, response_error, session
from node_agent.docker.wire_format import LogEntryReader, LogStreamError
from reconcile.errors import Gone, NotReady

AGAIN_SECONDS = 0.2
"""Between two attempts to follow a log that Docker ends at once although its container runs."""


@contextlib.asynccontextmanager
async def stream_logs(socket: str, container: str, wish: PodLogOptions) -> AsyncIterator[AsyncIterator[bytes]]:
    """The log of a container, running or not; `previous` is for who chooses the container.

    Entering the block raises Gone without the container, Refused when its log driver cannot be read, NotReady when
    Docker is away or hangs: so there is an error before there is an answer. The pieces come as they are written when
    it is followed, until the container ends; who reads slowly holds up only itself. They raise NotReady when Docker
    goes away. Leaving the block lets go of it.
    """
    async with session(socket) as docker:
        async with docker_timeout():
            seen = await docker_request(docker, "GET", f"/containers/{container}/json")
        timed = wish.timestamps or wish.follow
        entries = LogEntryReader(tty=seen["Config"]["Tty"], timed=timed, wanted=wish.timestamps)
        source = _LogSource(docker, f"/containers/{seen['Id']}", _parameters(wish, time.time_ns(), timed=timed))
        await source.open()
        async with contextlib.aclosing(_until_gone(_read(source, entries, wish))) as pieces:
            yield pieces


class _LogSource:
    """What Docker sends, and sends again from a time on."""

    def __init__(self, docker: aiohttp.ClientSession, container: str, query: dict[str, str]) -> None:
        self._docker = docker
        self._container = container
        self._query = query
        self._answer: aiohttp.ClientResponse

    async def open(self, last: bytes = b"", *, ended: bool = False) -> None:
        """Ask for it, or for what came with this time and after it; it is not followed when the container has ended."""
        if last:
            self._query = {**self._query, "since": _seconds(nanoseconds(last.decode())), "tail": "all"}
        if ended:
            self._query.pop("follow", None)
        async with docker_timeout():
            self._answer = await self._docker.get(f"{self._container}/logs", params=self._query)
            if self._answer.status >= 400:
                async with self._answer:
                    raise await response_error(self._answer)

    async def runs(self) -> bool:
        """Whether more may be written. Raises Gone, NotReady."""
        async with docker_timeout():
            state = (await docker_request(self._docker, "GET", f"{self._container}/json"))["State"]
        return bool(state["Running"])

    async def pieces(self) -> AsyncGenerator[bytes, None]:
        """Raises NotReady when Docker goes away."""
        async with self._answer:
            try:
                async for data in self._answer.content.iter_any():
                    yield data
            except (aiohttp.ClientError, OSError) as error:
                raise NotReady(f"Docker went away in the middle of the log: {error}") from None


def _parameters(wish: PodLogOptions, now: int, *, timed: bool) -> dict[str, str]:
    asked = {
        "stdout": wish.stream != STDERR,
        "stderr": wish.stream != STDOUT,
        "follow": wish.follow,
        "timestamps": timed,
    }
    query = {name: "1" for name, wanted in asked.items() if wanted}
    if wish.tail_lines is not None:
        query["tail"] = str(wish.tail_lines)
    since = wish.since(now)
    if since is not None and since > 0:
        query["since"] = _seconds(since)
    return query


def _seconds(since: int) -> str:
    return f"{since // NANOSECONDS}.{since % NANOSECONDS:09}"


async def _read(source: _LogSource, entries: LogEntryReader, wish: PodLogOptions) -> AsyncGenerator[bytes, None]:
    """Of a log that is followed, also what comes after Docker gave up, or ended before the container did.

    When the container has ended, what is there is read once more: Docker does not always tell a last line that has no
    end.
    """
    left, begun, ended = wish.limit_bytes, b"", not wish.follow
    while True:
        try:
            async with contextlib.aclosing(source.pieces()) as pieces:
                async for data in pieces:
                    piece = entries.read(data)
                    if left is not None and left <= len(piece):
                        yield piece[:left]
                        return
                    left = None if left is None else left - len(piece)
                    if piece:
                        yield piece
            if ended:
                if rest := entries.finish()[:left]:
                    yield rest
                return
            ended = not await source.runs()
            if not ended and entries.last == begun:
                await asyncio.sleep(AGAIN_SECONDS)
        except LogStreamError as trouble:
            if not wish.follow or entries.last == begun:
                raise NotReady(f"Docker: {trouble}") from None
        begun = entries.last
        entries.resume()
        await source.open(entries.last, ended=ended)


async def _until_gone(pieces: AsyncGenerator[bytes, None]) -> AsyncGenerator[bytes, None]:
    """A container that is removed has said all it can."""
    async with contextlib.aclosing(pieces):
        with contextlib.suppress(Gone):
            async for piece in pieces:
                yield piece
