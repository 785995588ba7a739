"""DaemonSets."""

from __future__ import annotations

import datetime
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from api.core.node import Node, Taint
from api.core.pod import Pod
from api.validation.registry import decode
from master.controllers.scheduling.algorithm import Scheduled, schedule
from master.controllers.workloads import daemon_sets
from master.controllers.workloads.daemon_sets import node_of
from master.controllers.workloads.pod_control import ready_since
from master.registry import patch
from master.resources.daemon_sets import DAEMON_SETS, DaemonSet
from master.resources.pod_template import int_or_percent
from tests.unit.master import examples
from tests.unit.master.simulation import Simulation

TEMPLATE: dict[str, Any] = {
    "metadata": {"labels": {"app": "log"}},
    "spec": {"containers": [{"name": "main", "image": "i:1"}]},
}


def daemon_set(**spec: Any) -> DaemonSet:
    document = {
        "metadata": {"name": "log", "namespace": "p"},
        "spec": {"selector": {"matchLabels": {"app": "log"}}, "template": TEMPLATE, **spec},
    }
    result, problems, _ = decode(DaemonSet, document, DAEMON_SETS.rules)
    assert not problems, problems
    assert result is not None
    return result


class Daemons(Simulation):
    """A simulation with some nodes and a daemon set."""

    def __init__(self, nodes: int, **spec: Any) -> None:
        super().__init__()
        for number in range(nodes):
            self.put(examples.node(f"n{number}"))
        self.put(daemon_set(**spec))

    @property
    def daemon_set(self) -> DaemonSet:
        result: DaemonSet = self.all("DaemonSet")[0]
        return result

    def node(self, name: str) -> Node:
        node: Node = self.objects[("Node", name)]
        return node

    def taint(self, name: str, *taints: Taint) -> None:
        node = self.node(name)
        self.change(replace(node, spec=replace(node.spec, taints=taints)))
        self.settle()

    def bind(self, pod: Pod) -> None:
        """Bind a pod as the scheduler does."""
        for answer in schedule(self.all("Node"), [pod]):
            if isinstance(answer, Scheduled):
                self.change(replace(pod, spec=replace(pod.spec, node_name=answer.node)))

    def start_all(self) -> None:
        for _ in range(100):
            before = dict(self.objects)
            for pod in self.pods():
                self.run(pod)
            if not self.step() and self.objects == before:
                return
        raise AssertionError("the controllers never come to rest")

    def run(self, pod: Pod) -> None:
        """Advance a pod by one step: it is bound, gets ready, or ends."""
        if pod.metadata.deletion_timestamp:
            self.delete(pod, grace=0)
        elif not pod.spec.node_name:
            self.bind(pod)
        elif ready_since(pod) is None and pod.status.phase in ("Pending", "Running"):
            self.ready(pod)

    def roll(self, image: str) -> None:
        current = self.daemon_set
        main = replace(current.spec.template.spec.containers[0], image=image)
        template = replace(current.spec.template, spec=replace(current.spec.template.spec, containers=(main,)))
        self.change(replace(current, spec=replace(current.spec, template=template)))

    @property
    def places(self) -> list[str]:
        return sorted(node_of(pod) for pod in self.pods())

    @property
    def images(self) -> set[str]:
        return {pod.spec.containers[0].image for pod in self.pods()}


def test_daemon_set_creates_one_pod_per_node_bound_by_the_scheduler() -> None:
    world = Daemons(3)
    world.settle()
    assert world.places == ["n0", "n1", "n2"]
    assert not any(pod.spec.node_name for pod in world.pods())
    world.start_all()
    assert sorted(pod.spec.node_name for pod in world.pods()) == ["n0", "n1", "n2"]
    assert DAEMON_SETS.cells(world.daemon_set, world.now)[1:7] == (3, 3, 3, 3, 3, "<none>")
    world.put(examples.node("n3"))
    world.start_all()
    assert world.places == ["n0", "n1", "n2", "n3"]
    world.remove(world.pods()[0])
    world.start_all()
    assert world.places == ["n0", "n1", "n2", "n3"]


