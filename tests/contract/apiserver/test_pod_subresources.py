"""Logs, exec, attach and port-forward through the master: the requests that the node gets, and the answers."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import os
import socket
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import psutil
import pytest
import yarl
from aiohttp import web
from multidict import CIMultiDict

from api.client.client import Client
from api.client.kubeconfig import Kubeconfig
from streams.connection import Connection
from streams.upgrade import upgraded_connection
from tests.testbed.apiserver.process import ApiServer
from tests.testbed.apiserver.untyped_client import UntypedClient
from tests.testbed.streaming.fake_kubelet import NODE, PODS, PROJECT, ProxyTestbed, own_address, proxy_testbed, until

UPGRADE = {"Connection": "Upgrade", "Upgrade": "SPDY/3.1", "X-Stream-Protocol-Version": "v4.channel.k8s.io"}


@pytest.fixture
async def testbed(server: ApiServer, api_client: UntypedClient, tmp_path: Path) -> AsyncIterator[ProxyTestbed]:
    async with proxy_testbed(server, api_client, tmp_path) as new_testbed:
        yield new_testbed


async def refused(
    testbed: ProxyTestbed, path: str, method: str = "GET", headers: dict[str, str] | None = None
) -> list[Any]:
    """Return the code, reason and message of a rejected request."""
    async with testbed.session.request(method, path, headers=headers) as answer:
        status = json.loads(await answer.read())
        assert status["kind"] == "Status"
        assert status["code"] == answer.status
        return [status["code"], status.get("reason", ""), status["message"]]


async def conversation(
    testbed: ProxyTestbed, path: str, method: str = "POST", headers: dict[str, str] | None = None
) -> tuple[Connection, CIMultiDict[str]]:
    """Start a streaming session. Return it and the headers of the response."""
    answer = await testbed.session.request(method, path, headers=headers or UPGRADE)
    assert answer.status == 101, await answer.text()
    stream = upgraded_connection(answer)
    assert await exactly(stream, 5) == b"hello"
    return stream, CIMultiDict(answer.headers)


async def exactly(stream: Connection, size: int) -> bytes:
    got = b""
    while len(got) < size and (data := await stream.read()):
        got += data
    return got


# --- logs -------------------------------------------------------------------------------------------------------------


async def test_log_request_reaches_the_node_with_the_masters_certificate(testbed: ProxyTestbed) -> None:
    await testbed.pod("web")

    async def log(http: web.Request) -> web.StreamResponse:
        return web.Response(body=b"one\ntwo\n", content_type="application/octet-stream")

    testbed.node.answer = log
    parameters = (
        "follow=true&previous=1&timestamps=&sinceSeconds=5&tailLines=0&limitBytes=7&container=main&pretty=true"
        "&insecureSkipTLSVerifyBackend=true"
    )
    async with testbed.session.get(f"{PODS}/web/log?{parameters}", headers={"Authorization": "Bearer x"}) as answer:
        assert (answer.status, answer.content_type, await answer.read()) == (200, "text/plain", b"one\ntwo\n")
    (request,) = testbed.node.requests
    assert (request.method, request.path) == ("GET", f"/containerLogs/{PROJECT}/web/main")
    assert dict(request.query) == {
        "follow": "true", "previous": "true", "timestamps": "true", "sinceSeconds": "5", "tailLines": "0",
        "limitBytes": "7",
    }  # fmt: skip
    assert request.caller == "commonName=kube-apiserver-kubelet-client"
    assert "Authorization" not in request.headers
    await testbed.node.quiet()


@pytest.mark.parametrize(
    ("parameters", "passed"),
    [
        ("sinceTime=2026-01-02T03:04:05.678Z", {"sinceTime": "2026-01-02T03:04:05Z"}),
        ("sinceTime=2026-01-02T03:04:05%2B02:00&follow=false", {"sinceTime": "2026-01-02T03:04:05+02:00"}),
        ("stream=Stdout", {"stream": "Stdout"}),
        ("stream=All&tailLines=3&previous=0", {"tailLines": "3"}),
        ("", {}),
    ],
)
async def test_log_parameters_are_passed_to_the_node(
    testbed: ProxyTestbed, parameters: str, passed: dict[str, str]
) -> None:
    await testbed.pod("web")
    async with testbed.session.get(f"{PODS}/web/log?{parameters}") as answer:
        assert answer.status == 200
    assert dict(testbed.node.requests[0].query) == passed


async def test_followed_log_lines_arrive_one_by_one_until_the_client_disconnects(testbed: ProxyTestbed) -> None:
    await testbed.pod("web")
    more, removed = asyncio.Semaphore(1), asyncio.Event()

    async def log(http: web.Request) -> web.StreamResponse:
        answer = web.StreamResponse()
        await answer.prepare(http)
        number = 0
        try:
            while True:
                await more.acquire()
                await answer.write(f"line {number}\n".encode())
                number += 1
        finally:
            removed.set()

    testbed.node.answer = log
    async with testbed.session.get(f"{PODS}/web/log?follow=true") as answer:
        for number in range(3):
            assert await answer.content.readline() == f"line {number}\n".encode()
            more.release()
    async with asyncio.timeout(20):
        await removed.wait()
    await testbed.node.quiet()


async def test_log_aborted_by_the_node_is_aborted_for_the_client(testbed: ProxyTestbed) -> None:
    await testbed.pod("web")

    async def log(http: web.Request) -> web.StreamResponse:
        answer = web.StreamResponse()
        await answer.prepare(http)
        await answer.write(b"half a line")
        assert http.transport is not None
        http.transport.abort()
        return answer

    testbed.node.answer = log
    async with testbed.session.get(f"{PODS}/web/log") as answer:
        assert answer.status == 200
        with pytest.raises(aiohttp.ClientPayloadError):
            await answer.read()


@pytest.mark.parametrize(
    ("protocol", "type_", "words"),
    [
        ("", aiohttp.WSMsgType.BINARY, [b"", b"one\n"]),
        ("binary.k8s.io", aiohttp.WSMsgType.BINARY, [b"", b"one\n"]),
        ("base64.binary.k8s.io", aiohttp.WSMsgType.TEXT, ["", "b25lCg=="]),
    ],
)
async def test_log_is_sent_as_websocket_messages(
    testbed: ProxyTestbed, protocol: str, type_: aiohttp.WSMsgType, words: list[str | bytes]
) -> None:
    await testbed.pod("web")

    async def log(http: web.Request) -> web.StreamResponse:
        return web.Response(body=b"one\n")

    testbed.node.answer = log
    protocols = (protocol,) if protocol else ()
    async with testbed.session.ws_connect(f"{PODS}/web/log", protocols=protocols) as channel:
        assert (channel.protocol or "") == protocol
        messages = [message async for message in channel]
    assert [message.data for message in messages] == words
    assert {message.type for message in messages} == {type_}
    assert "Upgrade" not in testbed.node.requests[0].headers
    await testbed.node.quiet()


async def test_closed_log_websocket_closes_the_log(testbed: ProxyTestbed) -> None:
    await testbed.pod("web")

    async def log(http: web.Request) -> web.StreamResponse:
        answer = web.StreamResponse()
        await answer.prepare(http)
        await asyncio.Event().wait()
        return answer

    testbed.node.answer = log
    async with testbed.session.ws_connect(f"{PODS}/web/log?follow=true") as channel:
        await until(lambda: testbed.node.connections == 1)
        await channel.close()
    await testbed.node.quiet()


async def test_log_of_an_unscheduled_pod_is_empty(testbed: ProxyTestbed) -> None:
    await testbed.pod("waits", node="")
    async with testbed.session.get(f"{PODS}/waits/log") as answer:
        assert (answer.status, await answer.read()) == (204, b"")


NEGATIVE = "must be greater than or equal to 0"
ONE_SINCE = "Forbidden: at most one of `sinceTime` or `sinceSeconds` may be specified"
ONE_STREAM = "Forbidden: `tailLines` and specific `stream` are mutually exclusive for now"
UNPARSED = 'cannot parse "yesterday" as "2006"'


def invalid(text: str) -> list[Any]:
    return [422, "Invalid", f'PodLogOptions "web" is invalid: {text}']


@pytest.mark.parametrize(
    ("parameters", "refusal"),
    [
        ("tailLines=-1", invalid(f"tailLines: Invalid value: -1: {NEGATIVE}")),
        ("limitBytes=0", invalid("limitBytes: Invalid value: 0: must be greater than 0")),
        ("sinceSeconds=0", invalid("sinceSeconds: Invalid value: 0: must be greater than 0")),
        ("sinceSeconds=1&sinceTime=2026-01-02T03:04:05Z", invalid(f": {ONE_SINCE}")),
        ("stream=Both", invalid('stream: Unsupported value: "Both": supported values: "All", "Stderr", "Stdout"')),
        ("stream=Stderr&tailLines=1", invalid(f": {ONE_STREAM}")),
        (
            "tailLines=-1&limitBytes=0",
            invalid(
                f"[tailLines: Invalid value: -1: {NEGATIVE}, limitBytes: Invalid value: 0: must be greater than 0]"
            ),
        ),
        ("tailLines=x", [400, "BadRequest", 'strconv.ParseInt: parsing "x": invalid syntax']),
        (
            "tailLines=9223372036854775808",
            [400, "BadRequest", 'strconv.ParseInt: parsing "9223372036854775808": value out of range'],
        ),
        (
            "sinceTime=yesterday",
            [400, "BadRequest", f'parsing time "yesterday" as "2006-01-02T15:04:05Z07:00": {UNPARSED}'],
        ),
        ("container=none", [400, "BadRequest", "container none is not valid for pod web"]),
    ],
)
async def test_invalid_log_options_are_rejected(testbed: ProxyTestbed, parameters: str, refusal: list[Any]) -> None:
    await testbed.pod("web")
    assert await refused(testbed, f"{PODS}/web/log?{parameters}") == refusal
    assert testbed.node.requests == []


NOT_FOUND = "the server could not find the requested resource ( pods/log web)"
BUSY = "the server is currently unable to handle the request ( pods/log web)"


@pytest.mark.parametrize(
    ("code", "text", "refusal"),
    [
        (400, 'container "main" in pod "web" is waiting to start: ContainerCreating\n', ("BadRequest", None)),
        (404, "pod does not exist", ("NotFound", NOT_FOUND)),
        (500, "disk on fire", ("InternalError", "Internal error occurred: disk on fire")),
        (403, "Forbidden (user=x)", ("Forbidden", "Forbidden (user=x) ( pods/log web)")),
        (503, "busy", ("ServiceUnavailable", BUSY)),
        (
            502,
            "bad",
            (
                "InternalError",
                'an error on the server ("bad") has prevented the request from succeeding ( pods/log web)',
            ),
        ),
        (
            302,
            "",
            ("", "the server responded with the status code 302 but did not return more information ( pods/log web)"),
        ),
    ],
)
async def test_log_error_of_the_node_is_passed_to_the_client(
    testbed: ProxyTestbed, code: int, text: str, refusal: tuple[str, str | None]
) -> None:
    await testbed.pod("web")

    async def log(http: web.Request) -> web.StreamResponse:
        return web.Response(status=code, text=text, headers={"Location": "https://elsewhere/"})

    testbed.node.answer = log
    reason, message = refusal
    assert await refused(testbed, f"{PODS}/web/log") == [code, reason, message or text.strip()]
    await testbed.node.quiet()


# --- conversations ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "node_path", "query"),
    [
        (
            "web/exec?command=sh&command=-c&command=echo+a%26b&stdin=true&stdout=1&stderr=false&tty=&container=main",
            f"/exec/{PROJECT}/web/main",
            [
                ("input", "1"),
                ("output", "1"),
                ("tty", "1"),
                ("command", "sh"),
                ("command", "-c"),
                ("command", "echo a&b"),
            ],
        ),
        ("web/attach?stdout=true&stderr=true", f"/attach/{PROJECT}/web/main", [("output", "1"), ("error", "1")]),
        ("web/portforward?ports=80&ports=81,82", f"/portForward/{PROJECT}/web", [("port", "80,81,82")]),
        ("web/portforward", f"/portForward/{PROJECT}/web", []),
    ],
)
async def test_streaming_request_reaches_the_node_with_path_and_parameters(
    testbed: ProxyTestbed, path: str, node_path: str, query: list[tuple[str, str]]
) -> None:
    await testbed.pod("web")
    headers = {"Connection": "Upgrade", "Upgrade": "other/1.0", "X-Stream-Protocol-Version": "v4.channel.k8s.io"}
    stream, given = await conversation(testbed, f"{PODS}/{path}", headers=headers)
    assert (given["Upgrade"], given["X-Stream-Protocol-Version"]) == ("other/1.0", "v4.channel.k8s.io")
    (request,) = testbed.node.requests
    assert (request.method, request.path, request.query) == ("POST", node_path, query)
    assert "kube-apiserver-kubelet-client" in request.caller
    stream.abort()
    await testbed.node.quiet()


@pytest.mark.parametrize("upgrade", ["SPDY/3.1", "websocket"])
async def test_upgraded_connection_passes_bytes_unchanged_both_ways(testbed: ProxyTestbed, upgrade: str) -> None:
    await testbed.pod("web")
    headers = {
        "Connection": "keep-alive, Upgrade", "Upgrade": upgrade, "Sec-WebSocket-Version": "13",
        "Sec-WebSocket-Key": "dGhlIHNhbXBsZSBub25jZQ==", "Sec-WebSocket-Protocol": "v5.channel.k8s.io",
    }  # fmt: skip
    stream, _ = await conversation(testbed, f"{PODS}/web/exec?command=cat", "GET", headers)
    request = testbed.node.requests[0]
    assert request.method == "GET"
    assert {name: request.headers[name] for name in headers if name != "Connection"} == {
        name: value for name, value in headers.items() if name != "Connection"
    }
    sent = os.urandom(16 << 20)

    async def send() -> None:
        for start in range(0, len(sent), 90_000):
            await stream.write(sent[start : start + 90_000])

    sending = asyncio.create_task(send())
    got = await exactly(stream, len(sent))
    await sending
    assert hashlib.sha256(got).digest() == hashlib.sha256(sent).digest()
    await stream.end()
    await testbed.node.quiet()


async def test_client_is_disconnected_when_the_node_disconnects(testbed: ProxyTestbed) -> None:
    await testbed.pod("web")
    stream, _ = await conversation(testbed, f"{PODS}/web/exec?command=cat")
    await stream.write(b"leave")
    assert await stream.read() == b""
    await testbed.node.quiet()


async def test_node_is_disconnected_when_the_client_disconnects(testbed: ProxyTestbed) -> None:
    await testbed.pod("web")
    stream, _ = await conversation(testbed, f"{PODS}/web/exec?command=cat")
    stream.abort()
    await testbed.node.quiet()


async def test_crashed_node_ends_the_streaming_connection(testbed: ProxyTestbed) -> None:
    await testbed.pod("web")
    stream, _ = await conversation(testbed, f"{PODS}/web/exec?command=cat")
    testbed.node.conversations[0].abort()
    try:
        assert await stream.read() == b""
    except ConnectionError:
        pass
    await testbed.node.quiet()


async def test_hundred_parallel_streaming_connections_leave_nothing(testbed: ProxyTestbed, server: ApiServer) -> None:
    await testbed.pod("web")
    process = psutil.Process(server.pid)
    warm, _ = await conversation(testbed, f"{PODS}/web/exec?command=cat")
    await warm.end()
    await testbed.node.quiet()
    files = process.num_fds()

    async def exchange_by_exec(number: int) -> None:
        stream, _ = await conversation(testbed, f"{PODS}/web/exec?command={number}")
        sent = os.urandom(100_000)
        await stream.write(sent)
        assert await exactly(stream, len(sent)) == sent
        await stream.end()

    async with asyncio.timeout(60):
        await asyncio.gather(*(exchange_by_exec(number) for number in range(100)))
    await testbed.node.quiet()
    await until(lambda: process.num_fds() <= files)


async def test_client_that_does_not_read_blocks_the_node_and_not_the_master(
    testbed: ProxyTestbed, server: ApiServer
) -> None:
    await testbed.pod("web")
    sent: list[int] = []

    async def log(http: web.Request) -> web.StreamResponse:
        answer = web.StreamResponse()
        await answer.prepare(http)
        while True:
            await answer.write(bytes(1 << 16))
            sent.append(1 << 16)

    testbed.node.answer = log
    process = psutil.Process(server.pid)
    before = process.memory_info().rss
    readers = [await testbed.session.get(f"{PODS}/web/log?follow=true", read_bufsize=1024) for _ in range(10)]
    settled = -1
    while settled != len(sent):
        settled = len(sent)
        async with testbed.session.get("/healthz") as answer:
            assert answer.status == 200
        await asyncio.wait([asyncio.ensure_future(asyncio.Event().wait())], timeout=0.3)
    assert process.memory_info().rss - before < 20 << 20
    for reader in readers:
        reader.close()
    await testbed.node.quiet()


async def test_stopping_master_ends_proxied_connections(tmp_path: Path) -> None:
    master = ApiServer(tmp_path)
    master.start()
    try:
        async with (
            Client(Kubeconfig.load(master.kubeconfig)) as client,
            proxy_testbed(master, UntypedClient(client), tmp_path) as testbed,
        ):
            await testbed.pod("web")

            async def log(http: web.Request) -> web.StreamResponse:
                answer = web.StreamResponse()
                await answer.prepare(http)
                await asyncio.Event().wait()
                return answer

            testbed.node.answer = log
            stream, _ = await conversation(testbed, f"{PODS}/web/exec?command=cat")
            reading = await testbed.session.get(f"{PODS}/web/log?follow=true")
            stopping = asyncio.create_task(asyncio.to_thread(master.stop))
            with contextlib.suppress(ConnectionError):
                assert await stream.read() == b""
            with contextlib.suppress(aiohttp.ClientError):
                await reading.read()
            assert await stopping == 0
            await testbed.node.quiet()
            reading.close()
    finally:
        assert "Traceback" not in master.log()


async def test_rejection_by_the_node_reaches_the_client_unchanged(testbed: ProxyTestbed) -> None:
    """A client that tries WebSocket first goes on with SPDY when an old node refuses."""
    await testbed.pod("web")

    async def refuse(http: web.Request) -> web.StreamResponse:
        headers = {"X-Accepted-Stream-Protocol-Versions": "v4.channel.k8s.io"}
        return web.Response(status=403, text="unable to upgrade", headers=headers)

    testbed.node.refusal = refuse
    async with testbed.session.get(
        f"{PODS}/web/exec?command=ls", headers={**UPGRADE, "Upgrade": "websocket"}
    ) as answer:
        assert (answer.status, await answer.text()) == (403, "unable to upgrade")
        assert answer.headers["X-Accepted-Stream-Protocol-Versions"] == "v4.channel.k8s.io"
    await testbed.node.quiet()


async def test_node_response_without_upgrade_is_an_error(testbed: ProxyTestbed) -> None:
    await testbed.pod("web")

    async def refuse(http: web.Request) -> web.StreamResponse:
        return web.Response(text="what do you want?")

    testbed.node.refusal = refuse
    message = "invalid upgrade response: status code 200"
    assert await refused(testbed, f"{PODS}/web/exec?command=ls", "POST", UPGRADE) == [500, "", message]
    await testbed.node.quiet()


@pytest.mark.parametrize(
    ("method", "path", "headers", "refusal"),
    [
        ("POST", "web/exec?command=ls", None, [400, "BadRequest", "Upgrade request required"]),
        ("POST", "none/exec?command=ls", UPGRADE, [404, "NotFound", 'pods "none" not found']),
        ("GET", "none/log", None, [404, "NotFound", 'pods "none" not found']),
        (
            "POST",
            "two/exec?command=ls",
            UPGRADE,
            [400, "BadRequest", "a container name must be specified for pod two, choose one of: [first a b]"],
        ),
        ("GET", "two/log?container=c", None, [400, "BadRequest", "container c is not valid for pod two"]),
        ("POST", "two/attach?container=c", UPGRADE, [400, "BadRequest", "container c is not valid for pod two"]),
        ("POST", "waits/exec?command=ls", UPGRADE, [400, "BadRequest", "pod waits does not have a host assigned"]),
        ("POST", "waits/portforward", UPGRADE, [400, "BadRequest", "pod waits does not have a host assigned"]),
        ("POST", "web/exec?command=ls&dryRun=All", UPGRADE, [400, "BadRequest", "dryRun is not supported"]),
        (
            "POST",
            "web/portforward?ports=x",
            UPGRADE,
            [400, "BadRequest", 'strconv.ParseInt: parsing "x": invalid syntax'],
        ),
    ],
)
async def test_invalid_streaming_requests_are_rejected(
    testbed: ProxyTestbed, method: str, path: str, headers: dict[str, str] | None, refusal: list[Any]
) -> None:
    await testbed.pod("web")
    await testbed.pod("two", "a", "b", initContainers=[{"name": "first", "image": "image"}])
    await testbed.pod("waits", node="")
    assert await refused(testbed, f"{PODS}/{path}", method, headers) == refusal
    assert testbed.node.requests == []


@pytest.mark.parametrize("path", ["web/exec/more", "web/%65xec", "web/prox%79", "web/log/more/still"])
async def test_malformed_subresource_paths_are_rejected(testbed: ProxyTestbed, path: str) -> None:
    await testbed.pod("web")
    url = yarl.URL(f"{testbed.url}{PODS}/{path}", encoded=True)
    async with testbed.session.get(url, headers=UPGRADE) as answer:
        assert (answer.status, (await answer.json())["reason"]) == (404, "NotFound")
    assert testbed.node.requests == []


async def test_trailing_slash_in_a_subresource_path_is_accepted(testbed: ProxyTestbed) -> None:
    await testbed.pod("web")
    stream, _ = await conversation(testbed, f"{PODS}/web/exec/?command=ls")
    stream.abort()


@pytest.mark.parametrize(
    ("method", "path"),
    [("POST", "web/log"), ("PUT", "web/exec"), ("DELETE", "web/attach"), ("PATCH", "web/portforward")],
)
async def test_unsupported_methods_on_subresources_are_rejected(testbed: ProxyTestbed, method: str, path: str) -> None:
    message = "the server does not allow this method on the requested resource"
    assert await refused(testbed, f"{PODS}/{path}", method) == [405, "MethodNotAllowed", message]


# --- nodes that cannot be reached -------------------------------------------------------------------------------------


async def test_unreachable_node_returns_an_error_status(testbed: ProxyTestbed) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken_port:
        port = taken_port.getsockname()[1]
    await testbed.register({"type": "InternalIP", "address": own_address()}, port=port)
    await testbed.pod("web")
    why = f"dial tcp {own_address()}:{port}: connect: connection refused"
    url = f"https://{own_address()}:{port}/containerLogs/{PROJECT}/web/main"
    assert await refused(testbed, f"{PODS}/web/log") == [500, "", f'Get "{url}": {why}']
    failed = [500, "", f"error dialing backend: {why}"]
    assert await refused(testbed, f"{PODS}/web/exec?command=ls", "POST", UPGRADE) == failed


async def test_pod_on_an_unknown_node_returns_an_error_status(testbed: ProxyTestbed) -> None:
    await testbed.pod("web")
    await testbed.api_client.request("DELETE", f"/api/v1/nodes/{NODE}")
    removed = [404, "NotFound", f'nodes "{NODE}" not found']
    assert await refused(testbed, f"{PODS}/web/log") == removed
    assert await refused(testbed, f"{PODS}/web/attach", "POST", UPGRADE) == removed


async def test_node_without_an_address_returns_an_error_status(testbed: ProxyTestbed) -> None:
    await testbed.register({"type": "Hostname", "address": ""})
    await testbed.pod("web")
    assert await refused(testbed, f"{PODS}/web/log") == [500, "", "no preferred addresses found; known addresses: ['']"]


async def test_kubelet_address_type_preference_is_followed(testbed: ProxyTestbed) -> None:
    await testbed.register(
        {"type": "Hostname", "address": "no.such.host.invalid"}, {"type": "InternalIP", "address": own_address()}
    )
    await testbed.pod("web")
    async with testbed.session.get(f"{PODS}/web/log") as answer:
        assert answer.status == 200
    await testbed.register(
        {"type": "ExternalIP", "address": "192.0.2.1"}, {"type": "Hostname", "address": own_address()}
    )
    async with testbed.session.get(f"{PODS}/web/log") as answer:
        assert answer.status == 200


@pytest.mark.parametrize(
    ("authority", "known_as", "known_at", "reason"),
    [
        (True, f"system:node:{NODE}", "", ""),
        (True, "system:node:n2", "", f"its common name is 'system:node:n2', not 'system:node:{NODE}'"),
        (True, f"system:node:{NODE}", "192.0.2.1", "IP address mismatch, certificate is not valid for "),
        (False, f"system:node:{NODE}", "", "unable to get local issuer certificate"),
    ],
    ids=["right", "name of another node", "another address", "another authority"],
)
async def test_kubelet_serving_certificate_is_verified(
    tmp_path: Path, *, authority: bool, known_as: str, known_at: str, reason: str
) -> None:
    master = ApiServer(tmp_path)
    master.start()
    try:
        async with (
            Client(Kubeconfig.load(master.kubeconfig)) as client,
            proxy_testbed(
                master, UntypedClient(client), tmp_path, trusted=authority, known_as=known_as, known_at=known_at
            ) as testbed,
        ):
            await testbed.pod("web")
            for query in ("", "?insecureSkipTLSVerifyBackend=true"):
                async with testbed.session.get(f"{PODS}/web/log{query}") as answer:
                    output = await answer.text()
                    assert answer.status == (200 if not reason or query else 500), output
                assert not reason or query or ("tls: failed to verify certificate: " in output and reason in output)
            if not reason:
                stream, _ = await conversation(testbed, f"{PODS}/web/exec?command=cat")
                stream.abort()
            else:
                _, _, text = await refused(testbed, f"{PODS}/web/exec?command=cat", "POST", UPGRADE)
                assert text.startswith("error dialing backend: tls: failed to verify certificate: ")
                assert reason in text
            await testbed.node.quiet()
    finally:
        assert master.stop() == 0


# --- rights -----------------------------------------------------------------------------------------------------------


async def test_discovery_lists_streaming_subresources(testbed: ProxyTestbed) -> None:
    listed = await testbed.api_client.request("GET", "/api/v1")
    rows = {resource["name"]: (resource["kind"], resource["verbs"]) for resource in listed["resources"]}
    both, every = ["create", "get"], ["create", "delete", "get", "patch", "update"]
    assert {name: rows[name] for name in rows if name.split("/")[-1] in
            ("log", "exec", "attach", "portforward", "proxy")} == {
        "pods/log": ("Pod", ["get"]),
        "pods/exec": ("PodExecOptions", both),
        "pods/attach": ("PodAttachOptions", both),
        "pods/portforward": ("PodPortForwardOptions", both),
        "pods/proxy": ("PodProxyOptions", every),
        "services/proxy": ("ServiceProxyOptions", every),
        "nodes/proxy": ("NodeProxyOptions", every),
    }  # fmt: skip


async def test_streaming_subresources_are_authorized_by_verb(testbed: ProxyTestbed) -> None:
    await testbed.pod("web")
    for name, role in (("viewer", "view"), ("editor", "edit")):
        await testbed.api_client.request(
            "DELETE", f"/apis/rbac.authorization.k8s.io/v1/namespaces/{PROJECT}/rolebindings/{name}"
        )
        await testbed.api_client.create(
            f"/apis/rbac.authorization.k8s.io/v1/namespaces/{PROJECT}/rolebindings",
            name=name,
            subjects=[{"kind": "User", "name": name, "apiGroup": "rbac.authorization.k8s.io"}],
            roleRef={"kind": "ClusterRole", "name": role, "apiGroup": "rbac.authorization.k8s.io"},
        )

    def as_user(name: str) -> dict[str, str]:
        return {**UPGRADE, "Impersonate-User": name}

    async with testbed.session.get(f"{PODS}/web/log", headers={"Impersonate-User": "viewer"}) as answer:
        assert answer.status == 200
    assert "Impersonate-User" not in testbed.node.requests[0].headers
    exec_ = f"{PODS}/web/exec?command=ls"
    cannot = 'pods "web" is forbidden: User "viewer" cannot create resource "pods/exec" in API group ""'
    assert await refused(testbed, exec_, "POST", as_user("viewer")) == [
        403, "Forbidden", f'{cannot} in the namespace "{PROJECT}"',
    ]  # fmt: skip
    code, _, message = await refused(testbed, exec_, "GET", as_user("viewer"))
    assert code == 403
    assert 'cannot get resource "pods/exec"' in message
    await testbed.api_client.create(
        f"/apis/rbac.authorization.k8s.io/v1/namespaces/{PROJECT}/roles",
        name="reader",
        rules=[{"apiGroups": [""], "resources": ["pods/exec", "pods/attach", "pods/portforward"], "verbs": ["get"]}],
    )
    await testbed.api_client.create(
        f"/apis/rbac.authorization.k8s.io/v1/namespaces/{PROJECT}/rolebindings",
        name="reader",
        subjects=[{"kind": "User", "name": "reader", "apiGroup": "rbac.authorization.k8s.io"}],
        roleRef={"kind": "Role", "name": "reader", "apiGroup": "rbac.authorization.k8s.io"},
    )
    for subresource in ("exec?command=ls", "attach", "portforward?ports=80"):
        code, _, message = await refused(testbed, f"{PODS}/web/{subresource}", "GET", as_user("reader"))
        assert code == 403
        assert 'User "reader" cannot create resource "pods/' in message
    stream, _ = await conversation(testbed, exec_, headers=as_user("editor"))
    assert not [name for name in testbed.node.requests[-1].headers if name.lower().startswith("impersonate")]
    stream.abort()
    code, _, message = await refused(testbed, f"/api/v1/nodes/{NODE}/proxy/pods", "GET", as_user("editor"))
    assert code == 403
    assert 'cannot get resource "nodes/proxy" in API group "" at the cluster scope' in message
    code, _, _ = await refused(testbed, f"{PODS}/web/log", headers={"Impersonate-User": f"system:node:{NODE}",
                                                                   "Impersonate-Group": "system:nodes"})  # fmt: skip
    assert code == 403
    await testbed.node.quiet()
