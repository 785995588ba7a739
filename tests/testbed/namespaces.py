"""Network namespaces that a thread enters."""

from __future__ import annotations

import contextlib
import ctypes
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

NEW_NETWORK = 0x40000000  # CLONE_NEWNET


_LIBC = ctypes.CDLL(None, use_errno=True)


@contextlib.contextmanager
def inside(namespace: str) -> Iterator[None]:
    """Run the block in another network namespace, given by name or path. A socket stays in that of its creation."""
    own, other = os.open("/proc/thread-self/ns/net", os.O_RDONLY), os.open(Path("/run/netns", namespace), os.O_RDONLY)
    try:
        if _LIBC.setns(other, NEW_NETWORK):
            raise OSError(ctypes.get_errno(), f"cannot enter the network namespace {namespace}")
        yield
    finally:
        _LIBC.setns(own, NEW_NETWORK)
        os.close(own)
        os.close(other)


@contextlib.contextmanager
def only_loopback() -> Iterator[None]:
    """Run the block in a new network namespace with loopback only: what it starts reaches nothing else."""
    own = os.open("/proc/thread-self/ns/net", os.O_RDONLY)
    try:
        if _LIBC.unshare(NEW_NETWORK):
            raise OSError(ctypes.get_errno(), "cannot create a network namespace")
        subprocess.run(("ip", "link", "set", "lo", "up"), check=True)
        yield
    finally:
        _LIBC.setns(own, NEW_NETWORK)
        os.close(own)
