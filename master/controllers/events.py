"""Events that controllers write. Pure."""

from __future__ import annotations

import datetime
import hashlib

import msgspec

from api.core.events import NORMAL, WARNING, Event, EventSource, make_event, object_reference
from api.core.pod import Pod
from api.meta.types import Object, ObjectMeta, ObjectReference, OwnerReference
from master.controllers.actions import Create
from master.resources.metadata import controller_of

SCHEDULER = "default-scheduler"
"""Pods that name another scheduler are ignored."""


def scheduled(pod: Pod, node: str, now: datetime.datetime) -> Create:
    """Return the event that a pod got a node."""
    message = f"Successfully assigned {pod.metadata.namespace}/{pod.metadata.name} to {node}"
    return Create(
        make_event(object_reference(pod), NORMAL, "Scheduled", message, EventSource(component=SCHEDULER), now)
    )


def failed_scheduling(pod: Pod, message: str, now: datetime.datetime) -> Create:
    """Return the event that no node is feasible for a pod."""
    return Create(
        make_event(object_reference(pod), WARNING, "FailedScheduling", message, EventSource(component=SCHEDULER), now)
    )


def preempted(victim: Pod, pod: Pod, now: datetime.datetime) -> Create:
    """Return the event that a pod was deleted for one of higher priority."""
    message = f"Preempted by pod {pod.metadata.uid} on node {victim.spec.node_name}"
    return Create(
        make_event(object_reference(victim), NORMAL, "Preempted", message, EventSource(component=SCHEDULER), now)
    )


def node_not_ready(node: Object, now: datetime.datetime) -> Create:
    """Return the event that a node did not report for its grace period."""
    subject = msgspec.structs.replace(object_reference(node), uid=node.metadata.name)
    message = f"Node {node.metadata.name} status is now: NodeNotReady"
    return Create(make_event(subject, NORMAL, "NodeNotReady", message, EventSource(component="node-controller"), now))


def pod_not_ready(pod: Object, now: datetime.datetime) -> Create:
    """Return the event that the node of a pod does not report."""
    source = EventSource(component="node-controller")
    return Create(make_event(object_reference(pod), WARNING, "NodeNotReady", "Node is not ready", source, now))


def event_about(
    subject: ObjectReference, event_type: str, reason: str, message: str, component: str, now: datetime.datetime
) -> Create:
    """Return an event with a generated name, because there may be several at one time."""
    event = make_event(subject, event_type, reason, message, EventSource(component=component), now)
    meta = ObjectMeta(generate_name=f"{subject.name}.", namespace=event.metadata.namespace)
    return Create(msgspec.structs.replace(event, metadata=meta))


def created(obj: Object, component: str, now: datetime.datetime) -> Create:
    """Return the event of an owner that an object was created for it."""
    owner = owner_of(obj)
    assert owner is not None
    message = f"Created {obj.KIND.lower()}: {obj.metadata.name}"
    return event_about(owner, NORMAL, "SuccessfulCreate", message, component, now)


def create_failed(owner: ObjectReference, obj: Object, component: str, error: str, now: datetime.datetime) -> Event:
    """Return the countable event of an owner that an object could not be created; its text depends on the kind."""
    name, reason, message = obj.metadata.name, "FailedCreate", f"Error creating: {error}"
    match owner.kind, obj.KIND:
        case "StatefulSet", "Pod":
            message = f"create Pod {name} in StatefulSet {owner.name} failed error: {error}"
        case "CronJob", _:
            message = f"Error creating job: {error}"
        case "Deployment", _:
            reason, message = "ReplicaSetCreateError", f'Failed to create new replica set "{name}": {error}'
    return countable_event(owner, WARNING, reason, message, component, now)


def countable_event(
    subject: ObjectReference, event_type: str, reason: str, message: str, component: str, now: datetime.datetime
) -> Event:
    """Return an event whose name follows from its content, so that the same event is counted (`repeated`)."""
    event = make_event(subject, event_type, reason, message, EventSource(component=component), now)
    content = msgspec.json.encode((subject.kind, subject.uid, reason, message, component))
    name = f"{subject.name[:MAX_SUBJECT_NAME].rstrip('-.')}.{hashlib.sha256(content).hexdigest()[:16]}"
    return msgspec.structs.replace(event, metadata=ObjectMeta(name=name, namespace=event.metadata.namespace))


MAX_SUBJECT_NAME = 200
"""Characters of the subject's name in the name of an event."""

MAX_COUNT = (1 << 31) - 1


def repeated(before: Event, event: Event) -> Event:
    """Return an event that happened once more, with its count and time."""
    count = min(max(before.count, 1) + 1, MAX_COUNT)
    return msgspec.structs.replace(before, count=count, last_timestamp=event.last_timestamp)


def owner_of(obj: Object) -> ObjectReference | None:
    """Return the controller of an object as a reference for events."""
    owner = controller_of(obj.metadata)
    if owner is None:
        return None
    return ObjectReference(
        api_version=owner.api_version,
        kind=owner.kind,
        namespace=obj.metadata.namespace,
        name=owner.name,
        uid=owner.uid,
    )


def reconcile_failed(obj: Object, component: str, now: datetime.datetime) -> Create:
    """Return the event that an object cannot be reconciled. The error is in the log only: it may name other objects."""
    message = (
        "An unexpected error keeps this object from being reconciled. It is tried again; the master's log says why."
    )
    return event_about(object_reference(obj), WARNING, "ReconcileFailed", message, component, now)


def deleted(owner: Object, obj: Object, component: str, now: datetime.datetime) -> Create:
    """Return the event of an owner that an object was deleted for it."""
    message = f"Deleted {obj.KIND.lower()}: {obj.metadata.name}"
    return event_about(object_reference(owner), NORMAL, "SuccessfulDelete", message, component, now)


def invalid_owner_namespace(obj: Object, reference: OwnerReference, now: datetime.datetime) -> Create:
    """Return the event that an object names an owner in another namespace."""
    namespace = obj.metadata.namespace
    kind = f"{reference.api_version}/{reference.kind}"
    owner = f"[{kind}, namespace: {namespace}, name: {reference.name}, uid: {reference.uid}]"
    message = f'ownerRef {owner} does not exist in namespace "{namespace}"'
    return event_about(
        object_reference(obj), WARNING, "OwnerRefInvalidNamespace", message, "garbage-collector-controller", now
    )
