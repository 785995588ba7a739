"""Services of one node: what is followed, who programs it, and where."""

from __future__ import annotations

import asyncio
from ipaddress import IPv4Address

from api.client.client import Client
from api.network.queries import ServicesAnswer, ServicesQuestion, TraceQuestion
from reconcile.errors import NotReady
from reconcile.loop import Loop, LoopTiming
from reconcile.malloc import gc_paused
from sdn.network import Network
from sdn.services.balancer import Balancer, Outlet
from sdn.services.followed import Followed
from sdn.services.health import HealthPorts
from sdn.services.host import HostServices
from sdn.services.outlets import Firewall, Proxying, Switch
from sdn.services.report import answer
from sdn.services.teller import Teller
from sdn.services.tracing import Called, called
from sdn.services.userspace.proxy import UserspaceProxy
from sdn.settings import Settings
from sdn.view import Node

DRAIN_SECONDS = 5.0
"""So long connections that the proxy has joined may last when the daemon is told to end."""


class Services:
    """`followed` is what the API says; `unready` why services are not programmed, if they are not."""

    def __init__(self, client: Client, network: Network, settings: Settings) -> None:
        self.followed = Followed(client, self.wake)
        self._proxy = UserspaceProxy(self._is_cluster, self._is_node) if settings.proxy_mode == "userspace" else None
        first: tuple[Outlet, ...] = () if self._proxy is None else (Proxying(self._proxy),)
        self._host = HostServices(network.nft, lambda: self._distrust("firewall"))
        by_proxy = self._proxy is not None
        both = Firewall(self._host, self._proxy), Switch(network.openflow, by_proxy)
        self._balancer = Balancer(
            self.followed,
            lambda: network.ground,
            (first, both),
            settings.resync_seconds,
            network.note_drift,
        )
        self._health = HealthPorts()
        self._loop = Loop("services", self._one_pass, LoopTiming(resync=settings.resync_seconds))
        self._teller = Teller(
            client,
            settings.node_name,
            lambda: self.followed.catalogue.left_out,
            lambda key: self.followed.services.items.get(key),
        )

    def _is_cluster(self, address: IPv4Address) -> bool:
        vantage = self._balancer.vantage
        return vantage is not None and vantage.is_cluster(address)

    def _is_node(self, address: IPv4Address) -> bool:
        vantage = self._balancer.vantage
        return vantage is not None and address in vantage.nodes

    @property
    def unready(self) -> str:
        """Why services are not programmed; empty if they are."""
        return self._balancer.unready

    def answer(self, asked: ServicesQuestion) -> ServicesAnswer:
        """What is served, for people. Raises NotReady until something is."""
        if self._balancer.vantage is None:
            raise NotReady(f"no services yet: {self.unready}")
        return answer(asked, self.followed.catalogue.served)

    def called(self, asked: TraceQuestion, node: Node) -> Called | None:
        """Which service a traced packet calls, if any."""
        vantage, catalogue = self._balancer.vantage, self.followed.catalogue
        if vantage is None:
            return None
        return called(asked, node, vantage, catalogue.ports.values(), catalogue.served)

    def wake(self) -> None:
        """Ask for a pass."""
        self._loop.wake()

    def _distrust(self, outlet: str) -> None:
        self._balancer.distrust(outlet)
        self.wake()

    async def _one_pass(self) -> None:
        try:
            with gc_paused():
                await self._balancer.one_pass()
        finally:
            if self._balancer.vantage is not None:
                await self._health.show(self._balancer.vantage.address, self.followed.catalogue.checked)

    async def run(self) -> None:
        """Until cancelled."""
        await self._host.open()
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self.followed.run())
                tasks.create_task(self._loop.run())
                tasks.create_task(self._teller.run())
        finally:
            self._host.close()
            await self._health.close()
            if self._proxy is not None:
                await self._proxy.close(DRAIN_SECONDS)
