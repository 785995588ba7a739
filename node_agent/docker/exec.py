"""Exec and attach, for probes and for interactive clients. Driver."""

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
    MAX_POLL_SECONDS,
    RESPONSE_TIMEOUT_SECONDS,
    docker_request,
    docker_session,
    docker_timeout,
    error_message,
    response_error,
    wait_exit_code,
)
from node_agent.docker.wire_format import STDOUT, SYSTEM_ERROR, DockerFrameParser
from reconcile.errors import DriverError, Gone, NotReady, Refused
from streams.stream import Stream
from streams.upgrade import upgraded_connection

log = logging.getLogger(__name__)

MAX_OUTPUT_BYTES = 10 << 10
"""Output of a program that `run_exec` returns; the rest is dropped."""

EXIT_CODE_CANNOT_EXECUTE = 126
"""Exit code of a program that could not be started, as in a shell."""

EXIT_CODE_CHECK_SECONDS = 1.0
"""Time limit for the request whether a program ended, after its own time limit."""

HANGUP_SECONDS = 5.0
"""Time that a program has to end after SIGHUP, when its client has disconnected, before it gets SIGKILL."""

ATTACH_END_SECONDS = 2.0
"""Time after which an attachment to a container that no longer runs is closed, if Docker does not close it."""

RETRY_SECONDS = 5.0
"""Time between two attempts to kill an orphaned exec while Docker does not respond."""

UPGRADE_HEADERS = {"Connection": "Upgrade", "Upgrade": "tcp"}

DETACH_KEYS = ",".join(f"ctrl-^,{letter}" for letter in "unlikely")
"""Key sequence that detaches a client from Docker. Docker delays the first key of the sequence until the second. Its
default starts with ctrl-p, which users type in shells.
"""

_background_tasks: set[asyncio.Task[None]] = set()


@dataclass(frozen=True, slots=True)
class ExecResult:
    """The exit code of a program, None if it had not ended in time, and the first 10 KiB of its output."""

    exit_code: int | None
    output: str = ""


@dataclass(frozen=True, slots=True)
class TerminalSize:
    """Size of a terminal in characters."""

    width: int
    height: int


class StreamSession(Protocol):
    """A running program, or an attached container. An async context manager: leaving the block calls `detach`."""

    async def __aenter__(self) -> Self: ...

    async def __aexit__(self, *_: object) -> None: ...

    def output(self) -> AsyncIterator[tuple[int, bytes]]:
        """Yield the output as it arrives: STDOUT or STDERR, and bytes. With a terminal all output is STDOUT.

        To be called once. A slow reader slows the program down. Raises NotReady if Docker goes away.
        """
        ...

    async def write_stdin(self, data: bytes) -> None:
        """Send input and return when there is room for more. Raises ConnectionError if the program has ended."""
        ...

    async def end_stdin(self) -> None:
        """Signal the end of input. Does nothing with a terminal, which has no such signal.

        Docker then detaches from a container, unless the container was created with StdinOnce.
        """
        ...

    async def resize(self, size: TerminalSize) -> None:
        """Set the size of the terminal. Does nothing without a terminal, or after the end of the program."""
        ...

    async def exit_code(self) -> int:
        """Return the exit code; to be called after the end of the output. Returns 0 for an attached container.

        Raises Gone if the container was removed, NotReady if Docker does not respond.
        """
        ...

    async def detach(self) -> None:
        """Close the session. A second call does nothing.

        A program that still runs gets SIGHUP, with its process group, and SIGKILL after 5 seconds. This returns when
        the program has ended, and continues in the background if the caller is cancelled. A container keeps running.
        """
        ...


