"""The master's own loops: snapshot from the store, a pure decision, its writes; again whenever something has changed.

Between the snapshot and the writes nothing waits, so no decision rests on what is no longer so.
"""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import logging
import time
import uuid
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import msgspec

from api.objects import Condition, Namespace, Object, ObjectMeta, OwnerReference, Pod
from api.validate import default
from master import (
    accounts,
    claims,
    controllers,
    dependents,
    deployments,
    endpoints,
    happenings,
    lanes,
    node_taints,
    protection,
    replicas,
    subnets,
    taint_evictions,
    writes,
)
from master.controllers import Change, Cursor, Drop, End, Make, NetworkWish, Notice, Outcome
from master.kinds import ALL, BY_NAME
from master.kinds.kind import show_time
from master.naming import random_letters
from master.records import Event, Key, Put, Remove, key_of
from master.scheduler import Placed, Unplaced, schedule, waits
from master.store import Store
from reconcile.loop import Loop, Pace

log = logging.getLogger(__name__)

Clock = Callable[[], datetime.datetime]

LOOKS_PER_GRACE = 8
"""How often, within the grace period of a node, its last report is looked at."""

ROLLOUT_SECONDS = 5.0
"""Time between two looks for what becomes so by time alone: a pod that has been ready for long enough."""

EXPIRY_SECONDS = 60.0
"""Time between two looks for what is to be forgotten."""

REPLICATING = ("ReplicaSet", "ReplicationController")
OWNED = tuple(kind.name for kind in ALL if kind.name not in ("Event", "Lease", "NodeQuery"))
"""Kinds whose objects go with their owners."""

CONTENTS = tuple(kind.name for kind in ALL if kind.namespaced and kind.name != "Pod")


@dataclass(frozen=True, slots=True)
class Environment:
    """`authority` is the certificate by which pods know this server, as PEM.

    `clock` is the time of day; `steady` never jumps (seconds).
    """

    store: Store
    wish: NetworkWish
    authority: str
    grace: float
    clock: Clock
    steady: Callable[[], float] = time.monotonic


