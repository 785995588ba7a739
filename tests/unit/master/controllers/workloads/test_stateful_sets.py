"""StatefulSets."""

from __future__ import annotations

import datetime
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from api.core.pod import Pod
from api.validation.registry import decode
from master.controllers.actions import Create, Delete, Warn
from master.controllers.workloads import stateful_sets
from master.controllers.workloads.pod_control import MAX_PODS_PER_PASS, ready_since
from master.errors import StatusError
from master.registry import strategy as writes
from master.resources.stateful_sets import STATEFUL_SETS, StatefulSet
from tests.unit.master.simulation import Simulation

CONTAINER = {"name": "main", "image": "i:1", "volumeMounts": [{"name": "data", "mountPath": "/data"}]}
TEMPLATE: dict[str, Any] = {"metadata": {"labels": {"app": "db"}}, "spec": {"containers": [CONTAINER]}}
WITHOUT_CLAIM = {**TEMPLATE, "spec": {"containers": [{"name": "main", "image": "i:1"}]}}
CLAIM = {"metadata": {"name": "data"}, "spec": {"accessModes": ["ReadWriteOnce"]}}


def stateful_set(**spec: Any) -> StatefulSet:
    document = {
        "metadata": {"name": "db", "namespace": "p"},
        "spec": {
            "selector": {"matchLabels": {"app": "db"}},
            "serviceName": "dbs",
            "template": TEMPLATE,
            "volumeClaimTemplates": [CLAIM],
            **spec,
        },
    }
    result, problems, _ = decode(StatefulSet, document, STATEFUL_SETS.rules)
    assert not problems, problems
    assert result is not None
    return result


class Stateful(Simulation):
    """A simulation with one stateful set."""

    def __init__(self, **spec: Any) -> None:
        super().__init__()
        self.put(stateful_set(**spec))

    @property
    def stateful_set(self) -> StatefulSet:
        result: StatefulSet = self.all("StatefulSet")[0]
        return result

    def respec(self, **changes: Any) -> None:
        self.change(replace(self.stateful_set, spec=replace(self.stateful_set.spec, **changes)))

    def roll(self, image: str) -> None:
        template = self.stateful_set.spec.template
        main = replace(template.spec.containers[0], image=image)
        self.respec(template=replace(template, spec=replace(template.spec, containers=(main,))))

    def live(self, pod: Pod) -> None:
        """Advance a pod by one step: it is bound, gets ready, or ends."""
        if pod.metadata.deletion_timestamp:
            self.delete(pod, grace=0)
        elif not pod.spec.node_name:
            self.change(replace(pod, spec=replace(pod.spec, node_name="n")))
        elif ready_since(pod) is None and pod.status.phase in ("Pending", "Running"):
            self.ready(pod)

    def start_all(self) -> None:
        for _ in range(200):
            before = dict(self.objects)
            for pod in self.pods():
                self.live(pod)
            if not self.step() and self.objects == before:
                return
        raise AssertionError("the controllers never come to rest")

    @property
    def images(self) -> dict[str, str]:
        return {pod.metadata.name: pod.spec.containers[0].image for pod in self.pods()}

    @property
    def names(self) -> list[str]:
        return [pod.metadata.name for pod in self.pods()]

    @property
    def claims(self) -> list[str]:
        return [claim.metadata.name for claim in self.all("PersistentVolumeClaim")]


def test_stateful_set_creates_named_pods_with_claims_in_order() -> None:
    world = Stateful(replicas=3)
    world.settle()
    assert world.names == ["db-0"]
    (pod,) = world.pods()
    assert (pod.spec.hostname, pod.spec.subdomain) == ("db-0", "dbs")
    (volume,) = pod.spec.volumes
    assert volume.persistent_volume_claim is not None
    assert volume.persistent_volume_claim.claim_name == "data-db-0"
    (claim,) = world.all("PersistentVolumeClaim")
    assert (claim.metadata.name, claim.metadata.labels) == ("data-db-0", {"app": "db"})
    assert not claim.metadata.owner_references
    (revision,) = world.all("ControllerRevision")
    assert pod.metadata.labels == {
        "app": "db",
        "apps.kubernetes.io/pod-index": "0",
        "controller-revision-hash": revision.metadata.name,
        "statefulset.kubernetes.io/pod-name": "db-0",
    }
    for names in (["db-0", "db-1"], ["db-0", "db-1", "db-2"]):
        world.live(world.pods()[-1])
        world.settle()
        assert world.names != names
        world.live(world.pods()[-1])
        world.settle()
        assert world.names == names
    world.start_all()
    assert STATEFUL_SETS.cells(world.stateful_set, world.now) == ("db", "3/3", "0s", "main", "i:1")
    status = world.stateful_set.status
    assert (status.replicas, status.available_replicas, status.current_replicas, status.updated_replicas) == (3,) * 4
    assert status.current_revision == status.update_revision == revision.metadata.name


