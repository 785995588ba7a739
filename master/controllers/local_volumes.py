"""Local volumes: provisioning for claims, and reclaiming of released volumes. Pure.

The provisioner is in two parts. This controller decides: it creates a LocalVolume for a claim with a selected node,
then the PersistentVolume when the node reports the directory, and says through the LocalVolume what becomes of the
directory later. The agent of that node acts and reports; it writes neither volumes nor claims. Everything follows from
stored objects, so a master that starts in the middle continues.

A directory is deleted only if its LocalVolume says Absent. A LocalVolume whose PersistentVolume was removed by force is
forgotten, and its directory stays.
"""

from __future__ import annotations

import datetime
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from msgspec.structs import replace

from api.core.events import MAX_MESSAGE_LENGTH, NORMAL, WARNING, object_reference
from api.core.node import Node
from api.core.placement import NodeSelector, NodeSelectorRequirement, NodeSelectorTerm
from api.core.storage import (
    ABSENT,
    BOUND,
    CREATED,
    DELETE,
    DELETED,
    FAILED,
    PENDING,
    PRESENT,
    PROVISIONED_BY,
    READY,
    RECYCLE,
    RELEASED,
    RETAIN,
    SCRUBBED,
    SELECTED_NODE,
    LocalVolume,
    LocalVolumeSource,
    LocalVolumeSpec,
    LocalVolumeStatus,
    PersistentVolume,
    PersistentVolumeClaim,
    PersistentVolumeSpec,
    VolumeNodeAffinity,
)
from api.meta.types import Object, ObjectMeta, ObjectReference
from master.controllers import events
from master.controllers.actions import Action, Create, Delete, ForceDelete, Update, isolate_errors
from master.controllers.claim_events import (
    COMPONENT,
    local_volume_problem,
    provisioned_name,
    provisioning_failed,
)
from master.controllers.context import Lister
from master.controllers.persistent_volumes import without_finalizer
from master.resources.metadata import with_metadata
from master.resources.volumes import LOCAL_PROVISIONER, StorageClass, claim_class, matches_topology

LOCAL_VOLUME_FINALIZER = "podlane.io/local-volume"
"""The finalizer of a PersistentVolume that delays its deletion until its directory is dealt with."""

HOST_NAME_LABEL = "kubernetes.io/hostname"
NODE_NOT_FOUND = "NodeNotFound"
"""The reason in the status of a volume whose node has no Node object."""


@dataclass(frozen=True, slots=True)
class Cluster:
    """The objects that provisioning and reclaiming depend on, by name."""

    volumes: Mapping[str, PersistentVolume]
    local_volumes: Mapping[str, LocalVolume]
    classes: Mapping[str, StorageClass]
    nodes: Mapping[str, Node]


def reconcile(
    volumes: Iterable[PersistentVolume],
    claims: Iterable[PersistentVolumeClaim],
    local_volumes: Iterable[LocalVolume],
    classes: Iterable[StorageClass],
    nodes: Iterable[Node],
    now: datetime.datetime,
) -> Iterator[Action]:
    """Yield the next writes for all claims and volumes. Each object is written at most once in a pass."""
    cluster = Cluster(
        volumes={volume.metadata.name: volume for volume in volumes},
        local_volumes={volume.metadata.name: volume for volume in local_volumes},
        classes={storage_class.metadata.name: storage_class for storage_class in classes},
        nodes={node.metadata.name: node for node in nodes},
    )
    wanted = {provisioned_name(claim): claim for claim in claims if _is_provisioned_here(claim, cluster)}
    yield from isolate_errors(wanted.values(), lambda claim: _provision(claim, cluster, now))
    yield from isolate_errors(cluster.volumes.values(), lambda volume: _reclaim(volume, cluster, now))
    unused = (
        volume
        for name, volume in cluster.local_volumes.items()
        if name not in cluster.volumes and not _is_wanted(volume, wanted.get(name))
    )
    yield from isolate_errors(unused, lambda volume: _remove_unused(volume, cluster))


# --- provisioning -----------------------------------------------------------------------------------------------------


def _is_provisioned_here(claim: PersistentVolumeClaim, cluster: Cluster) -> bool:
    """Return whether a claim waits for a volume that this provisioner creates."""
    storage_class = cluster.classes.get(claim_class(claim) or "")
    return (
        claim.status.phase == PENDING
        and not claim.spec.volume_name
        and not claim.metadata.deletion_timestamp
        and SELECTED_NODE in claim.metadata.annotations
        and storage_class is not None
        and storage_class.provisioner == LOCAL_PROVISIONER
        and not local_volume_problem(claim, storage_class)
    )


def _is_wanted(volume: LocalVolume, claim: PersistentVolumeClaim | None) -> bool:
    return (
        claim is not None
        and volume.spec.state == CREATED
        and volume.spec.node_name == claim.metadata.annotations[SELECTED_NODE]
    )


