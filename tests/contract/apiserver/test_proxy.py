"""The proxy subresources of nodes, pods and services."""

from __future__ import annotations

import asyncio
import hashlib
import io
import json
import os
import socket
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from master.auth import pki
from master.server.proxy.forwarding import MAX_PAGE_BYTES
from tests.testbed.apiserver.process import ApiServer
from tests.testbed.apiserver.untyped_client import UntypedClient
from tests.testbed.streaming.fake_kubelet import (
    NODE,
    PODS,
    PROJECT,
    ProxyTestbed,
    cluster_ca,
    own_address,
    proxy_testbed,
)

POD_IP = "10.128.0.9"
SERVICES = f"/api/v1/namespaces/{PROJECT}/services"
ENDPOINTS = f"/api/v1/namespaces/{PROJECT}/endpoints"
LARGE = 30 << 20


@pytest.fixture
async def testbed(server: ApiServer, api_client: UntypedClient, tmp_path: Path) -> AsyncIterator[ProxyTestbed]:
    async with proxy_testbed(server, api_client, tmp_path) as new_testbed:
        yield new_testbed


async def refused(testbed: ProxyTestbed, path: str, method: str = "GET") -> list[Any]:
    async with testbed.session.request(method, path) as answer:
        status = json.loads(await answer.read())
        assert status["code"] == answer.status
        # kubectl would ask again for ten seconds.
        assert "Retry-After" not in answer.headers
        return [status["code"], status.get("reason", ""), status["message"]]


ORIGIN_HEADERS = {
    "Clear-Site-Data": '"cookies"',
    "Content-Security-Policy": "sandbox allow-same-origin",
    "Service-Worker-Allowed": "/",
    "Set-Cookie": "a=b; Path=/oauth; Domain=127.0.0.1; HttpOnly",
    "Strict-Transport-Security": "max-age=0",
}


