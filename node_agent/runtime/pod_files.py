"""A pod's directory on the host: network files, termination messages, checkpoints. Driver."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import msgspec

from api.core.pod import Pod
from node_agent.host import HostInfo, etc_hosts_path, pod_dir, resolv_conf_path
from node_agent.network.dns import hosts_file_content, parse_resolv_conf, pod_resolv_conf
from node_agent.pods.admission import Rejection
from reconcile import atomic_file
from reconcile.errors import NotReady, Refused, os_errors_as

HOSTS = Path("/etc/hosts")


def read_seccomp_profile(host: HostInfo, name: str) -> str:
    """Return a seccomp profile from the directory `seccomp` next to the pods' directory. Raises Refused."""
    path = Path(host.pods_dir).parent / "seccomp" / name
    with os_errors_as(Refused, f"seccomp profile {path}"):
        return path.read_text()


def make_pod_dir(host: HostInfo, uid: str) -> None:
    """Create the pod's directory. Raises NotReady."""
    with os_errors_as(NotReady, pod_dir(host, uid)):
        Path(pod_dir(host, uid)).mkdir(mode=0o750, parents=True, exist_ok=True)


def write_network_files(pod: Pod, host: HostInfo, address: str) -> str:
    """Write the pod's /etc/hosts and /etc/resolv.conf. Return the result of write_resolv_conf(). Raises NotReady."""
    write_hosts_file(pod, host, address)
    return write_resolv_conf(pod, host)


def write_hosts_file(pod: Pod, host: HostInfo, address: str) -> None:
    """Write the pod's /etc/hosts, in place so that running containers see it. Raises NotReady."""
    path = Path(etc_hosts_path(host, pod.metadata.uid))
    with os_errors_as(NotReady, path):
        text = hosts_file_content(pod, address, host.cluster_domain, HOSTS.read_text() if pod.spec.host_network else "")
        _write_in_place(path, text)


def write_resolv_conf(pod: Pod, host: HostInfo) -> str:
    """Write the pod's /etc/resolv.conf, in place so that running containers see it. Raises NotReady.

    Return a message about limits that the pod's DNS settings exceed. Return an empty string if they exceed none.
    """
    with os_errors_as(NotReady, host.resolv_conf):
        node_conf = parse_resolv_conf(Path(host.resolv_conf).read_text())
    resolv_conf, exceeded_limit = pod_resolv_conf(pod, node_conf, host.cluster_dns, host.cluster_domain)
    path = Path(resolv_conf_path(host, pod.metadata.uid))
    with os_errors_as(NotReady, path):
        _write_in_place(path, str(resolv_conf))
    return exceeded_limit


def _write_in_place(path: Path, text: str) -> None:
    # A container may have made the file larger than the memory of the machine.
    if not path.exists() or path.stat().st_size != len(text.encode()) or path.read_text() != text:
        path.write_text(text)
        path.chmod(0o644)


def make_termination_message_file(path: str) -> None:
    """Create an empty file that every user may write. Raises NotReady."""
    with os_errors_as(NotReady, path):
        Path(path).parent.mkdir(mode=0o750, parents=True, exist_ok=True)
        Path(path).write_bytes(b"")
        Path(path).chmod(0o666)


def read_tail(path: str, max_bytes: int) -> str:
    """Return the last bytes of a file as text. Return an empty string if it cannot be read."""
    try:
        with Path(path).open("rb") as file:
            size = file.seek(0, 2)
            file.seek(max(size - max_bytes, 0))
            return file.read(max_bytes).decode(errors="replace")
    except OSError:
        return ""


def list_pod_dirs(host: HostInfo) -> set[str]:
    """Return the UIDs of the pods that have a directory. Raises NotReady."""
    root = Path(host.pods_dir)
    with os_errors_as(NotReady, root):
        return {entry.name for entry in root.iterdir()} if root.exists() else set()


def read_rejection(host: HostInfo, uid: str) -> Rejection | None:
    """Return the stored rejection of a pod. Return None if the pod was not rejected. Raises NotReady."""
    path = _rejection_path(host, uid)
    with os_errors_as(NotReady, path):
        try:
            content = path.read_bytes()
        except FileNotFoundError:
            return None
    return msgspec.json.decode(content, type=Rejection)


def write_rejection(host: HostInfo, uid: str, rejection: Rejection) -> None:
    """Write a rejection atomically. It is removed with the pod's directory. Raises NotReady."""
    path = _rejection_path(host, uid)
    make_pod_dir(host, uid)
    with os_errors_as(NotReady, path):
        atomic_file.write(path, msgspec.json.encode(rejection), atomic_file.READABLE, durable=False)


def _rejection_path(host: HostInfo, uid: str) -> Path:
    return Path(pod_dir(host, uid)) / "rejected"


class Checkpoint(NamedTuple):
    """A named fact about one container, by its ID."""

    container: str
    name: str


def read_checkpoints(host: HostInfo, uid: str) -> dict[Checkpoint, str]:
    """Return all checkpoints of a pod and their texts. Raises NotReady."""
    directory = _checkpoint_dir(host, uid)
    checkpoints = {}
    with os_errors_as(NotReady, directory):
        try:
            paths = list(directory.iterdir())
        except FileNotFoundError:
            return {}
        for path in paths:
            if _is_unfinished(path):
                continue
            container, _, name = path.name.partition(".")
            checkpoints[Checkpoint(container, name)] = path.read_text()
    return checkpoints


def _is_unfinished(path: Path) -> bool:
    """Return whether an interrupted write has left this file, of this version or an earlier one."""
    return path.name.startswith(".") or path.name.endswith("~")


def write_checkpoint(host: HostInfo, uid: str, checkpoint: Checkpoint, text: str = "") -> None:
    """Write a checkpoint atomically. Raises NotReady, also if the pod has no directory any more."""
    directory = _checkpoint_dir(host, uid)
    path = directory / f"{checkpoint.container}.{checkpoint.name}"
    with os_errors_as(NotReady, path):
        directory.mkdir(exist_ok=True)
        atomic_file.write(path, text.encode(), atomic_file.READABLE, durable=False)


def remove_checkpoint(host: HostInfo, uid: str, checkpoint: Checkpoint) -> None:
    """Remove a checkpoint. A missing one is no error. Raises NotReady."""
    path = _checkpoint_dir(host, uid) / f"{checkpoint.container}.{checkpoint.name}"
    with os_errors_as(NotReady, path):
        path.unlink(missing_ok=True)


def _checkpoint_dir(host: HostInfo, uid: str) -> Path:
    return Path(pod_dir(host, uid)) / "marks"
