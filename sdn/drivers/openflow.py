"""Makes a bridge hold exactly the flows it is given, over one lasting connection to its management socket."""

from __future__ import annotations

import asyncio
import itertools
import struct
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

from reconcile.errors import DriverError, NotReady, Refused
from sdn.drivers import openflow_codec as codec
from sdn.drivers.openflow_codec import Bundle, Command, Foreign, Multipart, Type
from sdn.flow import Flow

ANSWER_SECONDS = 10.0
RECONNECT_SECONDS = 0.1


@dataclass(frozen=True, slots=True)
class FlowChange:
    """How many rows a `replace` wrote and deleted; `str` is empty when there was nothing to do."""

    added: int = 0
    removed: int = 0

    def __bool__(self) -> bool:
        return bool(self.added or self.removed)

    def __str__(self) -> str:
        return f"+{self.added} -{self.removed}" if self else ""


class OpenFlow:
    """One bridge's flows.

    `run` keeps the connection; `on_change` is called when it comes or goes and when somebody else changes a flow, so
    that the caller may replace again. What is installed is read back after each of these.
    """

    def __init__(self, socket: Path, on_change: Callable[[], None]) -> None:
        self.unreachable = "the switch was not asked yet"
        self._socket = socket
        self._on_change = on_change
        self._session: _Session | None = None
        self._lock = asyncio.Lock()

    @property
    def connected(self) -> bool:
        """Whether the switch has answered and not gone since; otherwise `unreachable` says why."""
        return self._session is not None

    async def run(self) -> None:
        """Connect, and connect again whenever the switch goes away, until cancelled."""
        while True:
            try:
                reader, writer = await asyncio.open_unix_connection(str(self._socket))
                await self._serve(_Session(reader, writer, self._on_change))
            except OSError as error:
                self._lose(f"the switch is not there ({error.strerror})")
            except DriverError as error:
                self._lose(str(error))
            await asyncio.sleep(RECONNECT_SECONDS)

    async def _serve(self, session: _Session) -> None:
        """Until the connection ends. Raises DriverError, which says why it did."""
        receiving = asyncio.create_task(session.receive())
        try:
            await session.greet()
            self._session, self.unreachable = session, ""
            self._on_change()
            await receiving
        finally:
            self._session = None
            receiving.cancel()
            session.close("we have closed the connection")

    def _lose(self, reason: str) -> None:
        before, self.unreachable = self.unreachable, reason
        if reason != before:
            self._on_change()

    async def replace(self, desired: frozenset[Flow]) -> FlowChange:
        """Make the bridge hold exactly these flows, in one atomic bundle; only the difference is sent.

        Raises NotReady without a connection, and Refused, naming the flow, when the switch declines one; then the
        bridge is as it was.
        """
        async with self._lock:
            session = self._connected_session()
            installed = await session.installed()
            added = list(desired - installed)
            rows = {flow.row for flow in added}
            stale = installed - desired
            removed = [flow for flow in stale if isinstance(flow, Foreign) or flow.row not in rows]
            if added or removed:
                await session.commit(removed, added, desired)
            return FlowChange(len(added), len(removed))

    async def read(self) -> frozenset[Flow | Foreign]:
        """Every row that the bridge holds now, asked of the switch."""
        async with self._lock:
            session = self._connected_session()
            session.forget()
            return await session.installed()

    async def misses(self) -> dict[int, int]:
        """Packets that no row of a table matched and that were therefore dropped, by table. Raises NotReady."""
        return await self._connected_session().misses()

    async def counted(self, cookie_bits: int) -> dict[Flow | Foreign, int]:
        """Packets that each row has matched whose cookie has all these bits. Raises NotReady."""
        return await self._connected_session().counted(cookie_bits)

    def _connected_session(self) -> _Session:
        if self._session is None:
            raise NotReady(f"{self._socket}: {self.unreachable}; flows are as they were")
        return self._session


