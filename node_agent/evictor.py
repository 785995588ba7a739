"""Sends pods away when the node runs short of something, or when they take more disk than they may."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from datetime import datetime, timedelta

from api.objects import Pod
from node_agent import eviction, thresholds
from node_agent.clock import steady
from node_agent.disk_scan import DiskScan
from node_agent.drivers import usage
from node_agent.drivers.docker import Docker
from node_agent.guard import guarded
from node_agent.pod_worker import PodWorker
from node_agent.settings import Settings
from node_agent.volume_paths import is_in_memory
from reconcile.loop import Loop, Pace

log = logging.getLogger(__name__)

CHECK_SECONDS = 10.0
CLEARING_SECONDS = 1.0
"""Time between two looks while a pod is being cleared away: what comes next waits for that, and not for longer."""

PATIENCE = timedelta(seconds=30)
"""How long the next pod is spared while the one before it is being cleared away."""


class Evictor:
    """`pods` are the workers of the pods that may be sent away; `reclaim` frees disk that no pod needs.

    `tell` tells an event about the node (reason, message).
    """

    def __init__(
        self,
        settings: Settings,
        docker: Docker,
        disks: DiskScan,
        pods: Callable[[], Mapping[str, PodWorker]],
        reclaim: Callable[[], Awaitable[None]],
        on_change: Callable[[], None],
        tell: Callable[[str, str], None],
    ) -> None:
        self.pressure = eviction.Pressure()
        self._docker = docker
        self._disks = disks
        self._pods = pods
        self._reclaim = reclaim
        self._on_change = on_change
        self._tell = tell
        self._state_dir = settings.state_dir
        soft = thresholds.soft(settings.eviction_soft, settings.eviction_soft_grace_period)
        self._limits = (*eviction.thresholds(settings.eviction_hard), *soft)
        self._most_grace = settings.eviction_max_pod_grace_period
        self._transition = timedelta(seconds=settings.eviction_pressure_transition_seconds)
        self._last: dict[str, datetime] = {}
        self._since: dict[eviction.Threshold, datetime] = {}
        self._going: tuple[PodWorker, datetime] | None = None
        self.loops = (
            Loop("pressure", guarded("pressure", self.relieve), Pace(resync=CHECK_SECONDS)),
            Loop("disk limits", guarded("disk limits", self.enforce), Pace(resync=settings.disk_scan_seconds)),
        )

    async def relieve(self) -> None:
        """Look at the node's resources; free what nobody needs, and send one pod away if that is not enough."""
        if self._is_waiting():
            self._look_again(CLEARING_SECONDS)
            return
        seen = await self._observe()
        low = self._due(eviction.met(self._limits, seen))
        if low:
            self._tell("EvictionThresholdMet", f"Attempting to reclaim {eviction.SIGNALS[low[0].signal][0]}")
        if any(eviction.SIGNALS[one.signal][1] == eviction.DISK for one in low):
            await self._reclaim()
            seen = await self._observe()
            low = eviction.met(low, seen)
        if not low:
            return
        verdict = eviction.choose(low, seen, await self._usages(lambda _: True), self._most_grace)
        if verdict is None:
            log.warning("the node is short of something and no pod may be evicted", extra={"signal": low[0].signal})
        else:
            self._evict(verdict)
            self._look_again(CLEARING_SECONDS)

    async def enforce(self) -> None:
        """Send every pod away that takes more disk than it may."""
        for verdict in eviction.over_limits(await self._usages(eviction.has_disk_limits)):
            self._evict(verdict)

    def _due(self, low: tuple[eviction.Threshold, ...]) -> tuple[eviction.Threshold, ...]:
        """Of what is too low that for which somebody has to go now; the next look is not later than needed."""
        now = steady()
        self._note(low, now)
        self._since = thresholds.first_met(self._since, low, now)
        next_due = thresholds.next_due(self._since, now)
        if next_due is not None:
            self._look_again((next_due - now).total_seconds())
        return thresholds.due(self._since, now)

    def _look_again(self, seconds: float) -> None:
        asyncio.get_running_loop().call_later(seconds, self.loops[0].wake)

    def _note(self, low: tuple[eviction.Threshold, ...], now: datetime) -> None:
        self._last = eviction.remembered(self._last, low, now)
        before, self.pressure = self.pressure, eviction.pressure(self._last, now, self._transition)
        if self.pressure != before:
            signals = " ".join(one.signal for one in low)
            log.warning("the node's pressure has changed", extra={"pressure": self.pressure, "signals": signals})
            self._on_change()

    def _is_waiting(self) -> bool:
        """Whether the pod before has not given back yet what it had."""
        if self._going is None:
            return False
        worker, since = self._going
        return not worker.cleared and steady() - since < PATIENCE

    def _evict(self, verdict: eviction.Verdict) -> None:
        worker = self._pods().get(verdict.uid)
        if worker is not None:
            log.warning("evicting", extra={"uid": verdict.uid, "why": verdict.message})
            self._going = worker, steady()
            worker.evict(verdict.message, verdict.grace)

    async def _observe(self) -> Mapping[str, eviction.Observation]:
        images = await self._docker.root_dir()
        return await asyncio.to_thread(usage.observations, self._state_dir, images)

    async def _usages(self, matters: Callable[[Pod], bool]) -> list[eviction.Usage]:
        return [await self._usage(worker.pod) for worker in self._pods().values() if matters(worker.pod)]

    async def _usage(self, pod: Pod) -> eviction.Usage:
        found = await self._docker.pod_containers(pod.metadata.uid)
        taken = await self._disks.look(pod, found)
        on_disk = {one.name for one in pod.spec.volumes if one.empty_dir is not None and not is_in_memory(one)}
        volumes = {name: row for name, row in taken.volumes.items() if name in on_disk}

        def look() -> eviction.Usage:
            memory: dict[str, int] = {}
            disk: dict[str, int] = {}
            for one in found:
                memory[one.name] = memory.get(one.name, 0) + (usage.memory_of(one.pid) if one.pid else 0)
                rows = (taken.written.get(one.id), taken.logs.get(one.id))
                disk[one.name] = disk.get(one.name, 0) + sum(row.size for row in rows if row is not None)
            return eviction.Usage(
                pod,
                processes=sum(usage.processes_of(one.pid) for one in found if one.pid),
                inodes=sum(row.inodes for row in (*volumes.values(), *taken.written.values())),
                memory_of=memory,
                disk_of=disk,
                volumes={name: row.size for name, row in volumes.items()},
            )

        return await asyncio.to_thread(look)
