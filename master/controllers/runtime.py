"""The runtime of controllers: read, reconcile, admit, write; again whenever an object has changed.

Nothing waits between reading and writing, so no decision is based on old state. A rejected create (quota, limit
range) is retried for its owner after a back-off that doubles from 1 s to 60 s, or when the quota changes.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial

import msgspec

from api.core.events import Event, reference
from api.core.pod import Pod
from api.meta.types import Object, ObjectReference
from api.validation.registry import default
from master.admission.chain import AdmissionChain
from master.allocators import AllocatorCursor
from master.controllers import events
from master.controllers.actions import Action, Create, Delete, ForceDelete, Update, Warn
from master.controllers.context import Controller, ControllerContext, CreateBackoff, CreateBackoffs, Lister
from master.controllers.controllers import CONTROLLERS
from master.controllers.network import endpoints
from master.controllers.network.endpoints import EndpointQueue
from master.controllers.nodes.lifecycle import NodeLifecycle
from master.kinds import BY_NAME, amounts
from master.kinds.limit_range import LimitRange
from master.kinds.resource_quota import ResourceQuota
from master.kinds.service_account import ServiceAccount
from master.registry import decoding, request, strategy
from master.registry.decoding import random_letters
from master.store.draft import Draft
from master.store.records import Event as WatchEvent
from master.store.records import Key, Put, Remove, key_of
from master.wire.answers import Failure
from reconcile.loop import Loop, LoopTiming

MIN_BACKOFF_SECONDS, MAX_BACKOFF_SECONDS = 1.0, 60.0
"""Seconds before the second try, and between later ones; they double."""


def next_backoff(before: CreateBackoff | None, namespace: str, message: str, now: float) -> CreateBackoff:
    """Another refusal."""
    pause = MIN_BACKOFF_SECONDS if before is None else min(2 * before.pause, MAX_BACKOFF_SECONDS)
    return CreateBackoff(namespace, message, pause, now + pause)


def reset_after(known: CreateBackoffs, event: WatchEvent, now: float) -> dict[str, CreateBackoff]:
    """The same after a change of a quota, of bounds or of an account: where there is more room, nobody need wait."""
    namespace = event.record.key.namespace
    if not _may_succeed_now(event):
        return dict(known)
    return {uid: replace(one, again=now) if one.namespace == namespace else one for uid, one in known.items()}


def _may_succeed_now(event: WatchEvent) -> bool:
    new, old = event.record.object, event.previous.object if event.previous is not None else None
    if isinstance(new, ServiceAccount):
        return event.type == "ADDED"
    if event.type == "DELETED" or isinstance(new, LimitRange):
        return True
    if not isinstance(new, ResourceQuota) or old is None:
        return False
    if new.spec.hard != old.spec.hard:
        return True
    before, after = amounts.read(old.status.used), amounts.read(new.status.used)
    return any(name in after and after[name].milli < before[name].milli for name in before)


class CreateQueue:
    """`draft` is what is to be written. `refused` are the owners who did not get all, by uid; `tried` those of them who
    asked in this pass, and did not only wait. `notices` tell of what nobody owns.
    """

    def __init__(self, chain: AdmissionChain, look: Lister, draft: Draft) -> None:
        self._chain = chain
        self._look = look
        self.draft = draft
        self.refused: dict[str, CreateBackoff] = {}
        self.tried: set[str] = set()
        self.notices: dict[str, str] = {}
        self._served: set[str] = set()

    def make(self, wish: Create) -> None:
        """One object, unless its owner was refused another one not long ago."""
        if isinstance(wish.item, AllocatorCursor):
            self.draft.put(wish.item)
            return
        owner = events.owner_of(wish.item) if wish.owner is None else reference(wish.owner)
        if owner is not None and self._must_wait(owner.uid):
            return
        item = self._completed(wish.item)
        kind = BY_NAME[item.KIND]
        try:
            item = self._chain.created(kind, default(item, kind.rules), self.draft)
        except Failure as failure:
            self._tell(wish.by, item, owner, failure.status.message)
            return
        self.draft.put(item)
        if owner is not None:
            self._served.add(owner.uid)
        if wish.by:
            self.make(events.created(item, wish.by, self._look.now))

    def _must_wait(self, uid: str) -> bool:
        known = self._look.refusals.get(uid)
        if uid not in self.refused and known is not None and self._look.env.steady() < known.again:
            self.refused[uid] = known
        return uid in self.refused

    def _tell(self, by: str, item: Object, owner: ObjectReference | None, why: str) -> None:
        if isinstance(item, Event):
            return  # Nothing can be told where nothing is kept any more.
        if owner is None:
            self.notices[f"{item.KIND} {item.metadata.namespace}/{item.metadata.name}"] = why
            return
        before = None if owner.uid in self._served else self._look.refusals.get(owner.uid)
        now = self._look.env.steady()
        self.refused[owner.uid] = next_backoff(before, item.metadata.namespace, why, now)
        self.tried.add(owner.uid)
        by = by or f"{owner.kind.lower()}-controller"
        self.make(events.create_failed(owner, item, by, why, self._look.now))

    def _completed(self, item: Object) -> Object:
        """With a name, where there is only the beginning of one."""
        meta = item.metadata
        while not meta.name or self.draft.one(Key(item.KIND, meta.namespace, meta.name)) is not None:
            if not meta.generate_name:
                break
            meta = msgspec.structs.replace(meta, name=decoding.generate_name(meta.generate_name, random_letters()))
        return msgspec.structs.replace(item, metadata=meta)


log = logging.getLogger(__name__)

SHORT_PASS_SECONDS = 0.002
WRITE_BURST, WRITES_PER_SECOND = 500, 1000
COOL_DOWN_FACTOR, MAX_COOL_DOWN_SECONDS = 4, 2.0
"""After a pass that was in vain and not brief a controller rests for as many times as long, at most so many seconds:
with thousands of pods, of which one changes all the time, clients do not wait for one controller after the other.
"""


def cool_down(spent: float, written: int) -> float:
    """Seconds after a pass that took `spent` and wrote so many objects; whoever wishes for many gets them by and by."""
    if written:
        return min(max(0, written - WRITE_BURST) / WRITES_PER_SECOND, MAX_COOL_DOWN_SECONDS)
    return min(spent * COOL_DOWN_FACTOR, MAX_COOL_DOWN_SECONDS) if spent > SHORT_PASS_SECONDS else 0.0


class ControllerRuntime:
    """Run with `await run()`; `first_pass` is set when what belongs to every cluster is there."""

    def __init__(self, environment: ControllerContext) -> None:
        self._store = environment.store
        self._clock = environment.clock
        self._look = Lister(environment)
        self._node_life = NodeLifecycle(environment.grace)
        self._endpoints = EndpointQueue()
        self._chain = AdmissionChain(environment.clock, environment.authority, environment.wish.services)
        self._notices: dict[str, dict[str, str]] = {}
        self._refused_by: dict[str, frozenset[str]] = {}
        self._opening = {row.name for row in CONTROLLERS if row.opens}
        self.first_pass = asyncio.Event()
        nodes = Loop("nodes", self._nodes, LoopTiming(resync=self._node_life.resync))
        controllers = (*CONTROLLERS, Controller("endpoints", endpoints.ENDPOINT_KINDS, self._endpoints.passes))
        rows = [(Loop(row.name, partial(self._pass, row), LoopTiming(resync=row.resync)), row) for row in controllers]
        self._loops = (*((loop, row.kinds) for loop, row in rows), (nodes, ("Node",)))
        self._by_name = {**{row.name: loop for loop, row in rows}, "nodes": nodes, "evictions": nodes}

    def wake(self, name: str) -> None:
        """Have one of them look again at once."""
        self._by_name[name].wake()

    async def run(self) -> None:
        """Until cancelled. Raises only what is a bug."""
        with contextlib.ExitStack() as stack:
            for kind in endpoints.ENDPOINT_KINDS:
                stack.callback(self._store.watch(kind, self._endpoints.tell))
            for loop, kinds in self._loops:
                for kind in kinds:
                    stack.callback(self._store.watch(kind, _wake_on_event(loop)))
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
        await asyncio.sleep(cool_down(spent, len(changes)))

    async def _nodes(self) -> None:
        await self._carry_out("nodes", self._node_life.losses(self._look))
        await self._carry_out("evictions", self._node_life.evictions(self._look))

    async def _carry_out(self, loop: str, outcomes: Iterable[Action]) -> None:
        await self._write(loop, self._changes(loop, outcomes))

    def _changes(self, loop: str, outcomes: Iterable[Action]) -> list[Put | Remove]:
        changes: list[Put | Remove] = []
        notices: dict[str, str] = {}
        makes = CreateQueue(self._chain, self._look, Draft(self._store))
        for outcome in outcomes:
            if isinstance(outcome, Warn):
                notices[outcome.about] = outcome.text
            elif isinstance(outcome, Create):
                makes.make(outcome)
            else:
                changes.append(self._as_written(outcome))
        self._say(loop, notices | makes.notices)
        self._remember(loop, makes)
        return [*changes, *makes.draft.puts]

    async def _write(self, loop: str, changes: list[Put | Remove]) -> None:
        if changes:
            await self._store.write(*changes)
            log.info(
                "controller wrote", extra={"loop": loop, "writes": len(changes), "what": _describe_changes(changes)}
            )

    def _remember(self, loop: str, makes: CreateQueue) -> None:
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

    def _as_written(self, outcome: Update | ForceDelete | Delete) -> Put | Remove:
        if isinstance(outcome, Update):
            revision = _revision(outcome.before)
            gone = (
                strategy.is_deletable(BY_NAME[outcome.item.KIND], outcome.item)
                if outcome.item.KIND in BY_NAME
                else False
            )
            return Remove(outcome.item, revision) if gone else Put(outcome.item, revision)
        item = outcome.item
        if isinstance(outcome, ForceDelete):
            return Remove(item, expect=_revision(item))
        node_name = item.spec.node_name if isinstance(item, Pod) else ""
        node = self._look.one("Node", node_name) if node_name else None
        options = request.DeleteOptions(propagation_policy=outcome.policy)
        left = strategy.prepare_delete(BY_NAME[item.KIND], item, options, self._clock(), node)
        return Remove(item, _revision(item)) if left is None else Put(left, _revision(item))

    def _relieve(self, event: WatchEvent) -> None:
        """Where there is more room, those who wait try at once."""
        after = reset_after(self._look.refusals, event, self._look.env.steady())
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


def _wake_on_event(loop: Loop) -> Callable[[WatchEvent], None]:
    def wake(_: WatchEvent) -> None:
        loop.wake()

    return wake


def _revision(item: Object) -> int:
    return int(item.metadata.resource_version)


def _describe_changes(changes: list[Put | Remove]) -> str:
    """The first few of what was written, for the log."""
    signs = [("+" if isinstance(c, Put) else "-", key_of(c.object if isinstance(c, Put) else c.last)) for c in changes]
    names = [f"{sign}{key.kind}/{key.name}" for sign, key in signs if key.kind != AllocatorCursor.KIND]
    return " ".join(names[:4]) + (f" and {len(names) - 4} more" if len(names) > 4 else "")
