"""A pod's directory on the host: network files, termination messages, checkpoints. Driver."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import msgspec

from api.core.pod import Pod
from node_agent.host import HostInfo, etc_hosts_path, pod_dir, resolv_conf_path
from node_agent.network.dns import hosts_file_content, parse_resolv_conf, pod_resolv_conf
from node_agent.pods.admission import Rejection
from reconcile.errors import DriverError, NotReady, Refused

HOSTS = Path("/etc/hosts")


def read_seccomp_profile(where: HostInfo, name: str) -> str:
    """The content of a profile that an administrator has put into `seccomp` beside the pods. Raises Refused."""
    path = Path(where.pods_dir).parent / "seccomp" / name
    with _mapped(Refused, f"seccomp profile {path}"):
        return path.read_text()


@contextmanager
def _mapped(kind: type[DriverError], what: Path | str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise kind(f"{what}: {error.strerror or error}") from None
    except ValueError as error:
        raise Refused(f"{what}: {error}") from None


def make_pod_dir(where: HostInfo, uid: str) -> None:
    """Make the pod's directory. Raises NotReady when there is no room."""
    with _mapped(NotReady, pod_dir(where, uid)):
        Path(pod_dir(where, uid)).mkdir(mode=0o750, parents=True, exist_ok=True)


def write_network_files(pod: Pod, where: HostInfo, address: str) -> str:
    """The pod's /etc/hosts and /etc/resolv.conf. Raises NotReady.

    Returns which limit the pod's wishes for the resolver exceed, empty if none.
    """
    write_hosts(pod, where, address)
    return write_resolver(pod, where)


def write_hosts(pod: Pod, where: HostInfo, address: str) -> None:
    """Write the pod's /etc/hosts, in place so that running containers see it. Raises NotReady."""
    path = Path(etc_hosts_path(where, pod.metadata.uid))
    with _mapped(NotReady, path):
        text = hosts_file_content(
            pod, address, where.cluster_domain, HOSTS.read_text() if pod.spec.host_network else ""
        )
        _write_in_place(path, text)


def write_resolver(pod: Pod, where: HostInfo) -> str:
    """Write the pod's /etc/resolv.conf, in place so that running containers see it. Raises NotReady.

    Returns which limit the pod's wishes exceed, empty if none.
    """
    with _mapped(NotReady, where.resolv_conf):
        of_host = parse_resolv_conf(Path(where.resolv_conf).read_text())
    wished, exceeded = pod_resolv_conf(pod, of_host, where.cluster_dns, where.cluster_domain)
    path = Path(resolv_conf_path(where, pod.metadata.uid))
    with _mapped(NotReady, path):
        _write_in_place(path, str(wished))
    return exceeded


def _write_in_place(path: Path, text: str) -> None:
    if not path.exists() or path.read_text() != text:
        path.write_text(text)
        path.chmod(0o644)


def make_termination_message_file(path: str) -> None:
    """An empty file that every user may write. Raises NotReady."""
    with _mapped(NotReady, path):
        Path(path).parent.mkdir(mode=0o750, parents=True, exist_ok=True)
        Path(path).write_bytes(b"")
        Path(path).chmod(0o666)


def read_tail(path: str, most: int) -> str:
    """The last bytes of a file as text, empty when there is none."""
    try:
        with Path(path).open("rb") as file:
            size = file.seek(0, 2)
            file.seek(max(size - most, 0))
            return file.read(most).decode(errors="replace")
    except OSError:
        return ""


def list_pod_dirs(where: HostInfo) -> set[str]:
    """UIDs of the pods that have a directory. Raises NotReady."""
    root = Path(where.pods_dir)
    with _mapped(NotReady, root):
        return {entry.name for entry in root.iterdir()} if root.exists() else set()


def read_rejection(where: HostInfo, uid: str) -> Rejection | None:
    """Why the pod was refused; None if it was not. Raises NotReady."""
    path = _path(where, uid)
    try:
        return msgspec.json.decode(path.read_bytes(), type=Rejection)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise NotReady(f"{path}: {error.strerror}") from None


def write_rejection(where: HostInfo, uid: str, rejection: Rejection) -> None:
    """Keep it, whole or not at all; it goes with the pod's directory. Raises NotReady."""
    path = _path(where, uid)
    half = path.with_name(f"{path.name}~")
    make_pod_dir(where, uid)
    try:
        half.write_bytes(msgspec.json.encode(rejection))
        half.replace(path)
    except OSError as error:
        raise NotReady(f"{path}: {error.strerror}") from None


def _path(where: HostInfo, uid: str) -> Path:
    return Path(pod_dir(where, uid)) / "rejected"


class Checkpoint(NamedTuple):
    """A named fact about one container, by its ID."""

    container: str
    name: str


def read_checkpoints(host: HostInfo, uid: str) -> dict[Checkpoint, str]:
    """All marks of a pod and their texts. Raises NotReady."""
    found = {}
    try:
        for path in _directory(host, uid).iterdir():
            container, _, name = path.name.partition(".")
            if not name.endswith("~"):
                found[Checkpoint(container, name)] = path.read_text()
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise NotReady(f"{_directory(host, uid)}: {error.strerror}") from None
    return found


def write_checkpoint(host: HostInfo, uid: str, mark: Checkpoint, text: str = "") -> None:
    """Set a mark, whole or not at all. Raises NotReady, also when the pod has no directory any more."""
    directory = _directory(host, uid)
    path = directory / f"{mark.container}.{mark.name}"
    half = path.with_name(f"{path.name}~")
    try:
        directory.mkdir(exist_ok=True)
        half.write_text(text)
        half.replace(path)
    except OSError as error:
        raise NotReady(f"{path}: {error.strerror}") from None


def remove_checkpoint(host: HostInfo, uid: str, mark: Checkpoint) -> None:
    """Take a mark away; one that is not there is no error. Raises NotReady."""
    path = _directory(host, uid) / f"{mark.container}.{mark.name}"
    try:
        path.unlink(missing_ok=True)
    except OSError as error:
        raise NotReady(f"{path}: {error.strerror}") from None


def _directory(host: HostInfo, uid: str) -> Path:
    return Path(pod_dir(host, uid)) / "marks"
