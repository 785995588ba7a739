"""HTTP connections of a client. They are opened again when the credential files change."""

from __future__ import annotations

import logging
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import aiohttp

from api.client.kubeconfig import BadKubeconfig, Kubeconfig

log = logging.getLogger(__name__)

CLEANUP_CLOSED = sys.version_info < (3, 12, 7)
"""Older Python versions leave a TLS connection open if the server closes it without close_notify."""


class Connection:
    """An HTTP session with one set of credentials. `http` opens TCP connections as needed; `users` counts requests."""

    def __init__(self, kubeconfig: Kubeconfig) -> None:
        self.server = kubeconfig.server
        self.kubeconfig = kubeconfig
        self.users = 0
        # Without TLS no context is built: one without a CA reads all certificates of the machine, which takes 40 ms.
        tls = kubeconfig.ssl_context() if kubeconfig.server.startswith("https://") else True
        connector = aiohttp.TCPConnector(ssl=tls, limit=0, enable_cleanup_closed=CLEANUP_CLOSED)
        headers = {"Authorization": f"Bearer {kubeconfig.token}"} if kubeconfig.token else None
        self.http = aiohttp.ClientSession(connector=connector, headers=headers)

    @property
    def server_name(self) -> str | None:
        """The name that the server's certificate must have. None stands for the host name of the URL."""
        return self.kubeconfig.server_name or None


class Connections:
    """The current connection, and older ones that still have requests.

    Only new requests use new credentials: a request ends on the connection on which it began. `kubeconfig` is that of
    new requests.
    """

    def __init__(self, kubeconfig: Kubeconfig) -> None:
        self.kubeconfig = kubeconfig
        self._file_versions = _file_versions(kubeconfig)
        self._current: Connection | None = None
        self._replaced: set[Connection] = set()

    @property
    def server(self) -> str:
        """The URL of the server."""
        return self.kubeconfig.server

    def open(self) -> None:
        """Open the first connection. Raises BadKubeconfig."""
        self._current = Connection(self.kubeconfig)

    async def close(self) -> None:
        """Close all connections."""
        for connection in (self._current, *self._replaced):
            if connection is not None:
                await connection.http.close()

    @asynccontextmanager
    async def acquire(self) -> AsyncIterator[Connection]:
        """Return the connection for one request, with the credentials that the files hold now."""
        if self._current is None:
            raise RuntimeError("use the client in `async with`")
        file_versions = _file_versions(self.kubeconfig)
        if file_versions and file_versions != self._file_versions:
            await self._reload(self._current)
        connection = self._current
        connection.users += 1
        try:
            yield connection
        finally:
            connection.users -= 1
            await self._close_if_unused(connection)

    async def _reload(self, previous: Connection) -> None:
        """Read the kubeconfig again. If it is not valid, perhaps half-written, the next request retries."""
        assert self.kubeconfig.source is not None
        try:
            kubeconfig = Kubeconfig.load(self.kubeconfig.source)
            file_versions = _file_versions(kubeconfig)
            current = Connection(kubeconfig)
        except BadKubeconfig as error:
            log.warning("changed kubeconfig is not valid", extra={"error": str(error)})
            return
        self._current = current
        self.kubeconfig = kubeconfig
        self._file_versions = file_versions
        log.info("kubeconfig reloaded", extra={"file": str(kubeconfig.source)})
        self._replaced.add(previous)
        await self._close_if_unused(previous)

    async def _close_if_unused(self, connection: Connection) -> None:
        if connection in self._replaced and not connection.users:
            self._replaced.discard(connection)
            await connection.http.close()


def _file_versions(kubeconfig: Kubeconfig) -> tuple[tuple[int, int], ...]:
    """Return the versions of the credential files, empty while one of them does not exist."""
    try:
        return kubeconfig.file_versions()
    except OSError:
        return ()
