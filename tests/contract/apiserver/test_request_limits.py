"""Limits on clients of the server: large, slow, numerous and malformed requests."""

from __future__ import annotations

import asyncio
import base64
import datetime
import re
import socket
import ssl
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import cast

import msgspec
import psutil
import pytest

from api.client.client import Client
from api.client.kubeconfig import Kubeconfig
from api.codec.limits import MAX_VALUES
from api.validation.pod_limits import MAX_CONTAINERS
from master.admission.chain import AdmissionChain
from master.audit.policy import DEFAULT_POLICY
from master.auth import pki, service_account_tokens
from master.auth.authorization import Authorizer
from master.auth.oauth_tokens import OAuthTokenAuthenticator
from master.config import MasterConfig
from master.oauth.session import SessionSealer
from master.registry.aggregated_apis import AggregatedAPIs
from master.registry.creation import ObjectCreation
from master.registry.custom_kinds import CustomKinds
from master.registry.metrics import MetricsReader
from master.registry.projects import load_policy
from master.resources.scheme import STORED_TYPES, Scheme
from master.server.auditing import Auditor
from master.server.handlers import BODY_TIMEOUT_SECONDS, MAX_BODY_BYTES
from master.server.proxy.aggregated_proxy import AggregatedProxy
from master.server.proxy.extension_client import ExtensionClient
from master.server.proxy.kubelet_client import KubeletClient, KubeletTLS, client_files
from master.server.server import Server, ServerDependencies, tls_context
from master.server.watch import MAX_QUEUED_BYTES
from master.storage.sqlite import SQLiteStorage
from reconcile import listener
from reconcile.connection_limiter import Limits
from reconcile.listener import MAX_PATH_PARTS, MAX_REQUEST_LINE_BYTES
from tests.testbed.apiserver.process import ApiServer
from tests.testbed.apiserver.untyped_client import UntypedClient
from tests.testbed.silent_connections import silent_connections

CROWD = 200
DEADLINE_SECONDS = 30.0
CONFIG_MAPS = "/api/v1/namespaces/default/configmaps"
HOST = "Host: localhost\r\n"
X_MANY = "X-Many: a\r\n" * 1_000


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApiServer]:
    api_server = ApiServer(tmp_path_factory.mktemp("limits"))
    api_server.start()
    yield api_server
    log = api_server.log()
    assert api_server.stop() == 0
    assert "Traceback" not in log


@pytest.fixture
async def client(server: ApiServer) -> AsyncIterator[Client]:
    async with Client(Kubeconfig.load(server.kubeconfig)) as new_client:
        yield new_client


