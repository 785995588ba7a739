"""Local volumes from claim to reclaiming: controllers act on a simulated cluster, and tests play the node."""

from __future__ import annotations

import datetime
from collections.abc import Iterable
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from api.core.events import Event
from api.core.node import Namespace, Node
from api.core.pod import Pod
from api.core.storage import (
    LOCAL_VOLUMES_LABEL,
    PROVISIONED_BY,
    SELECTED_NODE,
    LocalVolume,
    LocalVolumeStatus,
    PersistentVolume,
    PersistentVolumeClaim,
)
from api.meta.types import ObjectMeta
from master.controllers import local_volumes, persistent_volumes
from master.controllers.actions import Action, Failed
from master.controllers.claim_events import report_waiting
from master.controllers.scheduling import scheduler
from master.controllers.scheduling.volume_binding import StorageObjects
from master.resources.metadata import with_metadata
from master.resources.volumes import LOCAL_CLASS, StorageClass
from tests.unit.master.simulation import Simulation
from tests.unit.node_agent.examples import make_pod


def run_binder(world: Simulation) -> Iterable[Action]:
    volumes, claims = world.all("PersistentVolume"), world.all("PersistentVolumeClaim")
    yield from persistent_volumes.bind_volumes(volumes, claims, world.all("StorageClass"))


def run_protection(world: Simulation) -> Iterable[Action]:
    volumes, claims = world.all("PersistentVolume"), world.all("PersistentVolumeClaim")
    yield from persistent_volumes.release_protection(volumes, claims, world.pods())


def run_local_volumes(world: Simulation) -> Iterable[Action]:
    return local_volumes.reconcile(
        world.all("PersistentVolume"),
        world.all("PersistentVolumeClaim"),
        world.all("LocalVolume"),
        world.all("StorageClass"),
        world.all("Node"),
        world.now,
    )


def run_reports(world: Simulation) -> Iterable[Action]:
    return report_waiting(
        world.all("PersistentVolumeClaim"),
        world.all("PersistentVolume"),
        world.all("StorageClass"),
        world.all("LocalVolume"),
        world.pods,
        lambda event: ("Event", event.metadata.name) in world.objects,
        world.now,
    )


def run_scheduler(world: Simulation) -> Iterable[Action]:
    claims, volumes = world.all("PersistentVolumeClaim"), world.all("PersistentVolume")
    storage = StorageObjects(claims, volumes, world.all("StorageClass"), world.all("LocalVolume"))
    namespaces = [Namespace(metadata=ObjectMeta(name="red"))]
    return scheduler.reconcile(world.all("Node"), world.pods(), namespaces, [], world.now, storage)


