"""Connections from a client into a pod, many over one: SPDY, SPDY inside a WebSocket, or channels of a WebSocket."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field

from aiohttp import web

from node_agent.server.channel_messages import PORT_DIALECTS, Dialect, choose
from node_agent.server.channels import Channels, Tunnel
from node_agent.server.forwarding import Forwarding
from node_agent.server.upgrades import spdy_answer, unknown_protocol, wants_websocket
from streams.spdy.session import Session, SpdyStream
from streams.stream import Stream

log = logging.getLogger(__name__)

IDLE_SECONDS = 4 * 3600.0
PAIR_SECONDS = 30.0
"""So long a client may take to open the second stream of a connection."""
PROTOCOL = "portforward.k8s.io"
TUNNEL = Dialect(f"SPDY/3.1+{PROTOCOL}")
MOST_PORTS = 127
"""Two channels each, and 255 names none."""

Dial = Callable[[int], Awaitable[Stream]]


async def serve_port_forward(
    request: web.Request, dial: Dial, whom: str, idle_seconds: float = IDLE_SECONDS
) -> web.StreamResponse:
    """Agree on a protocol, join each connection of the client to one that `dial` gives for its port, until it goes.

    `whom` names the pod in what the client is told when `dial` raises DriverError or OSError. Gives what the handler
    returns. Raises HTTPBadRequest and HTTPForbidden before anything has begun.
    """
    try:
        return await _serve(request, Forwarding(dial, whom), idle_seconds)
    except ConnectionError as problem:
        log.info("client has gone", extra={"path": request.path, "error": problem})
        return web.Response()


async def _serve(request: web.Request, forwarding: Forwarding, idle_seconds: float) -> web.StreamResponse:
    if not wants_websocket(request):
        _, answer = spdy_answer(request, (PROTOCOL,))
        await _over_session(await answer.take(request), forwarding, idle_seconds)
        return answer
    known = (TUNNEL, *PORT_DIALECTS)
    dialect = choose(request.headers.getall("Sec-WebSocket-Protocol", []), known)
    if dialect is None:
        raise unknown_protocol(request, [each.name for each in known])
    if dialect is not TUNNEL:
        return await _over_channels(request, dialect, forwarding, idle_seconds)
    tunnel = Tunnel()
    wire = await tunnel.open(request, dialect.name, idle_seconds)
    await _over_session(tunnel, forwarding, idle_seconds)
    return wire.response


def ports_of(strings: Iterable[str]) -> list[int]:
    """Read the ports of a query, which may stand in one string with commas. Raises HTTPBadRequest."""
    given = list(strings)
    if not given:
        raise web.HTTPBadRequest(text='query parameter "port" is required\n')
    ports = []
    for words in given:
        if not words:
            raise web.HTTPBadRequest(text='query parameter "port" cannot be empty\n')
        for word in words.split(","):
            port = _port(word)
            if port is None:
                raise web.HTTPBadRequest(text=f'unable to parse "{words}" as a port: 1 to 65535 is accepted\n')
            ports.append(port)
    if len(ports) > MOST_PORTS:
        raise web.HTTPBadRequest(text=f"at most {MOST_PORTS} ports are forwarded at once, found {len(ports)}\n")
    return ports


def _port(word: str) -> int | None:
    if not (word.isascii() and word.isdecimal() and len(word) <= 5):
        return None
    return port if 0 < (port := int(word)) <= 0xFFFF else None


async def _over_channels(
    request: web.Request, dialect: Dialect, forwarding: Forwarding, idle_seconds: float
) -> web.StreamResponse:
    """Forward all ports at once, each one time: two channels a port, and the client is told when all have ended."""
    ports = ports_of(request.query.getall("port", []))
    channels = Channels(dialect, range(0, 2 * len(ports), 2), None, count=2 * len(ports))
    wire = await channels.open(request, idle_seconds)
    try:
        for number, port in enumerate(ports):
            data, error = channels.channel(2 * number), channels.channel(2 * number + 1)
            await data.write(port.to_bytes(2, "little"))
            await error.write(port.to_bytes(2, "little"))
            forwarding.begin(port, data, error, half_closes=False)
        await forwarding.done(wire.left)
        await wire.close()
    except ConnectionError as problem:
        log.info("client has gone", extra={"path": request.path, "error": problem})
    finally:
        wire.abort()
        await forwarding.stop()
    return wire.response


async def _over_session(carrier: Stream, forwarding: Forwarding, idle_seconds: float) -> None:
    session = Session(carrier, idle_seconds=idle_seconds)
    pairs = _Pairs(forwarding)
    try:
        while (stream := await session.accept()) is not None:
            await pairs.add(stream)
        gone = asyncio.Event()
        gone.set()
        await forwarding.done(gone)
        await session.close()
    finally:
        session.abort()
        pairs.stop()
        await forwarding.stop()


@dataclass(slots=True)
class _Half:
    """A connection of which one stream is there."""

    stream: SpdyStream
    port: int
    late: asyncio.TimerHandle = field(repr=False)


class _Pairs:
    """Brings together the two streams of a connection, which come in any order."""

    def __init__(self, forwarding: Forwarding) -> None:
        self._forwarding = forwarding
        self._halves: dict[str, _Half] = {}

    async def add(self, stream: SpdyStream) -> None:
        """Take a stream; one that makes no sense is reset."""
        kind, port = stream.headers.get("streamtype", ""), _port(stream.headers.get("port", ""))
        if kind not in {"data", "error"} or port is None:
            stream.reset()
            return
        identity = stream.headers.get("requestid", "") or _identity(stream, kind)
        half = self._halves.get(identity)
        if half is not None and half.stream.headers["streamtype"] == kind:
            stream.reset()
            return
        try:
            await stream.reply()
        except ConnectionError:
            return
        if half is None:
            late = asyncio.get_running_loop().call_later(PAIR_SECONDS, self._give_up, identity)
            self._halves[identity] = _Half(stream, port, late)
            return
        half.late.cancel()
        del self._halves[identity]
        data, error = (stream, half.stream) if kind == "data" else (half.stream, stream)
        self._forwarding.begin(port if kind == "data" else half.port, data, error, half_closes=True)

    def stop(self) -> None:
        """Wait for none any more."""
        for half in self._halves.values():
            half.late.cancel()

    def _give_up(self, identity: str) -> None:
        self._halves.pop(identity).stream.reset()


def _identity(stream: SpdyStream, kind: str) -> str:
    """The oldest clients number nothing: they open the stream of data right after that of errors."""
    return f"of stream {stream.stream_id if kind == 'error' else stream.stream_id - 2}"
