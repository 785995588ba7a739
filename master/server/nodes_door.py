"""Driver: requests of the master to the servers of its nodes, with a client certificate of its own.

Nodes know it as `kube-apiserver-kubelet-client`, which has the role `system:kubelet-api-admin` and no other.
"""

from __future__ import annotations

import asyncio
import datetime
import os
import re
import ssl
from collections.abc import AsyncIterable, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import aiohttp
from multidict import CIMultiDict
from yarl import URL

from api.core.node import Node
from master.access import pki
from master.access.authorize import NODE_PREFIX, TO_NODES
from master.kinds.node import NODE
from master.server.dialling import EXPECTED, Dialler, NotAllowed
from master.store.records import Key
from master.store.store import Store
from master.wire import answers
from reconcile import atomic_file
from reconcile.errors import NotReady
from streams.takeover import notice_death

DEFAULT_PORT = 10250

CONNECT_SECONDS = 10.0
"""How long a node may take to answer to a connection."""

IDLE_SECONDS = 4 * 3600.0
"""How long an answer may come to a standstill."""

ADDRESSES = ("InternalIP", "Hostname", "InternalDNS", "ExternalDNS", "ExternalIP")
"""Types of a node's addresses, the one that is taken first."""

HOST = re.compile(r"[0-9A-Za-z._:-]+")
"""What a name or an address is made of, and nothing by which a URL would go on behind it."""

Headers = Mapping[str, str] | CIMultiDict[str]


class Unreachable(Exception):
    """The other side cannot be reached or does not answer; says what kube-apiserver says of it."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where the server of a node listens."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def place(node: Node) -> Place:
    """Where the server of a node listens, as its status says. Raises Failure."""
    known = node.status.addresses
    for kind in ADDRESSES:
        found = next((one.address for one in known if one.type == kind and one.address), "")
        if found:
            if not HOST.fullmatch(found):
                raise answers.bad_request("address not allowed")
            endpoints = node.status.daemon_endpoints
            endpoint = None if endpoints is None else endpoints.kubelet_endpoint
            return Place(found, endpoint.port if endpoint is not None and endpoint.port > 0 else DEFAULT_PORT)
    raise answers.failure(500, "", f"no preferred addresses found; known addresses: {[one.address for one in known]}")


def client_files(ca: pki.Authority, directory: Path, now: datetime.datetime) -> Path:
    """A new certificate by which nodes know the master, with its key in one file. Raises NotReady."""
    identity = pki.client_identity(ca, TO_NODES, (), now)
    path = directory / "nodes-client.pem"
    try:
        atomic_file.write(path, identity.key + identity.certificate)
    except OSError as error:
        raise NotReady(f"certificate for nodes {path}: {error}") from error
    return path


@dataclass(frozen=True, slots=True)
class Trust:
    """How the master shows itself to nodes, and whether it wants to see certificates of the cluster's authority."""

    verified: ssl.SSLContext
    unverified: ssl.SSLContext

    @classmethod
    def of(cls, client: Path, authority: Path, *, verify: bool) -> Trust:
        """With the certificate and key in one file, and the authority's certificate in the other."""
        lax = _context(client)
        if not verify:
            return cls(lax, lax)
        strict = ssl.create_default_context(cafile=str(authority))
        strict.load_cert_chain(client)
        return cls(strict, lax)


def _context(client: Path) -> ssl.SSLContext:
    context = anybody()
    context.load_cert_chain(client)
    return context


