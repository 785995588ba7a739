"""Event: a report about an object, kept for an hour. Pure."""

from __future__ import annotations

from datetime import datetime

from api.meta import times
from api.meta.types import Object, ObjectMeta, ObjectReference, Value
from api.meta.values import Int32, MicroTime, Time

NORMAL, WARNING = "Normal", "Warning"
CLUSTER_NAMESPACE = "default"
"""The namespace of events about cluster-scoped objects."""

CLUSTER_NAMESPACES = (CLUSTER_NAMESPACE, "kube-system")
"""The namespaces in which events of the newer form (with `event_time`) about cluster-scoped objects are accepted."""

MAX_NAME_LENGTH = 253
MAX_REASON_LENGTH = 128
"""Limit of reason, action and reporting component of an event of the newer form."""
MAX_MESSAGE_LENGTH = 1024


class EventSource(Value, frozen=True):
    """The component that reports an event, and the node on which it runs."""

    component: str = ""
    host: str = ""


class EventSeries(Value, frozen=True):
    """A repeated event: it occurred `count` times, last at `last_observed_time`."""

    count: Int32 = 0
    last_observed_time: MicroTime | None = None


class Event(Object, frozen=True):
    """Something that happened to `involved_object`, `count` times since `first_timestamp`."""

    API_VERSION = "v1"
    KIND = "Event"
    PLURAL = "events"
    NAMESPACED = True

    involved_object: ObjectReference = ObjectReference()
    reason: str = ""
    message: str = ""
    source: EventSource = EventSource()
    first_timestamp: Time | None = None
    last_timestamp: Time | None = None
    count: Int32 = 0
    type: str = ""
    event_time: MicroTime | None = None
    series: EventSeries | None = None
    action: str = ""
    related: ObjectReference | None = None
    reporting_component: str = ""
    reporting_instance: str = ""


def object_reference(obj: Object, field_path: str = "") -> ObjectReference:
    """Return the reference to an object, or to a part of it, for an event."""
    meta = obj.metadata
    return ObjectReference(
        api_version=obj.API_VERSION,
        kind=obj.KIND,
        namespace=meta.namespace,
        name=meta.name,
        uid=meta.uid,
        resource_version=meta.resource_version,
        field_path=field_path,
    )


def event_name(subject: str, suffix: str) -> str:
    """Return the name of an event about an object: the object's name, shortened if it is long, and a suffix."""
    prefix = subject[: MAX_NAME_LENGTH - 1 - len(suffix)].rstrip("-.")
    return f"{prefix}.{suffix}"


def make_event(
    about: ObjectReference, event_type: str, reason: str, message: str, source: EventSource, now: datetime
) -> Event:
    """Return a new event with a count of 1.

    `event_type` is Normal or Warning. The name consists of the object's name and the time in µs.
    """
    name = event_name(about.name, f"{int(now.timestamp() * 1_000_000):x}")
    return Event(
        metadata=ObjectMeta(name=name, namespace=about.namespace or CLUSTER_NAMESPACE),
        involved_object=about,
        reason=reason,
        message=message,
        source=source,
        first_timestamp=times.format_time(now),
        last_timestamp=times.format_time(now),
        count=1,
        type=event_type,
        reporting_component=source.component,
        reporting_instance=source.host,
    )
