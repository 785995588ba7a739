"""What the master itself tells in Events, and when Events are forgotten. Pure."""

from __future__ import annotations

import datetime
from collections.abc import Iterable, Iterator

import msgspec

from api.events import NORMAL, WARNING, Event, EventSource, event, reference
from api.objects import Object, Pod
from master.controllers import Drop, Make
from master.kinds.kind import parse_time
from master.scheduler import SCHEDULER

EVENT_LIFE = datetime.timedelta(hours=1)


def scheduled(pod: Pod, node: str, now: datetime.datetime) -> Make:
    """The pod has got a node."""
    words = f"Successfully assigned {pod.metadata.namespace}/{pod.metadata.name} to {node}"
    return Make(event(reference(pod), NORMAL, "Scheduled", words, EventSource(component=SCHEDULER), now))


def unscheduled(pod: Pod, sentence: str, now: datetime.datetime) -> Make:
    """No node takes the pod."""
    return Make(event(reference(pod), WARNING, "FailedScheduling", sentence, EventSource(component=SCHEDULER), now))


def lost(node: Object, now: datetime.datetime) -> Make:
    """Nothing was heard of the node for its grace period."""
    about = msgspec.structs.replace(reference(node), uid=node.metadata.name)
    words = f"Node {node.metadata.name} status is now: NodeNotReady"
    return Make(event(about, NORMAL, "NodeNotReady", words, EventSource(component="node-controller"), now))


def unready(pod: Object, now: datetime.datetime) -> Make:
    """Nothing is heard of the node of the pod."""
    source = EventSource(component="node-controller")
    return Make(event(reference(pod), WARNING, "NodeNotReady", "Node is not ready", source, now))


def old_events(events: Iterable[Event], wall: datetime.datetime) -> Iterator[Drop]:
    """Events of which nothing was heard for an hour."""
    for item in events:
        heard = parse_time(item.last_timestamp) or parse_time(item.metadata.creation_timestamp)
        if heard is None or wall - heard > EVENT_LIFE:
            yield Drop(item)
