"""A storage to which a second master writes, too: its writes come just before ours and touch the same objects."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from master.storage.interface import Conflict, Delete, Put
from master.storage.sqlite import SQLiteStorage

Change = Put | Delete
Competitor = Callable[[Sequence[Change]], Change | None]
"""Returns what the second master writes before these changes; None: nothing."""


class ContendedStorage(SQLiteStorage):
    """A `SQLiteStorage` with a competitor. Open it and then set `competitor`."""

    competitor: Competitor = staticmethod(lambda changes: None)
    attempts = 0
    conflicts = 0

    async def write(self, *changes: Change) -> tuple[Any, ...]:
        if not changes:
            return await super().write()
        self.attempts += 1
        competing = self.competitor(changes)
        if competing is not None:
            await super().write(competing)
        try:
            return await super().write(*changes)
        except Conflict:
            self.conflicts += 1
            raise
