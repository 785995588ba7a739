"""The master's own loops: snapshot from the store, a pure decision, its writes; again whenever something has changed.

Between the snapshot and the writes nothing waits, so no decision rests on what is no longer so.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Iterable
from functools import partial

from api.core.pod import Pod
from api.meta.types import Object
from master.admission.chain import AdmissionChain
from master.controllers.look import Environment, Look
from master.controllers.makes import Makes
from master.controllers.network import endpoint_work
from master.controllers.network.endpoint_work import EndpointWork
from master.controllers.nodes.node_life import NodeLife
from master.controllers.refusals import relieved
from master.controllers.table import CONTROLLERS, Controller
from master.kinds import BY_NAME
from master.kinds.limit_range import LimitRange
from master.kinds.resource_quota import ResourceQuota
from master.kinds.service_account import ServiceAccount
from master.store.draft import Draft
from master.store.records import Event, Put, Remove, key_of
from master.writing import writes
from master.writing.outcomes import Change, Cursor, Drop, End, Make, Notice, Outcome
from reconcile.loop import Loop, LoopTiming

log = logging.getLogger(__name__)

BRIEF_SECONDS = 0.002
BURST, WRITES_A_SECOND = 500, 1000
RESTS, LONGEST_REST = 4, 2.0
"""After a pass that was in vain and not brief a controller rests for as many times as long, at most so many seconds:
with thousands of pods, of which one changes all the time, clients do not wait for one controller after the other.
"""


def rest(spent: float, written: int) -> float:
    """Seconds after a pass that took `spent` and wrote so many objects; whoever wishes for many gets them by and by."""
    if written:
        return min(max(0, written - BURST) / WRITES_A_SECOND, LONGEST_REST)
    return min(spent * RESTS, LONGEST_REST) if spent > BRIEF_SECONDS else 0.0


class Controllers:
    """Run with `await run()`; `first_pass` is set when what belongs to every cluster is there."""

    def __init__(self, environment: Environment) -> None:
        self._store = environment.store
        self._clock = environment.clock
        self._look = Look(environment)
        self._node_life = NodeLife(environment.grace)
        self._endpoints = EndpointWork()
        self._chain = AdmissionChain(environment.clock, environment.authority, environment.wish.services)
        self._notices: dict[str, dict[str, str]] = {}
        self._refused_by: dict[str, frozenset[str]] = {}
        self._opening = {row.name for row in CONTROLLERS if row.opens}
        self.first_pass = asyncio.Event()
        nodes = Loop("nodes", self._nodes, LoopTiming(resync=self._node_life.resync))
        controllers = (*CONTROLLERS, Controller("endpoints", endpoint_work.KINDS, self._endpoints.passes))
        rows = [(Loop(row.name, partial(self._pass, row), LoopTiming(resync=row.resync)), row) for row in controllers]
        self._loops = (*((loop, row.kinds) for loop, row in rows), (nodes, ("Node",)))
        self._by_name = {**{row.name: loop for loop, row in rows}, "nodes": nodes, "evictions": nodes}

    def wake(self, name: str) -> None:
        """Have one of them look again at once."""
        self._by_name[name].wake()

    async def run(self) -> None:
        """Until cancelled. Raises only what is a bug."""
        with contextlib.ExitStack() as stack:
            for kind in endpoint_work.KINDS:
                stack.callback(self._store.watch(kind, self._endpoints.tell))
            for loop, kinds in self._loops:
                for kind in kinds:
                    stack.callback(self._store.watch(kind, _waking(loop)))
            for kind in (ResourceQuota.KIND, LimitRange.KIND, ServiceAccount.KIND):
                stack.callback(self._store.watch(kind, self._relieve))
            async with asyncio.TaskGroup() as group:
                for loop, _ in self._loops:
                    group.create_task(loop.run())

    async def _pass(self, row: Controller) -> None:
        begun = self._look.env.steady()
        changes = self._changes(row.name, row.decide(self._look))
        spent = self._look.env.steady() - begun
        await self._write(row.name, changes)
        self._opening.discard(row.name)
        if not self._opening:
            self.first_pass.set()
        await asyncio.sleep(rest(spent, len(changes)))

    async def _nodes(self) -> None:
        await self._carry_out("nodes", self._node_life.losses(self._look))
        await self._carry_out("evictions", self._node_life.evictions(self._look))

    async def _carry_out(self, loop: str, outcomes: Iterable[Outcome]) -> None:
        await self._write(loop, self._changes(loop, outcomes))

    def _changes(self, loop: str, outcomes: Iterable[Outcome]) -> list[Put | Remove]:
        changes: list[Put | Remove] = []
        notices: dict[str, str] = {}
        makes = Makes(self._chain, self._look, Draft(self._store))
        for outcome in outcomes:
            if isinstance(outcome, Notice):
                notices[outcome.about] = outcome.text
            elif isinstance(outcome, Make):
                makes.make(outcome)
            else:
                changes.append(self._as_written(outcome))
        self._say(loop, notices | makes.notices)
        self._remember(loop, makes)
        return [*changes, *makes.draft.puts]

    async def _write(self, loop: str, changes: list[Put | Remove]) -> None:
        if changes:
            await self._store.write(*changes)
            log.info("controller wrote", extra={"loop": loop, "writes": len(changes), "what": _named(changes)})

    def _remember(self, loop: str, makes: Makes) -> None:
        """Who was refused something, and who is no more; the loop looks again where that is news, and in time."""
        mine = self._refused_by.get(loop, frozenset())
        self._look.refusals = {
            **{uid: one for uid, one in self._look.refusals.items() if uid not in mine - makes.refused.keys()},
            **makes.refused,
        }
        self._refused_by[loop] = frozenset(makes.refused)
        if makes.tried or mine != self._refused_by[loop]:
            self._by_name[loop].wake()
        for uid in makes.tried:
            asyncio.get_running_loop().call_later(makes.refused[uid].pause, self._by_name[loop].wake)

    def _as_written(self, outcome: Change | Drop | End) -> Put | Remove:
        if isinstance(outcome, Change):
            revision = _revision(outcome.before)
            gone = writes.may_go(BY_NAME[outcome.item.KIND], outcome.item) if outcome.item.KIND in BY_NAME else False
            return Remove(outcome.item, revision) if gone else Put(outcome.item, revision)
        item = outcome.item
        if isinstance(outcome, Drop):
            return Remove(item, expect=_revision(item))
        node_name = item.spec.node_name if isinstance(item, Pod) else ""
        node = self._look.one("Node", node_name) if node_name else None
        options = writes.DeleteOptions(propagation_policy=outcome.policy)
        left = writes.deleted(BY_NAME[item.KIND], item, options, self._clock(), node)
        return Remove(item, _revision(item)) if left is None else Put(left, _revision(item))

    def _relieve(self, event: Event) -> None:
        """Where there is more room, those who wait try at once."""
        after = relieved(self._look.refusals, event, self._look.env.steady())
        if after != self._look.refusals:
            self._look.refusals = after
            for loop in self._refused_by:
                self._by_name[loop].wake()

    def _say(self, loop: str, notices: dict[str, str]) -> None:
        """Log a notice once, not at every pass."""
        said = self._notices.get(loop, {})
        for about, text in notices.items():
            if said.get(about) != text:
                log.warning("needs attention", extra={"about": about, "why": text})
        self._notices[loop] = notices


def _waking(loop: Loop) -> Callable[[Event], None]:
    def wake(_: Event) -> None:
        loop.wake()

    return wake


def _revision(item: Object) -> int:
    return int(item.metadata.resource_version)


def _named(changes: list[Put | Remove]) -> str:
    """The first few of what was written, for the log."""
    signs = [("+" if isinstance(c, Put) else "-", key_of(c.object if isinstance(c, Put) else c.last)) for c in changes]
    names = [f"{sign}{key.kind}/{key.name}" for sign, key in signs if key.kind != Cursor.KIND]
    return " ".join(names[:4]) + (f" and {len(names) - 4} more" if len(names) > 4 else "")
