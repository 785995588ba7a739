"""Volumes on a real host: their mounts and modes, and that nothing is left."""

from __future__ import annotations

import contextlib
import os
import shutil
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec.structs import replace

from api.core.volumes import Volume
from node_agent.volumes import mounts, setup
from node_agent.volumes.mounts import mount_sub_paths
from node_agent.volumes.paths import SubPath, volume_dir
from node_agent.volumes.payload import PayloadFile, has_payload
from node_agent.volumes.setup import VolumeSetup
from reconcile.errors import NotReady, Refused
from tests.testbed.docker.fake import AgentKilled
from tests.testbed.fault_injection import INJECTOR
from tests.unit.node_agent.examples import make_pod

FILES = {"key": PayloadFile(b"hidden", 0o400)}


def volume(source: str) -> Volume:
    return make_pod(spec=f"  volumes: [{{name: v, {source}}}]").spec.volumes[0]


@pytest.fixture(autouse=True)
def nothing_stays_mounted(tmp_path: Path) -> Iterator[None]:
    yield
    mounts.unmount_all(tmp_path)


@pytest.fixture
def pod_dir(tmp_path: Path) -> str:
    return str(tmp_path / "a pod")


def path_in_pod(pod_dir: str, pod_volume: Volume) -> Path:
    return Path(volume_dir(pod_dir, pod_volume))


@pytest.mark.parametrize("source", ["secret: {secretName: s}", "projected: {sources: []}"])
def test_secret_volume_is_in_memory_and_removed_with_the_pod(pod_dir: str, source: str) -> None:
    pod_volume = volume(source)
    assert not setup.is_set_up(pod_volume, pod_dir)
    for _ in range(2):
        setup.set_up_volume(pod_volume, pod_dir, VolumeSetup(files=FILES))
        assert mounts.mount_points(Path(pod_dir)) == [path_in_pod(pod_dir, pod_volume)]
    assert setup.is_set_up(pod_volume, pod_dir)
    assert (path_in_pod(pod_dir, pod_volume) / "key").read_bytes() == b"hidden"
    assert stat.S_IMODE((path_in_pod(pod_dir, pod_volume) / "key").stat().st_mode) == 0o400
    setup.remove_directory(Path(pod_dir))
    assert mounts.mount_points(Path(pod_dir)) == []
    assert not Path(pod_dir).exists()
    setup.remove_directory(Path(pod_dir))


def test_volume_that_cannot_be_unmounted_is_not_deleted(pod_dir: str) -> None:
    pod_volume = volume("secret: {secretName: s}")
    setup.set_up_volume(pod_volume, pod_dir, VolumeSetup(files=FILES))
    with (path_in_pod(pod_dir, pod_volume) / "key").open(), pytest.raises(NotReady, match="busy"):
        setup.remove_directory(Path(pod_dir))
    assert (path_in_pod(pod_dir, pod_volume) / "key").exists()
    setup.remove_directory(Path(pod_dir))
    assert not Path(pod_dir).exists()


def test_config_map_volume_is_on_disk(pod_dir: str) -> None:
    pod_volume = volume("configMap: {name: c}")
    before = os.umask(0o077)
    try:
        setup.set_up_volume(pod_volume, pod_dir, VolumeSetup(files=FILES))
    finally:
        os.umask(before)
    assert stat.S_IMODE(path_in_pod(pod_dir, pod_volume).stat().st_mode) == 0o755
    assert mounts.mount_points(Path(pod_dir)) == []
    assert (path_in_pod(pod_dir, pod_volume) / "key").read_bytes() == b"hidden"
    setup.remove_directory(Path(pod_dir))


