"""Runs a program and reports its output when it fails; locks a lab for one command at a time."""

from __future__ import annotations

import contextlib
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path

from lab.topology import Site


class LabError(Exception):
    """A command of the lab failed; `str(error)` is a sentence for the user."""


class Progress:
    """Prints a line for each step, with the seconds since the begin."""

    def __init__(self) -> None:
        self._begin = time.monotonic()

    def __call__(self, text: str) -> None:
        """Print a line."""
        print(f"[{time.monotonic() - self._begin:5.1f}s] {text}", flush=True)


def run(*command: str, environment: Mapping[str, str] | None = None, seconds: float = 60.0) -> str:
    """Run a program, and return its output. Raises LabError with its error output."""
    try:
        done = subprocess.run(command, check=True, capture_output=True, text=True, env=environment, timeout=seconds)
    except FileNotFoundError:
        raise LabError(f"{command[0]} is not installed; `make lab` installs what the lab needs") from None
    except subprocess.TimeoutExpired:
        raise LabError(f"{' '.join(command)}: did not end within {seconds:g} s") from None
    except subprocess.CalledProcessError as error:
        raise LabError(f"{' '.join(command)}: {(error.stderr or error.stdout).strip()}") from None
    return done.stdout


def succeeds(*command: str) -> bool:
    """Return True if the program exits with 0."""
    return subprocess.run(command, check=False, capture_output=True).returncode == 0


def log(text: str) -> None:
    """Write a line with its time (RFC 3339) to the log of this process."""
    sys.stderr.write(f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ} {text}\n")
    sys.stderr.flush()


BUSY = "the lab is being brought up or taken down by another command; wait for it"


@contextlib.contextmanager
def exclusive(site: Site) -> Iterator[None]:
    """Hold the lock of a lab, so that it is brought up or down once at a time. Raises LabError if it is held.

    The name of a socket without a file: the kernel frees it with the process, however that ends.
    """
    with socket.socket(socket.AF_UNIX) as name:
        try:
            name.bind(f"\0{site.prefix}-lab")
        except OSError:
            raise LabError(BUSY) from None
        yield


def is_held(site: Site) -> bool:
    """Return True while another command holds the lock of a lab. The lock is not taken (proc_net(5), unix)."""
    lines = Path("/proc/net/unix").read_text(errors="replace").splitlines()
    return any(line.endswith(f" @{site.prefix}-lab") for line in lines)