def test_daemon_set_pods_are_created_on_matching_nodes_only() -> None:
    spec = {**TEMPLATE["spec"], "nodeSelector": {"disk": "fast"}}
    world = Daemons(2, template={**TEMPLATE, "spec": spec})
    world.start_all()
    assert not world.pods()
    node = world.node("n1")
    world.change(replace(node, metadata=replace(node.metadata, labels={"disk": "fast"})))
    world.start_all()
    assert world.places == ["n1"]
    assert DAEMON_SETS.cells(world.daemon_set, world.now)[6] == "disk=fast"
    world.change(replace(world.node("n1"), metadata=replace(node.metadata, labels={})))
    world.settle()
    assert world.daemon_set.status.number_misscheduled == 1
    world.start_all()
    assert not world.pods()


def test_daemon_set_respects_taints_except_node_condition_taints() -> None:
    world = Daemons(3)
    world.taint("n0", Taint(key="own", effect="NoSchedule"))
    for name in ("n1", "n2"):
        node = world.node(name)
        world.change(replace(node, spec=replace(node.spec, unschedulable=True)))
    world.start_all()
    assert world.places == ["n1", "n2"]
    world.taint("n1", Taint(key="own", effect="NoSchedule"))
    world.start_all()
    assert world.places == ["n1", "n2"], "what is there stays"
    assert world.daemon_set.status.number_misscheduled == 1
    world.taint("n1", Taint(key="own", effect="NoExecute"))
    world.start_all()
    assert world.places == ["n2"]
    world.taint("n2", Taint(key="node.kubernetes.io/not-ready", effect="NoExecute"))
    world.start_all()
    assert world.places == ["n2"]


def test_failed_daemon_pod_is_replaced_with_back_off() -> None:
    world = Daemons(1)
    world.start_all()
    (pod,) = world.pods()
    world.change(replace(pod, status=replace(pod.status, phase="Failed")))
    world.settle()
    assert [current.metadata.uid for current in world.pods()] == [pod.metadata.uid]
    world.now += datetime.timedelta(seconds=10)
    world.start_all()
    (new,) = world.pods()
    assert new.metadata.uid != pod.metadata.uid


def test_older_of_two_daemon_pods_on_a_node_is_kept() -> None:
    world = Daemons(1)
    world.start_all()
    (first,) = world.pods()
    world.now += datetime.timedelta(seconds=1)
    world.put(replace(first, metadata=replace(first.metadata, name="twin")))
    world.start_all()
    assert [pod.metadata.name for pod in world.pods()] == [first.metadata.name]


def test_daemon_set_on_delete_updates_only_deleted_pods() -> None:
    world = Daemons(2, updateStrategy={"type": "OnDelete"})
    world.start_all()
    world.roll("i:2")
    world.start_all()
    assert world.images == {"i:1"}
    assert world.daemon_set.status.updated_number_scheduled == 0
    for pod in world.pods():
        world.delete(pod)
    world.start_all()
    assert world.images == {"i:2"}


def test_daemon_set_rolls_back_and_limits_its_history() -> None:
    world = Daemons(1, revisionHistoryLimit=2)
    for number in range(5):
        world.roll(f"i:{number}")
        world.start_all()
    revisions = {revision.revision: revision for revision in world.all("ControllerRevision")}
    assert sorted(revisions) == [3, 4, 5]
    current = world.daemon_set
    document = {"spec": {"template": {"spec": {"containers": [{"name": "main", "image": "i:4"}]}}}}
    template = revisions[3].data["spec"]["template"]
    assert "creationTimestamp" not in template.get("metadata", {}), "kubectl 1.36 compares the bytes"
    undone = patch.strategic_merge_patch(document, revisions[3].data, DAEMON_SETS.merge_schema)
    assert undone["spec"]["template"]["spec"]["containers"][0]["image"] == "i:2"
    world.roll("i:2")
    world.start_all()
    assert sorted(revision.revision for revision in world.all("ControllerRevision")) == [4, 5, 6]
    assert world.images == {"i:2"}
    assert current.metadata.uid == world.daemon_set.metadata.uid


