"""Documents of the Docker Engine API: the body of a create request, and what Docker returns. Pure."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import msgspec

from api.core.node import ContainerImage
from api.meta import times
from node_agent.cgroups.hierarchy import CPU_PERIOD
from node_agent.runtime.container import RuntimeContainer
from node_agent.runtime.spec import ContainerConfig

ZERO_TIME = "0001-01-01T00:00:00Z"
"""Go's zero time, which Docker reports for events that have not occurred."""


class Version(msgspec.Struct, frozen=True, rename="pascal"):
    """The versions of Docker and of its API."""

    version: str
    api_version: str


class Info(msgspec.Struct, frozen=True, rename="pascal"):
    """The settings of Docker that the agent reads."""

    cgroup_driver: str
    docker_root_dir: str


class Created(msgspec.Struct, frozen=True, rename="pascal"):
    """The ID of a created container."""

    id: str


class ErrorResponse(msgspec.Struct, frozen=True):
    """Docker's message about a request that failed."""

    message: str


class Actor(msgspec.Struct, frozen=True, rename="pascal"):
    """The object of an event. A container's attributes include its labels."""

    id: str = msgspec.field(name="ID", default="")
    attributes: dict[str, str] = {}


class Event(msgspec.Struct, frozen=True, rename="pascal"):
    """An event of Docker."""

    action: str = ""
    actor: Actor = Actor()


class ListedContainer(msgspec.Struct, frozen=True, rename="pascal"):
    """A container in a list. `size_rw` is in bytes, and 0 unless it was requested."""

    id: str
    state: str
    labels: dict[str, str] | None = None
    image_id: str = msgspec.field(name="ImageID", default="")
    size_rw: int = 0


class State(msgspec.Struct, frozen=True, rename="pascal"):
    """The state of an inspected container. `pid` is 0 unless it runs."""

    status: str
    pid: int
    exit_code: int
    error: str
    started_at: str
    finished_at: str
    running: bool
    oom_killed: bool = msgspec.field(name="OOMKilled")


class Config(msgspec.Struct, frozen=True, rename="pascal"):
    """The configuration of an inspected container."""

    image: str
    tty: bool = False
    labels: dict[str, str] | None = None
    stop_signal: str | None = None


class GraphDriver(msgspec.Struct, frozen=True, rename="pascal"):
    """The storage of a container's layers."""

    data: dict[str, str] | None = None


class Mount(msgspec.Struct, frozen=True, rename="pascal"):
    """A mount of an inspected container."""

    type: str
    source: str = ""


class InspectedContainer(msgspec.Struct, frozen=True, rename="pascal"):
    """An inspected container."""

    id: str
    created: str
    image: str
    state: State
    config: Config
    log_path: str = ""
    mounts: tuple[Mount, ...] | None = ()
    graph_driver: GraphDriver | None = None

    def runtime_container(self, user: tuple[int, int, tuple[int, ...]] | None) -> RuntimeContainer:
        """Return the container. `user` is the user of its process, None if it does not run."""
        state, config = self.state, self.config
        layers = self.graph_driver.data if self.graph_driver is not None else None
        return RuntimeContainer(
            id=self.id,
            labels=config.labels or {},
            state=state.status,
            pid=state.pid,
            exit_code=state.exit_code,
            error=state.error,
            oom_killed=state.oom_killed,
            created_at=_parse_time(self.created),
            started_at=_parse_time(state.started_at),
            finished_at=_parse_time(state.finished_at),
            image=config.image,
            image_id=self.image,
            stop_signal=config.stop_signal or "SIGTERM",
            log_path=self.log_path,
            layer=(layers or {}).get("UpperDir", ""),
            image_volumes=tuple(mount.source for mount in self.mounts or () if mount.type == "volume"),
            user=user,
        )


