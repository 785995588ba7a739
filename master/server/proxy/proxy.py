"""The reverse proxy to nodes, pods and pods of services.

The master needs no route into the pod network: it connects to a pod through its kubelet. Redirects, and links in
uncompressed pages, are rewritten to paths of the master. Raises `StatusError`.
"""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import aiohttp
from aiohttp import web
from multidict import CIMultiDict
from yarl import URL

from api.core.endpoints import Endpoints, EndpointSubset
from api.core.pod import Pod
from api.core.services import Service
from api.network.addresses import unreachable_reason
from master import errors
from master.resources.pods import PODS
from master.resources.resource import AnyResource
from master.resources.scheme import BY_KIND, group_resource
from master.resources.services import SERVICES
from master.server.proxy import forwarding
from master.server.proxy.forwarding import Forwarder
from master.server.proxy.kubelet_client import HostPort, KubeletClient, Unreachable, client, insecure_tls, send_request
from master.server.proxy.pod_dialer import PodDialer
from master.server.routes import ProxyRoute
from master.storage.interface import Key, Storage

DEFAULT_PORTS = {"http": 80, "https": 443}
REDIRECTED_METHODS = frozenset(("GET", "HEAD"))
"""The methods of requests to the root of a backend that are redirected to the URL with a trailing slash.

A client that follows the redirect of another method may leave out the body, or use another method.
"""


Send = Callable[[str, str, CIMultiDict[str], Any], Awaitable[aiohttp.ClientResponse]]
"""(method, raw path with query, headers, body) → response. Raises Unreachable."""


class ProxyHandler:
    """The handler of proxy requests: `serve` handles one."""

    def __init__(self, storage: Storage, nodes: KubeletClient, forwarder: Forwarder) -> None:
        self._store = storage
        self._nodes = nodes
        self._forwarder = forwarder

    async def serve(self, http: web.Request, route: ProxyRoute) -> web.StreamResponse:
        """Forward a request, and send the response to the client."""
        resource, name = route.info.resource, route.info.name
        backend = parse_backend(name)
        if backend is None:
            raise errors.bad_request(f'invalid {resource.singular} request "{name}"')
        connect = {"Node": self._node, "Pod": self._pod, "Service": self._service}
        async with connect[resource.kind](route.info.namespace, backend) as (address, send):
            return await self._forward(http, route, address, send)

    # --- backends ------------------------------------------------------------------------------------------------

    @asynccontextmanager
    async def _node(self, namespace: str, backend: Backend) -> AsyncIterator[tuple[HostPort, Send]]:
        del namespace
        kubelet = self._nodes.address(backend.name)
        if backend.port in ("", str(kubelet.port)):

            async def send(method: str, path: str, headers: CIMultiDict[str], data: Any) -> aiohttp.ClientResponse:
                return await self._nodes.open(backend.name, method, path, headers, data=data)

            yield kubelet, send
            return
        address = HostPort(kubelet.host, _port(backend))
        async with self._connect_from_master(backend.scheme, address) as direct_send:
            yield address, direct_send

    @asynccontextmanager
    async def _pod(self, namespace: str, backend: Backend) -> AsyncIterator[tuple[HostPort, Send]]:
        pod: Pod = self._object(PODS, namespace, backend.name)
        declared = next(
            (container.ports[0].container_port for container in pod.spec.containers if container.ports), None
        )
        port = _port(backend) if backend.port or declared is None else declared
        async with self._connect_to_pod(pod, backend.scheme, HostPort(pod.status.pod_ip, port)) as connection:
            yield connection

    @asynccontextmanager
    async def _service(self, namespace: str, backend: Backend) -> AsyncIterator[tuple[HostPort, Send]]:
        port = backend.port
        if port.isascii() and port.isdecimal() and len(port) < 6:
            service: Service = self._object(SERVICES, namespace, backend.name)
            named = next((known for known in service.spec.ports if known.port == int(port)), None)
            if named is None:
                raise _service_unavailable(f'no service port {port} found for service "{backend.name}"')
            port = named.name
        endpoints: Endpoints = self._object(BY_KIND[Endpoints.KIND], namespace, backend.name)
        if not endpoints.subsets:
            raise _service_unavailable(f'no endpoints available for service "{backend.name}"')
        for subset in random.sample(endpoints.subsets, len(endpoints.subsets)):
            ready = self._ready_pod(namespace, subset, port)
            if ready is not None:
                pod, address = ready
                async with self._connect_to_pod(pod, backend.scheme, address) as connection:
                    yield connection
                return
        requested = ":".join(
            part for part in (backend.scheme if backend.scheme == "https" else "", backend.name, backend.port)
        )
        raise _service_unavailable(f'no endpoints available for service "{requested.strip(":")}"')

    def _ready_pod(self, namespace: str, subset: EndpointSubset, port: str) -> tuple[Pod, HostPort] | None:
        """Return a random ready pod of the subset and its address; None if there is none.

        Only addresses of pods in the service's namespace are used.
        """
        number = next((known.port for known in subset.ports if known.name == port), None)
        if number is None:
            return None
        for address in random.sample(subset.addresses, len(subset.addresses)):
            target = address.target_ref
            if target is None or target.namespace != namespace:
                continue
            record = self._store.get_uncommitted(Key(group_resource(Pod), namespace, target.name))
            if record is not None and address.ip in {pod_ip.ip for pod_ip in record.object.status.pod_ips}:
                return record.object, HostPort(address.ip, number)
        return None

    def _object(self, resource: AnyResource, namespace: str, name: str) -> Any:
        record = self._store.get_uncommitted(Key(resource.stored_group_resource, namespace, name))
        if record is None:
            raise errors.not_found(resource, name)
        return record.object

    @asynccontextmanager
    async def _connect_to_pod(self, pod: Pod, scheme: str, address: HostPort) -> AsyncIterator[tuple[HostPort, Send]]:
        """Yield the address of a port of a pod, and the function that sends requests to it.

        The port of a pod in the host network is at an address of its node. Raises BadRequest for other addresses.
        """
        is_on_node = not pod.spec.host_network or self._nodes.has_address(pod.spec.node_name, address.host)
        if unreachable_reason(address.host) or not is_on_node:
            raise errors.bad_request("address not allowed")
        if pod.spec.host_network:
            async with self._connect_from_master(scheme, address) as send:
                yield address, send
            return
        connector = PodDialer(self._nodes, pod, address)
        async with connector.open(), client(connector) as session:
            yield address, _sender(session, scheme, address, connector)

    @asynccontextmanager
    async def _connect_from_master(self, scheme: str, address: HostPort) -> AsyncIterator[Send]:
        async with client(self._nodes.connector()) as session:
            yield _sender(session, scheme, address)

    # --- requests ------------------------------------------------------------------------------------------------

    async def _forward(self, http: web.Request, route: ProxyRoute, address: HostPort, send: Send) -> web.StreamResponse:
        url = http.rel_url
        upgrade = forwarding.wants_upgrade(http.headers.getall("Connection", []))
        if not route.path and not upgrade and http.method in REDIRECTED_METHODS:
            query = f"?{url.raw_query_string}" if url.raw_query_string else ""
            return web.Response(status=301, headers={"Location": f"{url.raw_path}/{query}"})
        prefix = url.raw_path.removesuffix(route.path)
        headers = CIMultiDict(forwarding.request_headers(list(http.headers.items()), upgrade=upgrade))
        headers.pop("Expect", None)
        known = headers.popall("X-Forwarded-For", [])
        headers["X-Forwarded-For"] = ", ".join([*known, http.remote or "unknown"])
        if not upgrade:
            headers["X-Forwarded-Uri"] = prefix + route.path
        path = (route.path or "/") + (f"?{url.raw_query_string}" if url.raw_query_string else "")
        try:
            response = await send(http.method, path, headers, http.content if http.body_exists else None)
        except Unreachable as error:
            if upgrade:
                raise errors.status_error(500, "", f"error dialing backend: {error}") from error
            raise _service_unavailable(f"error trying to reach service: {error}") from error
        if response.status == 101 and upgrade:
            return await self._forwarder.upgrade(http, response, prefix)
        try:
            back = CIMultiDict(forwarding.response_headers(list(response.headers.items()), prefix))
        except errors.StatusError:
            response.close()
            raise
        hosts = (str(address), http.headers.get("Host", ""))
        if "Location" in back:
            back["Location"] = forwarding.rewrite_location(back["Location"], prefix, hosts)
        elif _is_plain_page(http, response):
            return await self._forwarder.copy_response(
                http,
                response,
                back,
                lambda text: forwarding.rewrite_links(
                    text, lambda url: forwarding.rewrite_location(url, prefix, hosts)
                ),
            )
        return await self._forwarder.copy_response(http, response, back)


