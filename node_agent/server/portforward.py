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
from node_agent.server.streaming.upgrade import is_websocket_request, negotiate_spdy, unsupported_protocol
from reconcile.errors import DriverError, Refused
from streams.spdy.session import Session, SpdyStream
from streams.stream import Stream

log = logging.getLogger(__name__)

PATHS = ("/{namespace}/{pod}", "/{namespace}/{pod}/{uid}")

PROTOCOL = "portforward.k8s.io"
TUNNEL_PROTOCOL = ChannelProtocol(f"SPDY/3.1+{PROTOCOL}")
"""A SPDY session inside of a WebSocket."""

IDLE_SECONDS = 4 * 3600.0
PAIR_TIMEOUT_SECONDS = 30.0
"""Time that a client has to open the second stream of a connection."""

DRAIN_SECONDS = 1.0
"""Time that connections get to deliver received bytes after the client has disconnected."""

MAX_PORTS = 127
"""Limit of the ports of one WebSocket: each port uses two channels, and channel 255 is reserved."""

Dial = Callable[[int], Awaitable[Stream]]


# --- handler ----------------------------------------------------------------------------------------------------------


class PortForwardHandler:
    """Forwards connections to ports in the network namespace of a pod's sandbox, which may be that of the host."""

    def __init__(self, pods: PodLister) -> None:
        self._pods = pods

    def routes(self) -> tuple[Route, ...]:
        """Return the routes of the handler."""
        return tuple(Route(f"/portForward{path}", self._forward, ("GET", "POST")) for path in PATHS)

    async def _forward(self, request: web.Request) -> web.StreamResponse:
        path = request.match_info
        pod = self._pods.get_pod(path["namespace"], path["pod"], path.get("uid", ""))
        name = pod.metadata.name
        namespace = pod.metadata.namespace

        async def dial(port: int) -> Stream:
            """Connect to the current sandbox, because it may have been replaced since the last connection."""
            sandbox = (await self._pods.get_containers(pod)).sandbox
            if sandbox is None or not sandbox.running:
                raise Refused(f'pod "{name}" has no network: its sandbox does not run')
            return await dial_in_namespace(sandbox.pid, port)

        sandbox = (await self._pods.get_containers(pod)).sandbox
        if sandbox is None or not sandbox.running:
            raise Refused(f'pod not found ("{name}_{namespace}")')
        return await serve_port_forward(request, dial, f"pod {namespace}/{name}")


async def serve_port_forward(
    request: web.Request, dial: Dial, target: str, idle_seconds: float = IDLE_SECONDS
) -> web.StreamResponse:
    """Negotiate a protocol, and forward each connection of the client until it disconnects. Return the response.

    `dial` connects to a port. `target` names the pod in the message that the client gets if `dial` raises DriverError
    or OSError. Raises HTTPBadRequest and HTTPForbidden if the negotiation fails.
    """
    try:
        return await _serve(request, PortForwarder(dial, target), idle_seconds)
    except ConnectionError as error:
        log.info("client disconnected", extra={"path": request.path, "error": error})
        return web.Response()


async def _serve(request: web.Request, forwarder: PortForwarder, idle_seconds: float) -> web.StreamResponse:
    if not is_websocket_request(request):
        _, response = negotiate_spdy(request, (PROTOCOL,))
        await _serve_session(await response.upgrade(request), forwarder, idle_seconds)
        return response
    supported = (TUNNEL_PROTOCOL, *PORT_FORWARD_PROTOCOLS)
    protocol = negotiate(request.headers.getall("Sec-WebSocket-Protocol", []), supported)
    if protocol is None:
        raise unsupported_protocol(request, [candidate.name for candidate in supported])
    if protocol is not TUNNEL_PROTOCOL:
        return await _serve_channels(request, protocol, forwarder, idle_seconds)
    tunnel = Tunnel()
    websocket = await tunnel.open(request, protocol.name, idle_seconds)
    await _serve_session(tunnel, forwarder, idle_seconds)
    return websocket.response


