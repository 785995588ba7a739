"""Makes a bridge hold exactly the given flows, over one lasting connection to its management socket. Driver."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterable
from pathlib import Path

from reconcile.errors import DriverError, NotReady
from sdn.drivers.openflow.bridge_state import DiffCount, FlowDiff, FlowSetState, diff_between
from sdn.drivers.openflow.connection import Connection
from sdn.drivers.openflow.messages import UnknownFlow
from sdn.model.flow import BridgeLayout, Flow, FlowSet
from sdn.model.host import ConntrackFilter

RECONNECT_SECONDS = 0.1

TRANSITION_SECONDS = 3.0
"""Time for which flows of a transition stay. The switch forgets the old paths of packets in half a second."""


class OpenFlowClient:
    """The flows and groups of one bridge, divided into partitions.

    `run` keeps the connection. `on_change` is called when the connection comes or goes, and when another program has
    changed a flow; the caller then syncs again. The flows are read back after each of these events.
    """

    def __init__(self, socket: Path, layout: BridgeLayout, on_change: Callable[[], None]) -> None:
        self.unreachable_reason = "the switch was not asked yet"
        self._socket = socket
        self._layout = layout
        self._on_change = on_change
        self._connection: Connection | None = None
        self._desired: dict[str, FlowSetState] = {}
        self._transition_flows: frozenset[Flow] = frozenset()
        self._transition: asyncio.Task[None] | None = None
        self._lock = asyncio.Lock()

    @property
    def connected(self) -> bool:
        """True while the switch answers; otherwise `unreachable_reason` says why it does not."""
        return self._connection is not None

    async def run(self) -> None:
        """Connect, and connect again when the switch goes away, until cancelled."""
        while True:
            try:
                reader, writer = await asyncio.open_unix_connection(str(self._socket))
                await self._serve(Connection(reader, writer, self._layout, self._on_change))
            except OSError as error:
                self._set_unreachable(f"the switch is not there ({error.strerror})")
            except DriverError as error:
                self._set_unreachable(str(error))
            await asyncio.sleep(RECONNECT_SECONDS)

    async def _serve(self, connection: Connection) -> None:
        """Use a connection until it ends. Raises DriverError with the reason of its end."""
        receiving = asyncio.create_task(connection.receive())
        try:
            await connection.handshake()
            self._connection, self.unreachable_reason = connection, ""
            self._on_change()
            await receiving
        finally:
            self._connection = None
            receiving.cancel()
            connection.close("we have closed the connection")

    def _set_unreachable(self, reason: str) -> None:
        before, self.unreachable_reason = self.unreachable_reason, reason
        if reason != before:
            self._on_change()

    async def sync(self, partition: str, desired: FlowSet) -> DiffCount:
        """Make a partition hold exactly these flows and groups, in one atomic bundle. Only the difference is sent.

        The first sync also moves what the previous version of the daemon has left in other partitions to today's
        tables, in the same bundle.

        Raises NotReady without a connection. Raises Refused, naming the flow, if the switch refuses one; the bridge is
        then unchanged.
        """
        async with self._lock:
            if not self._desired:
                return await self._make_first(partition, FlowSetState.of(desired))
            return await self._make(partition, FlowSetState.of(desired))

    async def restore(self) -> DiffCount:
        """Restore every partition that was synced before and that another program may have changed since.

        Raises NotReady and Refused.
        """
        count = DiffCount()
        async with self._lock:
            for partition, desired in self._desired.items():
                if partition not in (await self._require_connection().bridge_state()).in_sync:
                    count += await self._make(partition, desired)
        return count

    async def update(self, partition: str, removed: FlowSet, added: FlowSet) -> DiffCount:
        """Change some flows and groups of a partition, at the cost of the change.

        A group in both gets its new buckets. Raises NotReady and Refused. Raises RuntimeError if the partition was
        never synced.
        """
        if partition not in self._desired:
            raise RuntimeError(f"partition {partition} was never synced")
        async with self._lock:
            connection = self._require_connection()
            diff = diff_between(removed, added)
            if partition in (await connection.bridge_state()).in_sync:
                count = await _commit(connection, diff)
                self._desired[partition].apply(diff)
                return count
            desired = self._desired[partition].copy()
            desired.apply(diff)
            return await self._make(partition, desired)

    async def _make_first(self, partition: str, desired: FlowSetState) -> DiffCount:
        """Make the first partition as desired, and move what the previous version has left in the others."""
        state = await self._require_connection().bridge_state()
        if not state.has_previous_version():
            return await self._make(partition, desired)
        self._transition_flows = self._layout.transition_flows
        count = await self._make(partition, desired, state.renumbering(partition))
        self._transition = asyncio.create_task(self._end_transition())
        return count

    async def _make(self, partition: str, desired: FlowSetState, other: FlowDiff | None = None) -> DiffCount:
        """Make a partition as desired, and another difference, in one bundle."""
        connection = self._require_connection()
        state = await connection.bridge_state()
        if partition == self._layout.unknown_flows:
            desired.flows |= self._transition_flows
        diff = state.diff(partition, desired)
        count = await _commit(connection, diff if other is None else diff + other)
        self._desired[partition] = desired
        state.share(partition, desired)
        state.in_sync.add(partition)
        return count

    async def _end_transition(self) -> None:
        """Delete the flows of the transition. If the switch does not answer, the next sync deletes them."""
        await asyncio.sleep(TRANSITION_SECONDS)
        partition, flows = self._layout.unknown_flows, self._transition_flows
        self._transition_flows = frozenset()
        with contextlib.suppress(DriverError):
            async with self._lock:
                if partition in self._desired:
                    desired = self._desired[partition].copy()
                    desired.flows -= flows
                    await self._make(partition, desired)

    async def flush_conntrack(self, filters: Iterable[ConntrackFilter]) -> None:
        """Delete the conntrack entries that these filters select. Raises NotReady and Refused."""
        await self._require_connection().flush_conntrack(filters)

    async def installed_flows(self) -> frozenset[Flow | UnknownFlow]:
        """Return all flows of the bridge. They are read from the switch only if they are not known. Raises NotReady."""
        async with self._lock:
            return (await self._require_connection().bridge_state()).flows()

    async def read(self) -> frozenset[Flow | UnknownFlow]:
        """Read all flows of the bridge from the switch. Raises NotReady."""
        async with self._lock:
            connection = self._require_connection()
            connection.invalidate()
            return (await connection.bridge_state()).flows()

    async def table_misses(self) -> dict[int, int]:
        """Return, by table, the number of packets that matched no flow and were dropped. Raises NotReady."""
        return await self._require_connection().table_misses()

    async def packet_counts(self, cookie_bits: int) -> dict[Flow | UnknownFlow, int]:
        """Return the packet counters of the flows whose cookie has all these bits set. Raises NotReady."""
        return await self._require_connection().packet_counts(cookie_bits)

    def _require_connection(self) -> Connection:
        if self._connection is None:
            raise NotReady(f"{self._socket}: {self.unreachable_reason}; flows are as they were")
        return self._connection


async def _commit(connection: Connection, diff: FlowDiff) -> DiffCount:
    if diff:
        await connection.commit(diff)
    return diff.count()