def _provision(claim: PersistentVolumeClaim, cluster: Cluster, now: datetime.datetime) -> Iterator[Action]:
    """Yield the next step for a claim: LocalVolume, then PersistentVolume; or another choice of a node."""
    name, node_name = provisioned_name(claim), claim.metadata.annotations[SELECTED_NODE]
    storage_class = cluster.classes[claim_class(claim) or ""]
    local_volume, node = cluster.local_volumes.get(name), cluster.nodes.get(node_name)
    if name in cluster.volumes:
        return  # It is bound next.
    problem = "" if node is not None else f'node "{node_name}" not found'
    if node is not None and local_volume is None and not matches_topology(storage_class, node.metadata.labels):
        problem = f'node "{node_name}" is not in allowedTopologies of the class'
    if problem:
        # The scheduler selects again. A LocalVolume on a node that is gone is removed as an unused one.
        annotations = {key: value for key, value in claim.metadata.annotations.items() if key != SELECTED_NODE}
        yield Update(with_metadata(claim, annotations=annotations), claim)
        report = provisioning_failed(storage_class.metadata.name, problem)
        yield _event(claim, report.type, report.reason, report.message, now)
    elif local_volume is None:
        reference = replace(object_reference(claim), resource_version="")
        spec = LocalVolumeSpec(node_name=node_name, state=CREATED, claim_ref=reference)
        yield Create(LocalVolume(metadata=ObjectMeta(name=name), spec=spec))
    elif _is_wanted(local_volume, claim) and local_volume.status.phase == READY:
        yield Create(_persistent_volume(claim, storage_class, local_volume))
        yield _event(claim, NORMAL, "ProvisioningSucceeded", f"Successfully provisioned volume {name}", now)


def _persistent_volume(
    claim: PersistentVolumeClaim, storage_class: StorageClass, local_volume: LocalVolume
) -> PersistentVolume:
    """Return the volume of a claim, already bound to it by the claim's uid. Its capacity is what the claim requests."""
    requirement = NodeSelectorRequirement(key=HOST_NAME_LABEL, operator="In", values=(local_volume.spec.node_name,))
    selector = NodeSelector(node_selector_terms=(NodeSelectorTerm(match_expressions=(requirement,)),))
    return PersistentVolume(
        metadata=ObjectMeta(
            name=local_volume.metadata.name,
            annotations={PROVISIONED_BY: LOCAL_PROVISIONER},
            finalizers=(LOCAL_VOLUME_FINALIZER,),
        ),
        spec=PersistentVolumeSpec(
            capacity={"storage": claim.spec.resources.requests["storage"]},
            access_modes=claim.spec.access_modes,
            persistent_volume_reclaim_policy=storage_class.reclaim_policy or DELETE,
            storage_class_name=storage_class.metadata.name,
            volume_mode=claim.spec.volume_mode,
            claim_ref=ObjectReference(
                api_version="v1",
                kind=claim.KIND,
                namespace=claim.metadata.namespace,
                name=claim.metadata.name,
                uid=claim.metadata.uid,
            ),
            local=LocalVolumeSource(path=local_volume.status.path),
            node_affinity=VolumeNodeAffinity(required=selector),
        ),
    )


def _remove_unused(volume: LocalVolume, cluster: Cluster) -> Iterator[Action]:
    """Yield the next step for a LocalVolume without a PersistentVolume, of a claim that no longer waits for it.

    If there was a PersistentVolume, somebody has removed it with its finalizer, and the directory stays.
    """
    is_gone = volume.spec.node_name not in cluster.nodes or volume.status.phase == DELETED
    if volume.spec.state in (PRESENT, SCRUBBED) or (is_gone and volume.spec.state == ABSENT):
        yield ForceDelete(volume)
    elif volume.spec.state == CREATED:
        yield ForceDelete(volume) if is_gone else _with_state(volume, ABSENT)


# --- reclaiming -------------------------------------------------------------------------------------------------------


def _reclaim(volume: PersistentVolume, cluster: Cluster, now: datetime.datetime) -> Iterator[Action]:
    provisioner = volume.metadata.annotations.get(PROVISIONED_BY)
    if provisioner == LOCAL_PROVISIONER:
        local_volume = cluster.local_volumes.get(volume.metadata.name)
        if local_volume is not None:
            yield from _reclaim_local(volume, local_volume, cluster, now)
            return
        if volume.metadata.deletion_timestamp and volume.status.phase != BOUND:
            yield from without_finalizer(volume, LOCAL_VOLUME_FINALIZER)
            return
    elif provisioner is not None:
        return  # An external provisioner reclaims it.
    if volume.status.phase in (RELEASED, FAILED) and not volume.metadata.deletion_timestamp:
        problems = {
            DELETE: (
                f'error getting deleter volume plugin for volume "{volume.metadata.name}": '
                "no deletable volume plugin matched"
            ),
            RECYCLE: "No recycler plugin found for the volume!",
        }
        problem = problems.get(volume.spec.persistent_volume_reclaim_policy, "")
        if problem:
            yield from _report_failure(volume, problem, now)


