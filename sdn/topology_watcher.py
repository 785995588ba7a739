"""Watches the three collections that describe the network, and keeps a snapshot of their valid objects."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping

from api.client.client import Client
from api.client.informer import Informer
from api.network.types import ClusterNetwork, HostSubnet, NetNamespace
from sdn.topology import Snapshot, without_invalid_objects

log = logging.getLogger(__name__)


class TopologyWatcher:
    """Informers of ClusterNetworks, HostSubnets and NetNamespaces. `on_change` is called after each change."""

    def __init__(self, client: Client, on_change: Callable[[], None]) -> None:
        self._on_change = on_change
        self._snapshot: Snapshot | None = None
        self._ignored: Mapping[str, str] = {}
        self._cluster_networks = Informer(client, ClusterNetwork, on_change=self._changed)
        self._host_subnets = Informer(client, HostSubnet, on_change=self._changed)
        self._net_namespaces = Informer(client, NetNamespace, on_change=self._changed)

    def _changed(self) -> None:
        self._snapshot = None
        self._on_change()

    async def run(self) -> None:
        """Watch until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._cluster_networks.run())
            tasks.create_task(self._host_subnets.run())
            tasks.create_task(self._net_namespaces.run())

    def snapshot(self) -> Snapshot | None:
        """Return the valid network objects, or None until all informers are in sync.

        The same value is returned until an object changes.
        """
        informers = (self._cluster_networks, self._host_subnets, self._net_namespaces)
        if self._snapshot is None and all(informer.synced for informer in informers):
            self._snapshot = without_invalid_objects(
                Snapshot(
                    self._cluster_networks.items.get(("", "default")),
                    tuple(self._host_subnets.items.values()),
                    tuple(self._net_namespaces.items.values()),
                )
            )
            self._log_ignored(self._snapshot.ignored)
        return self._snapshot

    def _log_ignored(self, ignored: Mapping[str, str]) -> None:
        """Log each ignored object once, and again when the reason changes."""
        for name, reason in ignored.items():
            if self._ignored.get(name) != reason:
                log.warning("ignoring network object", extra={"object": name, "reason": reason})
        self._ignored = ignored
