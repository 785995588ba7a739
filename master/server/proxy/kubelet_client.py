"""The HTTPS client for kubelets, and the connector for all connections of the master to nodes. Driver.

The master is the user `kube-apiserver-kubelet-client` of a kubelet, with the role `system:kubelet-api-admin` only.
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
"""The common name that the certificate of the kubelet must have; empty if any is accepted.

It is a context variable because aiohttp passes a connector nothing else of the request.
"""


class AddressNotAllowed(OSError):
    """An address that the master does not connect to. The message is that of kube-apiserver."""

    def __init__(self) -> None:
        super().__init__("address not allowed")


class RestrictedConnector(aiohttp.TCPConnector):
    """A connector for one client. `own_address` returns the address and port of the master itself.

    With `kept_seconds` connections are kept for further requests.
    """

    def __init__(self, own_address: Callable[[], tuple[str, int]], kept_seconds: float = 0.0) -> None:
        if kept_seconds:
            super().__init__(limit=0, keepalive_timeout=kept_seconds, socket_factory=self._socket)
        else:
            super().__init__(limit=0, force_close=True, socket_factory=self._socket)
        self._own_address = own_address

    def _socket(self, address_info: Any) -> socket.socket:
        """Return a socket for one address; aiohttp makes every connection with it. Raises AddressNotAllowed."""
        family, kind, protocol, _, (host, port, *_) = address_info
        advertised, own_port = self._own_address()
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
                    f"tls: failed to verify certificate: its common name is {shown!r}, not {expected!r}"
                )
        return protocol


def _same_address(first: str, second: str) -> bool:
    return unmapped(ip_address(first)) == unmapped(ip_address(second))


def _is_local_address(family: int, host: str) -> bool:
    """Return whether an address belongs to this machine: only such an address can be bound."""
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        try:
            probe.bind((host, 0))
        except OSError:
            return False
    return True


KUBELET_PORT = 10250

CONNECT_SECONDS = 10.0
"""Timeout of a TCP connection to a node, in seconds."""

IDLE_SECONDS = 4 * 3600.0
"""Seconds after which a response is aborted that sends no more data."""

ADDRESS_TYPES = ("InternalIP", "Hostname", "InternalDNS", "ExternalDNS", "ExternalIP")
"""Types of node addresses, the preferred type first."""

HOST_PATTERN = re.compile(r"[0-9A-Za-z._:-]+")
"""Characters of a host name or address. None of them ends the host in a URL."""

Headers = Mapping[str, str] | CIMultiDict[str]


class Unreachable(Exception):
    """A backend that cannot be reached or does not respond. The message is that of kube-apiserver."""


@dataclass(frozen=True, slots=True)
class HostPort:
    """A host and a port."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def kubelet_address(node: Node) -> HostPort:
    """Return the address of a kubelet, from the status of its node. Raises StatusError."""
    known = node.status.addresses
    for kind in ADDRESS_TYPES:
        host = next((address.address for address in known if address.type == kind and address.address), "")
        if host:
            if not HOST_PATTERN.fullmatch(host):
                raise errors.bad_request("address not allowed")
            endpoints = node.status.daemon_endpoints
            endpoint = None if endpoints is None else endpoints.kubelet_endpoint
            return HostPort(host, endpoint.port if endpoint is not None and endpoint.port > 0 else KUBELET_PORT)
    raise errors.status_error(
        500, "", f"no preferred addresses found; known addresses: {[address.address for address in known]}"
    )


def client_files(ca: pki.Authority, directory: Path, now: datetime.datetime) -> Path:
    """Write a new client certificate for kubelets and its key into one file, and return its path. Raises NotReady."""
    identity = pki.client_identity(ca, KUBELET_CLIENT_USER, (), now)
    path = directory / "nodes-client.pem"
    try:
        atomic_file.write(path, identity.key + identity.certificate)
    except OSError as error:
        raise NotReady(f"client certificate for kubelets {path}: {error}") from error
    return path


@dataclass(frozen=True, slots=True)
class KubeletTLS:
    """TLS contexts with the client certificate of the master, with and without verification of kubelets."""

    verified: ssl.SSLContext
    unverified: ssl.SSLContext

    @classmethod
    def load(cls, client: Path, authority: Path, *, verify: bool) -> KubeletTLS:
        """Load the client certificate with its key, and the certificate of the authority.

        Without `verify`, no kubelet is verified.
        """
        unverified = _client_tls(client)
        if not verify:
            return cls(unverified, unverified)
        verified = ssl.create_default_context(cafile=str(authority))
        verified.load_cert_chain(client)
        return cls(verified, unverified)


def _client_tls(client: Path) -> ssl.SSLContext:
    context = insecure_tls()
    context.load_cert_chain(client)
    return context