class Raw:
    """A TLS connection with the administrator's certificate, or without one."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    def send(self, text: str | bytes) -> None:
        self._writer.write(text.encode() if isinstance(text, str) else text)

    async def answer(self) -> bytes:
        """Return all data until the other side closes."""
        async with asyncio.timeout(DEADLINE_SECONDS):
            try:
                return await self._reader.read()
            except ConnectionError:
                return b""

    async def until(self, mark: bytes) -> None:
        """Read on until that has come."""
        async with asyncio.timeout(DEADLINE_SECONDS):
            last = b""
            while mark not in last:
                more = await self._reader.read(1 << 20)
                assert more
                last = last[-len(mark) :] + more

    async def line(self) -> bytes:
        async with asyncio.timeout(DEADLINE_SECONDS):
            return await self._reader.readline()


@asynccontextmanager
async def raw(kubeconfig: Kubeconfig, *, anonymous: bool = False, source: str = "127.0.0.1") -> AsyncIterator[Raw]:
    context = kubeconfig.ssl_context()
    if anonymous:
        context = ssl.create_default_context(cadata=kubeconfig.ca.decode())
    host, _, port = kubeconfig.server.removeprefix("https://").partition(":")
    reader, writer = await asyncio.open_connection(host, int(port), ssl=context, local_addr=(source, 0))
    try:
        yield Raw(reader, writer)
    finally:
        writer.transport.abort()


@asynccontextmanager
async def own_server(
    root: Path, limits: Limits, body_seconds: float = BODY_TIMEOUT_SECONDS
) -> AsyncIterator[Kubeconfig]:
    """Run a server with these limits in this process."""
    now = datetime.datetime.now(datetime.UTC)
    authority, tokens = pki.authority(root / "pki", now), service_account_tokens.load_token_signer(root / "pki")
    store = await SQLiteStorage.open(root / "store.db", STORED_TYPES)
    trust = KubeletTLS.load(client_files(authority, root / "pki", now), root / "pki" / "ca.crt", verify=True)
    nodes = KubeletClient(store, trust, lambda: ("127.0.0.1", 0))
    server = Server(
        ServerDependencies(
            store=store,
            tokens=tokens,
            oauth_tokens=OAuthTokenAuthenticator(store, lambda: now),
            identity_providers=(),
            session_sealer=SessionSealer(bytes(32)),
            service_account_grant_method="prompt",
            authorities=authority.trusted,
            creation=ObjectCreation(AdmissionChain(()), lambda: now, authority.pem.decode()),
            custom_kinds=CustomKinds(store, Scheme()),
            authorizer=Authorizer(store),
            ready=(),
            address="127.0.0.1",
            public_url=str,
            nodes=nodes,
            metrics_reader=MetricsReader(store, nodes, lambda: now),
            project_requests=load_policy(MasterConfig()),
            auditor=Auditor(None, DEFAULT_POLICY, lambda: now),
            aggregated_apis=(apis := AggregatedAPIs(store)),
            aggregated_proxy=AggregatedProxy(apis, ExtensionClient(store, nodes), root),
        ),
        limits,
        body_seconds,
    )
    pem = pki.server_certificate(authority, root / "pki", ["127.0.0.1"], now)
    await server.start("127.0.0.1", 0, tls_context(pem, root / "pki" / "ca.crt"))
    admin = pki.client_identity(authority, "system:admin", ("system:masters",), now)
    try:
        yield Kubeconfig(f"https://127.0.0.1:{server.port}", authority.pem, admin.certificate, admin.key)
    finally:
        await server.stop()
        await store.close()


# --- too much ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("more", "code"), [(0, 201), (1, 413)])
async def test_body_of_three_mebibytes_is_accepted_and_a_larger_one_rejected(
    server: ApiServer, more: int, code: int
) -> None:
    document = b'{"metadata":{"name":"large"}}'
    body = document + b" " * (MAX_BODY_BYTES - len(document) + more)
    async with raw(Kubeconfig.load(server.kubeconfig)) as connection:
        connection.send(f"POST {CONFIG_MAPS}?dryRun=All HTTP/1.1\r\n{HOST}Content-Length: {len(body)}\r\n\r\n")
        connection.send(body)
        assert (await connection.line()).startswith(f"HTTP/1.1 {code} ".encode())


async def test_pod_with_too_many_containers_is_rejected_before_defaults_and_admission(client: Client) -> None:
    untyped, path = UntypedClient(client), "/api/v1/namespaces/default/pods"
    for number in (MAX_CONTAINERS + 1, 20_000):
        document = {"metadata": {"name": "crowded"}, "spec": {"containers": [{}] * number}}
        answer = await untyped.request("POST", path, document)
        assert (answer["code"], len(answer["causes"])) == (422, 1)
        assert answer["causes"][0] == f"Too many: {number}: must have at most {MAX_CONTAINERS} items"
    containers = [{"name": f"c{number}", "image": "i"} for number in range(MAX_CONTAINERS)]
    await untyped.create(path, name="crowded", spec={"containers": containers})
    assert (await untyped.request("DELETE", f"{path}/crowded"))["kind"] == "Pod"


@pytest.mark.filterwarnings("ignore:Sending a large body")
async def test_patches_do_not_make_an_object_larger_than_four_mebibytes(client: Client) -> None:
    untyped, path = UntypedClient(client), "/apis/apps/v1/namespaces/default/deployments"
    labels, args = {"app": "grows"}, ["x" * (MAX_BODY_BYTES - 1_000)]
    template = {"metadata": {"labels": labels}, "spec": {"containers": [{"name": "c", "image": "i", "args": args}]}}
    spec = {"replicas": 0, "selector": {"matchLabels": labels}, "template": template}
    await untyped.create(path, name="grows", spec=spec)
    answer = await untyped.request(
        "PATCH", f"{path}/grows", {"spec": {"template": {"metadata": {"labels": {"a": "b"}}}}}
    )
    assert answer["kind"] == "Deployment"
    second = {"spec": {"template": {"spec": {"initContainers": [{"name": "i", "image": "i", "args": args}]}}}}
    answer = await untyped.request("PATCH", f"{path}/grows", second)
    assert (answer["code"], answer["reason"]) == (413, "RequestEntityTooLarge")
    assert "4194304 are accepted" in answer["message"]
    assert (await untyped.request("DELETE", f"{path}/grows"))["status"] == "Success"


async def test_patches_do_not_give_an_object_more_values_than_a_body_may_have(client: Client) -> None:
    untyped, half = UntypedClient(client), MAX_VALUES // 2
    await untyped.create(CONFIG_MAPS, name="values", data={f"a{number}": "" for number in range(half)})
    answer = await untyped.request(
        "PATCH", f"{CONFIG_MAPS}/values", {"data": {f"b{number}": "" for number in range(half)}}
    )
    assert (answer["code"], answer["reason"]) == (413, "RequestEntityTooLarge")
    assert f"{MAX_VALUES} are accepted" in answer["message"]
    answer = await untyped.request("PATCH", f"{CONFIG_MAPS}/values", {"data": {"b": ""}})
    assert len(answer["data"]) == half + 1
    assert (await untyped.request("DELETE", f"{CONFIG_MAPS}/values"))["status"] == "Success"


@pytest.mark.parametrize(
    "head",
    [
        f"GET /api/v1/pods?labelSelector={'a' * (MAX_REQUEST_LINE_BYTES + 1)} HTTP/1.1\r\n{HOST}\r\n",
        f"GET /api/v1/pods HTTP/1.1\r\n{HOST}X-Long: {'a' * 100_000}\r\n\r\n",
        f"GET /api/v1/pods HTTP/1.1\r\n{HOST}{X_MANY}\r\n",
    ],
    ids=["query", "header", "headers"],
)
async def test_oversized_request_head_is_rejected(server: ApiServer, head: str) -> None:
    async with raw(Kubeconfig.load(server.kubeconfig)) as connection:
        connection.send(head)
        assert b" 400 " in (await connection.line())


@pytest.mark.parametrize(("parts", "code"), [(MAX_PATH_PARTS, 403), (MAX_PATH_PARTS + 1, 414), (60_000, 414)])
async def test_path_with_many_parts_is_rejected_before_it_is_routed(server: ApiServer, parts: int, code: int) -> None:
    async with raw(Kubeconfig.load(server.kubeconfig), anonymous=True) as connection:
        connection.send(f"GET {'/a' * parts} HTTP/1.1\r\n{HOST}\r\n")
        assert (await connection.line()).startswith(f"HTTP/1.1 {code} ".encode())


async def test_selector_of_the_maximum_head_size_is_accepted(client: Client) -> None:
    names = ",".join(f"name-{number:04}" for number in range(9000))
    await client.request("GET", CONFIG_MAPS, query={"labelSelector": f"a in ({names})"})


# --- what is no HTTP, or an old one -----------------------------------------------------------------------------------


NOT_UTF8, DEEP = (base64.urlsafe_b64encode(data).decode().rstrip("=") for data in (b'"\xff"', b'{"x":' + b"[" * 5000))


MALFORMED = (
    b"\x00\x01\x02\x03" * 100,
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
    b"GET\r\n\r\n",
    b"GET / HTTP/9.9\r\nHost: a\r\n\r\n",
    b"GET  /  HTTP/1.1\r\nHost: a\r\n\r\n",
    b"G\xc3\x84T / HTTP/1.1\r\nHost: a\r\n\r\n",
    b"GET /api/v1/pods HTTP/1.1\r\nHost a\r\n\r\n",
    b"GET /api/v1/pods HTTP/1.1\r\nHost: a\r\nContent-Length: -1\r\n\r\n",
    b"GET /api/v1/pods HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n",
    b"POST /api/v1/pods HTTP/1.1\r\nHost: a\r\nContent-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\nabcd",
    b"POST " + CONFIG_MAPS.encode() + b" HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\nnot-a-number\r\n",
    b"POST "
    + CONFIG_MAPS.encode()
    + b" HTTP/1.1\r\nHost: a\r\nContent-Encoding: gzip\r\nContent-Length: 4\r\n\r\nabcd",
    b"POST " + CONFIG_MAPS.encode() + b' HTTP/1.1\r\nHost: a\r\nContent-Length: 14\r\n\r\n{"metadat\xff": {',
    b"POST " + CONFIG_MAPS.encode() + b" HTTP/1.1\r\nHost: a\r\nContent-Length: 9000\r\n\r\n" + b"[" * 9000,
    f"GET {CONFIG_MAPS}?continue={NOT_UTF8} HTTP/1.1\r\nHost: a\r\n\r\n".encode(),
    f"GET {CONFIG_MAPS}?continue={DEEP} HTTP/1.1\r\nHost: a\r\n\r\n".encode(),
    b"GET /api/v1/pods?limit=%zz&watch=%ff HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n",
    b"GET /%00/%ff/../..//api HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n",
    b"GET http://[::1 HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n",
    b"GET /api/v1/pods HTTP/1.1\r\nHost: a\r\nUpgrade: h2c\r\nConnection: Upgrade, close\r\n\r\n",
    b"CONNECT /api/v1/pods HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n",
)


@pytest.mark.parametrize("request_bytes", MALFORMED)
async def test_invalid_http_is_rejected_and_the_server_continues(
    server: ApiServer, client: Client, request_bytes: bytes
) -> None:
    async with raw(Kubeconfig.load(server.kubeconfig)) as connection:
        connection.send(request_bytes)
        connection.send(b"\r\n\r\n")
        assert (await connection.line())[9:10] in (b"", b"2", b"4")
    await client.request("GET", CONFIG_MAPS)


async def test_pipelined_requests_are_answered_in_order(server: ApiServer) -> None:
    async with raw(Kubeconfig.load(server.kubeconfig)) as connection:
        connection.send(f"GET /healthz HTTP/1.1\r\n{HOST}\r\nGET /no/such HTTP/1.1\r\n{HOST}\r\n")
        connection.send(f"GET /version HTTP/1.1\r\n{HOST}Connection: close\r\n\r\n")
        answer = await connection.answer()
    assert re.findall(rb"HTTP/1.1 (\d+)", answer) == [b"200", b"404", b"200"]


async def test_http_1_0_clients_are_answered_and_may_watch(server: ApiServer) -> None:
    async with raw(Kubeconfig.load(server.kubeconfig)) as connection:
        connection.send("GET /api/v1/namespaces HTTP/1.0\r\n\r\n")
        head, _, body = (await connection.answer()).partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.0 200 ")
        assert msgspec.json.decode(body)["kind"] == "NamespaceList"
    async with raw(Kubeconfig.load(server.kubeconfig)) as connection:
        connection.send("GET /api/v1/namespaces?watch=1&timeoutSeconds=1 HTTP/1.0\r\n\r\n")
        head, _, body = (await connection.answer()).partition(b"\r\n\r\n")
        assert b"chunked" not in head.lower()
        assert {msgspec.json.decode(line)["type"] for line in body.splitlines()} == {"ADDED"}


async def test_head_request_has_no_body(server: ApiServer) -> None:
    for path, code in (("/api/v1/namespaces", 200), ("/api/v1/namespaces?watch=1", 405), ("/version", 200)):
        async with raw(Kubeconfig.load(server.kubeconfig)) as connection:
            connection.send(f"HEAD {path} HTTP/1.1\r\n{HOST}Connection: close\r\n\r\n")
            head, _, body = (await connection.answer()).partition(b"\r\n\r\n")
        assert head.startswith(f"HTTP/1.1 {code} ".encode())
        assert body == b""


# --- too slowly -------------------------------------------------------------------------------------------------------


SLOW = {
    "head": "GET /api/v1/pods HTTP/1.1\r\nHost: localhost\r\nX-Slow: ",
    "body": f"POST {CONFIG_MAPS} HTTP/1.1\r\n{HOST}Content-Length: 3000000\r\n\r\n" + "{" * 100,
    "nothing": "",
}


@pytest.mark.parametrize("kind", [*SLOW, "handshake"])
async def test_slow_clients_do_not_delay_others(server: ApiServer, client: Client, kind: str) -> None:
    kubeconfig = Kubeconfig.load(server.kubeconfig)
    before = _resident(server)
    connections = [await _slow(kubeconfig, kind) for _ in range(CROWD)]
    try:
        for _ in range(20):
            await client.request("GET", CONFIG_MAPS)
        assert _resident(server) - before < CROWD * 200_000
    finally:
        for writer in connections:
            writer.transport.abort()


async def _slow(kubeconfig: Kubeconfig, kind: str) -> asyncio.StreamWriter:
    host, _, port = kubeconfig.server.removeprefix("https://").partition(":")
    context = None if kind == "handshake" else kubeconfig.ssl_context()
    _, writer = await asyncio.open_connection(host, int(port), ssl=context)
    writer.write(SLOW.get(kind, "").encode())
    return writer


def _resident(server: ApiServer) -> int:
    return psutil.Process(server.pid).memory_info().rss


async def test_handshakes_that_do_not_end_delay_others_by_one_turn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While 40 clients of one address say hello and nothing more, one of another address is served."""
    monkeypatch.setattr(listener, "MAX_HANDSHAKES", 1)
    monkeypatch.setattr(listener, "SHORTEST_TURN_SECONDS", 0.2)
    monkeypatch.setattr(listener, "LONGEST_TURN_SECONDS", 0.2)
    async with own_server(tmp_path, Limits()) as kubeconfig, AsyncExitStack() as stack:
        host, _, port = kubeconfig.server.removeprefix("https://").partition(":")
        hello = ssl.MemoryBIO()
        with pytest.raises(ssl.SSLWantReadError):
            ssl.create_default_context().wrap_bio(ssl.MemoryBIO(), hello, server_hostname="localhost").do_handshake()
        data, answers = hello.read(), list[asyncio.Task[bytes]]()
        stack.push_async_callback(lambda: asyncio.gather(*answers, return_exceptions=True))
        for _ in range(40):
            reader, writer = await asyncio.open_connection(host, int(port), local_addr=("127.0.0.2", 0))
            stack.callback(lambda writer: writer.transport.abort(), writer)  # Without a reference, it closes itself.
            writer.write(data)
            answers.append(asyncio.create_task(reader.read(1)))
        await asyncio.wait(answers, return_when=asyncio.FIRST_COMPLETED)
        assert await _answers(kubeconfig, "127.0.0.3")
        assert not all(answer.done() for answer in answers)


