"""Ends the running code before any of its file operations, or before it starts another program."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from tests.testbed.docker.fake import AgentKilled

ACTS = {
    "open",
    "os.chmod",
    "os.chown",
    "os.mkdir",
    "os.remove",
    "os.rename",
    "os.rmdir",
    "os.symlink",
    "subprocess.Popen",
}


class FileFaultInjector:
    """Counts what is done to files and ends it after so many acts (PEP 578)."""

    def __init__(self) -> None:
        self.left: int | None = None
        self.acts = 0
        sys.addaudithook(self._hear)

    def _hear(self, event: str, _: tuple[Any, ...]) -> None:
        if self.left is not None and event in ACTS:
            self.acts += 1
            self.left -= 1
            if self.left < 0:
                self.left = None
                raise AgentKilled

    @contextmanager
    def after(self, acts: int) -> Iterator[None]:
        self.left, self.acts = acts, 0
        try:
            yield
        finally:
            self.left = None


INJECTOR = FileFaultInjector()
"""There is one: a hook that hears what a process does stays for ever."""
