"""Event of the core and Event of events.k8s.io: two forms of the same stored objects. Pure."""

from __future__ import annotations

import datetime
from collections.abc import Iterator

from api.core.events import NORMAL, WARNING, Event, EventSeries, EventSource
from api.core.events import Event as CoreEvent
from api.meta.schema import MISSING, FieldError, quoted
from api.meta.types import Object, ObjectReference
from api.meta.values import Int32, MicroTime, Time
from api.validation.config import check_event as check_core
from api.validation.config import check_event_update as immutable_in_core
from api.validation.registry import RULES, KindRules
from master.resources.metadata import parse_time
from master.resources.printing import age
from master.resources.resource import Column, Resource, Version


def _first_seen(event: Event, now: datetime.datetime) -> str:
    return age(event.first_timestamp or event.event_time, now)


def _last_seen(event: Event, now: datetime.datetime) -> str:
    latest = (event.series and event.series.last_observed_time) or event.last_timestamp
    return age(latest, now) if latest else _first_seen(event, now)


def _source(event: Event) -> str:
    component = event.source.component or event.reporting_component
    return ", ".join(part for part in (component, event.source.host or event.reporting_instance) if part)


def _event_fields(event: Event) -> dict[str, str]:
    about = event.involved_object
    return {
        "involvedObject.kind": about.kind,
        "involvedObject.name": about.name,
        "involvedObject.namespace": about.namespace,
        "involvedObject.uid": about.uid,
        "involvedObject.apiVersion": about.api_version,
        "involvedObject.resourceVersion": about.resource_version,
        "involvedObject.fieldPath": about.field_path,
        "reason": event.reason,
        "reportingComponent": event.reporting_component,
        "source": event.source.component or event.reporting_component,
        "type": event.type,
    }


EVENT_COLUMNS = (
    Column("Last Seen", "Time since it happened last.", lambda event, now: _last_seen(event, now)),
    Column("Type", "Normal or Warning.", lambda event, _: event.type),
    Column("Reason", "Reason of the event, a word for programs.", lambda event, _: event.reason),
    Column(
        "Object",
        "Object of the event.",
        lambda event, _: f"{event.involved_object.kind.lower()}/{event.involved_object.name}",
    ),
    Column("Subobject", "To which part of the object.", lambda event, _: event.involved_object.field_path, wide=True),
    Column("Source", "Component that reported the event, and its node.", lambda event, _: _source(event), wide=True),
    Column("Message", "Message of the event.", lambda event, _: event.message.strip()),
    Column("First Seen", "Time since it happened first.", lambda event, now: _first_seen(event, now), wide=True),
    Column(
        "Count",
        "Number of occurrences.",
        lambda event, _: (event.series and event.series.count) or event.count or 1,
        wide=True,
    ),
    Column("Name", "Name of the event.", lambda event, _: event.metadata.name, format="name", wide=True),
)

EVENTS = Resource(
    type=Event,
    short_names=("ev",),
    columns=EVENT_COLUMNS,
    rules=RULES[Event],
    selectable_fields=_event_fields,
    allow_create_on_update=True,
    acted_on_by="deleted by the master after an hour",
)

CORE_FIELD_NAMES = {
    "series": "series",
    "action": "action",
    "reason": "reason",
    "related": "related",
    "type": "type",
    "event_time": "event_time",
    "reporting_instance": "reporting_instance",
    "reporting_controller": "reporting_component",
    "regarding": "involved_object",
    "note": "message",
    "deprecated_source": "source",
    "deprecated_first_timestamp": "first_timestamp",
    "deprecated_last_timestamp": "last_timestamp",
    "deprecated_count": "count",
}
"""Field here → field of the core."""


