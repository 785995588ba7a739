"""Mounts, the mount table and subPath mounts. Driver."""

from __future__ import annotations

import contextlib
import os
import platform
import re
import stat
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path

from node_agent.volumes.paths import SubPath
from reconcile.errors import NotReady, Refused

COMMAND_TIMEOUT_SECONDS = 60.0

OPEN_FLAGS = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC
"""Flags to open a component of a path without following a symbolic link."""

_OCTAL = re.compile(r"\\([0-7]{3})")


def mount_points(directory: Path) -> list[Path]:
    """Return the mount points at a directory and below it, the newest first (proc_pid_mountinfo(5))."""
    lines = os.fsdecode(Path("/proc/self/mountinfo").read_bytes()).splitlines()
    points = (_unescape(line.split(" ", 5)[4]) for line in lines)
    root = str(directory.resolve())
    prefix = f"{root.rstrip('/')}/"
    # Strings are compared, not paths, because hundreds of container mounts are compared for each volume.
    return [Path(point) for point in points if point == root or point.startswith(prefix)][::-1]


def is_mounted(path: Path) -> bool:
    """Return whether a path is a mount point. The filesystem is not accessed: its server may be unreachable."""
    return path.parent.resolve() / path.name in mount_points(path.parent)


def is_filesystem(path: Path) -> bool:
    """Return whether a directory is the root of a filesystem, such as a tmpfs. Far cheaper than `is_mounted`."""
    return path.stat().st_dev != path.parent.stat().st_dev


def is_shared(path: Path) -> bool:
    """Return whether the mount of a path is shared, so that mounts below it propagate (mount_namespaces(7))."""
    real = path.resolve()
    mounts = [line.split(" ") for line in os.fsdecode(Path("/proc/self/mountinfo").read_bytes()).splitlines()]
    mounts_above = [fields for fields in mounts if real.is_relative_to(_unescape(fields[4]))]
    nearest = max(mounts_above, key=lambda fields: len(fields[4]))
    return any(field.startswith("shared:") for field in nearest[6 : nearest.index("-")])


def make_shared(path: Path) -> None:
    """Make a directory a shared mount, so that mounts of containers below it can propagate to the host.

    The directory is bind-mounted on itself if it is not shared. Raises NotReady.
    """
    if is_shared(path):
        return
    if mount_points(path):
        raise NotReady(f"{path} cannot become a shared mount: mounts in it would be hidden")
    _run("mount", "--bind", str(path), str(path))
    _run("mount", "--make-rshared", str(path))


def mount(fs_type: str, source: str, target: Path, options: tuple[str, ...] = ()) -> None:
    """Mount a filesystem. Raises NotReady with the message of mount(8)."""
    _run("mount", "-t", fs_type, *(("-o", ",".join(options)) if options else ()), source, str(target))


def mount_tmpfs(target: Path, *options: str) -> None:
    """Mount a tmpfs. It is not swapped out if the kernel has the option for that (6.4 and newer). Raises NotReady."""
    version = [int(number) for number in re.findall(r"\d+", platform.release())[:2]]
    mount("tmpfs", "tmpfs", target, (*options, "noswap") if version >= [6, 4] else options)


def bind_mount(descriptor: int, target: Path) -> None:
    """Bind-mount an open file or directory. Raises NotReady."""
    # mount(8) is another process. Without the option it would resolve the link itself, to a path that may have changed.
    _run("mount", "--no-canonicalize", "--bind", f"/proc/{os.getpid()}/fd/{descriptor}", str(target))


def is_mounted_at(descriptor: int, target: Path) -> bool:
    """Return whether an open file or directory is mounted at a path."""
    return is_mounted(target) and os.path.samestat(target.stat(), os.fstat(descriptor))


