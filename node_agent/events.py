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
"""Begin of the BackOff message of an image pull. The event is Normal, because the failure before it was a Warning."""

RECENT = timedelta(hours=1)
"""An older event is not counted up but written again, because the API server has forgotten it."""

RATE_LIMIT = RateLimit(rate=1 / 300, burst=25.0)
"""Limit of the events of one object: 25 at once, then one in 5 minutes (client-go: EventSourceObjectSpamFilter)."""

MAX_SIMILAR, SIMILAR_WINDOW = 10, timedelta(minutes=10)
COMBINED = "(combined from similar events): "


@dataclass(frozen=True, slots=True)
class EventKey:
    """The fields in which two events are equal that are counted as one."""

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


def event_key(about: ObjectReference, reason: str, message: str) -> EventKey:
    """Return the key of an event. All combined events have the same key."""
    text = COMBINED if message.startswith(COMBINED) else message
    return EventKey(about.uid, about.kind, about.name, about.field_path, reason, text)


def new_event(about: ObjectReference, reason: str, message: str, node: str, now: datetime) -> Event:
    """Return a new event."""
    kind = WARNING if reason in WARNINGS and not message.startswith(IMAGE_BACKOFF_MESSAGE) else NORMAL
    return make_event(about, kind, reason, message, EventSource(component=COMPONENT, host=node), now)


def repeated_event(known: Event, message: str, now: datetime) -> Event:
    """Return the event counted once more."""
    return replace(known, count=known.count + 1, last_timestamp=times.format_time(now), message=message)


def is_recent(known: Event, now: datetime) -> bool:
    """Return whether the API server still has the event."""
    return known.last_timestamp is not None and now - times.parse_time(known.last_timestamp) < RECENT


def aggregate(before: AggregateRecord | None, message: str, now: datetime) -> tuple[AggregateRecord, str]:
    """Return the new record and the message to write. Many similar events with different messages become one event."""
    if before is None or now - before.since > SIMILAR_WINDOW:
        before = AggregateRecord(now)
    after = AggregateRecord(before.since, before.messages | {message})
    if len(after.messages) <= MAX_SIMILAR:
        return after, message
    return before, COMBINED + message
