"""Processes of execs: start time, user, hang-up and kill. Driver."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import time
from pathlib import Path


def process_user(pid: int) -> tuple[int, int, tuple[int, ...]] | None:
    """Return uid, gid and groups of a process (proc_pid_status(5)). Returns None if there is no such process."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return None
    fields = dict(line.split(":", 1) for line in lines)
    uid = int(fields["Uid"].split()[0])
    gid = int(fields["Gid"].split()[0])
    return uid, gid, tuple(map(int, fields["Groups"].split()))


def process_exists(pid: int) -> bool:
    """Return whether there is a process with this ID."""
    return pid > 0 and Path(f"/proc/{pid}").exists()


def process_start_time(pid: int) -> float:
    """Return the start time of a process in seconds since 1970 (field 22 of proc_pid_stat(5)).

    Returns 0 if there is no such process.
    """
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return time.time() - time.clock_gettime(time.CLOCK_BOOTTIME) + int(fields[19]) / os.sysconf("SC_CLK_TCK")


async def hang_up(pid: int, cgroup: str, seconds: float) -> None:
    """Send SIGHUP to a process, and SIGKILL if it still runs after this many seconds.

    If the process leads a process group, the signals go to the group. Does nothing if the name of the process's cgroup
    does not contain `cgroup`, because then the process ID belongs to another process. Returns when the process has
    ended, or this many seconds after SIGKILL.
    """
    try:
        pidfd = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    try:
        for number in (signal.SIGHUP, signal.SIGKILL):
            if not _signal(pidfd, pid, cgroup, number):
                return
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await _wait_for_exit(pidfd)
                return
    finally:
        os.close(pidfd)


def _signal(pidfd: int, pid: int, cgroup: str, number: signal.Signals) -> bool:
    """Send a signal. Returns whether the process existed in the cgroup.

    The process ID is not reused while the pidfd is open and the process has not ended.
    """
    try:
        in_cgroup = cgroup in Path(f"/proc/{pid}/cgroup").read_text()
        signal.pidfd_send_signal(pidfd, 0)
        if in_cgroup and os.getpgid(pid) == pid:
            os.killpg(pid, number)
        elif in_cgroup:
            signal.pidfd_send_signal(pidfd, number)
    except (ProcessLookupError, FileNotFoundError):
        return False
    return in_cgroup


async def _wait_for_exit(pidfd: int) -> None:
    loop = asyncio.get_running_loop()
    exited: asyncio.Future[None] = loop.create_future()
    loop.add_reader(pidfd, _set_done, exited)
    try:
        await exited
    finally:
        loop.remove_reader(pidfd)


def _set_done(exited: asyncio.Future[None]) -> None:
    if not exited.done():
        exited.set_result(None)