def test_daemon_set_handles_a_revision_name_collision() -> None:
    world = Daemons(1)
    world.settle()
    (revision,) = world.all("ControllerRevision")
    other = replace(revision, metadata=replace(revision.metadata, owner_references=()), data={"spec": {}})
    world = Daemons(1)
    world.put(other)
    world.start_all()
    assert world.daemon_set.status.collision_count == 1
    assert len(world.pods()) == 1
    assert len(world.all("ControllerRevision")) == 2


BOUNDS = st.sampled_from([(0, 1), (0, "40%"), (1, 0), (2, 0), ("50%", 0), ("100%", 0)])


@settings(max_examples=60, deadline=None)
@given(
    st.integers(1, 6),
    BOUNDS,
    st.lists(st.tuples(st.integers(0, 30), st.integers(0, 12)), min_size=1, max_size=80),
)
def test_daemon_set_rollout_stays_within_its_bounds_and_completes(
    nodes: int, bounds: tuple[Any, Any], order: list[tuple[int, int]]
) -> None:
    missing, surge = bounds
    world = Daemons(nodes, updateStrategy={"rollingUpdate": {"maxUnavailable": missing, "maxSurge": surge}})
    world.start_all()
    world.roll("i:2")
    for number, cut in order:
        one_pass(world, cut)
        live = [pod for pod in world.pods() if not pod.metadata.deletion_timestamp]
        serving = {node_of(pod) for pod in live if ready_since(pod) is not None}
        assert len(serving) >= nodes - int_or_percent(missing, nodes, up=True)
        twice = len(live) - len({node_of(pod) for pod in live})
        assert twice <= int_or_percent(surge, nodes, up=True)
        if world.pods():
            world.run(world.pods()[number % len(world.pods())])
    world.start_all()
    assert world.images == {"i:2"}
    assert world.places == sorted(f"n{number}" for number in range(nodes))
    status = world.daemon_set.status
    assert (status.updated_number_scheduled, status.number_available, status.number_unavailable) == (nodes, nodes, 0)


def one_pass(world: Daemons, cut: int) -> None:
    """Run one pass that is killed after this number of writes."""
    revisions = world.all("ControllerRevision")
    actual = list(daemon_sets.reconcile([world.daemon_set], world.all("Node"), world.pods(), revisions, world.now))
    world.apply(actual[:cut])


WRONG = [
    ({"selector": None}, ["spec.selector"]),
    ({"template": {**TEMPLATE, "metadata": {}}}, ["spec.template.metadata.labels"]),
    (
        {"template": {**TEMPLATE, "spec": {**TEMPLATE["spec"], "restartPolicy": "Never"}}},
        ["spec.template.spec.restartPolicy"],
    ),
    ({"updateStrategy": {"type": "Now"}}, ["spec.updateStrategy.type"]),
    (
        {"updateStrategy": {"rollingUpdate": {"maxUnavailable": 0}}},
        ["spec.updateStrategy.rollingUpdate.maxUnavailable"],
    ),
    ({"updateStrategy": {"rollingUpdate": {"maxSurge": 1}}}, ["spec.updateStrategy.rollingUpdate.maxSurge"]),
    ({"minReadySeconds": -1}, ["spec.minReadySeconds"]),
]


@pytest.mark.parametrize(("spec", "paths"), WRONG, ids=str)
def test_invalid_daemon_set_is_rejected_by_path(spec: dict[str, Any], paths: list[str]) -> None:
    selector = {"matchLabels": {"app": "log"}}
    document = {"metadata": {"name": "log"}, "spec": {"selector": selector, "template": TEMPLATE, **spec}}
    _, problems, _ = decode(DaemonSet, document, DAEMON_SETS.rules)
    assert [error.path for error in problems] == paths
