"""Keeps OpenFlow, nftables and the userspace proxy in sync with the service ports, as kube-proxy does."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Iterable
from datetime import UTC, datetime
from typing import Protocol

from reconcile.errors import DriverError
from reconcile.loop import Loop, LoopTiming
from reconcile.malloc import gc_paused
from sdn import metrics
from sdn.config import Settings
from sdn.drivers import Drivers
from sdn.metrics import Drift
from sdn.model.service_port import ProxyMode, ServicePortChange, ServicePortInfo
from sdn.network_state import NetworkState
from sdn.proxy.healthcheck import ServiceHealthServer
from sdn.proxy.nftables_backend import NftablesBackend
from sdn.proxy.openflow_backend import OpenFlowBackend
from sdn.proxy.service_map import ServiceMap
from sdn.proxy.service_ports import ProxyConfig
from sdn.proxy.service_watcher import ServiceWatcher
from sdn.proxy.userspace.proxier import UserspaceBackend, UserspaceProxier
from sdn.topology import NodeNetworkConfig

log = logging.getLogger(__name__)

DRAIN_SECONDS = 5.0
"""Time that spliced connections get to end when the daemon stops."""


class ProxyBackend(Protocol):
    """A datapath for services. All methods raise DriverError; removed ports are closed before added ones are opened."""

    name: str

    def is_unmodified(self) -> bool:
        """Return True if no other program is known to have changed what the backend installed."""

    async def sync(self, config: ProxyConfig, ports: Collection[ServicePortInfo]) -> bool:
        """Install exactly these ports. Returns True if something else may have been installed."""

    async def update(self, config: ProxyConfig, change: ServicePortChange) -> None:
        """Apply a change since the last `sync` or `update`, and changed addresses of nodes."""


class Proxier:
    """Syncs service ports to all backends.

    A backend gets changes only. It gets all ports again after an error, after a change of the node's own network, and
    when another program has changed what it installed. `not_ready_reason` is empty if the last pass succeeded.
    `config` is the network configuration of the last pass, None before the first one.
    """

    def __init__(
        self,
        settings: Settings,
        *,
        services: ServiceWatcher,
        drivers: Drivers,
        state: NetworkState,
        drift: Drift,
        trigger: asyncio.Event,
    ) -> None:
        self.not_ready_reason = "starting"
        self.config: ProxyConfig | None = None
        self._services = services
        self._state = state
        self._drift = drift
        mode = ProxyMode.USERSPACE if settings.proxy_mode == "userspace" else ProxyMode.NFTABLES
        self._userspace = UserspaceProxier() if mode is ProxyMode.USERSPACE else None
        self._nftables = NftablesBackend(drivers.nftables, trigger.set, self._userspace)
        openflow = OpenFlowBackend(drivers.openflow, mode)
        # The userspace proxy listens before connections are redirected to it.
        self._stages: tuple[tuple[ProxyBackend, ...], ...] = ((self._nftables, openflow),)
        if self._userspace is not None:
            self._stages = ((UserspaceBackend(self._userspace),), *self._stages)
        self._unsynced = {backend.name for stage in self._stages for backend in stage}
        self._network: NodeNetworkConfig | None = None
        self._health = ServiceHealthServer()
        self._loop = Loop("services", self._reconcile, LoopTiming(resync=settings.resync_seconds), trigger)

    @property
    def service_map(self) -> ServiceMap:
        """All services, with the ports that this node proxies."""
        return self._services.service_map

    async def run(self) -> None:
        """Sync until cancelled."""
        await self._nftables.open()
        try:
            await self._loop.run()
        finally:
            self._nftables.close()
            await self._health.close()
            if self._userspace is not None:
                await self._userspace.close(DRAIN_SECONDS)

    async def _reconcile(self) -> None:
        """Run one pass. Raises DriverError; the next pass continues where this one failed."""
        try:
            with gc_paused():
                await self._sync_backends()
        finally:
            if self.config is not None:
                await self._health.sync(self.config.node.address, self.service_map.with_health_check)

    async def _sync_backends(self) -> None:
        network = self._state.installed_config
        if network is None:
            self.not_ready_reason = "waiting for the network"
            return
        if not self._services.synced:
            self.not_ready_reason = "waiting for the master's first answer"
            return
        config, is_config_changed = self._update_config(network)
        change = self._services.apply_changes(config)
        trigger_times = self._services.take_trigger_times()
        errors: list[DriverError] = []
        for stage in self._stages:
            results = await asyncio.gather(
                *(self._sync_backend(backend, config, change, is_config_changed) for backend in stage)
            )
            errors += [error for error in results if error is not None]
        self._export_metrics(change, trigger_times)
        self.not_ready_reason = str(errors[0]) if errors else ""
        if errors:
            raise errors[0]

    def _update_config(self, network: NodeNetworkConfig) -> tuple[ProxyConfig, bool]:
        """Return the configuration, and whether it has changed since the last pass."""
        before = self.config
        if before is not None and self._network is network:
            return before, False
        config = ProxyConfig.from_network(network)
        self.config, self._network = config, network
        if before is not None and not config.differs_in_vnids_and_nodes_only(before):
            self._unsynced = {backend.name for stage in self._stages for backend in stage}
        return config, config != before

    async def _sync_backend(
        self, backend: ProxyBackend, config: ProxyConfig, change: ServicePortChange, is_config_changed: bool
    ) -> DriverError | None:
        """Bring one backend up to date. Returns the error instead of raising it, so that the others continue."""
        try:
            if backend.name in self._unsynced or not backend.is_unmodified():
                was_different = await backend.sync(config, self.service_map.ports.values())
                if was_different and backend.name not in self._unsynced and not change and not is_config_changed:
                    self._drift.record(backend.name)
                self._unsynced.discard(backend.name)
            elif change or is_config_changed:
                await backend.update(config, change)
        except DriverError as error:
            self._unsynced.add(backend.name)
            return error
        return None

    def _export_metrics(self, change: ServicePortChange, trigger_times: list[datetime]) -> None:
        now = datetime.now(UTC)
        for trigger_time in trigger_times:
            metrics.PROGRAMMING_SECONDS.observe((now - trigger_time).total_seconds())
        if change:
            metrics.SERVICES.set(len(self.service_map.states))
            metrics.ENDPOINTS.inc(_endpoint_count(change.added) - _endpoint_count(change.removed))
            log.info("services changed", extra={"added": len(change.added), "removed": len(change.removed)})


def _endpoint_count(ports: Iterable[ServicePortInfo]) -> int:
    return sum(len(port.cluster_endpoints) for port in ports)
