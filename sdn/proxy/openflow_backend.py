"""Syncs service ports to Open vSwitch for clients in pods."""

from __future__ import annotations

from collections.abc import Collection

from reconcile.errors import NotReady
from sdn.drivers.openflow.client import OpenFlowClient
from sdn.model.service_port import ProxyMode, ServicePortChange, ServicePortInfo
from sdn.pipeline.flows import Partition
from sdn.pipeline.service import ServiceFlows
from sdn.proxy.conntrack import conntrack_filters_to_flush
from sdn.proxy.service_ports import ProxyConfig


class OpenFlowBackend:
    """ProxyBackend for clients in pods: flows and groups of the bridge.

    In userspace mode, the flows send connections to the node, whose userspace proxier accepts them.
    """

    name = "switch"

    def __init__(self, openflow: OpenFlowClient, mode: ProxyMode) -> None:
        self._openflow = openflow
        self._mode = mode
        self._flows: ServiceFlows | None = None

    async def open(self) -> None:
        """Do nothing: the OpenFlow client watches the bridge."""

    async def close(self) -> None:
        """Do nothing: flows and groups stay."""

    def is_unmodified(self) -> bool:
        """Return True: the network controller repairs all flows of the bridge, those of services included."""
        return True

    async def sync(self, config: ProxyConfig, ports: Collection[ServicePortInfo]) -> bool:
        """Add missing flows and groups, and delete all others of services. Returns True if there was a difference."""
        self._flows = ServiceFlows(config.node, self._mode)
        return bool(await self._openflow.sync(Partition.SERVICE, self._flows.sync(ports)))

    async def update(self, config: ProxyConfig, change: ServicePortChange) -> None:
        """Change the flows and groups of removed and added ports, and flush stale conntrack entries of UDP."""
        del config
        if self._flows is None:
            raise NotReady("the switch has no flows of services yet")
        await self._openflow.update(Partition.SERVICE, *self._flows.update(change))
        stale = conntrack_filters_to_flush(change)
        if stale:
            await self._openflow.flush_conntrack(stale)