def mount_at(descriptor: int, target: Path) -> None:
    """Bind-mount an open file or directory, unless it is mounted there. Another mount is replaced. Raises NotReady."""
    if is_mounted_at(descriptor, target):
        return
    if is_mounted(target):
        unmount_all(target)
    target.parent.mkdir(parents=True, exist_ok=True)
    if stat.S_ISDIR(os.fstat(descriptor).st_mode):
        target.mkdir(exist_ok=True)
    else:
        target.touch()
    bind_mount(descriptor, target)


def unmount_all(directory: Path) -> None:
    """Unmount everything at a directory and below it. Raises NotReady while a mount is in use."""
    for point in mount_points(directory):
        _run("umount", str(point))


def mount_sub_paths(sub_paths: tuple[SubPath, ...]) -> None:
    """Mount each subPath at its target. A target that shows another file than before is mounted again.

    Raises Refused if a subPath is not in its volume, NotReady if the host cannot mount it.
    """
    for sub_path in sub_paths:
        try:
            with _open_sub_path(sub_path) as descriptor:
                mount_at(descriptor, Path(sub_path.target))
        except OSError as error:
            raise Refused(f"subPath {sub_path.path!r}: {error.strerror or error}") from None


def _unescape(field: str) -> str:
    """Return a path of the mount table without its octal escapes for blanks and backslashes."""
    return _OCTAL.sub(lambda octal: chr(int(octal[1], 8)), field) if "\\" in field else field


def _run(*command: str) -> None:
    try:
        result = subprocess.run(command, capture_output=True, text=True, check=False, timeout=COMMAND_TIMEOUT_SECONDS)
    except subprocess.TimeoutExpired:
        raise NotReady(f"{' '.join(command)}: no result within {COMMAND_TIMEOUT_SECONDS:.0f} s") from None
    if result.returncode:
        raise NotReady(f"{' '.join(command)} (exit {result.returncode}): {result.stderr.strip()}")


@contextmanager
def _open_sub_path(sub_path: SubPath) -> Iterator[int]:
    """Open a subPath. Symbolic links within the volume are resolved first.

    The resolved path is then opened component by component without following links, so that a container cannot
    redirect it meanwhile.
    """
    root = Path(sub_path.root).resolve()
    real = Path(sub_path.root, sub_path.path).resolve()
    if not real.is_relative_to(root):
        raise Refused(f"subPath {sub_path.path!r} leads out of the volume")
    descriptor = os.open(root, OPEN_FLAGS | os.O_DIRECTORY)
    mode = stat.S_IMODE(os.fstat(descriptor).st_mode)
    try:
        for name in real.relative_to(root).parts:
            child = _open_component(descriptor, name, mode, sub_path)
            os.close(descriptor)
            descriptor = child
            if stat.S_ISLNK(os.fstat(descriptor).st_mode):
                raise Refused(f"subPath {sub_path.path!r} was changed while it was opened")
        yield descriptor
    finally:
        os.close(descriptor)


def _open_component(parent: int, name: str, mode: int, sub_path: SubPath) -> int:
    """Open a component of a subPath. A missing one is created as a directory with the mode of the volume's root."""
    try:
        return os.open(name, OPEN_FLAGS, dir_fd=parent)
    except FileNotFoundError:
        if not sub_path.create_missing:
            raise
    # The directory gets its name only after its mode. If the agent is killed before that, the next one finds the
    # directory under the temporary name, which no other subPath has.
    temporary_name = f".podlane-{sha256(sub_path.target.encode()).hexdigest()[:12]}"
    with contextlib.suppress(FileExistsError):
        os.mkdir(temporary_name, dir_fd=parent)
    with contextlib.ExitStack() as on_error:
        child = os.open(temporary_name, OPEN_FLAGS | os.O_DIRECTORY, dir_fd=parent)
        on_error.callback(os.close, child)
        os.chmod(f"/proc/self/fd/{child}", mode)
        os.rename(temporary_name, name, src_dir_fd=parent, dst_dir_fd=parent)
        on_error.pop_all()
    return child
