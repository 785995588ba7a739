"""Events: which reasons are warnings, aggregation, rate limit per object. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

from msgspec.structs import replace

from api.core.events import NORMAL, WARNING, Event, EventSource, make_event, object_reference
from api.core.pod import Pod
from api.meta import times
from api.meta.types import ObjectReference
from reconcile.token_bucket import RateLimit

COMPONENT = "kubelet"

WARNINGS = frozenset(
    (
        "BackOff", "ContainerGCFailed", "DNSConfigForming", "ErrImageNeverPull", "Evicted", "EvictionThresholdMet",
        "ExceededGracePeriod", "Failed", "FailedCreatePodContainer", "FailedCreatePodSandBox", "FailedKillPod",
        "FailedMount", "FailedPostStartHook", "FailedPreStopHook", "FailedSync", "FailedToRetrieveImagePullSecret",
        "FailedValidation", "FreeDiskSpaceFailed", "HostPortConflict", "ImageGCFailed", "InspectFailed",
        "InvalidDiskCapacity", "InvalidEnvironmentVariableNames", "MissingClusterDNS", "NetworkNotReady",
        "NodeAffinity", "NodePorts", "OutOfcpu", "OutOfmemory", "OutOfpods", "PodOSNotSupported", "Preempting",
        "ProbeWarning", "Rebooted", "SysctlForbidden", "SystemOOM", "TaintToleration", "UnexpectedAdmissionError",
        "Unhealthy",
    )
)  # fmt: skip
"""Reasons of events of type Warning. All others are Normal."""

IMAGE_BACKOFF_MESSAGE = "Back-off pulling image"
"""Start of the BackOff message of an image pull. The event is Normal, because the failure before it was a Warning."""

RECENT = timedelta(hours=1)
"""Age up to which an event is counted up. An older one is written again, because the API server has removed it."""


RATE_LIMIT = RateLimit(rate=1 / 300, burst=25.0)
"""Limit of the events of one object: 25 at once, then one in 5 minutes (client-go: EventSourceObjectSpamFilter)."""

MAX_SIMILAR, SIMILAR_WINDOW = 10, timedelta(minutes=10)
COMBINED = "(combined from similar events): "


@dataclass(frozen=True, slots=True)
class EventKey:
    """The fields by which events are counted as repetitions of one event."""

    uid: str
    kind: str
    name: str
    field_path: str
    reason: str
    message: str


@dataclass(frozen=True, slots=True)
class AggregateRecord:
    """The messages of similar events about one object, in a window of time that began at `since`."""

    since: datetime
    messages: frozenset[str] = frozenset()


def pod_reference(pod: Pod, container: str) -> ObjectReference:
    """Return a reference to a pod, or to one of its containers."""
    if not container:
        return object_reference(pod)
    groups = {"initContainers": pod.spec.init_containers, "ephemeralContainers": pod.spec.ephemeral_containers}
    field = "containers"
    for name, group in groups.items():
        if any(spec.name == container for spec in group):
            field = name
    return object_reference(pod, f"spec.{field}{{{container}}}")


def backoff_message(pod: Pod, container: str) -> str:
    """Return the message of the event about a container whose restart waits."""
    meta = pod.metadata
    return f"Back-off restarting failed container {container} in pod {meta.name}_{meta.namespace}({meta.uid})"


def node_reference(name: str) -> ObjectReference:
    """Return a reference to a node. kubectl describe selects events by the node's name in place of its UID."""
    return ObjectReference(api_version="v1", kind="Node", name=name, uid=name)


def event_key(reference: ObjectReference, reason: str, message: str) -> EventKey:
    """Return the key of an event. All combined events have the same key."""
    text = COMBINED if message.startswith(COMBINED) else message
    return EventKey(reference.uid, reference.kind, reference.name, reference.field_path, reason, text)


def new_event(reference: ObjectReference, reason: str, message: str, node: str, now: datetime) -> Event:
    """Return a new event."""
    event_type = WARNING if reason in WARNINGS and not message.startswith(IMAGE_BACKOFF_MESSAGE) else NORMAL
    return make_event(reference, event_type, reason, message, EventSource(component=COMPONENT, host=node), now)


def repeated_event(event: Event, message: str, now: datetime) -> Event:
    """Return the event counted once more."""
    return replace(event, count=event.count + 1, last_timestamp=times.format_time(now), message=message)


def is_recent(event: Event, now: datetime) -> bool:
    """Return whether the API server still has the event."""
    return event.last_timestamp is not None and now - times.parse_time(event.last_timestamp) < RECENT


def aggregate(record: AggregateRecord | None, message: str, now: datetime) -> tuple[AggregateRecord, str]:
    """Return the new record and the message to write. Many similar events with different messages become one event."""
    if record is None or now - record.since > SIMILAR_WINDOW:
        record = AggregateRecord(now)
    updated = AggregateRecord(record.since, record.messages | {message})
    if len(updated.messages) <= MAX_SIMILAR:
        return updated, message
    return record, COMBINED + message
