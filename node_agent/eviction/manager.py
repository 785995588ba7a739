"""Observes the signals, reclaims disk, evicts pods."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import datetime, timedelta
from pathlib import Path

from api.core.pod import Pod
from node_agent.clock import steady_clock
from node_agent.config import Settings
from node_agent.docker.client import DockerClient
from node_agent.event_recorder import EventRecorder
from node_agent.eviction import ranking, thresholds
from node_agent.eviction.thresholds import NodePressure, SignalObservation
from node_agent.pods.worker import PodWorker
from node_agent.stats import collector
from node_agent.stats.disk import DiskUsageScanner, filesystem_stats
from node_agent.volumes.paths import is_in_memory
from reconcile.errors import NotReady, os_errors_as
from reconcile.listeners import Listeners
from reconcile.loop import Loop, LoopTiming, containing_bugs


def observe_signals(state_dir: str, image_dir: str) -> dict[str, SignalObservation]:
    """Every signal of `eviction.SIGNALS`. Raises NotReady."""
    node, images = filesystem_stats(state_dir), filesystem_stats(image_dir)
    return {
        "memory.available": _memory_signal(),
        "nodefs.available": SignalObservation(node.available, node.capacity),
        "nodefs.inodesFree": SignalObservation(node.inodes_free, node.inodes),
        "imagefs.available": SignalObservation(images.available, images.capacity),
        "imagefs.inodesFree": SignalObservation(images.inodes_free, images.inodes),
        "pid.available": _pid_signal(),
    }


def _memory_signal() -> SignalObservation:
    """All but the working set: what is free, and what the page cache would give back first.

    The root of cgroup v2 has no figures of its own, so that they come from /proc/meminfo, for both versions.
    """
    with os_errors_as(NotReady, "/proc/meminfo"):
        rows = (line.split() for line in Path("/proc/meminfo").read_text().splitlines())
        kib = {row[0].rstrip(":"): int(row[1]) for row in rows}
    return SignalObservation((kib["MemFree"] + kib["Inactive(file)"]) * 1024, kib["MemTotal"] * 1024)


def _pid_signal() -> SignalObservation:
    with os_errors_as(NotReady, "/proc"):
        most = min(int(Path(f"/proc/sys/kernel/{name}").read_text()) for name in ("pid_max", "threads-max"))
        running = int(Path("/proc/loadavg").read_text().split()[3].partition("/")[2])
    return SignalObservation(most - running, most)


log = logging.getLogger(__name__)

CHECK_SECONDS = 10.0
CLEANUP_CHECK_SECONDS = 1.0
"""Time between two looks while a pod is being cleared away: what comes next waits for that, and not for longer."""

CLEANUP_TIMEOUT = timedelta(seconds=30)
"""How long the next pod is spared while the one before it is being cleared away."""


class EvictionManager:
    """Evicts pods when the node runs short of a resource, or when a pod exceeds its disk limits.

    `evictable` returns the workers of the pods that may be evicted. `reclaim` are functions that free disk space which
    no pod needs. `pressure` gets the pressure of the node; `changed` notifies when it is another one.
    """

    def __init__(
        self,
        *,
        settings: Settings,
        docker: DockerClient,
        disks: DiskUsageScanner,
        evictable: Callable[[], Mapping[str, PodWorker]],
        reclaim: Sequence[Callable[[], Awaitable[None]]],
        pressure: NodePressure,
        events: EventRecorder,
    ) -> None:
        self.changed = Listeners()
        self._docker = docker
        self._disks = disks
        self._evictable = evictable
        self._reclaim = reclaim
        self._pressure = pressure
        self._events = events
        self._state_dir = settings.state_dir
        soft = thresholds.parse_soft_thresholds(settings.eviction_soft, settings.eviction_soft_grace_period)
        self._limits = (*thresholds.parse_thresholds(settings.eviction_hard), *soft)
        self._most_grace = settings.eviction_max_pod_grace_period
        self._transition = timedelta(seconds=settings.eviction_pressure_transition_seconds)
        self._last: dict[str, datetime] = {}
        self._since: dict[thresholds.Threshold, datetime] = {}
        self._going: tuple[PodWorker, datetime] | None = None
        self.loops = (
            Loop("pressure", containing_bugs("pressure", self.relieve), LoopTiming(resync=CHECK_SECONDS)),
            Loop(
                "disk limits",
                containing_bugs("disk limits", self.enforce),
                LoopTiming(resync=settings.disk_scan_seconds),
            ),
        )

    async def relieve(self) -> None:
        """Look at the node's resources; free what nobody needs, and send one pod away if that is not enough."""
        if self._is_waiting():
            self._look_again(CLEANUP_CHECK_SECONDS)
            return
        seen = await self._observe()
        low = self._due(thresholds.thresholds_met(self._limits, seen))
        if low:
            resource = thresholds.SIGNALS[low[0].signal][0]
            self._events.node_event("EvictionThresholdMet", f"Attempting to reclaim {resource}")
        if any(thresholds.SIGNALS[one.signal][1] == thresholds.DISK for one in low):
            for free_disk in self._reclaim:
                await free_disk()
            seen = await self._observe()
            low = thresholds.thresholds_met(low, seen)
        if not low:
            return
        verdict = ranking.select_pod(low, seen, await self._usages(lambda _: True), self._most_grace)
        if verdict is None:
            log.warning("the node is short of something and no pod may be evicted", extra={"signal": low[0].signal})
        else:
            self._evict(verdict)
            self._look_again(CLEANUP_CHECK_SECONDS)

    async def enforce(self) -> None:
        """Send every pod away that takes more disk than it may."""
        for verdict in ranking.local_storage_evictions(await self._usages(ranking.has_disk_limits)):
            self._evict(verdict)

    def _due(self, low: tuple[thresholds.Threshold, ...]) -> tuple[thresholds.Threshold, ...]:
        """Of what is too low that for which somebody has to go now; the next look is not later than needed."""
        now = steady_clock()
        self._note(low, now)
        self._since = thresholds.thresholds_first_observed(self._since, low, now)
        next_due = thresholds.next_threshold_due(self._since, now)
        if next_due is not None:
            self._look_again((next_due - now).total_seconds())
        return thresholds.due_thresholds(self._since, now)

    def _look_again(self, seconds: float) -> None:
        asyncio.get_running_loop().call_later(seconds, self.loops[0].wake)

    def _note(self, low: tuple[thresholds.Threshold, ...], now: datetime) -> None:
        self._last = thresholds.conditions_last_observed(self._last, low, now)
        pressure = thresholds.node_pressure(self._last, now, self._transition)
        if pressure != self._pressure.current:
            self._pressure.current = pressure
            signals = " ".join(one.signal for one in low)
            log.warning("the node's pressure has changed", extra={"pressure": pressure, "signals": signals})
            self.changed.notify()

    def _is_waiting(self) -> bool:
        """Whether the pod before has not given back yet what it had."""
        if self._going is None:
            return False
        worker, since = self._going
        return not worker.cleaned_up and steady_clock() - since < CLEANUP_TIMEOUT

    def _evict(self, verdict: ranking.Eviction) -> None:
        worker = self._evictable().get(verdict.uid)
        if worker is not None:
            log.warning("evicting", extra={"uid": verdict.uid, "why": verdict.message})
            self._going = worker, steady_clock()
            worker.evict(verdict.message, verdict.grace)

    async def _observe(self) -> Mapping[str, thresholds.SignalObservation]:
        images = await self._docker.root_dir()
        return await asyncio.to_thread(observe_signals, self._state_dir, images)

    async def _usages(self, matters: Callable[[Pod], bool]) -> list[ranking.PodUsage]:
        return [await self._usage(worker.pod) for worker in self._evictable().values() if matters(worker.pod)]

    async def _usage(self, pod: Pod) -> ranking.PodUsage:
        found = await self._docker.list_pod_containers(pod.metadata.uid)
        taken = await self._disks.scan(pod, found)
        on_disk = {one.name for one in pod.spec.volumes if one.empty_dir is not None and not is_in_memory(one)}
        volumes = {name: row for name, row in taken.volumes.items() if name in on_disk}

        def look() -> ranking.PodUsage:
            memory: dict[str, int] = {}
            disk: dict[str, int] = {}
            for one in found:
                memory[one.name] = memory.get(one.name, 0) + (collector.working_set_bytes(one.pid) if one.pid else 0)
                rows = (taken.rootfs.get(one.id), taken.logs.get(one.id))
                disk[one.name] = disk.get(one.name, 0) + sum(row.size for row in rows if row is not None)
            return ranking.PodUsage(
                pod,
                processes=sum(collector.task_count(one.pid) for one in found if one.pid),
                inodes=sum(row.inodes for row in (*volumes.values(), *taken.rootfs.values())),
                container_memory=memory,
                container_disk=disk,
                volumes={name: row.size for name, row in volumes.items()},
            )

        return await asyncio.to_thread(look)
