"""How full a file system is."""

from __future__ import annotations

import os

from node_agent.garbage import Space
from reconcile.errors import NotReady


def space(path: str) -> Space:
    """Of the file system that holds this path. Raises NotReady."""
    try:
        seen = os.statvfs(path)
    except OSError as error:
        raise NotReady(f"{path}: {error.strerror or error}") from None
    size = seen.f_frsize
    reserved = (seen.f_bfree - seen.f_bavail) * size
    return Space(seen.f_bavail * size, seen.f_blocks * size, seen.f_favail, seen.f_files, reserved)