# --- connections ------------------------------------------------------------------------------------------------------


class PortForwarder:
    """The forwarded connections of one client. `dial` connects to a port of the pod that `target` names."""

    def __init__(self, dial: Dial, target: str) -> None:
        self._dial = dial
        self._target = target
        self._tasks: set[asyncio.Task[None]] = set()

    def start(self, port: int, data: Stream, error: Stream, *, half_close: bool) -> None:
        """Forward a connection, which has a data stream and an error stream.

        With `half_close`, each direction ends by itself. Otherwise the end of one direction ends both.
        """
        task = asyncio.create_task(self._forward(port, data, error, half_close))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def wait(self, client_gone: asyncio.Event) -> None:
        """Wait until all connections have ended, or DRAIN_SECONDS after the client has disconnected."""
        disconnected = asyncio.create_task(client_gone.wait())
        connections = asyncio.gather(*self._tasks, return_exceptions=True)
        try:
            await asyncio.wait((connections, disconnected), return_when=asyncio.FIRST_COMPLETED)
            if not connections.done():
                await asyncio.wait((connections,), timeout=DRAIN_SECONDS)
        finally:
            disconnected.cancel()

    async def stop(self) -> None:
        """End the remaining connections."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _forward(self, port: int, data: Stream, error: Stream, half_close: bool) -> None:
        with contextlib.suppress(ConnectionError):
            try:
                pod = await self._dial(port)
            except (DriverError, OSError) as failure:
                extra = {"port": port, "pod": self._target, "error": failure}
                log.info("port forwarding failed", extra=extra)
                await error.write(f"error forwarding port {port} to {self._target}: {failure}".encode())
                await error.end()
                data.abort()
                return
            await _copy_both_ways(data, error, pod, half_close)


async def _copy_both_ways(data: Stream, error: Stream, pod: Stream, half_close: bool) -> None:
    to_pod = asyncio.create_task(_copy_to_pod(data, pod))
    try:
        await _copy_to_client(pod, data)
        # kubectl closes its side only after the end of the error stream.
        await error.end()
        if half_close:
            await to_pod
    finally:
        # These do not wait, so they run even if this task is cancelled a second time.
        data.abort()
        pod.abort()
        to_pod.cancel()
        await asyncio.wait((to_pod,))


async def _copy_to_pod(data: Stream, pod: Stream) -> None:
    """Copy from the client to the pod. After the pod has closed its input, bytes are dropped: it may still send."""
    pod_reads = True
    try:
        while chunk := await data.read():
            if pod_reads:
                try:
                    await pod.write(chunk)
                except ConnectionError:
                    pod_reads = False
    except ConnectionError:
        pod.abort()
        return
    with contextlib.suppress(ConnectionError):
        await pod.end()


async def _copy_to_client(pod: Stream, data: Stream) -> None:
    """Copy from the pod to the client. Raises ConnectionError if the client has disconnected."""
    while True:
        try:
            chunk = await pod.read()
        except ConnectionError:
            data.abort()
            return
        if not chunk:
            await data.end()
            return
        await data.write(chunk)


# --- WebSocket channels -----------------------------------------------------------------------------------------------


async def _serve_channels(
    request: web.Request, protocol: ChannelProtocol, forwarder: PortForwarder, idle_seconds: float
) -> web.StreamResponse:
    """Forward one connection for each port, with two channels each. Close the WebSocket when all have ended."""
    ports = parse_ports(request.query.getall("port", []))
    channels = WebSocketChannels(protocol, range(0, 2 * len(ports), 2), None, count=2 * len(ports))
    websocket = await channels.open(request, idle_seconds)
    try:
        for index, port in enumerate(ports):
            data = channels.channel(2 * index)
            error = channels.channel(2 * index + 1)
            await data.write(port.to_bytes(2, "little"))
            await error.write(port.to_bytes(2, "little"))
            forwarder.start(port, data, error, half_close=False)
        await forwarder.wait(websocket.closed)
        await websocket.close()
    except ConnectionError as failure:
        log.info("client disconnected", extra={"path": request.path, "error": failure})
    finally:
        websocket.abort()
        await forwarder.stop()
    return websocket.response


def parse_ports(values: Iterable[str]) -> list[int]:
    """Parse the values of the query parameter `port`, each a list with commas. Raises HTTPBadRequest."""
    values = list(values)
    if not values:
        raise web.HTTPBadRequest(text='query parameter "port" is required\n')
    ports = []
    for value in values:
        if not value:
            raise web.HTTPBadRequest(text='query parameter "port" cannot be empty\n')
        for text in value.split(","):
            port = _parse_port(text)
            if port is None:
                raise web.HTTPBadRequest(text=f'unable to parse "{value}" as a port: 1 to 65535 is accepted\n')
            ports.append(port)
    if len(ports) > MAX_PORTS:
        raise web.HTTPBadRequest(text=f"at most {MAX_PORTS} ports are forwarded at once, found {len(ports)}\n")
    return ports


def _parse_port(text: str) -> int | None:
    if not (text.isascii() and text.isdecimal() and len(text) <= 5):
        return None
    port = int(text)
    return port if 0 < port <= 0xFFFF else None


# --- SPDY session -----------------------------------------------------------------------------------------------------


async def _serve_session(carrier: Stream, forwarder: PortForwarder, idle_seconds: float) -> None:
    session = Session(carrier, idle_seconds=idle_seconds)
    pairs = _StreamPairs(forwarder)
    try:
        while (stream := await session.accept()) is not None:
            await pairs.add(stream)
        client_gone = asyncio.Event()
        client_gone.set()
        await forwarder.wait(client_gone)
        await session.close()
    finally:
        session.abort()
        pairs.stop()
        await forwarder.stop()


@dataclass(slots=True)
class _PendingPair:
    """The first of the two streams of a connection, and the timer that resets it."""

    stream: SpdyStream
    port: int
    timer: asyncio.TimerHandle = field(repr=False)


class _StreamPairs:
    """Pairs data and error streams of connections, which arrive in any order, and starts the connections."""

    def __init__(self, forwarder: PortForwarder) -> None:
        self._forwarder = forwarder
        self._pending: dict[str, _PendingPair] = {}

    async def add(self, stream: SpdyStream) -> None:
        """Accept a stream. An invalid one is reset."""
        stream_type = stream.headers.get("streamtype", "")
        port = _parse_port(stream.headers.get("port", ""))
        if stream_type not in {"data", "error"} or port is None:
            stream.reset()
            return
        request_id = stream.headers.get("requestid", "") or _default_request_id(stream, stream_type)
        pending = self._pending.get(request_id)
        if pending is not None and pending.stream.headers["streamtype"] == stream_type:
            stream.reset()
            return
        try:
            await stream.reply()
        except ConnectionError:
            return
        if pending is None:
            timer = asyncio.get_running_loop().call_later(PAIR_TIMEOUT_SECONDS, self._expire, request_id)
            self._pending[request_id] = _PendingPair(stream, port, timer)
            return
        pending.timer.cancel()
        del self._pending[request_id]
        if stream_type == "data":
            self._forwarder.start(port, stream, pending.stream, half_close=True)
        else:
            self._forwarder.start(pending.port, pending.stream, stream, half_close=True)

    def stop(self) -> None:
        """Cancel the timers of pending pairs."""
        for pair in self._pending.values():
            pair.timer.cancel()

    def _expire(self, request_id: str) -> None:
        self._pending.pop(request_id).stream.reset()


def _default_request_id(stream: SpdyStream, stream_type: str) -> str:
    """Return the ID of a pair without `requestid`. Old clients open the data stream right after the error stream."""
    return f"of stream {stream.stream_id if stream_type == 'error' else stream.stream_id - 2}"