def test_stateful_set_scales_down_from_the_last_and_keeps_claims() -> None:
    world = Stateful(replicas=3)
    world.start_all()
    world.respec(replicas=1)
    world.settle()
    assert [bool(pod.metadata.deletion_timestamp) for pod in world.pods()] == [False, False, True]
    world.start_all()
    assert world.names == ["db-0"]
    assert world.claims == ["data-db-0", "data-db-1", "data-db-2"]
    world.respec(replicas=3)
    world.start_all()
    assert len(world.claims) == 3


def test_stateful_set_scale_down_waits_for_unhealthy_predecessors() -> None:
    world = Stateful(replicas=3)
    world.start_all()
    world.ready(world.pods()[1], is_ready=False)
    world.respec(replicas=1)
    world.settle()
    assert not any(pod.metadata.deletion_timestamp for pod in world.pods())
    world.ready(world.pods()[1])
    world.start_all()
    assert world.names == ["db-0"]


def test_parallel_stateful_set_creates_pods_without_waiting() -> None:
    world = Stateful(replicas=3, podManagementPolicy="Parallel")
    world.settle()
    assert world.names == ["db-0", "db-1", "db-2"]
    world.start_all()
    world.respec(replicas=0)
    world.settle()
    assert all(pod.metadata.deletion_timestamp for pod in world.pods())


def test_stateful_set_creates_pods_in_batches() -> None:
    world = Stateful(replicas=10**9, podManagementPolicy="Parallel", volumeClaimTemplates=[], template=WITHOUT_CLAIM)
    world.step()
    assert len(world.pods()) == MAX_PODS_PER_PASS


def test_stateful_set_ordinals_may_start_elsewhere() -> None:
    world = Stateful(replicas=2, ordinals={"start": 5})
    world.start_all()
    assert world.names == ["db-5", "db-6"]
    world.respec(ordinals=None)
    world.start_all()
    assert world.names == ["db-0", "db-1"]


def test_deleted_stateful_pod_is_recreated_under_its_name() -> None:
    world = Stateful(replicas=2)
    world.start_all()
    before = world.pods()[0]
    world.delete(before)
    world.settle()
    assert len(world.pods()) == 2, "the old one ends first"
    world.start_all()
    after = world.pods()[0]
    assert (after.metadata.name, after.metadata.uid != before.metadata.uid) == ("db-0", True)
    assert len(world.claims) == 2


def test_failed_stateful_pod_is_recreated() -> None:
    world = Stateful(replicas=1)
    world.start_all()
    (pod,) = world.pods()
    world.change(replace(pod, status=replace(pod.status, phase="Failed")))
    world.settle()
    assert [current.metadata.uid for current in world.pods()] == [pod.metadata.uid]
    world.now += datetime.timedelta(seconds=10)
    world.start_all()
    assert [current.metadata.uid for current in world.pods()] != [pod.metadata.uid]


def test_foreign_pod_with_a_stateful_name_is_not_changed() -> None:
    world = Stateful(replicas=1)
    world.start_all()
    (pod,) = world.pods()
    foreign = replace(pod, metadata=replace(pod.metadata, labels={}, owner_references=()))
    world = Stateful(replicas=1)
    world.put(foreign)
    world.settle()
    assert [current.metadata.labels for current in world.pods()] == [{}]
    revisions = world.all("ControllerRevision")
    actual = stateful_sets.reconcile([world.stateful_set], world.pods(), [], revisions, world.now)
    assert [write.about for write in actual if isinstance(write, Warn)] == ["p/db-0"]


def test_stateful_set_rolls_out_from_last_to_first() -> None:
    world = Stateful(replicas=3)
    world.start_all()
    world.roll("i:2")
    world.settle()
    status = world.stateful_set.status
    assert status.current_revision != status.update_revision
    assert [bool(pod.metadata.deletion_timestamp) for pod in world.pods()] == [False, False, True]
    seen = [dict(world.images)]
    for _ in range(30):
        for pod in world.pods():
            world.live(pod)
        world.settle()
        if world.images != seen[-1]:
            seen.append(dict(world.images))
    whole = [list(images.values()) for images in seen if len(images) == 3]
    assert whole == [["i:1"] * 3, ["i:1", "i:1", "i:2"], ["i:1", "i:2", "i:2"], ["i:2"] * 3]
    status = world.stateful_set.status
    assert status.current_revision == status.update_revision
    assert (status.current_replicas, status.updated_replicas) == (3, 3)


