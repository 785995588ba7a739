"""A container and the containers of a pod as Docker reports them; the labels that describe them. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from types import MappingProxyType
from typing import NamedTuple

import msgspec
from msgspec.structs import replace

from api.core.pod import Container, LifecycleHandler

TYPE = "io.kubernetes.docker.type"
SANDBOX_TYPE, CONTAINER_TYPE = "podsandbox", "container"
POD_NAME = "io.kubernetes.pod.name"
POD_NAMESPACE = "io.kubernetes.pod.namespace"
POD_UID = "io.kubernetes.pod.uid"
CONTAINER_NAME = "io.kubernetes.container.name"
SANDBOX_ID = "io.kubernetes.sandbox.id"
HASH = "annotation.io.kubernetes.container.hash"
RESTARTS = "annotation.io.kubernetes.container.restartCount"
ANNOTATION = "annotation."
"""Prefix of the labels of a sandbox that are annotations of its pod."""

GRACE = "annotation.io.kubernetes.pod.terminationGracePeriod"
PRE_STOP = "annotation.io.kubernetes.container.preStopHandler"
LOG_PATH = "io.kubernetes.container.logpath"
MESSAGE_PATH = "annotation.io.kubernetes.container.terminationMessagePath"
MESSAGE_POLICY = "annotation.io.kubernetes.container.terminationMessagePolicy"
PORTS = "annotation.io.kubernetes.container.ports"
CRASHES = "annotation.podlane.io/container.crashes"
ATTEMPT = "annotation.podlane.io/sandbox.attempt"
RESERVED_LABELS = frozenset((HASH, RESTARTS, GRACE, PRE_STOP, MESSAGE_PATH, MESSAGE_POLICY, PORTS, CRASHES, ATTEMPT))
"""Labels that no annotation of a pod may set."""


class DockerResources(NamedTuple):
    """CPU shares, CPU quota in µs per 100 ms, and memory in bytes, of a container. 0 is no limit."""

    cpu_shares: int
    cpu_quota: int
    memory: int


@dataclass(frozen=True, slots=True)
class RuntimeContainer:
    """A container as Docker inspects it.

    `state` is created, running, paused, restarting, exited or dead. Times are UTC, None if Docker has none yet. `pid`
    is 0 unless the container runs. `log_path` is Docker's own file, empty until the container was started.

    `user` is the UID, the GID and the supplementary groups of the first process, None unless the container runs.
    `digest` is the name of the image in its registry (`NAME@sha256:...`), empty if it comes from none. `layer` is the
    directory of the writable layer, empty if Docker's storage driver has none. `image_volumes` are the directories that
    Docker has made for the volumes of the image (VOLUME). It removes them with the container. `resources` is None if
    they were not read.
    """

    id: str
    labels: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    state: str = "created"
    pid: int = 0
    exit_code: int = 0
    error: str = ""
    oom_killed: bool = False
    created_at: datetime | None = None
    started_at: datetime | None = None
    finished_at: datetime | None = None
    image: str = ""
    image_id: str = ""
    digest: str = ""
    stop_signal: str = "SIGTERM"
    log_path: str = ""
    layer: str = ""
    image_volumes: tuple[str, ...] = ()
    user: tuple[int, int, tuple[int, ...]] | None = None
    resources: DockerResources | None = None

    @property
    def running(self) -> bool:
        """Whether the process is alive."""
        return self.state in {"running", "paused", "restarting"}

    @property
    def never_started(self) -> bool:
        """Whether no start was attempted yet."""
        return self.state == "created" and not self.exit_code and not self.error

    @property
    def exited(self) -> bool:
        """Whether the container ran, or could not be started, and does not run now."""
        return not self.running and not self.never_started

    @property
    def succeeded(self) -> bool:
        """Whether an exited container ended without an error."""
        return not self.exit_code and not self.error

    @property
    def exited_at(self) -> datetime | None:
        """The time of the exit. A container that could not be started exited when it was created."""
        return self.finished_at or self.created_at

    @property
    def is_sandbox(self) -> bool:
        """Whether the container holds the namespaces of a pod."""
        return self.labels.get(TYPE) == SANDBOX_TYPE

    @property
    def name(self) -> str:
        """The name of the container in its pod."""
        return self.labels.get(CONTAINER_NAME, "")

    @property
    def pod_uid(self) -> str:
        """The UID of the pod."""
        return self.labels.get(POD_UID, "")

    @property
    def restart_count(self) -> int:
        """The number of earlier starts of this container of the pod."""
        return int_label(self.labels, RESTARTS)

    @property
    def crash_label(self) -> int:
        """The number of starts in a row before this one that exited soon. See `previous_crashes`."""
        return int_label(self.labels, CRASHES)

    @property
    def attempt(self) -> int:
        """The number of earlier sandboxes of the pod."""
        return int_label(self.labels, ATTEMPT)


@dataclass(frozen=True, slots=True)
class ContainerEvent:
    """An event of Docker about a container of a pod. `action` is start, die, oom or destroy."""

    action: str
    container_id: str
    pod_uid: str

    def is_reflected_in(self, container: RuntimeContainer | None) -> bool:
        """Return whether the known state of the container is the one that the event reports.

        `container` is None if the pod does not have it any more. `oom` is never reflected: Docker sets the flag of the
        container at another time than it sends the event.
        """
        if container is None:
            return self.action == "destroy"
        return container.running if self.action == "start" else container.exited and self.action == "die"


def labels_by_pod(labels: Iterable[dict[str, str]]) -> dict[str, dict[str, str]]:
    """Return the labels of one container of each pod, by pod UID, given those of all containers.

    It is a sandbox if the pod has one, because only sandboxes have the annotations of the pod. Containers of other
    agents that use kubelet's labels are omitted, because they lack this agent's own labels.

    A sandbox is one by its type, which the agent sets for all containers. Other labels may be those of the image.
    """
    own = [container for container in labels if container.keys() & {ATTEMPT, CRASHES} and POD_UID in container]
    sandboxes_last = sorted(own, key=lambda container: container.get(TYPE) == SANDBOX_TYPE)
    return {container[POD_UID]: container for container in sandboxes_last}


def int_label(labels: Mapping[str, str], key: str, default: int = 0) -> int:
    """Return the number in a label that this agent wrote. Return `default` if the label is not a number."""
    text = labels.get(key, "")
    return int(text) if text.isascii() and text.isdecimal() and len(text) <= 9 else default


@dataclass(frozen=True, slots=True)
class RuntimePod:
    """All containers of one pod: the sandboxes, and the other containers by name. The newest are first."""

    sandboxes: tuple[RuntimeContainer, ...] = ()
    containers: Mapping[str, tuple[RuntimeContainer, ...]] = field(default_factory=lambda: MappingProxyType({}))

    @property
    def sandbox(self) -> RuntimeContainer | None:
        """The newest sandbox."""
        return self.sandboxes[0] if self.sandboxes else None

    @property
    def all(self) -> tuple[RuntimeContainer, ...]:
        """The containers, then the sandboxes."""
        return tuple(container for history in self.containers.values() for container in history) + self.sandboxes

    @property
    def sandbox_ids(self) -> frozenset[str]:
        """The IDs of all sandboxes that exist, or existed when one of the containers was created."""
        labelled = (
            container.labels.get(SANDBOX_ID, "") for history in self.containers.values() for container in history
        )
        existing = frozenset(sandbox.id for sandbox in self.sandboxes)
        return existing | frozenset(sandbox_id for sandbox_id in labelled if sandbox_id)


def group_containers(containers: list[RuntimeContainer]) -> RuntimePod:
    """Group the containers of one pod."""
    sandboxes = [container for container in containers if container.is_sandbox]
    sandboxes.sort(key=lambda sandbox: sandbox.attempt, reverse=True)
    histories: dict[str, list[RuntimeContainer]] = {}
    for container in sorted(containers, key=lambda container: container.restart_count, reverse=True):
        if not container.is_sandbox:
            histories.setdefault(container.name, []).append(container)
    return RuntimePod(tuple(sandboxes), {name: tuple(histories[name]) for name in sorted(histories)})


def pre_stop_label(container: Container) -> str:
    """Return the preStop hook as text, for an agent that knows only the container. Port names become numbers.

    The text is empty if there is no hook.
    """
    hook = container.lifecycle.pre_stop if container.lifecycle is not None else None
    if hook is None:
        return ""
    if hook.http_get is not None and isinstance(hook.http_get.port, str):
        hook = replace(hook, http_get=replace(hook.http_get, port=named_ports(container)[hook.http_get.port]))
    return msgspec.json.encode(hook).decode()


def stop_signal(container: Container) -> str:
    """Return the stop signal of a container. Return an empty string for the one of its image."""
    return container.lifecycle.stop_signal or "" if container.lifecycle is not None else ""


def pre_stop_handler(container: RuntimeContainer) -> LifecycleHandler | None:
    """Return the preStop hook in the labels of a container."""
    text = container.labels.get(PRE_STOP)
    return msgspec.json.decode(text, type=LifecycleHandler) if text else None


def named_ports(container: Container) -> dict[str, int]:
    """Return the numbers of the named ports of a container."""
    return {port.name: port.container_port for port in container.ports if port.name}
