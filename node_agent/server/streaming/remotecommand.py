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
from node_agent.server.streaming.upgrade import is_websocket_request, negotiate_spdy, unsupported_protocol
from reconcile.errors import DriverError
from streams.spdy.session import Session, SpdyStream
from streams.stream import Stream

log = logging.getLogger(__name__)

IDLE_SECONDS = 4 * 3600.0
STREAM_TIMEOUT_SECONDS = 30.0
"""Time that a client of SPDY has to open all its streams."""

STDIN, STDOUT, STDERR, ERROR, RESIZE = range(5)
"""Channels of a WebSocket."""

SPDY_PROTOCOLS = ("v4.channel.k8s.io", "v3.channel.k8s.io", "v2.channel.k8s.io", "channel.k8s.io")
STATUS_PROTOCOLS = SPDY_PROTOCOLS[:1]
"""Protocols in which the result of a command is a Status."""
RESIZE_PROTOCOLS = SPDY_PROTOCOLS[:2]
"""Protocols with a stream of terminal sizes."""


# --- result of a command ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Exited:
    """The exit of a program, with a code from 0 to 255; for attach, the exit of the container."""

    code: int


@dataclass(frozen=True, slots=True)
class Failed:
    """A failure to start a program or to read its output. `message` is shown to the user."""

    message: str


Outcome = Exited | Failed


def status_body(outcome: Outcome) -> bytes:
    """Return the result as a Status, for protocols from v4 on."""
    match outcome:
        case Exited(0):
            status: dict[str, object] = {"metadata": {}, "status": "Success"}
        case Exited(code):
            status = {
                "metadata": {},
                "status": "Failure",
                "message": _exit_message(code),
                "reason": "NonZeroExitCode",
                "details": {"causes": [{"reason": "ExitCode", "message": str(code & 0xFF)}]},
            }
        case Failed(message):
            status = {
                "metadata": {},
                "status": "Failure",
                "message": f"Internal error occurred: {message}",
                "reason": "InternalError",
                "details": {"causes": [{"message": message}]},
                "code": 500,
            }
    return msgspec.json.encode(status)


def status_text(outcome: Outcome) -> bytes:
    """Return the result as text, for protocols before v4; empty for success."""
    match outcome:
        case Exited(0):
            return b""
        case Exited(code):
            return _exit_message(code).encode()
        case Failed(message):
            return f"Internal error occurred: {message}".encode()


def _exit_message(code: int) -> str:
    return f"command terminated with non-zero exit code: exit status {code & 0xFF}"


# --- request ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class StreamOptions:
    """The streams that a client requests. `stderr` and `tty` exclude each other: a terminal has one output."""

    stdin: bool
    stdout: bool
    stderr: bool
    tty: bool
    command: tuple[str, ...] = ()


def parse_stream_options(query: MultiMapping[str]) -> StreamOptions:
    """Parse the query that the API server sends to a node: input, output, error and tty (each 1), and command.

    Raises HTTPBadRequest if no stream is requested.
    """
    stdin, stdout, stderr, tty = (query.get(name) == "1" for name in ("input", "output", "error", "tty"))
    if not (stdin or stdout or (stderr and not tty)):
        raise web.HTTPBadRequest(text="you must specify at least 1 of stdin, stdout, stderr\n")
    return StreamOptions(stdin, stdout, stderr and not tty, tty, tuple(query.getall("command", [])))


@dataclass(frozen=True, slots=True)
class RemoteCommand:
    """The client's side of a command. Streams that were not requested are None; each has one reader or writer."""

    stdin: Stream | None
    stdout: Stream | None
    stderr: Stream | None
    terminal_sizes: AsyncIterator[TerminalSize]
    """Terminal sizes, of which only the latest is kept. It ends when no more can arrive."""
    can_end_stdin: bool
    """Whether the client can end its input. In other protocols it can only disconnect."""
    client_gone: Callable[[], Awaitable[object]]
    """Waits until the client has disconnected, with or without a close frame. Its input may still be in `stdin`."""
    finish: Callable[[Outcome], Awaitable[None]]
    """Sends the result after all output. Returns when the client has received it, or has disconnected."""


RunCommand = Callable[[RemoteCommand], Awaitable[Outcome]]


async def serve_remote_command(
    request: web.Request, options: StreamOptions, run: RunCommand, idle_seconds: float = IDLE_SECONDS
) -> web.StreamResponse:
    """Negotiate a protocol, call `run` when all streams are open, send its result, and return the response.

    Raises HTTPBadRequest and HTTPForbidden if the negotiation fails. A DriverError of `run` is sent to the client; a
    ConnectionError means that the client has disconnected.
    """
    if is_websocket_request(request):
        return await _serve_websocket(request, options, run, idle_seconds)
    return await _serve_spdy(request, options, run, idle_seconds)


async def _run_and_finish(command: RemoteCommand, run: RunCommand) -> None:
    try:
        outcome = await run(command)
    except DriverError as error:
        outcome = Failed(str(error))
    await command.finish(outcome)


# --- WebSocket --------------------------------------------------------------------------------------------------------