async def test_clients_that_are_too_slow_are_disconnected(tmp_path: Path) -> None:
    limits = Limits(handshake_seconds=0.2, idle_seconds=0.3)
    async with own_server(tmp_path, limits, body_seconds=0.2) as kubeconfig:
        host, _, port = kubeconfig.server.removeprefix("https://").partition(":")
        async with raw(kubeconfig) as head, raw(kubeconfig) as body, raw(kubeconfig) as nothing:
            head.send(SLOW["head"])
            body.send(SLOW["body"])
            shaking, writer = await asyncio.open_connection(host, int(port))
            assert await head.answer() == b""
            assert await nothing.answer() == b""
            assert (await body.line()).startswith(b"HTTP/1.1 408 ")
            async with asyncio.timeout(DEADLINE_SECONDS):
                assert await shaking.read() == b""
            writer.close()
        async with Client(kubeconfig) as client:
            await client.request("GET", CONFIG_MAPS)


# --- too many ---------------------------------------------------------------------------------------------------------


GET_HEALTH = f"GET /healthz HTTP/1.1\r\n{HOST}\r\n"


async def test_connection_over_the_limit_is_rejected(tmp_path: Path) -> None:
    async with own_server(tmp_path, Limits(authenticated=3, unauthenticated=4, per_source=4)) as kubeconfig:
        async with raw(kubeconfig) as first, raw(kubeconfig) as second, raw(kubeconfig) as third:
            for connection in (first, second, third):
                connection.send(GET_HEALTH)
                assert await connection.line() == b"HTTP/1.1 200 OK\r\n"
            async with raw(kubeconfig) as fourth:
                fourth.send(f"GET /healthz HTTP/1.1\r\n{HOST}Connection: close\r\n\r\n")
                head, _, body = (await fourth.answer()).partition(b"\r\n\r\n")
            assert head.startswith(b"HTTP/1.1 429 ")
            assert b"\r\nRetry-After: 1" in head
            status = msgspec.json.decode(body)
            assert (status["reason"], status["message"]) == (
                "TooManyRequests",
                "too many requests, please try again later.",
            )
        async with asyncio.timeout(DEADLINE_SECONDS):
            while not await _answers(kubeconfig):
                pass


