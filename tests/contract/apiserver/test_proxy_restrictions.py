"""Requests that the proxy rejects: to the master itself, to its machine, and with headers that it would have to
change.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from api.client.kubeconfig import Kubeconfig
from master.server.proxy.kubelet_client import AddressNotAllowed, RestrictedConnector
from tests.testbed.apiserver.process import ApiServer
from tests.testbed.apiserver.untyped_client import UntypedClient
from tests.testbed.streaming.fake_kubelet import NODE, PODS, PROJECT, ProxyTestbed, own_address, proxy_testbed
from tests.testbed.tls_connector import tls_connector

NODES = "/api/v1/nodes"
NOT_ALLOWED = [400, "BadRequest", "address not allowed"]
POD_IP = "10.128.0.9"


@pytest.fixture
async def testbed(server: ApiServer, api_client: UntypedClient, tmp_path: Path) -> AsyncIterator[ProxyTestbed]:
    async with proxy_testbed(server, api_client, tmp_path) as new_testbed:
        yield new_testbed


def port_of(server: ApiServer) -> int:
    return int(server.url.rpartition(":")[2])


async def refused(testbed: ProxyTestbed, path: str) -> list[Any]:
    async with testbed.session.get(path) as answer:
        status = json.loads(await answer.read())
        assert status["kind"] == "Status", status
        return [status["code"], status.get("reason", ""), status["message"]]


# --- the master itself ------------------------------------------------------------------------------------------------


async def test_kubelet_client_certificate_is_not_accepted_by_the_master(server: ApiServer) -> None:
    context = ssl.create_default_context(cadata=Kubeconfig.load(server.kubeconfig).ca.decode())
    context.load_cert_chain(server.root / "state" / "pki" / "nodes-client.pem")
    connector = tls_connector(context)
    async with aiohttp.ClientSession(server.url, connector=connector) as session:
        for path in ("/api/v1/namespaces", "/version", f"{NODES}/{NODE}/proxy/healthz"):
            async with session.get(path, headers={"Authorization": "Bearer x"}) as answer:
                assert (answer.status, (await answer.json())["reason"]) == (401, "Unauthorized")


async def test_kubelet_client_certificate_of_an_earlier_release_is_replaced(tmp_path: Path) -> None:
    master = ApiServer(tmp_path)
    pem = tmp_path / "state" / "pki" / "nodes-client.pem"
    pem.parent.mkdir(mode=0o700, parents=True)
    pem.write_text("an old one")
    master.start()
    try:
        reported = pem.read_text()
    finally:
        master.stop()
    assert "BEGIN CERTIFICATE" in reported
    assert "an old one" not in reported


@pytest.mark.parametrize(
    "address",
    [
        {"type": "Hostname", "address": "localhost"},
        {"type": "Hostname", "address": "127.0.0.1"},
        {"type": "InternalDNS", "address": "::ffff:127.0.0.1"},
        {"type": "ExternalDNS", "address": "0.0.0.0"},
        {"type": "Hostname", "address": "169.254.169.254"},
        {"type": "Hostname", "address": "::1"},
        {"type": "InternalDNS", "address": f"{own_address()}/api/v1/namespaces?"},
    ],
)
@pytest.mark.parametrize("port", ["the master's", "its own"])
async def test_node_with_an_address_of_the_masters_machine_is_not_proxied(
    testbed: ProxyTestbed, server: ApiServer, address: dict[str, str], port: str
) -> None:
    number = port_of(server) if port == "the master's" else testbed.node.port
    await testbed.register(address, port=number)
    await testbed.pod("web")
    for path in (f"{NODES}/{NODE}/proxy/api/v1/namespaces", f"{NODES}/{NODE}:{number}/proxy/x", f"{PODS}/web/log"):
        assert await refused(testbed, path) == NOT_ALLOWED
    assert await refused(testbed, f"{NODES}/{NODE}:1/proxy/x") == NOT_ALLOWED
    assert testbed.node.requests == []


async def test_node_with_the_masters_address_and_port_is_not_proxied(testbed: ProxyTestbed, server: ApiServer) -> None:
    await testbed.register(port=port_of(server))
    assert await refused(testbed, f"{NODES}/{NODE}/proxy/api") == NOT_ALLOWED
    await testbed.register({"type": "InternalDNS", "address": f"::ffff:{own_address()}"}, port=port_of(server))
    assert await refused(testbed, f"{NODES}/{NODE}/proxy/api") == NOT_ALLOWED
    await testbed.register()
    assert await refused(testbed, f"{NODES}/{NODE}:{port_of(server)}/proxy/api") == NOT_ALLOWED
    await testbed.pod("web", ip=own_address(), hostNetwork=True)
    assert await refused(testbed, f"{PODS}/https:web:{port_of(server)}/proxy/api") == NOT_ALLOWED


async def test_kubelet_client_user_may_use_only_kubelet_subresources(api_client: UntypedClient) -> None:
    async def may(verb: str, subresource: str, resource: str = "nodes") -> bool:
        attributes = {"verb": verb, "resource": resource, "subresource": subresource, "name": NODE}
        spec = {
            "user": "kube-apiserver-kubelet-client",
            "groups": ["system:authenticated"],
            "resourceAttributes": attributes,
        }
        answer = await api_client.request("POST", "/apis/authorization.k8s.io/v1/subjectaccessreviews", {"spec": spec})
        return bool(answer["status"]["allowed"])

    for part in ("proxy", "stats", "log", "metrics", "spec", "pods", "healthz", "configz"):
        for verb in ("get", "create", "update", "patch", "delete"):
            assert await may(verb, part), (verb, part)
    assert await may("get", "")
    assert not await may("update", "")
    assert not await may("update", "status")
    assert not await may("get", "", "secrets")


async def test_proxy_to_the_advertised_address_is_rejected() -> None:
    """Also that of a balancer before it, which no machine can bind."""
    known, port = "198.51.100.1", 8443
    dialler = RestrictedConnector(lambda: (known, port))
    async with dialler:

        def made(host: str, port: int) -> None:
            family = socket.AF_INET6 if ":" in host else socket.AF_INET
            dialler._socket((family, socket.SOCK_STREAM, 0, "", (host, port))).close()

        for host in (known, f"::ffff:{known}"):
            with pytest.raises(AddressNotAllowed, match="address not allowed"):
                made(host, port)
        made(known, 10250)
        made("198.51.100.2", port)


# --- what nodes tell of addresses -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "address"),
    [
        ("InternalIP", "127.0.0.1"),
        ("InternalIP", "169.254.169.254"),
        ("ExternalIP", "169.254.1.1"),
        ("ExternalIP", "::ffff:127.0.0.1"),
        ("ExternalIP", "name"),
    ],
)
async def test_proxy_to_reserved_node_addresses_is_rejected(testbed: ProxyTestbed, kind: str, address: str) -> None:
    status = {"status": {"addresses": [{"type": kind, "address": address}]}}
    actual = await testbed.api_client.request("PATCH", f"{NODES}/{NODE}/status", status)
    assert (actual["code"], actual["reason"]) == (422, "Invalid")
    assert actual["message"].startswith(f'Node "{NODE}" is invalid: status.addresses[0].address: Invalid value:')
    created = await testbed.api_client.request("POST", NODES, {"metadata": {"name": "n9"}, **status})
    assert (created["code"], created["reason"]) == (422, "Invalid")


@pytest.mark.parametrize("address", ["127.0.0.1", "0.0.0.0", "169.254.169.254", "::ffff:127.0.0.1", "localhost"])
@pytest.mark.parametrize("own", [True, False])
async def test_proxy_to_reserved_pod_addresses_is_rejected(testbed: ProxyTestbed, address: str, *, own: bool) -> None:
    await testbed.pod("web", hostNetwork=not own)
    for status in ({"podIP": address}, {"podIPs": [{"ip": address}]}):
        actual = await testbed.api_client.request("PATCH", f"{PODS}/web/status", {"status": status})
        assert (actual["code"], actual["reason"]) == (422, "Invalid"), actual
        assert 'Pod "web" is invalid: status.podIP' in actual["message"]


async def test_host_network_pod_is_proxied_only_at_its_nodes_address(testbed: ProxyTestbed) -> None:
    elsewhere = "198.51.100.1"
    await testbed.pod("web", ip=elsewhere, hostNetwork=True)
    assert await refused(testbed, f"{PODS}/web:80/proxy/") == NOT_ALLOWED
    services, endpoints = (f"/api/v1/namespaces/{PROJECT}/{plural}" for plural in ("services", "endpoints"))
    await testbed.api_client.create(services, name="lies", spec={"ports": [{"port": 80}]})
    target = {"kind": "Pod", "name": "web", "namespace": PROJECT}
    subset = {"addresses": [{"ip": elsewhere, "targetRef": target}], "ports": [{"port": 80}]}
    await testbed.api_client.create(endpoints, name="lies", subsets=[subset])
    assert await refused(testbed, f"{services}/lies/proxy/") == NOT_ALLOWED


# --- bytes that are no text -------------------------------------------------------------------------------------------


@asynccontextmanager
async def program(header: bytes) -> AsyncIterator[tuple[int, list[bytes]]]:
    """Run a program in a pod that sends a header. Yield its port, and the header lines that it receives."""
    received: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError):
            while (line := await reader.readline()).strip():
                received.append(line.strip())
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nX-Told: " + header + b"\r\n\r\n")
            await writer.drain()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        yield server.sockets[0].getsockname()[1], received


async def raw(server: ApiServer, path: str, header: bytes) -> tuple[bytes, bytes]:
    """Return the head and the body of a response as bytes."""
    context = Kubeconfig.load(server.kubeconfig).ssl_context()
    reader, writer = await asyncio.open_connection("127.0.0.1", port_of(server), ssl=context)
    writer.write(f"GET {path} HTTP/1.1\r\nHost: h\r\nConnection: close\r\nX-Said: ".encode() + header + b"\r\n\r\n")
    answer = await reader.read()
    writer.close()
    with contextlib.suppress(ConnectionError, ssl.SSLError):
        await writer.wait_closed()
    head, _, body = answer.partition(b"\r\n\r\n")
    return head, body


async def test_proxied_headers_pass_unchanged_or_are_rejected(testbed: ProxyTestbed, server: ApiServer) -> None:
    await testbed.pod("web", ip=POD_IP)
    text, other = "grüß dich \U0001f600".encode(), "grüß dich".encode("latin-1")
    async with program(text) as (port, received):
        path = f"{PODS}/web:{port}/proxy/"
        head, _ = await raw(server, path, text)
        assert head.startswith(b"HTTP/1.1 200")
        assert b"X-Told: " + text in head
        assert b"X-Said: " + text in received
        received.clear()
        head, body = await raw(server, path, other)
        assert head.startswith(b"HTTP/1.1 400")
        assert json.loads(body)["message"] == "the value of the header X-Said is not UTF-8"
        assert received == []
        for whom in (f"{NODES}/{NODE}/proxy/x", f"{PODS}/web/exec?command=ls"):
            head, _ = await raw(server, whom, other + b"\r\nConnection: Upgrade\r\nUpgrade: SPDY/3.1")
            assert head.startswith(b"HTTP/1.1 400")
    assert [request for request in testbed.node.requests if "portForward" not in request.path] == []
    async with program(other) as (port, _):
        head, body = await raw(server, f"{PODS}/web:{port}/proxy/", text)
        assert head.startswith(b"HTTP/1.1 503")
        assert "the value of the header X-Told of its response is not UTF-8" in json.loads(body)["message"]
    await testbed.node.quiet()