def _reclaim_local(
    volume: PersistentVolume, local_volume: LocalVolume, cluster: Cluster, now: datetime.datetime
) -> Iterator[Action]:
    """Yield the next step for a volume with its LocalVolume."""
    policy, is_deleted = volume.spec.persistent_volume_reclaim_policy, bool(volume.metadata.deletion_timestamp)
    has_node = local_volume.spec.node_name in cluster.nodes
    # An Available volume holds no data of a claim, but its directory goes with it.
    is_free = volume.status.phase in (RELEASED, FAILED) or (is_deleted and volume.status.phase != BOUND)
    if is_free and is_deleted and (policy == RETAIN or not has_node):
        yield ForceDelete(local_volume)
        yield from without_finalizer(volume, LOCAL_VOLUME_FINALIZER)
    elif is_free and policy != RETAIN and not has_node:
        yield from _report_failure(volume, _node_not_found(local_volume), now)
    elif is_free and (policy == DELETE or is_deleted):
        yield from _delete_directory(volume, local_volume, now)
    elif is_free and policy == RECYCLE:
        yield from _scrub_directory(volume, local_volume, now)
    else:
        yield from _keep_directory(volume, local_volume, has_node)


def _delete_directory(volume: PersistentVolume, local_volume: LocalVolume, now: datetime.datetime) -> Iterator[Action]:
    if local_volume.spec.state != ABSENT:
        yield _with_state(local_volume, ABSENT)
    elif local_volume.status.phase != DELETED:
        yield from _report_failure(volume, local_volume.status.message, now)
    elif not volume.metadata.deletion_timestamp:
        yield Delete(volume)
    else:
        yield ForceDelete(local_volume)
        yield from without_finalizer(volume, LOCAL_VOLUME_FINALIZER)


def _scrub_directory(volume: PersistentVolume, local_volume: LocalVolume, now: datetime.datetime) -> Iterator[Action]:
    if local_volume.status.phase == DELETED:
        yield from _report_failure(volume, "the directory was deleted", now)
    elif local_volume.spec.state != SCRUBBED:
        yield _with_state(local_volume, SCRUBBED)
    elif local_volume.status.phase != SCRUBBED:
        yield from _report_failure(volume, local_volume.status.message, now)
    else:
        # The phase of the node is reset in the same write, so that the next release is scrubbed again.
        yield _as_present(local_volume)
        status = replace(volume.status, phase=PENDING, reason="", message="")
        yield Update(replace(volume, spec=replace(volume.spec, claim_ref=None), status=status), volume)
        yield _event(volume, NORMAL, "VolumeRecycled", "Volume recycled", now)


def _keep_directory(volume: PersistentVolume, local_volume: LocalVolume, has_node: bool) -> Iterator[Action]:
    """Yield the LocalVolume as one to keep, and the volume with the reason if its node does not exist."""
    if local_volume.spec.state != PRESENT and local_volume.status.phase != DELETED:
        yield _as_present(local_volume)
    reason, message = ("", "") if has_node else (NODE_NOT_FOUND, _node_not_found(local_volume))
    status = replace(volume.status, reason=reason, message=message)
    if volume.status.phase == FAILED:
        status = replace(status, phase=RELEASED)
    if status != volume.status:
        yield Update(replace(volume, status=status), volume)


def _node_not_found(volume: LocalVolume) -> str:
    return f'node "{volume.spec.node_name}" not found; the directory is on that node'


def _with_state(volume: LocalVolume, state: str) -> Update:
    """Return the request of another state. The message of the node was about the previous one."""
    status = replace(volume.status, message="")
    return Update(replace(volume, spec=replace(volume.spec, state=state), status=status), volume)


def _as_present(volume: LocalVolume) -> Update:
    status = LocalVolumeStatus(phase=READY, path=volume.status.path)
    return Update(replace(volume, spec=replace(volume.spec, state=PRESENT), status=status), volume)


def _report_failure(volume: PersistentVolume, problem: str, now: datetime.datetime) -> Iterator[Action]:
    """Yield the volume as Failed with the problem, and its event; nothing without a problem or if it is known."""
    policy = volume.spec.persistent_volume_reclaim_policy
    reason = "VolumeFailedRecycle" if policy == RECYCLE else "VolumeFailedDelete"
    status = replace(volume.status, phase=FAILED, reason=reason, message=problem)
    if problem and status != volume.status:
        yield Update(replace(volume, status=status), volume)
        yield _event(volume, WARNING, reason, problem, now)


def _event(subject: Object, event_type: str, reason: str, message: str, now: datetime.datetime) -> Create:
    # The name of a node in an annotation of a claim may be of any length.
    text = message[:MAX_MESSAGE_LENGTH]
    return events.event_about(object_reference(subject), event_type, reason, text, COMPONENT, now)


def sync_local_volumes(lister: Lister) -> Iterable[Action]:
    """Provision and reclaim local volumes."""
    return reconcile(
        lister.list(PersistentVolume),
        lister.list(PersistentVolumeClaim),
        lister.list(LocalVolume),
        lister.list(StorageClass),
        lister.list(Node),
        lister.now,
    )
