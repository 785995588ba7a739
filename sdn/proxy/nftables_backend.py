"""Syncs service ports to nftables for clients outside of pods, and deletes stale conntrack entries."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection

from reconcile.errors import NotReady, Refused
from sdn.drivers.conntrack import Conntrack
from sdn.drivers.nftables import Nftables, NftablesMonitor
from sdn.model.host import ConntrackEntry
from sdn.model.service_port import ServicePortChange, ServicePortInfo
from sdn.proxy.conntrack import (
    UdpFrontends,
    changed_udp_frontends,
    entries_without_frontend,
    stale_entries,
    udp_frontends,
)
from sdn.proxy.nftables import (
    SETS,
    TABLE,
    TEMPORARY_TABLE,
    node_ip_update,
    recreated_table,
    services_table,
    table_update,
)
from sdn.proxy.service_ports import ProxyConfig
from sdn.proxy.userspace.proxier import UserspaceProxier

log = logging.getLogger(__name__)

_MAX_SINGLE_LOOKUPS = 16
"""For more frontends than this, one dump of all conntrack entries costs less than a lookup per frontend."""


class NftablesBackend:
    """ProxyBackend for processes of the node and external clients: the nftables table of services.

    With a `userspace` proxier, connections are redirected to its port. `on_external_change` is called when another
    program has changed the table. One call at a time.
    """

    name = "firewall"

    def __init__(
        self,
        nftables: Nftables,
        on_external_change: Callable[[], None],
        userspace: UserspaceProxier | None = None,
    ) -> None:
        self._nftables = nftables
        self._userspace = userspace
        self._conntrack = Conntrack()
        self._monitor = NftablesMonitor(nftables, (TABLE,), on_external_change)
        self._config: ProxyConfig | None = None

    async def open(self) -> None:
        """Begin to watch for changes by other programs."""
        self._monitor.open()

    async def close(self) -> None:
        """Stop watching; the table stays as it is."""
        self._monitor.close()
        self._conntrack.close()

    @property
    def _proxy_port(self) -> int:
        return self._userspace.port if self._userspace is not None else 0

    def is_unmodified(self) -> bool:
        """Return True if the table is as the last `sync` or `update` left it."""
        return self._config is not None and not self._monitor.modified_externally

    async def sync(self, config: ProxyConfig, ports: Collection[ServicePortInfo]) -> bool:
        """Replace the contents of the table. Connections and session affinities stay, but for stale entries of UDP.

        A table of another version is replaced as a whole; connections stay, session affinities are lost. What an
        interrupted replacement has left is deleted. Returns True if the table may have been different.
        """
        was_modified, self._config = not self.is_unmodified(), None
        with self._monitor.suspended():
            await self._write_table(config, ports)
        self._config = config
        if not self._proxy_port:
            frontends, entries = udp_frontends(config.node.address, ports), await self._conntrack.entries()
            stale = stale_entries(frontends, entries) + entries_without_frontend(config, frontends, entries)
            await self._conntrack.delete(stale)
        return was_modified

    async def _write_table(self, config: ProxyConfig, ports: Collection[ServicePortInfo]) -> None:
        unknown = await self._nftables.list_sets("ip", TABLE) - SETS
        reason = f"unknown sets {', '.join(sorted(unknown))}" if unknown else ""
        if not reason:
            try:
                await self._nftables.run(services_table(config, ports, self._proxy_port))
            except Refused as error:
                reason = str(error)
        if reason:
            log.warning("replacing nftables table of another version", extra={"table": TABLE, "reason": reason})
            for text in recreated_table(config, ports, self._proxy_port):
                await self._nftables.run(text)
        elif await self._nftables.list_sets("ip", TEMPORARY_TABLE):
            await self._nftables.run(f"delete table ip {TEMPORARY_TABLE}")

    async def update(self, config: ProxyConfig, change: ServicePortChange) -> None:
        """Change the elements of removed and added ports, and of removed and added nodes."""
        before, self._config = self._config, None
        if before is None or not config.differs_in_vnids_and_nodes_only(before):
            raise NotReady(f"the nftables table {TABLE} has not been written for this network")
        text = node_ip_update(before.node_ips - config.node_ips, config.node_ips - before.node_ips)
        text += table_update(config, change, self._proxy_port)
        if text:
            await self._nftables.run(text)
        self._config = config
        frontends = changed_udp_frontends(config.node.address, change)
        if self._proxy_port:
            frontends = {frontend: endpoints for frontend, endpoints in frontends.items() if not endpoints}
        await self._conntrack.delete(stale_entries(frontends, await self._entries_of(frontends)))

    async def _entries_of(self, frontends: UdpFrontends) -> list[ConntrackEntry]:
        """Return at least the conntrack entries of these frontends."""
        if len(frontends) > _MAX_SINGLE_LOOKUPS:
            return await self._conntrack.entries()
        return [entry for address, port in frontends for entry in await self._conntrack.entries_to(address, port)]
