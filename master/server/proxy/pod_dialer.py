"""Connections to a port of a pod, through the portforward endpoint of its kubelet. Driver.

A kubelet connects SPDY/3.1 streams with a port of a pod (`portforward.k8s.io`), so the master needs no route into the
pod network. The pod sees a connection from its own loopback address.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
from aiohttp.client_proto import ResponseHandler

from api.core.pod import Pod
from master.server.proxy.kubelet_client import IDLE_SECONDS, HostPort, KubeletClient, Unreachable, verification_error
from streams.connection import Connection
from streams.spdy.session import Session, SpdyStream
from streams.splice import splice
from streams.upgrade import upgraded_connection

PORT_FORWARD_HEADERS = {
    "Connection": "Upgrade",
    "Upgrade": "SPDY/3.1",
    "X-Stream-Protocol-Version": "portforward.k8s.io",
}


KEPT_SECONDS = 60.0
"""Seconds that a kept connection waits for the next request."""

MAX_KEPT_CONNECTIONS = 100
"""Connections to one port of a pod that are kept for further requests. More requests than these wait."""


class PodDialer(aiohttp.BaseConnector):
    """A connector for one client. `error` is the error message of the last connection, empty if none.

    It is used inside `open()`, or ended by `end`. With `server_name` the certificate of the pod is verified for that
    name, and connections are kept for further requests, of which at most `limit` are open; 0 for any number.
    """

    def __init__(
        self,
        nodes: KubeletClient,
        pod: Pod,
        address: HostPort,
        server_name: str = "",
        limit: int = MAX_KEPT_CONNECTIONS,
    ) -> None:
        if server_name:
            super().__init__(keepalive_timeout=KEPT_SECONDS, limit=limit)
        else:
            super().__init__(force_close=True, limit=0)
        self._server_name = server_name or address.host
        self._nodes = nodes
        self._pod = pod
        self._address = address
        self._tasks: set[asyncio.Task[None]] = set()
        self.error = ""

    @asynccontextmanager
    async def open(self) -> AsyncIterator[None]:
        """Forward data of the connections that are made inside the context; close them at its end."""
        try:
            yield
        finally:
            await self.end()

    async def end(self) -> None:
        """Close all connections."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _create_connection(
        self,
        req: aiohttp.ClientRequest,
        traces: list[Any],
        timeout: aiohttp.ClientTimeout,  # noqa: ASYNC109
    ) -> ResponseHandler:
        """Open a connection for aiohttp."""
        self.error = ""
        session = Session(await self._port_forward(), client=True)
        try:
            headers = {"port": str(self._address.port), "requestid": "0"}
            errors = await session.open({"streamtype": "error", **headers})
            await errors.end()
            data = await session.open({"streamtype": "data", **headers})
            near, far = socket.socketpair()
            loop = asyncio.get_running_loop()
            _, connection = await loop.create_unix_connection(Connection, sock=far)
        except ConnectionError as error:
            session.abort()
            raise self._failed(req, f"the node closed the connection: {error}") from error
        except BaseException:
            session.abort()
            raise
        task = loop.create_task(self._splice(session, errors, data, connection))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        tls: dict[str, Any] = {"ssl": req.ssl, "server_hostname": self._server_name} if req.is_ssl() else {}
        try:
            _, protocol = await loop.create_unix_connection(self._factory, sock=near, **tls)
        except ssl.SSLCertVerificationError as error:
            raise self._failed(req, verification_error(error, self._server_name)) from error
        except OSError as error:
            raise self._failed(req, str(error)) from error
        return protocol

    async def _port_forward(self) -> Connection:
        meta, node = self._pod.metadata, self._pod.spec.node_name
        try:
            response = await self._nodes.open(
                node, "POST", f"/portForward/{meta.namespace}/{meta.name}", PORT_FORWARD_HEADERS
            )
        except Unreachable as error:
            self.error = str(error)
            raise aiohttp.ClientConnectionError(str(error)) from error
        if response.status != 101:
            text = (await response.content.read(1000)).decode(errors="replace").strip()
            response.close()
            self.error = text or f"node {node} responded with {response.status}"
            raise aiohttp.ClientConnectionError(self.error)
        return upgraded_connection(response)

    def _failed(self, req: aiohttp.ClientRequest, text: str) -> aiohttp.ClientConnectionError:
        self.error = self.error or text
        return aiohttp.ClientConnectionError(f"{req.url.host}: {text}")

    async def _splice(self, session: Session, errors: SpdyStream, data: SpdyStream, connection: Connection) -> None:
        error_reader = asyncio.create_task(self._read_error(errors, connection))
        try:
            await splice(connection, data, IDLE_SECONDS)
            await session.close()
        except ConnectionError:
            session.abort()
        except BaseException:
            session.abort()
            raise
        finally:
            error_reader.cancel()

    async def _read_error(self, errors: SpdyStream, connection: Connection) -> None:
        """Read the error stream. A message says that the node cannot reach the port; it ends the connection."""
        message = b""
        try:
            while part := await errors.read():
                message += part
        except ConnectionError:
            return
        if message:
            self.error = message.decode(errors="replace").strip()
            connection.abort()
