"""The master's own loops: snapshot from the store, a pure decision, its writes; again whenever something has changed.

Between the snapshot and the writes nothing waits, so no decision rests on what is no longer so.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import uuid
from collections.abc import Callable, Iterable, Iterator
from functools import partial

import msgspec

from api.objects import Object, Pod
from api.validate import default
from master import happenings, writes
from master.controller_table import CONTROLLERS, Controller
from master.controllers import Change, Cursor, Drop, End, Make, Notice, Outcome
from master.kinds import BY_NAME
from master.look import Environment, Look
from master.naming import random_letters
from master.node_life import NodeLife
from master.records import Event, Key, Put, Remove, key_of
from reconcile.loop import Loop, Pace

log = logging.getLogger(__name__)


class Controllers:
    """Run with `await run()`; `first_pass` is set when what belongs to every cluster is there."""

    def __init__(self, environment: Environment) -> None:
        self._store = environment.store
        self._clock = environment.clock
        self._look = Look(environment)
        self._node_life = NodeLife(environment.grace)
        self._notices: dict[str, dict[str, str]] = {}
        self._opening = {row.name for row in CONTROLLERS if row.opens}
        self.first_pass = asyncio.Event()
        nodes = Loop("nodes", self._nodes, Pace(resync=self._node_life.resync))
        self._by_name = {
            row.name: Loop(row.name, partial(self._pass, row), Pace(resync=row.resync)) for row in CONTROLLERS
        }
        self._loops = (*((self._by_name[row.name], row.kinds) for row in CONTROLLERS), (nodes, ("Node",)))

    def wake(self, name: str) -> None:
        """Have one of them look again at once."""
        self._by_name[name].wake()

    async def run(self) -> None:
        """Until cancelled. Raises only what is a bug."""
        with contextlib.ExitStack() as stack:
            for loop, kinds in self._loops:
                for kind in kinds:
                    stack.callback(self._store.watch(kind, _waking(loop)))
            async with asyncio.TaskGroup() as group:
                for loop, _ in self._loops:
                    group.create_task(loop.run())

    async def _pass(self, row: Controller) -> None:
        await self._carry_out(row.name, row.decide(self._look))
        self._opening.discard(row.name)
        if not self._opening:
            self.first_pass.set()

    async def _nodes(self) -> None:
        await self._carry_out("nodes", self._node_life.losses(self._look))
        await self._carry_out("evictions", self._node_life.evictions(self._look))

    async def _carry_out(self, loop: str, outcomes: Iterable[Outcome]) -> None:
        changes: list[Put | Remove] = []
        notices: dict[str, str] = {}
        for outcome in outcomes:
            if isinstance(outcome, Notice):
                notices[outcome.about] = outcome.text
            else:
                changes.extend(self._as_written(outcome))
        self._say(loop, notices)
        if changes:
            await self._store.write(*changes)
            log.info("controller wrote", extra={"loop": loop, "writes": len(changes), "what": _named(changes)})

    def _as_written(self, outcome: Make | Change | Drop | End) -> Iterator[Put | Remove]:
        clock = self._clock
        if isinstance(outcome, Make):
            item = self._begun(outcome.item)
            yield Put(item)
            if outcome.by:
                yield Put(self._begun(happenings.made(item, outcome.by, clock()).item))
        elif isinstance(outcome, Change):
            revision = _revision(outcome.before)
            gone = writes.may_go(BY_NAME[outcome.item.KIND], outcome.item) if outcome.item.KIND in BY_NAME else False
            yield Remove(outcome.item, revision) if gone else Put(outcome.item, revision)
        elif isinstance(outcome, Drop):
            yield Remove(outcome.item, expect=_revision(outcome.item))
        else:
            item = outcome.item
            node_name = item.spec.node_name if isinstance(item, Pod) else ""
            node = self._look.one("Node", node_name) if node_name else None
            options = writes.DeleteOptions(propagation_policy=outcome.policy)
            left = writes.deleted(BY_NAME[item.KIND], item, options, clock(), node)
            yield Remove(item, _revision(item)) if left is None else Put(left, _revision(item))

    def _begun(self, item: Object) -> Object:
        if isinstance(item, Cursor):
            return item
        item = self._completed(item)
        kind = BY_NAME[item.KIND]
        return writes.created(kind, default(item, kind.rules), str(uuid.uuid4()), self._clock())  # type: ignore[no-any-return]

    def _completed(self, item: Object) -> Object:
        """With a name, where there is only the beginning of one."""
        meta = item.metadata
        while not meta.name or self._store.latest(Key(item.KIND, meta.namespace, meta.name)) is not None:
            if not meta.generate_name:
                break
            meta = msgspec.structs.replace(meta, name=writes.completed(meta.generate_name, random_letters()))
        return msgspec.structs.replace(item, metadata=meta)

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
