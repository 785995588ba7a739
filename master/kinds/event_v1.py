"""Event of events.k8s.io: the events of the core in their newer form; both show, and write, the same objects. Pure."""

from __future__ import annotations

import datetime
from collections.abc import Iterator

from api.core.events import NORMAL, WARNING, EventSeries, EventSource
from api.core.events import Event as CoreEvent
from api.meta.schema import MISSING, FieldError, quoted
from api.meta.types import Object, ObjectReference
from api.validation.config import check_event as check_core
from api.validation.config import immutable_event as immutable_in_core
from api.validation.registry import KindRules
from master.kinds import event
from master.kinds.kind import Conversion, Kind, parse_time

NAMES = {
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


class Event(Object, frozen=True):
    """Something that happened to `regarding` at `eventTime`, told by `reportingController`; `series` if it goes on.

    The fields `deprecated...` are those of events that were written in the form of the core.
    """

    API_VERSION = "events.k8s.io/v1"
    KIND = "Event"

    event_time: str | None = None
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
    deprecated_first_timestamp: str | None = None
    deprecated_last_timestamp: str | None = None
    deprecated_count: int = 0


def _seen(item: CoreEvent) -> Event:
    return Event(metadata=item.metadata, **{here: getattr(item, there) for here, there in NAMES.items()})


def _kept(item: Event) -> CoreEvent:
    return CoreEvent(metadata=item.metadata, **{there: getattr(item, here) for here, there in NAMES.items()})


WORDS = {
    "involvedObject": "regarding",
    "reportingComponent": "reportingController",
    "message": "note",
    "source": "deprecatedSource",
}
"""Field of the core → field here, on the wire, where they differ in a path."""


def _check(item: Event) -> Iterator[FieldError]:
    """An event of the core may be shown here and written again as it is, so it has to be good as one of those only."""
    for problem in check_core(_kept(item)):
        field, dot, rest = problem.path.partition(".")
        yield problem._replace(path=f"{WORDS.get(field, field)}{dot}{rest}")
    if item.event_time is None and item.deprecated_first_timestamp is not None:
        return
    if item.event_time is None:
        yield FieldError("eventTime", "null", "a time is required", MISSING)
    elif parse_time(item.event_time) is None:
        yield FieldError("eventTime", quoted(item.event_time), "a time of RFC 3339 is accepted")
    if not item.type:
        yield FieldError("type", '""', f"{NORMAL} or {WARNING} is required", MISSING)
    yield from _check_series(item.series)


def _check_series(series: EventSeries | None) -> Iterator[FieldError]:
    if series is None:
        return
    if series.count < 2:
        yield FieldError("series.count", quoted(series.count), "should be at least 2")
    if parse_time(series.last_observed_time) is None:
        yield FieldError("series.lastObservedTime", quoted(series.last_observed_time), "a time is required", MISSING)


def _immutable(old: Event, new: Event) -> Iterator[FieldError]:
    """As in the core: what else an event says may be said better later, as clients of the reference do."""
    for problem in immutable_in_core(_kept(old), _kept(new)):
        yield problem._replace(path=WORDS.get(problem.path, problem.path))


def _cells(item: Event, now: datetime.datetime) -> tuple[object, ...]:
    return event.cells(_kept(item), now)


def _fields(item: Event) -> dict[str, str]:
    about = item.regarding
    return {
        "regarding.kind": about.kind,
        "regarding.name": about.name,
        "regarding.namespace": about.namespace,
        "regarding.uid": about.uid,
        "regarding.apiVersion": about.api_version,
        "regarding.resourceVersion": about.resource_version,
        "regarding.fieldPath": about.field_path,
        "reason": item.reason,
        "reportingController": item.reporting_controller,
        "type": item.type,
    }


EVENT_V1 = Kind(
    type=Event,
    plural="events",
    singular="event",
    namespaced=True,
    short=("ev",),
    columns=event.COLUMNS,
    cells=_cells,
    fields=_fields,
    own_rules=KindRules(check=_check, immutable=_immutable),
    conversion=Conversion(event.EVENT, _seen, _kept),
    made_by_update=True,
)