async def _answers(kubeconfig: Kubeconfig, source: str = "127.0.0.1", *, anonymous: bool = False) -> bool:
    """Return whether a request from this address is served; a user without rights gets 403."""
    async with raw(kubeconfig, source=source, anonymous=anonymous) as connection:
        return await _get(connection) == (403 if anonymous else 200)


async def _get(connection: Raw) -> int:
    """Send a request, and return the code of the response. The connection stays open."""
    connection.send(GET_HEALTH)
    return int((await connection.line()).split()[1])


async def test_connections_of_one_address_leave_room_for_others_before_tls_begins(tmp_path: Path) -> None:
    limits = Limits(authenticated=10, unauthenticated=8, per_source=4)
    async with own_server(tmp_path, limits) as kubeconfig:
        async with silent_connections(kubeconfig.server, ["127.0.0.2"] * 40) as attackers:
            await attackers.wait_until_open(limits.per_source)
            assert await _answers(kubeconfig, "127.0.0.3")
            assert await _answers(kubeconfig, "127.0.0.4", anonymous=True)
        assert await _rejected(kubeconfig) == {"per_source": 40 - limits.per_source}


async def test_a_known_caller_is_served_while_others_use_up_their_room(tmp_path: Path) -> None:
    limits = Limits(authenticated=10, unauthenticated=8, per_source=4)
    async with own_server(tmp_path, limits) as kubeconfig:
        assert await _answers(kubeconfig)
        sources = [f"127.0.0.{number}" for number in range(2, 42)]
        async with silent_connections(kubeconfig.server, sources) as attackers:
            await attackers.wait_until_open(limits.unauthenticated)
            for _ in range(3):
                assert await _answers(kubeconfig)
        assert await _rejected(kubeconfig) == {"unauthenticated": 40 - limits.unauthenticated}


