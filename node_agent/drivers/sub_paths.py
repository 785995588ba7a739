"""Parts of volumes for containers, opened in a way that no link in the volume leads out of it (facts: node 8)."""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path

from node_agent.drivers import mounts
from node_agent.volume_paths import SubPath
from reconcile.errors import Refused

ELEMENT = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC


def prepare(wanted: tuple[SubPath, ...]) -> None:
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
    if mounts.is_mounted(target):
        if os.path.samestat(target.stat(), os.fstat(part)):
            return
        mounts.unmount_all(target)
    target.parent.mkdir(parents=True, exist_ok=True)
    if stat.S_ISDIR(os.fstat(part).st_mode):
        target.mkdir(exist_ok=True)
    else:
        target.touch()
    mounts.bind(part, target)


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
