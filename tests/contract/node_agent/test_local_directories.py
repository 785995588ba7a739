"""Directories of local volumes on a real host: modes, mounts, deletion, and trees that containers have written."""

from __future__ import annotations

import os
import stat
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from node_agent.volumes import mounts, setup
from node_agent.volumes.local_directories import LocalDirectories, mount_local
from node_agent.volumes.ownership import MAX_DEPTH
from node_agent.volumes.paths import LOCAL_PLUGIN
from node_agent.volumes.removal import remove_some, remove_tree
from reconcile.errors import NotReady, Refused

NAME = "pvc-0a1b"
GROUP = 2000


@pytest.fixture(autouse=True)
def nothing_stays(tmp_path: Path) -> Iterator[None]:
    """Leave neither mounts nor deep trees, which the cleanup of pytest, in any later run, cannot remove."""
    yield
    mounts.unmount_all(tmp_path)
    subprocess.run(["rm", "-rf", "--one-file-system", *map(str, tmp_path.iterdir())], check=True)


@pytest.fixture
def pods(tmp_path: Path) -> Path:
    (tmp_path / "pods").mkdir()
    return tmp_path / "pods"


@pytest.fixture
def directories(tmp_path: Path, pods: Path) -> LocalDirectories:
    return LocalDirectories(tmp_path / "local", pods, creates_root=True)


def target(pods: Path) -> Path:
    return pods / "uid" / "volumes" / LOCAL_PLUGIN / "data"


def mode(path: Path) -> int:
    return stat.S_IMODE(path.lstat().st_mode)


def make_deep(directory: Path, depth: int) -> None:
    """Make nested directories, as a container can with relative paths."""
    descriptor = os.open(directory, os.O_RDONLY)
    for _ in range(depth):
        os.mkdir("d", dir_fd=descriptor)
        child = os.open("d", os.O_RDONLY, dir_fd=descriptor)
        os.close(descriptor)
        descriptor = child
    os.close(descriptor)


def test_new_directory_is_writable_for_containers_and_out_of_reach_for_others(directories: LocalDirectories) -> None:
    path = Path(directories.create(NAME))
    assert (path.name, mode(path), mode(path.parent)) == (NAME, 0o777, 0o700)
    (path / "file").write_text("kept")
    assert directories.create(NAME) == str(path)
    assert (path / "file").read_text() == "kept", "a repeated creation changes nothing"


@pytest.mark.parametrize("name", ["..", ".", "", "a/b", "../etc", ".deleting-x", "a.b", "A", "x" * 200])
def test_name_that_could_lead_elsewhere_is_refused(directories: LocalDirectories, tmp_path: Path, name: str) -> None:
    before = sorted(tmp_path.rglob("*"))
    for change in (directories.create, directories.scrub_some, directories.delete_some):
        with pytest.raises(Refused, match="is not the name of a local volume"):
            change(name)
    assert sorted(tmp_path.rglob("*")) == before
    directories.create("pvc-1")


def test_directory_of_an_administrator_must_exist(tmp_path: Path, pods: Path) -> None:
    chosen = LocalDirectories(tmp_path / "disk", pods, creates_root=False)
    with pytest.raises(NotReady, match="is its disk mounted"):
        chosen.create(NAME)
    (tmp_path / "disk").mkdir()
    assert Path(chosen.create(NAME)).is_dir()


def test_directory_is_neither_deleted_nor_scrubbed_while_a_pod_has_mounted_it(
    directories: LocalDirectories, pods: Path
) -> None:
    path = Path(directories.create(NAME))
    (path / "file").write_text("data")
    mount_local(path, target(pods), None, only_if_root_differs=False)
    for _ in range(2):
        for change in (directories.delete_some, directories.scrub_some):
            with pytest.raises(NotReady, match="is mounted for a pod"):
                change(NAME)
    assert (target(pods) / "file").read_text() == "data"
    setup.remove_directory(pods / "uid")
    assert (path / "file").read_text() == "data", "removal of the pod leaves its claims alone"
    assert directories.scrub_some(NAME)
    assert (list(path.iterdir()), mode(path)) == ([], 0o777)
    assert directories.delete_some(NAME)
    assert list(path.parent.iterdir()) == []
    assert directories.delete_some(NAME), "a repeated deletion is a success"


def test_scrub_continues_after_an_interruption_at_each_step(directories: LocalDirectories) -> None:
    path = Path(directories.create(NAME))
    trash = path.parent / f".deleting-{NAME}"
    (path / "file").write_text("data")
    trash.mkdir()  # Interrupted before the rename: the data is still in place.
    assert directories.scrub_some(NAME)
    assert list(path.iterdir()) == []
    (path / "file").write_text("data")
    trash.mkdir()
    path.rename(trash / "1")  # Interrupted after the rename.
    assert directories.scrub_some(NAME)
    assert (list(path.iterdir()), trash.exists()) == ([], False)
    path.rmdir()
    with pytest.raises(NotReady, match="does not exist"):
        directories.scrub_some(NAME)


