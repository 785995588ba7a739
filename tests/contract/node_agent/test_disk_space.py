"""Usage of a file system as `df` computes it."""

from __future__ import annotations

import shutil

import pytest

from node_agent.stats.disk import filesystem_stats


def test_disk_usage_excludes_blocks_reserved_for_root() -> None:
    mine, theirs = filesystem_stats("/"), shutil.disk_usage("/")
    assert mine.capacity == theirs.total
    assert mine.used == pytest.approx(theirs.used, rel=0.05)
    assert mine.available == pytest.approx(theirs.free, rel=0.05)
