"""The HTTPS client for servers that extend the API: webhooks and aggregated API servers. Driver.

A service leads to a ready pod of its namespace, which is reached through its node (docs/adr/0018-*). Its certificate
is verified for SERVICE.NAMESPACE.svc. A URL, and a pod in the network of its node, is dialled directly, under the same
rules as nodes. Connections are kept for each server and authority. No credentials of users are sent.

A server may be hostile: bytes and time of a response are bounded, redirects are not followed, compression is refused.
"""

from __future__ import annotations

import asyncio
import random
import ssl
import time
from collections.abc import AsyncIterable, AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import aiohttp
from multidict import CIMultiDict
from yarl import URL

from api.core.endpoints import Endpoints
from api.core.pod import Pod
from api.core.services import Service
from api.network.addresses import unreachable_reason
from master.admission.webhooks.calls import ServiceTarget
from master.errors import StatusError
from master.resources.scheme import group_resource
from master.server.proxy.kubelet_client import (
    AddressNotAllowed,
    Headers,
    HostPort,
    KubeletClient,
    Unreachable,
    client,
    dial_error,
    insecure_tls,
    verification_error,
)
from master.server.proxy.pod_dialer import KEPT_SECONDS, MAX_KEPT_CONNECTIONS, PodDialer
from master.storage.interface import Key, Storage

MAX_POOLS = 256
"""Servers to which connections are kept. The one that was used least recently is closed first."""

READ_BYTES = 64 << 10

SAFE_METHODS = frozenset(("GET", "HEAD", "OPTIONS"))
"""Methods of requests that may be sent twice."""


@dataclass(frozen=True, slots=True)
class TLSConfig:
    """How a server is verified, and the certificate that is shown to it.

    `ca_bundle` is in PEM; empty for the certificates of the host. `client_certificate` is a file with a certificate
    and its key. `is_for_users` is whether requests of users are forwarded: any number at the same time, each of which
    may take long, on connections of their own.
    """

    ca_bundle: bytes = b""
    is_verified: bool = True
    client_certificate: Path | None = None
    is_for_users: bool = False


class ResponseTooLarge(Unreachable):
    """A response with more bytes than are read. `status` is its code."""

    def __init__(self, max_bytes: int, status: int) -> None:
        super().__init__(f"the response is larger than {max_bytes} bytes")
        self.status = status


@dataclass(frozen=True, slots=True)
class ServerResponse:
    """A response that was read as a whole."""

    status: int
    body: bytes


@dataclass(frozen=True, slots=True)
class _Place:
    """A port of a pod or of a host. `pod` is None for a host."""

    pod: Pod | None
    address: HostPort
    server_name: str

    @property
    def identity(self) -> tuple[str, str]:
        """Return what distinguishes the place from others."""
        return ("" if self.pod is None else self.pod.metadata.uid, str(self.address))


@dataclass(slots=True)
class _Pool:
    """Kept connections to a server."""

    session: aiohttp.ClientSession
    dialer: PodDialer | None
    tls: ssl.SSLContext
    used: float
    requests: int = 0


_PoolKey = tuple[tuple[str, str], str, TLSConfig]


