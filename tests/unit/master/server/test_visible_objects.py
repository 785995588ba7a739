"""What a watch of projects shows when objects and rights change."""

from __future__ import annotations

import msgspec

from api.core.node import Namespace
from master.request_info import RequestInfo, parse_selection
from master.resources.namespaces import PROJECTS
from master.server.watch import VisibleObjects
from master.storage.interface import Record, WatchEvent
from tests.testbed.apiserver.changes import key_of
from tests.unit.master.examples import namespace


def record(name: str, revision: int = 1) -> Record:
    obj = namespace(name)
    return Record(key_of(obj), revision, msgspec.json.encode(obj), Namespace, obj)


def event(kind: str, name: str) -> WatchEvent:
    return WatchEvent(kind, record(name, 2), None if kind == "ADDED" else record(name))


def visible(*readable: str) -> tuple[VisibleObjects, set[str]]:
    """Return the objects of a watch, and the names that its user may read, which tests change."""
    names = set(readable)
    selection = parse_selection(RequestInfo(PROJECTS), {}, names.__contains__)
    return VisibleObjects(selection, names.__contains__), names


def kinds(*events: WatchEvent | None) -> list[str]:
    return [each.type if each is not None else "" for each in events]


def test_readable_objects_have_their_events_and_others_none() -> None:
    objects, _ = visible("red")
    types = ("ADDED", "MODIFIED", "DELETED")
    assert kinds(*(objects.translate(event(each, "red")) for each in types)) == list(types)
    assert kinds(*(objects.translate(event(each, "blue")) for each in types)) == ["", "", ""]


def test_deletion_is_sent_only_to_who_has_seen_the_object() -> None:
    objects, names = visible("red")
    names.add("blue")
    assert objects.translate(event("DELETED", "blue")) is None
    objects.add_readable(record("red"))
    names.clear()  # The bindings of a project are deleted before it is.
    assert kinds(objects.translate(event("DELETED", "red"))) == ["DELETED"]


def test_changes_of_rights_are_events_once() -> None:
    objects, names = visible()
    assert objects.review(record("red"), 5) is None
    names.add("red")
    assert kinds(objects.review(record("red"), 5), objects.review(record("red"), 6)) == ["ADDED", ""]
    assert kinds(objects.translate(event("MODIFIED", "red"))) == ["MODIFIED"]
    names.clear()
    lost = objects.review(record("red"), 7)
    assert lost is not None
    assert (lost.type, lost.record.object.metadata.resource_version) == ("DELETED", "7")
    assert not lost.record.object.metadata.annotations
    assert lost.record.object.metadata.uid == ""
    assert objects.review(record("red"), 8) is None


def test_a_change_tells_at_once_what_a_review_has_not_told_yet() -> None:
    objects, names = visible()
    names.add("red")
    assert kinds(objects.translate(event("MODIFIED", "red"))) == ["ADDED"]
    names.clear()
    lost = objects.translate(event("MODIFIED", "red"))
    assert lost is not None
    assert (lost.type, lost.record.object.metadata.creation_timestamp) == ("DELETED", None)
