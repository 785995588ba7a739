"""Event: a report about an object, kept for an hour. Pure."""

from __future__ import annotations

from datetime import datetime

from api.meta import times
from api.meta.types import Object, ObjectMeta, ObjectReference, Value

NORMAL, WARNING = "Normal", "Warning"
CLUSTER_NAMESPACE = "default"
"""Where events about objects are kept that are in no namespace themselves."""

CLUSTER_NAMESPACES = (CLUSTER_NAMESPACE, "kube-system")
"""The same of events of the newer form, those with an `event_time`."""

LONGEST_NAME, LONGEST_WORD, LONGEST_NOTE = 253, 128, 1024


class EventSource(Value, frozen=True):
    """The component that tells, and the node on which it runs."""

    component: str = ""
    host: str = ""


class EventSeries(Value, frozen=True):
    """It goes on: `count` times so far, last at `last_observed_time`."""

    count: int = 0
    last_observed_time: str | None = None


class Event(Object, frozen=True):
    """Something that happened to `involved_object`, `count` times since `first_timestamp`."""

    API_VERSION = "v1"
    KIND = "Event"

    involved_object: ObjectReference = ObjectReference()
    reason: str = ""
    message: str = ""
    source: EventSource = EventSource()
    first_timestamp: str | None = None
    last_timestamp: str | None = None
    count: int = 0
    type: str = ""
    event_time: str | None = None
    series: EventSeries | None = None
    action: str = ""
    related: ObjectReference | None = None
    reporting_component: str = ""
    reporting_instance: str = ""


def reference(item: Object, field_path: str = "") -> ObjectReference:
    """What an event says about which object, or which part of it, it is."""
    meta = item.metadata
    return ObjectReference(
        api_version=item.API_VERSION,
        kind=item.KIND,
        namespace=meta.namespace,
        name=meta.name,
        uid=meta.uid,
        resource_version=meta.resource_version,
        field_path=field_path,
    )


def event(about: ObjectReference, kind: str, reason: str, message: str, source: EventSource, now: datetime) -> Event:
    """The first of its sort; `kind` is Normal or Warning. Its name is that of the object and the time in µs."""
    moment = f"{int(now.timestamp() * 1_000_000):x}"
    name = f"{about.name[: LONGEST_NAME - 1 - len(moment)].rstrip('-.')}.{moment}"
    return Event(
        metadata=ObjectMeta(name=name, namespace=about.namespace or CLUSTER_NAMESPACE),
        involved_object=about,
        reason=reason,
        message=message,
        source=source,
        first_timestamp=times.format_time(now),
        last_timestamp=times.format_time(now),
        count=1,
        type=kind,
        reporting_component=source.component,
        reporting_instance=source.host,
    )