class ListedImage(msgspec.Struct, frozen=True, rename="pascal"):
    """An image in a list."""

    id: str
    size: int
    repo_tags: tuple[str, ...] | None = None
    repo_digests: tuple[str, ...] | None = None

    @property
    def tags(self) -> tuple[str, ...]:
        """The tags of the image."""
        return _valid_names(self.repo_tags)

    @property
    def digests(self) -> tuple[str, ...]:
        """The names of the image with a digest."""
        return _valid_names(self.repo_digests)

    def container_image(self) -> ContainerImage:
        """Return the image for the status of the node: tags first, then digests."""
        return ContainerImage(names=(*self.tags, *self.digests), size_bytes=self.size)


class ImageConfig(msgspec.Struct, frozen=True, rename="pascal"):
    """The defaults of an image for its containers."""

    user: str | None = None


class InspectedImage(msgspec.Struct, frozen=True, rename="pascal"):
    """An inspected image."""

    id: str
    size: int
    config: ImageConfig | None = None
    repo_digests: tuple[str, ...] | None = None

    @property
    def user(self) -> str:
        """The USER of the image, or an empty string."""
        return (self.config.user if self.config is not None else None) or ""

    @property
    def digest(self) -> str:
        """The first name with digest that registries have for the image, or an empty string."""
        return self.repo_digests[0] if self.repo_digests else ""


def create_body(config: ContainerConfig, log_options: dict[str, str]) -> dict[str, Any]:
    """Return the body of the request that creates a container. Its output goes to Docker's log files."""
    body: dict[str, Any] = {
        "Image": config.image,
        "Labels": dict(config.labels),
        "Env": list(config.environment),
        "Tty": config.tty,
        "OpenStdin": config.stdin,
        "StdinOnce": config.stdin_once,
        "AttachStdin": config.stdin,
        "AttachStdout": False,
        "AttachStderr": False,
        "Healthcheck": {"Test": ["NONE"]},
        # With a network, Docker would execute itself twice in the new network namespace, without any effect.
        "NetworkDisabled": config.network == "none",
        "HostConfig": _host_config(config, log_options),
    }
    optional = {
        "User": config.security.user,
        "WorkingDir": config.working_dir,
        "Hostname": config.hostname,
        "Domainname": config.domain,
        "StopSignal": config.stop_signal,
    }
    body |= {name: value for name, value in optional.items() if value}
    if config.entrypoint is not None:
        body["Entrypoint"] = list(config.entrypoint)
    if config.command is not None:
        body["Cmd"] = list(config.command)
    return body


def _host_config(config: ContainerConfig, log_options: dict[str, str]) -> dict[str, Any]:
    security = config.security
    host_config: dict[str, Any] = {
        "NetworkMode": config.network,
        "Binds": list(config.binds),
        "ReadonlyRootfs": security.read_only,
        "LogConfig": {"Type": "json-file", "Config": log_options},
    }
    optional = {
        "IpcMode": config.ipc,
        "PidMode": config.pid,
        "UTSMode": config.uts,
        "CpuShares": config.cpu_shares,
        "CpuPeriod": CPU_PERIOD if config.cpu_quota else 0,
        "CpuQuota": config.cpu_quota,
        "Memory": config.memory,
        "MemorySwap": config.memory,
        "OomScoreAdj": config.oom_score_adj,
        "SecurityOpt": list(security.options),
        "GroupAdd": [str(group) for group in security.groups],
        "Privileged": security.privileged,
        "CapAdd": list(security.cap_add),
        "CapDrop": list(security.cap_drop),
        "Sysctls": dict(config.sysctls),
        "Runtime": config.runtime,
        "CgroupParent": config.cgroup_parent,
    }
    host_config |= {name: value for name, value in optional.items() if value}
    if security.masked_paths is not None:
        host_config["MaskedPaths"] = list(security.masked_paths)
        if not security.masked_paths:
            host_config["ReadonlyPaths"] = []
    return host_config


def _valid_names(names: tuple[str, ...] | None) -> tuple[str, ...]:
    return tuple(name for name in names or () if "<none>" not in name)


def _parse_time(text: str) -> datetime | None:
    return None if text == ZERO_TIME or not text else times.parse_time(text)
