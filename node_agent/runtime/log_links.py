"""Symbolic links under /var/log/pods and /var/log/containers.

`PODS/NAMESPACE_POD_UID/CONTAINER/ATTEMPT.log` points to Docker's file, and
`CONTAINERS/POD_NAMESPACE_CONTAINER-ID.log` points to that link.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from node_agent.config import Settings
from node_agent.docker.client import DockerClient
from node_agent.host import LOG_SUFFIX, pod_log_dir_name
from node_agent.runtime.container import POD_NAME, POD_NAMESPACE, RuntimeContainer
from reconcile.errors import Gone, NotReady, os_errors_as
from reconcile.loop import Loop, LoopTiming, retry_unexpected_errors

RESYNC_SECONDS = 60.0
DEBOUNCE_SECONDS = 0.5

MAX_NAME = 255


@dataclass(frozen=True, slots=True)
class LogDirs:
    """The directories of log links, usually /var/log/pods and /var/log/containers."""

    pods: Path
    containers: Path


def pod_link(dirs: LogDirs, container: RuntimeContainer) -> Path:
    """Return the link to the log of one attempt of a container, by pod."""
    directory = pod_log_dir_name(
        container.labels.get(POD_NAMESPACE, ""), container.labels.get(POD_NAME, ""), container.pod_uid
    )
    return Path(f"{dirs.pods}/{directory}/{container.name}/{container.restart_count}{LOG_SUFFIX}")


def container_link(dirs: LogDirs, container: RuntimeContainer) -> Path:
    """Return the link by container. A name that is too long for a file system is cut."""
    pod_name = f"{container.labels.get(POD_NAME, '')}_{container.labels.get(POD_NAMESPACE, '')}"
    name = f"{pod_name}_{container.name}-{container.id}"
    return Path(f"{dirs.containers}/{name[: MAX_NAME - len(LOG_SUFFIX)]}{LOG_SUFFIX}")


def missing_links(
    dirs: LogDirs, containers: Iterable[RuntimeContainer], present: Mapping[Path, str]
) -> tuple[RuntimeContainer, ...]:
    """Return the containers without their two links. `present`: all existing links and their targets."""
    return tuple(
        container
        for container in containers
        if not container.is_sandbox and not container.never_started and not _is_linked(dirs, container, present)
    )


def _is_linked(dirs: LogDirs, container: RuntimeContainer, present: Mapping[Path, str]) -> bool:
    by_pod = pod_link(dirs, container)
    return container.id in present.get(by_pod, "") and present.get(container_link(dirs, container)) == str(by_pod)


def stale_links(dirs: LogDirs, containers: Iterable[RuntimeContainer], present: Iterable[Path]) -> tuple[Path, ...]:
    """Return the links that belong to none of these containers, links by pod first: the others point to them."""
    expected = {
        link for container in containers for link in (pod_link(dirs, container), container_link(dirs, container))
    }
    return tuple(sorted(set(present) - expected, key=lambda link: (link.parent == dirs.containers, link)))


PARTIAL_SUFFIX = ".new"


def existing_links(dirs: LogDirs) -> dict[Path, str]:
    """Return all links in both directories and their targets, also unfinished links, but no other files.

    Raises NotReady.
    """
    with os_errors_as(NotReady, dirs.pods):
        suffixes = (LOG_SUFFIX, PARTIAL_SUFFIX)
        paths = [
            *(
                path
                for suffix in suffixes
                for path in (*dirs.pods.glob(f"*/*/*{suffix}"), *dirs.containers.glob(f"*{suffix}"))
            )
        ]
        return {path: str(path.readlink()) for path in paths if path.is_symlink()}


def create_link(link: Path, target: Path) -> None:
    """Create a link, or change its target. Raises NotReady."""
    with os_errors_as(NotReady, link):
        link.parent.mkdir(parents=True, exist_ok=True)
        partial = link.with_suffix(PARTIAL_SUFFIX)
        partial.unlink(missing_ok=True)
        partial.symlink_to(target)
        os.replace(partial, link)


def remove_dangling(dirs: LogDirs, link: Path) -> None:
    """Remove a link without a target, and the directories that become empty. Raises NotReady.

    A link by container is removed after the directories of the link by pod to which it points, so that an agent that
    is killed in between finds them again.
    """
    with os_errors_as(NotReady, link):
        if link.exists():
            return
        if link.parent == dirs.containers:
            _remove_empty(dirs, link.readlink())
        link.unlink(missing_ok=True)
        _remove_empty(dirs, link)


def _remove_empty(dirs: LogDirs, link: Path) -> None:
    for directory in (link.parent, link.parent.parent):
        if directory.is_relative_to(dirs.pods) and directory != dirs.pods:
            with contextlib.suppress(OSError):
                directory.rmdir()


class LogLinker:
    """Links the logs of containers in the background. `loop` is woken when a container has changed."""

    def __init__(self, settings: Settings, docker: DockerClient) -> None:
        self.loop = Loop(
            "logs",
            retry_unexpected_errors("logs", self.update_links),
            LoopTiming(resync=RESYNC_SECONDS, debounce=DEBOUNCE_SECONDS),
        )
        self._docker = docker
        self._dirs = LogDirs(Path(settings.pod_logs_dir), Path(settings.container_logs_dir))

    async def update_links(self) -> None:
        """Create the links of new containers, and remove those of removed containers. Raises DriverError."""
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
