"""Disk usage of pods; file system statistics."""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import Iterable
from pathlib import Path

from api.core.pod import Pod
from node_agent.clock import wall_clock
from node_agent.docker.client import DockerClient
from node_agent.host import HostInfo, etc_hosts_path, pod_dir, resolv_conf_path, termination_messages_dir
from node_agent.runtime.container import RuntimeContainer
from node_agent.stats.model import DiskUsage, FilesystemStats, PodDiskUsage, PodWithContainers
from node_agent.volumes.paths import is_in_memory, is_pod_owned, volume_dir
from node_agent.volumes.tree_walk import walk
from reconcile.errors import DriverError, NotReady, os_errors_as

log = logging.getLogger(__name__)

BLOCK_BYTES = 512
"""Unit of st_blocks (stat(2))."""

MIN_SCAN_INTERVAL_SECONDS = 60.0
SCAN_INTERVAL_FACTOR = 10
"""Time between two scans of all pods: at least so many seconds, and so many times the duration of the last scan."""


def filesystem_stats(path: str) -> FilesystemStats:
    """Return bytes and inodes of the file system that contains a path. Raises NotReady."""
    with os_errors_as(NotReady, path):
        result = os.statvfs(path)
    size = result.f_frsize
    reserved = (result.f_bfree - result.f_bavail) * size
    return FilesystemStats(result.f_bavail * size, result.f_blocks * size, result.f_favail, result.f_files, reserved)


def directory_usage(root: Path) -> tuple[int, int]:
    """Return the bytes and inodes of a directory as `du -x` counts: hard links once, other mounts not at all.

    A directory that does not exist has none. Raises OSError.
    """
    size = inodes = 0
    for status in walk(root):
        size += status.st_blocks * BLOCK_BYTES
        inodes += 1
    return size, inodes


def log_usage(path: str) -> tuple[int, int]:
    """Return the bytes and inodes of a container's log in Docker, with its rotated files."""
    if not path:
        return 0, 0
    log = Path(path)
    sizes = []
    for file in log.parent.glob(f"{log.name}*"):
        try:
            sizes.append(file.lstat().st_blocks * BLOCK_BYTES)
        except OSError:
            continue
    return sum(sizes), len(sizes)


def managed_files_usage(host: HostInfo, uid: str) -> DiskUsage:
    """Return the usage of the agent's files of a pod that containers may write. Their size is not limited."""
    size, inodes = directory_usage(Path(termination_messages_dir(host, uid)))
    for path in (etc_hosts_path(host, uid), resolv_conf_path(host, uid)):
        try:
            size += Path(path).lstat().st_blocks * BLOCK_BYTES
        except OSError:
            continue
    return DiskUsage(size, inodes)


class DiskUsageScanner:
    """Scans the disk usage of pods, and remembers the last result of each pod."""

    def __init__(self, docker: DockerClient, host: HostInfo) -> None:
        self._docker = docker
        self._host = host
        self._usages: dict[str, PodDiskUsage] = {}
        self._next_scan_at = 0.0

    def last(self, uid: str) -> PodDiskUsage | None:
        """Return the last result for a pod, None if it was not scanned yet."""
        return self._usages.get(uid)

    async def scan(self, pod: Pod, containers: Iterable[RuntimeContainer]) -> PodDiskUsage:
        """Scan a pod with these containers now. Raises DriverError."""
        uid = pod.metadata.uid
        started_containers = [container for container in containers if not container.is_sandbox]
        layer_sizes: dict[str, int] = {}
        if any(not container.layer for container in started_containers):
            layer_sizes = await self._docker.writable_layer_sizes(uid)
        with os_errors_as(NotReady, f"disk usage of pod {pod.metadata.namespace}/{pod.metadata.name}"):
            usage = await asyncio.to_thread(self._scan_directories, pod, started_containers, layer_sizes)
        self._usages[uid] = usage
        return usage

    def _scan_directories(
        self, pod: Pod, containers: list[RuntimeContainer], layer_sizes: dict[str, int]
    ) -> PodDiskUsage:
        directory = pod_dir(self._host, pod.metadata.uid)
        paths = {
            volume.name: Path(volume_dir(directory, volume)) for volume in pod.spec.volumes if is_pod_owned(volume)
        }
        in_memory = {volume.name for volume in pod.spec.volumes if is_in_memory(volume)}
        rootfs = {}
        for container in containers:
            size, inodes = layer_sizes.get(container.id, 0), 0
            for path in filter(None, (container.layer, *container.image_volumes)):
                more_bytes, more_inodes = directory_usage(Path(path))
                size, inodes = size + more_bytes, inodes + more_inodes
            rootfs[container.id] = DiskUsage(size, inodes)
        return PodDiskUsage(
            at=wall_clock().timestamp(),
            rootfs=rootfs,
            logs={container.id: DiskUsage(*log_usage(container.log_path)) for container in containers},
            volumes={name: DiskUsage(*directory_usage(path)) for name, path in paths.items()},
            memory_filesystems={name: filesystem_stats(str(paths[name])) for name in in_memory if paths[name].is_dir()},
            managed_files=managed_files_usage(self._host, pod.metadata.uid),
        )

    async def scan_if_due(self, pods: Iterable[PodWithContainers]) -> None:
        """Scan all pods if the interval is over, otherwise only new pods. Forget pods that are not in the list."""
        pods = list(pods)
        new_pods = [
            pod_with_containers
            for pod_with_containers in pods
            if pod_with_containers.pod.metadata.uid not in self._usages
        ]
        is_due = time.monotonic() >= self._next_scan_at
        if not is_due and not new_pods:
            return
        started_at = time.monotonic()
        for pod_with_containers in pods if is_due else new_pods:
            try:
                await self.scan(pod_with_containers.pod, pod_with_containers.containers.all)
            except DriverError as error:
                log.warning("disk usage of a pod could not be read", extra={"error": str(error)})
        if is_due:
            duration = time.monotonic() - started_at
            self._next_scan_at = time.monotonic() + max(MIN_SCAN_INTERVAL_SECONDS, duration * SCAN_INTERVAL_FACTOR)
        for uid in self._usages.keys() - {pod_with_containers.pod.metadata.uid for pod_with_containers in pods}:
            del self._usages[uid]
