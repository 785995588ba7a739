"""Keeps the nftables table of services, and removes stale conntrack entries."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace

from reconcile.errors import NotReady, Refused
from sdn.drivers.conntrack import Conntrack
from sdn.drivers.nftables import Nftables, NftablesMonitor
from sdn.model.host import ConntrackEntry
from sdn.model.service_port import ServicePortChange, ServicePortInfo, ServicePortName
from sdn.proxy.conntrack import AddressPort, changed_udp_frontends, stale_entries, udp_frontends
from sdn.proxy.nftables import TABLE, Host, node_ip_update, recreated_table, services_table, table_update
from sdn.proxy.service_ports import ProxyConfig
from sdn.proxy.userspace.proxier import UserspaceProxier


class NftablesBackend:
    """For callers outside of pods: nftables. With a proxy it hands over to that."""

    name = "firewall"

    def __init__(self, services: ServicesTable, proxy: UserspaceProxier | None) -> None:
        self._services = services
        self._proxy = proxy

    async def is_intact(self) -> bool:
        """Whether nobody else has touched the table."""
        return not self._services.is_touched

    async def replace(self, vantage: ProxyConfig, ports: Mapping[ServicePortName, ServicePortInfo]) -> bool:
        """Write the table as a whole; connections that there are go on."""
        was_touched = self._services.is_touched
        await self._services.replace(self._seen(vantage), ports.values())
        return was_touched

    async def edit(self, vantage: ProxyConfig, change: ServicePortChange) -> None:
        """Change the elements of what has gone and come."""
        await self._services.edit(self._seen(vantage), change)

    def _seen(self, vantage: ProxyConfig) -> Host:
        return Host(
            address=vantage.address,
            subnet=vantage.subnet,
            service_network=vantage.service_network,
            nodes=vantage.nodes,
            node_ports=vantage.node_ports,
            proxy_port=self._proxy.port if self._proxy is not None else 0,
        )


log = logging.getLogger(__name__)

_ONE_BY_ONE = 16
"""Fronts up to which the kernel is asked for the connections of each, rather than for all."""


class ServicesTable:
    """`on_touch` is called when somebody else has changed the table: it `is_touched` until it was replaced.

    One call at a time.
    """

    def __init__(self, nft: Nftables, on_touch: Callable[[], None]) -> None:
        self._nft = nft
        self._conntrack = Conntrack()
        self._watch = NftablesMonitor(nft, (TABLE,), on_touch)
        self._host: Host | None = None

    @property
    def is_touched(self) -> bool:
        """Whether the table may be otherwise than it should be, and has to be replaced."""
        return self._host is None or self._watch.modified_externally

    async def open(self) -> None:
        """Begin to listen for changes by others."""
        self._watch.open()

    def close(self) -> None:
        """Listen no more; the table stays as it is."""
        self._watch.close()
        self._conntrack.close()

    async def replace(self, host: Host, ports: Iterable[ServicePortInfo]) -> None:
        """Serve exactly these, whatever there was: connections go on, and so do affinities. Raises DriverError."""
        served = tuple(ports)
        self._host = None
        with self._watch.suspended():
            try:
                await self._nft.run(services_table(host, served))
            except Refused as error:
                log.warning("the table is of another make and is replaced", extra={"why": str(error)})
                await self._nft.run(recreated_table(host, served))
        self._host = host
        fronts = udp_frontends(host, served)
        if fronts and not host.proxy_port:
            await self._conntrack.delete(stale_entries(fronts, await self._conntrack.entries()))

    async def edit(self, host: Host, change: ServicePortChange) -> None:
        """Serve what has come instead of what has gone. Raises DriverError: then the table has to be replaced."""
        before, self._host = self._host, None
        if before is None or replace(before, nodes=host.nodes) != host:
            raise NotReady(f"the nftables table {TABLE} is not what changes of services could build on")
        text = node_ip_update(before.nodes - host.nodes, host.nodes - before.nodes) + table_update(host, change)
        if text:
            await self._nft.run(text)
        self._host = host
        fronts = changed_udp_frontends(host, change)
        if host.proxy_port:
            fronts = {front: backends for front, backends in fronts.items() if not backends}
        await self._conntrack.delete(stale_entries(fronts, await self._connections(fronts)))

    async def _connections(self, fronts: Mapping[AddressPort, frozenset[AddressPort]]) -> list[ConntrackEntry]:
        if len(fronts) > _ONE_BY_ONE:
            return await self._conntrack.entries()
        return [one for address, port in fronts for one in await self._conntrack.entries_to(address, port)]
