"""The runtime of controllers: read, reconcile, admit, write; again whenever an object has changed.

Nothing waits between reading and writing, so no decision is based on old state. What a controller reads outside of the
store, it reads before (`Controller.prepare`). If another master was first, the write raises Conflict, nothing is
written, and the controller makes another pass on the newer state.

A rejected create (quota, limit range, SCC) is retried for its owner after a back-off that doubles from 1 s to 60 s, or
when what rejected it changes.

An unexpected error of one object is logged once with its traceback, and the object is retried after the same back-off.
The other objects are reconciled meanwhile. No such error keeps the server from starting.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial

import msgspec

from api.core.events import Event, object_reference
from api.core.node import Node
from api.core.pod import Pod
from api.core.storage import PersistentVolumeClaim
from api.meta.types import Object, ObjectReference
from api.validation.registry import default
from master.admission.external_calls import CallsPending, PendingWrite
from master.allocators import ALLOCATOR_CURSORS, AllocatorCursor
from master.controllers import events, object_errors
from master.controllers.actions import Action, Create, Delete, Failed, ForceDelete, Update, Warn, WriteAction
from master.controllers.context import (
    RESYNC_SECONDS,
    Controller,
    ControllerContext,
    CreateBackoff,
    CreateBackoffs,
    Lister,
)
from master.controllers.controllers import controllers
from master.controllers.object_errors import ObjectError
from master.controllers.pending_creates import PendingCreate, PendingCreates
from master.errors import StatusError
from master.registry import decoding, strategy
from master.registry.creation import ObjectCreation
from master.registry.decoding import random_letters
from master.registry.request import DeleteOptions
from master.resources import quantities
from master.resources.configuration import ServiceAccount
from master.resources.group_resource import GroupResource
from master.resources.quotas import LimitRange, ResourceQuota
from master.resources.rbac import ClusterRoleBinding, RoleBinding
from master.resources.scheme import BY_KIND, group_resource
from master.resources.security_context_constraints import SecurityContextConstraints
from master.storage.interface import Conflict, Key, Put, Transaction, WatchEvent
from master.storage.interface import Delete as StorageDelete
from reconcile.errors import DriverError, NotReady
from reconcile.exposition import Histogram, MetricFamily, counter, format_labels, gauge, histogram
from reconcile.loop import Loop, LoopTiming, retry_unexpected_errors

log = logging.getLogger(__name__)

REJECTING_KINDS = (
    ResourceQuota, LimitRange, ServiceAccount, RoleBinding, ClusterRoleBinding, SecurityContextConstraints,
)  # fmt: skip
"""Kinds whose objects let admission reject a create."""

MAX_MESSAGE = 4096
"""Characters of the reason of a rejected create, in events and conditions."""

MIN_BACKOFF_SECONDS, MAX_BACKOFF_SECONDS = 1.0, 60.0
"""Seconds before the first retry, and the longest time between retries; it doubles."""


def next_backoff(previous: CreateBackoff | None, namespace: str, message: str, now: float) -> CreateBackoff:
    """Return the back-off after another rejected create."""
    seconds = MIN_BACKOFF_SECONDS if previous is None else min(2 * previous.seconds, MAX_BACKOFF_SECONDS)
    return CreateBackoff(namespace, message, seconds, now + seconds)


def reset_after(backoffs: CreateBackoffs, event: WatchEvent, now: float) -> dict[str, CreateBackoff]:
    """Return the back-offs after a change that may let creates succeed: those of its namespace, or all, end at once."""
    namespace = event.record.key.namespace
    if not _may_succeed_now(event):
        return dict(backoffs)
    return {
        uid: replace(backoff, until=now) if namespace in ("", backoff.namespace) else backoff
        for uid, backoff in backoffs.items()
    }


def _may_succeed_now(event: WatchEvent) -> bool:
    """Return whether a quota, a limit range, an account, an SCC or a binding changed so that creates may succeed."""
    new, old = event.record.object, event.previous.object if event.previous is not None else None
    if isinstance(new, ServiceAccount):
        return event.type == "ADDED"
    if isinstance(new, RoleBinding | ClusterRoleBinding | SecurityContextConstraints):
        return event.type != "DELETED"
    if event.type == "DELETED" or isinstance(new, LimitRange):
        return True
    if not isinstance(new, ResourceQuota) or old is None:
        return False
    if new.spec.hard != old.spec.hard:
        return True
    before, after = quantities.parse_all(old.status.used), quantities.parse_all(new.status.used)
    return any(name in after and after[name].milli < before[name].milli for name in before)


MAX_FAILURE_EVENTS = 100
"""Events of one pass about objects that fail. The log has all of them."""

BULK_KINDS = (Pod, PersistentVolumeClaim)
"""Objects that one owner may need by the thousand. Their controllers compare what exists with what is desired, so those
that one pass does not create are created by the next one.
"""

MAX_CREATE_WORK, CREATE_WORK = 128 << 10, 1000
"""Bytes of bulk objects that one pass creates, and what each counts in addition to its size: admission of a small pod
takes 1 ms, that of one with 200 containers 100 ms. Other tasks run before the next pass.
"""


class CreateQueue:
    """The creates of one pass of a controller: each object passes admission.

    `is_full` is set when a bulk object is left to the next pass. `pending` are the creates of the controller about
    which external calls are made; a later pass creates the objects.

    `transaction` collects the writes. `backoffs` are those of owners that did not get all objects, by uid.
    `rejected_now` are the owners with a rejected create in this pass. `warnings` are rejected objects without an owner,
    with the reason.
    """

    def __init__(
        self, creation: ObjectCreation, lister: Lister, transaction: Transaction, pending: PendingCreates
    ) -> None:
        self._creation = creation
        self._pending = pending
        self._lister = lister
        self.transaction = transaction
        self.backoffs: dict[str, CreateBackoff] = {}
        self.rejected_now: set[str] = set()
        self.warnings: dict[str, str] = {}
        self.is_full = False
        self._work = 0
        self._succeeded: set[str] = set()

    def create(self, action: Create) -> None:
        """Create an object, unless its owner is backing off after a rejected create.

        An event that exists is counted.
        """
        if isinstance(action.object, AllocatorCursor):
            self.transaction.put(ALLOCATOR_CURSORS, action.object)
            return
        if isinstance(action.object, Event) and self._count_again(action.object):
            return
        owner = events.owner_of(action.object) if action.owner is None else object_reference(action.owner)
        if owner is not None and self._is_backing_off(owner.uid):
            return
        pending: PendingCreate | None = None
        if owner is not None:
            meta = action.object.metadata
            key = (owner.uid, action.object.KIND, meta.name or meta.generate_name)
            pending = self._pending.take(key, meta.namespace)
            if pending is None:
                return
        if isinstance(action.object, BULK_KINDS) and not self._has_room(action.object):
            if pending is not None:
                self._pending.wait(pending, ())
            return
        self._admit(action, owner, pending)

    def _admit(self, action: Create, owner: ObjectReference | None, pending: PendingCreate | None) -> None:
        write = None if pending is None else pending.write
        obj = self._with_name(action.object, write)
        resource = BY_KIND[obj.KIND]
        try:
            obj = self._creation.create(
                resource, default(obj, resource.rules), self.transaction, is_trusted=owner is None, write=write
            )
        except CallsPending as unanswered:
            assert pending is not None
            self._pending.wait(pending, unanswered.calls)
            return
        except StatusError as error:
            message = _without_generated_name(error.status.message, action.object, obj)
            self._reject(action.by, obj, owner, message[:MAX_MESSAGE])
            return
        self.transaction.put(resource.group_resource, obj)
        if pending is not None:
            self._pending.decide(pending)
        if owner is not None:
            self._succeeded.add(owner.uid)
        if action.by:
            self.create(events.created(obj, action.by, self._lister.now))

    def _has_room(self, obj: Object) -> bool:
        """Return whether a bulk object is created in this pass. The first one always is."""
        if self._work >= MAX_CREATE_WORK:
            self.is_full = True
            return False
        self._work += CREATE_WORK + len(msgspec.json.encode(obj))
        return True

    def _is_backing_off(self, uid: str) -> bool:
        backoff = self._lister.backoffs.get(uid)
        if uid not in self.backoffs and backoff is not None and self._lister.context.monotonic() < backoff.until:
            self.backoffs[uid] = backoff
        return uid in self.backoffs

    def _reject(self, component: str, obj: Object, owner: ObjectReference | None, reason: str) -> None:
        """Start or extend the back-off of the owner, and report the reason in an event."""
        if isinstance(obj, Event):
            return  # An event that cannot be created cannot be reported by another event.
        if owner is None:
            self.warnings[f"{obj.KIND} {obj.metadata.namespace}/{obj.metadata.name}"] = reason
            return
        before = None if owner.uid in self._succeeded else self._lister.backoffs.get(owner.uid)
        now = self._lister.context.monotonic()
        self.backoffs[owner.uid] = next_backoff(before, obj.metadata.namespace, reason, now)
        self.rejected_now.add(owner.uid)
        component = component or f"{owner.kind.lower()}-controller"
        self.create(Create(events.create_failed(owner, obj, component, reason, self._lister.now)))

    def _count_again(self, event: Event) -> bool:
        """Count an event if one of its name exists. Return whether it does."""
        before: Event | None = self.transaction.get(Key.of(group_resource(Event), event))
        if before is not None:
            self.transaction.put(group_resource(Event), events.repeated(before, event))
        return before is not None

    def _with_name(self, obj: Object, write: PendingWrite | None) -> Object:
        """Return the object with a generated name that is free, if it has only a prefix."""
        meta = obj.metadata
        while (
            not meta.name or self.transaction.get(Key(group_resource(type(obj)), meta.namespace, meta.name)) is not None
        ):
            if not meta.generate_name:
                break
            letters = random_letters() if write is None else write.letters(random_letters)
            meta = msgspec.structs.replace(meta, name=decoding.generate_name(meta.generate_name, letters))
        return msgspec.structs.replace(obj, metadata=meta)


def _without_generated_name(message: str, requested: Object, obj: Object) -> str:
    """Return an error about an object that names it by the prefix of its generated name, as Kubernetes does.

    So the error of each attempt is the same, and its events are counted.
    """
    if requested.metadata.name or not requested.metadata.generate_name:
        return message
    return message.replace(f'"{obj.metadata.name}"', f'"{requested.metadata.generate_name}"')


SHORT_PASS_SECONDS = 0.002
WRITE_BURST, WRITES_PER_SECOND = 500, 1000
COOL_DOWN_FACTOR, MAX_COOL_DOWN_SECONDS = 4, 2.0
"""After a pass that wrote nothing and was not short, a controller pauses for COOL_DOWN_FACTOR times its duration. So
with thousands of pods, of which one always changes, clients do not wait for one controller after the other.
"""


def cool_down(duration: float, writes: int) -> float:
    """Return the seconds to pause after a pass that took `duration` seconds and wrote `writes` objects. A pass with
    many writes is limited to WRITES_PER_SECOND beyond the burst.
    """
    if writes:
        return min(max(0, writes - WRITE_BURST) / WRITES_PER_SECOND, MAX_COOL_DOWN_SECONDS)
    return min(duration * COOL_DOWN_FACTOR, MAX_COOL_DOWN_SECONDS) if duration > SHORT_PASS_SECONDS else 0.0


PASS_BUCKETS = tuple(1e-8 * 10**step for step in range(10))
"""Seconds, as kube-controller-manager has them."""


class ControllerRuntime:
    """Runs all controllers. `started` is set when the controllers required for startup have written."""

    def __init__(self, context: ControllerContext) -> None:
        self._store = context.store
        self._clock = context.clock
        self._lister = Lister(context)
        self._creation = context.creation
        self._warnings: dict[str, dict[str, str]] = {}
        self._errors: dict[str, dict[str, ObjectError]] = {}
        self._backing_off: dict[str, frozenset[str]] = {}
        self._calls: set[asyncio.Task[None]] = set()
        self.started = asyncio.Event()
        self._controllers = controllers(context)
        self._pending_startup = {controller.name for controller in self._controllers if controller.required_for_startup}
        self._resyncs = {controller.name: controller.resync for controller in self._controllers}
        """Seconds after which a pass of a controller starts without a change, by its name."""
        self._loops = {
            controller.name: Loop(
                controller.name,
                retry_unexpected_errors(controller.name, partial(self._reconcile, controller)),
                LoopTiming(),
                resync=partial(self._resyncs.__getitem__, controller.name),
            )
            for controller in self._controllers
        }
        self._pending = {name: PendingCreates() for name in self._loops}
        """The creates of each controller about which external calls are made."""
        self._pass_seconds = {name: Histogram(PASS_BUCKETS) for name in self._loops}

    def wake(self, name: str) -> None:
        """Start a pass of a controller at once."""
        self._loops[name].wake()

    def metrics(self) -> Iterator[MetricFamily]:
        """Yield metrics under kube-controller-manager's names. The item of a controller's queue is a requested pass."""
        loops = {format_labels(name=name): loop for name, loop in self._loops.items()}
        yield gauge(
            "workqueue_depth",
            "Passes of a controller that are requested and have not begun: 0 or 1.",
            {labels: int(loop.is_requested) for labels, loop in loops.items()},
        )
        yield counter(
            "workqueue_adds_total",
            "Requested passes of a controller.",
            {labels: loop.requested_passes for labels, loop in loops.items()},
        )
        yield counter(
            "workqueue_retries_total",
            "Passes of a controller that failed and are made again.",
            {labels: loop.total_failures for labels, loop in loops.items()},
        )
        yield histogram(
            "workqueue_work_duration_seconds",
            "Seconds that a pass of a controller took to decide.",
            {format_labels(name=name): seconds for name, seconds in self._pass_seconds.items()},
        )
        yield gauge(
            "podlane_controller_failing_objects",
            "Objects that a controller cannot reconcile; its log says why.",
            {format_labels(name=name): len(self._errors.get(name, ())) for name in self._loops},
        )

    async def run(self) -> None:
        """Run until cancelled."""
        with contextlib.ExitStack() as stack:
            for controller in self._controllers:
                wake = _wake_on_event(self._loops[controller.name], controller.event_filter)
                for resource in controller.watches:
                    if controller.observe is not None:
                        stack.callback(self._store.watch(resource, controller.observe))
                    stack.callback(self._store.watch(resource, wake))
            if self._lister.context.custom_kinds is not None:
                subscribed = stack.enter_context(contextlib.ExitStack())
                watched: set[GroupResource] = set()

                def watch_kind(resource: GroupResource) -> None:
                    """Watch the objects of a custom kind from its first definition on."""
                    for controller in self._controllers if resource not in watched else ():
                        if controller.watches_custom_kinds:
                            wake = _wake_on_event(self._loops[controller.name], controller.event_filter)
                            subscribed.callback(self._store.watch(resource, wake))
                    watched.add(resource)

                stack.callback(self._lister.context.custom_kinds.scheme.subscribe(watch_kind))
            for kind in REJECTING_KINDS:
                stack.callback(self._store.watch(group_resource(kind), self._reset_backoffs))
            stack.callback(self._cancel_calls)
            async with asyncio.TaskGroup() as group:
                for loop in self._loops.values():
                    group.create_task(loop.run())

    async def _reconcile(self, controller: Controller) -> None:
        if controller.prepare is not None:
            await controller.prepare(self._lister)
        start = self._lister.context.monotonic()
        try:
            changes = self._collect_changes(controller.name, controller.reconcile(self._lister))
            duration = self._lister.context.monotonic() - start
            self._pass_seconds[controller.name].observe(duration)
            await self._write(controller.name, changes)
            self._pending[controller.name].end_pass()
            if controller.resync < RESYNC_SECONDS:
                waits = controller.awaits_time(self._lister)
                self._resyncs[controller.name] = controller.resync if waits else RESYNC_SECONDS
        except DriverError:
            raise
        except Exception:
            self._finish_startup(controller.name)
            raise
        self._finish_startup(controller.name)
        if controller.has_pending():
            self._loops[controller.name].wake()
        await asyncio.sleep(cool_down(duration, len(changes)))

    def _finish_startup(self, loop: str) -> None:
        """Record that a controller has made its first pass. `started` is set after those of all that are required."""
        self._pending_startup.discard(loop)
        if not self._pending_startup:
            self.started.set()

    def _collect_changes(self, loop: str, actions: Iterable[Action]) -> list[Put | StorageDelete]:
        changes: list[Put | StorageDelete] = []
        warnings: dict[str, str] = {}
        failures: list[Failed] = []
        pending = self._pending[loop]
        pending.begin_pass(self._lister.context.monotonic())
        creates = CreateQueue(self._creation, self._lister, Transaction(self._store), pending)
        for action in actions:
            if isinstance(action, Warn):
                warnings[action.about] = action.text
            elif isinstance(action, Failed):
                failures.append(action)
            else:
                failures += self._try_change(action, creates, changes)
        for event in self._failure_events(loop, failures):
            failures += self._try_change(event, creates, changes)
        self._log_warnings(loop, warnings | creates.warnings)
        self._record_failures(loop, failures)
        self._update_backoffs(loop, creates)
        if creates.is_full:
            self._loops[loop].wake()
        self._start_calls(loop, pending)
        return [*changes, *creates.transaction.changes]

    def _try_change(
        self, action: WriteAction, creates: CreateQueue, changes: list[Put | StorageDelete]
    ) -> Sequence[Failed]:
        """Add the change of an action. Return the unexpected error, if there is one."""
        try:
            if isinstance(action, Create):
                creates.create(action)
            else:
                changes.append(self._to_change(action))
        except Exception as error:  # noqa: BLE001 - _record_failures logs it with its traceback
            return (Failed(action.object, error),)
        return ()

    def _cancel_calls(self) -> None:
        for call in self._calls:
            call.cancel()

    def _start_calls(self, loop: str, pending: PendingCreates) -> None:
        """Start the external calls about creates. A pass of the controller follows each of them."""
        for create in pending.start_calls():
            call = asyncio.get_running_loop().create_task(
                self._creation.caller.resolve(create.calls, create.write.external), name=f"{loop}: external calls"
            )
            self._calls.add(call)
            call.add_done_callback(partial(self._finish_call, loop, pending, create))

    def _finish_call(self, loop: str, pending: PendingCreates, create: PendingCreate, call: asyncio.Task[None]) -> None:
        """Start a pass that decides the create again. It asks again if the calls have failed."""
        self._calls.discard(call)
        pending.finish_calls(create)
        if call.cancelled():
            return
        if (error := call.exception()) is None:
            self._loops[loop].wake()
            return
        log.error("external calls failed; will retry", extra={"controller": loop}, exc_info=error)
        asyncio.get_running_loop().call_later(MIN_BACKOFF_SECONDS, self._loops[loop].wake)

    def _failure_events(self, loop: str, failures: Iterable[Failed]) -> Sequence[Create]:
        """Return an event for each stored object that fails and did not fail in the last pass."""
        known, now = self._errors.get(loop, {}), self._lister.now
        objects = {_describe(failure.object): failure.object for failure in failures}
        new = [
            events.reconcile_failed(obj, loop, now)
            for subject, obj in objects.items()
            if subject not in known and obj.metadata.uid and not isinstance(obj, Event)
        ]
        return new[:MAX_FAILURE_EVENTS]

    def _record_failures(self, loop: str, failures: Iterable[Failed]) -> None:
        """Record the errors of single objects in a pass. Log each once, and start a pass when its back-off ends."""
        errors = {_describe(failure.object): failure.error for failure in failures}
        now, before = self._lister.context.monotonic(), self._errors.get(loop, {})
        after = self._errors[loop] = object_errors.after_pass(before, errors, now)
        for subject in before.keys() - after.keys():
            log.info("object reconciled again", extra={"controller": loop, "object": subject})
        for subject, error in after.items():
            if subject not in before or before[subject].text != error.text:
                log.error(
                    "object not reconciled; will retry",
                    extra={"controller": loop, "object": subject},
                    exc_info=errors[subject],
                )
        for retry_at in {error.retry_at for error in after.values()} - {error.retry_at for error in before.values()}:
            asyncio.get_running_loop().call_later(retry_at - now, self._loops[loop].wake)

    async def _write(self, loop: str, changes: list[Put | StorageDelete]) -> None:
        if changes:
            try:
                await self._store.write(*changes)
            except Conflict as error:
                raise NotReady(f"controller {loop}: {error}; nothing was written") from error
            log.info(
                "objects written",
                extra={"controller": loop, "writes": len(changes), "objects": _describe_changes(changes)},
            )

    def _update_backoffs(self, loop: str, creates: CreateQueue) -> None:
        """Record the back-offs of a controller. Start another pass if they changed, and when they end."""
        before = self._backing_off.get(loop, frozenset())
        self._lister.backoffs = {
            **{
                uid: backoff
                for uid, backoff in self._lister.backoffs.items()
                if uid not in before - creates.backoffs.keys()
            },
            **creates.backoffs,
        }
        self._backing_off[loop] = frozenset(creates.backoffs)
        if creates.rejected_now or before != self._backing_off[loop]:
            self._loops[loop].wake()
        for uid in creates.rejected_now:
            asyncio.get_running_loop().call_later(creates.backoffs[uid].seconds, self._loops[loop].wake)

    def _to_change(self, action: Update | ForceDelete | Delete) -> Put | StorageDelete:
        obj = action.object
        if isinstance(obj, AllocatorCursor):
            assert isinstance(action, Update)
            return Put(Key.of(ALLOCATOR_CURSORS, obj), obj, _revision(action.before))
        resource = self._lister.stored_resource(obj)
        key = Key.of(resource.group_resource, obj)
        if isinstance(action, Update):
            revision = _revision(action.before)
            is_deleted = strategy.is_deletable(resource, obj)
            return StorageDelete(key, obj, revision) if is_deleted else Put(key, obj, revision)
        if isinstance(action, ForceDelete):
            return StorageDelete(key, obj, _revision(obj))
        node_name = obj.spec.node_name if isinstance(obj, Pod) else ""
        node = self._lister.get(Node, node_name) if node_name else None
        options = DeleteOptions(propagation_policy=action.policy)
        remaining = strategy.prepare_delete(resource, obj, options, self._clock(), node)
        return StorageDelete(key, obj, _revision(obj)) if remaining is None else Put(key, remaining, _revision(obj))

    def _reset_backoffs(self, event: WatchEvent) -> None:
        """End back-offs after a change that may let creates succeed, and start passes."""
        after = reset_after(self._lister.backoffs, event, self._lister.context.monotonic())
        if after != self._lister.backoffs:
            self._lister.backoffs = after
            for loop, owners in self._backing_off.items():
                if owners:
                    self._loops[loop].wake()

    def _log_warnings(self, loop: str, warnings: dict[str, str]) -> None:
        """Log each warning once, not at every pass."""
        logged = self._warnings.get(loop, {})
        for subject, text in warnings.items():
            if logged.get(subject) != text:
                log.warning("controller warns", extra={"subject": subject, "reason": text})
        self._warnings[loop] = warnings


def _wake_on_event(loop: Loop, event_filter: Callable[[WatchEvent], bool]) -> Callable[[WatchEvent], None]:
    def wake(event: WatchEvent) -> None:
        if event_filter(event):
            loop.wake()

    return wake


def _describe(obj: Object) -> str:
    meta = obj.metadata
    name = meta.name or meta.generate_name
    return f"{obj.KIND} {meta.namespace}/{name}" if meta.namespace else f"{obj.KIND} {name}"


def _revision(obj: Object) -> int:
    return int(obj.metadata.resource_version)


def _describe_changes(changes: list[Put | StorageDelete]) -> str:
    """Return the first few written objects, for the log."""
    signs_and_keys = [("+" if isinstance(change, Put) else "-", change.key) for change in changes]
    names = [f"{sign}{key.resource}/{key.name}" for sign, key in signs_and_keys if key.resource != ALLOCATOR_CURSORS]
    return " ".join(names[:4]) + (f" and {len(names) - 4} more" if len(names) > 4 else "")
