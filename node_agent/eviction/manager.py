"""Observes the signals, reclaims disk, evicts pods."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from pathlib import Path

from api.core.pod import Pod
from node_agent.clock import steady_clock
from node_agent.config import Settings
from node_agent.docker.client import DockerClient
from node_agent.event_recorder import EventRecorder
from node_agent.eviction.ranking import Eviction, PodUsage, has_disk_limits, local_storage_evictions, select_pod
from node_agent.eviction.thresholds import (
    DISK,
    SIGNALS,
    NodePressure,
    SignalObservation,
    Threshold,
    conditions_last_observed,
    due_thresholds,
    next_threshold_due,
    node_pressure,
    parse_soft_thresholds,
    parse_thresholds,
    thresholds_first_observed,
    thresholds_met,
)
from node_agent.pods.worker import PodWorker
from node_agent.runtime.container import RuntimeContainer
from node_agent.stats.collector import task_count, working_set_bytes
from node_agent.stats.disk import DiskUsageScanner, filesystem_stats
from node_agent.stats.model import PodDiskUsage
from node_agent.volumes.paths import is_in_memory
from reconcile.errors import DriverError, NotReady, os_errors_as
from reconcile.listeners import Listeners
from reconcile.loop import Loop, LoopTiming, retry_unexpected_errors

log = logging.getLogger(__name__)

CHECK_SECONDS = 10.0
CLEANUP_CHECK_SECONDS = 1.0
"""Time between two checks while an evicted pod is cleaned up."""

CLEANUP_TIMEOUT = timedelta(seconds=30)
"""Time after which another pod may be evicted although the last one is not cleaned up."""


class EvictionManager:
    """Evicts pods when the node runs short of a resource, or when a pod exceeds its disk limits.

    `evictable` returns the workers of the pods that may be evicted. `reclaim` are functions that free disk space which
    no pod needs. The manager writes the node's pressure to `pressure`. `changed` notifies after each change of it.
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
        soft_thresholds = parse_soft_thresholds(settings.eviction_soft, settings.eviction_soft_grace_period)
        self._thresholds = (*parse_thresholds(settings.eviction_hard), *soft_thresholds)
        self._max_grace = settings.eviction_max_pod_grace_period
        self._transition = timedelta(seconds=settings.eviction_pressure_transition_seconds)
        self._conditions_last_observed: dict[str, datetime] = {}
        self._thresholds_first_observed: dict[Threshold, datetime] = {}
        self._evicting: tuple[PodWorker, datetime] | None = None
        self._pressure_loop = Loop(
            "pressure", retry_unexpected_errors("pressure", self.synchronize), LoopTiming(resync=CHECK_SECONDS)
        )
        self.loops = (
            self._pressure_loop,
            Loop(
                "disk limits",
                retry_unexpected_errors("disk limits", self.enforce_disk_limits),
                LoopTiming(resync=settings.disk_scan_seconds),
            ),
        )

    async def synchronize(self) -> None:
        """Check the signals. If a threshold requires it, reclaim disk, and evict one pod if that is not enough."""
        if self._is_cleaning_up():
            self._check_again_in(CLEANUP_CHECK_SECONDS)
            return
        observations = await self._observe_signals()
        thresholds = self._due_thresholds(thresholds_met(self._thresholds, observations))
        if thresholds:
            resource = SIGNALS[thresholds[0].signal].resource
            self._events.node_event("EvictionThresholdMet", f"Attempting to reclaim {resource}")
        if any(SIGNALS[threshold.signal].condition == DISK for threshold in thresholds):
            for free_disk in self._reclaim:
                await free_disk()
            observations = await self._observe_signals()
            thresholds = thresholds_met(thresholds, observations)
        if not thresholds:
            return
        usages = await self._pod_usages([worker.pod for worker in self._evictable().values()])
        eviction = select_pod(thresholds, observations, usages, self._max_grace)
        if eviction is None:
            log.warning("node under pressure, and no pod may be evicted", extra={"signal": thresholds[0].signal})
        else:
            self._evict(eviction)
            self._check_again_in(CLEANUP_CHECK_SECONDS)

    async def enforce_disk_limits(self) -> None:
        """Evict every pod that exceeds one of its disk limits."""
        limited = [worker.pod for worker in self._evictable().values() if has_disk_limits(worker.pod)]
        for pod in limited:
            for eviction in local_storage_evictions(await self._pod_usages([pod])):
                self._evict(eviction)

    def _due_thresholds(self, met_thresholds: tuple[Threshold, ...]) -> tuple[Threshold, ...]:
        """Return the thresholds that require an eviction now: hard ones at once, soft ones after their grace period.

        Schedules the next check for the moment when the next soft threshold becomes due.
        """
        now = steady_clock()
        self._update_pressure(met_thresholds, now)
        self._thresholds_first_observed = thresholds_first_observed(
            self._thresholds_first_observed, met_thresholds, now
        )
        next_due = next_threshold_due(self._thresholds_first_observed, now)
        if next_due is not None:
            self._check_again_in((next_due - now).total_seconds())
        return due_thresholds(self._thresholds_first_observed, now)

    def _check_again_in(self, seconds: float) -> None:
        asyncio.get_running_loop().call_later(seconds, self._pressure_loop.wake)

    def _update_pressure(self, met_thresholds: tuple[Threshold, ...], now: datetime) -> None:
        self._conditions_last_observed = conditions_last_observed(self._conditions_last_observed, met_thresholds, now)
        pressure = node_pressure(self._conditions_last_observed, now, self._transition)
        if pressure != self._pressure.current:
            self._pressure.current = pressure
            signals = " ".join(threshold.signal for threshold in met_thresholds)
            log.warning("node pressure changed", extra={"pressure": pressure, "signals": signals})
            self.changed.notify()

    def _is_cleaning_up(self) -> bool:
        """Return whether the last evicted pod still has its resources. Return False after CLEANUP_TIMEOUT."""
        if self._evicting is None:
            return False
        worker, since = self._evicting
        return not worker.cleaned_up and steady_clock() - since < CLEANUP_TIMEOUT

    def _evict(self, eviction: Eviction) -> None:
        worker = self._evictable().get(eviction.uid)
        if worker is not None:
            log.warning("evicting pod", extra={"uid": eviction.uid, "reason": eviction.message})
            self._evicting = (worker, steady_clock())
            worker.evict(eviction.message, eviction.grace)

    async def _observe_signals(self) -> Mapping[str, SignalObservation]:
        image_dir = await self._docker.root_dir()
        return await asyncio.to_thread(observe_signals, self._state_dir, image_dir)

    async def _pod_usages(self, pods: Iterable[Pod]) -> list[PodUsage]:
        """Return the usages of pods, without those whose containers are unknown."""
        usages = []
        for pod in pods:
            try:
                usages.append(await self._pod_usage(pod))
            except DriverError as error:
                fields = {"namespace": pod.metadata.namespace, "pod": pod.metadata.name, "error": str(error)}
                log.warning("usage of a pod is unknown; it is not evicted", extra=fields)
        return usages

    async def _pod_usage(self, pod: Pod) -> PodUsage:
        """Return the usage of a pod. If its disk usage cannot be read, the result of the last scan counts.

        Otherwise the pod would never be evicted, and under pressure other pods would be in its place.
        """
        containers = await self._docker.list_pod_containers(pod.metadata.uid)
        try:
            disk = await self._disks.scan(pod, containers)
        except DriverError as error:
            fields = {"namespace": pod.metadata.namespace, "pod": pod.metadata.name, "error": str(error)}
            log.warning("disk usage of a pod could not be read; the last one counts", extra=fields)
            disk = self._disks.last(pod.metadata.uid) or PodDiskUsage()
        return await asyncio.to_thread(_measure_pod, pod, containers, disk)


