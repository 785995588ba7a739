"""The HTTPS client for servers of nodes, and the connections that the master makes. Driver.

Nodes know the master as `kube-apiserver-kubelet-client`, which has the role `system:kubelet-api-admin` and no other.
Connections to loopback, link-local and multicast addresses and to the master itself are refused. The check is made on
the resolved address at connect time, so a DNS change between check and use has no effect.
"""

from __future__ import annotations

import asyncio
import datetime
import os
import re
import socket
import ssl
from collections.abc import AsyncIterable, Callable, Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import aiohttp
from aiohttp.client_proto import ResponseHandler
from multidict import CIMultiDict
from yarl import URL

from api.core.node import Node
from api.network.addresses import unmapped, unreachable_reason
from api.pki.pem import peer_subject
from master import errors
from master.auth import pki
from master.auth.attributes import KUBELET_CLIENT_USER, NODE_PREFIX
from master.resources.nodes import NODES
from master.resources.scheme import group_resource
from master.storage.interface import Key, Storage
from reconcile import atomic_file
from reconcile.errors import NotReady
from streams.upgrade import enable_keepalive

EXPECTED_COMMON_NAME: ContextVar[str] = ContextVar("EXPECTED", default="")
"""Whose certificate the other side has to show, by its common name; empty: whatever it shows.

A connector learns nothing else of the request for which it makes a connection.
"""


class AddressNotAllowed(OSError):
    """The master does not connect to this address; the message is that of kube-apiserver."""

    def __init__(self) -> None:
        super().__init__("address not allowed")


class RestrictedConnector(aiohttp.TCPConnector):
    """A connector for one client. `own` is the address and port of the master itself."""

    def __init__(self, own: Callable[[], tuple[str, int]]) -> None:
        super().__init__(limit=0, force_close=True, socket_factory=self._socket)
        self._own = own

    def _socket(self, found: Any) -> socket.socket:
        """A socket for one address; raises NotAllowed. All connections are made with one from here."""
        family, kind, protocol, _, (host, port, *_) = found
        advertised, own_port = self._own()
        if unreachable_reason(host) or (
            port == own_port and (_same_address(host, advertised) or _is_local_address(family, host))
        ):
            raise AddressNotAllowed
        return socket.socket(family, kind, protocol)

    async def _create_connection(
        self,
        req: aiohttp.ClientRequest,
        traces: list[Any],
        timeout: aiohttp.ClientTimeout,  # noqa: ASYNC109
    ) -> ResponseHandler:
        """Open a connection for aiohttp. Nothing is sent before it returns."""
        protocol = await super()._create_connection(req, traces, timeout)
        expected = EXPECTED_COMMON_NAME.get()
        if expected:
            transport = protocol.transport
            certificate = None if transport is None else transport.get_extra_info("peercert")
            shown = peer_subject(certificate).user
            if shown != expected:
                protocol.abort()
                raise aiohttp.ClientConnectionError(
                    f"tls: failed to verify certificate: it is of {shown!r}, not of {expected!r}"
                )
        return protocol


def _same_address(first: str, second: str) -> bool:
    return unmapped(ip_address(first)) == unmapped(ip_address(second))


def _is_local_address(family: int, host: str) -> bool:
    """Return whether an address belongs to this machine: only those can be bound."""
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        try:
            probe.bind((host, 0))
        except OSError:
            return False
    return True


KUBELET_PORT = 10250

CONNECT_SECONDS = 10.0
"""How long a node may take to answer to a connection."""

IDLE_SECONDS = 4 * 3600.0
"""How long an answer may come to a standstill."""

ADDRESS_TYPES = ("InternalIP", "Hostname", "InternalDNS", "ExternalDNS", "ExternalIP")
"""Types of a node's addresses, the one that is taken first."""

HOST_PATTERN = re.compile(r"[0-9A-Za-z._:-]+")
"""What a name or an address is made of, and nothing by which a URL would go on behind it."""

Headers = Mapping[str, str] | CIMultiDict[str]


class Unreachable(Exception):
    """The backend cannot be reached or does not answer; the message is that of kube-apiserver."""


@dataclass(frozen=True, slots=True)
class HostPort:
    """Where a kubelet listens."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def kubelet_address(node: Node) -> HostPort:
    """Return where a kubelet listens, from the status of its node. Raise StatusError."""
    known = node.status.addresses
    for kind in ADDRESS_TYPES:
        found = next((address.address for address in known if address.type == kind and address.address), "")
        if found:
            if not HOST_PATTERN.fullmatch(found):
                raise errors.bad_request("address not allowed")
            endpoints = node.status.daemon_endpoints
            endpoint = None if endpoints is None else endpoints.kubelet_endpoint
            return HostPort(found, endpoint.port if endpoint is not None and endpoint.port > 0 else KUBELET_PORT)
    raise errors.status_error(
        500, "", f"no preferred addresses found; known addresses: {[address.address for address in known]}"
    )


def client_files(ca: pki.Authority, directory: Path, now: datetime.datetime) -> Path:
    """A new certificate by which nodes know the master, with its key in one file. Raises NotReady."""
    identity = pki.client_identity(ca, KUBELET_CLIENT_USER, (), now)
    path = directory / "nodes-client.pem"
    try:
        atomic_file.write(path, identity.key + identity.certificate)
    except OSError as error:
        raise NotReady(f"certificate for nodes {path}: {error}") from error
    return path


@dataclass(frozen=True, slots=True)
class KubeletTLS:
    """The client certificate of the master, and whether certificates of kubelets are verified."""

    verified: ssl.SSLContext
    unverified: ssl.SSLContext

    @classmethod
    def of(cls, client: Path, authority: Path, *, verify: bool) -> KubeletTLS:
        """Return TLS with the certificate and key in one file, and the authority's certificate in the other."""
        lax = _client_tls(client)
        if not verify:
            return cls(lax, lax)
        strict = ssl.create_default_context(cafile=str(authority))
        strict.load_cert_chain(client)
        return cls(strict, lax)


