"""Removes a lab completely, also after a crash of any part of it."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import psutil

from lab import uplink
from lab.process import LabError, exclusive, run, succeeds
from lab.topology import MARK, SITE, Site

STOP_SECONDS = 15.0
POLL_SECONDS = 0.02
CGROUPS = Path("/sys/fs/cgroup")


def is_up(site: Site = SITE) -> bool:
    """Return True if the supervisor of a lab runs."""
    return _supervisor(site) is not None


def _supervisor(site: Site) -> psutil.Process | None:
    try:
        process = psutil.Process(int((site.run_dir / "supervisor.pid").read_text()))
        return process if _is_marked(process.pid, site) and not _is_dead(process) else None
    except (OSError, ValueError, psutil.Error):
        return None


def has_traces(state: Path, site: Site = SITE) -> bool:
    """Return True if any part of a lab exists."""
    traces = (state.exists(), site.run_dir.is_symlink(), site.forwarding_mark.exists(), _namespaces(site), _veths(site))
    return any(traces) or uplink.is_connected(site)


def bring_down(state: Path, site: Site = SITE) -> None:
    """Remove processes, mounts, namespaces, veth pairs, cgroups and the state directory of a lab. Raises LabError."""
    with exclusive(site):
        remove(state, site)


def remove(state: Path, site: Site, keep_logs: bool = False) -> None:
    """Remove a lab; the caller holds `exclusive`. With `keep_logs`, log files stay in the state directory."""
    directories = _directories(state.resolve(), site)
    groups = {entry.name for each in directories for entry in each.glob("node-*/docker/containers/*")}
    _stop_supervisor(site)
    groups |= _kill_all(directories, site)
    _unmount(directories)
    for device in _veths(site):
        run("ip", "link", "del", device)
    for namespace in _namespaces(site):
        run("ip", "netns", "del", namespace)
    _remove_cgroups(groups)
    remove_pod_cgroups(f"{site.node_namespace}*")
    uplink.disconnect(site)
    site.run_dir.unlink(missing_ok=True)
    for each in directories:
        _remove_tree(each, keep_logs)


def _directories(state: Path, site: Site) -> tuple[Path, ...]:
    """Return the directories of the lab: `state`, and that of a crashed lab, whose clone may be gone."""
    if not site.run_dir.is_symlink() or site.run_dir.resolve() == state:
        return (state,)
    elsewhere = site.run_dir.resolve()
    if is_up(site):
        raise LabError(f"another lab is up, with its state in {elsewhere}; run `make lab-down` there first")
    return (elsewhere, state)


def _namespaces(site: Site) -> list[str]:
    root = Path("/run/netns")
    names = sorted(entry.name for entry in root.iterdir()) if root.is_dir() else []
    return [name for name in names if name == site.master_namespace or name.startswith(site.node_namespace)]


def _veths(site: Site) -> list[str]:
    """Return the veth devices of the lab. The kernel frees those of a namespace some time after its last process."""
    names = sorted(entry.name for entry in Path("/sys/class/net").iterdir())
    return [name for name in names if name in {site.bridge, site.master_veth} or name.startswith(site.node_veth_prefix)]


def _stop_supervisor(site: Site) -> None:
    """Stop the supervisor, which stops and reaps everything that it has started."""
    supervisor = _supervisor(site)
    if supervisor is None:
        return
    with contextlib.suppress(psutil.Error):
        supervisor.terminate()
        deadline = time.monotonic() + STOP_SECONDS
        while not _is_dead(supervisor) and time.monotonic() < deadline:
            time.sleep(POLL_SECONDS)


def _kill_all(directories: tuple[Path, ...], site: Site) -> set[str]:
    """Kill the remaining processes of the lab and their children. Return the names of their containers' cgroups."""
    groups: set[str] = set()
    deadline = time.monotonic() + STOP_SECONDS
    while pending := list(_processes(directories, site)):
        if time.monotonic() > deadline:
            raise LabError(f"processes that do not end: {', '.join(str(process.pid) for process in pending)}")
        for process in pending:
            with contextlib.suppress(OSError, psutil.Error):
                groups |= set(re.findall(r"/docker/([0-9a-f]{64})", Path(f"/proc/{process.pid}/cgroup").read_text()))
                process.send_signal(signal.SIGKILL)
        time.sleep(POLL_SECONDS)
    return groups


