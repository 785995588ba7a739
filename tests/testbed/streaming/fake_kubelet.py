"""The kubelet API of a node over real TLS, which records the requests of the master."""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import socket
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import psutil
from aiohttp import web
from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec
from multidict import MultiDict

from api.client.kubeconfig import Kubeconfig
from api.core.certificates import SERVER_USAGES
from api.pki import keys
from api.pki.pem import Subject
from master.auth import pki
from streams.connection import Connection
from streams.spdy.session import Session, SpdyStream
from streams.splice import splice
from streams.upgrade import UpgradeResponse
from tests.testbed.apiserver.process import ApiServer
from tests.testbed.apiserver.untyped_client import UntypedClient
from tests.testbed.tls_connector import tls_connector

NODE, PROJECT = "n1", "red"
PODS = f"/api/v1/namespaces/{PROJECT}/pods"
SECONDS = 20.0


def cluster_ca(server: ApiServer) -> pki.Authority:
    """That of a master which runs."""
    directory = server.root / "state" / "pki"
    key = serialization.load_pem_private_key((directory / "ca.key").read_bytes(), None)
    assert isinstance(key, ec.EllipticCurvePrivateKey)
    return pki.Authority(key, x509.load_pem_x509_certificate((directory / "ca.crt").read_bytes()))


@dataclass(frozen=True)
class ReceivedRequest:
    """A request that came."""

    method: str
    path: str
    query: list[tuple[str, str]]
    headers: MultiDict[str]
    caller: str
    body: bytes = b""


Answer = Callable[[web.Request], Awaitable[web.StreamResponse]]


@dataclass
class FakeKubelet:
    """A fake kubelet. `answer` responds to requests other than upgrades. `upgrades` is True if it accepts upgrades."""

    port: int = 0
    requests: list[ReceivedRequest] = field(default_factory=list)
    conversations: list[Connection] = field(default_factory=list)
    answer: Answer | None = None
    refusal: Answer | None = None
    runner: web.AppRunner | None = None

    @property
    def connections(self) -> int:
        """How many are open."""
        assert self.runner is not None
        assert self.runner.server is not None
        return len(self.runner.server.connections)

    async def quiet(self) -> None:
        """Wait until no connection is open."""
        await until(lambda: not self.connections)

    async def handle(self, http: web.Request) -> web.StreamResponse:
        certificate = http.get_extra_info("peercert") or {}
        names = [pair for names in certificate.get("subject", ()) for pair in names]
        caller = ",".join(f"{key}={value}" for key, value in names)
        upgrade = http.headers.get("Upgrade", "")
        body = b"" if upgrade else await http.read()
        self.requests.append(
            ReceivedRequest(http.method, http.path, list(http.query.items()), MultiDict(http.headers), caller, body)
        )
        if upgrade and self.refusal is not None:
            return await self.refusal(http)
        if upgrade and http.path.startswith("/portForward/") and upgrade == "SPDY/3.1":
            return await forward(http)
        if upgrade:
            return await self._converse(http, upgrade)
        if self.answer is not None:
            return await self.answer(http)
        return web.json_response({"path": http.path}, headers={"X-Node": NODE})

    async def _converse(self, http: web.Request, upgrade: str) -> web.StreamResponse:
        """Send `hello`, then echo the input."""
        wanted = http.headers.get("X-Stream-Protocol-Version", "")
        answer = UpgradeResponse([("Upgrade", upgrade), ("X-Stream-Protocol-Version", wanted)])
        stream = await answer.upgrade(http)
        self.conversations.append(stream)
        with contextlib.suppress(ConnectionError):
            await stream.write(b"hello")
            while data := await stream.read():
                if data == b"leave":
                    break
                await stream.write(data)
        await stream.end()
        return answer


async def forward(http: web.Request) -> web.StreamResponse:
    """Forward a port of this machine in place of one of a pod."""
    answer = UpgradeResponse([("Upgrade", "SPDY/3.1"), ("X-Stream-Protocol-Version", "portforward.k8s.io")])
    async with Session(await answer.upgrade(http)) as session:
        streams: dict[str, SpdyStream] = {}
        while len(streams) < 2 and (spdy_stream := await session.accept()) is not None:
            await spdy_stream.reply()
            streams[spdy_stream.headers["streamtype"]] = spdy_stream
        port = int(streams["data"].headers["port"])
        try:
            _, pod = await asyncio.get_running_loop().create_connection(Connection, "127.0.0.1", port)
        except OSError:
            await streams["error"].write(f"error forwarding port {port}: connection refused".encode())
            await streams["error"].end()
            await streams["data"].read()
            return answer
        await splice(streams["data"], pod, 60)
        pod.abort()
        await streams["error"].end()
    return answer


