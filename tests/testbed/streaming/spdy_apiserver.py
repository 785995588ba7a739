"""An API server with one pod whose programs and ports echo their input over SPDY."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from aiohttp import web

from streams.spdy.session import Session, SpdyStream
from streams.stream import Stream
from streams.upgrade import UpgradeResponse

POD: dict[str, object] = {
    "apiVersion": "v1",
    "kind": "Pod",
    "metadata": {"name": "p", "namespace": "default"},
    "spec": {"containers": [{"name": "c", "image": "i", "ports": [{"containerPort": 80}]}]},
    "status": {"phase": "Running"},
}
DISCOVERY: dict[str, dict[str, object]] = {
    "/api": {"kind": "APIVersions", "versions": ["v1"]},
    "/apis": {"kind": "APIGroupList", "apiVersion": "v1", "groups": []},
    "/api/v1": {
        "kind": "APIResourceList",
        "apiVersion": "v1",
        "groupVersion": "v1",
        "resources": [
            {"name": "pods", "singularName": "pod", "namespaced": True, "kind": "Pod", "verbs": ["get", "list"]},
        ],
    },
    "/api/v1/namespaces/default/pods/p": POD,
}
BANNER = b"".join(b"%07d\n" % number for number in range(32_768))
"""More than a pipe holds, less than the sockets between do."""

SUCCESS = b'{"metadata":{},"status":"Success"}'


class Recorded:
    """A carrier that records the bytes that it receives."""

    def __init__(self, carrier: Stream, record: bytearray) -> None:
        self.carrier = carrier
        self.record = record

    async def read(self) -> bytes:
        data = await self.carrier.read()
        self.record += data
        return data

    async def write(self, data: bytes) -> None:
        await self.carrier.write(data)

    async def end(self) -> None:
        await self.carrier.end()

    def abort(self) -> None:
        self.carrier.abort()


class SpdyApiServer:
    """An API server that records, for every session, the bytes of the client and the reason for the end."""

    def __init__(self) -> None:
        self.sessions: list[Session] = []
        self.records: list[bytearray] = []
        self.reasons: list[str] = []
        self.port = 0

    async def document(self, request: web.Request) -> web.Response:
        return web.json_response(DISCOVERY[request.path])

    async def exec(self, request: web.Request) -> web.StreamResponse:
        kinds = {"error"} | {kind for kind in ("stdin", "stdout", "stderr") if request.query.get(kind) == "true"}
        answer = UpgradeResponse([("Upgrade", "SPDY/3.1"), ("X-Stream-Protocol-Version", "v4.channel.k8s.io")])
        async with self.session(answer, request) as session:
            await echo_program(session, kinds, BANNER if request.query["command"] == "say" else b"")
        return answer

    async def port_forward(self, request: web.Request) -> web.StreamResponse:
        answer = UpgradeResponse([("Upgrade", "SPDY/3.1"), ("X-Stream-Protocol-Version", "portforward.k8s.io")])
        async with self.session(answer, request) as session:
            await echo_ports(session)
        return answer

    @asynccontextmanager
    async def session(self, answer: UpgradeResponse, request: web.Request) -> AsyncIterator[Session]:
        self.records.append(bytearray())
        session = Session(Recorded(await answer.upgrade(request), self.records[-1]))
        self.sessions.append(session)
        try:
            async with session:
                yield session
        except ConnectionError:
            pass  # the client disconnected; the reason is recorded
        self.reasons.append(session.reason)


async def echo_program(session: Session, kinds: set[str], output: bytes) -> None:
    """Accept the streams of one program, send `output`, echo its input, and report success."""
    streams: dict[str, SpdyStream] = {}
    while streams.keys() != kinds:
        stream = await session.accept()
        if stream is None:
            return
        streams[stream.headers["streamtype"]] = stream
        await stream.reply()
    if output:
        await streams["stdout"].write(output)
    while "stdin" in streams and (data := await streams["stdin"].read()):
        await streams["stdout"].write(data)
    for kind in kinds - {"stdin", "error"}:
        await streams[kind].end()
    await streams["error"].write(SUCCESS)
    await streams["error"].end()


async def echo_ports(session: Session) -> None:
    """Echo the data of every data stream until the client disconnects."""
    errors: dict[str, SpdyStream] = {}
    async with asyncio.TaskGroup() as connections:
        while stream := await session.accept():
            await stream.reply()
            if stream.headers["streamtype"] == "error":
                errors[stream.headers["requestid"]] = stream
            else:
                connections.create_task(_echo(stream, errors.pop(stream.headers["requestid"])))


async def _echo(stream: SpdyStream, error: SpdyStream) -> None:
    try:
        while data := await stream.read():
            await stream.write(data)
        await stream.end()
        await error.end()
    except ConnectionError:
        pass  # the client closed one stream or all
    finally:
        stream.abort()
        error.abort()


@asynccontextmanager
async def one_pod() -> AsyncIterator[SpdyApiServer]:
    """Serve it on a port of its own."""
    server = SpdyApiServer()
    app = web.Application()
    for path in DISCOVERY:
        app.router.add_get(path, server.document)
    app.router.add_post("/api/v1/namespaces/default/pods/p/exec", server.exec)
    app.router.add_post("/api/v1/namespaces/default/pods/p/portforward", server.port_forward)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    server.port = runner.addresses[0][1]
    try:
        yield server
    finally:
        await runner.cleanup()
