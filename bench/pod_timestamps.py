"""When things happened to pods, as Docker's events and the master's watch tell it, in seconds since 1970."""

from __future__ import annotations

import asyncio
import threading
import time
from types import TracebackType
from typing import Any, Self

import docker

from api.client.client import Client, Event
from api.core.pod import Pod

PATIENCE_SECONDS = 120.0
POD_NAME, KIND = "io.kubernetes.pod.name", "io.kubernetes.docker.type"


class Moments:
    """The first time of each thing; waiting for one is possible from any thread."""

    def __init__(self) -> None:
        self._at: dict[str, float] = {}
        self._changed = threading.Condition()

    def note(self, what: str, at: float) -> None:
        """Record the time of an event. Only the first time counts."""
        with self._changed:
            self._at.setdefault(what, at)
            self._changed.notify_all()

    def wait(self, what: str) -> float:
        """Wait for an event, and return its time. Raises TimeoutError."""
        with self._changed:
            if not self._changed.wait_for(lambda: what in self._at, PATIENCE_SECONDS):
                raise TimeoutError(f"{what}: not within {PATIENCE_SECONDS:.0f} s")
            return self._at[what]


class Docked:
    """Starts of containers: by their id, and of the containers of pods by the name of the pod, too."""

    def __init__(self, socket: str) -> None:
        self._moments = Moments()
        self._client: Any = docker.APIClient(base_url=f"unix://{socket}", version="1.41")
        self._events = self._client.events(decode=True, filters={"type": "container", "event": ["start"]})
        self._thread = threading.Thread(target=self._listen)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, _: type[BaseException] | None, __: BaseException | None, ___: TracebackType | None) -> None:
        self._events.close()
        self._thread.join()
        self._client.close()

    def wait(self, what: str) -> float:
        """Wait for the start of a container, or of the pod's container, and return its time. Raises TimeoutError."""
        return self._moments.wait(what)

    def _listen(self) -> None:
        for event in self._events:
            at, marks = event["timeNano"] / 1e9, event["Actor"]["Attributes"]
            self._moments.note(event["Actor"]["ID"], at)
            if marks.get(KIND) == "container":
                self._moments.note(marks[POD_NAME], at)


class Watched:
    """Pods as the master shows them: when each was bound, was Running, was gone."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._at: dict[tuple[str, str], float] = {}
        self._changed = asyncio.Condition()

    async def follow(self) -> None:
        """Watch until cancelled. The master ends a watch after some time."""
        revision = (await self._client.list(Pod)).metadata.resource_version
        while True:
            async for event in self._client.watch(Pod, revision):
                revision = event.object.metadata.resource_version
                async with self._changed:
                    self._take(event)
                    self._changed.notify_all()

    def _take(self, event: Event[Pod]) -> None:
        name, now = event.object.metadata.name, time.time()
        if event.type == "DELETED":
            self._at.setdefault((name, "gone"), now)
        elif event.type != "BOOKMARK" and event.object.spec.node_name:
            self._at.setdefault((name, "bound"), now)
            self._at.setdefault((name, event.object.status.phase), now)

    async def wait(self, name: str, what: str) -> float:
        """Return the time at which a pod was `bound`, `Running` or `gone`. Raises TimeoutError."""
        async with asyncio.timeout(PATIENCE_SECONDS), self._changed:
            await self._changed.wait_for(lambda: (name, what) in self._at)
            return self._at[name, what]