def _client_tls(client: Path) -> ssl.SSLContext:
    context = insecure_tls()
    context.load_cert_chain(client)
    return context


def insecure_tls() -> ssl.SSLContext:
    """Return TLS without verification, because servers in pods have self-signed certificates."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


class KubeletClient:
    """An HTTPS client: `open` returns a streamed response, `get` a whole one; `close` ends it."""

    def __init__(self, storage: Storage, trust: KubeletTLS, own: Callable[[], tuple[str, int]]) -> None:
        """Create a client; `own` is the address and port of the master itself, which is never a kubelet's."""
        self._store = storage
        self._trust = trust
        self._own = own
        self._session: aiohttp.ClientSession | None = None

    def place(self, node: str) -> HostPort:
        """Return where the kubelet of the named node listens. Raise StatusError."""
        return kubelet_address(self._node(node))

    def has(self, node: str, address: str) -> bool:
        """Return whether the address belongs to the node. Raise StatusError."""
        return any(row.address == address for row in self._node(node).status.addresses)

    def _node(self, node: str) -> Node:
        record = self._store.get_uncommitted(Key(group_resource(Node), "", node))
        if record is None:
            raise errors.not_found(NODES, node)
        return record.object  # type: ignore[no-any-return]

    def dialler(self) -> RestrictedConnector:
        """For a client that is not of the door, and goes by the same addresses."""
        return RestrictedConnector(self._own)

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
        """Send a request to a kubelet; `path` is raw, with its query. The caller closes the response.

        Raise StatusError and Unreachable. A response 101 is for `streams.upgrade.upgraded_connection`. Redirects are
        not followed.
        """
        where = self.place(node)
        trust = self._trust.verified if verify else self._trust.unverified
        its_own = f"{NODE_PREFIX}{node}" if trust.verify_mode == ssl.CERT_REQUIRED else ""
        told = EXPECTED_COMMON_NAME.set(its_own)
        try:
            url = URL(f"https://{where}{path}", encoded=True)
            return await ask(self._client(), where, url, method, headers, data, trust)
        finally:
            EXPECTED_COMMON_NAME.reset(told)

    async def get(self, node: str, path: str, seconds: float = 10.0) -> bytes:
        """Return the whole response to GET. Raise NotReady, also when the status is not 200."""
        try:
            async with asyncio.timeout(seconds):
                response = await self.open(node, "GET", path)
                try:
                    body = await response.read()
                finally:
                    response.close()
        except (errors.StatusError, Unreachable, aiohttp.ClientError) as error:
            raise NotReady(f"node {node}: {path}: {error}") from error
        except TimeoutError as error:
            raise NotReady(f"node {node}: {path}: no answer within {seconds:.0f} seconds") from error
        if response.status != 200:
            raise NotReady(f"node {node}: {path}: {response.status} {body[:200].decode(errors='replace')}")
        return body

    async def close(self) -> None:
        """Close every connection."""
        if self._session is not None:
            await self._session.close()

    def _client(self) -> aiohttp.ClientSession:
        if self._session is None:
            self._session = client(self.dialler())
        return self._session


def client(connector: aiohttp.BaseConnector) -> aiohttp.ClientSession:
    """Return a client that forwards requests and responses unchanged."""
    return aiohttp.ClientSession(
        connector=connector,
        timeout=aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_SECONDS, sock_read=IDLE_SECONDS),
        skip_auto_headers=("Accept", "Accept-Encoding", "User-Agent", "Content-Type"),
        cookie_jar=aiohttp.DummyCookieJar(),
        auto_decompress=False,
    )


async def ask(
    session: aiohttp.ClientSession,
    where: HostPort,
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
        if isinstance(error, aiohttp.ClientConnectorError) and isinstance(error.os_error, AddressNotAllowed):
            raise errors.bad_request(str(error.os_error)) from error
        raise Unreachable(dial_error(where, error)) from error
    held = response.connection
    if held is not None and held.transport is not None:
        enable_keepalive(held.transport)
    return response


def dial_error(where: HostPort, error: Exception) -> str:
    """Return why a connection failed, in the words of kube-apiserver."""
    match error:
        case aiohttp.ClientConnectorCertificateError():
            text = f"tls: failed to verify certificate: {_root_cause(error.certificate_error)}"
        case aiohttp.ClientConnectorSSLError():
            text = f"tls: {_root_cause(error.os_error)}"
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
            text = _root_cause(error)
    return text


def _root_cause(error: BaseException) -> str:
    verdict = getattr(error, "verify_message", "")
    return verdict or str(error) or type(error).__name__
