"""The cache of each pod's containers, and the events that invalidate it (kubelet: PLEG, pod cache)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from node_agent.docker.client import DockerClient
from node_agent.metrics import RELIST_DURATION
from node_agent.runtime.container import ContainerEvent, RuntimePod, group_containers
from reconcile.listeners import Listeners
from reconcile.loop import Loop, LoopTiming

RELIST_SECONDS = 60.0


@dataclass(slots=True)
class _Entry:
    pod: RuntimePod = field(default_factory=RuntimePod)
    is_valid: bool = False
    events_during_read: list[ContainerEvent] | None = None
    """Events since the request to Docker that is in progress. None if none is."""

    def apply_event(self, event: ContainerEvent) -> None:
        container = next((container for container in self.pod.all if container.id == event.container_id), None)
        if not event.is_reflected_in(container):
            self.is_valid = False


class PodCache:
    """The containers of each pod as Docker reported them last, by pod UID.

    An entry becomes invalid after a Docker event, after changes by the pod's worker, and when the relist finds a
    difference.
    """

    def __init__(self, docker: DockerClient) -> None:
        self._docker = docker
        self._entries: dict[str, _Entry] = {}

    @property
    def uids(self) -> Iterable[str]:
        """The UIDs of all pods with an entry."""
        return tuple(self._entries)

    async def get(self, uid: str) -> RuntimePod:
        """Return all containers of a pod, running or not. Read them from Docker if the entry is invalid.

        Raises NotReady, Refused, Gone as Docker does.
        """
        entry = self._entries.setdefault(uid, _Entry())
        if not entry.is_valid:
            entry.is_valid = True  # Set before the request, so that an event that arrives meanwhile invalidates it.
            events: list[ContainerEvent] = []
            entry.events_during_read = events
            try:
                entry.pod = group_containers(await self._docker.list_pod_containers(uid))
            except BaseException:
                entry.is_valid = False
                raise
            finally:
                entry.events_during_read = None
            for event in events:
                entry.apply_event(event)
        return entry.pod

    def peek(self, uid: str) -> RuntimePod:
        """Return the containers as they were read last, even if the entry is invalid."""
        entry = self._entries.get(uid)
        return RuntimePod() if entry is None else entry.pod

    def invalidate(self, uid: str) -> None:
        """Read the pod's containers again on the next `get`."""
        entry = self._entries.get(uid)
        if entry is not None:
            entry.is_valid = False

    def apply_event(self, event: ContainerEvent) -> None:
        """Read the containers of the event's pod again on the next `get`, unless the event reports a known state.

        An event during a request to Docker is compared with its result.
        """
        entry = self._entries.get(event.pod_uid)
        if entry is None:
            return
        if entry.events_during_read is not None:
            entry.events_during_read.append(event)
        else:
            entry.apply_event(event)

    def invalidate_all(self) -> None:
        """Invalidate every entry, because events may have been missed."""
        for entry in self._entries.values():
            entry.is_valid = False

    def differs(self, uid: str, states: Mapping[str, str]) -> bool:
        """Return whether a valid entry disagrees with these states by container ID."""
        entry = self._entries.get(uid)
        if entry is None or not entry.is_valid:
            return False
        return {container.id: container.state for container in entry.pod.all} != states

    def forget(self, uid: str) -> None:
        """Remove the entry of a pod that is terminated."""
        self._entries.pop(uid, None)


class Pleg:
    """Invalidates cache entries and wakes pod workers when containers change.

    Changes come from Docker's event stream and from a list of all containers every RELIST_SECONDS, which finds changes
    that the stream has missed. `wake` wakes the worker of a pod. `containers_changed` notifies after each change.
    `connected` notifies when the stream begins, also after it broke, because events may have been missed.
    """

    def __init__(self, docker: DockerClient, cache: PodCache, wake: Callable[[str], None]) -> None:
        self.containers_changed = Listeners()
        self.connected = Listeners()
        self.loop = Loop("relist", self.relist, LoopTiming(resync=RELIST_SECONDS))
        self._docker = docker
        self._cache = cache
        self._wake = wake

    async def watch_events(self) -> None:
        """Follow Docker's event stream until cancelled."""
        await self._docker.watch_events(self._container_changed, self._stream_connected)

    async def relist(self) -> None:
        """Compare the cache with a list of all containers. Raises DriverError."""
        with RELIST_DURATION.time():
            states: defaultdict[str, dict[str, str]] = defaultdict(dict)
            for container in await self._docker.list_containers():
                states[container.pod_uid][container.id] = container.state
            for uid in self._cache.uids:
                if self._cache.differs(uid, states[uid]):
                    self._cache.invalidate(uid)
                    self._notify(uid)

    def _container_changed(self, event: ContainerEvent) -> None:
        self._cache.apply_event(event)
        # Another reader of the cache may have read the change. The worker has not seen it.
        self._notify(event.pod_uid)

    def _notify(self, uid: str) -> None:
        self._wake(uid)
        self.containers_changed.notify()

    def _stream_connected(self) -> None:
        self._cache.invalidate_all()
        self.connected.notify()
