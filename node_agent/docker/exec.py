"""Exec and attach: for probes, and interactive with a client at the other end. Driver."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Coroutine
from dataclasses import dataclass
from itertools import groupby
from operator import attrgetter
from pathlib import Path
from typing import Any, Protocol, Self

import aiohttp

from node_agent.docker import process
from node_agent.docker.http import (
    LAST_LOOK,
    START_SECONDS,
    docker_request,
    docker_timeout,
    error_message,
    response_error,
    session,
    wait_exit_code,
)
from node_agent.docker.wire_format import STDOUT, SYSTEM_ERROR, DockerFrameParser
from reconcile.errors import DriverError, Gone, NotReady, Refused
from streams.stream import Stream
from streams.upgrade import upgraded_connection

MAX_OUTPUT = 10 << 10
NOT_STARTED = 126
PING_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class ExecResult:
    """How a program ended: its exit code, None when it had not ended in time, and the first 10 KiB of what it said."""

    code: int | None
    output: str = ""


async def run_exec(socket: str, container: str, command: tuple[str, ...], seconds: float) -> ExecResult:
    """Run a program. One that does not end in time is left alone: Docker has no way to end it.

    Its time begins when Docker says that it starts it. Raises Gone without the container, Refused when it does not run,
    NotReady when Docker is away or hangs: then it is not the program that was too slow.
    """
    now, output = asyncio.get_running_loop().time, bytearray()
    identity, starts = "", False
    try:
        async with asyncio.timeout(START_SECONDS) as limit, session(socket) as docker:
            wish = {"AttachStdout": True, "AttachStderr": True, "Cmd": list(command)}
            identity = (await docker_request(docker, "POST", f"/containers/{container}/exec", wish))["Id"]
            async with docker.post(f"/exec/{identity}/start", json={"Detach": False, "Tty": False}) as answer:
                limit.reschedule(now() + seconds)
                starts = True
                refused = await _listen(answer, output)
            if refused:
                return ExecResult(NOT_STARTED, refused)
            return ExecResult(await wait_exit_code(docker, identity), _text(output))
    except TimeoutError:
        if not starts:
            raise NotReady(f"Docker does not answer: the program has not begun within {START_SECONDS:g}s") from None
        return ExecResult(await _last_look(socket, identity), _text(output))
    except (aiohttp.ClientError, OSError) as error:
        raise NotReady(f"Docker does not answer: {error}") from None


async def _last_look(socket: str, identity: str) -> int | None:
    """The exit code of a program that has ended all the same, while Docker hung; None if it still runs.

    Raises NotReady when Docker does not answer.
    """
    async with docker_timeout(PING_SECONDS), session(socket) as docker:
        seen = await docker_request(docker, "GET", f"/exec/{identity}/json")
    return None if seen["Running"] or seen["ExitCode"] is None else int(seen["ExitCode"])


async def _listen(answer: aiohttp.ClientResponse, output: bytearray) -> str:
    """Listen to a program until it ends; why it could not be started, or nothing."""
    if answer.status >= 400:
        words = await error_message(answer)
        if answer.status in {404, 409}:
            raise (Gone if answer.status == 404 else Refused)(f"Docker: {words}")
        return words
    frames = DockerFrameParser()
    async for data in answer.content.iter_any():
        for piece in frames.cut(data):
            output += piece.data[: MAX_OUTPUT - len(output)]
    return ""


def _text(output: bytearray) -> str:
    return output.decode(errors="replace")


log = logging.getLogger(__name__)


class ExecJournal:
    """Outlives an agent that is killed: the next one finds in `left` what was never crossed off.

    A program is written down before it begins, so that there is none that nobody knows of; files need no order to be
    whole, and what others run in the containers is not among them.
    """

    def __init__(self, directory: Path) -> None:
        """Make the directory if it is not there. Raises OSError."""
        self._directory = directory
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.left = tuple(sorted(entry.name for entry in directory.iterdir()))

    def write_down(self, identity: str) -> None:
        """It is about to begin. On a full disk it begins all the same: people look for the reason in this way."""
        try:
            (self._directory / identity).touch(mode=0o600)
        except OSError as error:
            log.warning(
                "a program would outlive an agent that is killed", extra={"exec": identity, "error": error.strerror}
            )

    def since(self, identity: str) -> float:
        """When it was written down, in seconds since 1970; 0 when it was not."""
        try:
            return (self._directory / identity).stat().st_mtime
        except OSError:
            return 0.0

    def cross_off(self, identity: str) -> None:
        """It has ended."""
        try:
            (self._directory / identity).unlink(missing_ok=True)
        except OSError as error:
            log.warning("a program that has ended stays noted", extra={"exec": identity, "error": error.strerror})


UPGRADE = {"Connection": "Upgrade", "Upgrade": "tcp"}
HANGUP_SECONDS = 5.0
"""So long a program may take to end when who ran it has gone."""

SILENT_SECONDS = 2.0
AGAIN_SECONDS = 5.0
DETACH_KEYS = ",".join(f"ctrl-^,{letter}" for letter in "unlikely")
"""Docker holds back the first key of this sequence until the second: its own, ctrl-p, is one that people type."""

_BACKGROUND: set[asyncio.Task[None]] = set()


@dataclass(frozen=True, slots=True)
class TerminalSize:
    """Of a terminal, in characters."""

    width: int
    height: int


class StreamSession(Protocol):
    """What runs at the other end. Use it as an async context manager: leaving the block lets go of it (`leave`)."""

    async def __aenter__(self) -> Self: ...

    async def __aexit__(self, *_: object) -> None: ...

    def output(self) -> AsyncIterator[tuple[int, bytes]]:
        """Give what it says, as it comes: STDOUT or STDERR, and bytes; with a terminal everything is STDOUT.

        To be asked for once. Who reads slowly holds it up. Raises NotReady when Docker goes away.
        """
        ...

    async def write_stdin(self, data: bytes) -> None:
        """Send input and return when there is room for more. Raises ConnectionError when nobody reads it any more."""
        ...

    async def end_stdin(self) -> None:
        """Say that no input follows. A program with a terminal is not told: it knows no such end.

        Docker then detaches from a container, unless it was made to have its input ended by the first who ends it.
        """
        ...

    async def resize(self, size: TerminalSize) -> None:
        """Give its terminal a size; no error where there is none, or no longer."""
        ...

    async def exit_code(self) -> int:
        """How it ended; to be asked when its output has ended. Of an attached container 0: it has not ended for us.

        Raises Gone when the container was removed, NotReady when Docker does not tell.
        """
        ...

    async def leave(self) -> None:
        """Let go, whether it has ended or not; a second time does nothing.

        A program that has not ended gets SIGHUP, with its process group, and after 5 seconds SIGKILL; this returns
        when it has gone, and goes on without who is cancelled here. A container is only detached from.
        """
        ...


@dataclass(frozen=True, slots=True)
class _StreamKind:
    """Whether it has a terminal, whether it `hears` what is written, and whether it can be told that nothing follows.

    A terminal cannot be closed one way: Docker would close it both ways, with the program still running.
    """

    tty: bool
    hears: bool
    ends: bool


class _AttachSession:
    """A container that goes on when it is left."""

    def __init__(self, docker: aiohttp.ClientSession, path: str, stream: Stream, kind: _StreamKind) -> None:
        """`path` is what Docker calls it."""
        self._docker = docker
        self._path = path
        self._stream = stream
        self._kind = kind
        self._left: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.leave()

    async def output(self) -> AsyncIterator[tuple[int, bytes]]:
        frames = DockerFrameParser()
        while data := await self._read():
            if self._kind.tty:
                yield STDOUT, data
                continue
            for stream, pieces in groupby(frames.cut(data), key=attrgetter("stream")):
                said = b"".join(piece.data for piece in pieces)
                if stream == SYSTEM_ERROR:
                    raise NotReady(f"Docker: {said.decode(errors='replace').strip()}")
                yield stream, said
        if not frames.whole:
            raise NotReady("Docker went away in the middle of what the program said")

    async def write_stdin(self, data: bytes) -> None:
        if self._kind.hears:
            await self._stream.write(data)

    async def end_stdin(self) -> None:
        if self._kind.ends:
            await self._stream.end()

    async def resize(self, size: TerminalSize) -> None:
        with contextlib.suppress(DriverError):
            async with docker_timeout():
                await docker_request(self._docker, "POST", f"{self._path}/resize?h={size.height}&w={size.width}")

    async def exit_code(self) -> int:
        async with docker_timeout():
            with contextlib.suppress(Gone):
                await docker_request(self._docker, "GET", f"{self._path}/json")
        return 0

    async def leave(self) -> None:
        if self._left is None:
            self._stream.abort()
            self._left = _in_background(self._leave())
        await asyncio.shield(self._left)

    async def _leave(self) -> None:
        async with self._docker:
            await self._end()

    async def _end(self) -> None:
        """Nothing is to be done to a container."""

    async def _read(self) -> bytes:
        try:
            return await self._stream.read()
        except ConnectionError as error:
            raise NotReady(f"Docker went away: {error}") from None


class _ExecSession(_AttachSession):
    """One that was started for us and must not outlive who wanted it."""

    def __init__(
        self, docker: aiohttp.ClientSession, identity: str, stream: Stream, kind: _StreamKind, started: ExecJournal
    ) -> None:
        super().__init__(docker, f"/exec/{identity}", stream, kind)
        self._identity = identity
        self._started = started
        self._ended = False

    async def exit_code(self) -> int:
        try:
            code = await wait_exit_code(self._docker, self._identity)
        except (aiohttp.ClientError, OSError) as error:
            raise NotReady(f"Docker does not answer: {error}") from None
        self._ended = True
        return code

    async def _end(self) -> None:
        if self._ended:
            self._started.cross_off(self._identity)
        else:
            with contextlib.suppress(NotReady):
                await _kill_exec(self._docker, self._identity, self._started)


async def start_exec(
    socket: str,
    container: str,
    command: tuple[str, ...],
    *,
    stdin: bool,
    tty: bool,
    started: ExecJournal,
    size: TerminalSize | None = None,
) -> StreamSession:
    """Start a program in a running container. One that cannot be run says why on STDOUT and ends with 126 or 127.

    In `started` it stands until it has ended. `size` is that of its terminal. Raises Gone without the container,
    Refused when it does not run, NotReady when Docker is away or hangs.
    """
    docker, identity = session(socket), ""
    # Docker from 23.0 on knows the size before the program asks for it; one before gets it when the program runs.
    start: dict[str, Any] = {"Tty": tty} | ({"ConsoleSize": [size.height, size.width]} if tty and size else {})
    wish = {**start, "AttachStdin": stdin, "AttachStdout": True, "AttachStderr": True, "Cmd": list(command)}
    try:
        async with docker_timeout():
            made = await docker_request(
                docker, "POST", f"/containers/{container}/exec", wish | {"DetachKeys": DETACH_KEYS}
            )
            identity = made["Id"]
            started.write_down(identity)
            stream = await _upgrade(docker, f"/exec/{identity}/start", start)
        kind = _StreamKind(tty=tty, hears=stdin, ends=stdin and not tty)
        program = _ExecSession(docker, identity, stream, kind, started)
        if tty and size is not None:
            await program.resize(size)
    except BaseException:
        _in_background(_abandon(docker, identity, started))
        raise
    return program


async def attach(socket: str, container: str, *, stdin: bool, stdout: bool, stderr: bool) -> StreamSession:
    """Listen to a running container from now on, and talk to it if it was made for that. It knows of its terminal.

    Raises Gone, Refused when it does not run, NotReady when Docker is away or hangs.
    """
    docker = session(socket)
    try:
        async with docker_timeout():
            seen = await _running(docker, container)
            path, config = f"/containers/{seen['Id']}", seen["Config"]
            wish = {"stdin": stdin and config["OpenStdin"], "stdout": stdout, "stderr": stderr}
            asked = "&".join(f"{name}=1" for name, wanted in wish.items() if wanted)
            stream = await _upgrade(docker, f"{path}/attach?stream=1&detachKeys={DETACH_KEYS}&{asked}")
            try:
                await _running(docker, container)
            except (Gone, Refused):
                # Either its end is on its way, or Docker waits for somebody to start it again.
                asyncio.get_running_loop().call_later(SILENT_SECONDS, stream.abort)
    except BaseException:
        await docker.close()
        raise
    return _AttachSession(docker, path, stream, _StreamKind(tty=config["Tty"], hears=wish["stdin"], ends=wish["stdin"]))


async def _running(docker: aiohttp.ClientSession, container: str) -> Any:
    seen = await docker_request(docker, "GET", f"/containers/{container}/json")
    if not seen["State"]["Running"]:
        raise Refused(f"container {container[:12]} is not running: it is {seen['State']['Status']}")
    return seen


async def _upgrade(docker: aiohttp.ClientSession, path: str, body: object = None) -> Stream:
    answer = await docker.post(path, json=body, headers=UPGRADE)
    if answer.status == 101:
        return upgraded_connection(answer, half_close=True)
    async with answer:
        raise await response_error(answer)


def _in_background(act: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
    """Do it whatever becomes of who wanted it."""
    task = asyncio.create_task(act)
    _BACKGROUND.add(task)
    task.add_done_callback(_BACKGROUND.discard)
    return task


async def kill_orphaned_execs(socket: str, started: ExecJournal) -> None:
    """End what an agent before this one has started and left behind, as soon as Docker answers."""
    async with session(socket) as docker:
        await asyncio.gather(*(_end_left(docker, identity, started) for identity in started.left))


async def _end_left(docker: aiohttp.ClientSession, identity: str, started: ExecJournal) -> None:
    while True:
        try:
            await _kill_exec(docker, identity, started)
        except NotReady:
            await asyncio.sleep(AGAIN_SECONDS)
        else:
            return


async def _abandon(docker: aiohttp.ClientSession, identity: str, started: ExecJournal) -> None:
    """Let go of a program of which nobody knows whether Docker still starts it."""
    async with docker:
        if identity:
            with contextlib.suppress(NotReady):
                await _kill_exec(docker, identity, started)


async def _kill_exec(docker: aiohttp.ClientSession, identity: str, started: ExecJournal) -> None:
    """End a program that may run, or may still be about to, and cross it off.

    Raises NotReady when Docker does not answer: without it nobody knows which it is.
    """
    with contextlib.suppress(Gone, Refused):
        seen = await _inspect_exec(docker, identity)
        if seen["Running"] or _runs_untracked(seen, started.since(identity)):
            await process.hang_up(seen["Pid"], seen["ContainerID"], HANGUP_SECONDS)
    started.cross_off(identity)


def _runs_untracked(seen: Any, since: float) -> bool:
    """Whether Docker says of a program that it was not run, and it runs: that is so when nobody took what it said.

    One that began at another time has got its number.
    """
    return bool(
        seen["ExitCode"] == NOT_STARTED and 0 <= process.process_start_time(seen["Pid"]) - since + 1 < START_SECONDS
    )


async def _inspect_exec(docker: aiohttp.ClientSession, identity: str) -> Any:
    """What Docker knows of a program that has begun, has ended, or did not begin for so long that it never will."""
    loop = asyncio.get_running_loop()
    last = loop.time() + START_SECONDS
    while True:
        async with docker_timeout():
            seen = await docker_request(docker, "GET", f"/exec/{identity}/json")
        if seen["Pid"] or seen["ExitCode"] is not None or loop.time() > last:
            return seen
        await asyncio.sleep(LAST_LOOK)
