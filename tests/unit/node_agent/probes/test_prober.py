"""Probes and hooks over the network, against servers on loopback."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from grpclib.server import Server

from api.core.pod import (
    ExecAction,
    GRPCAction,
    HTTPGetAction,
    HTTPHeader,
    LifecycleHandler,
    Probe,
    SleepAction,
    TCPSocketAction,
)
from node_agent.probes.prober import MAX_BODY_BYTES, Prober, ProbeTarget
from node_agent.probes.state import ProbeOutcome
from node_agent.runtime.spec import ContainerConfig
from reconcile.errors import NotReady
from tests.testbed.docker.fake import FakeDocker
from tests.testbed.node.grpc_health_server import Health, Plain
from tests.testbed.self_signed import self_signed

HERE = "127.0.0.1"


@pytest.fixture
async def docker() -> FakeDocker:
    fake = FakeDocker("toolbox")
    identity = await fake.create(ContainerConfig("one", "toolbox", {}))
    await fake.start(identity)
    return fake


@pytest.fixture
async def prober(docker: FakeDocker) -> AsyncIterator[Prober]:
    async with Prober(docker) as prober:
        yield prober


def target(port: int = 0) -> ProbeTarget:
    return ProbeTarget(f"{1:064x}", HERE, {"web": port})


def http(**fields: Any) -> Probe:
    return Probe(http_get=HTTPGetAction(**{"port": "web", "path": "/", "scheme": "HTTP"} | fields), timeout_seconds=5)


@asynccontextmanager
async def serving(
    handle: Callable[[web.Request], Awaitable[web.StreamResponse]], context: ssl.SSLContext | None = None
) -> AsyncIterator[int]:
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", handle)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, HERE, 0, ssl_context=context).start()
    try:
        yield runner.addresses[0][1]
    finally:
        await runner.cleanup()


@pytest.mark.parametrize(
    ("status", "success"),
    [(200, True), (204, True), (304, True), (399, True), (400, False), (404, False), (503, False)],
)
async def test_http_probe_succeeds_on_200_to_399(prober: Prober, status: int, success: bool) -> None:
    async def handle(_: web.Request) -> web.Response:
        return web.Response(status=status)

    async with serving(handle) as port:
        outcome = await prober.probe(http(), target(port))
    assert outcome.success is success
    assert outcome.message == ("" if success else f"HTTP probe failed with statuscode: {status}")


async def test_http_probe_sends_default_and_configured_headers(prober: Prober) -> None:
    requests: list[tuple[str, dict[str, str]]] = []

    async def handle(request: web.Request) -> web.Response:
        requests.append((request.raw_path, dict(request.headers)))
        return web.Response()

    async with serving(handle) as port:
        assert (await prober.probe(http(path="/a?b=c"), target(port))).success
        headers = (HTTPHeader(name="host", value="web.example"), HTTPHeader(name="Accept", value="text/plain"))
        own_headers = (*headers, HTTPHeader(name="user-agent", value=""), HTTPHeader(name="X", value="1"))
        assert (await prober.probe(http(http_headers=own_headers, path="x"), target(port))).success
    close = {"Connection": "close"}
    assert requests[0] == (
        "/a?b=c",
        {"Host": f"{HERE}:{port}", "User-Agent": "kube-probe/1.36", "Accept": "*/*"} | close,
    )
    assert requests[1] == ("/x", {"Host": "web.example", "Accept": "text/plain", "X": "1"} | close)


async def test_http_probe_follows_redirects_on_the_same_host_only(prober: Prober) -> None:
    paths: list[str] = []

    async def handle(request: web.Request) -> web.Response:
        paths.append(request.path)
        to = {"/here": "/bad", "/there": "http://elsewhere.example/", "/round": "/round", "/file": "file:///etc/passwd"}
        if request.path in to:
            return web.Response(status=302, headers={"Location": to[request.path]}, text="over there")
        return web.Response(status=500)

    async with serving(handle) as port:
        same_host = await prober.probe(http(path="/here"), target(port))
        other_host = await prober.probe(http(path="/there"), target(port))
        file = await prober.probe(http(path="/file"), target(port))
        rounds = await prober.probe(http(path="/round"), target(port))
    assert same_host == ProbeOutcome(False, "HTTP probe failed with statuscode: 500")
    assert other_host == ProbeOutcome(True, "Probe terminated redirects, Response body: over there")
    assert file.success
    assert rounds.success is False
    assert "stopped after 10 redirects" in rounds.message
    assert paths.count("/round") == 11


async def test_http_probe_truncates_an_endless_body_and_waits_for_a_missing_one(prober: Prober) -> None:
    disconnected = asyncio.Event()

    async def handle(request: web.Request) -> web.StreamResponse:
        answer = web.StreamResponse()
        await answer.prepare(request)
        try:
            if request.path == "/endless":
                while True:
                    await answer.write(b"x" * MAX_BODY_BYTES)
            await disconnected.wait()
        except ConnectionError:
            disconnected.set()
        return answer

    async with serving(handle) as port:
        assert (await prober.probe(http(path="/endless"), target(port))).success
        await disconnected.wait()
        disconnected.clear()
        slow = Probe(http_get=http(path="/slow").http_get, timeout_seconds=1)
        outcome = await prober.probe(slow, target(port))
        disconnected.set()
    assert outcome == ProbeOutcome(False, f'Get "http://{HERE}:{port}/slow": no answer within 1s')


async def test_http_probe_fails_on_refused_connection_and_invalid_response(prober: Prober) -> None:
    port = free_port()
    assert await prober.probe(http(), target(port)) == ProbeOutcome(
        False, f'Get "http://{HERE}:{port}/": Connection refused'
    )

    async def nonsense(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"SSH-2.0-nonsense\r\n")
        writer.close()

    server = await asyncio.start_server(nonsense, HERE, 0)
    async with server:
        outcome = await prober.probe(http(), target(server.sockets[0].getsockname()[1]))
    assert outcome.success is False


async def test_https_probe_skips_verification_and_hook_falls_back_to_http(prober: Prober, tmp_path: Path) -> None:
    async def handle(_: web.Request) -> web.Response:
        return web.Response()

    async with serving(handle, self_signed(tmp_path)) as port:
        assert (await prober.probe(http(scheme="HTTPS"), target(port))).success
    async with serving(handle) as port:
        assert (await prober.probe(http(scheme="HTTPS"), target(port))).success is False
        hook = LifecycleHandler(http_get=http(scheme="HTTPS").http_get)
        assert (await prober.run_hook(hook, target(port), 5)).success


async def test_tcp_probe_succeeds_when_the_port_accepts(prober: Prober) -> None:
    probe = Probe(tcp_socket=TCPSocketAction(port="web"), timeout_seconds=5)
    with socket.create_server((HERE, 0)) as server:
        port = server.getsockname()[1]
        assert (await prober.probe(probe, target(port))).success
        elsewhere = Probe(tcp_socket=TCPSocketAction(port=port, host=HERE), timeout_seconds=5)
        assert (await prober.probe(elsewhere, ProbeTarget("id", "127.0.0.2", {}))).success
        nowhere = Probe(tcp_socket=TCPSocketAction(port=port), timeout_seconds=5)
        assert (await prober.probe(nowhere, ProbeTarget("id", "127.0.0.2", {}))).success is False
    assert await prober.probe(probe, target(port)) == ProbeOutcome(False, f"dial tcp {HERE}:{port}: Connection refused")


async def test_grpc_probe_calls_the_health_check_of_a_service(prober: Prober) -> None:
    server, port = (
        Server([Health({b"": True, b"web": True, b"db": False, b"n" * 200: True}.get)], codec=Plain()),
        free_port(),
    )
    await server.start(HERE, port)

    async def check(service: str) -> ProbeOutcome:
        return await prober.probe(Probe(grpc=GRPCAction(port=port, service=service), timeout_seconds=5), target())

    assert (await check("")).success
    assert (await check("web")).success
    assert (await check("n" * 200)).success
    assert (await check("db")).success is False
    assert await check("nobody") == ProbeOutcome(False, "error: health rpc failed: NOT_FOUND unknown service")
    server.close()
    await server.wait_closed()
    assert (await check("")).success is False


async def test_grpc_probe_times_out_on_a_silent_server(prober: Prober) -> None:
    with socket.create_server((HERE, 0)) as server:
        port = server.getsockname()[1]
        outcome = await prober.probe(Probe(grpc=GRPCAction(port=port), timeout_seconds=1), target())
    assert outcome.success is False


async def test_exec_probe_result_is_the_exit_code(prober: Prober, docker: FakeDocker) -> None:
    async def check(*command: str) -> ProbeOutcome:
        return await prober.probe(Probe(exec=ExecAction(command=command), timeout_seconds=1), target())

    assert (await check("exit 0")).success
    assert await check("exit 3") == ProbeOutcome(False, "exit code 3")
    assert await check("echo all is well") == ProbeOutcome(True)
    assert await check("sleep") == ProbeOutcome(False, 'command "sleep" timed out after 1s')
    docker.trouble = NotReady("Docker does not answer")
    assert await check("exit 0") == ProbeOutcome(None, "Docker does not answer")


async def test_sleep_hook_sleeps_and_empty_hook_does_nothing(prober: Prober) -> None:
    assert (await prober.run_hook(LifecycleHandler(sleep=SleepAction(seconds=60)), target(), 0)).success
    assert (await prober.run_hook(LifecycleHandler(tcp_socket=TCPSocketAction(port=1)), target(), 5)).success


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind((HERE, 0))
        return int(sock.getsockname()[1])