@pytest.mark.parametrize(("group", "mode"), [(None, 0o777), (2000, 0o2777)])
@pytest.mark.parametrize("source", ["emptyDir: {}", "emptyDir: {medium: Memory, sizeLimit: 1Mi}"])
def test_empty_dir_is_writable_by_everyone(pod_dir: str, source: str, group: int | None, mode: int) -> None:
    pod_volume = volume(source)
    before = os.umask(0o077)
    try:
        setup.set_up_volume(pod_volume, pod_dir, VolumeSetup(group, tmpfs_bytes=1 << 20))
    finally:
        os.umask(before)
    seen = path_in_pod(pod_dir, pod_volume).stat()
    sticky = stat.S_ISVTX if "Memory" in source else 0
    assert (stat.S_IMODE(seen.st_mode), seen.st_gid) == (mode | sticky, group or 0)
    (path_in_pod(pod_dir, pod_volume) / "kept").touch()
    setup.set_up_volume(pod_volume, pod_dir, VolumeSetup(group, tmpfs_bytes=1 << 20))
    assert (path_in_pod(pod_dir, pod_volume) / "kept").exists()
    if "Memory" in source:
        assert (
            os.statvfs(path_in_pod(pod_dir, pod_volume)).f_blocks
            * os.statvfs(path_in_pod(pod_dir, pod_volume)).f_frsize
            == 1 << 20
        )
    setup.remove_directory(Path(pod_dir))
    assert not Path(pod_dir).exists()


def test_host_path_volume_must_have_its_declared_type(pod_dir: str, tmp_path: Path) -> None:
    there = {"Directory": tmp_path, "File": tmp_path / "file", "CharDevice": Path("/dev/null")}
    there["File"].touch()
    for kind in ("Directory", "File", "Socket", "CharDevice", "BlockDevice"):
        for what, path in there.items():
            pod_volume = volume(f"hostPath: {{path: {path}, type: {kind}}}")
            if what == kind:
                setup.set_up_volume(pod_volume, pod_dir, VolumeSetup())
            else:
                with pytest.raises(Refused, match=f"hostPath type check failed: {path} is not a {kind}"):
                    setup.set_up_volume(pod_volume, pod_dir, VolumeSetup())
    setup.set_up_volume(volume(f"hostPath: {{path: {tmp_path}/none}}"), pod_dir, VolumeSetup())
    assert not (tmp_path / "none").exists()
    setup.set_up_volume(volume(f"hostPath: {{path: {tmp_path}/d/e, type: DirectoryOrCreate}}"), pod_dir, VolumeSetup())
    assert stat.S_IMODE((tmp_path / "d" / "e").stat().st_mode) == 0o755
    setup.set_up_volume(volume(f"hostPath: {{path: {tmp_path}/d/f, type: FileOrCreate}}"), pod_dir, VolumeSetup())
    assert stat.S_IMODE((tmp_path / "d" / "f").stat().st_mode) == 0o644
    with pytest.raises(Refused):
        setup.set_up_volume(
            volume(f"hostPath: {{path: {tmp_path}/none/f, type: FileOrCreate}}"), pod_dir, VolumeSetup()
        )


FAKE_MOUNT = """\
#!/bin/sh
echo "$@" >> {folder}/calls
[ -e {folder}/away ] && {{ echo "mount.nfs: Connection refused" >&2; exit 32; }}
for target; do :; done
exec {mount} --bind {folder}/export "$target"
"""


@pytest.mark.parametrize(
    ("source", "options", "command"),
    [
        ("nfs: {server: files, path: /srv}", (), "-t nfs files:/srv TARGET"),
        ("nfs: {server: 'fd00::1', path: /, readOnly: true}", ("nolock", "vers=4"),
         "-t nfs -o ro,nolock,vers=4 [fd00::1]:/ TARGET"),
    ],
)  # fmt: skip
def test_nfs_volume_is_mounted_once_and_its_files_are_kept(
    tmp_path: Path, pod_dir: str, monkeypatch: pytest.MonkeyPatch, source: str, options: tuple[str, ...], command: str
) -> None:
    """The kernel has no NFS client here, so a replacement of the mount command records its arguments."""
    mount = shutil.which("mount")
    (tmp_path / "export").mkdir()
    (tmp_path / "export" / "file").write_text("theirs")
    (tmp_path / "away").touch()
    (tmp_path / "mount").write_text(FAKE_MOUNT.format(folder=tmp_path, mount=mount))
    (tmp_path / "mount").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    pod_volume = volume(source)
    with pytest.raises(NotReady, match=r"mount -t nfs .* \(exit 32\): mount.nfs: Connection refused"):
        setup.set_up_volume(pod_volume, pod_dir, VolumeSetup(mount_options=options))
    (tmp_path / "away").unlink()
    for _ in range(2):
        setup.set_up_volume(pod_volume, pod_dir, VolumeSetup(mount_options=options))
    wanted = command.replace("TARGET", str(path_in_pod(pod_dir, pod_volume)))
    assert (tmp_path / "calls").read_text().splitlines() == [wanted] * 2
    assert (path_in_pod(pod_dir, pod_volume) / "file").read_text() == "theirs"
    setup.remove_directory(Path(pod_dir))
    assert not Path(pod_dir).exists()
    assert (tmp_path / "export" / "file").read_text() == "theirs"


