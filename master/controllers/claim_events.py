"""Events of claims that wait: why they have no volume yet, in the words of Kubernetes. Pure."""

from __future__ import annotations

import datetime
import hashlib
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

from api.core.events import (
    MAX_MESSAGE_LENGTH,
    MAX_NAME_LENGTH,
    NORMAL,
    WARNING,
    Event,
    EventSource,
    make_event,
    object_reference,
)
from api.core.pod import Pod
from api.core.storage import PENDING, SELECTED_NODE, LocalVolume, PersistentVolume, PersistentVolumeClaim
from master.controllers.actions import Create, Failed, isolate_errors
from master.resources.metadata import with_metadata
from master.resources.volumes import (
    LOCAL_PROVISIONER,
    NO_PROVISIONER,
    WAIT_FOR_FIRST_CONSUMER,
    StorageClass,
    claim_class,
)

COMPONENT = "persistentvolume-controller"
"""The source of events about claims and volumes."""

ClaimKey = tuple[str, str]
"""Namespace and name of a claim."""


def claims_of(pod: Pod) -> Iterator[ClaimKey]:
    """Yield the claims that a pod uses."""
    for volume in pod.spec.volumes:
        if volume.persistent_volume_claim is not None:
            yield pod.metadata.namespace, volume.persistent_volume_claim.claim_name


def waits_for_consumer(storage_class: StorageClass) -> bool:
    """Return whether claims of the class wait until a node is selected for a pod that uses them."""
    return storage_class.volume_binding_mode == WAIT_FOR_FIRST_CONSUMER


def provisioned_name(claim: PersistentVolumeClaim) -> str:
    """Return the name of the volume that is provisioned for a claim, as that of Kubernetes' provisioners."""
    return f"pvc-{claim.metadata.uid}"


class ClaimReport(NamedTuple):
    """The type, reason and message of an event about a claim that waits."""

    type: str
    reason: str
    message: str


def provisioning_failed(storage_class: str, problem: str) -> ClaimReport:
    """Return the report that the volume of a claim could not be provisioned."""
    message = f'failed to provision volume with StorageClass "{storage_class}": {problem}'
    return ClaimReport(WARNING, "ProvisioningFailed", message)


def local_volume_problem(claim: PersistentVolumeClaim, storage_class: StorageClass) -> str:
    """Return why a claim can never have a local volume of this class; empty if it can."""
    if claim.spec.selector is not None:
        return "claim.Spec.Selector is not supported"
    if claim.spec.access_modes != ("ReadWriteOnce",):
        return f"accessModes are {', '.join(claim.spec.access_modes)}; a local volume has ReadWriteOnce only"
    if storage_class.parameters or storage_class.mount_options:
        return "the class has parameters or mountOptions; none are accepted by its provisioner"
    if not waits_for_consumer(storage_class):
        return f"the class has another volumeBindingMode than {WAIT_FOR_FIRST_CONSUMER}"
    return ""


def _delayed_report(pods: Iterable[Pod]) -> ClaimReport:
    """Return what a claim waits for before a node is selected."""
    waiting = sorted(pod.metadata.name for pod in pods)
    if not waiting:
        message = "waiting for first consumer to be created before binding"
        return ClaimReport(NORMAL, WAIT_FOR_FIRST_CONSUMER, message)
    message = f"waiting for pod{'s' if len(waiting) > 1 else ''} {','.join(waiting)} to be scheduled"
    return ClaimReport(NORMAL, "WaitForPodScheduled", message)


def _provisioner_report(storage_class: StorageClass, local_volume: LocalVolume | None) -> ClaimReport | None:
    """Return what a claim waits for whose volume can be provisioned now."""
    provisioner, name = storage_class.provisioner, storage_class.metadata.name
    if provisioner == NO_PROVISIONER:
        return ClaimReport(WARNING, "ProvisioningFailed", f"no volume plugin matched name: {NO_PROVISIONER}")
    if provisioner == LOCAL_PROVISIONER:
        if local_volume is None or not local_volume.status.message:
            return None
        return provisioning_failed(name, f"node {local_volume.spec.node_name}: {local_volume.status.message}")
    message = (
        f"Waiting for a volume to be created either by the external provisioner '{provisioner}' or manually by the "
        "system administrator. If volume creation is delayed, please verify that the provisioner is running and "
        "correctly registered."
    )
    return ClaimReport(NORMAL, "ExternalProvisioning", message)


