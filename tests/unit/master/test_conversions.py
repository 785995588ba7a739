"""Kinds that are another form of one that is stored."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from api.events import Event, EventSeries, EventSource
from api.value import ObjectReference
from master.conversions import seen, seen_event
from master.kinds import ALL, BY_NAME, STORED
from master.kinds.event_v1 import EVENT_V1, NAMES
from master.kinds.kind import AnyKind
from master.records import Event as Happened
from master.records import Record, key_of, stamped
from tests.unit.master.make import meta

OTHERS = [kind for kind in ALL if kind.conversion is not None]
TEXT = st.text(max_size=3)
TIMES = st.none() | st.just("2026-01-01T00:00:00.000000Z")
ABOUT = st.builds(ObjectReference, kind=TEXT, name=TEXT, uid=TEXT)
EVENTS = st.builds(
    Event,
    metadata=st.just(meta("e", namespace="red")),
    involved_object=ABOUT,
    related=st.none() | ABOUT,
    source=st.builds(EventSource, component=TEXT, host=TEXT),
    series=st.none() | st.builds(EventSeries, count=st.integers(0, 9), last_observed_time=TIMES),
    count=st.integers(0, 9),
    first_timestamp=TIMES,
    last_timestamp=TIMES,
    event_time=TIMES,
    **dict.fromkeys(("reason", "message", "type", "action", "reporting_component", "reporting_instance"), TEXT),
)


def test_every_field_of_an_event_has_its_place_in_the_other_form() -> None:
    base = {"api_version", "kind", "metadata"}
    assert set(Event.__struct_fields__) - base == set(NAMES.values())
    assert set(EVENT_V1.type.__struct_fields__) - base == set(NAMES)


@given(EVENTS)
def test_an_event_is_the_same_after_the_way_there_and_back(item: Event) -> None:
    assert EVENT_V1.kept(EVENT_V1.seen(item)) == item


@pytest.mark.parametrize("kind", OTHERS, ids=lambda kind: f"{kind.plural}.{kind.group}")
def test_another_form_is_of_a_kind_that_is_stored_and_in_the_same_place(kind: AnyKind) -> None:
    stored = BY_NAME[kind.stored]
    assert stored in STORED
    assert stored.namespaced == kind.namespaced
    assert kind.type.API_VERSION != stored.type.API_VERSION
    assert kind.kept(kind.type()) == stored.type()


def record(item: Event, revision: int) -> Record:
    kept = stamped(item, revision)
    return Record(key_of(kept), revision, msgspec.json.encode(kept), Event, kept)


def test_what_is_kept_is_seen_with_its_kind_its_name_and_its_revision() -> None:
    about = ObjectReference(name="web")
    item = Event(metadata=meta("e", namespace="red"), involved_object=about, message="hello", count=1)
    before, after = record(item, 3), record(msgspec.structs.replace(item, count=2), 4)
    told = seen_event(EVENT_V1, Happened("MODIFIED", after, before))
    assert msgspec.json.decode(told.record.data) == {
        "apiVersion": "events.k8s.io/v1",
        "kind": "Event",
        "metadata": msgspec.to_builtins(after.object.metadata),
        "regarding": {"name": "web"},
        "note": "hello",
        "deprecatedSource": {},
        "deprecatedCount": 2,
    }
    assert (told.type, told.record.revision, told.record.key) == ("MODIFIED", 4, after.key)
    assert told.previous is not None
    assert told.previous.object.deprecated_count == 1
    assert seen(BY_NAME["Event"], after) is after
