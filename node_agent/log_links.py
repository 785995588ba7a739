"""Under which names log shippers and `kubectl logs` on a node look for a container's log. Pure.

`PODS/NAMESPACE_POD_UID/CONTAINER/ATTEMPT.log` leads to Docker's file, and `CONTAINERS/POD_NAMESPACE_CONTAINER-ID.log`
leads to that.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from node_agent.observed import POD_NAME, POD_NAMESPACE, Container

LONGEST_NAME = 255
SUFFIX = ".log"


@dataclass(frozen=True, slots=True)
class LogDirs:
    """Usually /var/log/pods and /var/log/containers."""

    pods: Path
    containers: Path


def pod_link(dirs: LogDirs, one: Container) -> Path:
    """Where the log of one attempt of a container is found by its pod."""
    folder = pod_folder(one.labels.get(POD_NAMESPACE, ""), one.labels.get(POD_NAME, ""), one.uid)
    return dirs.pods / folder / one.name / f"{one.restarts}{SUFFIX}"


def pod_folder(namespace: str, name: str, uid: str) -> str:
    """The name of the directory of a pod's logs."""
    return f"{namespace}_{name}_{uid}"


def container_link(dirs: LogDirs, one: Container) -> Path:
    """Where it is found by its container; a name that is too long for a file system is cut."""
    name = f"{one.labels.get(POD_NAME, '')}_{one.labels.get(POD_NAMESPACE, '')}_{one.name}-{one.id}"
    return dirs.containers / (name[: LONGEST_NAME - len(SUFFIX)] + SUFFIX)


def unlinked(dirs: LogDirs, found: Iterable[Container], present: Mapping[Path, str]) -> tuple[Container, ...]:
    """Containers without their two links; `present` is every link that is there, and where it leads."""
    return tuple(one for one in found if not one.is_sandbox and not one.unborn and not _is_linked(dirs, one, present))


def _is_linked(dirs: LogDirs, one: Container, present: Mapping[Path, str]) -> bool:
    by_pod = pod_link(dirs, one)
    return one.id in present.get(by_pod, "") and present.get(container_link(dirs, one)) == str(by_pod)


def strangers(dirs: LogDirs, found: Iterable[Container], present: Iterable[Path]) -> tuple[Path, ...]:
    """Links that belong to none of these containers, those by pod first: the others lead to them."""
    ours = {link for one in found for link in (pod_link(dirs, one), container_link(dirs, one))}
    return tuple(sorted(set(present) - ours, key=lambda link: (link.parent == dirs.containers, link)))
