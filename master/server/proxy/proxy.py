"""The reverse proxy to nodes, pods and pods of services.

The master needs no route into the pod network: it reaches a pod by the server of its node. Redirects, and links in
pages that are not compressed, are rewritten to paths of the master. Raises `StatusError`.
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
from master.server.proxy.kubelet_client import HostPort, KubeletClient, Unreachable, ask, client, insecure_tls
from master.server.proxy.pod_dialer import PodDialer
from master.server.routes import ProxyRoute
from master.storage.interface import Key, Storage

DEFAULT_PORTS = {"http": 80, "https": 443}

Send = Callable[[str, str, CIMultiDict[str], Any], Awaitable[aiohttp.ClientResponse]]
"""(method, raw path with query, headers, body) -> the answer. Raises Unreachable."""


class ProxyHandler:
    """Serves proxy requests: `serve` handles one."""

    def __init__(self, storage: Storage, nodes: KubeletClient, joints: Forwarder) -> None:
        self._store = storage
        self._nodes = nodes
        self._joints = joints

    async def serve(self, http: web.Request, route: ProxyRoute) -> web.StreamResponse:
        """Forward a request, and send its response back."""
        resource, name = route.info.resource, route.info.name
        wanted = parse_backend(name)
        if wanted is None:
            raise errors.bad_request(f'invalid {resource.singular} request "{name}"')
        ways = {"Node": self._node, "Pod": self._pod, "Service": self._service}
        async with ways[resource.kind](route.info.namespace, wanted) as (where, send):
            return await self._forward(http, route, where, send)

    # --- who answers ---------------------------------------------------------------------------------------------

    @asynccontextmanager
    async def _node(self, namespace: str, wanted: Backend) -> AsyncIterator[tuple[HostPort, Send]]:
        del namespace
        where = self._nodes.place(wanted.name)
        if wanted.port in ("", str(where.port)):

            async def send(method: str, path: str, headers: CIMultiDict[str], data: Any) -> aiohttp.ClientResponse:
                return await self._nodes.open(wanted.name, method, path, headers, data=data)

            yield where, send
            return
        place = HostPort(where.host, _port(wanted))
        async with self._direct(wanted.scheme, place) as found:
            yield place, found

    @asynccontextmanager
    async def _pod(self, namespace: str, wanted: Backend) -> AsyncIterator[tuple[HostPort, Send]]:
        pod: Pod = self._object(PODS, namespace, wanted.name)
        declared = next(
            (container.ports[0].container_port for container in pod.spec.containers if container.ports), None
        )
        port = _port(wanted) if wanted.port or declared is None else declared
        async with self._inside(pod, wanted.scheme, HostPort(pod.status.pod_ip, port)) as found:
            yield found

    @asynccontextmanager
    async def _service(self, namespace: str, wanted: Backend) -> AsyncIterator[tuple[HostPort, Send]]:
        port = wanted.port
        if port.isdecimal():
            service: Service = self._object(SERVICES, namespace, wanted.name)
            named = next((known for known in service.spec.ports if known.port == int(port)), None)
            if named is None:
                raise _service_unavailable(f'no service port {port} found for service "{wanted.name}"')
            port = named.name
        endpoints: Endpoints = self._object(BY_KIND[Endpoints.KIND], namespace, wanted.name)
        if not endpoints.subsets:
            raise _service_unavailable(f'no endpoints available for service "{wanted.name}"')
        for subset in random.sample(endpoints.subsets, len(endpoints.subsets)):
            found = self._ready(namespace, subset, port)
            if found is not None:
                pod, place = found
                async with self._inside(pod, wanted.scheme, place) as way:
                    yield way
                return
        requested = ":".join(
            part for part in (wanted.scheme if wanted.scheme == "https" else "", wanted.name, wanted.port)
        )
        raise _service_unavailable(f'no endpoints available for service "{requested.strip(":")}"')

    def _ready(self, namespace: str, subset: EndpointSubset, port: str) -> tuple[Pod, HostPort] | None:
        """Return a random pod of the subset and its address. Addresses that are no pod of the project are not used."""
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
    async def _inside(self, pod: Pod, scheme: str, place: HostPort) -> AsyncIterator[tuple[HostPort, Send]]:
        """Return a connection to a port of a pod. Pods in the host network are reached at an address of the node."""
        its_nodes = not pod.spec.host_network or self._nodes.has(pod.spec.node_name, place.host)
        if unreachable_reason(place.host) or not its_nodes:
            raise errors.bad_request("address not allowed")
        if pod.spec.host_network:
            async with self._direct(scheme, place) as send:
                yield place, send
            return
        connector = PodDialer(self._nodes, pod, place)
        async with connector.carrying(), client(connector) as session:
            yield place, _sender(session, scheme, place, connector)

    @asynccontextmanager
    async def _direct(self, scheme: str, place: HostPort) -> AsyncIterator[Send]:
        async with client(self._nodes.dialler()) as session:
            yield _sender(session, scheme, place)

    # --- the request ---------------------------------------------------------------------------------------------

    async def _forward(self, http: web.Request, route: ProxyRoute, where: HostPort, send: Send) -> web.StreamResponse:
        url = http.rel_url
        upgrade = forwarding.wants_upgrade(http.headers.getall("Connection", []))
        if not route.path and not upgrade:
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
            return await self._joints.upgrade(http, response)
        try:
            back = CIMultiDict(forwarding.response_headers(list(response.headers.items())))
        except errors.StatusError:
            response.close()
            raise
        hosts = (str(where), http.headers.get("Host", ""))
        if "Location" in back:
            back["Location"] = forwarding.rewrite_location(back["Location"], prefix, hosts)
        elif _is_plain_page(http, response):
            return await self._joints.copy(
                http,
                response,
                back,
                lambda text: forwarding.rewrite_links(
                    text, lambda url: forwarding.rewrite_location(url, prefix, hosts)
                ),
            )
        return await self._joints.copy(http, response, back)


def _is_plain_page(http: web.Request, response: aiohttp.ClientResponse) -> bool:
    """Return whether the response is uncompressed HTML."""
    has_body = http.method != "HEAD" and response.status not in (204, 304)
    return has_body and response.content_type == "text/html" and "Content-Encoding" not in response.headers


def _service_unavailable(text: str) -> errors.StatusError:
    """Return 503 without Retry-After, because clients would wait for a backend that may never come."""
    return errors.status_error(503, "ServiceUnavailable", text)


def _port(wanted: Backend) -> int:
    text = wanted.port or str(DEFAULT_PORTS[wanted.scheme])
    if not (text.isascii() and text.isdecimal() and 0 < int(text[:6]) < 65536):
        raise _service_unavailable(f"error trying to reach service: dial tcp: lookup tcp/{text}: unknown port")
    return int(text)


def _sender(session: aiohttp.ClientSession, scheme: str, place: HostPort, told: PodDialer | None = None) -> Send:
    async def send(method: str, path: str, headers: CIMultiDict[str], data: Any) -> aiohttp.ClientResponse:
        url = URL(f"{scheme}://{place}{path}", encoded=True)
        try:
            return await ask(session, place, url, method, headers, data, insecure_tls())
        except Unreachable as error:
            raise (Unreachable(told.refusal) if told is not None and told.refusal else error) from error

    return send


PROXY_METHODS = frozenset(("GET", "POST", "PUT", "PATCH", "DELETE", "HEAD", "OPTIONS"))
"""What a proxy passes on."""


@dataclass(frozen=True, slots=True)
class Backend:
    """The name in the path of a proxy request: NAME, NAME:PORT or SCHEME:NAME:PORT."""

    scheme: str
    name: str
    port: str


def parse_backend(name: str) -> Backend | None:
    """Return the backend that a name in a proxy path means; None if the name is invalid."""
    match name.split(":"):
        case [plain]:
            found = Backend("http", plain, "")
        case [plain, port]:
            found = Backend("http", plain, port)
        case [scheme, plain, port] if scheme in ("", "http", "https"):
            found = Backend(scheme or "http", plain, port)
        case _:
            return None
    return found if found.name else None
