"""Events that controllers write. Pure."""

from __future__ import annotations

import datetime

import msgspec

from api.core.events import NORMAL, WARNING, EventSource, event, reference
from api.core.pod import Pod
from api.meta.types import Object, ObjectMeta, ObjectReference, OwnerReference
from master.controllers.actions import Create
from master.resources.metadata import controller_of


def scheduled(pod: Pod, node: str, now: datetime.datetime) -> Create:
    """The pod has got a node."""
    words = f"Successfully assigned {pod.metadata.namespace}/{pod.metadata.name} to {node}"
    return Create(event(reference(pod), NORMAL, "Scheduled", words, EventSource(component=SCHEDULER), now))


def failed_scheduling(pod: Pod, sentence: str, now: datetime.datetime) -> Create:
    """No node takes the pod."""
    return Create(event(reference(pod), WARNING, "FailedScheduling", sentence, EventSource(component=SCHEDULER), now))


def preempted(victim: Pod, pod: Pod, now: datetime.datetime) -> Create:
    """The pod makes room for a more important one."""
    words = f"Preempted by pod {pod.metadata.uid} on node {victim.spec.node_name}"
    return Create(event(reference(victim), NORMAL, "Preempted", words, EventSource(component=SCHEDULER), now))


def node_not_ready(node: Object, now: datetime.datetime) -> Create:
    """Nothing was heard of the node for its grace period."""
    about = msgspec.structs.replace(reference(node), uid=node.metadata.name)
    words = f"Node {node.metadata.name} status is now: NodeNotReady"
    return Create(event(about, NORMAL, "NodeNotReady", words, EventSource(component="node-controller"), now))


def pod_not_ready(pod: Object, now: datetime.datetime) -> Create:
    """Nothing is heard of the node of the pod."""
    source = EventSource(component="node-controller")
    return Create(event(reference(pod), WARNING, "NodeNotReady", "Node is not ready", source, now))


def event_about(about: ObjectReference, kind: str, reason: str, words: str, by: str, now: datetime.datetime) -> Create:
    """Something of which there may be many at one time; the letters of its name keep them apart."""
    made = event(about, kind, reason, words, EventSource(component=by), now)
    meta = ObjectMeta(generate_name=f"{about.name}.", namespace=made.metadata.namespace)
    return Create(msgspec.structs.replace(made, metadata=meta))


def created(item: Object, by: str, now: datetime.datetime) -> Create:
    """The owner of an object has got it."""
    owner = owner_of(item)
    assert owner is not None
    words = f"Created {item.KIND.lower()}: {item.metadata.name}"
    return event_about(owner, NORMAL, "SuccessfulCreate", words, by, now)


def create_failed(owner: ObjectReference, item: Object, by: str, why: str, now: datetime.datetime) -> Create:
    """Somebody does not get what is his due; each kind has its own words for that."""
    name, reason, words = item.metadata.name, "FailedCreate", f"Error creating: {why}"
    match owner.kind, item.KIND:
        case "StatefulSet", "Pod":
            words = f"create Pod {name} in StatefulSet {owner.name} failed error: {why}"
        case "CronJob", _:
            words = f"Error creating job: {why}"
        case "Deployment", _:
            reason, words = "ReplicaSetCreateError", f'Failed to create new replica set "{name}": {why}'
    return event_about(owner, WARNING, reason, words, by, now)


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


def deleted(owner: Object, item: Object, by: str, now: datetime.datetime) -> Create:
    """The owner of an object has had it deleted."""
    words = f"Deleted {item.KIND.lower()}: {item.metadata.name}"
    return event_about(reference(owner), NORMAL, "SuccessfulDelete", words, by, now)


def invalid_owner_namespace(item: Object, row: OwnerReference, now: datetime.datetime) -> Create:
    """The object names an owner that is in another namespace."""
    namespace = item.metadata.namespace
    owner = f"[{row.api_version}/{row.kind}, namespace: {namespace}, name: {row.name}, uid: {row.uid}]"
    words = f'ownerRef {owner} does not exist in namespace "{namespace}"'
    return event_about(reference(item), WARNING, "OwnerRefInvalidNamespace", words, "garbage-collector-controller", now)


SCHEDULER = "default-scheduler"
"""Pods that name another scheduler are left to it."""