async def page(http: web.Request) -> web.StreamResponse:
    """Serve the program in a pod, which returns the request that it received."""
    if http.path == "/chat":
        channel = web.WebSocketResponse(protocols=("chat",))
        await channel.prepare(http)
        async for message in channel:
            await channel.send_str(message.data[::-1])
        return channel
    if http.path == "/large":
        return web.Response(body=bytes(range(256)) * (LARGE // 256))
    if http.path == "/page":
        filler = b"x" * int(http.query.get("filler", "0"))
        return web.Response(body=b'<a href="/x">x</a>' + filler, content_type="text/html", headers=ORIGIN_HEADERS)
    if http.path.startswith("/moved"):
        return web.Response(status=302, headers={"Location": http.query["to"]})
    if http.path == "/slowly":
        answer = web.StreamResponse()
        await answer.prepare(http)
        await answer.write(b"begun\n")
        assert http.transport is not None
        await asyncio.Event().wait()
    body = await http.read()
    output = {
        "method": http.method, "path": http.rel_url.raw_path, "query": http.rel_url.raw_query_string,
        "headers": dict(http.headers), "size": len(body), "digest": hashlib.sha256(body).hexdigest(),
    }  # fmt: skip
    return web.json_response(output, headers={"Access-Control-Allow-Origin": "*", "X-Pod": "web"})


@asynccontextmanager
async def running(context: ssl.SSLContext | None = None, address: str = "127.0.0.1") -> AsyncIterator[int]:
    """Run the program of a pod, and yield its port."""
    app = web.Application(client_max_size=1 << 30)
    app.router.add_route("*", "/{path:.*}", page)
    runner = web.AppRunner(app, access_log=None, handler_cancellation=True, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, address, 0, ssl_context=context).start()
    try:
        yield runner.addresses[0][1]
    finally:
        await runner.cleanup()


def closed_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as sock:
        return int(sock.getsockname()[1])


# --- nodes ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["GET", "POST", "PUT", "PATCH", "DELETE", "HEAD", "OPTIONS"])
async def test_node_proxy_passes_every_method(testbed: ProxyTestbed, method: str) -> None:
    path = f"/api/v1/nodes/{NODE}/proxy/stats/a%2Fb?only=1&x=a+b"
    headers = {"X-Mine": "1", "Connection": "X-Hop", "X-Hop": "1", "Authorization": "Bearer x", "TE": "trailers"}
    async with testbed.session.request(method, path, headers=headers, data=b"words") as answer:
        assert answer.status == 200
        assert answer.headers["X-Node"] == NODE
        if method != "HEAD":
            assert await answer.json() == {"path": "/stats/a/b"}
    (request,) = testbed.node.requests
    assert (request.method, request.query, request.body) == (method, [("only", "1"), ("x", "a b")], b"words")
    assert "kube-apiserver-kubelet-client" in request.caller
    assert request.headers["X-Mine"] == "1"
    assert request.headers["X-Forwarded-For"] == "127.0.0.1"
    assert request.headers["X-Forwarded-Uri"] == f"/api/v1/nodes/{NODE}/proxy/stats/a%2Fb"
    assert not {"X-Hop", "Authorization", "TE"} & set(request.headers)
    await testbed.node.quiet()


async def test_node_proxy_accepts_the_kubelet_port(testbed: ProxyTestbed) -> None:
    async with testbed.session.get(f"/api/v1/nodes/{NODE}:{testbed.node.port}/proxy/healthz") as answer:
        assert answer.status == 200
    assert "kube-apiserver-kubelet-client" in testbed.node.requests[0].caller


async def test_node_proxy_reaches_another_port_of_the_node_directly(testbed: ProxyTestbed) -> None:
    async with (
        running(address="0.0.0.0") as port,
        testbed.session.get(f"/api/v1/nodes/{NODE}:{port}/proxy/x/") as answer,
    ):
        assert (answer.status, (await answer.json())["path"]) == (200, "/x/")
    assert testbed.node.requests == []


async def test_proxy_path_without_a_trailing_slash_is_redirected(testbed: ProxyTestbed) -> None:
    path = f"/api/v1/nodes/{NODE}/proxy"
    async with testbed.session.get(f"{path}?a=b", allow_redirects=False) as answer:
        assert (answer.status, answer.headers["Location"]) == (301, f"{path}/?a=b")
    async with testbed.session.head(path, allow_redirects=False) as answer:
        assert (answer.status, answer.headers["Location"]) == (301, f"{path}/")
    assert testbed.node.requests == []


@pytest.mark.parametrize("method", ["POST", "PUT", "PATCH", "DELETE", "OPTIONS"])
async def test_proxy_path_without_a_trailing_slash_is_forwarded_for_other_methods(
    testbed: ProxyTestbed, method: str
) -> None:
    path = f"/api/v1/nodes/{NODE}/proxy"
    async with testbed.session.request(method, f"{path}?a=b", data=b"words", allow_redirects=False) as answer:
        assert answer.status == 200
    (request,) = testbed.node.requests
    assert (request.method, request.path, request.query, request.body) == (method, "/", [("a", "b")], b"words")


# --- pods -------------------------------------------------------------------------------------------------------------


async def test_pod_proxy_connects_through_the_pods_node(testbed: ProxyTestbed) -> None:
    async with running() as port:
        await testbed.pod("web", ip=POD_IP)
        sent = os.urandom(5 << 20)
        async with testbed.session.post(
            f"{PODS}/web:{port}/proxy/a%20b/?q=%2B", data=io.BytesIO(sent), headers={"Host": "me"}
        ) as response:
            output = await response.json()
            assert response.headers["X-Pod"] == "web"
            assert "Access-Control-Allow-Origin" not in response.headers
        assert (output["method"], output["path"], output["query"]) == ("POST", "/a%20b/", "q=%2B")
        assert (output["size"], output["digest"]) == (len(sent), hashlib.sha256(sent).hexdigest())
        assert output["headers"]["Host"] == "me"
        assert output["headers"]["X-Forwarded-Uri"] == f"{PODS}/web:{port}/proxy/a%20b/"
        assert (testbed.node.requests[0].path, len(testbed.node.requests)) == (f"/portForward/{PROJECT}/web", 1)
        await testbed.node.quiet()


async def test_page_of_a_pod_is_no_page_of_the_master(testbed: ProxyTestbed) -> None:
    async with running() as port:
        await testbed.pod("web", ip=POD_IP)
        async with testbed.session.get(f"{PODS}/web:{port}/proxy/page") as answer:
            assert (answer.status, answer.content_type) == (200, "text/html")
            policies = answer.headers.getall("Content-Security-Policy")
            assert answer.headers.getall("Set-Cookie") == [f"a=b; HttpOnly; Path={PODS}/web:{port}/proxy/oauth"]
            assert not [
                name
                for name in ("Clear-Site-Data", "Service-Worker-Allowed", "Strict-Transport-Security")
                if name in answer.headers
            ]
    assert policies == [
        "sandbox allow-same-origin",
        "sandbox allow-downloads allow-forms allow-popups allow-scripts",
    ]
    await testbed.node.quiet()


async def test_proxied_large_response_is_complete(testbed: ProxyTestbed) -> None:
    async with running() as port:
        await testbed.pod("web", ip=POD_IP)
        async with testbed.session.get(f"{PODS}/web:{port}/proxy/large") as answer:
            got = await answer.read()
    assert (len(got), got == bytes(range(256)) * (LARGE // 256)) == (LARGE, True)
    await testbed.node.quiet()


async def test_proxied_chunked_body_is_passed(testbed: ProxyTestbed) -> None:
    async def parts() -> AsyncIterator[bytes]:
        for number in range(100):
            yield b"%d," % number * 100

    async with running() as port:
        await testbed.pod("web", ip=POD_IP)
        async with testbed.session.put(f"{PODS}/web:{port}/proxy/", data=parts()) as answer:
            output = await answer.json()
    whole = b"".join([part async for part in parts()])
    assert (output["method"], output["digest"]) == ("PUT", hashlib.sha256(whole).hexdigest())


async def test_pod_proxy_defaults_to_the_first_declared_port(testbed: ProxyTestbed) -> None:
    async with running() as port:
        container = {"name": "main", "image": "image", "ports": [{"containerPort": port}]}
        await testbed.pod("web", ip=POD_IP, containers=[container])
        async with testbed.session.get(f"{PODS}/web/proxy/") as answer:
            assert (await answer.json())["path"] == "/"


async def test_pod_proxy_speaks_tls_to_the_pod(testbed: ProxyTestbed, server: ApiServer, tmp_path: Path) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    ca = cluster_ca(server)
    context.load_cert_chain(pki.server_certificate(ca, tmp_path, ("elsewhere",), ca.certificate.not_valid_before_utc))
    async with running(context) as port:
        await testbed.pod("web", ip=POD_IP)
        async with testbed.session.get(f"{PODS}/https:web:{port}/proxy/x") as answer:
            assert (await answer.json())["path"] == "/x"
    await testbed.node.quiet()


async def test_pod_proxy_passes_websockets(testbed: ProxyTestbed) -> None:
    async with running() as port:
        await testbed.pod("web", ip=POD_IP)
        async with testbed.session.ws_connect(f"{PODS}/web:{port}/proxy/chat", protocols=("chat",)) as channel:
            assert channel.protocol == "chat"
            await channel.send_str("olleh")
            assert await channel.receive_str() == "hello"
        await testbed.node.quiet()


@pytest.mark.parametrize(
    ("to", "seen"),
    [
        ("/new/place/?x=1", "{prefix}/new/place/?x=1"),
        ("there", "there"),
        ("https://example.org/x", "https://example.org/x"),
        ("http://{pod}/x", "{prefix}/x"),
        ("{prefix}/x", "{prefix}/x"),
    ],
)
async def test_proxied_redirects_are_rewritten(testbed: ProxyTestbed, to: str, seen: str) -> None:
    async with running() as port:
        await testbed.pod("web", ip=POD_IP)
        names = {"pod": f"{POD_IP}:{port}", "prefix": f"{PODS}/web:{port}/proxy"}
        path = f"{PODS}/web:{port}/proxy/moved"
        async with testbed.session.get(path, params={"to": to.format(**names)}, allow_redirects=False) as answer:
            assert (answer.status, answer.headers["Location"]) == (302, seen.format(**names))


@pytest.mark.parametrize(("filler", "moved"), [(0, True), (MAX_PAGE_BYTES - 18, True), (MAX_PAGE_BYTES, False)])
async def test_proxied_html_links_are_rewritten(testbed: ProxyTestbed, filler: int, *, moved: bool) -> None:
    async with running() as port:
        await testbed.pod("web", ip=POD_IP)
        prefix = f"{PODS}/web:{port}/proxy"
        async with testbed.session.get(f"{prefix}/page?filler={filler}") as answer:
            got = await answer.read()
            assert answer.content_type == "text/html"
    link = f'<a href="{prefix if moved else ""}/x">x</a>'.encode()
    assert got == link + b"x" * filler


async def test_disconnected_proxy_client_leaves_nothing(testbed: ProxyTestbed) -> None:
    async with running() as port:
        await testbed.pod("web", ip=POD_IP)
        answer = await testbed.session.get(f"{PODS}/web:{port}/proxy/slowly")
        assert await answer.content.readline() == b"begun\n"
        answer.close()
        await testbed.node.quiet()


async def test_proxy_to_an_unreachable_pod_returns_an_error_status(testbed: ProxyTestbed) -> None:
    port = closed_port()
    await testbed.pod("web", ip=POD_IP)
    await testbed.pod("new")
    answers = {
        f"web:{port}": [503, "ServiceUnavailable", f"error trying to reach service: error forwarding port {port}: "
                        "connection refused"],
        "new:80": [400, "BadRequest", "address not allowed"],
        "none:80": [404, "NotFound", 'pods "none" not found'],
        "a:b:c:d": [400, "BadRequest", 'invalid pod request "a:b:c:d"'],
        "ftp:web:21": [400, "BadRequest", 'invalid pod request "ftp:web:21"'],
        "web:x": [503, "ServiceUnavailable", "error trying to reach service: dial tcp: lookup tcp/x: unknown port"],
    }  # fmt: skip
    assert {name: await refused(testbed, f"{PODS}/{name}/proxy/") for name in answers} == answers
    await testbed.node.quiet()
    await testbed.register({"type": "InternalIP", "address": own_address()}, port=port)
    why = f"dial tcp {own_address()}:{port}: connect: connection refused"
    actual = await refused(testbed, f"{PODS}/web:80/proxy/")
    assert actual == [503, "ServiceUnavailable", f"error trying to reach service: {why}"]


async def test_proxy_reports_a_node_without_port_forwarding(testbed: ProxyTestbed) -> None:
    async def refuse(http: web.Request) -> web.StreamResponse:
        return web.Response(status=403, text="not you")

    testbed.node.refusal = refuse
    await testbed.pod("web", ip=POD_IP)
    actual = await refused(testbed, f"{PODS}/web:80/proxy/")
    assert actual == [503, "ServiceUnavailable", "error trying to reach service: not you"]
    await testbed.node.quiet()


async def test_host_network_pod_is_proxied_without_its_node(testbed: ProxyTestbed) -> None:
    async with running(address="0.0.0.0") as port:
        await testbed.pod("web", ip=own_address(), hostNetwork=True)
        async with testbed.session.get(f"{PODS}/web:{port}/proxy/") as answer:
            assert answer.status == 200
    assert testbed.node.requests == []


# --- services ---------------------------------------------------------------------------------------------------------


async def service(testbed: ProxyTestbed, ports: list[dict[str, Any]], subsets: list[dict[str, Any]]) -> None:
    await testbed.api_client.request("DELETE", f"{SERVICES}/s")
    await testbed.api_client.request("DELETE", f"{ENDPOINTS}/s")
    await testbed.api_client.create(SERVICES, name="s", spec={"ports": ports})
    await testbed.api_client.create(ENDPOINTS, name="s", subsets=subsets)


def address(pod: str, ip: str = POD_IP) -> dict[str, Any]:
    return {"ip": ip, "targetRef": {"kind": "Pod", "name": pod, "namespace": PROJECT}}


@pytest.mark.parametrize("name", ["s:http", "s:80", "http:s:http"])
async def test_service_proxy_connects_to_its_pods(testbed: ProxyTestbed, name: str) -> None:
    async with running() as port:
        await testbed.pod("web", ip=POD_IP)
        subset = {"addresses": [address("web")], "ports": [{"name": "http", "port": port}]}
        await service(testbed, [{"name": "http", "port": 80}], [subset])
        async with testbed.session.get(f"{SERVICES}/{name}/proxy/x?y") as answer:
            output = await answer.json()
    assert (output["path"], output["query"]) == ("/x", "y")
    assert output["headers"]["X-Forwarded-Uri"] == f"{SERVICES}/{name}/proxy/x"
    assert testbed.node.requests[0].path == f"/portForward/{PROJECT}/web"


async def test_service_proxy_uses_any_ready_pod(testbed: ProxyTestbed) -> None:
    async with running() as port:
        for number in range(3):
            await testbed.pod(f"web-{number}", ip=f"10.128.0.{20 + number}")
        ready = [address("web-0", "10.128.0.20"), address("web-1", "10.128.0.21"), address("web-0", "10.128.0.99")]
        stranger = {"ip": "10.128.0.50"}
        elsewhere = {"ip": "10.128.0.22", "targetRef": {"kind": "Pod", "name": "web-2", "namespace": "default"}}
        subsets = [
            {"addresses": [*ready, stranger, elsewhere], "notReadyAddresses": [address("web-2", "10.128.0.22")],
             "ports": [{"port": port}]},
            {"addresses": [address("web-2", "10.128.0.22")], "ports": [{"name": "other", "port": port}]},
        ]  # fmt: skip
        await service(testbed, [{"port": 80}], subsets)
        for _ in range(30):
            async with testbed.session.get(f"{SERVICES}/s/proxy/") as answer:
                assert answer.status == 200
    assert {request.path.rpartition("/")[2] for request in testbed.node.requests} == {"web-0", "web-1"}
    await testbed.node.quiet()


async def test_service_proxy_without_endpoints_returns_an_error_status(testbed: ProxyTestbed) -> None:
    await testbed.pod("web", ip=POD_IP)
    subset = {"addresses": [address("web")], "ports": [{"name": "http", "port": 1}]}
    await service(testbed, [{"name": "http", "port": 80}], [subset])

    def away(text: str) -> list[Any]:
        return [503, "ServiceUnavailable", text]

    answers = {
        "s:81": away('no service port 81 found for service "s"'),
        "s": away('no endpoints available for service "s"'),
        "s:other": away('no endpoints available for service "s:other"'),
        "https:s:other": away('no endpoints available for service "https:s:other"'),
        "none": [404, "NotFound", 'endpoints "none" not found'],
        "none:80": [404, "NotFound", 'services "none" not found'],
        "a:b:c:d": [400, "BadRequest", 'invalid service request "a:b:c:d"'],
    }
    assert {name: await refused(testbed, f"{SERVICES}/{name}/proxy/") for name in answers} == answers
    await service(testbed, [{"name": "http", "port": 80}], [])
    assert await refused(testbed, f"{SERVICES}/s:http/proxy/") == away('no endpoints available for service "s"')


async def test_unknown_method_is_rejected_by_the_proxy(testbed: ProxyTestbed) -> None:
    async with testbed.session.request("TRACE", f"/api/v1/nodes/{NODE}/proxy/x") as answer:
        assert answer.status == 405


async def test_hundred_parallel_proxy_requests_succeed(testbed: ProxyTestbed) -> None:
    async with running() as port:
        await testbed.pod("web", ip=POD_IP)

        async def proxied_path(number: int) -> str:
            async with testbed.session.get(f"{PODS}/web:{port}/proxy/{number}") as answer:
                return str((await answer.json())["path"])

        assert await asyncio.gather(*map(proxied_path, range(100))) == [f"/{number}" for number in range(100)]
    await testbed.node.quiet()
