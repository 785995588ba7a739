"""Usage of trees that a container has made to stop the agent: deeper than Python recurses, longer than any path."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from node_agent.stats.disk import directory_usage
from node_agent.volumes.atomic_writer import write_payload
from node_agent.volumes.tree_walk import MAX_OPEN, walk

MIB = 1 << 20


@pytest.fixture
def top(tmp_path: Path) -> Iterator[Path]:
    """A directory whose content is removed without recursion, because pytest recurses, also in later runs."""
    (tmp_path / "top").mkdir()
    yield tmp_path / "top"
    subprocess.run(["rm", "-rf", str(tmp_path / "top")], check=True)


def make_deep(directory: Path, levels: int, name: str = "n") -> int:
    """Make nested directories with a directory beside each, and return the descriptor of the deepest."""
    descriptor = os.open(directory, os.O_RDONLY)
    for _ in range(levels):
        os.mkdir(name, dir_fd=descriptor)
        os.mkdir("beside", dir_fd=descriptor)
        child = os.open(name, os.O_RDONLY, dir_fd=descriptor)
        os.close(descriptor)
        descriptor = child
    return descriptor


@pytest.mark.parametrize(("levels", "name"), [(1500, "n"), (20, "n" * 250)])
def test_file_in_a_tree_of_any_depth_counts(top: Path, levels: int, name: str) -> None:
    deepest = make_deep(top, levels, name)
    empty, inodes = directory_usage(top)
    assert inodes == 1 + 2 * levels
    file = os.open("big", os.O_CREAT | os.O_WRONLY, dir_fd=deepest)
    os.write(file, b"x" * MIB)
    os.close(file)
    os.close(deepest)
    size, inodes = directory_usage(top)
    assert size - empty >= MIB
    assert inodes == 2 + 2 * levels


def test_old_content_of_any_depth_is_removed_from_a_volume(top: Path) -> None:
    (top / "..old").mkdir()
    os.close(make_deep(top / "..old", 1500))
    write_payload(top, {})
    assert not (top / "..old").exists()
    assert (top / "..data").is_dir()


def open_files() -> set[str]:
    return set(os.listdir("/proc/self/fd"))


def test_open_directories_are_bounded_and_closed(top: Path) -> None:
    os.close(make_deep(top, 1500))
    before = open_files()
    most = max(len(open_files() - before) for _ in walk(top))
    assert MAX_OPEN <= most <= MAX_OPEN + 5
    assert open_files() == before


def test_link_out_of_the_tree_is_not_followed(top: Path) -> None:
    (top / "inner").mkdir()
    (top / "link").symlink_to("/proc")
    (top / "inner" / "dangling").symlink_to("nowhere")
    assert directory_usage(top)[1] == 4
    assert directory_usage(top / "link") == (0, 0)
    assert directory_usage(top / "inner" / "gone") == (0, 0)


@pytest.mark.parametrize("levels", [MAX_OPEN - 10, MAX_OPEN + 10])
def test_directory_that_is_moved_during_the_walk_hides_nothing_above(top: Path, levels: int) -> None:
    """The walk has no way back from a closed directory that was moved; it goes on at the last open one."""
    os.close(make_deep(top, levels))
    expected = {entry.inode() for entry in os.scandir(top)}
    moved = top.joinpath(*["n"] * (levels - 2))
    deepest = (moved / "n" / "n").stat().st_ino
    (moved / "n" / "n" / "file").touch()
    seen: list[int] = []
    for status in walk(top):
        seen.append(status.st_ino)
        if status.st_ino == deepest:
            (moved / "n").rename(top / "moved")
    assert deepest in seen
    assert expected <= set(seen)
    assert len(seen) == len(set(seen)), "nothing is counted twice"


def test_directory_that_was_replaced_by_a_link_is_not_walked(top: Path) -> None:
    for name in ("a", "b"):
        (top / name / "inner").mkdir(parents=True)
    seen = 0
    for _ in walk(top):
        seen += 1
        if seen == 2:  # One of the two was opened; the other one is still a name.
            for name in ("a", "b"):
                (top / name).rename(top / f"{name}-before")
                (top / name).symlink_to("/proc")
    assert seen == 3
