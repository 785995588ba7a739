"""HTTP requests of exec, attach and logs to Docker, with time limits and errors. `client.py` has all others. Driver."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import aiohttp

from node_agent.docker.process import process_exists
from reconcile.errors import DriverError, Gone, NotReady, Refused

RESPONSE_TIMEOUT_SECONDS = 10.0
"""Time limit for the start of a response. After a timeout, the result of the requested operation is unknown."""

MIN_POLL_SECONDS, MAX_POLL_SECONDS = 0.01, 0.25
"""First and longest interval between two requests for a state; the interval doubles each time."""

EXIT_CODE_TIMEOUT_SECONDS = 10.0
"""Time that Docker has to report the exit code of a process that no longer exists."""

TRANSIENT_ERRORS = ("connection refused", "no such host", "timeout", "unreachable")
"""Texts in Docker's error messages that name a temporary cause outside the request."""


def docker_session(socket: str) -> aiohttp.ClientSession:
    """Return an HTTP client for the Docker behind a unix socket. It has no time limits; its callers set their own."""
    return aiohttp.ClientSession(
        "http://docker",
        connector=aiohttp.UnixConnector(socket),
        cookie_jar=aiohttp.DummyCookieJar(),
        timeout=aiohttp.ClientTimeout(),
    )


@contextlib.asynccontextmanager
async def docker_timeout(seconds: float = RESPONSE_TIMEOUT_SECONDS) -> AsyncIterator[asyncio.Timeout]:
    """Limit the time of the block. A timeout or a failed connection in the block is raised as NotReady."""
    try:
        async with asyncio.timeout(seconds) as limit:
            yield limit
    except TimeoutError:
        raise NotReady(f"Docker does not answer: no response within {seconds:g}s") from None
    except (aiohttp.ClientError, OSError) as error:
        raise NotReady(f"Docker does not answer: {error}") from None


async def docker_request(docker: aiohttp.ClientSession, method: str, path: str, body: object = None) -> Any:
    """Send a request. Returns the JSON document of the response, or None if it is empty.

    Raises Gone, Refused or NotReady with Docker's own message.
    """
    async with docker.request(method, path, json=body) as response:
        if response.status >= 400:
            raise await response_error(response)
        return await response.json() if response.content_type == "application/json" else None


async def response_error(response: aiohttp.ClientResponse) -> DriverError:
    """Return the error that a response with an error status stands for: Gone, NotReady (transient) or Refused."""
    message = f"Docker: {await error_message(response)}"
    if response.status == 404:
        return Gone(message)
    if response.status >= 500 and response.status != 501:
        return NotReady(message)
    return Refused(message)


async def error_message(response: aiohttp.ClientResponse) -> str:
    """Return Docker's message in a response with an error status, or the status if there is none."""
    try:
        return str((await response.json(content_type=None))["message"])
    except (ValueError, KeyError, TypeError):
        return f"status {response.status}"


async def wait_exit_code(docker: aiohttp.ClientSession, exec_id: str) -> int:
    """Wait until Docker reports the exit code of an exec, and return it.

    Docker reports it a moment after the end of the output, or much later if the program has closed its output. Raises
    NotReady if the process no longer exists and Docker does not notice that.
    """
    loop = asyncio.get_running_loop()
    poll_seconds = MIN_POLL_SECONDS
    last_alive_at = loop.time()
    while True:
        state = await docker_request(docker, "GET", f"/exec/{exec_id}/json")
        if not state["Running"] and state["ExitCode"] is not None:
            return int(state["ExitCode"])
        if process_exists(state["Pid"]):
            last_alive_at = loop.time()
        elif loop.time() - last_alive_at > EXIT_CODE_TIMEOUT_SECONDS:
            raise NotReady(f"Docker does not report the exit code of exec {exec_id[:12]}, whose process has ended")
        await asyncio.sleep(poll_seconds)
        poll_seconds = min(2 * poll_seconds, MAX_POLL_SECONDS)
