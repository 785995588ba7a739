"""Ends the running code before any of its file operations, or before it starts another program."""

from __future__ import annotations

import sys
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from tests.testbed.docker.fake import AgentKilled

FILE_EVENTS = {
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


@dataclass(frozen=True, slots=True)
class Share:
    """One of `number` calls, chosen by a seed."""

    number: int
    seed: int

    def __str__(self) -> str:
        return f"{self.number}:{self.seed}"

    @classmethod
    def parse(cls, text: str) -> Share:
        """Return the share of a text, NUMBER:SEED."""
        number, _, seed = text.partition(":")
        return cls(int(number), int(seed))

    def has(self, call: str) -> bool:
        """Return whether a call is in the share."""
        return zlib.crc32(f"{self.seed} {call}".encode()) % self.number == 0


class FileFaultInjector:
    """Counts file operations by an audit hook (PEP 578), and raises AgentKilled before the chosen one."""

    def __init__(self) -> None:
        self.remaining: int | None = None
        self.acts = 0
        sys.addaudithook(self._audit_hook)

    def _audit_hook(self, event: str, _: tuple[Any, ...]) -> None:
        if self.remaining is not None and event in FILE_EVENTS:
            self.acts += 1
            self.remaining -= 1
            if self.remaining < 0:
                self.remaining = None
                raise AgentKilled

    @contextmanager
    def after(self, acts: int) -> Iterator[None]:
        """Raise AgentKilled in the block after this number of file operations."""
        self.remaining, self.acts = acts, 0
        try:
            yield
        finally:
            self.remaining = None


INJECTOR = FileFaultInjector()
"""The only one of this process, because an audit hook cannot be removed."""
