"""Collects usage on request and renders the documents.

`/metrics` has the agent's own metrics (`node_agent/metrics.py`) and the families of `node_agent/stats/metrics.py`.
"""

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
from node_agent.stats.cadvisor import cadvisor_families
from node_agent.stats.collector import StatsCollector
from node_agent.stats.disk import DiskUsageScanner, filesystem_stats
from node_agent.stats.metrics import ProbeMetrics, kubelet_families, resource_families
from node_agent.stats.model import FilesystemStats, NodeStats, PodWithContainers, cpu_times, nano_cores
from node_agent.stats.summary import summary_document
from reconcile.errors import DriverError, NotReady
from reconcile.exposition import GAUGE, MetricFamily, Sample, format_families

MIN_SAMPLE_AGE_SECONDS = 1.0
MAX_SAMPLE_AGE_SECONDS = 60.0
"""Age of a CPU sample from which a rate can be computed."""

DISK_TIMEOUT_SECONDS = 5.0
"""Time that a request waits for the first scan of disks."""

CLAIM_TIMEOUT_SECONDS = 2.0
"""Time that a request waits for the file systems of PersistentVolumeClaims."""

_CLAIM_THREADS = ThreadPoolExecutor(2, thread_name_prefix="claims")
"""Threads of their own, so that an unreachable file server blocks nothing else."""


@dataclass(frozen=True, slots=True)
class _CpuSample:
    """CPU times at the time `at` of the monotonic clock."""

    at: float
    times: Mapping[str, int]


