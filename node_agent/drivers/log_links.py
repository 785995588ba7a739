"""Reads, makes and removes the symbolic links to containers' logs."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from node_agent.log_links import SUFFIX, LogDirs
from reconcile.errors import NotReady


def present(dirs: LogDirs) -> dict[Path, str]:
    """Every link in both directories, and where it leads. What is no link belongs to others. Raises NotReady."""
    with _mapped(dirs.pods):
        found = [*dirs.pods.glob(f"*/*/*{SUFFIX}"), *dirs.containers.glob(f"*{SUFFIX}")]
        return {path: str(path.readlink()) for path in found if path.is_symlink()}


def put(link: Path, target: Path) -> None:
    """Make the link, or let it lead somewhere else. Raises NotReady."""
    with _mapped(link):
        link.parent.mkdir(parents=True, exist_ok=True)
        beside = link.with_suffix(".new")
        beside.unlink(missing_ok=True)
        beside.symlink_to(target)
        os.replace(beside, link)


def remove_dangling(dirs: LogDirs, link: Path) -> None:
    """Remove a link that leads nowhere, with the directories that become empty. Raises NotReady."""
    with _mapped(link):
        if link.exists():
            return
        link.unlink(missing_ok=True)
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