class World(Simulation):
    """A cluster with two nodes and the class of local volumes. `node_works` lets nodes do what they are to do."""

    def __init__(self) -> None:
        super().__init__((run_binder, run_protection, run_local_volumes, run_reports, run_scheduler))
        self.node_works = True
        self.directories: dict[str, str] = {}
        """Node by the name of the directory."""
        self.scrubbed: list[str] = []
        for name in ("node-1", "node-2"):
            self.add_node(name)
        self.put(LOCAL_CLASS)

    def add_node(self, name: str, offers: str = "true") -> None:
        labels = {"kubernetes.io/hostname": name, LOCAL_VOLUMES_LABEL: offers}
        status = {
            "allocatable": {"cpu": "4", "memory": "8Gi", "pods": "110", "ephemeral-storage": "9Gi"},
            "conditions": [{"type": "Ready", "status": "True"}],
        }
        node = replace(msgspec.convert({"status": status}, Node), metadata=ObjectMeta(name=name, labels=labels))
        self.put(node)
        self.objects[("Node", name)] = replace(self.objects[("Node", name)], status=node.status)

    def claim(self, name: str = "data", **spec: Any) -> PersistentVolumeClaim:
        spec = {"accessModes": ["ReadWriteOnce"], "storageClassName": "local", **spec}
        claim = msgspec.convert(
            {"spec": {"resources": {"requests": {"storage": "1Gi"}}, **spec}}, PersistentVolumeClaim
        )
        created: PersistentVolumeClaim = self.put(replace(claim, metadata=ObjectMeta(name=name, namespace="red")))
        return created

    def pod(self, name: str = "user", claim: str = "data", more: str = "") -> Pod:
        pod = make_pod(spec=f"  volumes: [{{name: v, persistentVolumeClaim: {{claimName: {claim}}}}}]\n{more}")
        spec = replace(pod.spec, node_name="")
        created: Pod = self.put(replace(pod, metadata=ObjectMeta(name=name, namespace="red"), spec=spec))
        return created

    def one(self, kind: str) -> Any:
        (only,) = self.all(kind)
        return only

    def step(self) -> bool:
        self.now += datetime.timedelta(seconds=1)  # Events of the scheduler are named after the time.
        busy = super().step()
        return (self._act_as_nodes() if self.node_works else False) or busy

    def _act_as_nodes(self) -> bool:
        """Do what the LocalVolumes say. Return whether there was something to do."""
        busy = False
        for volume in self.all("LocalVolume"):
            name, state, phase = volume.metadata.name, volume.spec.state, volume.status.phase
            if volume.spec.node_name not in {node.metadata.name for node in self.all("Node")}:
                continue
            if state == "Created" and not phase:
                self.directories[name] = volume.spec.node_name
                self.report(volume, "Ready", path=f"/local/{name}")
            elif state == "Scrubbed" and phase == "Ready":
                self.scrubbed.append(name)
                self.report(volume, "Scrubbed")
            elif state == "Absent" and phase != "Deleted":
                self.directories.pop(name, None)
                self.report(volume, "Deleted")
            else:
                continue
            busy = True
        return busy

    def report(self, volume: LocalVolume, phase: str, path: str = "", message: str = "") -> None:
        status = LocalVolumeStatus(phase=phase, path=path or volume.status.path, message=message)
        self.objects[("LocalVolume", volume.metadata.name)] = replace(volume, status=status)

    def end(self, pod: str) -> None:
        self.remove(self.objects[("Pod", pod)])

    def reasons(self, kind: str) -> list[str]:
        events: list[Event] = self.all("Event")
        return [event.reason for event in events if event.involved_object.kind == kind]

    def with_policy(self, policy: str) -> None:
        volume = self.one("PersistentVolume")
        self.change(replace(volume, spec=replace(volume.spec, persistent_volume_reclaim_policy=policy)))

    def bound(self) -> PersistentVolume:
        """Return a bound volume whose claim a running pod uses."""
        self.claim()
        self.pod()
        self.settle()
        volume: PersistentVolume = self.one("PersistentVolume")
        assert volume.status.phase == "Bound"
        return volume

    def release(self) -> None:
        """End the pod, and delete its claim."""
        self.end("user")
        self.delete(self.one("PersistentVolumeClaim"))


@pytest.fixture
def world() -> World:
    return World()


def test_claim_waits_for_its_pod_and_gets_a_volume_on_the_node_of_the_pod(world: World) -> None:
    claim = world.claim()
    world.settle()
    assert (world.one("PersistentVolumeClaim").status.phase, world.all("LocalVolume")) == ("Pending", [])
    assert world.reasons("PersistentVolumeClaim") == ["WaitForFirstConsumer"]
    world.pod()
    world.settle()
    claim, pod, volume = world.one("PersistentVolumeClaim"), world.one("Pod"), world.one("PersistentVolume")
    assert (claim.status.phase, claim.status.capacity) == ("Bound", {"storage": "1Gi"})
    assert claim.metadata.annotations[SELECTED_NODE] == pod.spec.node_name == "node-1"
    assert volume.metadata.name == claim.spec.volume_name == f"pvc-{claim.metadata.uid}"
    assert volume.metadata.annotations == {PROVISIONED_BY: "podlane.io/local-volume"}
    assert set(volume.metadata.finalizers) == {"podlane.io/local-volume", "kubernetes.io/pv-protection"}
    assert (volume.spec.claim_ref.uid, volume.spec.persistent_volume_reclaim_policy) == (claim.metadata.uid, "Delete")
    assert volume.spec.local.path == f"/local/{volume.metadata.name}"
    assert world.directories == {volume.metadata.name: "node-1"}
    assert "ProvisioningSucceeded" in world.reasons("PersistentVolumeClaim")
    assert world.one("LocalVolume").spec.state == "Present"


def test_pod_of_a_bound_claim_returns_to_the_node_of_the_volume(world: World) -> None:
    world.bound()
    world.end("user")
    for number in range(4):
        world.pod(f"other-{number}", claim="none")  # They do not run, and would not fill node-1.
    first = world.objects[("Node", "node-1")]
    world.objects[("Node", "node-1")] = replace(first, spec=replace(first.spec, unschedulable=True))
    world.pod("again")
    world.settle()
    pod = world.objects[("Pod", "again")]
    assert pod.spec.node_name == ""
    (condition,) = pod.status.conditions
    assert condition.message == (
        "0/2 nodes are available: 1 node(s) didn't match PersistentVolume's node affinity, "
        "1 node(s) were unschedulable."
    )
    world.objects[("Node", "node-1")] = first
    world.settle()
    assert world.objects[("Pod", "again")].spec.node_name == "node-1"