def _processes(directories: tuple[Path, ...], site: Site) -> Iterator[psutil.Process]:
    """Return the processes with the lab's mark, in one of its namespaces, or in one of its containers."""
    inodes = {os.stat(f"/run/netns/{name}").st_ino for name in _namespaces(site)}
    for process in psutil.process_iter():
        with contextlib.suppress(OSError, psutil.Error):
            is_ours = (
                _is_marked(process.pid, site)
                or os.stat(f"/proc/{process.pid}/ns/net").st_ino in inodes
                or _root_lies_in(process.pid, directories)
            )
            if is_ours and not _is_dead(process) and process.pid != os.getpid():
                yield process


def _is_marked(pid: int, site: Site) -> bool:
    return f"{MARK}={site.run_dir}".encode() in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")


def _root_lies_in(pid: int, directories: tuple[Path, ...]) -> bool:
    """Return True for processes in containers: their root is an overlay of the lab's files."""
    roots = [options for point, options in _mounts(str(pid)) if point == Path("/")]
    return any(f"upperdir={each}/" in options for options in roots for each in directories)


def _mounts(process: str) -> list[tuple[Path, str]]:
    """Yield the mount points of a process with their options; blanks are escaped (proc_pid_mountinfo(5))."""
    lines = os.fsdecode(Path(f"/proc/{process}/mountinfo").read_bytes()).splitlines()
    return [(Path(_unescaped(line.split()[4])), _unescaped(line.split()[-1])) for line in lines]


def _unescaped(text: str) -> str:
    return re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), text)


def _is_dead(process: psutil.Process) -> bool:
    try:
        return bool(process.status() == psutil.STATUS_ZOMBIE)
    except psutil.Error:
        return True


def _unmount(directories: tuple[Path, ...]) -> None:
    for point, _ in reversed(_mounts("self")):
        if any(point.is_relative_to(each) for each in directories):
            run("umount", "--lazy", str(point))


def _remove_cgroups(containers: set[str]) -> None:
    for group in (*CGROUPS.glob("docker/*"), *CGROUPS.glob("*/docker/*")):
        if group.name in containers:
            with contextlib.suppress(OSError):
                group.rmdir()


def remove_pod_cgroups(root: str) -> None:
    """Those that node agents made, below the groups that their `cgroupRoot`, a pattern, tells.

    Where Docker makes groups through systemd they are slices: it lets go of those below with the topmost.
    """
    slices = f"{root.replace('-', '_')}.slice"
    for name in {top.name for top in (*CGROUPS.glob(slices), *CGROUPS.glob(f"*/{slices}"))}:
        succeeds("systemctl", "stop", name)
    for top in [path for name in (root, slices) for path in (*CGROUPS.glob(name), *CGROUPS.glob(f"*/{name}"))]:
        # Docker's own groups go at the same time; a walk does not mind.
        for group, _, _ in os.walk(top, topdown=False):
            with contextlib.suppress(OSError):
                Path(group).rmdir()


def _remove_tree(state: Path, keep_logs: bool) -> None:
    patterns = (f"{folder}{name}" for folder in ("", "*/", "*/log/") for name in ("*.log", "*.log.1"))
    logs = [log for pattern in patterns for log in state.glob(pattern)] if keep_logs else []
    saved_logs = [(log, log.read_bytes()) for log in logs]
    # Containers chose the depth of their directories, and shutil.rmtree recurses.
    if not succeeds("rm", "-rf", str(state)):
        raise LabError(f"{state} could not be removed; a process may still use it")
    for log, text in saved_logs:
        log.parent.mkdir(parents=True, exist_ok=True)
        log.write_bytes(text)
