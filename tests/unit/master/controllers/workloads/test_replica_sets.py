"""ReplicaSets and ReplicationControllers."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from api.validation.registry import decode, default
from master.resources.deployments import REPLICATION_CONTROLLERS, ReplicaSet, ReplicationController
from tests.unit.master.controllers.workloads.examples import template, workload
from tests.unit.master.simulation import Simulation


@pytest.mark.parametrize("kind", ["ReplicaSet", "ReplicationController"])
def test_replica_set_creates_and_deletes_pods_to_its_replicas(kind: str) -> None:
    world = Simulation()
    owner = world.put(workload(kind, replicas=3))
    world.settle()
    assert len(world.pods()) == 3
    assert {pod.metadata.owner_references[0].uid for pod in world.pods()} == {owner.metadata.uid}
    for pod in world.pods():
        world.ready(pod)
    world.settle()
    (status,) = (obj.status for obj in world.all(kind))
    assert (status.replicas, status.ready_replicas, status.available_replicas) == (3, 3, 3)
    world.remove(world.pods()[0])
    world.settle()
    assert len(world.pods()) == 3
    world.change(replace(world.all(kind)[0], spec=replace(world.all(kind)[0].spec, replicas=0)))
    world.settle()
    assert not world.pods()


def test_replica_set_deletes_least_valuable_pods_first() -> None:
    world = Simulation()
    world.put(workload("ReplicaSet", replicas=3))
    world.settle()
    remaining_pod = world.pods()[1]
    world.ready(remaining_pod)
    owner: ReplicaSet = world.all("ReplicaSet")[0]
    world.change(replace(owner, spec=replace(owner.spec, replicas=1)))
    world.settle()
    assert [pod.metadata.name for pod in world.pods()] == [remaining_pod.metadata.name]


def test_replica_set_adopts_and_releases_pods_by_labels() -> None:
    world = Simulation()
    world.put(workload("ReplicaSet", replicas=2))
    world.settle()
    (first, second) = world.pods()
    lost = replace(first, metadata=replace(first.metadata, labels={}))
    world.change(lost)
    world.settle()
    assert len(world.pods()) == 3
    alone = next(pod for pod in world.pods() if pod.metadata.name == first.metadata.name)
    assert alone.metadata.owner_references == ()
    world.remove(second)
    world.change(replace(alone, metadata=replace(alone.metadata, labels={"app": "web"})))
    world.settle()
    assert len(world.pods()) == 2
    assert all(pod.metadata.owner_references for pod in world.pods())


def test_replication_controller_selector_defaults_from_its_template() -> None:
    controller, problems, _ = decode(
        ReplicationController,
        {"metadata": {"name": "web"}, "spec": {"template": template()}},
        REPLICATION_CONTROLLERS.rules,
    )
    assert not problems
    assert controller is not None
    full = default(controller, REPLICATION_CONTROLLERS.rules)
    assert (full.spec.selector, full.spec.replicas, full.metadata.labels) == ({"app": "web"}, 1, {"app": "web"})
