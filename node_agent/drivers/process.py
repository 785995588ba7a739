"""What the kernel tells of a process."""

from __future__ import annotations

from pathlib import Path


def user_of(pid: int) -> tuple[int, int, tuple[int, ...]] | None:
    """The uid, the gid and the groups of a process; None when there is no such process (proc_pid_status(5))."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return None
    told = dict(line.split(":", 1) for line in lines)
    return int(told["Uid"].split()[0]), int(told["Gid"].split()[0]), tuple(map(int, told["Groups"].split()))
