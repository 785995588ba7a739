"""Deployments and their rollouts."""

from __future__ import annotations

import datetime
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from api.validation.registry import decode, default
from master.controllers.workloads.pod_control import is_active, ready_since, template_hash
from master.resources.deployments import DEPLOYMENTS, Deployment
from master.resources.pod_template import int_or_percent
from tests.unit.master.controllers.workloads.examples import KINDS, deployment, template
from tests.unit.master.simulation import Simulation


def test_deployment_is_deleted_with_its_replica_sets_and_pods() -> None:
    world = Simulation()
    world.put(deployment(replicas=2))
    world.settle()
    assert (len(world.all("ReplicaSet")), len(world.pods())) == (1, 2)
    world.remove(world.all("Deployment")[0])
    world.settle()
    assert {kind for kind, _ in world.objects} == {"Event"}


def test_deployment_emits_events_for_scaling_and_pods() -> None:
    world = Simulation()
    world.put(deployment(replicas=1, strategy={"type": "Recreate"}))
    all_ready(world)
    (first,) = (replica_set.metadata.name for replica_set in world.all("ReplicaSet"))
    roll(world, "i:2")
    all_ready(world)
    (second,) = (
        replica_set.metadata.name for replica_set in world.all("ReplicaSet") if replica_set.metadata.name != first
    )
    messages = [event.message for event in world.all("Event") if event.involved_object.kind == "Deployment"]
    assert sorted(messages) == sorted(
        (
            f"Scaled up replica set {first} from 0 to 1",
            f"Scaled down replica set {first} from 1 to 0",
            f"Scaled up replica set {second} from 0 to 1",
        )
    )
    reasons = [event.reason for event in world.all("Event") if event.involved_object.name == first]
    assert [reason for reason in reasons if reason == "SuccessfulDelete"] == ["SuccessfulDelete"]


def roll(world: Simulation, image: str) -> None:
    current: Deployment = world.all("Deployment")[0]
    main = replace(current.spec.template.spec.containers[0], image=image)
    pods = replace(current.spec.template.spec, containers=(main,))
    world.change(replace(current, spec=replace(current.spec, template=replace(current.spec.template, spec=pods))))


def images(world: Simulation) -> set[str]:
    return {pod.spec.containers[0].image for pod in world.pods()}


def all_ready(world: Simulation) -> None:
    for _ in range(50):
        world.settle()
        waiting = [pod for pod in world.pods() if ready_since(pod) is None]
        if not waiting:
            return
        for pod in waiting:
            world.ready(pod)
    raise AssertionError("the rollout never ends")


PARTS = st.sampled_from([0, 1, 2, "0%", "25%", "50%", "100%"])


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 7), PARTS, PARTS, st.lists(st.integers(0, 30), max_size=40))
def test_deployment_rollout_stays_within_its_bounds_and_completes(
    replicas: int, surge: Any, missing: Any, order: list[int]
) -> None:
    if surge in (0, "0%") and missing in (0, "0%"):
        return
    world = Simulation()
    rolling = {"maxSurge": surge, "maxUnavailable": missing}
    world.put(deployment(replicas=replicas, strategy={"rollingUpdate": rolling}))
    all_ready(world)
    roll(world, "i:2")
    most = replicas + int_or_percent(surge, replicas, up=True)
    spare = int_or_percent(missing, replicas, up=False) or (0 if int_or_percent(surge, replicas, up=True) else 1)
    for number in order:
        world.settle()
        assert len([pod for pod in world.pods() if is_active(pod)]) <= most
        ready = [pod for pod in world.pods() if ready_since(pod) is not None]
        assert len(ready) >= replicas - spare
        waiting = [pod for pod in world.pods() if ready_since(pod) is None]
        if waiting:
            world.ready(waiting[number % len(waiting)])
    all_ready(world)
    assert images(world) == {"i:2"}
    assert len(world.pods()) == replicas
    status = world.all("Deployment")[0].status
    assert {condition.type: condition.reason for condition in status.conditions} == {
        "Available": "MinimumReplicasAvailable",
        "Progressing": "NewReplicaSetAvailable",
    }


def test_rollback_makes_the_old_replica_set_the_newest_revision() -> None:
    world = Simulation()
    world.put(deployment(replicas=1))
    all_ready(world)
    roll(world, "i:2")
    all_ready(world)
    roll(world, "i:1")
    all_ready(world)
    revisions = {
        replica_set.spec.template.spec.containers[0].image: replica_set.metadata.annotations[
            "deployment.kubernetes.io/revision"
        ]
        for replica_set in world.all("ReplicaSet")
    }
    assert revisions == {"i:1": "3", "i:2": "2"}
    assert world.all("Deployment")[0].metadata.annotations["deployment.kubernetes.io/revision"] == "3"


def test_deployment_history_is_limited() -> None:
    world = Simulation()
    world.put(deployment(replicas=1, revisionHistoryLimit=2))
    for number in range(6):
        roll(world, f"i:{number}")
        all_ready(world)
    assert len(world.all("ReplicaSet")) == 3


