"""Programs run inside containers, through Docker's exec API. Each is a socket of its own and takes no thread."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

import aiohttp

from node_agent.docker_frames import Frames
from node_agent.drivers.docker_calls import START_SECONDS, answering, ask, exit_code, session, words_of
from reconcile.errors import Gone, NotReady, Refused

MOST_OUTPUT = 10 << 10
NOT_STARTED = 126
PING_SECONDS = 1.0


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
    now, output = asyncio.get_running_loop().time, bytearray()
    identity, starts = "", False
    try:
        async with asyncio.timeout(START_SECONDS) as limit, session(socket) as docker:
            wish = {"AttachStdout": True, "AttachStderr": True, "Cmd": list(command)}
            identity = (await ask(docker, "POST", f"/containers/{container}/exec", wish))["Id"]
            async with docker.post(f"/exec/{identity}/start", json={"Detach": False, "Tty": False}) as answer:
                limit.reschedule(now() + seconds)
                starts = True
                refused = await _listen(answer, output)
            if refused:
                return Executed(NOT_STARTED, refused)
            return Executed(await exit_code(docker, identity), _text(output))
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
    async with answering(PING_SECONDS), session(socket) as docker:
        seen = await ask(docker, "GET", f"/exec/{identity}/json")
    return None if seen["Running"] or seen["ExitCode"] is None else int(seen["ExitCode"])


async def _listen(answer: aiohttp.ClientResponse, output: bytearray) -> str:
    """Listen to a program until it ends; why it could not be started, or nothing."""
    if answer.status >= 400:
        words = await words_of(answer)
        if answer.status in {404, 409}:
            raise (Gone if answer.status == 404 else Refused)(f"Docker: {words}")
        return words
    frames = Frames()
    async for data in answer.content.iter_any():
        for piece in frames.cut(data):
            output += piece.data[: MOST_OUTPUT - len(output)]
    return ""


def _text(output: bytearray) -> str:
    return output.decode(errors="replace")