class Controllers:
    """Run with `await run()`; `first_pass` is set when what belongs to every cluster is there."""

    def __init__(self, environment: Environment) -> None:
        self._env = environment
        self._store = environment.store
        self._sightings: controllers.Sightings = {}
        self._marks: taint_evictions.Marks | None = None
        self._looked_at = float("-inf")
        self._absences: dict[str, float] = {}
        self._notices: dict[str, str] = {}
        self.first_pass = asyncio.Event()
        look = min(30.0, environment.grace / LOOKS_PER_GRACE)
        network = ("Namespace", "Node", "HostSubnet", "NetNamespace", "ClusterNetwork")
        self._loops = (
            (Loop("network", self._network, Pace()), network),
            (Loop("scheduler", self._schedule, Pace()), ("Pod", "Node")),
            (Loop("claims", self._claims, Pace()), ("PersistentVolume", "PersistentVolumeClaim", "Pod")),
            (Loop("deployments", self._deployments, Pace(resync=ROLLOUT_SECONDS)), ("Deployment", "ReplicaSet", "Pod")),
            (Loop("replicas", self._replicas, Pace(resync=ROLLOUT_SECONDS)), (*REPLICATING, "Pod")),
            (Loop("accounts", self._accounts, Pace()), ("Namespace", "ServiceAccount", "ConfigMap")),
            (Loop("endpoints", self._endpoints, Pace()), ("Service", "Pod", "Endpoints", "EndpointSlice")),
            (Loop("dependents", self._dependents, Pace()), OWNED),
            (Loop("namespaces", self._namespaces, Pace()), ("Namespace", "Pod")),
            (Loop("nodes", self._nodes, Pace(resync=look)), ("Node",)),
            (Loop("expiry", self._expiry, Pace(resync=EXPIRY_SECONDS)), ()),
        )

    async def run(self) -> None:
        """Until cancelled. Raises only what is a bug."""
        with contextlib.ExitStack() as stack:
            for loop, kinds in self._loops:
                for kind in kinds:
                    stack.callback(self._store.watch(kind, _waking(loop)))
            async with asyncio.TaskGroup() as group:
                for loop, _ in self._loops:
                    group.create_task(loop.run())

    # --- passes ----------------------------------------------------------------------------------------------------

    async def _network(self) -> None:
        wish, nodes, namespaces = self._env.wish, self._all("Node"), self._all("Namespace")
        cursor, vnids = self._cursor("subnets"), self._cursor("vnids")
        await self._carry_out(
            "network",
            [
                *controllers.bootstrap(wish, namespaces, self._one("ClusterNetwork", "default")),
                *subnets.host_subnets(wish, nodes, self._all("HostSubnet"), cursor),
                *lanes.net_namespaces(wish, namespaces, self._all("NetNamespace"), vnids),
            ],
        )
        self.first_pass.set()

    async def _claims(self) -> None:
        """What is bound or set free now is looked at again before anything may go."""
        volumes, wishes = self._all("PersistentVolume"), self._all("PersistentVolumeClaim")
        found: list[Outcome] = list(claims.bindings(volumes, wishes))
        if not found and any(item.metadata.deletion_timestamp for item in (*volumes, *wishes)):
            found = list(protection.releases(volumes, wishes, self._all("Pod")))
        await self._carry_out("claims", found)

    async def _deployments(self) -> None:
        if found := self._all("Deployment"):
            sets, pods, now = self._all("ReplicaSet"), self._all("Pod"), self._env.clock()
            await self._carry_out("deployments", deployments.passes(found, sets, pods, now))

    async def _replicas(self) -> None:
        if owners := [item for kind in REPLICATING for item in self._all(kind)]:
            await self._carry_out("replicas", replicas.passes(owners, self._all("Pod"), self._env.clock()))

    async def _accounts(self) -> None:
        known, configs = self._all("ServiceAccount"), self._all("ConfigMap")
        found = accounts.passes(self._all("Namespace"), known, configs, self._env.authority)
        await self._carry_out("accounts", found)

    async def _endpoints(self) -> None:
        found = (self._all(kind) for kind in ("Service", "Pod", "Endpoints", "EndpointSlice"))
        await self._carry_out("endpoints", endpoints.passes(*found))

    async def _dependents(self) -> None:
        objects = [item for kind in OWNED for item in self._all(kind)]
        await self._carry_out("dependents", dependents.passes(objects, _is_kept))

    async def _namespaces(self) -> None:
        namespaces: list[Namespace] = self._all("Namespace")
        if any(item.metadata.deletion_timestamp for item in namespaces):
            contents = [item for kind in CONTENTS for item in self._all(kind)]
            outcomes = controllers.ending_namespaces(namespaces, self._all("Pod"), contents)
            await self._carry_out("namespaces", outcomes)

    async def _expiry(self) -> None:
        """Nothing waits for it: a look now and then is enough."""
        now = self._env.clock()
        queries = controllers.old_queries(self._all("NodeQuery"), now)
        await self._carry_out("expiry", [*queries, *happenings.old_events(self._all("Event"), now)])

    async def _nodes(self) -> None:
        now, grace, nodes, pods = self._env.steady(), self._env.grace, self._all("Node"), self._all("Pod")
        if controllers.was_away(self._looked_at, now, grace):
            self._sightings, self._marks = {}, None
        self._looked_at = now
        leases = self._all("Lease")
        self._sightings = controllers.sightings(self._sightings, nodes, leases, now)
        self._absences = controllers.absences(self._absences, nodes, pods, now)
        lost = list(controllers.lost_nodes(nodes, self._sightings, grace, now, self._env.clock()))
        for change in lost:
            log.warning("node is lost", extra={"node": change.item.metadata.name, "silent_for": f"{grace:.0f}s"})
        orphaned = controllers.orphaned_pods(pods, self._absences, grace, now)
        told = [happenings.lost(change.before, self._env.clock()) for change in lost]
        await self._carry_out("nodes", [*lost, *told, *orphaned, *controllers.orphaned_leases(nodes, leases)])
        await self._carry_out("taints", node_taints.tainted(self._all("Node"), self._env.clock()))
        await self._leave_unwell_nodes(now)

    async def _leave_unwell_nodes(self, now: float) -> None:
        """Pods of nodes that nobody hears of are not Ready; those that do not bear it go."""
        wall, nodes = self._env.clock(), self._all("Node")
        unready = list(node_taints.unready_pods(nodes, self._all("Pod"), wall))
        await self._carry_out("unready", [*unready, *(happenings.unready(one.item, wall) for one in unready)])
        nodes = self._all("Node")
        self._marks = taint_evictions.marks(self._marks, nodes, self._env.grace, now)
        await self._carry_out("evictions", taint_evictions.evictions(nodes, self._all("Pod"), self._marks, now, wall))

    async def _schedule(self) -> None:
        pods: list[Pod] = self._all("Pod")
        if not any(waits(pod) for pod in pods):
            return
        now = self._env.clock()
        changes: list[Outcome] = []
        for answer in schedule(self._all("Node"), pods):
            if isinstance(answer, Placed):
                changes.append(Change(writes.placed(answer.pod, answer.node, now), answer.pod))
                changes.append(happenings.scheduled(answer.pod, answer.node, now))
            elif news := list(unschedulable(answer, now)):
                changes += [*news, happenings.unscheduled(answer.pod, answer.sentence, now)]
        await self._carry_out("scheduler", changes)

    # --- parts -----------------------------------------------------------------------------------------------------

    def _all(self, kind: str) -> list[Any]:
        return [record.object for record in self._store.scan_latest(kind)]

    def _one(self, kind: str, name: str) -> Any:
        record = self._store.latest(Key(kind, "", name))
        return None if record is None else record.object

    def _cursor(self, name: str) -> Cursor:
        found: Cursor | None = self._one(Cursor.KIND, name)
        return found or Cursor(metadata=ObjectMeta(name=name))

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
        clock = self._env.clock
        if isinstance(outcome, Make):
            yield Put(self._begun(outcome.item))
        elif isinstance(outcome, Change):
            revision = _revision(outcome.before)
            gone = writes.may_go(BY_NAME[outcome.item.KIND], outcome.item) if outcome.item.KIND in BY_NAME else False
            yield Remove(outcome.item, revision) if gone else Put(outcome.item, revision)
        elif isinstance(outcome, Drop):
            yield Remove(outcome.item, expect=_revision(outcome.item))
        else:
            item = outcome.item
            node_name = item.spec.node_name if isinstance(item, Pod) else ""
            node = self._one("Node", node_name) if node_name else None
            left = writes.deleted(BY_NAME[item.KIND], item, writes.DeleteOptions(), clock(), node)
            yield Remove(item, _revision(item)) if left is None else Put(left, _revision(item))

    def _begun(self, item: Object) -> Object:
        if isinstance(item, Cursor):
            return item
        item = self._completed(item)
        kind = BY_NAME[item.KIND]
        return writes.created(kind, default(item, kind.rules), str(uuid.uuid4()), self._env.clock())  # type: ignore[no-any-return]

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
        if loop != "network":
            return
        for about, text in notices.items():
            if self._notices.get(about) != text:
                log.warning("needs attention", extra={"about": about, "why": text})
        self._notices = notices


