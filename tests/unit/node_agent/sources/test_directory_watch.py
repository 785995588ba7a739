"""Changes in a directory wake whoever waits for them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

from node_agent.sources.directory_watch import DirectoryWatch

SECONDS = 20.0

CHANGES: tuple[Callable[[Path], object], ...] = (
    lambda directory: (directory / "new.yaml").write_text("x"),
    lambda directory: (directory / "old.yaml").write_text("y"),
    lambda directory: (directory / "old.yaml").rename(directory / "renamed.yaml"),
    lambda directory: (directory / "old.yaml").unlink(),
    lambda directory: (directory / "link.yaml").symlink_to("old.yaml"),
    lambda directory: (directory / "old.yaml").chmod(0o600),
)


@pytest.mark.parametrize("change", CHANGES, ids=["create", "write", "rename", "remove", "link", "chmod"])
async def test_change_of_a_file_is_noticed_once(tmp_path: Path, change: Callable[[Path], object]) -> None:
    (tmp_path / "old.yaml").write_text("x")
    with DirectoryWatch(tmp_path) as changes:
        change(tmp_path)
        async with asyncio.timeout(SECONDS):
            await changes.wait()
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0):
                await changes.wait()


async def test_missing_directory_is_named(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="missing"), DirectoryWatch(tmp_path / "missing"):
        pass
