"""Serves ADD, DEL, CHECK and STATUS of pods on a unix socket, for the CNI plugin and the node agent."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import TypeVar

import msgspec
from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

from api.network.attach import (
    CNI,
    NODE_AGENT,
    AttachError,
    Attachment,
    AttachRequest,
    DetachRequest,
    NetworkStatus,
    Sandboxes,
    check_attach_request,
)
from reconcile.errors import DriverError, Gone, NotReady
from sdn import metrics
from sdn.cniserver.attacher import PodAttacher
from sdn.cniserver.pod_ports import InterfaceConfig, host_veth_name
from sdn.drivers.netlink import netns_id
from sdn.model.match import mac_text
from sdn.model.service_port import Protocol
from sdn.network_state import NetworkState
from sdn.topology import NodeNetwork, mac_of

CONFLIST = "10-podlane.conflist"


def conflist(socket: str) -> str:
    """Return a CNI network configuration list whose only plugin uses this socket.

    Version 0.4.0 of the format has all that is needed, and older runtimes do not know 1.0.0.
    """
    plugin = {"type": "podlane-cni", "socket": socket}
    return json.dumps({"cniVersion": "0.4.0", "name": "podlane", "plugins": [plugin]}, indent=2) + "\n"


R = TypeVar("R", bound=msgspec.Struct)

REQUEST_TIMEOUT_SECONDS = 10.0
"""How long a request waits for the network, or for the project's VNID, before the client has to try again."""

CLOSING_SECONDS = 1.0
"""How long requests in progress may still take when the daemon stops."""

UNKNOWN_SANDBOX, BAD_REQUEST, TRY_AGAIN, NOT_READY, REFUSED = 3, 4, 11, 50, 100
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class CniServer:
    """Serves requests on a unix socket that only root may open.

    `dns_enabled` is True if the gateway of pods is their name server. `health_port` is the daemon's own TCP port.
    """

    def __init__(
        self, attacher: PodAttacher, state: NetworkState, socket: Path, *, dns_enabled: bool, health_port: int
    ) -> None:
        self._attacher = attacher
        self._state = state
        self._dns_enabled = dns_enabled
        self._health_port = health_port
        self._socket = socket
        self._runner: web.AppRunner | None = None

    async def start(self) -> None:
        """Start listening. A socket that an earlier process left is replaced."""
        app = web.Application(middlewares=[_errors])
        app.router.add_post("/ADD", self._add)
        app.router.add_post("/DEL", self._del)
        app.router.add_post("/CHECK", self._check)
        app.router.add_get("/STATUS", self._status)
        app.router.add_get("/SANDBOXES", self._sandboxes)
        app.router.add_get("/METRICS", _metrics)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=CLOSING_SECONDS)
        await self._runner.setup()
        self._socket.parent.mkdir(parents=True, exist_ok=True)
        self._socket.unlink(missing_ok=True)
        before = os.umask(0o177)
        try:
            await web.UnixSite(self._runner, str(self._socket)).start()
        finally:
            os.umask(before)

    async def stop(self) -> None:
        """Stop listening."""
        if self._runner is not None:
            await self._runner.cleanup()

    async def _add(self, request: web.Request) -> web.Response:
        body = await _decode_body(request, AttachRequest)
        config = _interface_config(body)
        with metrics.ATTACH_SECONDS.time():
            if not self._attacher.is_attached(config):
                await self._attach(config)
            return _json_response(self._attachment(body.sandbox))

    async def _attach(self, config: InterfaceConfig) -> None:
        try:
            await asyncio.wait_for(asyncio.shield(self._attacher.attach(config)), REQUEST_TIMEOUT_SECONDS)
        except TimeoutError:
            self._attacher.detach(config.sandbox)
            reason = self._attacher.pending_reason(config.namespace)
            raise NotReady(f"sandbox {config.sandbox} is not attached: {reason}") from None

    def _attachment(self, sandbox: str) -> Attachment:
        address, network = self._attacher.address_of(sandbox), self._state.network
        if address is None or network is None:
            raise NotReady(f"sandbox {sandbox} was detached meanwhile")
        return Attachment(
            ip=str(address),
            gateway=str(network.node.gateway),
            mac=mac_text(mac_of(address.ip)),
            mtu=network.cluster.mtu,
            host_interface=host_veth_name(sandbox),
            nameserver=self._nameserver(network),
        )

    def _nameserver(self, network: NodeNetwork) -> str:
        return str(network.node.gateway) if self._dns_enabled else ""

    async def _del(self, request: web.Request) -> web.Response:
        body = await _decode_body(request, DetachRequest)
        try:
            await asyncio.wait_for(asyncio.shield(self._attacher.detach(body.sandbox)), REQUEST_TIMEOUT_SECONDS)
        except TimeoutError:
            raise NotReady(f"sandbox {body.sandbox} is not detached yet: {self._state.not_ready_reason}") from None
        return web.json_response({})

    async def _check(self, request: web.Request) -> web.Response:
        body = await _decode_body(request, AttachRequest)
        await self._attacher.check(_interface_config(body))
        return web.json_response({})

    async def _status(self, _: web.Request) -> web.Response:
        network = self._state.network
        if self._state.not_ready_reason or network is None:
            raise NotReady(self._state.not_ready_reason)
        status = NetworkStatus(
            ready=True,
            subnet=str(network.node.subnet),
            gateway=str(network.node.gateway),
            mtu=network.cluster.mtu,
            nameserver=self._nameserver(network),
            reserved_ports=tuple(self._reserved_ports(network)),
            lost_peers=self._state.lost_peers,
            firewall_problem=self._state.firewall_problem,
        )
        return _json_response(status)

    def _reserved_ports(self, network: NodeNetwork) -> Iterator[str]:
        """Yield the ports of tunnels, of this daemon, of the name server and of services."""
        yield f"{network.cluster.vxlan_port}/udp"
        yield f"{self._health_port}/tcp"
        if self._dns_enabled:
            yield from ("53/tcp", "53/udp")
        first, last = network.cluster.node_ports
        yield from (f"{first}-{last}/{protocol.name.lower()}" for protocol in Protocol)

    async def _sandboxes(self, request: web.Request) -> web.Response:
        runtime = request.query.get("runtime", "")
        if runtime not in {NODE_AGENT, CNI}:
            raise web.HTTPBadRequest(text=f"runtime is {runtime!r}; {NODE_AGENT} or {CNI} is accepted")
        return _json_response(Sandboxes(sandboxes=self._attacher.sandboxes(runtime)))


