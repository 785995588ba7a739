"""An event recorder that keeps the events instead of writing them to an API server."""

from __future__ import annotations

from api.core.pod import Pod
from api.meta.types import ObjectReference
from node_agent.event_recorder import EventRecorder


class FakeEventRecorder(EventRecorder):
    """Keeps every event: `objects` are the objects that they are about, `events` are (reason, message, container)."""

    def __init__(self) -> None:
        self.objects: list[ObjectReference] = []
        self.events: list[tuple[str, str, str]] = []

    def pod_event(self, pod: Pod, reason: str, message: str, container: str = "") -> None:
        self.events.append((reason, message, container))

    def node_event(self, reason: str, message: str) -> None:
        self.events.append((reason, message, ""))

    def event(self, reference: ObjectReference, reason: str, message: str) -> None:
        self.objects.append(reference)
        self.events.append((reason, message, ""))