class ExecJournal:
    """Record of running execs on disk, so that the next agent process can kill those that a killed agent left behind.

    There is one empty file for each exec, named by its ID. An exec is recorded before it starts, so that none is
    missing. Execs that other clients of Docker start in the containers are not recorded.
    """

    def __init__(self, directory: Path) -> None:
        """Create the directory if it is missing, and read the unfinished execs. Raises OSError."""
        self._directory = directory
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.unfinished = tuple(sorted(entry.name for entry in directory.iterdir()))
        """IDs of the execs that were recorded and not removed by earlier agent processes."""

    def add(self, exec_id: str) -> None:
        """Record an exec before it starts. On a full disk it starts nevertheless, because users debug with exec."""
        try:
            (self._directory / exec_id).touch(mode=0o600)
        except OSError as error:
            log.warning(
                "exec could not be recorded; it would outlive an agent that is killed",
                extra={"exec": exec_id, "error": error.strerror},
            )

    def added_at(self, exec_id: str) -> float:
        """Return the time when an exec was recorded, in seconds since 1970. Returns 0 if it was not."""
        try:
            return (self._directory / exec_id).stat().st_mtime
        except OSError:
            return 0.0

    def remove(self, exec_id: str) -> None:
        """Remove an exec that has ended."""
        try:
            (self._directory / exec_id).unlink(missing_ok=True)
        except OSError as error:
            log.warning(
                "exec that has ended could not be removed from the journal",
                extra={"exec": exec_id, "error": error.strerror},
            )


async def run_exec(socket: str, container: str, command: tuple[str, ...], seconds: float) -> ExecResult:
    """Run a program in a container, and wait for its end for at most `seconds` after its start.

    A program that does not end in time keeps running, because Docker has no way to end it. Raises Gone if there is no
    such container, Refused if it does not run, and NotReady if Docker does not respond: then the program was not slow.
    """
    now = asyncio.get_running_loop().time
    output = bytearray()
    exec_id = ""
    is_starting = False
    try:
        async with asyncio.timeout(RESPONSE_TIMEOUT_SECONDS) as limit, docker_session(socket) as docker:
            config = {"AttachStdout": True, "AttachStderr": True, "Cmd": list(command)}
            exec_id = (await docker_request(docker, "POST", f"/containers/{container}/exec", config))["Id"]
            async with docker.post(f"/exec/{exec_id}/start", json={"Detach": False, "Tty": False}) as response:
                limit.reschedule(now() + seconds)
                is_starting = True
                start_error = await _read_output(response, output)
            if start_error:
                return ExecResult(EXIT_CODE_CANNOT_EXECUTE, start_error)
            return ExecResult(await wait_exit_code(docker, exec_id), _decode(output))
    except TimeoutError:
        if not is_starting:
            raise NotReady(
                f"Docker does not answer: the program has not begun within {RESPONSE_TIMEOUT_SECONDS:g}s"
            ) from None
        return ExecResult(await _exit_code_after_timeout(socket, exec_id), _decode(output))
    except (aiohttp.ClientError, OSError) as error:
        raise NotReady(f"Docker does not answer: {error}") from None


async def start_exec(
    socket: str,
    container: str,
    command: tuple[str, ...],
    *,
    stdin: bool,
    tty: bool,
    journal: ExecJournal,
    size: TerminalSize | None = None,
) -> StreamSession:
    """Start a program in a running container. `size` is the size of its terminal.

    A program that cannot be run writes the reason to STDOUT and ends with 126 or 127. The exec is in the journal until
    the program has ended. Raises Gone if there is no such container, Refused if it does not run, NotReady if Docker
    does not respond.
    """
    docker = docker_session(socket)
    exec_id = ""
    # Docker 23.0 and newer set the size before the program starts; for older versions `resize` below sets it.
    start: dict[str, Any] = {"Tty": tty} | ({"ConsoleSize": [size.height, size.width]} if tty and size else {})
    config = {
        **start,
        "AttachStdin": stdin,
        "AttachStdout": True,
        "AttachStderr": True,
        "Cmd": list(command),
        "DetachKeys": DETACH_KEYS,
    }
    try:
        async with docker_timeout():
            created = await docker_request(docker, "POST", f"/containers/{container}/exec", config)
            exec_id = created["Id"]
            journal.add(exec_id)
            stream = await _upgrade(docker, f"/exec/{exec_id}/start", start)
        kind = _StreamKind(tty=tty, reads_stdin=stdin, can_end_stdin=stdin and not tty)
        session = _ExecSession(docker, exec_id, stream, kind, journal)
        if tty and size is not None:
            await session.resize(size)
    except BaseException:
        _run_in_background(_abandon(docker, exec_id, journal))
        raise
    return session


