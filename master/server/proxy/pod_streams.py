"""Pod subresources that are answered by nodes: log, exec, attach, portforward, proxy.

Data is passed on and not interpreted. Raises `StatusError`.
"""

from __future__ import annotations

import aiohttp
from aiohttp import web
from multidict import CIMultiDict

from api.core.pod import Pod
from master.kinds.pod import POD
from master.server.proxy.forwarding import Forwarder
from master.server.proxy.kubelet_client import KubeletClient, Unreachable
from master.server.proxy.proxy import ProxyHandler
from master.store.records import Key
from master.store.store import Store
from master.wire import answers, passing, pod_options
from master.wire.passing import Passage

MAX_ERROR_BYTES = 50_000
"""Bytes of a node's refusal that are read."""


class PodStreams:
    """`await serve(...)` for one request; `end_all` cuts off all that are under way."""

    def __init__(self, store: Store, nodes: KubeletClient) -> None:
        self._store = store
        self._nodes = nodes
        self._joints = Forwarder()
        self._proxies = ProxyHandler(store, nodes, self._joints)

    def end_all(self) -> None:
        """Cut off everything that goes through."""
        self._joints.end_all()

    async def serve(self, http: web.Request, passage: Passage) -> web.StreamResponse:
        """Answer a request, by whoever can."""
        part = passage.where.subresource
        allowed = {passing.PROXY: passing.METHODS, "log": {"GET"}}.get(part, {"GET", "POST"})
        if http.method not in allowed:
            raise answers.not_allowed()
        if part == "log":
            return await self._log(http, passage)
        if "dryRun" in http.query:
            raise answers.bad_request("dryRun is not supported")
        if part == passing.PROXY:
            return await self._proxies.serve(http, passage)
        return await self._converse(http, passage)

    def _pod(self, passage: Passage) -> Pod:
        where = passage.where
        record = self._store.latest(Key(Pod.KIND, where.namespace, where.name))
        if record is None:
            raise answers.not_found(POD, where.name)
        return record.object  # type: ignore[no-any-return]

    async def _log(self, http: web.Request, passage: Passage) -> web.StreamResponse:
        options = pod_options.log_options(http.query, passage.where.name)
        pod = self._pod(passage)
        container = pod_options.container(pod, options.container)
        if not pod.spec.node_name:
            return web.Response(status=204)
        path = pod_options.log_path(pod, container, options)
        where = self._nodes.place(pod.spec.node_name)
        try:
            response = await self._nodes.open(pod.spec.node_name, "GET", path, verify=not options.insecure)
        except Unreachable as error:
            raise answers.failure(500, "", f'Get "https://{where}{path}": {error}') from error
        if not 200 <= response.status <= 206:
            raise pod_options.refused_log(response.status, await refusal(response), passage.where.name)
        if http.headers.get("Upgrade", "").lower() == "websocket":
            return await self._joints.messages(http, response)
        headers = CIMultiDict([("Content-Type", "text/plain"), ("Cache-Control", "no-cache, private")])
        return await self._joints.copy(http, response, headers)

    async def _converse(self, http: web.Request, passage: Passage) -> web.StreamResponse:
        pod = self._pod(passage)
        path = pod_options.stream_path(passage.where.subresource, pod, http.query)
        node = pod_options.node_of(pod)
        self._nodes.place(node)
        if not passing.wants_upgrade(http.headers.getall("Connection", [])):
            raise answers.bad_request("Upgrade request required")
        asked = passing.passed_on(list(http.headers.items()), upgrade=True)
        headers = CIMultiDict([pair for pair in asked if pair[0].lower() != "host"])
        try:
            response = await self._nodes.open(node, http.method, path, headers)
        except Unreachable as error:
            raise answers.failure(500, "", f"error dialing backend: {error}") from error
        if response.status == 101:
            return await self._joints.upgrade(http, response)
        if response.status < 400:
            response.close()
            raise answers.failure(500, "", f"invalid upgrade response: status code {response.status}")
        try:
            back = CIMultiDict(passing.passed_back(list(response.headers.items())))
        except answers.Failure:
            response.close()
            raise
        return await self._joints.copy(http, response, back)


async def refusal(response: aiohttp.ClientResponse) -> str:
    """What another side says when it refuses."""
    try:
        body = await response.content.read(MAX_ERROR_BYTES)
    except (aiohttp.ClientError, TimeoutError) as error:
        raise pod_options.internal(str(error)) from error
    finally:
        response.close()
    return body.decode(errors="replace").rstrip("\n")
