"""Volume binding: which nodes are feasible for the claims of a pod, and which volumes claims get."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from api.core.node import Node
from api.core.pod import Pod
from api.core.storage import SELECTED_NODE, PersistentVolume, PersistentVolumeClaim
from api.meta.types import ObjectMeta
from api.validation.registry import default
from master.controllers.actions import Failed, Update
from master.controllers.scheduling.algorithm import Scheduled, Unschedulable, WaitingForVolumes, schedule
from master.controllers.scheduling.preemption import cluster_view, preemption
from master.controllers.scheduling.volume_binding import StorageObjects, VolumeBinder, fill_binder
from master.resources.volumes import LOCAL_CLASS, NO_PROVISIONER, StorageClass
from tests.unit.master.examples import meta, node, pod

STATIC = StorageClass(
    metadata=ObjectMeta(name="disks"), provisioner=NO_PROVISIONER, volume_binding_mode="WaitForFirstConsumer"
)
CLASSES = (STATIC, LOCAL_CLASS, StorageClass(metadata=ObjectMeta(name="now"), provisioner="example.com/x"))


def on(name: str) -> dict[str, Any]:
    requirement = {"key": "kubernetes.io/hostname", "operator": "In", "values": [name]}
    return {"required": {"nodeSelectorTerms": [{"matchExpressions": [requirement]}]}}


def disk(name: str, at: str, size: str = "1Gi", **more: Any) -> PersistentVolume:
    spec = {"capacity": {"storage": size}, "accessModes": ["ReadWriteOnce"], "storageClassName": "disks"}
    spec |= {"local": {"path": f"/disks/{name}"}, "nodeAffinity": on(at), **more}
    return default(replace(msgspec.convert({"spec": spec}, PersistentVolume), metadata=meta(name)))


def claim(name: str, of_class: str | None = "disks", phase: str = "Pending", **more: Any) -> PersistentVolumeClaim:
    spec = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}, **more}
    document = {"spec": spec | {"storageClassName": of_class}, "status": {"phase": phase}}
    found = msgspec.convert(document, PersistentVolumeClaim)
    return default(replace(found, metadata=meta(name, namespace="red", uid=f"uid-{name}")))


def user(name: str, *claims: str) -> Pod:
    volumes = [{"name": f"v{index}", "persistentVolumeClaim": {"claimName": each}} for index, each in enumerate(claims)]
    found = pod(name)
    spec = msgspec.convert({"volumes": volumes, "containers": []}, type(found.spec))
    return replace(
        found,
        metadata=replace(found.metadata, namespace="red"),
        spec=replace(found.spec, volumes=spec.volumes),
    )


def host(name: str) -> Node:
    return node(name, labels={"kubernetes.io/hostname": name, "podlane.io/local-volumes": "true"})


NODES = [host("a"), host("b")]


def results(
    pods: list[Pod], *objects: PersistentVolume | PersistentVolumeClaim, nodes: list[Node] = NODES
) -> list[Any]:
    volumes = [each for each in objects if isinstance(each, PersistentVolume)]
    claims = [each for each in objects if isinstance(each, PersistentVolumeClaim)]
    return list(schedule(nodes, pods, (), StorageObjects(claims, volumes, CLASSES)))


def choices(found: Any) -> list[tuple[str, str]]:
    """Return what was chosen: volume and uid of the claim, or claim and node."""
    assert isinstance(found, WaitingForVolumes)
    chosen = []
    for update in found.choices:
        obj: Any = update.object
        is_volume = isinstance(obj, PersistentVolume)
        choice = obj.spec.claim_ref.uid if is_volume else obj.metadata.annotations[SELECTED_NODE]
        chosen.append((obj.metadata.name, choice))
    return chosen


def message(found: Any) -> str:
    assert isinstance(found, Unschedulable)
    return found.message.removeprefix("0/2 nodes are available: ")


def test_claim_gets_the_smallest_volume_of_the_selected_node() -> None:
    disks = (disk("large", "b", "9Gi"), disk("mid", "b", "2Gi"), disk("tiny", "b", "1Mi"))
    (found,) = results([user("p", "data")], claim("data"), *disks)
    assert choices(found) == [("mid", "uid-data")]
    (found,) = results([user("p", "data")], claim("data"), disk("tiny", "b", "1Mi"))
    assert message(found) == "2 node(s) didn't find available persistent volumes to bind."


def test_two_pods_of_a_pass_do_not_get_the_same_volume() -> None:
    pods = [user("p1", "one"), user("p2", "two"), user("p3", "three")]
    found = results(pods, claim("one"), claim("two"), claim("three"), disk("x", "a"), disk("y", "b"))
    assert sorted(choices(found[0]) + choices(found[1])) == [("x", "uid-one"), ("y", "uid-two")]
    assert "didn't find available persistent volumes" in message(found[2])


def test_two_pods_of_one_claim_go_to_the_same_node() -> None:
    first, second = results([user("p1", "data"), user("p2", "data")], claim("data", "local"))
    assert (choices(first), choices(second)) == ([("data", "a")], [])


def test_all_claims_of_a_pod_must_be_usable_on_its_node() -> None:
    claims = (claim("one"), claim("two"), claim("new", "local"))
    (found,) = results([user("p", "one", "two", "new")], *claims, disk("x", "a"), disk("y", "b"), disk("z", "b"))
    assert choices(found) == [("y", "uid-one"), ("z", "uid-two"), ("new", "b")]


def test_small_claim_leaves_the_large_volume_to_the_large_claim() -> None:
    large = claim("large", resources={"requests": {"storage": "5Gi"}})
    (found,) = results([user("p", "large", "small")], large, claim("small"), disk("x", "a", "6Gi"), disk("y", "a"))
    assert sorted(choices(found)) == [("x", "uid-large"), ("y", "uid-small")]


def test_pod_waits_for_the_node_that_was_selected() -> None:
    selected = claim("data", "local")
    selected = replace(selected, metadata=replace(selected.metadata, annotations={SELECTED_NODE: "b"}))
    (found,) = results([user("p", "data")], selected)
    assert choices(found) == []
    (found,) = results([user("p", "data")], selected, nodes=[host("a"), host("c")])
    assert message(found) == "2 node(s) didn't find available persistent volumes to bind."


@pytest.mark.parametrize("uid", ["", "uid-data"])
def test_volume_that_names_the_claim_is_used(uid: str) -> None:
    named = disk("named", "b", claimRef={"namespace": "red", "name": "data", "uid": uid})
    (found,) = results([user("p", "data")], claim("data"), named, disk("free", "a"))
    assert choices(found) == [], "the controller of claims completes the binding"
    (found,) = results([user("p", "data")], claim("data"), named, nodes=[host("a"), host("c")])
    assert "didn't find available persistent volumes" in message(found)
    other = disk("named", "b", claimRef={"namespace": "red", "name": "data", "uid": "of-another"})
    (found,) = results([user("p", "data")], claim("data"), other, disk("free", "a"))
    assert choices(found) == [("free", "uid-data")]


@pytest.mark.parametrize("volume", [disk("x", "b"), disk("x", "b", local=None, hostPath={"path": "/srv"})])
def test_pod_of_a_bound_claim_runs_where_the_volume_is(volume: PersistentVolume) -> None:
    bound = claim("data", phase="Bound", volumeName="x")
    assert results([user("p", "data")], bound, volume) == [Scheduled(user("p", "data"), "b")]
    (found,) = results([user("p", "data")], bound, volume, nodes=[host("a"), host("c")])
    assert message(found) == "2 node(s) didn't match PersistentVolume's node affinity."
    (found,) = results([user("p", "data")], bound)
    assert message(found) == "2 node(s) unavailable due to one or more pvc(s) bound to non-existent pv(s)."


def deleted(name: str) -> PersistentVolumeClaim:
    found = claim(name)
    return replace(found, metadata=replace(found.metadata, deletion_timestamp="2026-01-01T00:00:00Z"))


@pytest.mark.parametrize(
    ("claims", "expected"),
    [
        ([], 'persistentvolumeclaim "data" not found.'),
        ([deleted("data")], 'persistentvolumeclaim "data" is being deleted.'),
        ([claim("data", "now")], "pod has unbound immediate PersistentVolumeClaims."),
        ([claim("data", "")], "pod has unbound immediate PersistentVolumeClaims."),
        ([claim("data", None)], "pod has unbound immediate PersistentVolumeClaims."),
        ([claim("data", "absent")], "pod has unbound immediate PersistentVolumeClaims."),
        ([claim("data", "disks", volumeName="x")], "pod has unbound immediate PersistentVolumeClaims."),
    ],
)
def test_pod_says_why_no_node_is_feasible(claims: list[PersistentVolumeClaim], expected: str) -> None:
    found, other = results([user("p", "data"), pod("without")], *claims, disk("x", "a"))
    assert message(found) == expected
    assert isinstance(other, Scheduled), "other pods are scheduled"


def test_volume_that_cannot_be_read_is_no_candidate() -> None:
    broken = disk("broken", "a")
    broken = replace(broken, spec=replace(broken.spec, capacity={"storage": "much"}))
    failed, found = results([user("p", "data")], claim("data"), broken, disk("good", "b"))
    assert isinstance(failed, Failed)
    assert choices(found) == [("good", "uid-data")]


def test_no_pod_is_preempted_where_the_volume_cannot_be_used() -> None:
    nodes = [
        replace(each, status=replace(each.status, allocatable={"cpu": "1", "pods": "10"}))
        for each in (host("a"), host("b"))
    ]
    low = [pod(f"low-{name}", node=name, requests={"cpu": "1"}, phase="Running") for name in "ab"]
    bound = claim("data", phase="Bound", volumeName="x")
    binder = VolumeBinder()
    assert not list(fill_binder(binder, StorageObjects([bound], [disk("x", "b")], CLASSES)))
    high = user("high", "data")
    needs = pod("needs", requests={"cpu": "1"}).spec.containers
    high = replace(high, spec=replace(high.spec, priority=9, containers=needs))
    result = preemption(high, cluster_view(nodes, low, (), (), binder))
    assert result is not None
    assert (result.node, [each.metadata.name for each in result.victims]) == ("b", ["low-b"])
    nowhere = replace(high, spec=replace(high.spec, volumes=user("p", "absent").spec.volumes))
    assert preemption(nowhere, cluster_view(nodes, low, (), (), binder)) is None


def test_choice_is_written_once() -> None:
    (found,) = results([user("p", "data")], claim("data", "local"))
    (update,) = found.choices
    assert isinstance(update, Update)
    assert update.before == claim("data", "local")
