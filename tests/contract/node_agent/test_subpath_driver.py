"""Sub-paths of volumes on a real host: they never leave the volume, and nothing is left."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from node_agent.volumes import atomic_writer, mounts, setup
from node_agent.volumes.mounts import mount_sub_paths
from node_agent.volumes.paths import SubPath
from node_agent.volumes.payload import PayloadFile
from reconcile.errors import Refused


@pytest.fixture
def pod_dir(tmp_path: Path) -> Iterator[Path]:
    directory = tmp_path / "a pod"
    (directory / "volume").mkdir(parents=True)
    (directory / "volume").chmod(0o2770)
    yield directory
    setup.remove_directory(directory)
    assert mounts.mount_points(directory) == []
    assert not directory.exists()


def part(pod_dir: Path, path: str, *, may_make: bool = True) -> SubPath:
    return SubPath(str(pod_dir / "volume"), path, str(pod_dir / "volume-subpaths" / "v" / "main" / "0"), may_make)


def test_sub_path_directory_is_created_with_its_volumes_mode(pod_dir: Path) -> None:
    sub_path = part(pod_dir, "a/b")
    before = os.umask(0o077)
    try:
        mount_sub_paths((sub_path,))
    finally:
        os.umask(before)
    assert stat.S_IMODE((pod_dir / "volume" / "a" / "b").stat().st_mode) == 0o2770
    (pod_dir / "volume" / "a" / "b" / "file").write_text("seen")
    assert Path(sub_path.target, "file").read_text() == "seen"
    mount_sub_paths((sub_path,))
    assert len(mounts.mount_points(pod_dir)) == 1


def test_sub_path_file_stays_unchanged_until_the_container_is_replaced(pod_dir: Path) -> None:
    sub_path = part(pod_dir, "key", may_make=False)
    atomic_writer.write_payload(pod_dir / "volume", {"key": PayloadFile(b"1", 0o644)})
    mount_sub_paths((sub_path,))
    atomic_writer.write_payload(pod_dir / "volume", {"key": PayloadFile(b"2", 0o644)})
    assert Path(sub_path.target).read_bytes() == b"1"
    mount_sub_paths((sub_path,))
    assert Path(sub_path.target).read_bytes() == b"2"
    assert len(mounts.mount_points(pod_dir)) == 1


def test_missing_sub_path_in_a_file_volume_is_rejected(pod_dir: Path) -> None:
    with pytest.raises(Refused, match="subPath 'none': No such file"):
        mount_sub_paths((part(pod_dir, "none", may_make=False),))
    assert not (pod_dir / "volume" / "none").exists()


@pytest.mark.parametrize("path", ["out", "out/etc", "up/outside", "deep/../../outside"])
def test_sub_path_symlink_cannot_leave_the_volume(pod_dir: Path, path: str) -> None:
    (pod_dir / "volume" / "out").symlink_to("/")
    (pod_dir / "volume" / "up").symlink_to("..")
    (pod_dir / "volume" / "deep").mkdir()
    (pod_dir / "outside").mkdir()
    with pytest.raises(Refused, match="leads out of the volume"):
        mount_sub_paths((part(pod_dir, path),))
    assert mounts.mount_points(pod_dir) == []


def test_sub_path_symlink_within_the_volume_is_followed(pod_dir: Path) -> None:
    (pod_dir / "volume" / "real").mkdir()
    (pod_dir / "volume" / "link").symlink_to("real")
    sub_path = part(pod_dir, "link")
    mount_sub_paths((sub_path,))
    assert os.path.samefile(sub_path.target, pod_dir / "volume" / "real")


def test_sub_path_symlink_created_meanwhile_is_not_followed(pod_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    directory = pod_dir / "volume" / "a"
    directory.mkdir()
    resolve = Path.resolve

    def resolved_too_early(path: Path, strict: bool = False) -> Path:
        resolved = resolve(path, strict)
        if path.name == "a" and directory.is_dir() and not directory.is_symlink():
            directory.rmdir()
            directory.symlink_to("/etc")
        return resolved

    monkeypatch.setattr(Path, "resolve", resolved_too_early)
    with pytest.raises(Refused, match="was changed while it was opened"):
        mount_sub_paths((part(pod_dir, "a"),))
    assert directory.is_symlink(), "the test has put the link in the way"
