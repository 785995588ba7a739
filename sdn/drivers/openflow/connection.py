"""One connection to a switch: requests, their replies, and what the bridge is known to hold. Driver."""

from __future__ import annotations

import asyncio
import itertools
import struct
from collections.abc import Awaitable, Callable, Iterable

from reconcile.errors import NotReady, Refused
from sdn.drivers.openflow import messages as codec
from sdn.drivers.openflow.bridge_state import BridgeState, FlowDiff, Step
from sdn.drivers.openflow.messages import Bundle, GroupCommand, Multipart, Type, UnknownFlow
from sdn.model.flow import Flow
from sdn.model.host import ConntrackFilter

REPLY_TIMEOUT_SECONDS = 10.0
MESSAGES_PER_WRITE = 256


class Connection:
    """One connection: what was asked and not yet answered, and what is known to be held (None: ask again)."""

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
        self._known: BridgeState | None = None
        self._foreign_changes = 0
        self._ended = ""

    async def handshake(self) -> None:
        """Agree on the version and ask to be told of changes."""
        self._writer.write(codec.hello())
        await self._request(lambda xid: codec.message(Type.BARRIER_REQUEST, xid))
        await self._request(codec.monitor_request)

    def close(self, reason: str) -> None:
        """Give up the connection; whoever waits for an answer, or asks later, learns that there is none."""
        self._ended = self._ended or reason
        self._writer.close()
        for future in self._waiting.values():
            if not future.done():
                future.set_exception(NotReady(self._ended))

    def invalidate(self) -> None:
        """Ask the switch before relying on what it holds."""
        self._known = None

    async def bridge_state(self) -> BridgeState:
        """What the bridge holds, asked of the switch where it is not known."""
        if self._known is not None:
            return self._known
        before = self._foreign_changes
        parts = await self._request(codec.groups_request)
        groups = list(itertools.chain.from_iterable(map(codec.reported_groups, parts)))
        parts = await self._request(codec.flows_request)
        found = BridgeState(itertools.chain.from_iterable(map(codec.reported_flows, parts)), groups)
        if self._foreign_changes == before:
            self._known = found
        return found

    async def packet_counts(self, cookie_bits: int) -> dict[Flow | UnknownFlow, int]:
        """By row."""
        parts = await self._request(lambda xid: codec.flows_request(xid, cookie_bits))
        return dict(itertools.chain.from_iterable(map(codec.counted_flows, parts)))

    async def table_misses(self) -> dict[int, int]:
        """By table."""
        parts = await self._request(codec.tables_request)
        return dict(itertools.chain.from_iterable(map(codec.reported_misses, parts)))

    async def commit(self, difference: FlowDiff) -> None:
        """Write and delete groups and rows as a whole.

        The barrier before the commit brings most refusals: the switch would commit the rest of the bundle without
        what it refused. The others, such as a full table, fail the commit as a whole.
        """
        known = await self.bridge_state()
        self.invalidate()
        before = self._foreign_changes
        bundle = next(self._xids)
        await self._request(lambda xid: codec.bundle_control(bundle, Bundle.OPEN, xid))
        asked = {next(self._xids): step for step in difference.steps()}
        for number, (xid, step) in enumerate(asked.items()):
            self._writer.write(codec.bundle_add(bundle, _step_bytes(step, xid), xid))
            if number % MESSAGES_PER_WRITE == 0:
                await self._drain()
        await self._request(lambda xid: codec.message(Type.BARRIER_REQUEST, xid))
        end = Bundle.DISCARD if asked.keys() & self._refusals.keys() else Bundle.COMMIT
        failure = ""
        try:
            await self._request(lambda xid: codec.bundle_control(bundle, end, xid))
        except Refused as error:
            failure = str(error)
        refused = [f"{what}: {self._refusals.pop(xid)}" for xid, (_, what) in asked.items() if xid in self._refusals]
        if refused or failure:
            raise Refused(f"the switch refused {'; '.join(refused) or failure}; flows are as they were")
        if self._foreign_changes == before:
            known.apply(difference)
            self._known = known

    async def flush_conntrack(self, calls: Iterable[ConntrackFilter]) -> None:
        """Have connection tracking forget them."""
        asked = {next(self._xids): call for call in calls}
        for xid, call in asked.items():
            self._writer.write(codec.ct_flush_request(call, xid))
        await self._request(lambda xid: codec.message(Type.BARRIER_REQUEST, xid))
        refused = [
            f"to forget {call}: {self._refusals.pop(xid)}" for xid, call in asked.items() if xid in self._refusals
        ]
        if refused:
            raise Refused(f"the switch refused {'; '.join(refused)}")

    async def _drain(self) -> None:
        """Let the switch take in what was written, and others have their turn."""
        try:
            await asyncio.wait_for(self._writer.drain(), REPLY_TIMEOUT_SECONDS)
        except (TimeoutError, OSError):
            raise NotReady(self._ended or f"the switch takes in nothing for {REPLY_TIMEOUT_SECONDS:.0f} s") from None

    def _request(self, make: Callable[[int], bytes]) -> Awaitable[list[bytes]]:
        if self._ended:
            raise NotReady(self._ended)
        xid = next(self._xids)
        future: asyncio.Future[list[bytes]] = asyncio.get_running_loop().create_future()
        self._waiting[xid] = future
        self._writer.write(make(xid))
        return self._await_reply(xid, future)

    async def _await_reply(self, xid: int, future: asyncio.Future[list[bytes]]) -> list[bytes]:
        try:
            return await asyncio.wait_for(future, REPLY_TIMEOUT_SECONDS)
        except TimeoutError:
            raise NotReady(f"the switch did not answer within {REPLY_TIMEOUT_SECONDS:.0f} s") from None
        finally:
            self._waiting.pop(xid, None)
            self._parts.pop(xid, None)

    async def receive(self) -> None:
        """Take in messages until the connection ends. Raises NotReady, which says why it did."""
        try:
            while True:
                head = await self._reader.readexactly(codec.HEADER.size)
                version, kind, length, xid = codec.HEADER.unpack(head)
                self._dispatch(version, kind, xid, await self._reader.readexactly(length - codec.HEADER.size))
        except (asyncio.IncompleteReadError, OSError):
            self.close("the switch has closed the connection")
        except (ValueError, struct.error) as error:
            self.close(f"the switch sends what is not OpenFlow 1.4 ({error})")
        raise NotReady(self._ended)

    def _dispatch(self, version: int, kind: int, xid: int, body: bytes) -> None:
        if kind == Type.HELLO and not codec.offers_our_version(version, body):
            raise ValueError("it offers other versions only; allow OpenFlow14 in the bridge's column protocols")
        if kind == Type.ECHO_REQUEST:
            self._writer.write(codec.message(Type.ECHO_REPLY, xid, body))
        elif kind == Type.ERROR:
            self._on_error(xid, codec.error_text(body))
        elif kind == Type.MULTIPART_REPLY:
            self._on_multipart(xid, body)
        elif kind in {Type.BARRIER_REPLY, Type.BUNDLE_CONTROL}:
            self._complete(xid, [])

    def _on_error(self, xid: int, text: str) -> None:
        future = self._waiting.get(xid)
        if future is None:
            self._refusals[xid] = text
        elif not future.done():
            future.set_exception(Refused(f"the switch refused a request: {text}"))

    def _on_multipart(self, xid: int, body: bytes) -> None:
        kind, more, rest = codec.multipart_head(body)
        if kind == Multipart.FLOW_MONITOR and codec.reports_foreign_change(rest):
            self.invalidate()
            self._foreign_changes += 1
            self._on_change()
        parts = self._parts.setdefault(xid, [])
        parts.append(rest)
        if not more:
            self._complete(xid, self._parts.pop(xid))

    def _complete(self, xid: int, parts: list[bytes]) -> None:
        future = self._waiting.get(xid)
        if future is not None and not future.done():
            future.set_result(parts)


def _step_bytes(step: Step, xid: int) -> bytes:
    command, what = step
    if isinstance(command, GroupCommand):
        return codec.group_mod(command, what, xid)  # type: ignore[arg-type]
    return codec.flow_mod(command, what, xid)  # type: ignore[arg-type]
