"""Collects usage on request and renders the documents."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import msgspec
import psutil
from prometheus_client import generate_latest

from api.core.pod import Pod
from node_agent.docker.client import DockerClient
from node_agent.node import host_facts
from node_agent.stats import cadvisor, summary
from node_agent.stats import metrics as kubelet
from node_agent.stats import metrics as resource
from node_agent.stats.collector import StatsCollector
from node_agent.stats.disk import DiskUsageScanner, filesystem_stats
from node_agent.stats.metrics import GAUGE, MetricFamily, ProbeMetrics, Sample, format_families
from node_agent.stats.model import FilesystemStats, NodeStats, PodWithContainers, cpu_times, nano_cores
from reconcile.errors import DriverError, NotReady

LEAST_SECONDS, MOST_SECONDS = 1.0, 60.0
"""How long ago a look was that a rate can be told from."""

DISK_SECONDS, CLAIM_SECONDS = 5.0, 2.0
"""How long somebody waits for the first walk through disks, and for the servers of claims."""

_CLAIMS = ThreadPoolExecutor(2, thread_name_prefix="claims")
"""Threads of their own: a file server that is away must not hold up what has nothing to do with it."""


@dataclass(frozen=True, slots=True)
class _CpuSample:
    """CPU times as of `at`, by the monotonic clock."""

    at: float
    times: Mapping[str, int]


class StatsProvider:
    """Each document is made when it is asked for; nothing is measured while nobody asks.

    `pods` are those that are here; `claims` gives the directories of a pod's volumes that are claims, by their names.
    `spawn` starts a task.
    """

    def __init__(
        self,
        node: str,
        state_dir: str,
        docker: DockerClient,
        look: StatsCollector,
        disks: DiskUsageScanner,
        probes: ProbeMetrics,
        pods: Callable[[], Iterable[PodWithContainers]],
        claims: Callable[[Pod], Mapping[str, str]],
        spawn: Callable[[Coroutine[Any, Any, None]], asyncio.Task[None]],
    ) -> None:
        self._node = node
        self._state_dir = state_dir
        self._docker = docker
        self._look = look
        self._disks = disks
        self._probes = probes
        self._pods = pods
        self._claims = claims
        self._spawn = spawn
        self._image_dir = ""
        self._walk: asyncio.Task[None] | None = None
        self._sampling = asyncio.Lock()
        self._samples: tuple[_CpuSample, ...] = ()

    async def summary(self, cpu_and_memory_only: bool = False) -> bytes:
        """GET /stats/summary[?only_cpu_and_memory=true]: JSON."""
        figures, rates = await self._rated(full=not cpu_and_memory_only)
        if not cpu_and_memory_only:
            figures = await self._with_disks(figures)
        brief = cpu_and_memory_only
        return msgspec.json.encode(summary.summary_document(self._node, figures, rates, brief=brief))

    async def resource(self) -> bytes:
        """GET /metrics/resource: Prometheus text."""
        figures = await self._figures(full=False)
        return await _text(lambda: resource.resource_families(figures))

    async def cadvisor(self) -> bytes:
        """GET /metrics/cadvisor: Prometheus text."""
        figures = await self._with_disks(await self._figures(full=True))
        facts = await asyncio.to_thread(host_facts.read_host_facts, Path(self._state_dir), "", ())
        names = {"machine_id": facts.machine_id, "system_uuid": facts.system_uuid, "boot_id": facts.boot_id}
        return await _text(lambda: cadvisor.cadvisor_families(figures, facts.cpus, names))

    async def probes(self) -> bytes:
        """GET /metrics/probes: Prometheus text."""
        began = Sample(psutil.Process().create_time())
        process = MetricFamily(
            "process_start_time_seconds", GAUGE, "Start time of the process since unix epoch.", [began]
        )
        return format_families((*self._probes.families(), process)).encode()

    async def metrics(self) -> bytes:
        """GET /metrics: Prometheus text."""
        pods = list(self._pods())
        claims = await self._claimed(pods)
        return generate_latest() + format_families(kubelet.kubelet_families(self._node, pods, claims)).encode()

    # --- looks -----------------------------------------------------------------------------------------------------

    async def _figures(self, *, full: bool) -> NodeStats:
        pods = list(self._pods())
        async with self._sampling:
            return await asyncio.to_thread(self._look.figures, pods, full=full)

    async def _rated(self, *, full: bool) -> tuple[NodeStats, dict[str, int]]:
        """What is used, and how fast, since the newest look that is old enough; without one there are two now."""
        if not self._usable(time.monotonic()):
            self._remember(await self._figures(full=False))
            await asyncio.sleep(LEAST_SECONDS)
        figures = await self._figures(full=full)
        now = time.monotonic()
        before = next(iter(self._usable(now)), _CpuSample(now, {}))
        self._remember(figures)
        return figures, _rates(before, figures, now)

    def _usable(self, now: float) -> list[_CpuSample]:
        """Newest first."""
        return [one for one in self._samples if LEAST_SECONDS <= now - one.at <= MOST_SECONDS]

    def _remember(self, figures: NodeStats) -> None:
        """Two looks are kept, so that one is old enough whenever the newer one is not."""
        now = time.monotonic()
        if not self._samples or now - self._samples[0].at >= LEAST_SECONDS:
            self._samples = (_CpuSample(now, cpu_times(figures)), *self._samples[:1])

    # --- disks -----------------------------------------------------------------------------------------------------

    async def _with_disks(self, figures: NodeStats) -> NodeStats:
        """With what was found of disks last; who asks first waits for the first walk, for a while."""
        known = list(self._pods())
        if self._walk is None or self._walk.done():
            self._walk = self._spawn(self._disks.refresh(known))
        if any(self._disks.known(one.pod.metadata.uid) is None for one in figures.pods):
            await asyncio.wait({self._walk}, timeout=DISK_SECONDS)
        claims = await self._claimed(known)
        pods = tuple(
            replace(
                one,
                disk=self._disks.known(one.pod.metadata.uid),
                claims={name: row for (uid, name), row in claims.items() if uid == one.pod.metadata.uid},
            )
            for one in figures.pods
        )
        node, images = await self._space(self._state_dir), await self._space(await self._images())
        return replace(figures, pods=pods, node_disk=node, image_disk=images)

    async def _images(self) -> str:
        """Where Docker keeps images; it does not move while Docker runs, and answers slowly."""
        if not self._image_dir:
            try:
                self._image_dir = await self._docker.root_dir()
            except DriverError:
                return ""
        return self._image_dir

    async def _space(self, path: str) -> FilesystemStats | None:
        try:
            return await asyncio.to_thread(filesystem_stats, path) if path else None
        except NotReady:
            return None

    async def _claimed(self, pods: Iterable[PodWithContainers]) -> dict[tuple[str, str], FilesystemStats]:
        """The file systems of claims, by the pod's uid and the volume's name; those that do not answer are left out."""
        paths = {(one.pod.metadata.uid, name): path for one in pods for name, path in self._claims(one.pod).items()}
        loop = asyncio.get_running_loop()
        asked = {key: loop.run_in_executor(_CLAIMS, filesystem_stats, path) for key, path in paths.items()}
        if not asked:
            return {}
        done, late = await asyncio.wait(asked.values(), timeout=CLAIM_SECONDS)
        for one in late:
            one.cancel()
        return {key: one.result() for key, one in asked.items() if one in done and one.exception() is None}


def _rates(before: _CpuSample, figures: NodeStats, now: float) -> dict[str, int]:
    """What has come since then has used what it used since it started."""
    seconds = now - before.at
    rates = {
        key: nano_cores(before.times[key], cpu, seconds)
        for key, cpu in cpu_times(figures).items()
        if key in before.times
    }
    for pod in figures.pods:
        for one in pod.containers:
            if one.container.id not in rates and one.container.started_at is not None:
                rates[one.container.id] = nano_cores(0, one.use.cpu, one.at - one.container.started_at.timestamp())
        if pod.pod.metadata.uid not in rates:
            rates[pod.pod.metadata.uid] = sum(rates.get(one.container.id, 0) for one in pod.containers)
    return rates


async def _text(families: Callable[[], Iterable[MetricFamily]]) -> bytes:
    """Family by family: all rows of a page together would take several times the memory of its text."""
    return await asyncio.to_thread(lambda: b"".join(format_families((one,)).encode() for one in families()))
