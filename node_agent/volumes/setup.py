"""Creates volumes on the host: directories, tmpfs, NFS, hostPath checks. Driver."""

from __future__ import annotations

import os
import shutil
import stat
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from api.core.volumes import EmptyDirVolumeSource, NFSVolumeSource, Volume
from node_agent.volumes import atomic_writer, mounts
from node_agent.volumes.paths import VOLUME_DIRS, volume_dir
from node_agent.volumes.payload import File, needs_tmpfs
from reconcile.errors import DriverError, NotReady, Refused

EMPTY_DIR_MODE, GROUP_EMPTY_DIR_MODE = 0o777, 0o2777
FILES_MODE = 0o755
NFS_MODE = 0o750


@dataclass(frozen=True, slots=True)
class VolumeSetup:
    """The group that owns a volume; of one made of files its files; of one in memory the most bytes it may hold.

    Of one that is mounted the options.
    """

    group: int | None = None
    files: Mapping[str, File] | None = None
    size: int = 0
    options: tuple[str, ...] = ()


def set_up_volume(volume: Volume, pod_dir: str, wish: VolumeSetup) -> None:
    """Make the volume, or bring it up to date.

    Raises Refused when a hostPath is not what the pod says it is, NotReady when the host cannot.
    """
    if volume.host_path is not None:
        with _mapped(Refused, f"hostPath {volume.host_path.path!r}"):
            _check_host_path(Path(volume.host_path.path), volume.host_path.type or "")
        return
    path = Path(volume_dir(pod_dir, volume))
    if volume.nfs is not None:
        with _mapped(NotReady, path):
            _mount_nfs(volume.nfs, path, wish.options)
        return
    with _mapped(NotReady, path):
        path.mkdir(parents=True, exist_ok=True)
        if volume.empty_dir is not None:
            _make_empty_dir(volume.empty_dir, path, wish)
        if wish.files is not None:
            _write(volume, path, wish.files, wish.group)


def is_set_up(volume: Volume, pod_dir: str) -> bool:
    """Whether a volume made of files has been written before."""
    return (Path(volume_dir(pod_dir, volume)) / atomic_writer.CURRENT).is_dir()


def tear_down_volumes(pod_dir: Path) -> None:
    """Delete a pod's volumes, and leave the rest of its directory. Raises NotReady as `forget` does."""
    for folder in VOLUME_DIRS:
        if (pod_dir / folder).exists():
            remove_directory(pod_dir / folder)


def remove_directory(directory: Path) -> None:
    """Delete a directory. Raises NotReady while something in it is mounted: what is mounted is not ours."""
    with _mapped(NotReady, directory):
        mounts.unmount_all(directory)
        if mounts.mount_points(directory):
            raise NotReady(f"{directory}: something is still mounted in it")
        if directory.exists():
            shutil.rmtree(directory)


def _write(volume: Volume, path: Path, files: Mapping[str, File], group: int | None) -> None:
    if needs_tmpfs(volume) and not mounts.is_filesystem(path):
        mounts.tmpfs(path, f"mode={FILES_MODE:o}")
    if stat.S_IMODE(path.stat().st_mode) != FILES_MODE:
        path.chmod(FILES_MODE)
    atomic_writer.write_payload(path, files, group)


def _make_empty_dir(source: EmptyDirVolumeSource, path: Path, wish: VolumeSetup) -> None:
    group = wish.group
    if source.medium == "Memory" and not mounts.is_filesystem(path):
        mounts.tmpfs(path, f"size={wish.size}")
    mode = EMPTY_DIR_MODE if group is None else GROUP_EMPTY_DIR_MODE
    if source.medium == "Memory":
        mode |= stat.S_ISVTX  # What a tmpfs has by itself, and kubelets leave to it.
    seen = path.stat()
    if group is not None and seen.st_gid != group:
        os.chown(path, -1, group)
    if stat.S_IMODE(seen.st_mode) != mode:
        path.chmod(mode)


def _mount_nfs(source: NFSVolumeSource, path: Path, options: tuple[str, ...]) -> None:
    # What is mounted is not touched: a server that is away would hold us up.
    if not mounts.is_mounted(path):
        path.mkdir(mode=NFS_MODE, parents=True, exist_ok=True)
        server = f"[{source.server}]" if ":" in source.server else source.server
        mounts.mount("nfs", f"{server}:{source.path}", path, (*(("ro",) if source.read_only else ()), *options))


def _check_host_path(path: Path, kind: str) -> None:
    if kind == "DirectoryOrCreate":
        path.mkdir(mode=0o755, parents=True, exist_ok=True)
    if kind == "FileOrCreate" and not path.exists() and path.parent.is_dir():
        path.touch(mode=0o644)
    holds = {
        "": lambda: True,
        "Directory": path.is_dir,
        "DirectoryOrCreate": path.is_dir,
        "File": path.is_file,
        "FileOrCreate": path.is_file,
        "Socket": path.is_socket,
        "CharDevice": path.is_char_device,
        "BlockDevice": path.is_block_device,
    }
    if not holds[kind]():
        raise Refused(f"hostPath type check failed: {path} is not a {kind}")


@contextmanager
def _mapped(kind: type[DriverError], what: Path | str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise kind(f"{what}: {error.strerror or error}") from None
    except ValueError as error:
        raise Refused(f"{what}: {error}") from None
