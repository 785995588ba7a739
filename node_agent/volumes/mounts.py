"""Mount, unmount, mount table, subPath mounts. Driver."""

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

_OCTAL = re.compile(r"\\([0-7]{3})")
COMMAND_SECONDS = 60.0


def mount_points(below: Path) -> list[Path]:
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
    return path.parent.resolve() / path.name in mount_points(path.parent)


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


def make_shared(path: Path) -> None:
    """From now on what containers mount below the directory reaches the host, if they ask for it. Raises NotReady.

    It is mounted on itself where it is not shared already.
    """
    if is_shared(path):
        return
    if mount_points(path):
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
    for point in mount_points(below):
        _run("umount", str(point))


def _run(*command: str) -> None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=COMMAND_SECONDS)
    except subprocess.TimeoutExpired:
        raise NotReady(f"{' '.join(command)}: not done after {COMMAND_SECONDS:.0f} s") from None
    if done.returncode:
        raise NotReady(f"{' '.join(command)} (exit {done.returncode}): {done.stderr.strip()}")


ELEMENT = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC


def mount_sub_paths(wanted: tuple[SubPath, ...]) -> None:
    """Mount each part at its target; one that is another file by now is mounted anew.

    Raises Refused when a part is not in its volume, NotReady when the host cannot.
    """
    for one in wanted:
        try:
            with _opened(one) as part:
                _bind(part, Path(one.target))
        except OSError as error:
            raise Refused(f"subPath {one.path!r}: {error.strerror or error}") from None


def _bind(part: int, target: Path) -> None:
    if is_mounted(target):
        if os.path.samestat(target.stat(), os.fstat(part)):
            return
        unmount_all(target)
    target.parent.mkdir(parents=True, exist_ok=True)
    if stat.S_ISDIR(os.fstat(part).st_mode):
        target.mkdir(exist_ok=True)
    else:
        target.touch()
    bind(part, target)


@contextmanager
def _opened(one: SubPath) -> Iterator[int]:
    """Links within the volume are followed first; from then on none is, should it be changed meanwhile."""
    root = Path(one.root).resolve()
    real = Path(one.root, one.path).resolve()
    if not real.is_relative_to(root):
        raise Refused(f"subPath {one.path!r} leads out of the volume")
    here = os.open(root, ELEMENT | os.O_DIRECTORY)
    mode = stat.S_IMODE(os.fstat(here).st_mode)
    try:
        for name in real.relative_to(root).parts:
            below = _step(here, name, mode, one)
            os.close(here)
            here = below
            if stat.S_ISLNK(os.fstat(here).st_mode):
                raise Refused(f"subPath {one.path!r} was changed while it was opened")
        yield here
    finally:
        os.close(here)


def _step(here: int, name: str, mode: int, one: SubPath) -> int:
    """What is missing is a directory with the mode of the volume's own."""
    try:
        return os.open(name, ELEMENT, dir_fd=here)
    except FileNotFoundError:
        if not one.may_make:
            raise
    # It gets its name with its mode: whoever is killed before finds it again under a name that is this part's alone.
    unfinished = f".podlane-{sha256(one.target.encode()).hexdigest()[:12]}"
    with contextlib.suppress(FileExistsError):
        os.mkdir(unfinished, dir_fd=here)
    with contextlib.ExitStack() as on_error:
        below = os.open(unfinished, ELEMENT | os.O_DIRECTORY, dir_fd=here)
        on_error.callback(os.close, below)
        os.chmod(f"/proc/self/fd/{below}", mode)
        os.rename(unfinished, name, src_dir_fd=here, dst_dir_fd=here)
        on_error.pop_all()
    return below
