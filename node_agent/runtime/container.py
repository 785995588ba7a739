"""A container and the containers of a pod as Docker reports them; the labels that describe them. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from types import MappingProxyType

import msgspec
from msgspec.structs import replace

from api.core.pod import Container as Wish
from api.core.pod import LifecycleHandler

TYPE = "io.kubernetes.docker.type"
SANDBOX_TYPE, CONTAINER_TYPE = "podsandbox", "container"
POD_NAME = "io.kubernetes.pod.name"
POD_NAMESPACE = "io.kubernetes.pod.namespace"
POD_UID = "io.kubernetes.pod.uid"
CONTAINER_NAME = "io.kubernetes.container.name"
SANDBOX_ID = "io.kubernetes.sandbox.id"
HASH = "annotation.io.kubernetes.container.hash"
RESTARTS = "annotation.io.kubernetes.container.restartCount"
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


@dataclass(frozen=True, slots=True)
class RuntimeContainer:
    """One container, as Docker inspects it; `state` is created, running, exited or dead.

    Times are UTC and None where Docker has none yet. `pid` is 0 unless it runs.
    `log_path` is Docker's own file, empty until the container has been started.
    `user` are the uid, the gid and the other groups of its first process, None unless it runs.
    `digest` is its image as a registry knows it (`NAME@sha256:...`), empty if none does.
    `layer` is the directory of what it has written, empty where Docker's storage driver has none.
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
    user: tuple[int, int, tuple[int, ...]] | None = None

    @property
    def running(self) -> bool:
        """Whether its process is alive."""
        return self.state in {"running", "paused", "restarting"}

    @property
    def never_started(self) -> bool:
        """Whether nobody has tried to start it yet."""
        return self.state == "created" and not self.exit_code and not self.error

    @property
    def exited(self) -> bool:
        """Whether it ran, or could not be started, and does not run now."""
        return not self.running and not self.never_started

    @property
    def succeeded(self) -> bool:
        """Whether, having ended, it has done its work."""
        return not self.exit_code and not self.error

    @property
    def exited_at(self) -> datetime | None:
        """When it ended; one that could not be started ended when it was made."""
        return self.finished_at or self.created_at

    @property
    def is_sandbox(self) -> bool:
        """Whether it holds the namespaces of a pod."""
        return self.labels.get(TYPE) == SANDBOX_TYPE

    @property
    def name(self) -> str:
        """Name of the container in the pod."""
        return self.labels.get(CONTAINER_NAME, "")

    @property
    def uid(self) -> str:
        """UID of its pod."""
        return self.labels.get(POD_UID, "")

    @property
    def restart_count(self) -> int:
        """How often this container of the pod had been started before."""
        return int_label(self.labels, RESTARTS)

    @property
    def crash_count(self) -> int:
        """How many starts in a row before this one ended soon."""
        return int_label(self.labels, CRASHES)

    @property
    def attempt(self) -> int:
        """How many sandboxes of the pod came before this one."""
        return int_label(self.labels, ATTEMPT)


def int_label(labels: Mapping[str, str], key: str, otherwise: int = 0) -> int:
    """A number that we wrote; what anybody else has put in its place counts as `otherwise`."""
    text = labels.get(key, "")
    return int(text) if text.isascii() and text.isdecimal() and len(text) <= 9 else otherwise


@dataclass(frozen=True, slots=True)
class RuntimePod:
    """All containers of one pod: sandboxes newest first, others by name, newest first."""

    sandboxes: tuple[RuntimeContainer, ...] = ()
    containers: Mapping[str, tuple[RuntimeContainer, ...]] = field(default_factory=lambda: MappingProxyType({}))

    @property
    def sandbox(self) -> RuntimeContainer | None:
        """The newest sandbox."""
        return self.sandboxes[0] if self.sandboxes else None

    @property
    def all(self) -> tuple[RuntimeContainer, ...]:
        """Containers first, then the sandboxes under them."""
        return tuple(one for group in self.containers.values() for one in group) + self.sandboxes

    @property
    def sandbox_ids(self) -> frozenset[str]:
        """Every sandbox that the pod has, or had when one of its containers was made."""
        named = (one.labels.get(SANDBOX_ID, "") for group in self.containers.values() for one in group)
        return frozenset(one.id for one in self.sandboxes) | frozenset(one for one in named if one)


def group_containers(found: list[RuntimeContainer]) -> RuntimePod:
    """Sort what belongs to one pod."""
    sandboxes = sorted((one for one in found if one.is_sandbox), key=lambda one: one.attempt, reverse=True)
    names = sorted({one.name for one in found if not one.is_sandbox})
    return RuntimePod(
        tuple(sandboxes),
        {
            name: tuple(
                sorted(
                    (one for one in found if not one.is_sandbox and one.name == name),
                    key=lambda one: one.restart_count,
                    reverse=True,
                )
            )
            for name in names
        },
    )


def pre_stop_labels(wish: Wish) -> dict[str, str]:
    """What an agent that knows nothing but the container needs to stop it well; names of ports become numbers."""
    hook = wish.lifecycle.pre_stop if wish.lifecycle is not None else None
    if hook is None:
        return {}
    if hook.http_get is not None and isinstance(hook.http_get.port, str):
        hook = replace(hook, http_get=replace(hook.http_get, port=named_ports(wish)[hook.http_get.port]))
    return {PRE_STOP: msgspec.json.encode(hook).decode()}


def stop_signal(wish: Wish) -> str:
    """The signal with which a container wishes to be asked to stop; empty for that of its image."""
    return wish.lifecycle.stop_signal or "" if wish.lifecycle is not None else ""


def pre_stop_handler(container: RuntimeContainer) -> LifecycleHandler | None:
    """The hook that is written on a container."""
    text = container.labels.get(PRE_STOP)
    return msgspec.json.decode(text, type=LifecycleHandler) if text else None


def named_ports(wish: Wish) -> dict[str, int]:
    """The named ports of a container."""
    return {port.name: port.container_port for port in wish.ports if port.name}