def insecure_tls() -> ssl.SSLContext:
    """Return a TLS context without verification, because servers in pods have self-signed certificates."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


class KubeletClient:
    """An HTTPS client for kubelets: `open` returns a streamed response, `get` a body; `close` ends all connections."""

    def __init__(self, storage: Storage, tls: KubeletTLS, own_address: Callable[[], tuple[str, int]]) -> None:
        """Create a client. `own_address` returns the address and port of the master, which no kubelet has."""
        self._store = storage
        self._tls = tls
        self._own_address = own_address
        self._session: aiohttp.ClientSession | None = None

    def address(self, node: str) -> HostPort:
        """Return the address of the kubelet of a node. Raises StatusError."""
        return kubelet_address(self._node(node))

    def has_address(self, node: str, address: str) -> bool:
        """Return whether the node has the address. Raises StatusError."""
        return any(node_address.address == address for node_address in self._node(node).status.addresses)

    def _node(self, node: str) -> Node:
        record = self._store.get_uncommitted(Key(group_resource(Node), "", node))
        if record is None:
            raise errors.not_found(NODES, node)
        return record.object  # type: ignore[no-any-return]

    def connector(self, kept_seconds: float = 0.0) -> RestrictedConnector:
        """Return a connector with the same restrictions, for another client."""
        return RestrictedConnector(self._own_address, kept_seconds)

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
        """Send a request to a kubelet. `path` is percent-encoded and has the query. The caller closes the response.

        Raises StatusError and Unreachable. A response 101 is to be passed to `streams.upgrade.upgraded_connection`.
        Redirects are not followed.
        """
        address = self.address(node)
        context = self._tls.verified if verify else self._tls.unverified
        common_name = f"{NODE_PREFIX}{node}" if context.verify_mode == ssl.CERT_REQUIRED else ""
        token = EXPECTED_COMMON_NAME.set(common_name)
        try:
            url = URL(f"https://{address}{path}", encoded=True)
            return await send_request(self._client(), address, url, method, headers, data, context)
        finally:
            EXPECTED_COMMON_NAME.reset(token)

    async def get(self, node: str, path: str, seconds: float = 10.0) -> bytes:
        """Return the body of the response to GET. Raises NotReady, also when the status is not 200."""
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
            raise NotReady(f"node {node}: {path}: no response within {seconds:.0f} seconds") from error
        if response.status != 200:
            raise NotReady(f"node {node}: {path}: {response.status} {body[:200].decode(errors='replace')}")
        return body

    async def close(self) -> None:
        """Close every connection."""
        if self._session is not None:
            await self._session.close()

    def _client(self) -> aiohttp.ClientSession:
        if self._session is None:
            self._session = client(self.connector())
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


async def send_request(
    session: aiohttp.ClientSession,
    address: HostPort,
    url: URL,
    method: str,
    headers: Headers | None,
    data: AsyncIterable[bytes] | None,
    tls: ssl.SSLContext,
) -> aiohttp.ClientResponse:
    """Send a request and return the response. Raises Unreachable, and StatusError if the address is not allowed."""
    try:
        response = await session.request(method, url, headers=headers, data=data, ssl=tls, allow_redirects=False)
    except (aiohttp.ClientError, TimeoutError, OSError) as error:
        if isinstance(error, aiohttp.ClientConnectorError) and isinstance(error.os_error, AddressNotAllowed):
            raise errors.bad_request(str(error.os_error)) from error
        raise Unreachable(dial_error(address, error)) from error
    connection = response.connection
    if connection is not None and connection.transport is not None:
        enable_keepalive(connection.transport)
    return response


def dial_error(address: HostPort, error: Exception) -> str:
    """Return the message of kube-apiserver for a failed connection."""
    match error:
        case aiohttp.ClientConnectorCertificateError():
            text = f"tls: failed to verify certificate: {_root_cause(error.certificate_error)}"
        case aiohttp.ClientConnectorSSLError():
            text = f"tls: {_root_cause(error.os_error)}"
        case aiohttp.ClientConnectorDNSError():
            text = f"dial tcp: lookup {address.host}: no such host"
        case aiohttp.ClientConnectorError():
            number = error.os_error.errno
            text = f"dial tcp {address}: connect: {os.strerror(number).lower() if number else error.os_error}"
        case aiohttp.ServerTimeoutError() | TimeoutError():
            text = f"dial tcp {address}: i/o timeout"
        case aiohttp.ServerDisconnectedError():
            text = "EOF"
        case _:
            text = _root_cause(error)
    return text


def verification_error(error: ssl.SSLCertVerificationError, name: str) -> str:
    """Return the message of kube-apiserver for a certificate that is not accepted for a name."""
    texts = {
        _EXPIRED: "certificate has expired or is not yet valid",
        _OTHER_NAME: f"certificate is not valid for {name}",
        _UNKNOWN_NAME: f"certificate is not valid for {name}",
    }
    unknown = "certificate signed by unknown authority"
    text = unknown if error.verify_code in _UNKNOWN_AUTHORITY else texts.get(error.verify_code, error.verify_message)
    return f"tls: failed to verify certificate: x509: {text}"


_EXPIRED, _OTHER_NAME, _UNKNOWN_NAME = 10, 62, 64
_UNKNOWN_AUTHORITY = frozenset((2, 18, 19, 20, 21))
"""Codes of X509_verify_cert of OpenSSL."""


def _root_cause(error: BaseException) -> str:
    verdict = getattr(error, "verify_message", "")
    return verdict or str(error) or type(error).__name__