def _is_plain_page(http: web.Request, response: aiohttp.ClientResponse) -> bool:
    """Return whether the response is uncompressed HTML."""
    has_body = http.method != "HEAD" and response.status not in (204, 304)
    return has_body and response.content_type == "text/html" and "Content-Encoding" not in response.headers


def _service_unavailable(text: str) -> errors.StatusError:
    """Return 503 without Retry-After, because clients would wait for a backend that may never become available."""
    return errors.status_error(503, "ServiceUnavailable", text)


def _port(backend: Backend) -> int:
    text = backend.port or str(DEFAULT_PORTS[backend.scheme])
    if not (text.isascii() and text.isdecimal() and 0 < int(text[:6]) < 65536):
        raise _service_unavailable(f"error trying to reach service: dial tcp: lookup tcp/{text}: unknown port")
    return int(text)


def _sender(session: aiohttp.ClientSession, scheme: str, address: HostPort, dialer: PodDialer | None = None) -> Send:
    async def send(method: str, path: str, headers: CIMultiDict[str], data: Any) -> aiohttp.ClientResponse:
        url = URL(f"{scheme}://{address}{path}", encoded=True)
        try:
            return await send_request(session, address, url, method, headers, data, insecure_tls())
        except Unreachable as error:
            raise (Unreachable(dialer.error) if dialer is not None and dialer.error else error) from error

    return send


PROXY_METHODS = frozenset(("GET", "POST", "PUT", "PATCH", "DELETE", "HEAD", "OPTIONS"))
"""Methods that a proxy forwards."""


@dataclass(frozen=True, slots=True)
class Backend:
    """The name in the path of a proxy request: NAME, NAME:PORT or SCHEME:NAME:PORT."""

    scheme: str
    name: str
    port: str


def parse_backend(name: str) -> Backend | None:
    """Return the backend that a name in a proxy path stands for; None if the name is invalid."""
    match name.split(":"):
        case [plain]:
            backend = Backend("http", plain, "")
        case [plain, port]:
            backend = Backend("http", plain, port)
        case [scheme, plain, port] if scheme in ("", "http", "https"):
            backend = Backend(scheme or "http", plain, port)
        case _:
            return None
    return backend if backend.name else None