async def test_a_user_with_too_many_connections_leaves_room_for_others(tmp_path: Path) -> None:
    limits = Limits(authenticated=6, per_user=3, unauthenticated=8, per_source=8)
    async with own_server(tmp_path, limits) as kubeconfig, AsyncExitStack() as stack:
        alice, bob = (_kubeconfig_of(kubeconfig, tmp_path, name) for name in ("alice", "bob"))
        for code in (403, 403, 403, 429):
            assert await _get(await stack.enter_async_context(raw(alice))) == code
        assert await _get(await stack.enter_async_context(raw(bob))) == 403
        administrators = [await stack.enter_async_context(raw(kubeconfig)) for _ in range(limits.authenticated)]
        assert {await _get(connection) for connection in administrators} == {200}
        assert await _get(await stack.enter_async_context(raw(bob))) == 429


def _kubeconfig_of(kubeconfig: Kubeconfig, root: Path, user: str) -> Kubeconfig:
    now = datetime.datetime.now(datetime.UTC)
    identity = pki.client_identity(pki.authority(root / "pki", now), user, (), now)
    return replace(kubeconfig, certificate=identity.certificate, key=identity.key)


async def _rejected(kubeconfig: Kubeconfig) -> dict[str, int]:
    """Return the number of rejected connections by reason."""
    async with raw(kubeconfig) as connection:
        connection.send(f"GET /metrics HTTP/1.1\r\n{HOST}Connection: close\r\n\r\n")
        answer = (await connection.answer()).decode()
    counters = re.findall(r'^podlane_rejected_connections_total{reason="(\w+)"} (\d+)$', answer, re.MULTILINE)
    return {reason: int(count) for reason, count in counters if count != "0"}