@asynccontextmanager
async def running_kubelet(
    server: ApiServer,
    root: Path,
    *,
    trusted: bool = True,
    known_as: str = f"system:node:{NODE}",
    known_at: str = "",
) -> AsyncIterator[FakeKubelet]:
    """Run a fake kubelet during the block. If it is not trusted, its certificate is of another authority.

    The certificate names a common name and an address, that of the server if it is empty.
    """
    now = datetime.datetime.now(datetime.UTC)
    ca = cluster_ca(server)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    key = keys.generate_key()
    requested = keys.create_request(
        key, Subject(known_as, ("system:nodes",), ip_addresses=(known_at or own_address(),))
    )
    signed = pki.sign_request(
        ca if trusted else pki.authority(root / "other", now), requested, SERVER_USAGES, 3600, now
    )
    (root / "node.pem").write_bytes(key + signed)
    context.load_cert_chain(root / "node.pem")
    context.load_verify_locations(cadata=ca.pem.decode())
    context.verify_mode = ssl.CERT_REQUIRED
    double = FakeKubelet()
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", double.handle)
    double.runner = web.AppRunner(app, access_log=None, handler_cancellation=True, shutdown_timeout=0.1)
    await double.runner.setup()
    site = web.TCPSite(double.runner, "0.0.0.0", 0, ssl_context=context)
    await site.start()
    double.port = double.runner.addresses[0][1]
    try:
        yield double
    finally:
        await double.runner.cleanup()


class ProxyTestbed:
    """A master, a fake kubelet, and a client."""

    def __init__(self, api_client: UntypedClient, node: FakeKubelet, session: aiohttp.ClientSession, url: str) -> None:
        self.api_client = api_client
        self.node = node
        self.session = session
        self.url = url

    async def register(self, *addresses: dict[str, str], port: int | None = None) -> None:
        """Register the node with these addresses and this port."""
        await self.api_client.request("DELETE", f"/api/v1/nodes/{NODE}")
        await self.api_client.create("/api/v1/nodes", name=NODE)
        where = list(addresses) or [{"type": "InternalIP", "address": own_address()}]
        endpoint = {"kubeletEndpoint": {"Port": self.node.port if port is None else port}}
        status = {"addresses": where, "daemonEndpoints": endpoint}
        answer = await self.api_client.request("PATCH", f"/api/v1/nodes/{NODE}/status", {"status": status})
        assert answer["kind"] == "Node", answer

    async def pod(self, name: str, *containers: str, node: str = NODE, ip: str = "", **spec: Any) -> None:
        """Create a pod on the node, or on none."""
        whole: dict[str, Any] = {
            "containers": [{"name": container_name, "image": "image"} for container_name in containers or ("main",)],
            **({"nodeName": node} if node else {"schedulerName": "nobody"}),
            **spec,
        }
        await self.api_client.request("DELETE", f"{PODS}/{name}?gracePeriodSeconds=0")
        await self.api_client.create(PODS, name=name, spec=whole, metadata={"labels": {"app": name}})
        if ip:
            status = {
                "podIP": ip, "podIPs": [{"ip": ip}], "phase": "Running",
                "conditions": [{"type": "Ready", "status": "True"}],
            }  # fmt: skip
            await self.api_client.request("PATCH", f"{PODS}/{name}/status", {"status": status})


@asynccontextmanager
async def proxy_testbed(
    server: ApiServer,
    api_client: UntypedClient,
    root: Path,
    *,
    trusted: bool = True,
    known_as: str = f"system:node:{NODE}",
    known_at: str = "",
) -> AsyncIterator[ProxyTestbed]:
    """Yield a testbed with a project, a registered node, and an administrator as its client."""
    kubeconfig = Kubeconfig.load(server.kubeconfig)
    if (await api_client.request("GET", f"/api/v1/namespaces/{PROJECT}"))["kind"] == "Status":
        await api_client.create("/api/v1/namespaces", name=PROJECT)
        await api_client.wait_until(
            f"/api/v1/namespaces/{PROJECT}/serviceaccounts/default", lambda actual: "metadata" in actual
        )
    connector = tls_connector(kubeconfig.ssl_context())
    async with (
        running_kubelet(server, root, trusted=trusted, known_as=known_as, known_at=known_at) as node,
        aiohttp.ClientSession(server.url, connector=connector) as session,
    ):
        stage = ProxyTestbed(api_client, node, session, server.url)
        await stage.register()
        yield stage
        await session.close()
        await until(lambda: _connected(server) <= 1)


def _connected(server: ApiServer) -> int:
    """Return the number of this process's connections to a master. The proxy keeps one open."""
    port = int(server.url.rpartition(":")[2])
    return sum(
        getattr(net_connection.raddr, "port", 0) == port for net_connection in psutil.Process().net_connections("tcp")
    )


def own_address() -> str:
    """Return an address of this machine other than loopback."""
    actual = [
        net_address.address
        for net_if_addr in psutil.net_if_addrs().values()
        for net_address in net_if_addr
        if net_address.family == socket.AF_INET
    ]
    return next(address for address in actual if not address.startswith("127."))


async def until(good: Callable[[], bool]) -> None:
    """Wait for a condition."""
    async with asyncio.timeout(SECONDS):
        while not good():
            await asyncio.sleep(0.005)