class StatsProvider:
    """Renders the documents of the server. Usage is collected only for a request.

    `pods` returns the pods of this node. `claims` returns the directories of a pod's PersistentVolumeClaims by volume
    name. `spawn` starts a task.
    """

    def __init__(
        self,
        node: str,
        state_dir: str,
        docker: DockerClient,
        collector: StatsCollector,
        disks: DiskUsageScanner,
        probes: ProbeMetrics,
        pods: Callable[[], Iterable[PodWithContainers]],
        claims: Callable[[Pod], Mapping[str, str]],
        spawn: Callable[[Coroutine[Any, Any, None]], asyncio.Task[None]],
    ) -> None:
        self._node = node
        self._state_dir = state_dir
        self._docker = docker
        self._collector = collector
        self._disks = disks
        self._probes = probes
        self._pods = pods
        self._claims = claims
        self._spawn = spawn
        self._image_dir = ""
        self._disk_scan: asyncio.Task[None] | None = None
        self._collector_lock = asyncio.Lock()
        self._samples: tuple[_CpuSample, ...] = ()

    async def summary(self, cpu_and_memory_only: bool = False) -> bytes:
        """Return /stats/summary[?only_cpu_and_memory=true]: JSON."""
        stats, rates = await self._collect_with_rates(full=not cpu_and_memory_only)
        if not cpu_and_memory_only:
            stats = await self._with_filesystems(stats)
        document = summary_document(self._node, stats, rates, cpu_and_memory_only=cpu_and_memory_only)
        return msgspec.json.encode(document)

    async def resource(self) -> bytes:
        """Return /metrics/resource: Prometheus text."""
        stats = await self._collect(full=False)
        return await _format(lambda: resource_families(stats))

    async def cadvisor(self) -> bytes:
        """Return /metrics/cadvisor: Prometheus text."""
        stats = await self._with_filesystems(await self._collect(full=True))
        facts = await asyncio.to_thread(host_facts.read_host_facts, Path(self._state_dir), "", ())
        labels = {"machine_id": facts.machine_id, "system_uuid": facts.system_uuid, "boot_id": facts.boot_id}
        return await _format(lambda: cadvisor_families(stats, facts.cpus, labels))

    async def probes(self) -> bytes:
        """Return /metrics/probes: Prometheus text."""
        start_time = MetricFamily(
            "process_start_time_seconds",
            GAUGE,
            "Start time of the process since unix epoch.",
            [Sample(psutil.Process().create_time())],
        )
        return format_families((*self._probes.families(), start_time)).encode()

    async def metrics(self) -> bytes:
        """Return /metrics: Prometheus text."""
        pods = list(self._pods())
        claims = await self._claim_filesystems(pods)
        return generate_latest() + format_families(kubelet_families(self._node, pods, claims)).encode()

    # --- CPU and memory ----------------------------------------------------------------------------------------------

    async def _collect(self, *, full: bool) -> NodeStats:
        pods = list(self._pods())
        async with self._collector_lock:
            return await asyncio.to_thread(self._collector.collect, pods, full=full)

    async def _collect_with_rates(self, *, full: bool) -> tuple[NodeStats, dict[str, int]]:
        """Return usage, and CPU rates since the newest usable sample. Without one, usage is collected twice."""
        if not self._usable_samples(time.monotonic()):
            self._add_sample(await self._collect(full=False))
            await asyncio.sleep(MIN_SAMPLE_AGE_SECONDS)
        stats = await self._collect(full=full)
        now = time.monotonic()
        before = next(iter(self._usable_samples(now)), _CpuSample(now, {}))
        self._add_sample(stats)
        return stats, _cpu_rates(before, stats, now)

    def _usable_samples(self, now: float) -> list[_CpuSample]:
        """Return the samples of a usable age, newest first."""
        return [
            sample for sample in self._samples if MIN_SAMPLE_AGE_SECONDS <= now - sample.at <= MAX_SAMPLE_AGE_SECONDS
        ]

    def _add_sample(self, stats: NodeStats) -> None:
        """Add a sample, and keep the one before it, because the newest one may be too young at the next request."""
        now = time.monotonic()
        if not self._samples or now - self._samples[0].at >= MIN_SAMPLE_AGE_SECONDS:
            self._samples = (_CpuSample(now, cpu_times(stats)), *self._samples[:1])

    # --- file systems ------------------------------------------------------------------------------------------------

    async def _with_filesystems(self, stats: NodeStats) -> NodeStats:
        """Add the results of the last disk scan and the file systems of claims, node and images.

        If a pod was not scanned yet, waits for the scan at most DISK_TIMEOUT_SECONDS.
        """
        pods = list(self._pods())
        if self._disk_scan is None or self._disk_scan.done():
            self._disk_scan = self._spawn(self._disks.scan_if_due(pods))
        if any(self._disks.last(pod.pod.metadata.uid) is None for pod in stats.pods):
            await asyncio.wait({self._disk_scan}, timeout=DISK_TIMEOUT_SECONDS)
        claims = await self._claim_filesystems(pods)
        pods_with_disks = tuple(
            replace(
                pod,
                disk=self._disks.last(pod.pod.metadata.uid),
                claims={name: stats for (uid, name), stats in claims.items() if uid == pod.pod.metadata.uid},
            )
            for pod in stats.pods
        )
        node_fs = await self._filesystem_stats(self._state_dir)
        image_fs = await self._filesystem_stats(await self._find_image_dir())
        return replace(stats, pods=pods_with_disks, node_fs=node_fs, image_fs=image_fs)

    async def _find_image_dir(self) -> str:
        """Return Docker's root directory, empty if unknown. It is queried once, because Docker answers slowly."""
        if not self._image_dir:
            try:
                self._image_dir = await self._docker.root_dir()
            except DriverError:
                return ""
        return self._image_dir

    async def _filesystem_stats(self, path: str) -> FilesystemStats | None:
        try:
            return await asyncio.to_thread(filesystem_stats, path) if path else None
        except NotReady:
            return None

    async def _claim_filesystems(self, pods: Iterable[PodWithContainers]) -> dict[tuple[str, str], FilesystemStats]:
        """Return the file systems of claims by pod UID and volume name, without those that do not answer in time."""
        paths = {
            (pod_with_containers.pod.metadata.uid, name): path
            for pod_with_containers in pods
            for name, path in self._claims(pod_with_containers.pod).items()
        }
        if not paths:
            return {}
        loop = asyncio.get_running_loop()
        futures = {key: loop.run_in_executor(_CLAIM_THREADS, filesystem_stats, path) for key, path in paths.items()}
        done, pending = await asyncio.wait(futures.values(), timeout=CLAIM_TIMEOUT_SECONDS)
        for future in pending:
            future.cancel()
        return {key: future.result() for key, future in futures.items() if future in done and not future.exception()}


def _cpu_rates(before: _CpuSample, stats: NodeStats, now: float) -> dict[str, int]:
    """Return CPU rates since a sample. For containers that are newer, the rate is that since their start."""
    seconds = now - before.at
    rates = {
        key: nano_cores(before.times[key], cpu, seconds) for key, cpu in cpu_times(stats).items() if key in before.times
    }
    for pod in stats.pods:
        for container in pod.containers:
            started_at = container.container.started_at
            if container.container.id not in rates and started_at is not None:
                age = container.at - started_at.timestamp()
                rates[container.container.id] = nano_cores(0, container.usage.cpu, age)
        if pod.pod.metadata.uid not in rates:
            rates[pod.pod.metadata.uid] = sum(rates.get(container.container.id, 0) for container in pod.containers)
    return rates


async def _format(families: Callable[[], Iterable[MetricFamily]]) -> bytes:
    """Format one family after another: all samples together would take several times the memory of their text."""
    return await asyncio.to_thread(lambda: b"".join(format_families((family,)).encode() for family in families()))
