"""Takes a lab away without a trace, also after a crash of any part of it."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import time
from collections.abc import Iterable
from pathlib import Path

import psutil

from lab.command import LabError, run
from lab.topology import SITE, Site

STOP_SECONDS = 15.0
CGROUPS = Path("/sys/fs/cgroup")


def is_up(site: Site = SITE) -> bool:
    """Whether a lab's supervisor lives."""
    return _supervisor(site) is not None


def _supervisor(site: Site) -> psutil.Process | None:
    try:
        process = psutil.Process(int((site.short / "supervisor.pid").read_text()))
        return process if "lab.supervisor" in process.cmdline() else None
    except (OSError, ValueError, psutil.Error):
        return None


def bring_down(state: Path, site: Site = SITE) -> None:
    """Remove processes, mounts, namespaces, cables, cgroups and the state directory of a lab. Raises LabError."""
    if site.short.is_symlink() and site.short.resolve() != state.resolve():
        raise LabError(f"the lab that is up has its state in {site.short.resolve()}; run lab-down there")
    containers = _container_ids(state)
    supervisor = _supervisor(site)
    if supervisor is not None:
        with contextlib.suppress(psutil.Error):
            supervisor.kill()
            supervisor.wait(STOP_SECONDS)
    _kill(site, _processes(site))
    _unmount(state.resolve())
    for device in _cables(site):
        run("ip", "link", "del", device)
    for namespace in _namespaces(site):
        run("ip", "netns", "del", namespace)
    _remove_cgroups(containers)
    site.short.unlink(missing_ok=True)
    shutil.rmtree(state, ignore_errors=True)
    if state.exists():
        raise LabError(f"{state} could not be removed; is something in it still in use?")


def _namespaces(site: Site) -> list[str]:
    root = Path("/run/netns")
    names = sorted(entry.name for entry in root.iterdir()) if root.is_dir() else []
    return [name for name in names if name == site.master_namespace or name.startswith(site.node_namespace)]


def _cables(site: Site) -> list[str]:
    """The kernel frees a namespace, and what is plugged into it, only some time after its last process."""
    names = sorted(entry.name for entry in Path("/sys/class/net").iterdir())
    return [name for name in names if name in {site.bridge, site.master_cable} or name.startswith(site.node_cable)]


def _processes(site: Site) -> set[psutil.Process]:
    """Whatever lives in one of the lab's namespaces, and its children: containers have namespaces of their own."""
    inodes = {os.stat(f"/run/netns/{name}").st_ino for name in _namespaces(site)}
    found: set[psutil.Process] = set()
    for process in psutil.process_iter():
        with contextlib.suppress(OSError, psutil.Error):
            if os.stat(f"/proc/{process.pid}/ns/net").st_ino in inodes:
                found |= {process, *process.children(recursive=True)}
    return found


def _kill(site: Site, processes: Iterable[psutil.Process]) -> None:
    """All of them, and those that they leave behind."""
    deadline = time.monotonic() + STOP_SECONDS
    pending = set(processes)
    while pending:
        for process in pending:
            with contextlib.suppress(psutil.Error):
                process.send_signal(signal.SIGKILL)
        psutil.wait_procs(pending, timeout=1)
        pending = {process for process in _processes(site) | pending if process.is_running() and not _is_dead(process)}
        if pending and time.monotonic() > deadline:
            raise LabError(f"processes that do not end: {', '.join(str(process.pid) for process in pending)}")


def _is_dead(process: psutil.Process) -> bool:
    try:
        return bool(process.status() == psutil.STATUS_ZOMBIE)
    except psutil.Error:
        return True


def _unmount(state: Path) -> None:
    with Path("/proc/self/mountinfo").open() as mounts:
        points = [line.split()[4] for line in mounts]
    for point in reversed(points):
        if Path(point).is_relative_to(state):
            run("umount", "--lazy", point)


def _container_ids(state: Path) -> set[str]:
    return {entry.name for entry in state.glob("node-*/docker/containers/*")}


def _remove_cgroups(containers: set[str]) -> None:
    for group in CGROUPS.glob("*/docker/*"):
        if group.name in containers:
            with contextlib.suppress(OSError):
                group.rmdir()