@pytest.mark.parametrize("runs", [True, False])
def test_deleted_claim_removes_volume_and_directory_after_its_pod(world: World, runs: bool) -> None:
    world.bound()
    if not runs:
        world.end("user")
    world.delete(world.one("PersistentVolumeClaim"))
    world.settle()
    assert [bool(world.all(kind)) for kind in ("PersistentVolumeClaim", "PersistentVolume", "LocalVolume")] == [
        runs
    ] * 3
    assert bool(world.directories) == runs
    if runs:
        world.end("user")
        world.settle()
        assert not world.directories
        assert not world.all("PersistentVolume")


def test_retained_volume_keeps_its_directory(world: World) -> None:
    world.bound()
    world.with_policy("Retain")
    world.release()
    world.settle()
    assert (world.one("PersistentVolume").status.phase, len(world.directories)) == ("Released", 1)
    world.delete(world.one("PersistentVolume"))
    world.settle()
    assert (world.all("PersistentVolume"), world.all("LocalVolume"), len(world.directories)) == ([], [], 1)


def test_recycled_volume_is_scrubbed_before_each_new_claim(world: World) -> None:
    volume = world.bound()
    world.with_policy("Recycle")
    for times in (1, 2):
        world.release()
        world.settle()
        recycled = world.one("PersistentVolume")
        assert (recycled.status.phase, recycled.spec.claim_ref, len(world.scrubbed)) == ("Available", None, times)
        assert (world.one("LocalVolume").spec.state, world.one("LocalVolume").status.phase) == ("Present", "Ready")
        world.claim()
        world.pod()
        world.settle()
        assert world.one("PersistentVolumeClaim").spec.volume_name == volume.metadata.name, "it is used again"
        assert world.one("Pod").spec.node_name == "node-1"
    assert world.reasons("PersistentVolume").count("VolumeRecycled") == 2


def test_volume_is_not_available_before_it_is_scrubbed(world: World) -> None:
    world.bound()
    world.with_policy("Recycle")
    world.release()
    world.node_works = False
    world.settle()
    assert world.one("PersistentVolume").status.phase == "Released"
    world.report(world.one("LocalVolume"), "Ready", message="the disk is read-only")
    world.settle()
    failed = world.one("PersistentVolume").status
    assert (failed.phase, failed.reason, failed.message) == ("Failed", "VolumeFailedRecycle", "the disk is read-only")
    world.claim()
    world.pod()
    world.settle()
    assert world.one("PersistentVolumeClaim").status.phase == "Pending", "it gets no volume with data of others"
    world.node_works = True
    world.settle()
    assert {volume.status.phase for volume in world.all("PersistentVolume")} == {"Available", "Bound"}


def test_failed_deletion_is_reported_and_tried_again(world: World) -> None:
    world.bound()
    world.release()
    world.node_works = False
    world.settle()
    world.report(world.one("LocalVolume"), "Ready", message="is mounted for a pod")
    world.settle()
    assert world.one("PersistentVolume").status.phase == "Failed"
    assert world.reasons("PersistentVolume") == ["VolumeFailedDelete"]
    world.node_works = True
    world.settle()
    assert not world.all("PersistentVolume")


def test_policy_that_changes_to_retain_keeps_a_failed_volume(world: World) -> None:
    world.bound()
    world.release()
    world.node_works = False
    world.settle()
    world.report(world.one("LocalVolume"), "Ready", message="is mounted for a pod")
    world.settle()
    world.with_policy("Retain")
    world.settle()
    assert (world.one("PersistentVolume").status.phase, world.one("LocalVolume").spec.state) == ("Released", "Present")
    world.node_works = True
    world.settle()
    assert world.directories


def test_volume_of_a_deleted_node_stays_with_the_reason(world: World) -> None:
    volume = world.bound()
    node = world.objects[("Node", "node-1")]
    world.remove(node)
    world.settle()
    status = world.one("PersistentVolume").status
    assert (status.phase, status.reason) == ("Bound", "NodeNotFound")
    assert 'node "node-1" not found' in status.message
    world.objects[("Node", "node-1")] = node
    world.settle()
    assert world.one("PersistentVolume").status.reason == "", "the node is back"
    world.remove(node)
    world.release()
    world.settle()
    status = world.one("PersistentVolume").status
    assert (status.phase, status.reason) == ("Failed", "VolumeFailedDelete")
    assert world.directories == {volume.metadata.name: "node-1"}
    world.delete(world.one("PersistentVolume"))
    world.settle()
    assert (world.all("PersistentVolume"), world.all("LocalVolume")) == ([], []), "an administrator can give it up"