def anybody() -> ssl.SSLContext:
    """TLS with whoever it may be: what runs in pods shows certificates of its own making."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


class NodesDoor:
    """`open` gives an answer that is read as it comes, `get` a whole one; `close` in the end."""

    def __init__(self, store: Store, trust: Trust, own: Callable[[], tuple[str, int]]) -> None:
        """`own` is the address and port under which the master itself is known: no node is there."""
        self._store = store
        self._trust = trust
        self._own = own
        self._session: aiohttp.ClientSession | None = None

    def place(self, node: str) -> Place:
        """Where the server of the node of that name listens. Raises Failure."""
        return place(self._node(node))

    def has(self, node: str, address: str) -> bool:
        """Whether the address is one of the node's. Raises Failure."""
        return any(row.address == address for row in self._node(node).status.addresses)

    def _node(self, node: str) -> Node:
        record = self._store.latest(Key(Node.KIND, "", node))
        if record is None:
            raise answers.not_found(NODE, node)
        return record.object  # type: ignore[no-any-return]

    def dialler(self) -> Dialler:
        """For a client that is not of the door, and goes by the same addresses."""
        return Dialler(self._own)

    async def open(
        self,
        node: str,
        method: str,
        path: str,
        headers: Headers | None = None,
        *,
        data: AsyncIterable[bytes] | None = None,
        verify: bool = True,
    ) -> aiohttp.ClientResponse:
        """Ask a node; `path` is raw, with its query. Who asks closes the answer. Raises Failure and Unreachable.

        An answer 101 is for `streams.takeover.taken`; redirects are not followed.
        """
        where = self.place(node)
        trust = self._trust.verified if verify else self._trust.unverified
        its_own = f"{NODE_PREFIX}{node}" if trust.verify_mode == ssl.CERT_REQUIRED else ""
        told = EXPECTED.set(its_own)
        try:
            url = URL(f"https://{where}{path}", encoded=True)
            return await ask(self._client(), where, url, method, headers, data, trust)
        finally:
            EXPECTED.reset(told)

    async def get(self, node: str, path: str, seconds: float = 10.0) -> bytes:
        """The whole answer to GET. Raises NotReady, also when it is not 200."""
        try:
            async with asyncio.timeout(seconds):
                response = await self.open(node, "GET", path)
                try:
                    body = await response.read()
                finally:
                    response.close()
        except (answers.Failure, Unreachable, aiohttp.ClientError) as error:
            raise NotReady(f"node {node}: {path}: {error}") from error
        except TimeoutError as error:
            raise NotReady(f"node {node}: {path}: no answer within {seconds:.0f} seconds") from error
        if response.status != 200:
            raise NotReady(f"node {node}: {path}: {response.status} {body[:200].decode(errors='replace')}")
        return body

    async def close(self) -> None:
        """End every connection."""
        if self._session is not None:
            await self._session.close()

    def _client(self) -> aiohttp.ClientSession:
        if self._session is None:
            self._session = client(self.dialler())
        return self._session


def client(connector: aiohttp.BaseConnector) -> aiohttp.ClientSession:
    """A client that passes on what it is given and what it gets, and adds nothing of its own."""
    return aiohttp.ClientSession(
        connector=connector,
        timeout=aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_SECONDS, sock_read=IDLE_SECONDS),
        skip_auto_headers=("Accept", "Accept-Encoding", "User-Agent", "Content-Type"),
        cookie_jar=aiohttp.DummyCookieJar(),
        auto_decompress=False,
    )


async def ask(
    session: aiohttp.ClientSession,
    where: Place,
    url: URL,
    method: str,
    headers: Headers | None,
    data: AsyncIterable[bytes] | None,
    trust: ssl.SSLContext,
) -> aiohttp.ClientResponse:
    """One request. Raises Unreachable, and Failure when it leads to where the master talks to nobody."""
    try:
        response = await session.request(method, url, headers=headers, data=data, ssl=trust, allow_redirects=False)
    except (aiohttp.ClientError, TimeoutError, OSError) as error:
        if isinstance(error, aiohttp.ClientConnectorError) and isinstance(error.os_error, NotAllowed):
            raise answers.bad_request(str(error.os_error)) from error
        raise Unreachable(why(where, error)) from error
    held = response.connection
    if held is not None and held.transport is not None:
        notice_death(held.transport)
    return response


def why(where: Place, error: Exception) -> str:
    """Why a connection failed, in the words of kube-apiserver."""
    match error:
        case aiohttp.ClientConnectorCertificateError():
            text = f"tls: failed to verify certificate: {_plain(error.certificate_error)}"
        case aiohttp.ClientConnectorSSLError():
            text = f"tls: {_plain(error.os_error)}"
        case aiohttp.ClientConnectorDNSError():
            text = f"dial tcp: lookup {where.host}: no such host"
        case aiohttp.ClientConnectorError():
            number = error.os_error.errno
            text = f"dial tcp {where}: connect: {os.strerror(number).lower() if number else error.os_error}"
        case aiohttp.ServerTimeoutError() | TimeoutError():
            text = f"dial tcp {where}: i/o timeout"
        case aiohttp.ServerDisconnectedError():
            text = "EOF"
        case _:
            text = _plain(error)
    return text


def _plain(error: BaseException) -> str:
    verdict = getattr(error, "verify_message", "")
    return verdict or str(error) or type(error).__name__