async def attach(socket: str, container: str, *, stdin: bool, stdout: bool, stderr: bool) -> StreamSession:
    """Attach to a running container: to its output from now on, and to its input if it was created with one.

    Raises Gone if there is no such container, Refused if it does not run, NotReady if Docker does not respond.
    """
    docker = docker_session(socket)
    try:
        async with docker_timeout():
            state = await _inspect_running(docker, container)
            path = f"/containers/{state['Id']}"
            config = state["Config"]
            streams = {"stdin": stdin and config["OpenStdin"], "stdout": stdout, "stderr": stderr}
            query = "&".join(f"{name}=1" for name, is_attached in streams.items() if is_attached)
            stream = await _upgrade(docker, f"{path}/attach?stream=1&detachKeys={DETACH_KEYS}&{query}")
            try:
                await _inspect_running(docker, container)
            except (Gone, Refused):
                # Either the end of the stream is on its way, or Docker waits for the container's next start.
                asyncio.get_running_loop().call_later(ATTACH_END_SECONDS, stream.abort)
    except BaseException:
        await docker.close()
        raise
    kind = _StreamKind(tty=config["Tty"], reads_stdin=streams["stdin"], can_end_stdin=streams["stdin"])
    return _AttachSession(docker, path, stream, kind)


async def kill_orphaned_execs(socket: str, journal: ExecJournal) -> None:
    """Kill the execs that earlier agent processes left behind, as soon as Docker responds."""
    async with docker_session(socket) as docker:
        await asyncio.gather(*(_kill_orphan(docker, exec_id, journal) for exec_id in journal.unfinished))


@dataclass(frozen=True, slots=True)
class _StreamKind:
    """Properties of a session: a terminal, whether stdin is read, and whether the end of stdin can be signalled.

    A terminal has only one connection, which Docker would close in both directions while the program runs.
    """

    tty: bool
    reads_stdin: bool
    can_end_stdin: bool


class _AttachSession:
    """A StreamSession attached to a container, which keeps running after `detach`."""

    def __init__(self, docker: aiohttp.ClientSession, path: str, stream: Stream, kind: _StreamKind) -> None:
        """`path` is the path of the container or of the exec in Docker's API."""
        self._docker = docker
        self._path = path
        self._stream = stream
        self._kind = kind
        self._detaching: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.detach()

    async def output(self) -> AsyncIterator[tuple[int, bytes]]:
        frames = DockerFrameParser()
        while data := await self._read():
            if self._kind.tty:
                yield STDOUT, data
                continue
            for stream, parts in groupby(frames.feed(data), key=attrgetter("stream")):
                text = b"".join(part.data for part in parts)
                if stream == SYSTEM_ERROR:
                    raise NotReady(f"Docker: {text.decode(errors='replace').strip()}")
                yield stream, text
        if not frames.at_frame_boundary:
            raise NotReady("Docker went away in the middle of the program's output")

    async def write_stdin(self, data: bytes) -> None:
        if self._kind.reads_stdin:
            await self._stream.write(data)

    async def end_stdin(self) -> None:
        if self._kind.can_end_stdin:
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

    async def detach(self) -> None:
        if self._detaching is None:
            self._stream.abort()
            self._detaching = _run_in_background(self._close())
        await asyncio.shield(self._detaching)

    async def _close(self) -> None:
        async with self._docker:
            await self._terminate()

    async def _terminate(self) -> None:
        """Do nothing, because a container keeps running."""

    async def _read(self) -> bytes:
        try:
            return await self._stream.read()
        except ConnectionError as error:
            raise NotReady(f"Docker went away: {error}") from None


class _ExecSession(_AttachSession):
    """A StreamSession of a program that was started for a client and must not outlive the client."""

    def __init__(
        self, docker: aiohttp.ClientSession, exec_id: str, stream: Stream, kind: _StreamKind, journal: ExecJournal
    ) -> None:
        super().__init__(docker, f"/exec/{exec_id}", stream, kind)
        self._exec_id = exec_id
        self._journal = journal
        self._exited = False

    async def exit_code(self) -> int:
        try:
            exit_code = await wait_exit_code(self._docker, self._exec_id)
        except (aiohttp.ClientError, OSError) as error:
            raise NotReady(f"Docker does not answer: {error}") from None
        self._exited = True
        return exit_code

    async def _terminate(self) -> None:
        if self._exited:
            self._journal.remove(self._exec_id)
        else:
            with contextlib.suppress(NotReady):
                await _kill_exec(self._docker, self._exec_id, self._journal)


