"""A cluster without a server: actions of controllers are applied to a dictionary, and pods become ready.

A test of another controller passes it to `Simulation`, alone or with some of `WORKLOAD_CONTROLLERS`.
"""

from __future__ import annotations

import datetime
import itertools
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from msgspec.structs import replace

from api.core.node import Node
from api.core.pod import Pod
from api.meta.types import Condition, Object
from api.validation.registry import default
from master.controllers import events, garbage_collector
from master.controllers.actions import Create, Delete, ForceDelete, Update, Warn
from master.controllers.workloads import cron_jobs, daemon_sets, deployments, jobs, replica_sets, stateful_sets
from master.registry import request, strategy
from master.resources.metadata import format_time
from master.resources.scheme import BY_KIND

START = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)


class Simulation:
    """The objects by (kind, name), and the time, which tests set. Controllers act on them in the given order."""

    def __init__(self, controllers: Sequence[SimulatedController] | None = None) -> None:
        self.controllers = WORKLOAD_CONTROLLERS if controllers is None else controllers
        self.objects: dict[tuple[str, str], Any] = {}
        self.now = START
        self._uids = itertools.count(1)

    def all(self, kind: str) -> list[Any]:
        return [obj for (name, _), obj in sorted(self.objects.items()) if name == kind]

    def pods(self) -> list[Pod]:
        return self.all("Pod")

    def put(self, obj: Object) -> Any:
        """Create an object as the API server does, and return it."""
        number, meta = next(self._uids), obj.metadata
        name = meta.name or f"{meta.generate_name}{number:05d}"
        begun = {"generation": 1, "resource_version": "1", "creation_timestamp": format_time(self.now)}
        meta = replace(meta, name=name, uid=f"uid-{number}", **begun)
        resource = BY_KIND[obj.KIND]
        created = resource.prepare_for_create(replace(default(obj, resource.rules), metadata=meta))
        assert (obj.KIND, name) not in self.objects
        self.objects[(obj.KIND, name)] = created
        return created

    def change(self, obj: Any) -> None:
        """Update an object as a client does. A change of the spec increments its generation, if the kind has one."""
        before, spec = self.objects[(obj.KIND, obj.metadata.name)], BY_KIND[obj.KIND].spec
        generation = before.metadata.generation + (spec is not None and spec(obj) != spec(before))
        self.objects[(obj.KIND, obj.metadata.name)] = replace(
            obj, metadata=replace(obj.metadata, generation=generation)
        )

    def remove(self, obj: Any) -> None:
        del self.objects[(obj.KIND, obj.metadata.name)]

    def apply(self, writes: Iterable[Any]) -> bool:
        """Apply the actions of a controller. Return whether there was one."""
        writes = list(writes)
        for write in writes:
            if isinstance(write, Create):
                self.put(write.object)
            elif isinstance(write, Update):
                key = (write.object.KIND, write.object.metadata.name)
                assert self.objects[key] == write.before, "two writes of one object in a pass"
                self._store(write.object)
            elif isinstance(write, Delete):
                self.delete(write.object, policy=write.policy)
            elif isinstance(write, ForceDelete):
                self.remove(write.object)
        return bool(writes)

    def delete(self, obj: Any, grace: int | None = None, policy: str = "") -> None:
        """Delete an object as a client does: a pod with a node, and an object with finalizers, are only marked."""
        node = Node() if obj.KIND == "Pod" and obj.spec.node_name else None
        options = request.DeleteOptions(grace_period_seconds=grace, propagation_policy=policy)
        left = strategy.prepare_delete(BY_KIND[obj.KIND], obj, options, self.now, node)
        if left is None:
            self.remove(obj)
        else:
            self._store(left)

    def _store(self, obj: Any) -> None:
        key = (obj.KIND, obj.metadata.name)
        self.objects[key] = obj
        if strategy.is_deletable(BY_KIND[obj.KIND], obj):
            del self.objects[key]

    def step(self) -> bool:
        """Run one pass of every controller. Return whether one of them had an action."""
        busy = False
        for controller in self.controllers:
            busy |= self.apply(controller(self))
        return busy

    def settle(self) -> None:
        """Run passes until no controller has an action."""
        for _ in range(200):
            if not self.step():
                return
        raise AssertionError("the controllers have actions after 200 passes")

    def ready(self, pod: Pod, is_ready: bool = True) -> None:
        condition = Condition(type="Ready", status=str(is_ready), last_transition_time=format_time(self.now))
        status = replace(pod.status, phase="Running", conditions=(condition,))
        self.objects[("Pod", pod.metadata.name)] = replace(pod, status=status)


SimulatedController = Callable[[Simulation], Iterable[Any]]
"""Returns the actions of one pass."""


def run_deployments(world: Simulation) -> Iterable[Any]:
    return deployments.reconcile(world.all("Deployment"), world.all("ReplicaSet"), world.pods(), world.now)


def run_replica_sets(world: Simulation) -> Iterable[Any]:
    owners = [*world.all("ReplicaSet"), *world.all("ReplicationController")]
    return replica_sets.reconcile(owners, world.pods(), world.now, {})


def run_daemon_sets(world: Simulation) -> Iterable[Any]:
    revisions = world.all("ControllerRevision")
    return daemon_sets.reconcile(world.all("DaemonSet"), world.all("Node"), world.pods(), revisions, world.now)


def run_stateful_sets(world: Simulation) -> Iterable[Any]:
    claims, revisions = world.all("PersistentVolumeClaim"), world.all("ControllerRevision")
    actions = stateful_sets.reconcile(world.all("StatefulSet"), world.pods(), claims, revisions, world.now)
    return (action for action in actions if not isinstance(action, Warn))


def run_cron_jobs(world: Simulation) -> Iterable[Any]:
    return cron_jobs.reconcile(world.all("CronJob"), world.all("Job"), world.now)


def run_jobs(world: Simulation) -> Iterable[Any]:
    return jobs.reconcile(world.all("Job"), world.pods(), world.now, {})


def run_garbage_collector(world: Simulation) -> Iterable[Any]:
    return garbage_collector.reconcile(
        list(world.objects.values()),
        lambda reference, _: reference.kind in BY_KIND,
        lambda obj, reference: events.invalid_owner_namespace(obj, reference, world.now),
    )


WORKLOAD_CONTROLLERS: Sequence[SimulatedController] = (
    run_deployments,
    run_replica_sets,
    run_daemon_sets,
    run_stateful_sets,
    run_cron_jobs,
    run_jobs,
    run_garbage_collector,
)