class EventV1(Object, frozen=True):
    """An event about the object `regarding` at `eventTime`, from `reportingController`; `series` if it is repeated.

    The fields `deprecated...` are those of events that were written in the core version.
    """

    API_VERSION = "events.k8s.io/v1"
    KIND = "Event"
    PLURAL = "events"
    NAMESPACED = True

    event_time: MicroTime | None = None
    series: EventSeries | None = None
    reporting_controller: str = ""
    reporting_instance: str = ""
    action: str = ""
    reason: str = ""
    regarding: ObjectReference = ObjectReference()
    related: ObjectReference | None = None
    note: str = ""
    type: str = ""
    deprecated_source: EventSource = EventSource()
    deprecated_first_timestamp: Time | None = None
    deprecated_last_timestamp: Time | None = None
    deprecated_count: Int32 = 0


def _event_v1_from_stored(event: CoreEvent) -> EventV1:
    return EventV1(
        metadata=event.metadata, **{name: getattr(event, core_name) for name, core_name in CORE_FIELD_NAMES.items()}
    )


def _event_v1_to_stored(event_v1: EventV1) -> CoreEvent:
    return CoreEvent(
        metadata=event_v1.metadata,
        **{core_name: getattr(event_v1, name) for name, core_name in CORE_FIELD_NAMES.items()},
    )


CORE_PATHS = {
    "involvedObject": "regarding",
    "reportingComponent": "reportingController",
    "message": "note",
    "source": "deprecatedSource",
}
"""Field of the core → field here, on the wire, where they differ in a path."""


def _validate_event_v1(event_v1: EventV1) -> Iterator[FieldError]:
    """Yield the errors of an event; an event of the core is checked as such, because clients may write it back."""
    for problem in check_core(_event_v1_to_stored(event_v1)):
        field, dot, rest = problem.path.partition(".")
        yield problem._replace(path=f"{CORE_PATHS.get(field, field)}{dot}{rest}")
    if event_v1.event_time is None and event_v1.deprecated_first_timestamp is not None:
        return
    if event_v1.event_time is None:
        yield FieldError("eventTime", "null", "a time is required", MISSING)
    elif parse_time(event_v1.event_time) is None:
        yield FieldError("eventTime", quoted(event_v1.event_time), "a time of RFC 3339 is accepted")
    if not event_v1.type:
        yield FieldError("type", '""', f"{NORMAL} or {WARNING} is required", MISSING)
    yield from _validate_series(event_v1.series)


def _validate_series(series: EventSeries | None) -> Iterator[FieldError]:
    if series is None:
        return
    if series.count < 2:
        yield FieldError("series.count", quoted(series.count), "should be at least 2")
    if parse_time(series.last_observed_time) is None:
        yield FieldError("series.lastObservedTime", quoted(series.last_observed_time), "a time is required", MISSING)


def _validate_event_v1_update(old: EventV1, new: EventV1) -> Iterator[FieldError]:
    """Yield the errors of an update, by the rules of the core: other fields may change, as clients of Kubernetes do."""
    for problem in immutable_in_core(_event_v1_to_stored(old), _event_v1_to_stored(new)):
        yield problem._replace(path=CORE_PATHS.get(problem.path, problem.path))


def _event_v1_fields(event_v1: EventV1) -> dict[str, str]:
    about = event_v1.regarding
    return {
        "regarding.kind": about.kind,
        "regarding.name": about.name,
        "regarding.namespace": about.namespace,
        "regarding.uid": about.uid,
        "regarding.apiVersion": about.api_version,
        "regarding.resourceVersion": about.resource_version,
        "regarding.fieldPath": about.field_path,
        "reason": event_v1.reason,
        "reportingController": event_v1.reporting_controller,
        "type": event_v1.type,
    }


EVENTS_V1 = Resource(
    type=EventV1,
    short_names=("ev",),
    columns=EVENT_COLUMNS,
    selectable_fields=_event_v1_fields,
    rules=KindRules(validate=_validate_event_v1, validate_update=_validate_event_v1_update),
    stored_as=Version(EVENTS, _event_v1_from_stored, _event_v1_to_stored),
    allow_create_on_update=True,
)