def test_stateful_set_rollout_stops_at_the_partition() -> None:
    world = Stateful(replicas=3, updateStrategy={"rollingUpdate": {"partition": 2}})
    world.start_all()
    world.roll("i:2")
    world.start_all()
    assert world.images == {"db-0": "i:1", "db-1": "i:1", "db-2": "i:2"}
    world.delete(world.pods()[0])
    world.start_all()
    assert world.images["db-0"] == "i:1", "made again from the old template"
    strategy = world.stateful_set.spec.update_strategy
    assert strategy.rolling_update is not None
    world.respec(update_strategy=replace(strategy, rolling_update=replace(strategy.rolling_update, partition=0)))
    world.start_all()
    assert set(world.images.values()) == {"i:2"}


def test_stateful_set_on_delete_updates_only_deleted_pods() -> None:
    world = Stateful(replicas=2, updateStrategy={"type": "OnDelete"})
    world.start_all()
    world.roll("i:2")
    world.start_all()
    assert set(world.images.values()) == {"i:1"}
    world.delete(world.pods()[1])
    world.start_all()
    assert world.images == {"db-0": "i:1", "db-1": "i:2"}


def test_parallel_stateful_set_rolls_out_one_by_one() -> None:
    world = Stateful(replicas=2, podManagementPolicy="Parallel")
    world.start_all()
    world.roll("i:2")
    world.settle()
    world.live(world.pods()[1])
    world.settle()
    assert world.images == {"db-0": "i:1", "db-1": "i:2"}
    assert not any(pod.metadata.deletion_timestamp for pod in world.pods()), "the new one does not serve yet"


def test_parallel_stateful_set_recovers_from_a_broken_template() -> None:
    world = Stateful(replicas=2, podManagementPolicy="Parallel")
    world.settle()
    world.roll("i:2")
    world.settle()
    for _ in range(4):
        for pod in world.pods():
            if pod.metadata.deletion_timestamp or pod.spec.containers[0].image == "i:2":
                world.live(pod)
        world.settle()
    world.start_all()
    assert set(world.images.values()) == {"i:2"}


@pytest.mark.parametrize(("policy", "left"), [({}, 2), ({"whenScaled": "Delete"}, 1), ({"whenDeleted": "Delete"}, 2)])
def test_claim_retention_policy_applies_when_scaled_down(policy: dict[str, str], left: int) -> None:
    world = Stateful(replicas=2, persistentVolumeClaimRetentionPolicy=policy)
    world.start_all()
    world.respec(replicas=1)
    world.start_all()
    there = [claim for claim in world.all("PersistentVolumeClaim") if not claim.metadata.deletion_timestamp]
    assert len(there) == left


@pytest.mark.parametrize(("policy", "left"), [({}, 2), ({"whenScaled": "Delete"}, 2), ({"whenDeleted": "Delete"}, 0)])
def test_claim_retention_policy_applies_when_deleted(policy: dict[str, str], left: int) -> None:
    world = Stateful(replicas=2, persistentVolumeClaimRetentionPolicy=policy)
    world.start_all()
    world.delete(world.stateful_set)
    world.start_all()
    assert not world.pods()
    there = [claim for claim in world.all("PersistentVolumeClaim") if not claim.metadata.deletion_timestamp]
    assert len(there) == left


# --- chance -----------------------------------------------------------------------------------------------------------


def one_pass(world: Stateful, cut: int) -> None:
    """Run one pass that is killed after this number of writes."""
    pods, claims = world.pods(), world.all("PersistentVolumeClaim")
    serving = {pod.metadata.name for pod in pods if ready_since(pod) and not pod.metadata.deletion_timestamp}
    revisions, stateful_set = world.all("ControllerRevision"), world.stateful_set
    alive = {pod.metadata.name for pod in pods if pod.status.phase != "Failed"}
    over = {f"db-{number}" for number in range(stateful_set.spec.replicas or 0, MOST)} - alive
    actual = [
        write
        for write in stateful_sets.reconcile([stateful_set], pods, claims, revisions, world.now)
        if not isinstance(write, Warn)
    ][:cut]
    if stateful_set.spec.pod_management_policy == "OrderedReady":
        for write in actual:
            if isinstance(write, Create | Delete) and isinstance(write.object, Pod):
                before = range(int(write.object.metadata.name.rpartition("-")[2]))
                waited = serving | over if isinstance(write, Delete) else serving
                assert write.object.status.phase == "Failed" or {f"db-{number}" for number in before} <= waited
        assert sum(isinstance(write, Delete) for write in actual) <= 1
    world.apply(actual)


ACTIONS = st.sampled_from(["pass", "pass", "live", "live", "live", "delete", "fail", "scale", "roll", "force"])


MOST = 5
FAILED_BELOW = [("pass", 3), ("live", 0), ("live", 0), ("pass", 2), ("fail", 0), ("scale", 0)]


