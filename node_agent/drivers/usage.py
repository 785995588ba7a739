"""How much memory, disk and processes the host has left, and what a pod takes of them."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from node_agent.drivers.cgroup_files import CgroupFiles
from node_agent.drivers.space import space
from node_agent.eviction import Observation
from node_agent.stats.uses import MEMORY, TASKS
from reconcile.errors import NotReady

BLOCK = 512
"""Bytes in a unit of st_blocks (stat(2))."""


def observations(state_dir: str, image_dir: str) -> dict[str, Observation]:
    """Every signal of `eviction.SIGNALS`. Raises NotReady."""
    node, images = space(state_dir), space(image_dir)
    return {
        "memory.available": _memory(),
        "nodefs.available": Observation(node.available, node.capacity),
        "nodefs.inodesFree": Observation(node.inodes_free, node.inodes),
        "imagefs.available": Observation(images.available, images.capacity),
        "imagefs.inodesFree": Observation(images.inodes_free, images.inodes),
        "pid.available": _processes(),
    }


def _memory() -> Observation:
    """All but the working set: what is free, and what the page cache would give back first.

    The root of cgroup v2 has no figures of its own, so that they come from /proc/meminfo, for both versions.
    """
    with _mapped("/proc/meminfo"):
        rows = (line.split() for line in Path("/proc/meminfo").read_text().splitlines())
        kib = {row[0].rstrip(":"): int(row[1]) for row in rows}
    return Observation((kib["MemFree"] + kib["Inactive(file)"]) * 1024, kib["MemTotal"] * 1024)


def _processes() -> Observation:
    with _mapped("/proc"):
        most = min(int(Path(f"/proc/sys/kernel/{name}").read_text()) for name in ("pid_max", "threads-max"))
        running = int(Path("/proc/loadavg").read_text().split()[3].partition("/")[2])
    return Observation(most - running, most)


def memory_of(pid: int) -> int:
    """The working set of the container that a process is in, in bytes; 0 when it has ended."""
    found = CgroupFiles()
    used = found.use(found.groups_of(pid), MEMORY)
    return used.working_set if used is not None else 0


def processes_of(pid: int) -> int:
    """How many processes and threads the container has; 0 when it has ended."""
    found = CgroupFiles()
    used = found.use(found.groups_of(pid), TASKS)
    return used.tasks if used is not None else 0


def taken(root: Path) -> tuple[int, int]:
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


def log_taken(path: str) -> tuple[int, int]:
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


@contextmanager
def _mapped(what: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise NotReady(f"{what}: {error.strerror or error}") from None