def _interface_config(body: AttachRequest) -> InterfaceConfig:
    """Return the requested configuration.

    Raises Gone if the network namespace is gone, and Refused if it is the node's own.
    """
    return InterfaceConfig(
        sandbox=body.sandbox,
        namespace=body.namespace,
        name=body.name,
        uid=body.uid,
        netns=body.netns,
        netns_id=netns_id(body.netns),
        ifname=body.ifname,
        runtime=body.runtime,
        ingress_bandwidth=body.ingress_bandwidth,
        egress_bandwidth=body.egress_bandwidth,
    )


async def _metrics(_: web.Request) -> web.Response:
    return web.Response(body=generate_latest(), headers={"Content-Type": CONTENT_TYPE_LATEST})


async def _decode_body(request: web.Request, kind: type[R]) -> R:
    try:
        body = msgspec.json.decode(await request.read(), type=kind)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise web.HTTPBadRequest(text=str(error)) from None
    errors = tuple(check_attach_request(body)) if isinstance(body, AttachRequest) else ()
    if errors:
        raise web.HTTPBadRequest(text="; ".join(errors))
    return body


def _json_response(value: msgspec.Struct, status: int = 200) -> web.Response:
    return web.Response(body=msgspec.json.encode(value), status=status, content_type="application/json")


@web.middleware
async def _errors(request: web.Request, handler: Handler) -> web.StreamResponse:
    try:
        return await handler(request)
    except web.HTTPBadRequest as error:
        body, status = AttachError(code=BAD_REQUEST, msg=error.text or "bad request"), 400
    except NotReady as error:
        code = NOT_READY if request.path == "/STATUS" else TRY_AGAIN
        body, status = AttachError(code=code, msg=str(error)), 503
    except Gone as error:
        body, status = AttachError(code=UNKNOWN_SANDBOX, msg=str(error)), 404
    except DriverError as error:
        body, status = AttachError(code=REFUSED, msg=str(error)), 400
    metrics.ATTACH_ERRORS.labels(request.path.strip("/")).inc()
    return _json_response(body, status)