def _measure_pod(pod: Pod, containers: Sequence[RuntimeContainer], disk: PodDiskUsage) -> PodUsage:
    """Return the usage of a pod, from the cgroups of its containers and the result of a disk scan."""
    volumes = {
        volume.name: disk.volumes[volume.name]
        for volume in pod.spec.volumes
        if volume.empty_dir is not None and not is_in_memory(volume) and volume.name in disk.volumes
    }
    container_memory: dict[str, int] = {}
    container_disk: dict[str, int] = {}
    processes = 0
    for container in containers:
        name = container.name
        memory = working_set_bytes(container.pid) if container.pid else 0
        container_memory[name] = container_memory.get(name, 0) + memory
        sizes = [usages[container.id].size for usages in (disk.rootfs, disk.logs) if container.id in usages]
        container_disk[name] = container_disk.get(name, 0) + sum(sizes)
        processes += task_count(container.pid) if container.pid else 0
    return PodUsage(
        pod,
        processes=processes,
        inodes=sum(usage.inodes for usage in (*volumes.values(), *disk.rootfs.values())),
        container_memory=container_memory,
        container_disk=container_disk,
        volumes={name: usage.size for name, usage in volumes.items()},
        managed_files=disk.managed_files.size,
    )


# --- signals ----------------------------------------------------------------------------------------------------------


def observe_signals(state_dir: str, image_dir: str) -> dict[str, SignalObservation]:
    """Return an observation for each signal in SIGNALS. Raises NotReady."""
    node_fs = filesystem_stats(state_dir)
    image_fs = filesystem_stats(image_dir)
    return {
        "memory.available": _observe_memory(),
        "nodefs.available": SignalObservation(node_fs.available, node_fs.capacity),
        "nodefs.inodesFree": SignalObservation(node_fs.inodes_free, node_fs.inodes),
        "imagefs.available": SignalObservation(image_fs.available, image_fs.capacity),
        "imagefs.inodesFree": SignalObservation(image_fs.inodes_free, image_fs.inodes),
        "pid.available": _observe_processes(),
    }


def _observe_memory() -> SignalObservation:
    """Return the memory outside of the working set: free memory, and page cache that can be reclaimed at once.

    It is read from /proc/meminfo, because the root cgroup of version 2 has no memory statistics.
    """
    with os_errors_as(NotReady, "/proc/meminfo"):
        lines = (line.split() for line in Path("/proc/meminfo").read_text().splitlines())
        kib = {fields[0].rstrip(":"): int(fields[1]) for fields in lines}
    return SignalObservation((kib["MemFree"] + kib["Inactive(file)"]) * 1024, kib["MemTotal"] * 1024)


def _observe_processes() -> SignalObservation:
    with os_errors_as(NotReady, "/proc"):
        maximum = min(int(Path(f"/proc/sys/kernel/{name}").read_text()) for name in ("pid_max", "threads-max"))
        running = int(Path("/proc/loadavg").read_text().split()[3].partition("/")[2])
    return SignalObservation(maximum - running, maximum)