GONE_BELOW = [
    ("pass", 3),
    ("live", 0),
    ("live", 0),
    ("scale", 2),
    ("pass", 2),
    ("delete", 0),
    ("live", 0),
    ("scale", 0),
]


@settings(max_examples=120, deadline=None)
@example(2, "OrderedReady", FAILED_BELOW)
@example(1, "OrderedReady", [*GONE_BELOW, ("pass", 1)])
@given(
    st.integers(0, 4),
    st.sampled_from(["OrderedReady", "Parallel"]),
    st.lists(st.tuples(ACTIONS, st.integers(0, 9)), max_size=80),
)
def test_stateful_set_order_and_identity_always_hold(
    replicas: int, policy: str, actions: list[tuple[str, int]]
) -> None:
    world = Stateful(replicas=replicas, podManagementPolicy=policy)
    for what, number in actions:
        if what == "pass":
            one_pass(world, number)
        elif what == "scale":
            world.respec(replicas=number % MOST)
        elif what == "roll":
            world.roll(f"i:{number}")
        elif world.pods():
            happen(world, what, world.pods()[number % len(world.pods())])
    world.now += datetime.timedelta(seconds=60)
    world.start_all()
    wanted = world.stateful_set.spec.replicas or 0
    assert world.names == [f"db-{number}" for number in range(wanted)]
    assert set(world.images.values()) <= {world.stateful_set.spec.template.spec.containers[0].image}
    assert set(world.claims) >= {f"data-{name}" for name in world.names}
    status = world.stateful_set.status
    assert (status.replicas, status.ready_replicas, status.updated_replicas) == (wanted,) * 3
    assert status.current_revision == status.update_revision


def happen(world: Stateful, what: str, pod: Pod) -> None:
    if what == "live":
        world.live(pod)
    elif what == "fail":
        world.change(replace(pod, status=replace(pod.status, phase="Failed", conditions=())))
    else:
        world.delete(pod, grace=0 if what == "force" else None)


WRONG = [
    ({"selector": None}, ["spec.selector"]),
    ({"replicas": -1}, ["spec.replicas"]),
    ({"podManagementPolicy": "Sorted"}, ["spec.podManagementPolicy"]),
    ({"updateStrategy": {"type": "Now"}}, ["spec.updateStrategy.type"]),
    (
        {"updateStrategy": {"type": "OnDelete", "rollingUpdate": {"partition": 1}}},
        ["spec.updateStrategy.rollingUpdate"],
    ),
    ({"updateStrategy": {"rollingUpdate": {"partition": -1}}}, ["spec.updateStrategy.rollingUpdate.partition"]),
    ({"volumeClaimTemplates": []}, ["spec.template.spec.containers[0].volumeMounts[0].name"]),
    (
        {"persistentVolumeClaimRetentionPolicy": {"whenScaled": "x"}},
        ["spec.persistentVolumeClaimRetentionPolicy.whenScaled"],
    ),
    ({"ordinals": {"start": -1}}, ["spec.ordinals.start"]),
    ({"ordinals": {"start": 1 << 31}}, ["spec.replicas"]),
    ({"replicas": 1 << 31}, ["spec.replicas"]),
]


@pytest.mark.parametrize(("spec", "paths"), WRONG, ids=str)
def test_invalid_stateful_set_is_rejected_by_path(spec: dict[str, Any], paths: list[str]) -> None:
    own = {"selector": {"matchLabels": {"app": "db"}}, "template": TEMPLATE, "volumeClaimTemplates": [CLAIM]}
    _, problems, _ = decode(StatefulSet, {"metadata": {"name": "db"}, "spec": {**own, **spec}}, STATEFUL_SETS.rules)
    assert [error.path for error in problems] == paths


@pytest.mark.parametrize("name", ["a.b", "a" * 53])
def test_stateful_set_with_a_name_unfit_for_hostnames_is_rejected(name: str) -> None:
    own = {"selector": {"matchLabels": {"app": "db"}}, "template": WITHOUT_CLAIM}
    _, problems, _ = decode(StatefulSet, {"metadata": {"name": name}, "spec": own}, STATEFUL_SETS.rules)
    assert [error.path for error in problems] == ["metadata.name"]


def test_stateful_set_identity_fields_are_immutable() -> None:
    world = Stateful(replicas=1)
    old = world.stateful_set
    assert writes.prepare_update(
        STATEFUL_SETS, replace(old, spec=replace(old.spec, replicas=3, min_ready_seconds=1)), old
    )
    for spec in (
        replace(old.spec, service_name="x"),
        replace(old.spec, volume_claim_templates=()),
        replace(old.spec, pod_management_policy="Parallel"),
    ):
        with pytest.raises(StatusError, match="updates to statefulset spec for fields other than 'replicas'"):
            writes.prepare_update(STATEFUL_SETS, replace(old, spec=spec), old)
