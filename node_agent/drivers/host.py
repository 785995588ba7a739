"""What the host is, and the directories of pods on it."""

from __future__ import annotations

import platform
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path

import psutil

from api.objects import ContainerImage, Pod
from node_agent.containers import Host, hosts_file, pod_dir, resolver_file
from node_agent.naming import hosts_text
from node_agent.node import HostFacts
from node_agent.resolver import parse, resolver
from reconcile.errors import DriverError, NotReady, Refused

HOSTS = Path("/etc/hosts")
OOM_SCORE = Path("/proc/self/oom_score_adj")


HUGE_PAGES = Path("/sys/kernel/mm/hugepages")


def facts(state_dir: Path, docker_version: str, images: tuple[ContainerImage, ...]) -> HostFacts:
    """What the Node object tells of this host. Raises NotReady when the state directory is away."""
    with _mapped(NotReady, state_dir):
        disk = shutil.disk_usage(state_dir).total
    return HostFacts(
        cpus=psutil.cpu_count() or 1,
        memory=psutil.virtual_memory().total,
        disk=disk,
        machine_id=_line("/etc/machine-id"),
        system_uuid=_line("/sys/class/dmi/id/product_uuid") or _line("/etc/machine-id"),
        boot_id=_line("/proc/sys/kernel/random/boot_id"),
        kernel=platform.release(),
        os_image=_os_image(),
        architecture={"x86_64": "amd64", "aarch64": "arm64"}.get(platform.machine(), platform.machine()),
        docker_version=docker_version,
        agent_version=version("podlane"),
        huge_pages=_huge_pages(),
        images=images,
    )


def _huge_pages() -> dict[str, int]:
    """Bytes set aside for pages of each size."""
    found = {}
    for folder in HUGE_PAGES.glob("hugepages-*kB"):
        size = int(folder.name.removeprefix("hugepages-").removesuffix("kB"))
        name = f"{size >> 20}Gi" if size >> 20 else f"{size >> 10}Mi" if size >> 10 else f"{size}Ki"
        found[name] = int(_line(str(folder / "nr_hugepages")) or "0") * size * 1024
    return dict(sorted(found.items()))


def host(state_dir: Path) -> Host:
    """What containers need to know of this host."""
    return Host(str(state_dir / "pods"), psutil.virtual_memory().total, least_oom_score(), psutil.cpu_count() or 1)


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


def prepare(where: Host, uid: str) -> None:
    """Make the pod's directory. Raises NotReady when there is no room."""
    with _mapped(NotReady, pod_dir(where, uid)):
        Path(pod_dir(where, uid)).mkdir(mode=0o750, parents=True, exist_ok=True)


def write_network_files(pod: Pod, where: Host, address: str) -> str:
    """The pod's /etc/hosts and /etc/resolv.conf. Raises NotReady.

    Returns which limit the pod's wishes for the resolver exceed, empty if none.
    """
    write_hosts(pod, where, address)
    return write_resolver(pod, where)


def write_hosts(pod: Pod, where: Host, address: str) -> None:
    """Write the pod's /etc/hosts, in place so that running containers see it. Raises NotReady."""
    path = Path(hosts_file(where, pod.metadata.uid))
    with _mapped(NotReady, path):
        text = hosts_text(pod, address, where.cluster_domain, HOSTS.read_text() if pod.spec.host_network else "")
        _write_in_place(path, text)


def write_resolver(pod: Pod, where: Host) -> str:
    """Write the pod's /etc/resolv.conf, in place so that running containers see it. Raises NotReady.

    Returns which limit the pod's wishes exceed, empty if none.
    """
    with _mapped(NotReady, where.resolv_conf):
        of_host = parse(Path(where.resolv_conf).read_text())
    wished, exceeded = resolver(pod, of_host, where.cluster_dns, where.cluster_domain)
    path = Path(resolver_file(where, pod.metadata.uid))
    with _mapped(NotReady, path):
        _write_in_place(path, str(wished))
    return exceeded


def _write_in_place(path: Path, text: str) -> None:
    if not path.exists() or path.read_text() != text:
        path.write_text(text)
        path.chmod(0o644)


def make_message_file(path: str) -> None:
    """An empty file that every user may write. Raises NotReady."""
    with _mapped(NotReady, path):
        Path(path).parent.mkdir(mode=0o750, parents=True, exist_ok=True)
        Path(path).write_bytes(b"")
        Path(path).chmod(0o666)


def read_end(path: str, most: int) -> str:
    """The last bytes of a file as text, empty when there is none."""
    try:
        with Path(path).open("rb") as file:
            size = file.seek(0, 2)
            file.seek(max(size - most, 0))
            return file.read(most).decode(errors="replace")
    except OSError:
        return ""


def known_pods(where: Host) -> set[str]:
    """UIDs of the pods that have a directory. Raises NotReady."""
    root = Path(where.pods_dir)
    with _mapped(NotReady, root):
        return {entry.name for entry in root.iterdir()} if root.exists() else set()