def _is_kept(owner: OwnerReference) -> bool:
    kind = BY_NAME.get(owner.kind)
    return kind is not None and owner.api_version == kind.type.API_VERSION


def _waking(loop: Loop) -> Callable[[Event], None]:
    def wake(_: Event) -> None:
        loop.wake()

    return wake


def unschedulable(answer: Unplaced, now: datetime.datetime) -> Iterator[Change]:
    """The pod with the condition that says why it waits, if that is news."""
    pod = answer.pod
    old = next((row for row in pod.status.conditions if row.type == "PodScheduled"), None)
    if old is not None and (old.status, old.reason, old.message) == ("False", "Unschedulable", answer.sentence):
        return
    since = old.last_transition_time if old is not None and old.status == "False" else show_time(now)
    row = Condition(
        type="PodScheduled",
        status="False",
        reason="Unschedulable",
        message=answer.sentence,
        last_transition_time=since,
    )
    conditions = (*(other for other in pod.status.conditions if other.type != "PodScheduled"), row)
    yield Change(msgspec.structs.replace(pod, status=msgspec.structs.replace(pod.status, conditions=conditions)), pod)


def _revision(item: Object) -> int:
    return int(item.metadata.resource_version)


def _named(changes: list[Put | Remove]) -> str:
    """The first few of what was written, for the log."""
    signs = [("+" if isinstance(c, Put) else "-", key_of(c.object if isinstance(c, Put) else c.last)) for c in changes]
    names = [f"{sign}{key.kind}/{key.name}" for sign, key in signs if key.kind != Cursor.KIND]
    return " ".join(names[:4]) + (f" and {len(names) - 4} more" if len(names) > 4 else "")
