"""Services for the node's own processes and for the outside: keeps the nftables table as the served ports want it."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace

from reconcile.errors import NotReady, Refused
from sdn.drivers.conntrack import Conntrack
from sdn.drivers.nft import Nft
from sdn.drivers.nft_watch import NftWatch
from sdn.services.connections import Connection, Place, changed_fronts, datagram_fronts, stale
from sdn.services.maps import TABLE, Host, edit, edit_nodes, fresh_table, table
from sdn.services.served_port import PortChange, ServedPort

log = logging.getLogger(__name__)

_ONE_BY_ONE = 16
"""Fronts up to which the kernel is asked for the connections of each, rather than for all."""


class HostServices:
    """`on_touch` is called when somebody else has changed the table: it `is_touched` until it was replaced.

    One call at a time.
    """

    def __init__(self, nft: Nft, on_touch: Callable[[], None]) -> None:
        self._nft = nft
        self._conntrack = Conntrack()
        self._watch = NftWatch(nft, (TABLE,), on_touch)
        self._host: Host | None = None

    @property
    def is_touched(self) -> bool:
        """Whether the table may be otherwise than it should be, and has to be replaced."""
        return self._host is None or self._watch.is_touched

    async def open(self) -> None:
        """Begin to listen for changes by others."""
        self._watch.open()

    def close(self) -> None:
        """Listen no more; the table stays as it is."""
        self._watch.close()
        self._conntrack.close()

    async def replace(self, host: Host, ports: Iterable[ServedPort]) -> None:
        """Serve exactly these, whatever there was: connections go on, and so do affinities. Raises DriverError."""
        served = tuple(ports)
        self._host = None
        with self._watch.deaf():
            try:
                await self._nft.apply(table(host, served))
            except Refused as error:
                log.warning("the table is of another make and is replaced", extra={"why": str(error)})
                await self._nft.apply(fresh_table(host, served))
        self._host = host
        fronts = datagram_fronts(host, served)
        if fronts and not host.proxy_port:
            await self._conntrack.forget(stale(fronts, await self._conntrack.all()))

    async def edit(self, host: Host, change: PortChange) -> None:
        """Serve what has come instead of what has gone. Raises DriverError: then the table has to be replaced."""
        before, self._host = self._host, None
        if before is None or replace(before, nodes=host.nodes) != host:
            raise NotReady(f"the nftables table {TABLE} is not what changes of services could build on")
        text = edit_nodes(before.nodes - host.nodes, host.nodes - before.nodes) + edit(host, change)
        if text:
            await self._nft.apply(text)
        self._host = host
        fronts = changed_fronts(host, change)
        if host.proxy_port:
            fronts = {front: backends for front, backends in fronts.items() if not backends}
        await self._conntrack.forget(stale(fronts, await self._connections(fronts)))

    async def _connections(self, fronts: Mapping[Place, frozenset[Place]]) -> list[Connection]:
        if len(fronts) > _ONE_BY_ONE:
            return await self._conntrack.all()
        return [one for address, port in fronts for one in await self._conntrack.to(address, port)]