def test_recreate_strategy_never_runs_old_and_new_pods_together() -> None:
    world = Simulation()
    world.put(deployment(replicas=3, strategy={"type": "Recreate"}))
    all_ready(world)
    roll(world, "i:2")
    for _ in range(20):
        world.step()
        assert len(images(world)) <= 1
    all_ready(world)
    assert images(world) == {"i:2"}


def test_paused_deployment_scales_without_rolling() -> None:
    world = Simulation()
    world.put(deployment(replicas=2))
    all_ready(world)
    current: Deployment = world.all("Deployment")[0]
    world.change(replace(current, spec=replace(current.spec, paused=True)))
    roll(world, "i:2")
    world.settle()
    assert images(world) == {"i:1"}
    current = world.all("Deployment")[0]
    world.change(replace(current, spec=replace(current.spec, replicas=4)))
    all_ready(world)
    assert (len(world.pods()), images(world)) == (4, {"i:1"})


@pytest.mark.parametrize(
    ("before", "surge", "unavailable", "after", "sizes"),
    [(4, 1, 0, 8, [2, 7]), (10, 3, 2, 30, [13, 20]), (10, 3, 2, 5, [3, 5]), (10, 3, 2, 0, [0, 0])],
)
def test_scaling_during_a_rollout_is_proportional(
    before: int, surge: int, unavailable: int, after: int, sizes: list[int]
) -> None:
    world = Simulation()
    rolling = {"rollingUpdate": {"maxSurge": surge, "maxUnavailable": unavailable}}
    world.put(deployment(replicas=before, strategy=rolling))
    all_ready(world)
    roll(world, "i:2")
    world.settle()
    current: Deployment = world.all("Deployment")[0]
    world.change(replace(current, spec=replace(current.spec, replicas=after)))
    world.settle()
    assert sorted(replica_set.spec.replicas for replica_set in world.all("ReplicaSet")) == sizes
    all_ready(world)
    assert (len(world.pods()), images(world)) == (after, {"i:2"} if after else set())


def test_pod_is_available_after_min_ready_seconds() -> None:
    world = Simulation()
    world.put(deployment(replicas=1, minReadySeconds=10))
    all_ready(world)
    assert world.all("Deployment")[0].status.available_replicas == 0
    world.now += datetime.timedelta(seconds=10)
    world.settle()
    assert world.all("Deployment")[0].status.available_replicas == 1


def test_stalled_rollout_reports_progress_deadline_exceeded() -> None:
    world = Simulation()
    world.put(deployment(replicas=1, progressDeadlineSeconds=60))
    world.settle()
    world.now += datetime.timedelta(seconds=61)
    world.settle()
    rows = {
        condition.type: (condition.status, condition.reason)
        for condition in world.all("Deployment")[0].status.conditions
    }
    assert rows["Progressing"] == ("False", "ProgressDeadlineExceeded")


def test_pod_template_hash_is_stable() -> None:
    pod_template_spec = default(deployment(), DEPLOYMENTS.rules).spec.template
    assert template_hash(pod_template_spec, 0) == template_hash(pod_template_spec, 0)
    assert template_hash(pod_template_spec, 0) != template_hash(pod_template_spec, 1)
    assert template_hash(pod_template_spec, 0).isalnum()


WRONG = [
    ("Deployment", {"selector": None}, ["spec.selector"]),
    ("Deployment", {"selector": {}}, ["spec.selector"]),
    ("Deployment", {"replicas": -1}, ["spec.replicas"]),
    ("Deployment", {"template": template(app="other")}, ["spec.template.metadata.labels"]),
    ("Deployment", {"strategy": {"type": "Sometimes"}}, ["spec.strategy.type"]),
    (
        "Deployment",
        {"strategy": {"rollingUpdate": {"maxSurge": 0, "maxUnavailable": 0}}},
        ["spec.strategy.rollingUpdate.maxUnavailable"],
    ),
    ("Deployment", {"strategy": {"rollingUpdate": {"maxSurge": "x%"}}}, ["spec.strategy.rollingUpdate.maxSurge"]),
    ("ReplicaSet", {"template": {"metadata": {"labels": {"app": "web"}}}}, ["spec.template.spec.containers"]),
    (
        "ReplicaSet",
        {"selector": {"matchExpressions": [{"key": "app", "operator": "Near"}]}},
        ["spec.selector.matchExpressions[0].operator"],
    ),
    ("ReplicationController", {"template": None}, ["spec.template"]),
]


@pytest.mark.parametrize(("kind", "spec", "paths"), WRONG, ids=str)
def test_invalid_deployment_is_rejected_by_path(kind: str, spec: dict[str, Any], paths: list[str]) -> None:
    chosen = {"app": "web"} if kind == "ReplicationController" else {"matchLabels": {"app": "web"}}
    document = {"metadata": {"name": "web"}, "spec": {"selector": chosen, "template": template(), **spec}}
    _, problems, _ = decode(KINDS[kind].type, document, KINDS[kind].rules)
    assert [problem.path for problem in problems] == paths
