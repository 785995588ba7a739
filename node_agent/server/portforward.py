"""/portForward over SPDY and WebSocket."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field

from aiohttp import web

from node_agent.network.dial import dial_in_namespace
from node_agent.server.pod_lister import PodLister
from node_agent.server.server import Route
from node_agent.server.streaming.channels import (
    PORT_FORWARD_PROTOCOLS,
    ChannelProtocol,
    Tunnel,
    WebSocketChannels,
    negotiate,
)
from node_agent.server.streaming.upgrade import negotiate_spdy, unsupported_protocol, wants_websocket
from reconcile.errors import DriverError, Refused
from streams.spdy.session import Session, SpdyStream
from streams.stream import Stream

log = logging.getLogger(__name__)

FAREWELL_SECONDS = 1.0
"""So long connections get to deliver what a client sent before it went."""


class PortForwarder:
    """`dial` connects to a port of the pod; `whom` names the pod to clients."""

    def __init__(self, dial: Callable[[int], Awaitable[Stream]], whom: str) -> None:
        self._dial = dial
        self._whom = whom
        self._tasks: set[asyncio.Task[None]] = set()

    def begin(self, port: int, data: Stream, error: Stream, *, half_closes: bool) -> None:
        """Join the two streams of a connection to the pod. Without `half_closes` the end of either side ends both."""
        task = asyncio.create_task(self._forward(port, data, error, half_closes))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def done(self, left: asyncio.Event) -> None:
        """Wait for the end of all connections, and not much longer than the client stays."""
        leaving = asyncio.create_task(left.wait())
        everything = asyncio.gather(*self._tasks, return_exceptions=True)
        try:
            await asyncio.wait((everything, leaving), return_when=asyncio.FIRST_COMPLETED)
            if not everything.done():
                await asyncio.wait((everything,), timeout=FAREWELL_SECONDS)
        finally:
            leaving.cancel()

    async def stop(self) -> None:
        """End those that are left."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _forward(self, port: int, data: Stream, error: Stream, half_closes: bool) -> None:
        with contextlib.suppress(ConnectionError):
            try:
                pod = await self._dial(port)
            except (DriverError, OSError) as problem:
                log.info("port is not forwarded", extra={"port": port, "pod": self._whom, "error": problem})
                await error.write(f"error forwarding port {port} to {self._whom}: {problem}".encode())
                await error.end()
                data.abort()
                return
            await _join(data, error, pod, half_closes)


async def _join(data: Stream, error: Stream, pod: Stream, half_closes: bool) -> None:
    up = asyncio.create_task(_up(data, pod))
    try:
        await _down(pod, data)
        # kubectl closes its side only when the stream of errors has ended.
        await error.end()
        if half_closes:
            await up
    finally:
        # Before anything waits: this may be cancelled here once more.
        data.abort()
        pod.abort()
        up.cancel()
        await asyncio.wait((up,))


async def _up(data: Stream, pod: Stream) -> None:
    """From the client to the pod. What a program does not want to read is dropped: it may still speak."""
    heard = True
    try:
        while piece := await data.read():
            if heard:
                try:
                    await pod.write(piece)
                except ConnectionError:
                    heard = False
    except ConnectionError:
        pod.abort()
        return
    with contextlib.suppress(ConnectionError):
        await pod.end()


async def _down(pod: Stream, data: Stream) -> None:
    """From the pod to the client. Raises ConnectionError when the client has gone."""
    while True:
        try:
            piece = await pod.read()
        except ConnectionError:
            data.abort()
            return
        if not piece:
            await data.end()
            return
        await data.write(piece)


IDLE_SECONDS = 4 * 3600.0
PAIR_SECONDS = 30.0
"""So long a client may take to open the second stream of a connection."""
PROTOCOL = "portforward.k8s.io"
TUNNEL = ChannelProtocol(f"SPDY/3.1+{PROTOCOL}")
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
        return await _serve(request, PortForwarder(dial, whom), idle_seconds)
    except ConnectionError as problem:
        log.info("client has gone", extra={"path": request.path, "error": problem})
        return web.Response()


async def _serve(request: web.Request, forwarding: PortForwarder, idle_seconds: float) -> web.StreamResponse:
    if not wants_websocket(request):
        _, answer = negotiate_spdy(request, (PROTOCOL,))
        await _over_session(await answer.upgrade(request), forwarding, idle_seconds)
        return answer
    known = (TUNNEL, *PORT_FORWARD_PROTOCOLS)
    dialect = negotiate(request.headers.getall("Sec-WebSocket-Protocol", []), known)
    if dialect is None:
        raise unsupported_protocol(request, [each.name for each in known])
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
    request: web.Request, dialect: ChannelProtocol, forwarding: PortForwarder, idle_seconds: float
) -> web.StreamResponse:
    """Forward all ports at once, each one time: two channels a port, and the client is told when all have ended."""
    ports = ports_of(request.query.getall("port", []))
    channels = WebSocketChannels(dialect, range(0, 2 * len(ports), 2), None, count=2 * len(ports))
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


async def _over_session(carrier: Stream, forwarding: PortForwarder, idle_seconds: float) -> None:
    session = Session(carrier, idle_seconds=idle_seconds)
    pairs = _StreamPairs(forwarding)
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
class _PendingPair:
    """A connection of which one stream is there."""

    stream: SpdyStream
    port: int
    late: asyncio.TimerHandle = field(repr=False)


class _StreamPairs:
    """Brings together the two streams of a connection, which come in any order."""

    def __init__(self, forwarding: PortForwarder) -> None:
        self._forwarding = forwarding
        self._halves: dict[str, _PendingPair] = {}

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
            self._halves[identity] = _PendingPair(stream, port, late)
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


PLACES = ("/{namespace}/{pod}", "/{namespace}/{pod}/{uid}")


class PortForwardHandler:
    """Into the network of the pod's sandbox; a pod of the host's network has the host's."""

    def __init__(self, pods: PodLister) -> None:
        self._pods = pods

    def routes(self) -> tuple[Route, ...]:
        """Where they are found."""
        return tuple(Route(f"/portForward{place}", self._answer, ("GET", "POST")) for place in PLACES)

    async def _answer(self, http: web.Request) -> web.StreamResponse:
        place = http.match_info
        pod = self._pods.get_pod(place["namespace"], place["pod"], place.get("uid", ""))

        async def connection(port: int) -> Stream:
            """A sandbox that was replaced in the meantime is found anew."""
            sandbox = (await self._pods.get_containers(pod)).sandbox
            if sandbox is None or not sandbox.running:
                raise Refused(f'pod "{pod.metadata.name}" has no network: its sandbox does not run')
            return await dial_in_namespace(sandbox.pid, port)

        if (box := (await self._pods.get_containers(pod)).sandbox) is None or not box.running:
            raise Refused(f'pod not found ("{pod.metadata.name}_{pod.metadata.namespace}")')
        return await serve_port_forward(http, connection, f"pod {pod.metadata.namespace}/{pod.metadata.name}")
