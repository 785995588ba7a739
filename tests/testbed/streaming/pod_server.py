"""An API server with one pod, this machine, that serves exec and port-forward itself."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from aiohttp import web
from multidict import MultiDict

from node_agent.server.exec import copy_streams
from node_agent.server.portforward import serve_port_forward
from node_agent.server.streaming.remotecommand import (
    Outcome,
    RemoteCommand,
    StreamOptions,
    parse_stream_options,
    serve_remote_command,
)
from streams.connection import Connection
from streams.stream import Stream
from tests.testbed.streaming.local_process import LocalProcess

Work = Callable[[StreamOptions, RemoteCommand], Awaitable[Outcome]]

POD = {
    "kind": "Pod",
    "apiVersion": "v1",
    "metadata": {"name": "p", "namespace": "default", "uid": "u"},
    "spec": {"containers": [{"name": "c", "image": "i"}], "nodeName": "n"},
    "status": {"phase": "Running", "containerStatuses": []},
}
RESOURCES = {
    "kind": "APIResourceList",
    "apiVersion": "v1",
    "groupVersion": "v1",
    "resources": [
        {"name": "pods", "singularName": "pod", "namespaced": True, "kind": "Pod", "verbs": ["get", "list"]},
        {"name": "pods/exec", "singularName": "", "namespaced": True, "kind": "PodExecOptions", "verbs": ["create"]},
    ],
}
NODE_NAMES = {"stdin": "input", "stdout": "output", "stderr": "error", "ports": "port"}


@dataclass
class PodServer:
    """A server of one pod that records requests. It runs commands on this machine, or calls `work` instead."""

    url: str = ""
    processes: list[LocalProcess] = field(default_factory=list)
    protocols: list[str] = field(default_factory=list)
    work: Work | None = None
    dial: Callable[[int], Awaitable[Stream]] = field(default_factory=lambda: dial)
    idle_seconds: float = 3600.0

    async def run(self, wanted: StreamOptions, command: RemoteCommand) -> Outcome:
        if self.work is not None:
            return await self.work(wanted, command)
        process = await LocalProcess.start(wanted.command, stdin=wanted.stdin, tty=wanted.tty)
        self.processes.append(process)
        return await copy_streams(process, command)

    async def exec(self, request: web.Request) -> web.StreamResponse:
        request = _as_for_a_node(request)
        wanted = parse_stream_options(request.query)
        answer = await serve_remote_command(
            request, wanted, lambda command: self.run(wanted, command), self.idle_seconds
        )
        self._note(answer)
        return answer

    async def port_forward(self, request: web.Request) -> web.StreamResponse:
        answer = await serve_port_forward(_as_for_a_node(request), self.dial, "pod p, uid u", self.idle_seconds)
        self._note(answer)
        return answer

    def _note(self, answer: web.StreamResponse) -> None:
        headers = answer.headers
        self.protocols.append(headers.get("X-Stream-Protocol-Version", headers.get("Sec-WebSocket-Protocol", "")))


async def dial(port: int) -> Stream:
    _, connection = await asyncio.get_running_loop().create_connection(Connection, "127.0.0.1", port)
    return connection


@asynccontextmanager
async def running_pod_server() -> AsyncIterator[PodServer]:
    pod = PodServer()
    app = web.Application()
    base = "/api/v1/namespaces/default/pods/p"

    def document(actual: object) -> Callable[[web.Request], Awaitable[web.Response]]:
        async def answer(_: web.Request) -> web.Response:
            return web.json_response(actual)

        return answer

    app.router.add_get("/api", document({"kind": "APIVersions", "versions": ["v1"]}))
    app.router.add_get("/apis", document({"kind": "APIGroupList", "apiVersion": "v1", "groups": []}))
    app.router.add_get("/api/v1", document(RESOURCES))
    app.router.add_get(base, document(POD))
    for method in ("GET", "POST"):
        app.router.add_route(method, f"{base}/exec", pod.exec)
        app.router.add_route(method, f"{base}/portforward", pod.port_forward)
    runner = web.AppRunner(app, shutdown_timeout=1.0)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    host, port = runner.addresses[0][:2]
    pod.url = f"http://{host}:{port}"
    try:
        yield pod
    finally:
        await runner.cleanup()


def _as_for_a_node(request: web.Request) -> web.Request:
    """Rename the query parameters as an API server does, because a node has other names for them."""
    flags = {"stdin", "stdout", "stderr", "tty"}
    query = MultiDict(
        (NODE_NAMES.get(name, name), "1" if name in flags and value.lower() == "true" else value)
        for name, value in request.query.items()
    )
    return request.clone(rel_url=request.rel_url.with_query(query))
