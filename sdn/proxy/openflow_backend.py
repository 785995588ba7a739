"""Syncs service ports to Open vSwitch for clients in pods."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterable

from reconcile.errors import DriverError, NotReady
from sdn.drivers.openflow.client import OpenFlowClient
from sdn.drivers.openflow.messages import UnknownFlow
from sdn.model.flow import Flow
from sdn.model.host import ConntrackFilter
from sdn.model.service_port import ProxyMode, ServicePortChange, ServicePortInfo
from sdn.pipeline.flows import Partition
from sdn.pipeline.service import ServiceFlows
from sdn.proxy.conntrack import conntrack_filters, conntrack_filters_of_flows, conntrack_filters_to_flush
from sdn.proxy.service_ports import ProxyConfig

REPEATED_FLUSH_SECONDS = (1.0, 2.0)
"""Seconds to wait before the first and the second repetition of a flush.

For some time after a change of flows, the switch still sends packets on paths that it has cached: half a second, or
longer on a busy machine. A packet on such a path makes the entry anew that was just flushed, and every further packet
of its client would keep that entry alive.
"""


class OpenFlowBackend:
    """ProxyBackend for clients in pods: flows and groups of the bridge.

    In userspace mode, the flows send connections to the node, whose userspace proxier accepts them.

    The switch does not list its conntrack entries. A `sync` that changes flows therefore derives from the flows before
    it which entries of UDP there can be. Filters whose flush failed are flushed by the next call. Each flush is
    repeated (REPEATED_FLUSH_SECONDS), but for filters that service ports use again.
    """

    name = "switch"

    def __init__(self, openflow: OpenFlowClient, mode: ProxyMode) -> None:
        self._openflow = openflow
        self._mode = mode
        self._flows: ServiceFlows | None = None
        self._flows_before_sync: frozenset[Flow | UnknownFlow] | None = None
        self._unflushed: frozenset[ConntrackFilter] = frozenset()
        self._repeated: dict[asyncio.Task[None], set[ConntrackFilter]] = {}

    async def open(self) -> None:
        """Do nothing: the OpenFlow client watches the bridge."""

    async def close(self) -> None:
        """Repeat no further flush. Flows and groups stay."""
        for task in self._repeated:
            task.cancel()

    def is_unmodified(self) -> bool:
        """Return True: the network controller repairs all flows of the bridge, those of services included."""
        return True

    async def sync(self, config: ProxyConfig, ports: Collection[ServicePortInfo]) -> bool:
        """Add missing flows and groups, delete all others of services, and flush stale conntrack entries of UDP.

        Returns True if there was a difference in flows or groups.
        """
        if self._flows_before_sync is None:
            self._flows_before_sync = await self._openflow.installed_flows()
        self._flows = ServiceFlows(config.node, self._mode)
        was_different = bool(await self._openflow.sync(Partition.SERVICE, self._flows.sync(ports)))
        if was_different:
            self._unflushed |= conntrack_filters_of_flows(
                flow for flow in self._flows_before_sync if isinstance(flow, Flow)
            )
        self._flows_before_sync = None
        await self._flush_stale_entries(ports)
        return was_different

    async def update(self, config: ProxyConfig, change: ServicePortChange) -> None:
        """Change the flows and groups of removed and added ports, and flush stale conntrack entries of UDP."""
        del config
        if self._flows is None:
            raise NotReady("the switch has no flows of services yet")
        self._unflushed |= conntrack_filters_to_flush(change)
        await self._openflow.update(Partition.SERVICE, *self._flows.update(change))
        await self._flush_stale_entries(change.added)

    async def _flush_stale_entries(self, ports: Iterable[ServicePortInfo]) -> None:
        """Flush all stale entries but those that these ports use, now and again."""
        if not self._unflushed and not self._repeated:
            return
        used = conntrack_filters(ports)
        for repeated in self._repeated.values():
            repeated.difference_update(used)
        self._unflushed -= used
        if self._unflushed:
            await self._openflow.flush_conntrack(self._unflushed)
            filters = set(self._unflushed)
            task = asyncio.create_task(self._repeat_flush(filters))
            self._repeated[task] = filters
            task.add_done_callback(self._repeated.pop)
            self._unflushed = frozenset()

    async def _repeat_flush(self, filters: set[ConntrackFilter]) -> None:
        """Flush these entries again. Filters that are used meanwhile are taken out of the set."""
        try:
            for seconds in REPEATED_FLUSH_SECONDS:
                await asyncio.sleep(seconds)
                if filters:
                    await self._openflow.flush_conntrack(filters)
        except DriverError:
            self._unflushed |= filters
