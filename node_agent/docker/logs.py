"""Reads and follows container logs. Driver."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncGenerator, AsyncIterator

import aiohttp

from api.core.log_options import NANOSECONDS, STDERR, STDOUT, PodLogOptions, parse_nanoseconds
from node_agent.docker.http import docker_request, docker_session, docker_timeout, response_error
from node_agent.docker.wire_format import LogEntryReader, LogStreamError
from reconcile.errors import Gone, NotReady

RETRY_SECONDS = 0.2
"""Time between two attempts to follow a log that Docker ends at once although the container runs."""


@contextlib.asynccontextmanager
async def stream_logs(socket: str, container: str, options: PodLogOptions) -> AsyncIterator[AsyncIterator[bytes]]:
    """Read the log of a container, running or not. The caller has chosen the container, so `previous` has no effect.

    Entering the block raises Gone if there is no such container, Refused if its log driver cannot be read, and NotReady
    if Docker does not respond. So errors are known before a response to the client starts. The block gets an iterator
    over chunks of the log; with `follow` it continues until the container ends. A slow reader delays only itself. The
    iterator raises NotReady if Docker goes away. Leaving the block closes the request to Docker.
    """
    async with docker_session(socket) as docker:
        async with docker_timeout():
            state = await docker_request(docker, "GET", f"/containers/{container}/json")
        has_timestamps = options.timestamps or options.follow
        entries = LogEntryReader(
            tty=state["Config"]["Tty"], has_timestamps=has_timestamps, show_timestamps=options.timestamps
        )
        query = _query(options, time.time_ns(), timestamps=has_timestamps)
        source = _LogSource(docker, f"/containers/{state['Id']}", query)
        await source.open()
        async with contextlib.aclosing(_until_removed(_read_entries(source, entries, options))) as chunks:
            yield chunks


class _LogSource:
    """A log that Docker sends, and sends again from a given time on."""

    def __init__(self, docker: aiohttp.ClientSession, container: str, query: dict[str, str]) -> None:
        """`container` is the path of the container in Docker's API."""
        self._docker = docker
        self._container = container
        self._query = query
        self._response: aiohttp.ClientResponse

    async def open(self, since: bytes = b"", *, exited: bool = False) -> None:
        """Request the log, or with `since` its entries from that time on. Follow it unless the container has exited."""
        if since:
            self._query = {**self._query, "since": _format_seconds(parse_nanoseconds(since.decode())), "tail": "all"}
        if exited:
            self._query.pop("follow", None)
        async with docker_timeout():
            self._response = await self._docker.get(f"{self._container}/logs", params=self._query)
            if self._response.status >= 400:
                async with self._response:
                    raise await response_error(self._response)

    async def is_running(self) -> bool:
        """Return whether the container runs, so that it may write more. Raises Gone or NotReady."""
        async with docker_timeout():
            state = (await docker_request(self._docker, "GET", f"{self._container}/json"))["State"]
        return bool(state["Running"])

    async def chunks(self) -> AsyncGenerator[bytes, None]:
        """Yield the bytes of the response as they arrive. Raises NotReady if Docker goes away."""
        async with self._response:
            try:
                async for data in self._response.content.iter_any():
                    yield data
            except (aiohttp.ClientError, OSError) as error:
                raise NotReady(f"Docker went away in the middle of the log: {error}") from None


def _query(options: PodLogOptions, now: int, *, timestamps: bool) -> dict[str, str]:
    flags = {
        "stdout": options.stream != STDERR,
        "stderr": options.stream != STDOUT,
        "follow": options.follow,
        "timestamps": timestamps,
    }
    query = {name: "1" for name, is_set in flags.items() if is_set}
    if options.tail_lines is not None:
        query["tail"] = str(options.tail_lines)
    since = options.since(now)
    if since is not None and since > 0:
        query["since"] = _format_seconds(since)
    return query


def _format_seconds(since: int) -> str:
    return f"{since // NANOSECONDS}.{since % NANOSECONDS:09}"


async def _read_entries(
    source: _LogSource, entries: LogEntryReader, options: PodLogOptions
) -> AsyncGenerator[bytes, None]:
    """Yield the log up to its byte limit. A followed log is requested again if Docker ends it before the container.

    After the container has exited, the rest of the log is read once more, because Docker sometimes omits a last line
    without a line feed.
    """
    remaining = options.limit_bytes
    start_time = b""
    exited = not options.follow
    while True:
        try:
            async with contextlib.aclosing(source.chunks()) as chunks:
                async for data in chunks:
                    text = entries.read(data)
                    if remaining is not None and remaining <= len(text):
                        yield text[:remaining]
                        return
                    remaining = None if remaining is None else remaining - len(text)
                    if text:
                        yield text
            if exited:
                if rest := entries.finish()[:remaining]:
                    yield rest
                return
            exited = not await source.is_running()
            if not exited and entries.last_time == start_time:
                await asyncio.sleep(RETRY_SECONDS)
        except LogStreamError as error:
            if not options.follow or entries.last_time == start_time:
                raise NotReady(f"Docker: {error}") from None
        start_time = entries.last_time
        entries.resume()
        await source.open(entries.last_time, exited=exited)


async def _until_removed(chunks: AsyncGenerator[bytes, None]) -> AsyncGenerator[bytes, None]:
    """Yield chunks, and end without an error when the container is removed."""
    async with contextlib.aclosing(chunks):
        with contextlib.suppress(Gone):
            async for chunk in chunks:
                yield chunk
