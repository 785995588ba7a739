"""The directories of local volumes on this node: created, mounted for pods, emptied and deleted. Driver.

A directory has the name of its LocalVolume, and lies in a directory that only root can enter. It is renamed before
anything in it is deleted, so no pod can mount it any more. It is neither renamed nor deleted while a pod has mounted
it. The mounts are on the host, so this also holds for pods that a former agent has started.
"""

from __future__ import annotations

import os
import re
import threading
from pathlib import Path

from node_agent.volumes import mounts, removal
from node_agent.volumes.ownership import set_group
from node_agent.volumes.paths import LOCAL_PLUGIN
from reconcile.errors import NotReady, Refused, os_errors_as

ROOT_MODE = 0o700
VOLUME_MODE = 0o777
"""Permissions of a new volume, as of an emptyDir: containers of any user write to it, and only they can reach it."""

MAX_ENTRIES = 5000
"""Entries that are deleted in one step, so that a large volume does not delay the others for long."""

_NAME = re.compile(r"[a-z0-9]([a-z0-9-]{0,126}[a-z0-9])?")
"""Names of local volumes. They have no slash and no dot, so they cannot lead elsewhere or be a name of ours."""

_LOCK = threading.Lock()
"""Held while a directory is mounted for a pod, and while it is renamed because no pod has mounted it."""


class LocalDirectories:
    """The directories below `root`. `pods_dir` is the directory of the pods' directories, with their mounts.

    A root that an administrator has chosen must exist, because it may be a disk that is not mounted. `creates_root` is
    false for it. Methods raise NotReady, and Refused for a name that no local volume has.
    """

    def __init__(self, root: Path, pods_dir: Path, *, creates_root: bool) -> None:
        self._root = root
        self._pods_dir = pods_dir
        self._creates_root = creates_root

    def create(self, name: str) -> str:
        """Create a directory durably, and return its path. One that exists stays as it is."""
        path = self._path(name)
        with os_errors_as(NotReady, path):
            self._open_root()
            self._create(path)
        return str(path)

    def check_path(self, name: str, path: str) -> None:
        """Raise Refused if the directory of a volume was reported elsewhere, because `localVolumeDir` has changed."""
        if path != str(self._path(name)):
            accepted = "set it to the directory above it again, or delete the directory yourself and create it here"
            raise Refused(f"{path} is not in localVolumeDir, which is {self._root}; {accepted}")

    def scrub_some(self, name: str) -> bool:
        """Replace a directory by an empty one, in steps. Return whether nothing of the old one is left."""
        path = self._path(name)
        with os_errors_as(NotReady, path):
            self._open_root()
            trash = self._trash(name)
            # After an interruption, what is in the trash is the old directory, and the new one may be missing.
            if not (trash.exists() and any(trash.iterdir())):
                if not path.exists():
                    raise NotReady(f"{path} does not exist")
                self._move_to_trash(path, trash)
            if not path.exists():
                self._create(path)
            return removal.remove_some(trash, MAX_ENTRIES)

    def delete_some(self, name: str) -> bool:
        """Delete a directory in steps. Return whether nothing of it is left."""
        path = self._path(name)
        with os_errors_as(NotReady, path):
            self._open_root()
            trash = self._trash(name)
            if path.exists():
                self._move_to_trash(path, trash)
            is_deleted = removal.remove_some(trash, MAX_ENTRIES)
            if is_deleted:
                _sync_directory(self._root)
            return is_deleted

    def _path(self, name: str) -> Path:
        if not _NAME.fullmatch(name):
            raise Refused(f"{name!r} is not the name of a local volume; lower-case letters, digits and - are accepted")
        return self._root / name

    def _trash(self, name: str) -> Path:
        """Return the directory into which a volume is moved before it is deleted. No container has access to it."""
        return self._root / f".deleting-{name}"

    def _open_root(self) -> None:
        if self._creates_root:
            self._root.mkdir(mode=ROOT_MODE, parents=True, exist_ok=True)
        if not self._root.is_dir():
            raise NotReady(f"localVolumeDir {self._root} is not a directory; is its disk mounted?")
        if self._root.stat().st_mode & 0o777 != ROOT_MODE:
            self._root.chmod(ROOT_MODE)

    def _create(self, path: Path) -> None:
        path.mkdir(exist_ok=True)
        descriptor = os.open(path, removal.DIRECTORY_FLAGS)
        try:
            if os.fstat(descriptor).st_mode & VOLUME_MODE != VOLUME_MODE:
                os.fchmod(descriptor, VOLUME_MODE)
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        _sync_directory(self._root)

    def _move_to_trash(self, path: Path, trash: Path) -> None:
        """Move a volume into its trash directory, unless a pod has mounted it."""
        with _LOCK:
            user = self._mount_of(path)
            if user is not None:
                raise NotReady(f"{path} is mounted for a pod at {user}")
            trash.mkdir(mode=ROOT_MODE, exist_ok=True)
            # The number is that of the directory, because an interruption may have left another one in the trash.
            path.rename(trash / str(path.lstat().st_ino))
        _sync_directory(self._root)

    def _mount_of(self, path: Path) -> Path | None:
        """Return a mount of the directory below the pods' directories, None if there is none."""
        status = path.lstat()
        for point in mounts.mount_points(self._pods_dir):
            if LOCAL_PLUGIN in point.parts and os.path.samestat(point.stat(), status):
                return point
        return None


def mount_local(source: Path, target: Path, group: int | None, *, only_if_root_differs: bool) -> None:
    """Mount the directory of a local volume for a pod. Its files get the group first.

    A mount that exists has the right group. Raises Refused if the source is not a directory, NotReady if the host
    cannot mount it.
    """
    with os_errors_as(Refused, source):
        descriptor = os.open(source, mounts.OPEN_FLAGS | os.O_DIRECTORY)
    with os_errors_as(NotReady, source):
        try:
            if mounts.is_mounted_at(descriptor, target):
                return
            if group is not None:
                set_group(descriptor, group, only_if_root_differs=only_if_root_differs)
            with _LOCK:
                # The directory may have been renamed in the meantime, in order to delete it.
                if not os.path.samestat(source.lstat(), os.fstat(descriptor)):
                    raise NotReady(f"{source} was replaced while it was mounted")
                mounts.mount_at(descriptor, target)
        finally:
            os.close(descriptor)


def _sync_directory(path: Path) -> None:
    descriptor = os.open(path, removal.DIRECTORY_FLAGS)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
