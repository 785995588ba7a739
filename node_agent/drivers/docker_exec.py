"""Programs run inside containers, through Docker's exec API. Each is a socket of its own and takes no thread."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any

import aiohttp

from reconcile.errors import Gone, NotReady, Refused

MOST_OUTPUT = 10 << 10
HEADER_BYTES = 8
NOT_STARTED = 126
ENDING_SECONDS = 0.01
PING_SECONDS = 1.0
START_SECONDS = 10.0
"""So long Docker may take to begin; that it hangs says nothing about the program."""


@dataclass(frozen=True, slots=True)
class Executed:
    """How a program ended: its exit code, None when it had not ended in time, and the first 10 KiB of what it said."""

    code: int | None
    output: str = ""


async def execute(socket: str, container: str, command: tuple[str, ...], seconds: float) -> Executed:
    """Run a program. One that does not end in time is left alone: Docker has no way to end it.

    Its time begins when Docker says that it starts it. Raises Gone without the container, Refused when it does not run,
    NotReady when Docker is away or hangs: then it is not the program that was too slow.
    """
    connector, now = aiohttp.UnixConnector(socket), asyncio.get_running_loop().time
    output = bytearray()
    identity, starts = "", False
    try:
        async with (
            asyncio.timeout(START_SECONDS) as limit,
            aiohttp.ClientSession("http://docker", connector=connector, timeout=aiohttp.ClientTimeout()) as session,
        ):
            wish = {"AttachStdout": True, "AttachStderr": True, "Cmd": list(command)}
            identity = (await _json(session, "POST", f"/containers/{container}/exec", wish))["Id"]
            async with session.post(f"/exec/{identity}/start", json={"Detach": False, "Tty": False}) as answer:
                limit.reschedule(now() + seconds)
                starts = True
                refusal = await _listen(answer, output)
            if refusal:
                return Executed(NOT_STARTED, refusal)
            return Executed(await _exit_code(session, identity), _text(output))
    except TimeoutError:
        if not starts:
            raise NotReady(f"Docker does not answer: the program has not begun within {START_SECONDS:g}s") from None
        return Executed(await _last_look(socket, identity), _text(output))
    except (aiohttp.ClientError, OSError) as error:
        raise NotReady(f"Docker does not answer: {error}") from None


async def _last_look(socket: str, identity: str) -> int | None:
    """The exit code of a program that has ended all the same, while Docker hung; None if it still runs.

    Raises NotReady when Docker does not answer.
    """
    connector, limit = aiohttp.UnixConnector(socket), aiohttp.ClientTimeout(PING_SECONDS)
    try:
        async with aiohttp.ClientSession("http://docker", connector=connector, timeout=limit) as session:
            seen = await _json(session, "GET", f"/exec/{identity}/json")
    except (aiohttp.ClientError, OSError, TimeoutError) as error:
        raise NotReady(f"Docker does not answer: {str(error) or 'it hangs'}") from None
    return None if seen["Running"] or seen["ExitCode"] is None else int(seen["ExitCode"])


async def _listen(answer: aiohttp.ClientResponse, output: bytearray) -> str:
    """Listen to a program until it ends; why it could not be started, or nothing.

    The stream is cut into frames: a header of eight bytes, the last four being the length, and the payload.
    """
    if answer.status >= 400:
        words = await _words(answer)
        if answer.status in {404, 409}:
            raise (Gone if answer.status == 404 else Refused)(f"Docker: {words}")
        return words
    while True:
        try:
            header = await answer.content.readexactly(HEADER_BYTES)
            left = int.from_bytes(header[4:])
            while left:
                piece = await answer.content.read(min(left, 1 << 16))
                if not piece:
                    return ""
                left -= len(piece)
                output += piece[: MOST_OUTPUT - len(output)]
        except asyncio.IncompleteReadError:
            return ""


async def _exit_code(session: aiohttp.ClientSession, identity: str) -> int:
    """The stream ends a moment before Docker knows the exit code, and long before when the program has closed it."""
    while True:
        seen = await _json(session, "GET", f"/exec/{identity}/json")
        if not seen["Running"] and seen["ExitCode"] is not None:
            return int(seen["ExitCode"])
        await asyncio.sleep(ENDING_SECONDS)


async def _json(session: aiohttp.ClientSession, method: str, path: str, body: object = None) -> Any:
    async with session.request(method, path, json=body) as answer:
        if answer.status < 400:
            return await answer.json()
        words = f"Docker: {await _words(answer)}"
        raise Gone(words) if answer.status == 404 else (NotReady if answer.status >= 500 else Refused)(words)


async def _words(answer: aiohttp.ClientResponse) -> str:
    try:
        return str((await answer.json(content_type=None))["message"])
    except (ValueError, KeyError, TypeError):
        return f"status {answer.status}"


def _text(output: bytearray) -> str:
    return output.decode(errors="replace")
