"""The remotecommand protocols: SPDY and WebSocket, v1 to v5."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass

import msgspec
from aiohttp import web
from multidict import MultiMapping

from node_agent.docker.exec import TerminalSize
from node_agent.server.streaming.channels import EXEC_PROTOCOLS, WebSocketChannels, negotiate
from node_agent.server.streaming.terminal_size import TerminalSizeQueue
from node_agent.server.streaming.upgrade import negotiate_spdy, unsupported_protocol, wants_websocket
from reconcile.errors import DriverError
from streams.spdy.session import Session, SpdyStream
from streams.stream import Stream


@dataclass(frozen=True, slots=True)
class Exited:
    """The program ended by itself or was killed; 0 to 255. Of an attached container that ended too."""

    code: int


@dataclass(frozen=True, slots=True)
class Failed:
    """The program could not be run or be listened to, in words for the user."""

    message: str


Outcome = Exited | Failed


def status_body(outcome: Outcome) -> bytes:
    """Give the Status that ends a command from the fourth protocol on."""
    match outcome:
        case Exited(0):
            found: dict[str, object] = {"metadata": {}, "status": "Success"}
        case Exited(code):
            found = {
                "metadata": {},
                "status": "Failure",
                "message": _words(code),
                "reason": "NonZeroExitCode",
                "details": {"causes": [{"reason": "ExitCode", "message": str(code & 0xFF)}]},
            }
        case Failed(message):
            found = {
                "metadata": {},
                "status": "Failure",
                "message": f"Internal error occurred: {message}",
                "reason": "InternalError",
                "details": {"causes": [{"message": message}]},
                "code": 500,
            }
    return msgspec.json.encode(found)


def status_text(outcome: Outcome) -> bytes:
    """Give the text that ends a command before the fourth protocol; nothing for success."""
    match outcome:
        case Exited(0):
            return b""
        case Exited(code):
            return _words(code).encode()
        case Failed(message):
            return f"Internal error occurred: {message}".encode()


def _words(code: int) -> str:
    return f"command terminated with non-zero exit code: exit status {code & 0xFF}"


log = logging.getLogger(__name__)

IDLE_SECONDS = 4 * 3600.0
OPENING_SECONDS = 30.0
"""So long a client of SPDY may take to open all its streams."""
STDIN, STDOUT, STDERR, ERROR, RESIZE = range(5)
SPDY_PROTOCOLS = ("v4.channel.k8s.io", "v3.channel.k8s.io", "v2.channel.k8s.io", "channel.k8s.io")
WITH_STATUS = SPDY_PROTOCOLS[:1]
WITH_SIZES = SPDY_PROTOCOLS[:2]


@dataclass(frozen=True, slots=True)
class StreamOptions:
    """What a client asks for; `stderr` never together with `tty`, for a terminal has one output."""

    stdin: bool
    stdout: bool
    stderr: bool
    tty: bool
    command: tuple[str, ...] = ()


def parse_stream_options(query: MultiMapping[str]) -> StreamOptions:
    """Read a query as the API server sends it to a node: input, output, error, tty, each 1, and command, repeated.

    Raises HTTPBadRequest when nothing is to be carried.
    """
    stdin, stdout, stderr, tty = (query.get(name) == "1" for name in ("input", "output", "error", "tty"))
    if not (stdin or stdout or (stderr and not tty)):
        raise web.HTTPBadRequest(text="you must specify at least 1 of stdin, stdout, stderr\n")
    return StreamOptions(stdin, stdout, stderr and not tty, tty, tuple(query.getall("command", [])))


@dataclass(frozen=True, slots=True)
class RemoteCommand:
    """The client's side of a command. Streams that it did not ask for are None; each is for one reader or writer."""

    stdin: Stream | None
    stdout: Stream | None
    stderr: Stream | None
    resizes: AsyncIterator[TerminalSize]
    """Of those that nobody fetched in time the last one; ends when no more can come."""
    ends_input: bool
    """Whether the client can say that its input ends; one that cannot says it by leaving."""
    left: Callable[[], Awaitable[object]]
    """Returns when the client has gone, in order or not. What it sent before may still wait in stdin."""
    finish: Callable[[Outcome], Awaitable[None]]
    """Tells how the command ended, after all that was written, and returns when the client has it or has gone."""


Run = Callable[[RemoteCommand], Awaitable[Outcome]]


async def serve_remote_command(
    request: web.Request, wanted: StreamOptions, run: Run, idle_seconds: float = IDLE_SECONDS
) -> web.StreamResponse:
    """Agree on a protocol, let `run` do the work, tell the client how it ended, and give what the handler returns.

    Raises HTTPBadRequest and HTTPForbidden before anything has begun. `run` gets the command when all its streams are
    there; a DriverError of it is told to the client, a ConnectionError says that the client has gone.
    """
    if wants_websocket(request):
        return await _by_websocket(request, wanted, run, idle_seconds)
    return await _by_spdy(request, wanted, run, idle_seconds)


