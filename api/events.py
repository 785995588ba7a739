"""Events: what happened to an object, told for an hour. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime

from api import names, times
from api.objects import Object, ObjectMeta
from api.schema import FORBIDDEN, MISSING, NOT_SUPPORTED, Problem, shown
from api.value import ObjectReference, Value

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
        first_timestamp=times.text(now),
        last_timestamp=times.text(now),
        count=1,
        type=kind,
        reporting_component=source.component,
        reporting_instance=source.host,
    )


def check(item: Event) -> Iterator[Problem]:
    """An event lies beside the object that it is about."""
    about, place = item.involved_object, item.metadata.namespace
    homes = (about.namespace,) if about.namespace else CLUSTER_NAMESPACES if item.event_time else (CLUSTER_NAMESPACE,)
    if place and place not in homes:
        yield Problem("involvedObject.namespace", shown(about.namespace), "does not match event.namespace")
    if item.type not in ("", NORMAL, WARNING):
        yield Problem("type", shown(item.type), f"{NORMAL}, {WARNING} are accepted", NOT_SUPPORTED)
    if item.event_time:
        yield from _check_told(item)


def _check_told(item: Event) -> Iterator[Problem]:
    """An event of the newer form, in which there is no source, says who tells what was done, in words for programs."""
    told = ("reportingComponent", item.reporting_component), ("reportingInstance", item.reporting_instance)
    for path, text in (*told, ("action", item.action), ("reason", item.reason)):
        if not text:
            yield Problem(path, '""', "a value is required", MISSING)
        elif len(text) > LONGEST_WORD:
            yield Problem(path, shown(text), f"can have at most {LONGEST_WORD} characters")
    if item.reporting_component and names.label_key(item.reporting_component):
        yield Problem("reportingComponent", shown(item.reporting_component), names.label_key(item.reporting_component))
    if len(item.message) > LONGEST_NOTE:
        yield Problem("message", shown(item.message), f"can have at most {LONGEST_NOTE} characters")


def immutable(old: Event, new: Event) -> Iterator[Problem]:
    """An event may be repeated, and not become another one's."""
    for path, before, after in (
        ("involvedObject", old.involved_object, new.involved_object),
        ("source", old.source, new.source),
    ):
        if before != after:
            yield Problem(path, "changed", "field is immutable", FORBIDDEN)
