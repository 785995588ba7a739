"""Symbolic links under /var/log/pods and /var/log/containers.

`PODS/NAMESPACE_POD_UID/CONTAINER/ATTEMPT.log` leads to Docker's file, and `CONTAINERS/POD_NAMESPACE_CONTAINER-ID.log`
leads to that.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from node_agent.config import Settings
from node_agent.docker.client import DockerClient
from node_agent.host import LOG_SUFFIX, pod_log_dir_name
from node_agent.runtime.container import POD_NAME, POD_NAMESPACE, RuntimeContainer
from reconcile.errors import Gone, NotReady
from reconcile.loop import Loop, LoopTiming, containing_bugs

RESYNC_SECONDS = 60.0
DEBOUNCE_SECONDS = 0.5

MAX_NAME = 255


@dataclass(frozen=True, slots=True)
class LogDirs:
    """Usually /var/log/pods and /var/log/containers."""

    pods: Path
    containers: Path


def pod_link(dirs: LogDirs, one: RuntimeContainer) -> Path:
    """Where the log of one attempt of a container is found by its pod."""
    folder = pod_log_dir_name(one.labels.get(POD_NAMESPACE, ""), one.labels.get(POD_NAME, ""), one.uid)
    return dirs.pods / folder / one.name / f"{one.restart_count}{LOG_SUFFIX}"


def container_link(dirs: LogDirs, one: RuntimeContainer) -> Path:
    """Where it is found by its container; a name that is too long for a file system is cut."""
    name = f"{one.labels.get(POD_NAME, '')}_{one.labels.get(POD_NAMESPACE, '')}_{one.name}-{one.id}"
    return dirs.containers / (name[: MAX_NAME - len(LOG_SUFFIX)] + LOG_SUFFIX)


def missing_links(
    dirs: LogDirs, found: Iterable[RuntimeContainer], present: Mapping[Path, str]
) -> tuple[RuntimeContainer, ...]:
    """Containers without their two links; `present` is every link that is there, and where it leads."""
    return tuple(
        one for one in found if not one.is_sandbox and not one.never_started and not _is_linked(dirs, one, present)
    )


def _is_linked(dirs: LogDirs, one: RuntimeContainer, present: Mapping[Path, str]) -> bool:
    by_pod = pod_link(dirs, one)
    return one.id in present.get(by_pod, "") and present.get(container_link(dirs, one)) == str(by_pod)


def stale_links(dirs: LogDirs, found: Iterable[RuntimeContainer], present: Iterable[Path]) -> tuple[Path, ...]:
    """Links that belong to none of these containers, those by pod first: the others lead to them."""
    ours = {link for one in found for link in (pod_link(dirs, one), container_link(dirs, one))}
    return tuple(sorted(set(present) - ours, key=lambda link: (link.parent == dirs.containers, link)))


PARTIAL_SUFFIX = ".new"


def existing_links(dirs: LogDirs) -> dict[Path, str]:
    """Every link in both directories, also half made, and where it leads. What is no link belongs to others.

    Raises NotReady.
    """
    with _mapped(dirs.pods):
        ends = (LOG_SUFFIX, PARTIAL_SUFFIX)
        found = [*(path for end in ends for path in (*dirs.pods.glob(f"*/*/*{end}"), *dirs.containers.glob(f"*{end}")))]
        return {path: str(path.readlink()) for path in found if path.is_symlink()}


def create_link(link: Path, target: Path) -> None:
    """Make the link, or let it lead somewhere else. Raises NotReady."""
    with _mapped(link):
        link.parent.mkdir(parents=True, exist_ok=True)
        beside = link.with_suffix(PARTIAL_SUFFIX)
        beside.unlink(missing_ok=True)
        beside.symlink_to(target)
        os.replace(beside, link)


def remove_dangling(dirs: LogDirs, link: Path) -> None:
    """Remove a link that leads nowhere, with the directories that become empty. Raises NotReady.

    That by container, which leads to that by pod, goes after the directories of that one: whoever is killed before
    comes back to it.
    """
    with _mapped(link):
        if link.exists():
            return
        if link.parent == dirs.containers:
            _remove_empty(dirs, link.readlink())
        link.unlink(missing_ok=True)
        _remove_empty(dirs, link)


def _remove_empty(dirs: LogDirs, link: Path) -> None:
    for folder in (link.parent, link.parent.parent):
        if folder.is_relative_to(dirs.pods) and folder != dirs.pods:
            with contextlib.suppress(OSError):
                folder.rmdir()


@contextmanager
def _mapped(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise NotReady(f"{path}: {error.strerror or error}") from None


class LogLinker:
    """Links the logs of containers in the background. `loop` is woken when a container has changed."""

    def __init__(self, settings: Settings, docker: DockerClient) -> None:
        self.loop = Loop(
            "logs",
            containing_bugs("logs", self.update_links),
            LoopTiming(resync=RESYNC_SECONDS, debounce=DEBOUNCE_SECONDS),
        )
        self._docker = docker
        self._dirs = LogDirs(Path(settings.pod_logs_dir), Path(settings.container_logs_dir))

    async def update_links(self) -> None:
        """Create the links of new containers, and remove those of containers that are gone. Raises DriverError."""
        containers = await self._docker.list_containers()
        links = await asyncio.to_thread(existing_links, self._dirs)
        for container in missing_links(self._dirs, containers, links):
            await self._link(container.id)
        for link in stale_links(self._dirs, containers, links):
            await asyncio.to_thread(remove_dangling, self._dirs, link)

    async def _link(self, container_id: str) -> None:
        try:
            container = await self._docker.inspect(container_id)
        except Gone:
            return
        if container.log_path:
            by_pod = pod_link(self._dirs, container)
            # The link by container is created first, because it leads to the directories that the other one needs:
            # remove_dangling() finds them through it after a crash.
            await asyncio.to_thread(create_link, container_link(self._dirs, container), by_pod)
            await asyncio.to_thread(create_link, by_pod, Path(container.log_path))
