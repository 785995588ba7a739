"""A process that opens the log of a store. With a number it kills itself before that statement, counted from BEGIN.

Without a number it prints a line before it opens the log, so that the parent can kill it in the middle.
"""

from __future__ import annotations

import functools
import os
import signal
import sqlite3
import sys
from pathlib import Path
from typing import Any

from master.storage.revision_log import RevisionLog


class KilledConnection(sqlite3.Connection):
    """A connection whose process is killed before a statement of the first transaction."""

    kill_before = 0
    executed = 0

    def execute(self, sql: str, *parameters: Any) -> sqlite3.Cursor:
        if self.executed or sql.startswith("BEGIN"):
            if self.executed == self.kill_before:
                os.kill(os.getpid(), signal.SIGKILL)
            self.executed += 1
        return super().execute(sql, *parameters)


def _main(path: Path, kill_before: int | None) -> None:
    if kill_before is not None:
        KilledConnection.kill_before = kill_before
        sqlite3.connect = functools.partial(sqlite3.connect, factory=KilledConnection)  # type: ignore[assignment]
    os.write(1, b"opening\n")
    RevisionLog(path).close()


if __name__ == "__main__":
    _main(Path(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else None)
