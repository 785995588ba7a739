"""Keeps OpenFlow, nftables and the userspace proxy in sync with the service ports."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from ipaddress import IPv4Address
from typing import Protocol

from api.client.client import Client
from reconcile.errors import DriverError, NotReady
from reconcile.loop import Loop, LoopTiming
from reconcile.malloc import gc_paused
from sdn import metrics
from sdn.config import Settings
from sdn.drivers import Drivers
from sdn.drivers.openflow.client import OpenFlowClient
from sdn.metrics import Drift
from sdn.model.service_port import ProxyMode, ServicePortChange, ServicePortInfo, ServicePortName
from sdn.network_state import NetworkState
from sdn.pipeline.cookies import Partition
from sdn.pipeline.service import ServiceFlows
from sdn.proxy.conntrack import conntrack_filters_to_flush
from sdn.proxy.events import ServiceEvents
from sdn.proxy.healthcheck import ServiceHealthServer
from sdn.proxy.nftables_backend import NftablesBackend, ServicesTable
from sdn.proxy.service_map import ServiceMap
from sdn.proxy.service_ports import ProxyConfig
from sdn.proxy.service_watcher import ServiceWatcher
from sdn.proxy.userspace.proxier import UserspaceProxier
from sdn.topology import NetworkConfig, Node

log = logging.getLogger(__name__)


class ProxyBackend(Protocol):
    """One place where ports are programmed. Everything raises DriverError; what goes is closed before what comes is
    opened.
    """

    name: str

    async def is_intact(self) -> bool:
        """Whether nobody else has touched what it holds, as far as that is quickly seen."""

    async def replace(self, vantage: ProxyConfig, ports: Mapping[ServicePortName, ServicePortInfo]) -> bool:
        """Hold exactly these; whether it held anything else."""

    async def edit(self, vantage: ProxyConfig, change: ServicePortChange) -> None:
        """From what it held to what it shall hold."""


class BackendSync:
    """`ground` returns what the API says of the network, None while there is none yet. `stages` are outlets that are
    programmed at the same time, one stage after the other; one that failed, or is distrusted, gets everything anew,
    otherwise changes alone. `unready` says why services are not programmed, if they are not.
    """

    def __init__(
        self,
        followed: ServiceWatcher,
        ground: Callable[[], NetworkConfig | None],
        stages: Sequence[Sequence[ProxyBackend]],
        resync_seconds: float,
        note_drift: Callable[[str], None],
    ) -> None:
        self.unready = "starting"
        self._followed = followed
        self._ground = ground
        self._stages = stages
        self._resync_seconds = resync_seconds
        self._note_drift = note_drift
        self._seen: tuple[NetworkConfig, ProxyConfig] | None = None
        self._distrusted = {outlet.name for stage in stages for outlet in stage}
        self._fresh = set(self._distrusted)
        self._verified_at = time.monotonic()

    @property
    def vantage(self) -> ProxyConfig | None:
        """From where services were seen last."""
        return self._seen[1] if self._seen is not None else None

    def distrust(self, name: str) -> None:
        """Give the outlet of that name everything anew in the next pass."""
        self._distrusted.add(name)

    async def one_pass(self) -> None:
        """Raises DriverError; the next pass goes on where this one failed."""
        ground = self._ground()
        if ground is None or not self._followed.synced:
            self.unready = "waiting for the network" if ground is None else "waiting for the master's first answer"
            return
        vantage, is_other = self._look(ground)
        change = self._followed.settle(vantage)
        due = self._followed.take_due()
        is_time = time.monotonic() >= self._verified_at + self._resync_seconds
        if is_time:
            self._verified_at = time.monotonic()
        failures: list[DriverError] = []
        for stage in self._stages:
            tried = (self._try(outlet, vantage, change, is_other, is_time) for outlet in stage)
            failures += [error for error in await asyncio.gather(*tried) if error is not None]
        self._count(change, due)
        self.unready = str(failures[0]) if failures else ""
        if failures:
            raise failures[0]

    async def _try(
        self, outlet: ProxyBackend, vantage: ProxyConfig, change: ServicePortChange, is_other: bool, is_time: bool
    ) -> DriverError | None:
        try:
            if is_time and outlet.name not in self._distrusted and not await outlet.is_intact():
                self._distrusted.add(outlet.name)
            await self._program(outlet, vantage, change, is_other)
        except DriverError as error:
            self._distrusted.add(outlet.name)
            self._fresh.add(outlet.name)
            return error
        return None

    def _look(self, ground: NetworkConfig) -> tuple[ProxyConfig, bool]:
        """From where services are seen now, and whether that is other than before."""
        if self._seen is not None and self._seen[0] is ground:
            return self._seen[1], False
        vantage = ProxyConfig.of(ground)
        is_other = self._seen is None or self._seen[1] != vantage
        self._seen = ground, vantage
        return vantage, is_other

    async def _program(
        self, outlet: ProxyBackend, vantage: ProxyConfig, change: ServicePortChange, is_other: bool
    ) -> None:
        if outlet.name in self._distrusted:
            self._distrusted.discard(outlet.name)  # before: who touches it meanwhile brings it here again
            was_other = await outlet.replace(vantage, self._followed.catalogue.ports)
            if was_other and outlet.name not in self._fresh and not change and not is_other:
                self._note_drift(outlet.name)
            self._fresh.discard(outlet.name)
        elif change or is_other:
            await outlet.edit(vantage, change)

    def _count(self, change: ServicePortChange, due: list[datetime]) -> None:
        now = datetime.now(UTC)
        for moment in due:
            metrics.PROGRAMMING_SECONDS.observe((now - moment).total_seconds())
        if change:
            metrics.SERVICES.set(len(self._followed.catalogue.served))
            metrics.ENDPOINTS.inc(_endpoints(change.added) - _endpoints(change.removed))
            log.info("services changed", extra={"added": len(change.added), "removed": len(change.removed)})


def _endpoints(ports: Iterable[ServicePortInfo]) -> int:
    return sum(len(port.cluster_endpoints) for port in ports)


class UserspaceBackend:
    """The proxy in user space."""

    name = "proxy"

    def __init__(self, proxy: UserspaceProxier) -> None:
        self._proxy = proxy

    async def is_intact(self) -> bool:
        """Nobody else can touch it."""
        return True

    async def replace(self, vantage: ProxyConfig, ports: Mapping[ServicePortName, ServicePortInfo]) -> bool:
        """Serve exactly these, and begin to listen before the first time."""
        del vantage
        if not self._proxy.port:
            await self._proxy.open()
        await self._proxy.replace(ports.values())
        return False

    async def edit(self, vantage: ProxyConfig, change: ServicePortChange) -> None:
        """Serve what has come, and no longer what has gone."""
        del vantage
        await self._proxy.edit(change)


class OpenFlowBackend:
    """For callers in pods: Open vSwitch. With a proxy it lets their calls come to the node."""

    name = "switch"

    def __init__(self, openflow: OpenFlowClient, by_proxy: bool) -> None:
        self._openflow = openflow
        self._by_proxy = by_proxy
        self._board: ServiceFlows | None = None
        self._node: Node | None = None

    async def is_intact(self) -> bool:
        """What others change is undone by whoever keeps the rest of the switch, also in the rows of services."""
        return True

    async def replace(self, vantage: ProxyConfig, ports: Mapping[ServicePortName, ServicePortInfo]) -> bool:
        """Write what is not there, delete what is too much."""
        self._node = _node(vantage)
        mode = ProxyMode.USERSPACE if self._by_proxy else ProxyMode.NFTABLES
        self._board = ServiceFlows(self._node, mode)
        return bool(await self._openflow.sync(Partition.SERVICE, self._board.sync(ports.values())))

    async def edit(self, vantage: ProxyConfig, change: ServicePortChange) -> None:
        """Change the rows and groups of what has gone and come; datagrams leave the backends that have gone."""
        if self._board is None or self._node != _node(vantage):
            raise NotReady("the switch has not been given all services of this node")
        await self._openflow.update(Partition.SERVICE, *self._board.update(change))
        ended = conntrack_filters_to_flush(change)
        if ended:
            await self._openflow.flush_conntrack(ended)


def _node(vantage: ProxyConfig) -> Node:
    return Node("", vantage.address, vantage.subnet)


DRAIN_SECONDS = 5.0
"""So long connections that the proxy has joined may last when the daemon is told to end."""


class Proxier:
    """`followed` is what the API says; `unready` why services are not programmed, if they are not."""

    def __init__(
        self,
        client: Client,
        settings: Settings,
        *,
        services: ServiceWatcher,
        drivers: Drivers,
        state: NetworkState,
        drift: Drift,
        trigger: asyncio.Event,
    ) -> None:
        self.followed = services
        self._proxy = UserspaceProxier(self._is_cluster, self._is_node) if settings.proxy_mode == "userspace" else None
        first: tuple[ProxyBackend, ...] = () if self._proxy is None else (UserspaceBackend(self._proxy),)
        self._host = ServicesTable(drivers.nftables, lambda: self._distrust("firewall"))
        by_proxy = self._proxy is not None
        both = NftablesBackend(self._host, self._proxy), OpenFlowBackend(drivers.openflow, by_proxy)
        self._balancer = BackendSync(
            self.followed,
            lambda: state.installed_config,
            (first, both),
            settings.resync_seconds,
            drift.record,
        )
        self._health = ServiceHealthServer()
        self._loop = Loop("services", self._one_pass, LoopTiming(resync=settings.resync_seconds), trigger)
        self._teller = ServiceEvents(
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

    @property
    def config(self) -> ProxyConfig | None:
        """The configuration of the last pass, None before the first one."""
        return self._balancer.vantage

    @property
    def services(self) -> ServiceMap:
        """The services of the API and the ports that this node serves."""
        return self.followed.catalogue

    def _distrust(self, outlet: str) -> None:
        self._balancer.distrust(outlet)
        self._loop.wake()

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
                tasks.create_task(self._loop.run())
                tasks.create_task(self._teller.run())
        finally:
            self._host.close()
            await self._health.close()
            if self._proxy is not None:
                await self._proxy.close(DRAIN_SECONDS)