class _Session:
    """One connection: what was asked and not yet answered, and what is known to be installed (None: ask again)."""

    def __init__(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, on_change: Callable[[], None]
    ) -> None:
        self._reader = reader
        self._writer = writer
        self._on_change = on_change
        self._xids = itertools.count(1)
        self._waiting: dict[int, asyncio.Future[list[bytes]]] = {}
        self._parts: dict[int, list[bytes]] = {}
        self._refusals: dict[int, str] = {}
        self._known: frozenset[Flow | Foreign] | None = None
        self._foreign_changes = 0
        self._ended = ""

    async def greet(self) -> None:
        """Agree on the version and ask to be told of changes."""
        self._writer.write(codec.hello())
        await self._ask(lambda xid: codec.message(Type.BARRIER_REQUEST, xid))
        await self._ask(codec.monitor_request)

    def close(self, reason: str) -> None:
        """Give up the connection; whoever waits for an answer, or asks later, learns that there is none."""
        self._ended = self._ended or reason
        self._writer.close()
        for future in self._waiting.values():
            if not future.done():
                future.set_exception(NotReady(self._ended))

    def forget(self) -> None:
        """Ask the switch before relying on what it holds."""
        self._known = None

    async def installed(self) -> frozenset[Flow | Foreign]:
        """What the bridge holds, asked of the switch where it is not known."""
        if self._known is not None:
            return self._known
        before = self._foreign_changes
        parts = await self._ask(codec.flows_request)
        found = frozenset(itertools.chain.from_iterable(map(codec.reported_flows, parts)))
        if self._foreign_changes == before:
            self._known = found
        return found

    async def counted(self, cookie_bits: int) -> dict[Flow | Foreign, int]:
        """By row."""
        parts = await self._ask(lambda xid: codec.flows_request(xid, cookie_bits))
        return dict(itertools.chain.from_iterable(map(codec.counted_flows, parts)))

    async def misses(self) -> dict[int, int]:
        """By table."""
        parts = await self._ask(codec.tables_request)
        return dict(itertools.chain.from_iterable(map(codec.reported_misses, parts)))

    async def commit(self, removed: list[Flow | Foreign], added: list[Flow], result: frozenset[Flow]) -> None:
        """Delete and write rows as a whole, after which the bridge holds `result`.

        The barrier before the commit brings most refusals: the switch would commit the rest of the bundle without
        what it refused. The others, such as a full table, fail the commit as a whole.
        """
        self.forget()
        before = self._foreign_changes
        bundle = next(self._xids)
        await self._ask(lambda xid: codec.bundle_control(bundle, Bundle.OPEN, xid))
        commands = [(Command.DELETE_STRICT, flow) for flow in removed] + [(Command.ADD, flow) for flow in added]
        asked = {next(self._xids): command for command in commands}
        for xid, (command, flow) in asked.items():
            self._writer.write(codec.bundle_add(bundle, codec.flow_mod(command, flow, xid), xid))
        await self._ask(lambda xid: codec.message(Type.BARRIER_REQUEST, xid))
        step = Bundle.DISCARD if asked.keys() & self._refusals.keys() else Bundle.COMMIT
        failure = ""
        try:
            await self._ask(lambda xid: codec.bundle_control(bundle, step, xid))
        except Refused as error:
            failure = str(error)
        refused = [f"{flow}: {self._refusals.pop(xid)}" for xid, (_, flow) in asked.items() if xid in self._refusals]
        if refused or failure:
            raise Refused(f"the switch refused {'; '.join(refused) or failure}; flows are as they were")
        if self._foreign_changes == before:
            self._known = result

    def _ask(self, make: Callable[[int], bytes]) -> Awaitable[list[bytes]]:
        if self._ended:
            raise NotReady(self._ended)
        xid = next(self._xids)
        future: asyncio.Future[list[bytes]] = asyncio.get_running_loop().create_future()
        self._waiting[xid] = future
        self._writer.write(make(xid))
        return self._answer(xid, future)

    async def _answer(self, xid: int, future: asyncio.Future[list[bytes]]) -> list[bytes]:
        try:
            return await asyncio.wait_for(future, ANSWER_SECONDS)
        except TimeoutError:
            raise NotReady(f"the switch did not answer within {ANSWER_SECONDS:.0f} s") from None
        finally:
            self._waiting.pop(xid, None)
            self._parts.pop(xid, None)

    async def receive(self) -> None:
        """Take in messages until the connection ends. Raises NotReady, which says why it did."""
        try:
            while True:
                head = await self._reader.readexactly(codec.HEADER.size)
                version, kind, length, xid = codec.HEADER.unpack(head)
                self._take(version, kind, xid, await self._reader.readexactly(length - codec.HEADER.size))
        except (asyncio.IncompleteReadError, OSError):
            self.close("the switch has closed the connection")
        except (ValueError, struct.error) as error:
            self.close(f"the switch sends what is not OpenFlow 1.4 ({error})")
        raise NotReady(self._ended)

    def _take(self, version: int, kind: int, xid: int, body: bytes) -> None:
        if kind == Type.HELLO and not codec.offers_our_version(version, body):
            raise ValueError("it offers other versions only; allow OpenFlow14 in the bridge's column protocols")
        if kind == Type.ECHO_REQUEST:
            self._writer.write(codec.message(Type.ECHO_REPLY, xid, body))
        elif kind == Type.ERROR:
            self._refuse(xid, codec.error_text(body))
        elif kind == Type.MULTIPART_REPLY:
            self._take_part(xid, body)
        elif kind in {Type.BARRIER_REPLY, Type.BUNDLE_CONTROL}:
            self._settle(xid, [])

    def _refuse(self, xid: int, text: str) -> None:
        future = self._waiting.get(xid)
        if future is None:
            self._refusals[xid] = text
        elif not future.done():
            future.set_exception(Refused(f"the switch refused a request: {text}"))

    def _take_part(self, xid: int, body: bytes) -> None:
        kind, more, rest = codec.multipart_head(body)
        if kind == Multipart.FLOW_MONITOR and codec.reports_foreign_change(rest):
            self.forget()
            self._foreign_changes += 1
            self._on_change()
        parts = self._parts.setdefault(xid, [])
        parts.append(rest)
        if not more:
            self._settle(xid, self._parts.pop(xid))

    def _settle(self, xid: int, parts: list[bytes]) -> None:
        future = self._waiting.get(xid)
        if future is not None and not future.done():
            future.set_result(parts)
