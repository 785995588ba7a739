"""What the host is, and the directories of pods on it."""

from __future__ import annotations

import platform
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path

import psutil

from api import quantity
from api.objects import Pod
from api.volumes import Volume
from node_agent.containers import Host, empty_dir, hosts_file, hosts_text, pod_dir
from node_agent.node import HostFacts
from reconcile.errors import DriverError, NotReady, Refused

OOM_SCORE = Path("/proc/self/oom_score_adj")


def facts(state_dir: Path, docker_version: str) -> HostFacts:
    """What the Node object tells of this host. Raises NotReady when the state directory is away."""
    with _mapped(NotReady, state_dir):
        disk = shutil.disk_usage(state_dir).total
    return HostFacts(
        cpus=psutil.cpu_count() or 1,
        memory=psutil.virtual_memory().total,
        disk=disk,
        machine_id=_line("/etc/machine-id"),
        boot_id=_line("/proc/sys/kernel/random/boot_id"),
        kernel=platform.release(),
        os_image=_os_image(),
        architecture={"x86_64": "amd64", "aarch64": "arm64"}.get(platform.machine(), platform.machine()),
        docker_version=docker_version,
        agent_version=version("podlane"),
    )


def host(state_dir: Path) -> Host:
    """What containers need to know of this host."""
    return Host(str(state_dir / "pods"), psutil.virtual_memory().total, least_oom_score())


def seccomp_profile(where: Host, name: str) -> str:
    """The content of a profile that an administrator has put into `seccomp` beside the pods. Raises Refused."""
    path = Path(where.pods_dir).parent / "seccomp" / name
    with _mapped(Refused, f"seccomp profile {path}"):
        return path.read_text()


def has_apparmor() -> bool:
    """Whether the kernel enforces AppArmor profiles."""
    return _line("/sys/module/apparmor/parameters/enabled") == "Y"


def least_oom_score() -> int:
    """-1000, or our own score where the kernel does not let us go below it (no CAP_SYS_RESOURCE)."""
    own = int(OOM_SCORE.read_text())
    try:
        OOM_SCORE.write_text("-1000")
    except OSError:
        return own
    OOM_SCORE.write_text(str(own))
    return -1000


def _os_image() -> str:
    try:
        return platform.freedesktop_os_release().get("PRETTY_NAME", "Linux")
    except OSError:
        return "Linux"


def _line(path: str) -> str:
    try:
        return Path(path).read_text().strip()
    except OSError:
        return ""


@contextmanager
def _mapped(kind: type[DriverError], what: Path | str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise kind(f"{what}: {error.strerror or error}") from None
    except ValueError as error:
        raise Refused(f"{what}: {error}") from None


def prepare(pod: Pod, where: Host) -> None:
    """Make the pod's directory and volumes.

    Raises Refused when a hostPath is not what the manifest says it is, NotReady when there is no room.
    """
    uid = pod.metadata.uid
    with _mapped(NotReady, pod_dir(where, uid)):
        Path(pod_dir(where, uid)).mkdir(mode=0o750, parents=True, exist_ok=True)
    for volume in pod.spec.volumes:
        if volume.empty_dir is not None:
            path = Path(empty_dir(where, uid, volume.name))
            with _mapped(NotReady, path):
                _make_empty_dir(volume, path)
        elif volume.host_path is not None:
            with _mapped(Refused, f"hostPath {volume.host_path.path!r}"):
                _check_host_path(Path(volume.host_path.path), volume.host_path.type or "")


def write_hosts(pod: Pod, where: Host, address: str) -> None:
    """Write the pod's /etc/hosts, in place so that running containers see it. Raises NotReady."""
    path = Path(hosts_file(where, pod.metadata.uid))
    text = hosts_text(pod, address)
    with _mapped(NotReady, path):
        if not path.exists() or path.read_text() != text:
            path.write_text(text)
            path.chmod(0o644)


def forget(where: Host, uid: str) -> None:
    """Delete the pod's directory with its volumes. Raises NotReady while something in it is in use."""
    root = Path(pod_dir(where, uid))
    with _mapped(NotReady, root):
        if not root.exists():
            return
        for folder in sorted(root.glob("volumes/kubernetes.io~empty-dir/*")):
            if folder.is_mount():
                _run("umount", str(folder))
        shutil.rmtree(root)


def known_pods(where: Host) -> set[str]:
    """UIDs of the pods that have a directory. Raises NotReady."""
    root = Path(where.pods_dir)
    with _mapped(NotReady, root):
        return {entry.name for entry in root.iterdir()} if root.exists() else set()


def _make_empty_dir(volume: Volume, path: Path) -> None:
    path.mkdir(parents=True, exist_ok=True)
    if volume.empty_dir is not None and volume.empty_dir.medium == "Memory" and not path.is_mount():
        limit = volume.empty_dir.size_limit
        options = f"size={quantity.whole(limit)}" if limit else "size=50%"
        _run("mount", "-t", "tmpfs", "-o", options, "tmpfs", str(path))
    path.chmod(0o777)


def _run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise NotReady(f"{' '.join(command)} (exit {done.returncode}): {done.stderr.strip()}")


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
