"""CPU, memory, kernel, OS of the host. Driver."""

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
    """What the Node object tells of this host. Raises NotReady when the state directory is away."""
    with os_errors_as(NotReady, state_dir):
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


def read_host_info(state_dir: Path) -> HostInfo:
    """What containers need to know of this host."""
    return HostInfo(str(state_dir / "pods"), psutil.virtual_memory().total, min_oom_score(), psutil.cpu_count() or 1)


def has_apparmor() -> bool:
    """Whether the kernel enforces AppArmor profiles."""
    return _line("/sys/module/apparmor/parameters/enabled") == "Y"


def min_oom_score() -> int:
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
