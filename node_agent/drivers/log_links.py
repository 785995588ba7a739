"""Reads, makes and removes the symbolic links to containers' logs."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from node_agent.log_links import SUFFIX, LogDirs
from reconcile.errors import NotReady

HALF_MADE = ".new"


def present(dirs: LogDirs) -> dict[Path, str]:
    """Every link in both directories, also half made, and where it leads. What is no link belongs to others.

    Raises NotReady.
    """
    with _mapped(dirs.pods):
        ends = (SUFFIX, HALF_MADE)
        found = [*(path for end in ends for path in (*dirs.pods.glob(f"*/*/*{end}"), *dirs.containers.glob(f"*{end}")))]
        return {path: str(path.readlink()) for path in found if path.is_symlink()}


def put(link: Path, target: Path) -> None:
    """Make the link, or let it lead somewhere else. Raises NotReady."""
    with _mapped(link):
        link.parent.mkdir(parents=True, exist_ok=True)
        beside = link.with_suffix(HALF_MADE)
        beside.unlink(missing_ok=True)
        beside.symlink_to(target)
        os.replace(beside, link)


def remove_dangling(dirs: LogDirs, link: Path) -> None:
    """Remove a link that leads nowhere, with the directories that become empty. Raises NotReady.

    That by container, which leads to that by pod, goes after the directories of that one: whoever is killed before
    comes back to it.
    """
    with _mapped(link):
        if link.exists():
            return
        if link.parent == dirs.containers:
            _remove_empty(dirs, link.readlink())
        link.unlink(missing_ok=True)
        _remove_empty(dirs, link)


def _remove_empty(dirs: LogDirs, link: Path) -> None:
    for folder in (link.parent, link.parent.parent):
        if folder.is_relative_to(dirs.pods) and folder != dirs.pods:
            with contextlib.suppress(OSError):
                folder.rmdir()


@contextmanager
def _mapped(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise NotReady(f"{path}: {error.strerror or error}") from None
