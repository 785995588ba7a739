"""Single HTTP requests to Docker, with time limits and errors. Driver."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import aiohttp

from node_agent.docker.process import process_exists
from reconcile.errors import DriverError, Gone, NotReady, Refused

START_SECONDS = 10.0
"""So long Docker may take to begin; that it hangs says nothing about what it was asked for."""

FIRST_LOOK, LAST_LOOK = 0.01, 0.25
UNTOLD_SECONDS = 10.0


def session(socket: str) -> aiohttp.ClientSession:
    """A connection to the Docker behind a unix socket. What it waits for has no end but that of its caller."""
    return aiohttp.ClientSession(
        "http://docker",
        connector=aiohttp.UnixConnector(socket),
        cookie_jar=aiohttp.DummyCookieJar(),
        timeout=aiohttp.ClientTimeout(),
    )


@contextlib.asynccontextmanager
async def docker_timeout(seconds: float = START_SECONDS) -> AsyncIterator[asyncio.Timeout]:
    """What Docker must answer in time. In the block its silence, and that it is not there, become NotReady."""
    try:
        async with asyncio.timeout(seconds) as limit:
            yield limit
    except TimeoutError:
        raise NotReady(f"Docker does not answer: nothing came within {seconds:g}s") from None
    except (aiohttp.ClientError, OSError) as error:
        raise NotReady(f"Docker does not answer: {error}") from None


async def docker_request(docker: aiohttp.ClientSession, method: str, path: str, body: object = None) -> Any:
    """Docker's answer, None when it is empty. Raises Gone, Refused, NotReady with Docker's own words."""
    async with docker.request(method, path, json=body) as answer:
        if answer.status >= 400:
            raise await response_error(answer)
        return await answer.json() if answer.content_type == "application/json" else None


async def response_error(answer: aiohttp.ClientResponse) -> DriverError:
    """Why Docker does not do it."""
    words = f"Docker: {await error_message(answer)}"
    if answer.status == 404:
        return Gone(words)
    passing = answer.status >= 500 and answer.status != 501
    return (NotReady if passing else Refused)(words)


async def error_message(answer: aiohttp.ClientResponse) -> str:
    """What an answer says that is no success."""
    try:
        return str((await answer.json(content_type=None))["message"])
    except (ValueError, KeyError, TypeError):
        return f"status {answer.status}"


async def wait_exit_code(docker: aiohttp.ClientSession, identity: str) -> int:
    """How a program that was run in a container has ended, as soon as Docker knows.

    Its output ends a moment before that, and long before when the program has closed it. Raises NotReady when the
    program is gone and Docker does not see it.
    """
    pause, loop = FIRST_LOOK, asyncio.get_running_loop()
    alive = loop.time()
    while True:
        seen = await docker_request(docker, "GET", f"/exec/{identity}/json")
        if not seen["Running"] and seen["ExitCode"] is not None:
            return int(seen["ExitCode"])
        if process_exists(seen["Pid"]):
            alive = loop.time()
        elif loop.time() - alive > UNTOLD_SECONDS:
            raise NotReady(f"Docker does not tell how the program of the exec {identity[:12]} has ended")
        await asyncio.sleep(pause)
        pause = min(2 * pause, LAST_LOOK)
