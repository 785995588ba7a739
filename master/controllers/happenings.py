"""What the master itself tells in Events. Pure."""

from __future__ import annotations

import datetime

import msgspec

from api.core.events import NORMAL, WARNING, EventSource, event, reference
from api.core.pod import Pod
from api.meta.types import Object, ObjectMeta, ObjectReference, OwnerReference
from master.controllers.dependents import controller_of
from master.controllers.scheduling.scheduler import SCHEDULER
from master.writing.outcomes import Make


def scheduled(pod: Pod, node: str, now: datetime.datetime) -> Make:
    """The pod has got a node."""
    words = f"Successfully assigned {pod.metadata.namespace}/{pod.metadata.name} to {node}"
    return Make(event(reference(pod), NORMAL, "Scheduled", words, EventSource(component=SCHEDULER), now))


def unscheduled(pod: Pod, sentence: str, now: datetime.datetime) -> Make:
    """No node takes the pod."""
    return Make(event(reference(pod), WARNING, "FailedScheduling", sentence, EventSource(component=SCHEDULER), now))


def preempted(victim: Pod, pod: Pod, now: datetime.datetime) -> Make:
    """The pod makes room for a more important one."""
    words = f"Preempted by pod {pod.metadata.uid} on node {victim.spec.node_name}"
    return Make(event(reference(victim), NORMAL, "Preempted", words, EventSource(component=SCHEDULER), now))


def lost(node: Object, now: datetime.datetime) -> Make:
    """Nothing was heard of the node for its grace period."""
    about = msgspec.structs.replace(reference(node), uid=node.metadata.name)
    words = f"Node {node.metadata.name} status is now: NodeNotReady"
    return Make(event(about, NORMAL, "NodeNotReady", words, EventSource(component="node-controller"), now))


def unready(pod: Object, now: datetime.datetime) -> Make:
    """Nothing is heard of the node of the pod."""
    source = EventSource(component="node-controller")
    return Make(event(reference(pod), WARNING, "NodeNotReady", "Node is not ready", source, now))


def told(about: ObjectReference, kind: str, reason: str, words: str, by: str, now: datetime.datetime) -> Make:
    """Something of which there may be many at one time; the letters of its name keep them apart."""
    made = event(about, kind, reason, words, EventSource(component=by), now)
    meta = ObjectMeta(generate_name=f"{about.name}.", namespace=made.metadata.namespace)
    return Make(msgspec.structs.replace(made, metadata=meta))


def made(item: Object, by: str, now: datetime.datetime) -> Make:
    """The owner of an object has got it."""
    owner = owner_of(item)
    assert owner is not None
    words = f"Created {item.KIND.lower()}: {item.metadata.name}"
    return told(owner, NORMAL, "SuccessfulCreate", words, by, now)


def refused(owner: ObjectReference, item: Object, by: str, why: str, now: datetime.datetime) -> Make:
    """Somebody does not get what is his due; each kind has its own words for that."""
    name, reason, words = item.metadata.name, "FailedCreate", f"Error creating: {why}"
    match owner.kind, item.KIND:
        case "StatefulSet", "Pod":
            words = f"create Pod {name} in StatefulSet {owner.name} failed error: {why}"
        case "CronJob", _:
            words = f"Error creating job: {why}"
        case "Deployment", _:
            reason, words = "ReplicaSetCreateError", f'Failed to create new replica set "{name}": {why}'
    return told(owner, WARNING, reason, words, by, now)


def owner_of(item: Object) -> ObjectReference | None:
    """The controller of an object, as events name it."""
    owner = controller_of(item.metadata)
    if owner is None:
        return None
    return ObjectReference(
        api_version=owner.api_version,
        kind=owner.kind,
        namespace=item.metadata.namespace,
        name=owner.name,
        uid=owner.uid,
    )


def ended(owner: Object, item: Object, by: str, now: datetime.datetime) -> Make:
    """The owner of an object has had it deleted."""
    words = f"Deleted {item.KIND.lower()}: {item.metadata.name}"
    return told(reference(owner), NORMAL, "SuccessfulDelete", words, by, now)


def foreign_owner(item: Object, row: OwnerReference, now: datetime.datetime) -> Make:
    """The object names an owner that is in another namespace."""
    namespace = item.metadata.namespace
    owner = f"[{row.api_version}/{row.kind}, namespace: {namespace}, name: {row.name}, uid: {row.uid}]"
    words = f'ownerRef {owner} does not exist in namespace "{namespace}"'
    return told(reference(item), WARNING, "OwnerRefInvalidNamespace", words, "garbage-collector-controller", now)
