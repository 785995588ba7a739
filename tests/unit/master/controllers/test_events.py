"""Events of the master, their validation and expiry."""

from __future__ import annotations

from dataclasses import replace as replace_fields
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from api.core.events import Event, EventSeries, EventSource, make_event, object_reference
from api.core.node import Namespace
from api.core.pod import Container, Pod, PodSpec
from api.validation.registry import check, check_update
from master import errors
from master.admission.chain import AdmissionChain
from master.admission.plugin import AdmissionPlugin, AdmissionRequest
from master.controllers import events, expiration
from master.controllers.actions import Create
from master.controllers.context import Lister
from master.controllers.pending_creates import PendingCreates
from master.controllers.runtime import CreateQueue
from master.controllers.workloads.pod_control import pod_from_template
from master.resources.deployments import ReplicaSet
from master.resources.events import EVENTS
from master.resources.pod_template import PodTemplateSpec
from master.resources.pods import PODS
from master.resources.scheme import STORED_TYPES, group_resource
from master.storage.interface import Transaction
from master.storage.sqlite import SQLiteStorage
from tests.unit.master.action_lines import NOW, lines
from tests.unit.master.controller_context import controller_context
from tests.unit.master.examples import meta, namespace, pod

PULLED = make_event(
    replace(object_reference(pod("web")), field_path="spec.containers{main}"),
    "Normal",
    "Pulled",
    "there ",
    EventSource(component="podlane-node-agent", host="n1"),
    NOW,
)


def test_event_name_has_object_and_time() -> None:
    assert PULLED.metadata.name == "web.64752550bf000"
    assert PULLED.metadata.namespace == "red"
    long = make_event(object_reference(pod("a" * 253)), "Normal", "R", "m", EventSource(), NOW)
    assert len(long.metadata.name) == 253
    assert list(check(long)) == []


def test_events_of_cluster_scoped_objects_are_in_default() -> None:
    about = object_reference(namespace("red"))
    assert about.kind == Namespace.KIND
    event = make_event(about, "Normal", "R", "m", EventSource(), NOW)
    assert event.metadata.namespace == "default"
    assert list(check(event)) == []


def test_event_table_row() -> None:
    later = NOW + timedelta(seconds=141)
    assert EVENTS.cells(PULLED, later) == (
        "2m21s", "Normal", "Pulled", "pod/web", "spec.containers{main}", "podlane-node-agent, n1", "there", "2m21s", 1,
        PULLED.metadata.name,
    )  # fmt: skip
    series = EventSeries(count=7, last_observed_time="2026-01-01T12:02:00.000000Z")
    modern = replace(
        PULLED, first_timestamp=None, last_timestamp=None, event_time="2026-01-01T12:00:00.000000Z", series=series
    )
    assert EVENTS.cells(modern, later)[0] == "21s"
    assert EVENTS.cells(modern, later)[7:9] == ("2m21s", 7)


def test_events_are_selectable_by_involved_object() -> None:
    fields = EVENTS.field_values(PULLED)
    assert fields["involvedObject.uid"] == "uid-web"
    assert fields["source"] == "podlane-node-agent"
    assert EVENTS.selectable_field_names >= {
        f"involvedObject.{name}" for name in ("kind", "name", "namespace", "uid", "fieldPath")
    }


@pytest.mark.parametrize(
    ("wrong", "path"),
    [
        (replace(PULLED, type="Loud"), "type"),
        (replace(PULLED, metadata=meta("e", namespace="blue")), "involvedObject.namespace"),
    ],
)
def test_invalid_event_is_rejected(wrong: Event, path: str) -> None:
    assert [problem.path for problem in check(wrong)] == [path]


def test_event_object_and_source_are_immutable() -> None:
    assert list(check_update(PULLED, replace(PULLED, count=2, message="again"))) == []
    stolen = replace(
        PULLED, source=EventSource(component="x", host="n2"), involved_object=object_reference(pod("other"))
    )
    assert [problem.path for problem in check_update(PULLED, stolen)] == ["involvedObject", "source"]


def test_events_expire_an_hour_after_their_last_occurrence() -> None:
    old = replace(PULLED, metadata=meta("old"), last_timestamp="2026-01-01T10:59:59Z")
    fresh = replace(PULLED, metadata=meta("fresh"), last_timestamp="2026-01-01T11:00:00Z")
    undated = replace(PULLED, metadata=meta("undated"), last_timestamp=None)
    assert lines(expiration.expired_events([old, fresh, undated], NOW)) == ["- Event old", "- Event undated"]


def test_scheduler_emits_events() -> None:
    objects = [events.scheduled(pod("a"), "n1", NOW).object, events.failed_scheduling(pod("b"), "no room", NOW).object]
    assert [(e.type, e.reason, e.message, e.source.component) for e in objects if isinstance(e, Event)] == [
        ("Normal", "Scheduled", "Successfully assigned red/a to n1", "default-scheduler"),
        ("Warning", "FailedScheduling", "no room", "default-scheduler"),
    ]


class Full(AdmissionPlugin):
    """A plugin that rejects every pod, and names it."""

    def mutate(self, request: AdmissionRequest, obj: Any, objects: Transaction) -> Any:
        if isinstance(obj, Pod):
            raise errors.forbidden(PODS, obj.metadata.name, "there is no room")
        return obj


async def test_the_same_failure_to_create_pods_is_counted(tmp_path: Path) -> None:
    storage = await SQLiteStorage.open(tmp_path / "store.db", STORED_TYPES)
    try:
        context, clock = controller_context(storage), iter(range(100))
        creation = replace_fields(context.creation, chain=AdmissionChain((Full(),)))
        lister = Lister(replace_fields(context, clock=lambda: NOW + timedelta(seconds=next(clock))))
        template = PodTemplateSpec(spec=PodSpec(containers=(Container(name="c", image="i"),)))
        web, other = (ReplicaSet(metadata=meta(name)) for name in ("web-5d4f", "other"))
        for owner in (web, web, other, web):
            queue = CreateQueue(creation, lister, Transaction(storage), PendingCreates())
            queue.create(Create(pod_from_template(template, owner), by="replicaset-controller"))
            await storage.write(*queue.transaction.changes)
        stored = [record.object for record in storage.list(group_resource(Event))]
        counts = {event.involved_object.name: event.count for event in stored}
        assert counts == {"web-5d4f": 3, "other": 1}
        (event,) = (event for event in stored if event.involved_object.name == "web-5d4f")
        assert event.message == 'Error creating: pods "web-5d4f-" is forbidden: there is no room'
        assert event.first_timestamp < event.last_timestamp
    finally:
        await storage.close()


def test_count_of_an_event_has_32_bits() -> None:
    assert events.repeated(replace(PULLED, count=2), PULLED).count == 3
    assert events.repeated(replace(PULLED, count=events.MAX_COUNT), PULLED).count == 2**31 - 1