async def _read_output(response: aiohttp.ClientResponse, output: bytearray) -> str:
    """Append the output of a program until it ends. Returns the reason if it could not be started, else nothing."""
    if response.status >= 400:
        message = await error_message(response)
        if response.status == 404:
            raise Gone(f"Docker: {message}")
        if response.status == 409:
            raise Refused(f"Docker: {message}")
        return message
    frames = DockerFrameParser()
    async for data in response.content.iter_any():
        for part in frames.feed(data):
            output += part.data[: MAX_OUTPUT_BYTES - len(output)]
    return ""


def _decode(output: bytearray) -> str:
    return output.decode(errors="replace")


async def _exit_code_after_timeout(socket: str, exec_id: str) -> int | None:
    """Return the exit code of a program that ended in time although Docker hung; None if the program still runs.

    Raises NotReady if Docker does not respond.
    """
    async with docker_timeout(EXIT_CODE_CHECK_SECONDS), docker_session(socket) as docker:
        state = await docker_request(docker, "GET", f"/exec/{exec_id}/json")
    return None if state["Running"] or state["ExitCode"] is None else int(state["ExitCode"])


async def _inspect_running(docker: aiohttp.ClientSession, container: str) -> Any:
    """Return Docker's description of a container. Raises Refused if the container does not run."""
    state = await docker_request(docker, "GET", f"/containers/{container}/json")
    if not state["State"]["Running"]:
        raise Refused(f"container {container[:12]} is not running: it is {state['State']['Status']}")
    return state


async def _upgrade(docker: aiohttp.ClientSession, path: str, body: object = None) -> Stream:
    response = await docker.post(path, json=body, headers=UPGRADE_HEADERS)
    if response.status == 101:
        return upgraded_connection(response, half_close=True)
    async with response:
        raise await response_error(response)


def _run_in_background(work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
    """Start a task that runs to its end even if the caller is cancelled."""
    task = asyncio.create_task(work)
    _background_tasks.add(task)
    task.add_done_callback(_background_tasks.discard)
    return task


async def _kill_orphan(docker: aiohttp.ClientSession, exec_id: str, journal: ExecJournal) -> None:
    while True:
        try:
            await _kill_exec(docker, exec_id, journal)
        except NotReady:
            await asyncio.sleep(RETRY_SECONDS)
        else:
            return


async def _abandon(docker: aiohttp.ClientSession, exec_id: str, journal: ExecJournal) -> None:
    """Close the connection to Docker and kill an exec that may or may not have been started."""
    async with docker:
        if exec_id:
            with contextlib.suppress(NotReady):
                await _kill_exec(docker, exec_id, journal)


async def _kill_exec(docker: aiohttp.ClientSession, exec_id: str, journal: ExecJournal) -> None:
    """Kill a program that runs, or that may still be starting, and remove it from the journal.

    Raises NotReady if Docker does not respond, because the state of the program is then unknown.
    """
    with contextlib.suppress(Gone, Refused):
        state = await _wait_until_started(docker, exec_id)
        if state["Running"] or _runs_untracked(state, journal.added_at(exec_id)):
            await process.hang_up(state["Pid"], state["ContainerID"], HANGUP_SECONDS)
    journal.remove(exec_id)


def _runs_untracked(state: Any, added_at: float) -> bool:
    """Return whether a program runs although Docker reports that it could not be started.

    Docker does so when the connection for its output was closed early. A process that began at another time has the
    same process ID by chance.
    """
    return bool(
        state["ExitCode"] == EXIT_CODE_CANNOT_EXECUTE
        and 0 <= process.process_start_time(state["Pid"]) - added_at + 1 < RESPONSE_TIMEOUT_SECONDS
    )


async def _wait_until_started(docker: aiohttp.ClientSession, exec_id: str) -> Any:
    """Return Docker's description of an exec that has started, has ended, or did not start in time and never will."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + RESPONSE_TIMEOUT_SECONDS
    while True:
        async with docker_timeout():
            state = await docker_request(docker, "GET", f"/exec/{exec_id}/json")
        if state["Pid"] or state["ExitCode"] is not None or loop.time() > deadline:
            return state
        await asyncio.sleep(MAX_POLL_SECONDS)
