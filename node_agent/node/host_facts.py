"""CPU, memory, kernel and operating system of the host. Driver."""

from __future__ import annotations

import platform
import shutil
from importlib.metadata import version
from pathlib import Path

import psutil

from api.core.node import ContainerImage
from node_agent.host import HostInfo
from node_agent.node.node_status import HostFacts
from reconcile.errors import NotReady, os_errors_as

OOM_SCORE = Path("/proc/self/oom_score_adj")


HUGE_PAGES = Path("/sys/kernel/mm/hugepages")


def read_host_facts(state_dir: Path, docker_version: str, images: tuple[ContainerImage, ...]) -> HostFacts:
    """Return the facts about this host for the Node object. Raises NotReady if the state directory does not exist."""
    with os_errors_as(NotReady, state_dir):
        disk = shutil.disk_usage(state_dir).total
    return HostFacts(
        cpus=psutil.cpu_count() or 1,
        memory=psutil.virtual_memory().total,
        disk=disk,
        machine_id=_read_stripped("/etc/machine-id"),
        system_uuid=_read_stripped("/sys/class/dmi/id/product_uuid") or _read_stripped("/etc/machine-id"),
        boot_id=_read_stripped("/proc/sys/kernel/random/boot_id"),
        kernel=platform.release(),
        os_image=_os_image(),
        architecture={"x86_64": "amd64", "aarch64": "arm64"}.get(platform.machine(), platform.machine()),
        docker_version=docker_version,
        agent_version=version("podlane"),
        huge_pages=_huge_pages(),
        images=images,
    )


def _huge_pages() -> dict[str, int]:
    """Return the bytes that are reserved for huge pages, by page size."""
    bytes_by_size = {}
    for directory in HUGE_PAGES.glob("hugepages-*kB"):
        size = int(directory.name.removeprefix("hugepages-").removesuffix("kB"))
        name = f"{size >> 20}Gi" if size >> 20 else f"{size >> 10}Mi" if size >> 10 else f"{size}Ki"
        bytes_by_size[name] = int(_read_stripped(str(directory / "nr_hugepages")) or "0") * size * 1024
    return dict(sorted(bytes_by_size.items()))


def read_host_info(state_dir: Path) -> HostInfo:
    """Return the facts about this host that container configurations depend on."""
    return HostInfo(str(state_dir / "pods"), psutil.virtual_memory().total, min_oom_score(), psutil.cpu_count() or 1)


def has_apparmor() -> bool:
    """Return whether the kernel enforces AppArmor profiles."""
    return _read_stripped("/sys/module/apparmor/parameters/enabled") == "Y"


def min_oom_score() -> int:
    """Return the lowest OOM score that this process may set: -1000, or its own score without CAP_SYS_RESOURCE."""
    current = int(OOM_SCORE.read_text())
    try:
        OOM_SCORE.write_text("-1000")
    except OSError:
        return current
    OOM_SCORE.write_text(str(current))
    return -1000


def _os_image() -> str:
    try:
        return platform.freedesktop_os_release().get("PRETTY_NAME", "Linux")
    except OSError:
        return "Linux"


def _read_stripped(path: str) -> str:
    try:
        return Path(path).read_text().strip()
    except OSError:
        return ""