async def test_unread_watches_are_closed_and_delay_no_other_client(server: ApiServer, client: Client) -> None:
    """The watches share their pending events, so many of them cost little more than one."""
    kubeconfig, slow, size = Kubeconfig.load(server.kubeconfig), 30, 400_000
    path, before = f"{CONFIG_MAPS}?watch=1&timeoutSeconds=60", _resident(server)
    host, _, port = kubeconfig.server.removeprefix("https://").partition(":")
    unread: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = []
    async with raw(kubeconfig) as quick:
        for _ in range(slow):
            pair = await asyncio.open_connection(host, int(port), ssl=kubeconfig.ssl_context())
            pair[1].write(f"GET {path} HTTP/1.1\r\n{HOST}\r\n".encode())
            assert await pair[0].readuntil(b"\r\n\r\n")
            cast("asyncio.Transport", pair[1].transport).pause_reading()
            unread.append(pair)
        quick.send(f"GET {path} HTTP/1.1\r\n{HOST}\r\n")
        writes = 3 * MAX_QUEUED_BYTES // size
        for number in range(writes):
            document = {"metadata": {"name": f"big-{number}"}, "data": {"filler": "a" * size}}
            await client.request("POST", CONFIG_MAPS, msgspec.json.encode(document))
            await quick.until(f'"big-{number}"'.encode())
        grown = _resident(server) - before
    for reader, writer in unread:
        cast("asyncio.Transport", writer.transport).resume_reading()
        received = await Raw(reader, writer).answer()
        assert received.count(b'"type":"ADDED"') < writes
        assert b'"big-0"' in received
        writer.transport.abort()
    await client.request("DELETE", CONFIG_MAPS)
    assert grown < slow * MAX_QUEUED_BYTES * 0.6, "each has a copy of its own"


