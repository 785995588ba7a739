"""Where the ports of services are programmed on this node: the switch, the firewall, the proxy in user space."""

from __future__ import annotations

from collections.abc import Mapping

from sdn.services.host import HostServices
from sdn.services.maps import Host
from sdn.services.served_port import PortChange, PortKey, ServedPort
from sdn.services.serving import Vantage
from sdn.services.userspace.proxy import UserspaceProxy


class Proxying:
    """The proxy in user space."""

    name = "proxy"

    def __init__(self, proxy: UserspaceProxy) -> None:
        self._proxy = proxy

    async def is_intact(self) -> bool:
        """Nobody else can touch it."""
        return True

    async def replace(self, vantage: Vantage, ports: Mapping[PortKey, ServedPort]) -> bool:
        """Serve exactly these, and begin to listen before the first time."""
        del vantage
        if not self._proxy.port:
            await self._proxy.open()
        await self._proxy.replace(ports.values())
        return False

    async def edit(self, vantage: Vantage, change: PortChange) -> None:
        """Serve what has come, and no longer what has gone."""
        del vantage
        await self._proxy.edit(change)


class Firewall:
    """For callers outside of pods: nftables. With a proxy it hands over to that."""

    name = "firewall"

    def __init__(self, services: HostServices, proxy: UserspaceProxy | None) -> None:
        self._services = services
        self._proxy = proxy

    async def is_intact(self) -> bool:
        """Whether nobody else has touched the table."""
        return not self._services.is_touched

    async def replace(self, vantage: Vantage, ports: Mapping[PortKey, ServedPort]) -> bool:
        """Write the table as a whole; connections that there are go on."""
        was_touched = self._services.is_touched
        await self._services.replace(self._seen(vantage), ports.values())
        return was_touched

    async def edit(self, vantage: Vantage, change: PortChange) -> None:
        """Change the elements of what has gone and come."""
        await self._services.edit(self._seen(vantage), change)

    def _seen(self, vantage: Vantage) -> Host:
        return Host(
            address=vantage.address,
            subnet=vantage.subnet,
            service_network=vantage.service_network,
            nodes=vantage.nodes,
            node_ports=vantage.node_ports,
            proxy_port=self._proxy.port if self._proxy is not None else 0,
        )
