"""Event: something that happened to an object. Pure."""

from __future__ import annotations

import datetime

from api.core.events import Event
from master.kinds.kind import Column, Kind, age


def _first(item: Event, now: datetime.datetime) -> str:
    return age(item.first_timestamp or item.event_time, now)


def _last(item: Event, now: datetime.datetime) -> str:
    latest = (item.series and item.series.last_observed_time) or item.last_timestamp
    return age(latest, now) if latest else _first(item, now)


def _source(item: Event) -> str:
    component = item.source.component or item.reporting_component
    return ", ".join(part for part in (component, item.source.host or item.reporting_instance) if part)


def cells(item: Event, now: datetime.datetime) -> tuple[object, ...]:
    """The values for COLUMNS."""
    about = item.involved_object
    return (
        _last(item, now),
        item.type,
        item.reason,
        f"{about.kind.lower()}/{about.name}",
        about.field_path,
        _source(item),
        item.message.strip(),
        _first(item, now),
        (item.series and item.series.count) or item.count or 1,
        item.metadata.name,
    )


def _fields(item: Event) -> dict[str, str]:
    about = item.involved_object
    return {
        "involvedObject.kind": about.kind,
        "involvedObject.name": about.name,
        "involvedObject.namespace": about.namespace,
        "involvedObject.uid": about.uid,
        "involvedObject.apiVersion": about.api_version,
        "involvedObject.resourceVersion": about.resource_version,
        "involvedObject.fieldPath": about.field_path,
        "reason": item.reason,
        "reportingComponent": item.reporting_component,
        "source": item.source.component or item.reporting_component,
        "type": item.type,
    }


COLUMNS = (
    Column("Last Seen", "Time since it happened last."),
    Column("Type", "Normal, or Warning for what somebody should look at."),
    Column("Reason", "What happened, in one word."),
    Column("Object", "To what it happened."),
    Column("Subobject", "To which part of the object.", wide=True),
    Column("Source", "Who tells, and on which node.", wide=True),
    Column("Message", "What happened, in a sentence."),
    Column("First Seen", "Time since it happened first.", wide=True),
    Column("Count", "How often it happened.", wide=True),
    Column("Name", "Name of the event.", format="name", wide=True),
)

EVENT = Kind(
    type=Event,
    plural="events",
    singular="event",
    namespaced=True,
    short=("ev",),
    columns=COLUMNS,
    cells=cells,
    fields=_fields,
    made_by_update=True,
)
