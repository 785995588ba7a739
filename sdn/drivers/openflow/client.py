"""Makes a bridge hold exactly the given flows, over one lasting connection to its management socket. Driver."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from pathlib import Path

from reconcile.errors import DriverError, NotReady
from sdn.drivers.openflow.bridge_state import DiffCount, FlowDiff, FlowSetState, diff_of
from sdn.drivers.openflow.connection import Connection
from sdn.drivers.openflow.messages import UnknownFlow
from sdn.model.flow import Flow, FlowSet
from sdn.model.host import ConntrackFilter

RECONNECT_SECONDS = 0.1


class OpenFlowClient:
    """One bridge's flows.

    `run` keeps the connection; `on_change` is called when it comes or goes and when somebody else changes a flow, so
    that the caller may replace again. What is installed is read back after each of these.
    """

    def __init__(self, socket: Path, on_change: Callable[[], None]) -> None:
        self.unreachable_reason = "the switch was not asked yet"
        self._socket = socket
        self._on_change = on_change
        self._connection: Connection | None = None
        self._services: FlowSetState | None = None
        self._lock = asyncio.Lock()

    @property
    def connected(self) -> bool:
        """Whether the switch has answered and not gone since; otherwise `unreachable` says why."""
        return self._connection is not None

    async def run(self) -> None:
        """Connect, and connect again whenever the switch goes away, until cancelled."""
        while True:
            try:
                reader, writer = await asyncio.open_unix_connection(str(self._socket))
                await self._serve(Connection(reader, writer, self._on_change))
            except OSError as error:
                self._lose(f"the switch is not there ({error.strerror})")
            except DriverError as error:
                self._lose(str(error))
            await asyncio.sleep(RECONNECT_SECONDS)

    async def _serve(self, session: Connection) -> None:
        """Until the connection ends. Raises DriverError, which says why it did."""
        receiving = asyncio.create_task(session.receive())
        try:
            await session.handshake()
            self._connection, self.unreachable_reason = session, ""
            self._on_change()
            await receiving
        finally:
            self._connection = None
            receiving.cancel()
            session.close("we have closed the connection")

    def _lose(self, reason: str) -> None:
        before, self.unreachable_reason = self.unreachable_reason, reason
        if reason != before:
            self._on_change()

    async def replace(self, desired: frozenset[Flow]) -> DiffCount:
        """Make the bridge hold exactly these flows beside those of services, in one atomic bundle.

        Only the difference is sent. What services are known to need is written again where it was read back otherwise;
        until `replace_services` has told, their rows and all groups are left as they are. Raises NotReady without a
        connection, and Refused, naming the flow, when the switch declines one; then the bridge is as it was.
        """
        async with self._lock:
            session = self._require_connection()
            change = await _commit(session, (await session.bridge_state()).to_base(desired))
            held = await session.bridge_state()
            if self._services is not None and not held.is_right:
                change += await _commit(session, held.to_services(self._services))
                held.is_right = True
            return change

    async def replace_services(self, desired: FlowSet) -> DiffCount:
        """Make the bridge hold exactly these rows and groups for services. Raises as `replace` does."""
        async with self._lock:
            session = self._require_connection()
            held = await session.bridge_state()
            share = FlowSetState(set(desired.flows), {group.number: group for group in desired.groups})
            change = await _commit(session, held.to_services(share))
            self._services, held.is_right = share, True
            return change

    async def edit(self, gone: FlowSet, come: FlowSet) -> DiffCount:
        """Change rows and groups of services, at the cost of the change; a group in both gets its new buckets.

        Raises as `replace` does. There has to have been a `replace_services`.
        """
        if self._services is None:
            raise RuntimeError("the rows of services were never given as a whole")
        async with self._lock:
            session = self._require_connection()
            held = await session.bridge_state()
            difference = diff_of(gone, come)
            if held.is_right:
                change = await _commit(session, difference)
                self._services.apply(difference)
                return change
            share = self._services.copy()
            share.apply(difference)
            change = await _commit(session, held.to_services(share))
            self._services, held.is_right = share, True
            return change

    async def flush_conntrack(self, calls: Iterable[ConntrackFilter]) -> None:
        """Have connection tracking forget these connections to services. Raises NotReady and Refused."""
        await self._require_connection().flush_conntrack(calls)

    async def read(self) -> frozenset[Flow | UnknownFlow]:
        """Every row that the bridge holds now, asked of the switch."""
        async with self._lock:
            session = self._require_connection()
            session.invalidate()
            held = await session.bridge_state()
            return frozenset(held.base | held.services.flows)

    async def table_misses(self) -> dict[int, int]:
        """Packets that no row of a table matched and that were therefore dropped, by table. Raises NotReady."""
        return await self._require_connection().table_misses()

    async def packet_counts(self, cookie_bits: int) -> dict[Flow | UnknownFlow, int]:
        """Packets that each row has matched whose cookie has all these bits. Raises NotReady."""
        return await self._require_connection().packet_counts(cookie_bits)

    def _require_connection(self) -> Connection:
        if self._connection is None:
            raise NotReady(f"{self._socket}: {self.unreachable_reason}; flows are as they were")
        return self._connection


async def _commit(session: Connection, difference: FlowDiff) -> DiffCount:
    if difference:
        await session.commit(difference)
    return difference.size()
