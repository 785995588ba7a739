"""Mounts of the host: what is mounted below a directory, mounting and unmounting."""

from __future__ import annotations

import os
import platform
import re
import subprocess
from pathlib import Path

from reconcile.errors import NotReady

_OCTAL = re.compile(r"\\([0-7]{3})")
COMMAND_SECONDS = 60.0


def points(below: Path) -> list[Path]:
    """Where something is mounted, on the directory or below it, the newest first (proc_pid_mountinfo(5))."""
    lines = os.fsdecode(Path("/proc/self/mountinfo").read_bytes()).splitlines()
    found = (_point(line.split(" ", 5)[4]) for line in lines)
    root = str(below.resolve())
    # Text, not paths: hundreds of mounts of containers are looked at for each volume.
    return [Path(point) for point in found if point == root or point.startswith(f"{root.rstrip('/')}/")][::-1]


def _point(written: str) -> str:
    return _OCTAL.sub(lambda octal: chr(int(octal[1], 8)), written) if "\\" in written else written


def is_mounted(path: Path) -> bool:
    """Whether something is mounted there; it is not asked, for its server may be away."""
    return path.parent.resolve() / path.name in points(path.parent)


def is_filesystem(path: Path) -> bool:
    """Whether a directory is a filesystem of its own, such as a tmpfs; far cheaper than a look at all mounts."""
    return path.stat().st_dev != path.parent.stat().st_dev


def is_shared(path: Path) -> bool:
    """Whether what is mounted below the path is seen by others who have it (mount_namespaces(7))."""
    real = path.resolve()
    rows = [line.split(" ") for line in os.fsdecode(Path("/proc/self/mountinfo").read_bytes()).splitlines()]
    above = [row for row in rows if real.is_relative_to(_point(row[4]))]
    nearest = max(above, key=lambda row: len(row[4]))
    return any(word.startswith("shared:") for word in nearest[6 : nearest.index("-")])


def share(path: Path) -> None:
    """From now on what containers mount below the directory reaches the host, if they ask for it. Raises NotReady.

    It is mounted on itself where it is not shared already.
    """
    if is_shared(path):
        return
    if points(path):
        raise NotReady(f"{path}: something is mounted in it, and would be hidden")
    _run("mount", "--bind", str(path), str(path))
    _run("mount", "--make-rshared", str(path))


def mount(kind: str, source: str, target: Path, options: tuple[str, ...] = ()) -> None:
    """Mount a filesystem. Raises NotReady with the command's own words."""
    _run("mount", "-t", kind, *(("-o", ",".join(options)) if options else ()), source, str(target))


def bind(opened: int, target: Path) -> None:
    """Mount an opened file or directory at another place. Raises NotReady."""
    # mount(8) has a process of its own, and must not look where the link leads before the kernel does.
    _run("mount", "--no-canonicalize", "--bind", f"/proc/{os.getpid()}/fd/{opened}", str(target))


def tmpfs(target: Path, *options: str) -> None:
    """Mount memory, which is not swapped out where the kernel can be told so (6.4). Raises NotReady."""
    numbers = [int(number) for number in re.findall(r"\d+", platform.release())[:2]]
    mount("tmpfs", "tmpfs", target, (*options, *(("noswap",) if numbers >= [6, 4] else ())))


def unmount_all(below: Path) -> None:
    """Unmount everything on the directory and below it. Raises NotReady while something is in use."""
    for point in points(below):
        _run("umount", str(point))


def _run(*command: str) -> None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=COMMAND_SECONDS)
    except subprocess.TimeoutExpired:
        raise NotReady(f"{' '.join(command)}: not done after {COMMAND_SECONDS:.0f} s") from None
    if done.returncode:
        raise NotReady(f"{' '.join(command)} (exit {done.returncode}): {done.stderr.strip()}")
