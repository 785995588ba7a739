"""A store whose process is killed while it writes and compacts: no acknowledged write is lost."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from pathlib import Path

from api.core.node import Namespace
from master.resources.scheme import STORED_TYPES, group_resource
from master.storage.interface import Key
from master.storage.revision_log import LogRow, RevisionLog
from master.storage.sqlite import SQLiteStorage
from tests.testbed.apiserver.store_writer import GONE, KEEP

NAMESPACES = group_resource(Namespace)

KILLS = int(os.environ.get("PODLANE_SOAK_KILLS", "8"))
MOST_WRITES = 300
"""Of one life, before it is killed."""


def _life(path: Path) -> dict[str, tuple[int, int]]:
    """Return the last acknowledged revision and step of each object before the process was killed."""
    enough, reported = random.randint(1, MOST_WRITES), {}
    command = [sys.executable, "-m", "tests.testbed.apiserver.store_writer", str(path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        for count, line in enumerate(process.stdout, 1):
            if count == enough:
                process.kill()
            name, revision, step = line.decode().split()
            reported[name] = (int(revision), int(step))
    return reported


def _check_rows(log_rows: list[LogRow], compacted: int) -> None:
    """Check the log: of compacted revisions only current objects remain, and all later revisions are complete."""
    old = [log_row for log_row in log_rows if log_row.revision <= compacted]
    assert len({log_row.name for log_row in old}) == len(old)
    assert not [log_row for log_row in old if log_row.removed]
    assert [log_row.revision for log_row in log_rows[len(old) :]] == list(
        range(compacted + 1, log_rows[-1].revision + 1)
    )


async def test_store_killed_while_compacting_keeps_acknowledged_writes(tmp_path: Path) -> None:
    path, newest, forgotten = tmp_path / "store.db", 0, 0
    for _ in range(KILLS):
        reported = _life(path)
        journal = RevisionLog(path)
        log_rows, compacted = list(journal.rows()), journal.compacted()
        journal.close()
        _check_rows(log_rows, compacted)
        assert log_rows[-1].revision >= max(revision for revision, _ in reported.values()) > newest
        assert compacted >= forgotten
        newest, forgotten = log_rows[-1].revision, compacted
        store = await SQLiteStorage.open(path, STORED_TYPES, KEEP)
        for name, (revision, step) in reported.items():
            record = store.get(Key(NAMESPACES, "", name))
            there = (record.revision, int(record.object.metadata.labels["step"])) if record else (0, GONE)
            # One write of each writer was on its way, and may have got there.
            assert there == (revision, step) or there[1] == (step + 1) % (GONE + 1) or (there[1] == step == GONE)
        assert store.revision == newest
        await store.close()
    assert forgotten > 0
