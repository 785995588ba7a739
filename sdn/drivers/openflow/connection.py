"""One connection to a switch: requests, their replies, and the known state of the bridge. Driver."""

from __future__ import annotations

import asyncio
import itertools
import struct
from collections.abc import Awaitable, Callable, Iterable

from reconcile.errors import NotReady, Refused
from sdn.drivers.openflow import messages
from sdn.drivers.openflow.bridge_state import BridgeState, FlowDiff, Step
from sdn.drivers.openflow.messages import Bundle, GroupCommand, Multipart, Type, UnknownFlow
from sdn.model.flow import BridgeLayout, Flow
from sdn.model.host import ConntrackFilter

REPLY_TIMEOUT_SECONDS = 10.0
MESSAGES_PER_WRITE = 256


class Connection:
    """An OpenFlow connection. `on_change` is called when another program has changed a flow."""

    def __init__(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        layout: BridgeLayout,
        on_change: Callable[[], None],
    ) -> None:
        self._reader = reader
        self._writer = writer
        self._layout = layout
        self._on_change = on_change
        self._xids = itertools.count(1)
        self._pending: dict[int, asyncio.Future[list[bytes]]] = {}
        self._parts: dict[int, list[bytes]] = {}
        self._errors: dict[int, str] = {}
        self._state: BridgeState | None = None
        self._foreign_changes = 0
        self._closed_reason = ""

    async def handshake(self) -> None:
        """Agree on the version and subscribe to changes of flows."""
        self._writer.write(messages.hello())
        await self._request(lambda xid: messages.message(Type.BARRIER_REQUEST, xid))
        await self._request(messages.monitor_request)

    def close(self, reason: str) -> None:
        """Close the connection; pending and later requests fail with this reason."""
        self._closed_reason = self._closed_reason or reason
        self._writer.close()
        for future in self._pending.values():
            if not future.done():
                future.set_exception(NotReady(self._closed_reason))

    def invalidate(self) -> None:
        """Discard the known state of the bridge, so that it is read from the switch again."""
        self._state = None

    async def bridge_state(self) -> BridgeState:
        """Return the state of the bridge, read from the switch unless it is known."""
        if self._state is not None:
            return self._state
        before = self._foreign_changes
        parts = await self._request(messages.groups_request)
        groups = list(itertools.chain.from_iterable(map(messages.reported_groups, parts)))
        counts = self._reported_flows(await self._request(messages.flows_request))
        state = BridgeState(self._layout, (flow for flow, _ in counts), groups)
        if self._foreign_changes == before:
            self._state = state
        return state

    async def packet_counts(self, cookie_bits: int) -> dict[Flow | UnknownFlow, int]:
        """Return the packet counters of the flows whose cookie has all these bits set."""
        parts = await self._request(lambda xid: messages.flows_request(xid, cookie_bits))
        return dict(self._reported_flows(parts))

    def _reported_flows(self, parts: Iterable[bytes]) -> Iterable[tuple[Flow | UnknownFlow, int]]:
        return itertools.chain.from_iterable(
            messages.reported_flows(part, self._layout.learned_tables) for part in parts
        )

    async def table_misses(self) -> dict[int, int]:
        """Return, by table, the number of packets that matched no flow."""
        parts = await self._request(messages.tables_request)
        return dict(itertools.chain.from_iterable(map(messages.reported_misses, parts)))

    async def commit(self, diff: FlowDiff) -> None:
        """Write and delete groups and flows in one atomic bundle. Raises NotReady and Refused.

        The barrier before the commit is needed because the switch reports most errors before the commit, but would
        commit the rest of the bundle without the messages that it refused. Other errors, such as a full table, fail
        the commit as a whole.
        """
        state = await self.bridge_state()
        self.invalidate()
        before = self._foreign_changes
        bundle, opening = next(self._xids), next(self._xids)
        self._writer.write(messages.bundle_control(bundle, Bundle.OPEN, opening))
        steps = {next(self._xids): step for step in diff.steps()}
        entries = iter(steps.items())
        while batch := list(itertools.islice(entries, MESSAGES_PER_WRITE)):
            self._writer.write(
                b"".join(messages.bundle_add(bundle, _step_bytes(step, xid), xid) for xid, step in batch)
            )
            await self._drain()
        await self._request(lambda xid: messages.message(Type.BARRIER_REQUEST, xid))
        if opening in self._errors:
            for xid in steps:
                self._errors.pop(xid, None)
            raise Refused(f"the switch refused a bundle: {self._errors.pop(opening)}; flows are as they were")
        end = Bundle.DISCARD if steps.keys() & self._errors.keys() else Bundle.COMMIT
        failure = ""
        try:
            await self._request(lambda xid: messages.bundle_control(bundle, end, xid))
        except Refused as error:
            failure = str(error)
        refused = [f"{entry}: {self._errors.pop(xid)}" for xid, (_, entry) in steps.items() if xid in self._errors]
        if refused or failure:
            raise Refused(f"the switch refused {'; '.join(refused) or failure}; flows are as they were")
        if self._foreign_changes == before:
            state.apply(diff)
            self._state = state

    async def flush_conntrack(self, filters: Iterable[ConntrackFilter]) -> None:
        """Delete the conntrack entries that these filters select."""
        requests = {next(self._xids): entries for entries in filters}
        for xid, entries in requests.items():
            self._writer.write(messages.ct_flush_request(entries, xid))
        await self._request(lambda xid: messages.message(Type.BARRIER_REQUEST, xid))
        refused = [
            f"to delete {entries}: {self._errors.pop(xid)}" for xid, entries in requests.items() if xid in self._errors
        ]
        if refused:
            raise Refused(f"the switch refused {'; '.join(refused)}")

    async def _drain(self) -> None:
        """Wait until the switch has received what was written, so that other tasks can run."""
        try:
            await asyncio.wait_for(self._writer.drain(), REPLY_TIMEOUT_SECONDS)
        except (TimeoutError, OSError):
            raise NotReady(
                self._closed_reason or f"the switch has received nothing for {REPLY_TIMEOUT_SECONDS:.0f} s"
            ) from None

    def _request(self, encode: Callable[[int], bytes]) -> Awaitable[list[bytes]]:
        """Send a request now. The result is the parts of its reply; it raises NotReady and Refused."""
        if self._closed_reason:
            raise NotReady(self._closed_reason)
        xid = next(self._xids)
        future: asyncio.Future[list[bytes]] = asyncio.get_running_loop().create_future()
        self._pending[xid] = future
        self._writer.write(encode(xid))
        return self._await_reply(xid, future)

    async def _await_reply(self, xid: int, future: asyncio.Future[list[bytes]]) -> list[bytes]:
        try:
            return await asyncio.wait_for(future, REPLY_TIMEOUT_SECONDS)
        except TimeoutError:
            raise NotReady(f"the switch did not answer within {REPLY_TIMEOUT_SECONDS:.0f} s") from None
        finally:
            self._pending.pop(xid, None)
            self._parts.pop(xid, None)

    async def receive(self) -> None:
        """Receive messages until the connection ends. Raises NotReady with the reason of its end."""
        try:
            while True:
                head = await self._reader.readexactly(messages.HEADER.size)
                version, kind, length, xid = messages.HEADER.unpack(head)
                self._dispatch(version, kind, xid, await self._reader.readexactly(length - messages.HEADER.size))
        except (asyncio.IncompleteReadError, OSError):
            self.close("the switch has closed the connection")
        except (ValueError, struct.error) as error:
            self.close(f"the switch sent a message that is not OpenFlow 1.4 ({error})")
        raise NotReady(self._closed_reason)

    def _dispatch(self, version: int, kind: int, xid: int, body: bytes) -> None:
        if kind == Type.HELLO and not messages.offers_our_version(version, body):
            raise ValueError("it offers other versions only; allow OpenFlow14 in the bridge's column protocols")
        if kind == Type.ECHO_REQUEST:
            self._writer.write(messages.message(Type.ECHO_REPLY, xid, body))
        elif kind == Type.ERROR:
            self._on_error(xid, messages.error_text(body))
        elif kind == Type.MULTIPART_REPLY:
            self._on_multipart(xid, body)
        elif kind in {Type.BARRIER_REPLY, Type.BUNDLE_CONTROL}:
            self._complete(xid, [])

    def _on_error(self, xid: int, text: str) -> None:
        future = self._pending.get(xid)
        if future is None:
            self._errors[xid] = text
        elif not future.done():
            future.set_exception(Refused(f"the switch refused a request: {text}"))

    def _on_multipart(self, xid: int, body: bytes) -> None:
        kind, more, rest = messages.multipart_head(body)
        if kind == Multipart.FLOW_MONITOR and messages.reports_foreign_change(rest, self._layout.learned_tables):
            self.invalidate()
            self._foreign_changes += 1
            self._on_change()
        parts = self._parts.setdefault(xid, [])
        parts.append(rest)
        if not more:
            self._complete(xid, self._parts.pop(xid))

    def _complete(self, xid: int, parts: list[bytes]) -> None:
        future = self._pending.get(xid)
        if future is not None and not future.done():
            future.set_result(parts)


def _step_bytes(step: Step, xid: int) -> bytes:
    command, entry = step
    if isinstance(command, GroupCommand):
        return messages.group_mod(command, entry, xid)  # type: ignore[arg-type]
    return messages.flow_mod(command, entry, xid)  # type: ignore[arg-type]