def test_volume_removed_by_force_leaves_its_directory(world: World) -> None:
    volume = world.bound()
    world.remove(volume)
    world.settle()
    assert (world.all("LocalVolume"), len(world.directories)) == ([], 1)
    assert world.one("PersistentVolumeClaim").status.phase == "Lost"


@pytest.mark.parametrize("is_created", [False, True])
def test_claim_deleted_while_its_volume_is_provisioned_leaves_nothing(world: World, is_created: bool) -> None:
    world.node_works = False
    world.claim()
    world.pod()
    world.settle()
    assert world.one("LocalVolume").spec.state == "Created"
    if is_created:
        world._act_as_nodes()
    world.release()
    world.node_works = True
    world.settle()
    assert (world.all("LocalVolume"), world.all("PersistentVolume"), world.directories) == ([], [], {})


def test_node_deleted_while_a_volume_is_provisioned_is_replaced_by_another(world: World) -> None:
    world.node_works = False
    world.claim()
    world.pod()
    world.settle()
    world.remove(world.objects[("Node", "node-1")])
    world.node_works = True
    world.settle()
    assert world.one("Pod").spec.node_name == "node-2"
    assert set(world.directories.values()) == {"node-2"}
    assert "ProvisioningFailed" in world.reasons("PersistentVolumeClaim")


def test_failed_provisioning_is_reported_on_claim_and_pod(world: World) -> None:
    world.node_works = False
    world.claim()
    world.pod()
    world.settle()
    world.report(world.one("LocalVolume"), "", message="localVolumeDir /disk is not a directory")
    world.settle()
    problem = "node node-1: localVolumeDir /disk is not a directory"
    messages = {event.reason: event.message for event in world.all("Event")}
    assert messages["ProvisioningFailed"] == f'failed to provision volume with StorageClass "local": {problem}'
    assert messages["FailedScheduling"] == (
        f'running PreBind plugin "VolumeBinding": binding volumes: persistentvolumeclaim "data": {problem}'
    )
    count = len(world.all("Event"))
    world.step()
    assert len(world.all("Event")) == count, "each is reported once"
    world.node_works = True
    world.settle()
    assert world.one("Pod").spec.node_name == "node-1"


def test_nodes_without_local_volumes_are_not_selected(world: World) -> None:
    for node in world.all("Node"):
        world.change(with_metadata(node, labels={**node.metadata.labels, LOCAL_VOLUMES_LABEL: "false"}))
    world.claim()
    world.pod()
    world.settle()
    (condition,) = world.one("Pod").status.conditions
    assert condition.message == "0/2 nodes are available: 2 node(s) didn't find available persistent volumes to bind."
    assert world.reasons("PersistentVolumeClaim") == ["WaitForPodScheduled"]
    world.add_node("node-3")
    world.settle()
    assert world.one("Pod").spec.node_name == "node-3"


def test_node_that_a_project_selects_itself_must_offer_volumes(world: World) -> None:
    world.add_node("node-3", offers="false")
    claim = world.claim()
    world.change(with_metadata(claim, annotations={SELECTED_NODE: "node-3"}))
    world.settle()
    assert world.all("LocalVolume") == []
    assert SELECTED_NODE not in world.one("PersistentVolumeClaim").metadata.annotations
    world.pod()
    world.settle()
    assert world.one("Pod").spec.node_name == "node-1"


@pytest.mark.parametrize("name", ["", "absent", "n" * 200_000])
def test_node_that_a_project_selects_itself_must_exist(world: World, name: str) -> None:
    claim = world.claim()
    world.change(with_metadata(claim, annotations={SELECTED_NODE: name, "other": "stays"}))
    world.settle()
    assert (world.all("LocalVolume"), world.one("PersistentVolumeClaim").metadata.annotations) == (
        [],
        {"other": "stays"},
    )
    (message,) = (event.message for event in world.all("Event") if event.reason == "ProvisioningFailed")
    assert f'node "{name[:100]}' in message
    assert len(message) <= 1024


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"selector": {"matchLabels": {"a": "b"}}}, "claim.Spec.Selector is not supported"),
        ({"accessModes": ["ReadWriteMany"]}, "a local volume has ReadWriteOnce only"),
    ],
)
def test_claim_that_no_local_volume_fulfils_is_reported(world: World, change: dict[str, Any], message: str) -> None:
    world.claim(**change)
    world.pod()
    world.settle()
    assert world.all("LocalVolume") == []
    events = [event for event in world.all("Event") if event.reason == "ProvisioningFailed"]
    assert message in events[0].message


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"parameters": {"path": "/etc"}}, "parameters or mountOptions"),
        ({"mount_options": ("suid",)}, "parameters or mountOptions"),
        ({"volume_binding_mode": "Immediate"}, "another volumeBindingMode"),
    ],
)
def test_class_cannot_choose_the_directory(world: World, change: dict[str, Any], message: str) -> None:
    world.put(replace(LOCAL_CLASS, metadata=ObjectMeta(name="own"), **change))
    claim = world.claim(storageClassName="own")
    world.change(with_metadata(claim, annotations={SELECTED_NODE: "node-1"}))
    world.settle()
    assert world.all("LocalVolume") == []
    assert message in world.one("Event").message