KINDS = (
    volume("secret: {secretName: s}"),
    volume("configMap: {name: c}"),
    volume("emptyDir: {medium: Memory}"),
    volume("emptyDir: {}"),
)


def set_everything_up(pod_dir: str) -> None:
    for number, pod_volume in enumerate(KINDS):
        named = replace(pod_volume, name=f"v{number}")
        files = FILES if has_payload(pod_volume) else None
        setup.set_up_volume(named, pod_dir, VolumeSetup(2000, files, tmpfs_bytes=1 << 20))
        path = "key" if files else "deep/part"
        target = f"{pod_dir}/volume-subpaths/{named.name}/main/0"
        mount_sub_paths((SubPath(volume_dir(pod_dir, named), path, target, create_missing=not files),))


def live_and_go(pod_dir: str) -> None:
    set_everything_up(pod_dir)
    setup.remove_directory(Path(pod_dir))


def seen(pod_dir: str) -> list[tuple[str, int, int, int]]:
    """Return all mounted and written files with modes and owners, without the directories that hold a volume's
    versions.
    """
    paths = [Path(folder, name) for folder, folders, names in os.walk(pod_dir) for name in (*folders, *names)]
    plain = [path for path in paths if "/.." not in str(path)]
    stats = [(str(path.relative_to(pod_dir)), path.stat()) for path in sorted(plain)]
    return [
        (name, stat.S_IMODE(stat_result.st_mode), stat_result.st_uid, stat_result.st_gid) for name, stat_result in stats
    ]


def test_agent_killed_at_any_file_operation_completes_setup_and_teardown(tmp_path: Path) -> None:
    whole = str(tmp_path / "whole")
    with INJECTOR.after(10_000):
        live_and_go(whole)
    acts = INJECTOR.acts
    set_everything_up(whole)
    wanted, mounted = seen(whole), len(mounts.mount_points(Path(whole)))
    setup.remove_directory(Path(whole))
    assert mounted == 2 + len(KINDS)
    for number in range(acts):
        pod_dir = str(tmp_path / str(number))
        with pytest.raises(AgentKilled), INJECTOR.after(number):
            live_and_go(pod_dir)
        set_everything_up(pod_dir)
        assert seen(pod_dir) == wanted, f"killed after {number} of {acts}"
        assert len(mounts.mount_points(Path(pod_dir))) == mounted
        with contextlib.suppress(AgentKilled), INJECTOR.after(number):
            setup.remove_directory(Path(pod_dir))
        setup.remove_directory(Path(pod_dir))
        assert mounts.mount_points(Path(pod_dir)) == []
        assert not Path(pod_dir).exists()


def test_directory_is_made_shared_once_and_not_over_its_mounts(tmp_path: Path) -> None:
    pods, other = tmp_path / "pods", tmp_path / "other"
    pods.mkdir()
    mounts.make_shared(pods)
    assert mounts.is_shared(pods)
    mounts.make_shared(pods)
    assert mounts.mount_points(pods) == [pods]
    (pods / "pod").mkdir()
    assert mounts.is_shared(pods / "pod")
    (other / "pod").mkdir(parents=True)
    mounts.mount_tmpfs(other / "pod")
    if not mounts.is_shared(other):
        with pytest.raises(NotReady, match="would be hidden"):
            mounts.make_shared(other)
