"""Creates and removes volumes on the host: directories, tmpfs, NFS, local volumes, hostPath checks. Driver."""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from api.core.volumes import EmptyDirVolumeSource, NFSVolumeSource, Volume
from node_agent.volumes import atomic_writer, mounts
from node_agent.volumes.local_directories import mount_local
from node_agent.volumes.paths import VOLUME_DIRS, local_path, volume_dir
from node_agent.volumes.payload import PayloadFile, needs_tmpfs
from node_agent.volumes.removal import remove_tree
from reconcile.errors import NotReady, Refused, os_errors_as

EMPTY_DIR_MODE, GROUP_EMPTY_DIR_MODE = 0o777, 0o2777
PAYLOAD_MODE = 0o755
NFS_MODE = 0o750


@dataclass(frozen=True, slots=True)
class VolumeSetup:
    """Details of a volume: the gid that owns it, and by its kind the files, the tmpfs size and the mount options.

    With `trusts_root`, a local volume whose root has the right group is taken to have it everywhere.
    """

    fs_group: int | None = None
    files: Mapping[str, PayloadFile] | None = None
    tmpfs_bytes: int = 0
    mount_options: tuple[str, ...] = ()
    trusts_root: bool = False


def set_up_volume(volume: Volume, pod_dir: str, details: VolumeSetup) -> None:
    """Create a volume, or bring it up to date.

    Raises Refused if a hostPath is not of the type in the pod's spec or a local volume does not exist, NotReady if the
    host cannot set up the volume.
    """
    if volume.host_path is not None:
        with os_errors_as(Refused, f"hostPath {volume.host_path.path!r}"):
            _check_host_path(Path(volume.host_path.path), volume.host_path.type or "")
        return
    path = Path(volume_dir(pod_dir, volume))
    source = local_path(volume)
    if source:
        mount_local(Path(source), path, details.fs_group, only_if_root_differs=details.trusts_root)
        return
    with os_errors_as(NotReady, path):
        if volume.nfs is not None:
            _mount_nfs(volume.nfs, path, details.mount_options)
            return
        path.mkdir(parents=True, exist_ok=True)
        if volume.empty_dir is not None:
            _create_empty_dir(volume.empty_dir, path, details)
        if details.files is not None:
            _write_payload(volume, path, details.files, details.fs_group)


def is_set_up(volume: Volume, pod_dir: str) -> bool:
    """Return whether the files of a volume have been written before."""
    return (Path(volume_dir(pod_dir, volume)) / atomic_writer.DATA_LINK).is_dir()


def tear_down_volumes(pod_dir: Path) -> None:
    """Remove a pod's volumes, and leave the rest of its directory. Raises NotReady as `remove_directory` does."""
    for name in VOLUME_DIRS:
        if (pod_dir / name).exists():
            remove_directory(pod_dir / name)


def remove_directory(directory: Path) -> None:
    """Unmount everything in a directory and remove it. Raises NotReady while something in it is mounted.

    A mounted filesystem is never deleted, because its content belongs to others.
    """
    with os_errors_as(NotReady, directory):
        mounts.unmount_all(directory)
        if mounts.mount_points(directory):
            raise NotReady(f"{directory}: something is still mounted in it")
        if directory.exists():
            remove_tree(directory)


def _write_payload(volume: Volume, path: Path, files: Mapping[str, PayloadFile], group: int | None) -> None:
    if needs_tmpfs(volume) and not mounts.is_filesystem(path):
        mounts.mount_tmpfs(path, f"mode={PAYLOAD_MODE:o}")
    if stat.S_IMODE(path.stat().st_mode) != PAYLOAD_MODE:
        path.chmod(PAYLOAD_MODE)
    atomic_writer.write_payload(path, files, group)


def _create_empty_dir(source: EmptyDirVolumeSource, path: Path, details: VolumeSetup) -> None:
    if source.medium == "Memory" and not mounts.is_filesystem(path):
        mounts.mount_tmpfs(path, f"size={details.tmpfs_bytes}")
    group = details.fs_group
    mode = EMPTY_DIR_MODE if group is None else GROUP_EMPTY_DIR_MODE
    if source.medium == "Memory":
        mode |= stat.S_ISVTX  # The default mode of a tmpfs has this bit, and kubelet keeps it.
    status = path.stat()
    if group is not None and status.st_gid != group:
        os.chown(path, -1, group)
    if stat.S_IMODE(status.st_mode) != mode:
        path.chmod(mode)


def _mount_nfs(source: NFSVolumeSource, path: Path, options: tuple[str, ...]) -> None:
    # A mounted path is not accessed, because the call would block while the server is unreachable.
    if not mounts.is_mounted(path):
        path.mkdir(mode=NFS_MODE, parents=True, exist_ok=True)
        server = f"[{source.server}]" if ":" in source.server else source.server
        mounts.mount("nfs", f"{server}:{source.path}", path, (*(("ro",) if source.read_only else ()), *options))


def _check_host_path(path: Path, path_type: str) -> None:
    if path_type == "DirectoryOrCreate":
        path.mkdir(mode=0o755, parents=True, exist_ok=True)
    if path_type == "FileOrCreate" and not path.exists() and path.parent.is_dir():
        path.touch(mode=0o644)
    checks = {
        "": lambda: True,
        "Directory": path.is_dir,
        "DirectoryOrCreate": path.is_dir,
        "File": path.is_file,
        "FileOrCreate": path.is_file,
        "Socket": path.is_socket,
        "CharDevice": path.is_char_device,
        "BlockDevice": path.is_block_device,
    }
    if not checks[path_type]():
        raise Refused(f"hostPath type check failed: {path} is not a {path_type}")
