"""Events of the node agent and their aggregation."""

from __future__ import annotations

from datetime import timedelta

import pytest

from node_agent.events import (
    COMBINED,
    MAX_SIMILAR,
    RATE_LIMIT,
    SIMILAR_WINDOW,
    aggregate,
    event_key,
    is_recent,
    new_event,
    pod_reference,
    repeated_event,
)
from tests.unit.node_agent.examples import NOW, UID, make_pod

WEB = make_pod()


def test_event_names_pod_and_container() -> None:
    reference, part = pod_reference(WEB, ""), pod_reference(WEB, "main")
    assert (reference.kind, reference.namespace, reference.name, reference.uid, reference.field_path) == (
        "Pod",
        "red",
        "web",
        UID,
        "",
    )
    assert part.field_path == "spec.containers{main}"
    longer = make_pod(spec="  initContainers: [{name: before, image: toolbox}]")
    assert pod_reference(longer, "before").field_path == "spec.initContainers{before}"


@pytest.mark.parametrize(("reason", "kind"), [("Started", "Normal"), ("BackOff", "Warning"), ("Failed", "Warning")])
def test_event_type_follows_its_reason(reason: str, kind: str) -> None:
    event = new_event(pod_reference(WEB, "main"), reason, "words", "node-1", NOW)
    assert (event.type, event.count, event.source.host) == (kind, 1, "node-1")


def test_image_back_off_event_is_normal() -> None:
    event = new_event(pod_reference(WEB, "main"), "BackOff", 'Back-off pulling image "x"', "node-1", NOW)
    assert (event.type, event.reason) == ("Normal", "BackOff")


def test_repeated_event_is_counted_and_keeps_its_first_time() -> None:
    event = new_event(pod_reference(WEB, ""), "BackOff", "words", "node-1", NOW)
    twice = repeated_event(event, "words", NOW + timedelta(minutes=1))
    assert (twice.count, twice.first_timestamp, twice.last_timestamp) == (
        2,
        event.first_timestamp,
        "2026-01-31T12:01:00Z",
    )
    assert twice.metadata == event.metadata
    assert is_recent(twice, NOW + timedelta(minutes=60))
    assert not is_recent(twice, NOW + timedelta(minutes=61))


def test_similar_events_are_aggregated() -> None:
    similar, messages = None, []
    for number in range(MAX_SIMILAR + 3):
        similar, message = aggregate(similar, f"try {number}", NOW)
        messages.append(message)
    assert messages[:MAX_SIMILAR] == [f"try {number}" for number in range(MAX_SIMILAR)]
    assert messages[MAX_SIMILAR:] == [f"{COMBINED}try {number}" for number in range(MAX_SIMILAR, MAX_SIMILAR + 3)]
    keys = {event_key(pod_reference(WEB, ""), "FailedMount", message) for message in messages[MAX_SIMILAR:]}
    assert len(keys) == 1
    assert aggregate(similar, "try 0", NOW)[1] == "try 0", "what was told before goes on as it was"
    assert aggregate(similar, "much later", NOW + SIMILAR_WINDOW * 2)[1] == "much later"


REFILL = timedelta(minutes=5)


def test_events_of_one_object_are_limited_by_burst_and_rate() -> None:
    allowance, messages = None, 0
    for _ in range(100):
        allowance, allowed = RATE_LIMIT.take(allowance, NOW.timestamp())
        messages += allowed
    assert messages == RATE_LIMIT.burst
    allowance, allowed = RATE_LIMIT.take(allowance, (NOW + REFILL).timestamp())
    assert allowed
    allowance, allowed = RATE_LIMIT.take(allowance, (NOW + REFILL).timestamp())
    assert not allowed
    allowance, allowed = RATE_LIMIT.take(allowance, (NOW - REFILL).timestamp())
    assert not allowed, "a clock that was set back gives nothing"
