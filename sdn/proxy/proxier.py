"""Keeps OpenFlow, nftables and the userspace proxy in sync with the service ports, as kube-proxy does."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
from collections.abc import Callable, Collection, Iterable, Sequence
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
from sdn.proxy.userspace.proxier import UserspaceBackend, UserspaceProxier
from sdn.topology import NodeNetworkConfig

log = logging.getLogger(__name__)

PAUSE_FACTOR = 3.0
"""Passes of up to a third of a second take a quarter of the time while services and endpoints change without end."""


class ProxyBackend(Protocol):
    """A datapath for services. All methods raise DriverError; removed ports are closed before added ones are opened."""

    name: str

    async def open(self) -> None:
        """Begin to watch for changes by other programs."""

    async def close(self) -> None:
        """Release what the backend has opened. Its datapath stays, except for what needs this process."""

    def is_unmodified(self) -> bool:
        """Return True if no other program is known to have changed what the backend installed."""

    async def sync(self, config: ProxyConfig, ports: Collection[ServicePortInfo]) -> bool:
        """Install exactly these ports. Returns True if something else may have been installed."""

    async def update(self, config: ProxyConfig, change: ServicePortChange) -> None:
        """Apply a change since the last `sync` or `update`, and changed addresses of nodes."""


class ServiceSource(Protocol):
    """The services of the API, and the map that is computed from them."""

    service_map: ServiceMap

    @property
    def synced(self) -> bool:
        """True after the first complete list of each kind."""

    def apply_changes(self, config: ProxyConfig) -> ServicePortChange:
        """Apply what has changed since the last call to the service map."""

    def take_trigger_times(self) -> list[datetime]:
        """Return the trigger times of the changes since the last call."""


Stages = Sequence[Sequence[ProxyBackend]]
"""Backends that are synced at the same time, in the order in which they are synced."""


def proxy_stages(settings: Settings, drivers: Drivers, on_external_change: Callable[[], None]) -> Stages:
    """Return the backends for the proxy mode. The userspace proxy listens before connections are redirected to it."""
    if settings.proxy_mode != "userspace":
        nftables = NftablesBackend(drivers.nftables, on_external_change)
        return ((nftables, OpenFlowBackend(drivers.openflow, ProxyMode.NFTABLES)),)
    userspace = UserspaceProxier()
    nftables = NftablesBackend(drivers.nftables, on_external_change, userspace)
    return (UserspaceBackend(userspace),), (nftables, OpenFlowBackend(drivers.openflow, ProxyMode.USERSPACE))


class Proxier:
    """Syncs service ports to all backends.

    A backend gets changes only. It gets all ports again after an error, after a change of the node's own network, and
    when another program has changed what it installed. `not_ready_reason` is empty if the last pass succeeded.
    """

    def __init__(
        self,
        stages: Stages,
        *,
        services: ServiceSource,
        state: NetworkState,
        drift: Drift,
        trigger: asyncio.Event,
        resync_seconds: float,
    ) -> None:
        self.not_ready_reason = "starting"
        self._stages = stages
        self._services = services
        self._state = state
        self._drift = drift
        self._unsynced = self._backend_names()
        self._network_config: NodeNetworkConfig | None = None
        self._health = ServiceHealthServer()
        self._loop = Loop(
            "services", self.reconcile, LoopTiming(resync=resync_seconds, pause_factor=PAUSE_FACTOR), trigger
        )

    @property
    def service_map(self) -> ServiceMap:
        """All services, with the ports that this node proxies, and the network for which they are computed."""
        return self._services.service_map

    def _backend_names(self) -> set[str]:
        return {backend.name for stage in self._stages for backend in stage}

    async def run(self) -> None:
        """Sync until cancelled."""
        async with contextlib.AsyncExitStack() as stack:
            stack.push_async_callback(self._health.close)
            for backend in itertools.chain.from_iterable(self._stages):
                await backend.open()
                stack.push_async_callback(backend.close)
            await self._loop.run()

    async def reconcile(self) -> None:
        """Run one pass. Raises DriverError; the next pass continues where this one failed."""
        try:
            with gc_paused():
                await self._sync_backends()
        finally:
            config = self.service_map.config
            if config is not None:
                await self._health.sync(config.node.address, self.service_map.with_health_check)

    async def _sync_backends(self) -> None:
        network_config = self._state.published_config
        if network_config is None:
            self.not_ready_reason = "waiting for the network"
            return
        if not self._services.synced:
            self.not_ready_reason = "waiting for the master's first answer"
            return
        config, is_config_changed = self._proxy_config(network_config)
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

    def _proxy_config(self, network_config: NodeNetworkConfig) -> tuple[ProxyConfig, bool]:
        """Return the part of the network on which services depend, and whether it has changed since the last pass."""
        before = self.service_map.config
        if before is not None and self._network_config is network_config:
            return before, False
        config, self._network_config = ProxyConfig.from_network(network_config), network_config
        if before is not None and not config.differs_in_vnids_and_nodes_only(before):
            self._unsynced = self._backend_names()
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