async def _finish(command: RemoteCommand, run: Run) -> None:
    try:
        outcome = await run(command)
    except DriverError as error:
        outcome = Failed(str(error))
    await command.finish(outcome)


async def _by_websocket(
    request: web.Request, wanted: StreamOptions, run: Run, idle_seconds: float
) -> web.StreamResponse:
    dialect = negotiate(request.headers.getall("Sec-WebSocket-Protocol", []), EXEC_PROTOCOLS)
    if dialect is None:
        raise unsupported_protocol(request, [known.name for known in EXEC_PROTOCOLS])
    channels = WebSocketChannels(dialect, [STDIN] if wanted.stdin else [], RESIZE, count=5)
    try:
        wire = await channels.open(request, idle_seconds)
    except ConnectionError:
        return web.Response()

    async def finish(outcome: Outcome) -> None:
        words = status_body(outcome) if dialect.status_as_json else status_text(outcome)
        with contextlib.suppress(ConnectionError):
            if words:
                await channels.send(ERROR, words)
        await wire.close()

    command = RemoteCommand(
        stdin=channels.channel(STDIN) if wanted.stdin else None,
        stdout=channels.channel(STDOUT) if wanted.stdout else None,
        stderr=channels.channel(STDERR) if wanted.stderr else None,
        resizes=channels.resizes,
        ends_input=dialect.closes,
        left=wire.left.wait,
        finish=finish,
    )
    try:
        # Clients wait for a first message, an empty one, to know that the conversation has begun. Those of v5 do not,
        # and kubectl 1.30 to 1.32 may not have its channels ready so soon: it would print an error.
        if not dialect.closes:
            await channels.send(STDOUT if wanted.stdout else STDERR if wanted.stderr else ERROR, b"")
        await _finish(command, run)
    except ConnectionError as error:
        log.info("client has gone", extra={"path": request.path, "error": error})
    finally:
        wire.abort()
    return wire.response


async def _by_spdy(request: web.Request, wanted: StreamOptions, run: Run, idle_seconds: float) -> web.StreamResponse:
    protocol, answer = negotiate_spdy(request, SPDY_PROTOCOLS)
    try:
        session = Session(await answer.upgrade(request), idle_seconds=idle_seconds)
    except ConnectionError:
        return answer
    guests: asyncio.Task[None] | None = None
    sizes: asyncio.Task[None] | None = None
    try:
        streams = await _streams(session, _expected(wanted, protocol))
        left = asyncio.Event()
        guests = asyncio.create_task(_reject_streams(session, left))
        resizes = TerminalSizeQueue()
        sizes = asyncio.create_task(_listen_to_sizes(streams.get("resize"), resizes))
        error = streams["error"]

        async def finish(outcome: Outcome) -> None:
            words = status_body(outcome) if protocol in WITH_STATUS else status_text(outcome)
            for name in ("stdout", "stderr"):
                if name in streams:
                    await streams[name].end()
            if words:
                await error.write(words)
            await error.end()
            if "stdin" in streams:
                await streams["stdin"].end()
            await session.close()

        command = RemoteCommand(
            stdin=streams.get("stdin"),
            stdout=streams.get("stdout"),
            stderr=streams.get("stderr"),
            resizes=resizes,
            ends_input=True,
            left=left.wait,
            finish=finish,
        )
        await _finish(command, run)
    except (ConnectionError, TimeoutError) as problem:
        log.info("client has gone", extra={"path": request.path, "error": problem})
    finally:
        session.abort()
        for task in (guests, sizes):
            if task is not None:
                task.cancel()
    return answer


def _expected(wanted: StreamOptions, protocol: str) -> set[str]:
    flags = {"stdin": wanted.stdin, "stdout": wanted.stdout, "stderr": wanted.stderr}
    names = {"error", *(name for name, flag in flags.items() if flag)}
    return names | {"resize"} if wanted.tty and protocol in WITH_SIZES else names


async def _streams(session: Session, expected: set[str]) -> dict[str, SpdyStream]:
    """Accept the streams that belong to the command; raises ConnectionError or TimeoutError when some do not come."""
    found: dict[str, SpdyStream] = {}
    async with asyncio.timeout(OPENING_SECONDS):
        while expected - found.keys():
            stream = await session.accept()
            if stream is None:
                raise ConnectionResetError(f"before it opened the streams {', '.join(sorted(expected - found.keys()))}")
            name = stream.headers.get("streamtype", "")
            if name in expected and name not in found:
                await stream.reply()
                found[name] = stream
            else:
                stream.reset()
    return found


async def _reject_streams(session: Session, left: asyncio.Event) -> None:
    """All streams are there: another has no meaning. Notice the end of the session."""
    while (stream := await session.accept()) is not None:
        stream.reset()
    left.set()


async def _listen_to_sizes(stream: SpdyStream | None, resizes: TerminalSizeQueue) -> None:
    with contextlib.suppress(ConnectionError):
        while stream is not None and (data := await stream.read()):
            resizes.feed(data)
    resizes.end()