@pytest.mark.parametrize(
    ("policy", "reason", "message"),
    [
        ("Delete", "VolumeFailedDelete", "no deletable volume plugin matched"),
        ("Recycle", "VolumeFailedRecycle", "No recycler plugin found for the volume!"),
        ("Retain", "", ""),
    ],
)
@pytest.mark.parametrize("provisioner", ["", "example.com/disks"])
def test_released_volume_of_others_is_not_touched(
    world: World, policy: str, reason: str, message: str, provisioner: str
) -> None:
    spec = {
        "capacity": {"storage": "1Gi"},
        "accessModes": ["ReadWriteOnce"],
        "persistentVolumeReclaimPolicy": policy,
        "hostPath": {"path": "/srv"},
        "claimRef": {"namespace": "red", "name": "gone", "uid": "u"},
    }
    annotations = {PROVISIONED_BY: provisioner} if provisioner else {}
    volume = msgspec.convert({"spec": spec}, PersistentVolume)
    world.put(replace(volume, metadata=ObjectMeta(name="disk", annotations=annotations)))
    world.settle()
    status = world.one("PersistentVolume").status
    expected = ("Released", "") if provisioner or policy == "Retain" else ("Failed", reason)
    assert (status.phase, status.reason) == expected
    assert message in status.message or provisioner
    assert world.all("LocalVolume") == []


def test_claims_without_a_class_get_the_default_that_is_created_later(world: World) -> None:
    world.claim(storageClassName=None)
    world.settle()
    assert world.one("PersistentVolumeClaim").spec.storage_class_name is None
    assert world.one("Event").message == "no persistent volumes available for this claim and no storage class is set"
    annotations = {"storageclass.kubernetes.io/is-default-class": "true"}
    world.put(StorageClass(metadata=ObjectMeta(name="usual", annotations=annotations), provisioner="example.com/x"))
    world.settle()
    assert world.one("PersistentVolumeClaim").spec.storage_class_name == "usual"


@pytest.mark.parametrize(
    ("provisioner", "reason"),
    [("example.com/x", "ExternalProvisioning"), ("kubernetes.io/no-provisioner", "ProvisioningFailed")],
)
def test_claims_of_other_classes_say_what_they_wait_for(world: World, provisioner: str, reason: str) -> None:
    world.claim(storageClassName="own")
    world.settle()
    assert world.one("Event").message == 'storageclass.storage.k8s.io "own" not found'
    world.put(StorageClass(metadata=ObjectMeta(name="own"), provisioner=provisioner, volume_binding_mode="Immediate"))
    world.pod()
    world.settle()
    assert reason in world.reasons("PersistentVolumeClaim")
    (condition,) = world.one("Pod").status.conditions
    assert condition.message == "0/2 nodes are available: pod has unbound immediate PersistentVolumeClaims."


def test_event_of_a_claim_has_a_name_of_limited_length(world: World) -> None:
    world.claim("x" * 253)
    for number in range(100):
        world.pod(f"{number:03}-{'y' * 200}", claim="x" * 253, more="  nodeSelector: {none: such}")
    world.settle()
    event = next(event for event in world.all("Event") if event.reason == "WaitForPodScheduled")
    assert (len(event.metadata.name), len(event.message)) == (253, 1024)


def test_object_that_cannot_be_read_does_not_stop_the_others(world: World) -> None:
    broken = world.claim("broken")
    world.change(with_metadata(broken, annotations={SELECTED_NODE: "node-1"}))
    world.settle()
    world.objects[("PersistentVolumeClaim", "broken")] = replace(
        world.objects[("PersistentVolumeClaim", "broken")], status=replace(broken.status, phase="Pending")
    )
    volume = world.one("PersistentVolume")
    poisoned = replace(volume, status=None, spec=replace(volume.spec, claim_ref=None))
    actions = list(local_volumes.reconcile([poisoned], [], [], world.all("StorageClass"), world.all("Node"), world.now))
    assert [type(action) for action in actions] == [Failed]