def test_links_of_a_container_are_not_followed(directories: LocalDirectories, pods: Path, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir(mode=0o700)
    (outside / "secret").write_text("of the host")
    (outside / "secret").chmod(0o600)
    path = Path(directories.create(NAME))
    (path / "own").mkdir()
    (path / "own" / "out").symlink_to(outside)
    (path / "out").symlink_to(outside)
    (path / "file").symlink_to(outside / "secret")
    mount_local(path, target(pods), GROUP, only_if_root_differs=False)
    assert (path / "own").lstat().st_gid == GROUP
    for each in (outside, outside / "secret"):
        assert (each.lstat().st_gid, mode(each) & 0o077) == (0, 0)
    setup.remove_directory(pods / "uid")
    assert directories.delete_some(NAME)
    assert (outside / "secret").read_text() == "of the host"


def test_volume_that_is_a_link_is_not_mounted(directories: LocalDirectories, pods: Path, tmp_path: Path) -> None:
    path = Path(directories.create(NAME))
    path.rmdir()
    with pytest.raises(Refused, match="No such file"):
        mount_local(path, target(pods), None, only_if_root_differs=False)
    path.symlink_to(tmp_path)
    with pytest.raises(Refused):
        mount_local(path, target(pods), None, only_if_root_differs=False)
    assert mounts.mount_points(pods) == []


def test_group_gets_files_and_new_files_of_a_volume(directories: LocalDirectories, pods: Path) -> None:
    path = Path(directories.create(NAME))
    (path / "sub").mkdir(mode=0o700)
    (path / "sub" / "file").touch(mode=0o600)
    (path / "sub" / "program").touch(mode=0o4755)
    mount_local(path, target(pods), GROUP, only_if_root_differs=False)
    shown = target(pods)
    assert [(each.lstat().st_gid, oct(mode(each))) for each in (shown, shown / "sub", shown / "sub" / "file")] == [
        (GROUP, "0o2777"),
        (GROUP, "0o2770"),
        (GROUP, "0o660"),
    ]
    assert not mode(shown / "sub" / "program") & stat.S_ISUID, "no program becomes one of another group with setuid"
    (shown / "sub" / "new").touch()
    assert (shown / "sub" / "new").lstat().st_gid == GROUP


def test_group_is_not_set_again_if_the_root_has_it_and_the_pod_says_so(
    directories: LocalDirectories, pods: Path
) -> None:
    path = Path(directories.create(NAME))
    mount_local(path, target(pods), GROUP, only_if_root_differs=True)
    assert path.lstat().st_gid == GROUP
    (path / "file").touch()
    os.chown(path / "file", 5, 5)
    mounts.unmount_all(pods)
    mount_local(path, target(pods), GROUP, only_if_root_differs=True)
    assert (path / "file").lstat().st_gid == 5
    mounts.unmount_all(pods)
    mount_local(path, target(pods), GROUP, only_if_root_differs=False)
    assert (path / "file").lstat().st_gid == GROUP


@pytest.mark.parametrize("depth", [MAX_DEPTH - 1, MAX_DEPTH])
def test_depth_of_a_volume_with_a_group_is_limited(directories: LocalDirectories, pods: Path, depth: int) -> None:
    path = Path(directories.create(NAME))
    make_deep(path, depth)
    if depth < MAX_DEPTH:
        mount_local(path, target(pods), GROUP, only_if_root_differs=False)
        return
    with pytest.raises(Refused, match="more than 128 levels"):
        mount_local(path, target(pods), GROUP, only_if_root_differs=False)
    mount_local(path, target(pods), None, only_if_root_differs=False)


def test_tree_of_any_depth_is_removed(tmp_path: Path) -> None:
    """A recursive removal ends at 1,000 levels, and one with paths at 4,096 bytes."""
    pod_dir = tmp_path / "uid"
    (pod_dir / "volumes" / "empty").mkdir(parents=True)
    make_deep(pod_dir / "volumes" / "empty", 5000)
    setup.remove_directory(pod_dir)
    assert not pod_dir.exists()


def test_tree_is_removed_in_steps_and_with_names_that_collide(tmp_path: Path) -> None:
    top = tmp_path / "top"
    for number in range(30):
        (top / "volume" / f"d{number}" / "e" / "f").mkdir(parents=True)
        (top / "volume" / f"d{number}" / "e" / "file").touch()
        inode = (top / "volume" / f"d{number}" / "e").lstat().st_ino
        (top / "volume" / f".{inode}").touch()
        (top / "volume" / f"d{number}" / f".{inode}").mkdir()
    assert not remove_some(top, 10)
    assert top.exists()
    remove_tree(top)
    assert not top.exists()
    assert remove_some(top, 10), "what does not exist is removed"
