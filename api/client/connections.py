"""HTTP connections of a client. They are opened again when the credential files change."""

from __future__ import annotations

import logging
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import aiohttp

from api.client.kubeconfig import BadKubeconfig, Kubeconfig

log = logging.getLogger(__name__)

FORGETS_TLS = sys.version_info < (3, 12, 7)
"""Older Pythons leave a TLS connection open whose other side went away in the middle of it."""


class Connection:
    """Requests under one identity; `http` keeps what TCP connections it needs."""

    def __init__(self, kubeconfig: Kubeconfig) -> None:
        self.server = kubeconfig.server
        self.kubeconfig = kubeconfig
        self.users = 0
        connector = aiohttp.TCPConnector(ssl=kubeconfig.ssl_context(), limit=0, enable_cleanup_closed=FORGETS_TLS)
        headers = {"Authorization": f"Bearer {kubeconfig.token}"} if kubeconfig.token else None
        self.http = aiohttp.ClientSession(connector=connector, headers=headers)

    @property
    def server_name(self) -> str | None:
        """The name that the server's certificate must have; None for that in the URL."""
        return self.kubeconfig.server_name or None


class Connections:
    """A request that has begun ends on the connection on which it began: only new ones go under the new identity.

    `kubeconfig` is that of new ones.
    """

    def __init__(self, kubeconfig: Kubeconfig) -> None:
        self.kubeconfig = kubeconfig
        self._edition = _edition(kubeconfig)
        self._now: Connection | None = None
        self._old: set[Connection] = set()

    @property
    def server(self) -> str:
        """The URL of the server."""
        return self.kubeconfig.server

    def open(self) -> None:
        """Before the first request. Raises BadKubeconfig."""
        self._now = Connection(self.kubeconfig)

    async def close(self) -> None:
        """End all."""
        for one in (self._now, *self._old):
            if one is not None:
                await one.http.close()

    @asynccontextmanager
    async def one(self) -> AsyncIterator[Connection]:
        """For one request."""
        connection = await self._current()
        connection.users += 1
        try:
            yield connection
        finally:
            connection.users -= 1
            await self._let_go(connection)

    async def _current(self) -> Connection:
        if self._now is None:
            raise RuntimeError("use the client in `async with`")
        edition = _edition(self.kubeconfig)
        if edition and edition != self._edition:
            await self._renew()
        return self._now

    async def _renew(self) -> None:
        """What cannot be read now, half-written perhaps, is tried with the next request."""
        assert self.kubeconfig.source is not None
        assert self._now is not None
        try:
            kubeconfig = Kubeconfig.load(self.kubeconfig.source)
            edition = _edition(kubeconfig)
            fresh = Connection(kubeconfig)
        except BadKubeconfig as error:
            log.warning("a new kubeconfig is of no use", extra={"error": str(error)})
            return
        before, self._now, self.kubeconfig, self._edition = self._now, fresh, kubeconfig, edition
        log.info("a new kubeconfig is in use", extra={"file": str(kubeconfig.source)})
        self._old.add(before)
        await self._let_go(before)

    async def _let_go(self, connection: Connection) -> None:
        if connection in self._old and not connection.users:
            self._old.discard(connection)
            await connection.http.close()


def _edition(kubeconfig: Kubeconfig) -> tuple[tuple[int, int], ...]:
    """Empty while a file is not there."""
    try:
        return kubeconfig.edition()
    except OSError:
        return ()
