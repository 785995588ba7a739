"""Disk usage of pods; file system statistics."""

from __future__ import annotations

import asyncio
import os
import stat
import time
from collections.abc import Iterable
from pathlib import Path

from api.core.pod import Pod
from node_agent.clock import wall_clock
from node_agent.docker.client import DockerClient
from node_agent.host import HostInfo, pod_dir
from node_agent.runtime.container import RuntimeContainer
from node_agent.stats.model import DiskUsage, FilesystemStats, PodDiskUsage, PodWithContainers
from node_agent.volumes.paths import is_in_memory, is_pod_owned, volume_dir
from reconcile.errors import DriverError, NotReady


def filesystem_stats(path: str) -> FilesystemStats:
    """Of the file system that holds this path. Raises NotReady."""
    try:
        seen = os.statvfs(path)
    except OSError as error:
        raise NotReady(f"{path}: {error.strerror or error}") from None
    size = seen.f_frsize
    reserved = (seen.f_bfree - seen.f_bavail) * size
    return FilesystemStats(seen.f_bavail * size, seen.f_blocks * size, seen.f_favail, seen.f_files, reserved)


BLOCK = 512
"""Bytes in a unit of st_blocks (stat(2))."""


def directory_usage(root: Path) -> tuple[int, int]:
    """The bytes on disk and the inodes of a directory, as `du -x` counts: hard links once, other mounts not at all."""
    try:
        device = root.lstat().st_dev
    except OSError:
        return 0, 0
    size, seen = 0, set[int]()
    for folder, names, files in os.walk(root):
        links = [name for name in names if Path(folder, name).is_symlink()]
        names[:] = [name for name in names if _device(Path(folder, name)) == device]
        for name in (".", *files, *links):
            try:
                found = os.lstat(Path(folder, name))
            except OSError:
                continue
            if found.st_ino not in seen:
                seen.add(found.st_ino)
                size += found.st_blocks * BLOCK
    return size, len(seen)


def _device(path: Path) -> int:
    try:
        found = path.lstat()
    except OSError:
        return -1
    return found.st_dev if stat.S_ISDIR(found.st_mode) else -1


def log_usage(path: str) -> tuple[int, int]:
    """The bytes and the inodes of Docker's log of a container with its rotated files."""
    if not path:
        return 0, 0
    log = Path(path)
    sizes = []
    for one in log.parent.glob(f"{log.name}*"):
        try:
            sizes.append(one.lstat().st_blocks * BLOCK)
        except OSError:
            continue
    return sum(sizes), len(sizes)


LEAST_SECONDS, SHARE = 60.0, 10
"""Between two walks through everything are so many seconds, and so many times as long as the first one took."""


class DiskUsageScanner:
    """`look` walks now; `refresh` walks when it is time again, and is to be called when somebody wants to know."""

    def __init__(self, docker: DockerClient, host: HostInfo) -> None:
        self._docker = docker
        self._host = host
        self._known: dict[str, PodDiskUsage] = {}
        self._due = 0.0

    def known(self, uid: str) -> PodDiskUsage | None:
        """What was found last of a pod; None if nobody has looked."""
        return self._known.get(uid)

    async def look(self, pod: Pod, found: Iterable[RuntimeContainer]) -> PodDiskUsage:
        """What the pod with these containers takes now. Raises DriverError."""
        uid, containers = pod.metadata.uid, [one for one in found if not one.is_sandbox]
        hidden = any(not one.layer for one in containers)
        written = await self._docker.writable_layer_sizes(uid) if hidden else {}
        self._known[uid] = disk = await asyncio.to_thread(self._walk, pod, containers, written)
        return disk

    def _walk(self, pod: Pod, containers: list[RuntimeContainer], written: dict[str, int]) -> PodDiskUsage:
        directory = pod_dir(self._host, pod.metadata.uid)
        own = {one.name: Path(volume_dir(directory, one)) for one in pod.spec.volumes if is_pod_owned(one)}
        memory = {one.name for one in pod.spec.volumes if is_in_memory(one)}
        return PodDiskUsage(
            at=wall_clock().timestamp(),
            written={
                one.id: DiskUsage(*directory_usage(Path(one.layer))) if one.layer else DiskUsage(written.get(one.id, 0))
                for one in containers
            },
            logs={one.id: DiskUsage(*log_usage(one.log_path)) for one in containers},
            volumes={name: DiskUsage(*directory_usage(path)) for name, path in own.items()},
            memory={name: filesystem_stats(str(own[name])) for name in memory if own[name].is_dir()},
        )

    async def refresh(self, pods: Iterable[PodWithContainers]) -> None:
        """Look at all of these, one after the other, if it is time; forget others."""
        known = list(pods)
        if time.monotonic() < self._due and all(one.pod.metadata.uid in self._known for one in known):
            return
        everything = time.monotonic() >= self._due
        began = time.monotonic()
        for one in known:
            if everything or one.pod.metadata.uid not in self._known:
                try:
                    await self.look(one.pod, one.containers.all)
                except DriverError:
                    continue
        if everything:
            took = time.monotonic() - began
            self._due = time.monotonic() + max(LEAST_SECONDS, took * SHARE)
        here = {one.pod.metadata.uid for one in known}
        for uid in self._known.keys() - here:
            del self._known[uid]