class ExtensionClient:
    """A client for servers that extend the API. `close` ends all connections."""

    def __init__(self, storage: Storage, nodes: KubeletClient) -> None:
        self._store = storage
        self._nodes = nodes
        self._pools: dict[_PoolKey, _Pool] = {}
        self._host_tls: ssl.SSLContext | None = None

    async def request(
        self,
        service: ServiceTarget | None,
        url: str,
        method: str,
        headers: Headers,
        body: bytes | None,
        tls: TLSConfig,
        *,
        max_bytes: int,
    ) -> ServerResponse:
        """Send a request to a service, or to the host of the URL, and read the response. Raises Unreachable.

        The caller limits the time.
        """
        async with self.open(service, url, method, headers, body, tls) as response:
            if response.headers.get("Content-Encoding", "identity").lower() != "identity":
                raise Unreachable("the response is compressed, which was not asked for")
            return ServerResponse(response.status, await _read(response, max_bytes))

    @asynccontextmanager
    async def open(
        self,
        service: ServiceTarget | None,
        url: str,
        method: str,
        headers: Headers,
        body: AsyncIterable[bytes] | bytes | None,
        tls: TLSConfig,
        header_seconds: float | None = None,
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        """Send a request, and yield the response, which is closed at the end of the block. Raises Unreachable.

        `url` is percent-encoded. The host in the URL of a service is its name, as the Host header shows it. If the
        response has not begun within `header_seconds`, TimeoutError is raised; None if the caller limits the time.
        """
        target = URL(url, encoded=True)
        place = self._find(service) if service is not None else _host(target)
        pool = await self._pool(place, tls)
        pool.requests += 1
        try:
            async with asyncio.timeout(header_seconds):
                response = await self._send(pool, place, target, method, headers, body)
            try:
                yield response
            finally:
                # A connection whose response was read to its end is kept by now; any other is of no further use.
                response.close()
        finally:
            pool.requests -= 1

    async def _send(
        self,
        pool: _Pool,
        place: _Place,
        url: URL,
        method: str,
        headers: Headers,
        body: AsyncIterable[bytes] | bytes | None,
    ) -> aiohttp.ClientResponse:
        sent = CIMultiDict(headers)
        sent["Host"] = url.raw_authority if place.pod is None else place.server_name
        dialled = url
        if place.pod is None:
            try:
                dialled = url.with_host(place.address.host).with_port(place.address.port)
            except ValueError as error:
                raise Unreachable(str(error)) from error
        for attempt in range(2):
            try:
                return await pool.session.request(
                    method,
                    dialled,
                    headers=sent,
                    data=body,
                    ssl=pool.tls,
                    server_hostname=place.server_name,
                    allow_redirects=False,
                )
            except aiohttp.ServerDisconnectedError as error:
                # A server may close a kept connection while the request is under way; it has not begun to answer. It
                # may have acted, so only questions are repeated.
                if attempt or not ((method in SAFE_METHODS and body is None) or isinstance(body, bytes)):
                    raise Unreachable("EOF") from error
            except (aiohttp.ClientError, OSError, UnicodeError) as error:
                # UnicodeError: a host name that no DNS server can be asked about, such as `a..b`.
                raise Unreachable(self._reason(pool, place, error)) from error
        raise AssertionError

    def _reason(self, pool: _Pool, place: _Place, error: Exception) -> str:
        if pool.dialer is not None and pool.dialer.error:
            return pool.dialer.error
        if isinstance(error, aiohttp.ClientConnectorError) and isinstance(error.os_error, AddressNotAllowed):
            return str(error.os_error)
        if isinstance(error, aiohttp.ClientConnectorCertificateError):
            cause = error.certificate_error
            if isinstance(cause, ssl.SSLCertVerificationError):
                return verification_error(cause, place.server_name)
        return dial_error(place.address, error)

    # --- places ----------------------------------------------------------------------------------------------------

    def _find(self, service: ServiceTarget) -> _Place:
        """Return a ready pod of a service, one with kept connections if there is one. Raises Unreachable."""
        places = find_places(self._store, service)
        used = {key[0] for key in self._pools}
        kept = [place for place in places if place.identity in used]
        place = random.choice(kept or places)
        assert place.pod is not None
        if not place.pod.spec.host_network:
            return place
        try:
            is_on_node = self._nodes.has_address(place.pod.spec.node_name, place.address.host)
        except StatusError as error:
            raise Unreachable(str(error)) from error
        if not is_on_node:
            raise Unreachable("address not allowed")
        return _Place(None, place.address, place.server_name)

    # --- pools -----------------------------------------------------------------------------------------------------

    async def _pool(self, place: _Place, tls: TLSConfig) -> _Pool:
        key = (place.identity, place.server_name, tls)
        pool = self._pools.get(key)
        if pool is None:
            context = await self._context(tls)
            pool = self._pools.get(key)
        if pool is None:
            dialer = None
            if place.pod is not None:
                limit = 0 if tls.is_for_users else MAX_KEPT_CONNECTIONS
                dialer = PodDialer(self._nodes, place.pod, place.address, place.server_name, limit)
            connector = dialer or self._nodes.connector(KEPT_SECONDS)
            pool = self._pools[key] = _Pool(client(connector), dialer, context, time.monotonic())
            await self._close_unused()
        pool.used = time.monotonic()
        return pool

    async def _context(self, tls: TLSConfig) -> ssl.SSLContext:
        """Return a context for a server. Raises Unreachable if the bundle has no certificate."""
        if not tls.is_verified or tls.client_certificate is not None or tls.ca_bundle:
            # In a thread, because a bundle may have thousands of certificates.
            return await asyncio.to_thread(_tls_context, tls)
        if self._host_tls is None:
            self._host_tls = await asyncio.to_thread(_tls_context, tls)
        return self._host_tls

    async def _close_unused(self) -> None:
        """Close the pools beyond MAX_POOLS, and those that were not used for long."""
        oldest = sorted((pool.used, key) for key, pool in self._pools.items() if not pool.requests)
        long_ago = time.monotonic() - 10 * KEPT_SECONDS
        for number, (used, key) in enumerate(oldest):
            if used < long_ago or number < len(self._pools) - MAX_POOLS:
                await _close(self._pools.pop(key))

    async def close(self) -> None:
        """Close every connection."""
        while self._pools:
            await _close(self._pools.popitem()[1])


def find_places(store: Storage, service: ServiceTarget) -> list[_Place]:
    """Return the ports of the ready pods of a service in its own namespace. Raises Unreachable if there is none."""
    record = store.get_uncommitted(Key(group_resource(Service), service.namespace, service.name))
    if record is None:
        raise Unreachable(f'service "{service.name}" not found')
    spec = record.object.spec
    if spec.type == "ExternalName":
        raise Unreachable('unsupported service type "ExternalName"')
    port = next((port for port in spec.ports if port.port == service.port), None)
    if port is None:
        raise Unreachable(f'no service port {service.port} found for service "{service.name}"')
    endpoints = store.get_uncommitted(Key(group_resource(Endpoints), service.namespace, service.name))
    places = [] if endpoints is None else list(_ready_pods(store, service, endpoints.object, port.name))
    if not places:
        raise Unreachable(f'no endpoints available for service "{service.name}"')
    return places


def _ready_pods(store: Storage, service: ServiceTarget, endpoints: Endpoints, port_name: str) -> Iterator[_Place]:
    for subset in endpoints.subsets:
        number = next((known.port for known in subset.ports if known.name == port_name), None)
        if number is None:
            continue
        for address in subset.addresses:
            target = address.target_ref
            if target is None or target.namespace != service.namespace or unreachable_reason(address.ip):
                continue
            record = store.get_uncommitted(Key(group_resource(Pod), service.namespace, target.name))
            if record is not None and address.ip in {pod_ip.ip for pod_ip in record.object.status.pod_ips}:
                yield _Place(record.object, HostPort(address.ip, number), service.server_name)


def _host(url: URL) -> _Place:
    host = url.raw_host or ""
    return _Place(None, HostPort(host, url.port or 443), host)


def _tls_context(tls: TLSConfig) -> ssl.SSLContext:
    if not tls.is_verified:
        context = insecure_tls()
    else:
        try:
            context = ssl.create_default_context(cadata=tls.ca_bundle.decode("ascii") or None)
        except (ssl.SSLError, ValueError) as error:
            text = "unable to load root certificates: unable to parse bytes as PEM block"
            raise Unreachable(text) from error
        context.verify_flags &= ~ssl.VERIFY_X509_STRICT
        context.hostname_checks_common_name = False
    if tls.client_certificate is not None:
        context.load_cert_chain(tls.client_certificate)
    return context


async def _close(pool: _Pool) -> None:
    await pool.session.close()
    if pool.dialer is not None:
        await pool.dialer.end()


async def _read(response: aiohttp.ClientResponse, max_bytes: int) -> bytes:
    """Return the body. Raises Unreachable if it is larger, or if the server ends it early."""
    body = bytearray()
    try:
        while part := await response.content.read(READ_BYTES):
            body += part
            if len(body) > max_bytes:
                raise ResponseTooLarge(max_bytes, response.status)
    except (aiohttp.ClientError, OSError) as error:
        raise Unreachable(f"unexpected EOF: {error}") from error
    return bytes(body)