async def test_a_large_object_is_encrypted_in_slices_for_watches_that_are_not_read(
    server: ApiServer, client: Client
) -> None:
    kubeconfig, watches, size = Kubeconfig.load(server.kubeconfig), 150, 900_000
    path = f"{CONFIG_MAPS}?watch=1&timeoutSeconds=20&fieldSelector=metadata.name=sliced"
    host, _, port = kubeconfig.server.removeprefix("https://").partition(":")
    unread: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = []
    context = kubeconfig.ssl_context()
    for _ in range(watches):
        connected = socket.socket()
        connected.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connected.connect((host, int(port)))
        pair = await asyncio.open_connection(sock=connected, ssl=context, server_hostname=host)
        pair[1].write(f"GET {path} HTTP/1.1\r\n{HOST}Connection: close\r\n\r\n".encode())
        assert await pair[0].readuntil(b"\r\n\r\n")
        cast("asyncio.Transport", pair[1].transport).pause_reading()
        unread.append(pair)
    before = _resident(server)
    document = {"metadata": {"name": "sliced"}, "data": {"filler": "a" * size}}
    for _ in range(3):
        await client.request("POST", CONFIG_MAPS, msgspec.json.encode(document))
        await client.request("DELETE", f"{CONFIG_MAPS}/sliced")
    assert _resident(server) - before < watches * size * 0.6, "each has a copy of its own"
    await asyncio.sleep(21)  # The watches have ended, in the middle of an object.
    for number, (reader, writer) in enumerate(unread):
        cast("asyncio.Transport", writer.transport).resume_reading()
        if number < 5:
            received = await Raw(reader, writer).answer()
            assert not received.endswith(b"0\r\n\r\n"), "the end of the response lies in a chunk"
        writer.transport.abort()