def _named_volume_report(claim: PersistentVolumeClaim, volume: PersistentVolume | None) -> ClaimReport | None:
    """Return what a claim waits for that names its volume."""
    owner = volume.spec.claim_ref if volume is not None else None
    if owner is None or owner.uid in ("", claim.metadata.uid):
        return None
    message = f'volume "{claim.spec.volume_name}" already bound to a different claim.'
    return ClaimReport(WARNING, "FailedBinding", message)


def waiting_report(
    claim: PersistentVolumeClaim,
    storage_class: StorageClass | None,
    volume: PersistentVolume | None,
    local_volume: LocalVolume | None,
    pods: Iterable[Pod],
) -> ClaimReport | None:
    """Return why a claim is not bound; None if there is nothing to report yet.

    `volume` is the one that it names, `local_volume` the one that is provisioned for it, and `pods` are those that use
    it and have no node. Reasons and messages are those of Kubernetes.
    """
    name = claim_class(claim)
    if claim.spec.volume_name:
        return _named_volume_report(claim, volume)
    if not name:
        message = "no persistent volumes available for this claim and no storage class is set"
        return ClaimReport(NORMAL, "FailedBinding", message)
    if storage_class is None:
        return ClaimReport(WARNING, "ProvisioningFailed", f'storageclass.storage.k8s.io "{name}" not found')
    if storage_class.provisioner == LOCAL_PROVISIONER and (problem := local_volume_problem(claim, storage_class)):
        return provisioning_failed(name, problem)
    if waits_for_consumer(storage_class) and SELECTED_NODE not in claim.metadata.annotations:
        return _delayed_report(pods)
    return _provisioner_report(storage_class, local_volume)


def report_event(subject: PersistentVolumeClaim, report: ClaimReport, now: datetime.datetime) -> Event:
    """Return the event of a report. Its name is derived from the report, so that the same one is not created twice."""
    # Many pods may wait for one claim.
    reference, message = object_reference(subject), report.message[:MAX_MESSAGE_LENGTH]
    event = make_event(reference, report.type, report.reason, message, EventSource(component=COMPONENT), now)
    digest = hashlib.sha256("\0".join((subject.metadata.uid, report.reason, message)).encode()).hexdigest()[:16]
    prefix = subject.metadata.name[: MAX_NAME_LENGTH - 1 - len(digest)].rstrip("-.")
    return with_metadata(event, name=f"{prefix}.{digest}")


def report_waiting(
    claims: Iterable[PersistentVolumeClaim],
    volumes: Iterable[PersistentVolume],
    classes: Iterable[StorageClass],
    local_volumes: Iterable[LocalVolume],
    pods: Callable[[], Iterable[Pod]],
    has_event: Callable[[Event], bool],
    now: datetime.datetime,
) -> Iterator[Create | Failed]:
    """Yield the events of claims that wait, except those that exist already."""
    waiting = [claim for claim in claims if claim.status.phase == PENDING and not claim.metadata.deletion_timestamp]
    if not waiting:
        return
    class_by_name = {storage_class.metadata.name: storage_class for storage_class in classes}
    volume_by_name = {volume.metadata.name: volume for volume in volumes}
    local_by_name = {volume.metadata.name: volume for volume in local_volumes}
    users: dict[ClaimKey, list[Pod]] = {}
    for pod in pods():
        if not pod.spec.node_name:
            for key in claims_of(pod):
                users.setdefault(key, []).append(pod)

    def report(claim: PersistentVolumeClaim) -> Iterator[Create]:
        found = waiting_report(
            claim,
            class_by_name.get(claim_class(claim) or ""),
            volume_by_name.get(claim.spec.volume_name),
            local_by_name.get(provisioned_name(claim)),
            users.get((claim.metadata.namespace, claim.metadata.name), ()),
        )
        if found is not None and not has_event(event := report_event(claim, found, now)):
            yield Create(event)

    yield from isolate_errors(waiting, report)
