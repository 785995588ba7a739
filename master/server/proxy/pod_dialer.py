"""Connections to a port of a pod, by portforward of the server of its node. Driver.

A node joins streams of SPDY/3.1 with a port of a pod (`portforward.k8s.io`). So the master needs no route into the
pod network. The pod sees a connection from its own loopback.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
from aiohttp.client_proto import ResponseHandler

from api.core.pod import Pod
from master.server.proxy.kubelet_client import IDLE_SECONDS, HostPort, KubeletClient, Unreachable
from streams.connection import Connection
from streams.spdy.session import Session, SpdyStream
from streams.splice import splice
from streams.upgrade import upgraded_connection

PORT_FORWARD_HEADERS = {
    "Connection": "Upgrade",
    "Upgrade": "SPDY/3.1",
    "X-Stream-Protocol-Version": "portforward.k8s.io",
}


class PodDialer(aiohttp.BaseConnector):
    """A connector for one client, used inside `carrying`; `refusal` is the last error message of the node."""

    def __init__(self, nodes: KubeletClient, pod: Pod, place: HostPort) -> None:
        super().__init__(force_close=True, limit=0)
        self._nodes = nodes
        self._pod = pod
        self._place = place
        self._carriers: set[asyncio.Task[None]] = set()
        self.refusal = ""

    @asynccontextmanager
    async def carrying(self) -> AsyncIterator[None]:
        """Carry bytes for the connections that are made inside; close them at the end."""
        try:
            yield
        finally:
            for carrier in self._carriers:
                carrier.cancel()
            await asyncio.gather(*self._carriers, return_exceptions=True)

    async def _create_connection(
        self,
        req: aiohttp.ClientRequest,
        traces: list[Any],
        timeout: aiohttp.ClientTimeout,  # noqa: ASYNC109
    ) -> ResponseHandler:
        """Open a connection for aiohttp."""
        session = Session(await self._tunnel(), client=True)
        try:
            headers = {"port": str(self._place.port), "requestid": "0"}
            errors = await session.open({"streamtype": "error", **headers})
            await errors.end()
            data = await session.open({"streamtype": "data", **headers})
            near, far = socket.socketpair()
            loop = asyncio.get_running_loop()
            _, carrier = await loop.create_unix_connection(Connection, sock=far)
        except ConnectionError as error:
            session.abort()
            raise self._failed(req, f"the node broke off: {error}") from error
        except BaseException:
            session.abort()
            raise
        task = loop.create_task(self._carry(session, errors, data, carrier))
        self._carriers.add(task)
        task.add_done_callback(self._carriers.discard)
        secret: dict[str, Any] = {"ssl": req.ssl, "server_hostname": self._place.host} if req.is_ssl() else {}
        try:
            _, protocol = await loop.create_unix_connection(self._factory, sock=near, **secret)
        except OSError as error:
            raise self._failed(req, str(error)) from error
        return protocol

    async def _tunnel(self) -> Connection:
        meta, node = self._pod.metadata, self._pod.spec.node_name
        try:
            response = await self._nodes.open(
                node, "POST", f"/portForward/{meta.namespace}/{meta.name}", PORT_FORWARD_HEADERS
            )
        except Unreachable as error:
            self.refusal = str(error)
            raise aiohttp.ClientConnectionError(str(error)) from error
        if response.status != 101:
            text = (await response.content.read(1000)).decode(errors="replace").strip()
            response.close()
            self.refusal = text or f"node {node} answered {response.status}"
            raise aiohttp.ClientConnectionError(self.refusal)
        return upgraded_connection(response)

    def _failed(self, req: aiohttp.ClientRequest, text: str) -> aiohttp.ClientConnectionError:
        self.refusal = self.refusal or text
        return aiohttp.ClientConnectionError(f"{req.url.host}: {text}")

    async def _carry(self, session: Session, errors: SpdyStream, data: SpdyStream, carrier: Connection) -> None:
        told = asyncio.create_task(self._refused(errors, carrier))
        try:
            await splice(carrier, data, IDLE_SECONDS)
            await session.close()
        except ConnectionError:
            session.abort()
        except BaseException:
            session.abort()
            raise
        finally:
            told.cancel()

    async def _refused(self, errors: SpdyStream, carrier: Connection) -> None:
        """Return the message of the node when it cannot reach the port."""
        words = b""
        try:
            while part := await errors.read():
                words += part
        except ConnectionError:
            return
        if words:
            self.refusal = words.decode(errors="replace").strip()
            carrier.abort()
