"""Where the ports of services are programmed on this node: the switch, the firewall, the proxy in user space."""

from __future__ import annotations

from collections.abc import Mapping

from reconcile.errors import NotReady
from sdn.drivers.openflow import OpenFlow
from sdn.services.calls import ended_calls
from sdn.services.host import HostServices
from sdn.services.maps import Host
from sdn.services.rows import Board
from sdn.services.served_port import PortChange, PortKey, ServedPort
from sdn.services.serving import Vantage
from sdn.services.userspace.proxy import UserspaceProxy
from sdn.view import Node


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


class Switch:
    """For callers in pods: Open vSwitch. With a proxy it lets their calls come to the node."""

    name = "switch"

    def __init__(self, openflow: OpenFlow, by_proxy: bool) -> None:
        self._openflow = openflow
        self._by_proxy = by_proxy
        self._board: Board | None = None
        self._node: Node | None = None

    async def is_intact(self) -> bool:
        """What others change is undone by whoever keeps the rest of the switch, also in the rows of services."""
        return True

    async def replace(self, vantage: Vantage, ports: Mapping[PortKey, ServedPort]) -> bool:
        """Write what is not there, delete what is too much."""
        self._node = _node(vantage)
        self._board = Board(self._node, self._by_proxy)
        return bool(await self._openflow.replace_services(self._board.replace(ports.values())))

    async def edit(self, vantage: Vantage, change: PortChange) -> None:
        """Change the rows and groups of what has gone and come; datagrams leave the backends that have gone."""
        if self._board is None or self._node != _node(vantage):
            raise NotReady("the switch has not been given all services of this node")
        await self._openflow.edit(*self._board.edit(change))
        ended = ended_calls(change)
        if ended:
            await self._openflow.end_calls(ended)


def _node(vantage: Vantage) -> Node:
    return Node("", vantage.address, vantage.subnet)


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