async def _serve_websocket(
    request: web.Request, options: StreamOptions, run: RunCommand, idle_seconds: float
) -> web.StreamResponse:
    protocol = negotiate(request.headers.getall("Sec-WebSocket-Protocol", []), EXEC_PROTOCOLS)
    if protocol is None:
        raise unsupported_protocol(request, [supported.name for supported in EXEC_PROTOCOLS])
    channels = WebSocketChannels(protocol, [STDIN] if options.stdin else [], RESIZE, count=5)
    try:
        websocket = await channels.open(request, idle_seconds)
    except ConnectionError:
        return web.Response()

    async def finish(outcome: Outcome) -> None:
        result = status_body(outcome) if protocol.json_status else status_text(outcome)
        with contextlib.suppress(ConnectionError):
            if result:
                await channels.send(ERROR, result)
        await websocket.close()

    command = RemoteCommand(
        stdin=channels.channel(STDIN) if options.stdin else None,
        stdout=channels.channel(STDOUT) if options.stdout else None,
        stderr=channels.channel(STDERR) if options.stderr else None,
        terminal_sizes=channels.terminal_sizes,
        can_end_stdin=protocol.half_close,
        client_gone=websocket.closed.wait,
        finish=finish,
    )
    try:
        if not protocol.half_close:
            await _send_empty_message(channels, options)
        await _run_and_finish(command, run)
    except ConnectionError as error:
        log.info("client disconnected", extra={"path": request.path, "error": error})
    finally:
        websocket.abort()
    return websocket.response


async def _send_empty_message(channels: WebSocketChannels, options: StreamOptions) -> None:
    """Send an empty message, for which clients of protocols before v5 wait.

    Clients of v5 do not wait for it. kubectl 1.30 to 1.32 may not have opened its channels yet, and would print an
    error.
    """
    if options.stdout:
        channel = STDOUT
    elif options.stderr:
        channel = STDERR
    else:
        channel = ERROR
    await channels.send(channel, b"")


# --- SPDY -------------------------------------------------------------------------------------------------------------


async def _serve_spdy(
    request: web.Request, options: StreamOptions, run: RunCommand, idle_seconds: float
) -> web.StreamResponse:
    protocol, response = negotiate_spdy(request, SPDY_PROTOCOLS)
    try:
        session = Session(await response.upgrade(request), idle_seconds=idle_seconds)
    except ConnectionError:
        return response
    background: list[asyncio.Task[None]] = []
    try:
        streams = await _accept_streams(session, _stream_names(options, protocol))
        client_gone = asyncio.Event()
        terminal_sizes = TerminalSizeQueue()
        background.append(asyncio.create_task(_reject_streams(session, client_gone)))
        background.append(asyncio.create_task(_read_terminal_sizes(streams.get("resize"), terminal_sizes)))
        error_stream = streams["error"]

        async def finish(outcome: Outcome) -> None:
            result = status_body(outcome) if protocol in STATUS_PROTOCOLS else status_text(outcome)
            for name in ("stdout", "stderr"):
                if name in streams:
                    await streams[name].end()
            if result:
                await error_stream.write(result)
            await error_stream.end()
            if "stdin" in streams:
                await streams["stdin"].end()
            await session.close()

        command = RemoteCommand(
            stdin=streams.get("stdin"),
            stdout=streams.get("stdout"),
            stderr=streams.get("stderr"),
            terminal_sizes=terminal_sizes,
            can_end_stdin=True,
            client_gone=client_gone.wait,
            finish=finish,
        )
        await _run_and_finish(command, run)
    except (ConnectionError, TimeoutError) as error:
        log.info("client disconnected", extra={"path": request.path, "error": error})
    finally:
        session.abort()
        for task in background:
            task.cancel()
    return response


def _stream_names(options: StreamOptions, protocol: str) -> set[str]:
    requested = {
        "error": True,
        "stdin": options.stdin,
        "stdout": options.stdout,
        "stderr": options.stderr,
        "resize": options.tty and protocol in RESIZE_PROTOCOLS,
    }
    return {name for name, is_requested in requested.items() if is_requested}


async def _accept_streams(session: Session, names: set[str]) -> dict[str, SpdyStream]:
    """Accept the streams of a command, by type. Raises ConnectionError or TimeoutError if some are not opened."""
    streams: dict[str, SpdyStream] = {}
    async with asyncio.timeout(STREAM_TIMEOUT_SECONDS):
        while missing := names - streams.keys():
            stream = await session.accept()
            if stream is None:
                raise ConnectionResetError(f"the client did not open the streams {', '.join(sorted(missing))}")
            name = stream.headers.get("streamtype", "")
            if name in missing:
                await stream.reply()
                streams[name] = stream
            else:
                stream.reset()
    return streams


async def _reject_streams(session: Session, client_gone: asyncio.Event) -> None:
    """Reset every further stream, and set `client_gone` at the end of the session."""
    while (stream := await session.accept()) is not None:
        stream.reset()
    client_gone.set()


async def _read_terminal_sizes(stream: SpdyStream | None, terminal_sizes: TerminalSizeQueue) -> None:
    with contextlib.suppress(ConnectionError):
        while stream is not None and (data := await stream.read()):
            terminal_sizes.feed(data)
    terminal_sizes.end()
