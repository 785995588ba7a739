"""Processes of execs: start time, user, hang-up and kill. Driver."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import time
from pathlib import Path


def process_user(pid: int) -> tuple[int, int, tuple[int, ...]] | None:
    """The uid, the gid and the groups of a process; None when there is no such process (proc_pid_status(5))."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return None
    told = dict(line.split(":", 1) for line in lines)
    return int(told["Uid"].split()[0]), int(told["Gid"].split()[0]), tuple(map(int, told["Groups"].split()))


def process_exists(pid: int) -> bool:
    """Whether there is such a process."""
    return pid > 0 and Path(f"/proc/{pid}").exists()


def process_start_time(pid: int) -> float:
    """When a process began, in seconds since 1970; 0 when there is no such process (field 22 of proc_pid_stat(5))."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return time.time() - time.clock_gettime(time.CLOCK_BOOTTIME) + int(fields[19]) / os.sysconf("SC_CLK_TCK")


async def hang_up(pid: int, cgroup: str, seconds: float) -> None:
    """SIGHUP to a process and to its group if it leads one, and SIGKILL when it has not ended after so many seconds.

    Its control group must have `cgroup` in its name, else the number already is that of another and nothing is done.
    Returns when it has ended, or so many seconds after SIGKILL.
    """
    try:
        held = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    try:
        for number in (signal.SIGHUP, signal.SIGKILL):
            if not _signal(held, pid, cgroup, number):
                return
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await _end_of(held)
                return
    finally:
        os.close(held)


def _signal(held: int, pid: int, cgroup: str, number: signal.Signals) -> bool:
    """Whether it was there. The number is its own as long as it is held and has not ended."""
    try:
        inside = cgroup in Path(f"/proc/{pid}/cgroup").read_text()
        signal.pidfd_send_signal(held, 0)
        if inside and os.getpgid(pid) == pid:
            os.killpg(pid, number)
        elif inside:
            signal.pidfd_send_signal(held, number)
    except (ProcessLookupError, FileNotFoundError):
        return False
    return inside


async def _end_of(held: int) -> None:
    loop = asyncio.get_running_loop()
    ended: asyncio.Future[None] = loop.create_future()
    loop.add_reader(held, _tell, ended)
    try:
        await ended
    finally:
        loop.remove_reader(held)


def _tell(ended: asyncio.Future[None]) -> None:
    if not ended.done():
        ended.set_result(None)
