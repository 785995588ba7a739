"""The Docker Engine API: containers, images, events. Driver."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import operator
import secrets
import threading
import time
from collections.abc import AsyncIterable, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, ParamSpec, TypeVar

import docker.errors
import requests
import urllib3.exceptions
from docker.api.client import APIClient
from docker.types import LogConfig

from api.core.node import ContainerImage
from api.meta import times
from node_agent.cgroups.hierarchy import CPU_PERIOD
from node_agent.docker.exec import ExecResult, run_exec
from node_agent.docker.http import TRANSIENT_ERRORS
from node_agent.docker.load import load_images
from node_agent.docker.process import process_user
from node_agent.docker.pull import ImagePuller
from node_agent.images.credentials import Credential
from node_agent.images.pull_backoff import DEFAULT_LIMITS, PullLimits, PullResult
from node_agent.metrics import operation
from node_agent.runtime.container import (
    ATTEMPT,
    CRASHES,
    POD_UID,
    SANDBOX_TYPE,
    TYPE,
    ContainerEvent,
    DockerResources,
    RuntimeContainer,
    labels_by_pod,
)
from node_agent.runtime.spec import ContainerConfig
from reconcile.errors import Gone, NotReady, Refused

P = ParamSpec("P")
T = TypeVar("T")

MIN_API_VERSION = "1.41"

MAX_CONCURRENT_STARTS = 10
"""Containers that are created or started at once. Docker's throughput is highest with about this many."""

THREADS = MAX_CONCURRENT_STARTS + 4
"""Threads of requests to Docker, one of which reads the events."""

REQUEST_TIMEOUT_SECONDS = 120

RECONNECT_SECONDS = 0.5
"""Time before the event stream is opened again after it broke."""

EVENT_OVERLAP_SECONDS = 2
"""Age of the events that are requested when the event stream is opened."""

NAME_SUFFIX_BYTES = 4
"""Random bytes in the suffix of a container's name. Programs that parse dockershim's names accept a seventh field of
eight hexadecimal digits.
"""

ZERO_TIME = "0001-01-01T00:00:00Z"
"""Go's zero time, which Docker reports for events that have not occurred."""


@dataclass(frozen=True, slots=True)
class LogLimits:
    """The size in bytes at which a container's log file is rotated, and the number of files that are kept."""

    max_bytes: int
    max_files: int


@dataclass(frozen=True, slots=True)
class StoredImage:
    """An image by its ID. `names` are its tags, or its digests if it has no tag."""

    id: str
    names: tuple[str, ...] = ()


class DockerClient:
    """The Docker of this host. Every call raises NotReady, Refused or Gone, with Docker's own message."""

    def __init__(
        self,
        socket: str,
        log_limits: LogLimits,
        timeout_seconds: int = REQUEST_TIMEOUT_SECONDS,
        pull_limits: PullLimits = DEFAULT_LIMITS,
    ) -> None:
        self._socket = socket
        self._timeout_seconds = timeout_seconds
        self._log_limits = log_limits
        self._executor = ThreadPoolExecutor(THREADS, thread_name_prefix="docker")
        self._connect_lock = threading.Lock()
        self._puller = ImagePuller(socket, pull_limits)
        self._start_slots = asyncio.Semaphore(MAX_CONCURRENT_STARTS)
        self._client: Any = None
        self._events: Any = None
        self._digests: dict[str, str] = {}
        """Repository digest by image ID."""
        self._users: dict[str, str] = {}
        """USER by image ID."""

    # --- Docker itself -------------------------------------------------------------------------------------------

    @operation("version")
    async def version(self) -> str:
        """Return Docker's version, for example 20.10.24."""
        return str((await self._call(lambda client: client.version()))["Version"])

    @operation("status")
    async def cgroup_driver(self) -> str:
        """Return Docker's cgroup driver: cgroupfs or systemd."""
        return str((await self._call(lambda client: client.info()))["CgroupDriver"])

    @operation("status")
    async def root_dir(self) -> str:
        """Return the directory in which Docker stores images and containers."""
        return str((await self._call(lambda client: client.info()))["DockerRootDir"])

    async def watch_events(self, on_event: Callable[[ContainerEvent], None], on_connect: Callable[[], None]) -> None:
        """Call `on_event` when a container of a pod starts, exits or is removed, until cancelled.

        `on_connect` is called each time the event stream was opened, because events may have been missed before.
        """
        loop = asyncio.get_running_loop()

        def listen() -> None:
            filters = {"type": "container", "label": TYPE, "event": ["start", "die", "destroy", "oom"]}
            # Docker responds before it subscribes. Events in between are among those of the last seconds.
            since = int(time.time()) - EVENT_OVERLAP_SECONDS
            self._events = self._api_client().events(since=since, decode=True, filters=filters)
            loop.call_soon_threadsafe(on_connect)
            for event in self._events:
                uid = event.get("Actor", {}).get("Attributes", {}).get(POD_UID)
                if uid:
                    container_event = ContainerEvent(event["Action"], event["Actor"]["ID"], uid)
                    loop.call_soon_threadsafe(on_event, container_event)

        while True:
            with contextlib.suppress(NotReady, Refused, Gone):
                await self._in_thread(with_driver_errors, listen)
            await asyncio.sleep(RECONNECT_SECONDS)

    def close(self) -> None:
        """Close the connections to Docker. Containers are not affected."""
        if self._events is not None:
            with contextlib.suppress(OSError, AttributeError):
                self._events.close()
        self._executor.shutdown(wait=False, cancel_futures=True)
        if self._client is not None:
            self._client.close()

    # --- Lists of containers -------------------------------------------------------------------------------------

    @operation("container_status")
    async def list_pod_containers(self, uid: str) -> list[RuntimeContainer]:
        """Return all containers of one pod, running or not."""
        containers = await self._call(functools.partial(_inspect_containers, filters={"label": f"{POD_UID}={uid}"}))
        images = {container.image_id for container in containers if not container.is_sandbox}
        missing = images - self._digests.keys()
        if missing:
            self._digests |= await self._call(lambda client: {image: _repo_digest(client, image) for image in missing})
        return [replace(container, digest=self._digests.get(container.image_id, "")) for container in containers]

    @operation("list_containers")
    async def list_pods(self) -> dict[str, dict[str, str]]:
        """Return the pods that have a container of this agent here: labels by pod UID (`labels_by_pod`)."""
        containers = await self._call(lambda client: client.containers(all=True, filters={"label": TYPE}))
        return labels_by_pod(container["Labels"] for container in containers)

    @operation("list_podsandbox")
    async def list_sandboxes(self) -> frozenset[str]:
        """Return the IDs of all sandboxes, running or not."""
        filters = {"label": f"{TYPE}={SANDBOX_TYPE}"}
        containers = await self._call(lambda client: client.containers(all=True, filters=filters))
        return frozenset(container["Id"] for container in containers)

    @operation("list_containers")
    async def list_containers(self) -> list[RuntimeContainer]:
        """Return all containers of this agent. Running containers have only ID, labels, state and image ID."""
        return await self._call(_list_containers)

    # --- Containers ----------------------------------------------------------------------------------------------

    @operation("create_container")
    async def create(self, config: ContainerConfig) -> str:
        """Create a container. Returns its ID. Raises Refused if a running container has the same name.

        A dead container with the same name is removed first. If that fails, the new container's name gets a suffix.
        """
        async with self._start_slots:
            return await self._call(functools.partial(_create_container, config, self._log_limits))

    @operation("start_container")
    async def start(self, container: str) -> None:
        """Start a container."""
        async with self._start_slots:
            await self._call(lambda client: client.start(container))

    @operation("container_status")
    async def inspect(self, container: str) -> RuntimeContainer:
        """Return one container. Raises Gone if it does not exist."""
        return _runtime_container(await self._call(lambda client: client.inspect_container(container)))

    @operation("stop_container")
    async def kill(self, container: str, signal: str) -> None:
        """Send a signal to a container. Does nothing if the container does not run."""
        with contextlib.suppress(Gone, Refused):
            await self._call(lambda client: client.kill(container, signal=signal))

    @operation("update_container")
    async def update(self, container: str, resources: DockerResources) -> None:
        """Change the resources of a running container. Raises Refused, for example below the memory that it uses.

        Kernels with swap accounting count memory and swap together, so that both limits change.
        """
        limits = {
            "cpu_shares": resources.cpu_shares,
            "cpu_period": CPU_PERIOD if resources.cpu_quota else None,
            "cpu_quota": resources.cpu_quota or None,
            "mem_limit": resources.memory or None,
            "memswap_limit": resources.memory or None,
        }
        await self._call(lambda client: client.update_container(container, **limits))

    @operation("exec_sync")
    async def exec(self, container: str, command: tuple[str, ...], seconds: float) -> ExecResult:
        """Run a program in a running container, and wait for its end for at most `seconds`."""
        return await run_exec(self._socket, container, command, seconds)

    @operation("remove_container")
    async def remove(self, container: str) -> None:
        """Kill and remove a container. Does nothing if it does not exist."""
        with contextlib.suppress(Gone):
            await self._call(lambda client: client.remove_container(container, v=True, force=True))

    @operation("remove_container")
    async def remove_unstarted(self, container: str) -> None:
        """Remove a container that was never started. Does nothing if it does not exist.

        Raises Refused if it runs after all, because Docker may execute a start request long after its timeout.
        """
        with contextlib.suppress(Gone):
            await self._call(lambda client: client.remove_container(container, v=True))

    async def log_tail(self, container: str, lines: int, max_bytes: int) -> str:
        """Return the last lines of a container's log, at most the last `max_bytes` of them. Raises Gone."""
        text: bytes = await self._call(lambda client: client.logs(container, tail=lines))
        return text[-max_bytes:].decode(errors="replace")

    async def writable_layer_sizes(self, uid: str) -> dict[str, int]:
        """Return the bytes in the writable layers of a pod's containers, by container ID. Docker walks the layers."""
        filters = {"label": f"{POD_UID}={uid}"}
        containers = await self._call(lambda client: client.containers(all=True, size=True, filters=filters))
        return {container["Id"]: container.get("SizeRw", 0) for container in containers}

    # --- Images --------------------------------------------------------------------------------------------------

    @operation("list_images")
    async def list_images(self) -> list[StoredImage]:
        """Return all images of this host."""
        return [_stored_image(image) for image in await self._call(lambda client: client.images())]

    @operation("list_images")
    async def list_named_images(self) -> tuple[ContainerImage, ...]:
        """Return all images that have a name: tags first, then digests, and the size in bytes."""
        images = await self._call(lambda client: client.images())
        named_images = (
            ContainerImage(
                names=(*_valid_names(image, "RepoTags"), *_valid_names(image, "RepoDigests")), size_bytes=image["Size"]
            )
            for image in images
        )
        return tuple(image for image in named_images if image.names)

    async def images_in_use(self) -> frozenset[str]:
        """Return the IDs of the images of all containers, running or not, of this agent or not."""
        return frozenset(
            container["ImageID"] for container in await self._call(lambda client: client.containers(all=True))
        )

    @operation("image_status")
    async def image_id(self, name: str) -> str:
        """Return the ID of an image by its name. Raises Gone if the image is not present."""
        image = await self._call(lambda client: client.inspect_image(name))
        self._users[image["Id"]] = str(image["Config"].get("User") or "")
        return str(image["Id"])

    async def image_user(self, image: str) -> str:
        """Return the USER of an image by its ID, or an empty string if it has none. Raises Gone.

        The result is cached, because the image of an ID never changes.
        """
        if image not in self._users:
            await self.image_id(image)
        return self._users[image]

    @operation("pull_image")
    async def pull(self, name: str, credential: Credential | None = None) -> PullResult:
        """Pull an image as soon as the limits allow it.

        Raises Refused, NotReady or RegistryUnavailable with Docker's message.
        """
        seconds = await self._puller.pull(*_split_image_reference(name), credential)
        self._digests.clear()
        image = await self._call(lambda client: client.inspect_image(name))
        return PullResult(seconds, int(image["Size"]))

    @operation("load_images")
    async def load(self, archive: AsyncIterable[bytes]) -> str:
        """Load the images of an archive of `docker save`, and return Docker's report. Raises Refused and NotReady."""
        report = await load_images(self._socket, archive)
        self._digests.clear()
        return report

    @operation("remove_image")
    async def remove_image(self, image: StoredImage) -> None:
        """Remove an image with all its names. Raises Refused if a container or another image needs it."""
        for name in image.names or (image.id,):
            with contextlib.suppress(Gone):
                await self._call(operator.methodcaller("remove_image", name))

    async def _call(self, function: Callable[[Any], T]) -> T:
        """Call a function with Docker's client in a thread. Raises NotReady, Refused or Gone."""
        return await self._in_thread(with_driver_errors, lambda: function(self._api_client()))

    async def _in_thread(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._executor, functools.partial(function, *args, **kwargs))

    def _api_client(self) -> Any:
        with self._connect_lock:
            if self._client is None:
                version = _negotiate_api_version(self._socket, self._timeout_seconds)
                self._client = _new_client(self._socket, version, self._timeout_seconds)
            return self._client


def with_driver_errors(function: Callable[[], T]) -> T:
    """Call a function, and raise errors of the Docker library as NotReady, Refused or Gone."""
    try:
        return function()
    except docker.errors.NotFound as error:
        raise Gone(f"Docker: {error.explanation or error}") from None
    except docker.errors.APIError as error:
        message = str(error.explanation or error)
        if any(text in message for text in TRANSIENT_ERRORS):
            raise NotReady(f"Docker: {message}") from None
        raise Refused(f"Docker: {message}") from None
    except (
        docker.errors.DockerException,
        docker.errors.StreamParseError,
        requests.exceptions.RequestException,
        urllib3.exceptions.HTTPError,
        OSError,
    ) as error:
        raise NotReady(f"Docker does not answer: {error}") from None


class _UnixSocketClient(APIClient):
    """Docker's client without the settings of a session, of which a request over a unix socket needs none.

    Proxies, .netrc, cookies, hooks and redirects take a third of the time of a request.
    """

    def request(self, method: Any, url: Any, *_: Any, **options: Any) -> requests.Response:
        """Send a request. Raises APIError if Docker redirects it: no name of an object has such a path."""
        request = requests.PreparedRequest()
        fields = {name: options.get(name) for name in ("headers", "params", "data", "json")}
        request.prepare(method=method, url=url, **fields)
        stream = bool(options.get("stream"))
        response: requests.Response = self.get_adapter(url).send(request, stream=stream, timeout=options.get("timeout"))
        if response.is_redirect:
            raise docker.errors.APIError(f"invalid reference format: {request.path_url}")
        if not stream:
            response.content  # noqa: B018  The connection is free again when the content was read.
        return response


def _new_client(socket: str, version: str, timeout_seconds: int) -> Any:
    return _UnixSocketClient(
        base_url=f"unix://{socket}", version=version, timeout=timeout_seconds, max_pool_size=THREADS
    )


def _negotiate_api_version(socket: str, timeout_seconds: int) -> str:
    """Return the newest API version that this Docker offers. Raises NotReady if it is older than MIN_API_VERSION."""
    client = _new_client(socket, MIN_API_VERSION, timeout_seconds)
    try:
        version = str(client.version(api_version=False)["ApiVersion"])
    finally:
        client.close()
    if _version_tuple(version) < _version_tuple(MIN_API_VERSION):
        raise NotReady(f"Docker's API is {version}; {MIN_API_VERSION} (Docker 20.10) or newer is needed")
    return version


def _version_tuple(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split("."))


def _inspect_containers(client: Any, filters: dict[str, str]) -> list[RuntimeContainer]:
    containers = []
    for listed in client.containers(all=True, filters=filters):
        with contextlib.suppress(docker.errors.NotFound):
            containers.append(_runtime_container(client.inspect_container(listed["Id"])))
    return containers


def _list_containers(client: Any) -> list[RuntimeContainer]:
    containers = []
    for listed in client.containers(all=True, filters={"label": TYPE}):
        if not listed["Labels"].keys() & {ATTEMPT, CRASHES}:
            continue
        container = RuntimeContainer(
            id=listed["Id"], labels=listed["Labels"], state=listed["State"], image_id=listed["ImageID"]
        )
        if container.running:
            containers.append(container)
            continue
        with contextlib.suppress(docker.errors.NotFound):
            containers.append(_runtime_container(client.inspect_container(listed["Id"])))
    return containers


def _runtime_container(inspected: dict[str, Any]) -> RuntimeContainer:
    state = inspected["State"]
    config = inspected["Config"]
    return RuntimeContainer(
        id=inspected["Id"],
        labels=config["Labels"] or {},
        state=state["Status"],
        pid=state["Pid"],
        exit_code=state["ExitCode"],
        error=state["Error"],
        oom_killed=state["OOMKilled"],
        created_at=_parse_docker_time(inspected["Created"]),
        started_at=_parse_docker_time(state["StartedAt"]),
        finished_at=_parse_docker_time(state["FinishedAt"]),
        image=config["Image"],
        image_id=inspected["Image"],
        stop_signal=config.get("StopSignal") or "SIGTERM",
        log_path=inspected["LogPath"],
        layer=(inspected["GraphDriver"].get("Data") or {}).get("UpperDir", ""),
        image_volumes=tuple(mount["Source"] for mount in inspected["Mounts"] if mount["Type"] == "volume"),
        user=process_user(state["Pid"]) if state["Pid"] else None,
        resources=_docker_resources(inspected.get("HostConfig") or {}),
    )


def _docker_resources(host_config: Mapping[str, Any]) -> DockerResources:
    """Return the resources of a container. Docker has -1 for a quota that was taken away."""
    quota, memory = host_config.get("CpuQuota") or 0, host_config.get("Memory") or 0
    return DockerResources(host_config.get("CpuShares") or 0, max(quota, 0), max(memory, 0))


def _parse_docker_time(text: str) -> datetime | None:
    return None if text == ZERO_TIME or not text else times.parse_time(text)


def _stored_image(image: dict[str, Any]) -> StoredImage:
    return StoredImage(image["Id"], tuple(_valid_names(image, "RepoTags") or _valid_names(image, "RepoDigests")))


def _valid_names(image: dict[str, Any], field: str) -> list[str]:
    return [name for name in image[field] or () if "<none>" not in name]


def _repo_digest(client: Any, image: str) -> str:
    """Return the first name with digest that registries have for an image. Returns an empty string if there is none."""
    try:
        return str(next(iter(client.inspect_image(image)["RepoDigests"] or ()), ""))
    except docker.errors.ImageNotFound:
        return ""


def _create_container(config: ContainerConfig, log_limits: LogLimits, client: Any) -> str:
    security = config.security
    host_config = client.create_host_config(
        network_mode=config.network,
        ipc_mode=config.ipc,
        pid_mode=config.pid or None,
        uts_mode=config.uts or None,
        binds=list(config.binds),
        cpu_shares=config.cpu_shares,
        cpu_period=CPU_PERIOD if config.cpu_quota else None,
        cpu_quota=config.cpu_quota or None,
        mem_limit=config.memory or None,
        memswap_limit=config.memory or None,
        oom_score_adj=config.oom_score_adj,
        security_opt=list(security.options) or None,
        group_add=list(map(str, security.groups)) or None,
        privileged=security.privileged,
        cap_add=list(security.cap_add) or None,
        cap_drop=list(security.cap_drop) or None,
        read_only=security.read_only,
        sysctls=dict(config.sysctls) or None,
        runtime=config.runtime or None,
        cgroup_parent=config.cgroup_parent or None,
        log_config=LogConfig(
            type=LogConfig.types.JSON,
            config={"max-size": str(log_limits.max_bytes), "max-file": str(log_limits.max_files)},
        ),
    )
    if security.masked_paths is not None:
        host_config["MaskedPaths"] = list(security.masked_paths)
        if not security.masked_paths:
            host_config["ReadonlyPaths"] = []
    body = client.create_container_config(
        image=config.image,
        user=security.user or None,
        command=None,
        labels=dict(config.labels),
        environment=list(config.environment),
        working_dir=config.working_dir or None,
        hostname=config.hostname or None,
        domainname=config.domain or None,
        tty=config.tty,
        stdin_open=config.stdin,
        host_config=host_config,
        healthcheck={"test": ["NONE"]},
        # With a network, Docker would execute itself twice in the new network namespace, without any effect.
        network_disabled=config.network == "none",
        stop_signal=config.stop_signal or None,
    )
    body |= {"StdinOnce": config.stdin_once, "AttachStdout": False, "AttachStderr": False}
    if config.entrypoint is not None:
        body["Entrypoint"] = list(config.entrypoint)
    if config.command is not None:
        body["Cmd"] = list(config.command)
    return _create_with_name(client, body, config.name)


def _create_with_name(client: Any, body: dict[str, Any], name: str) -> str:
    """Create a container. Returns its ID. Raises APIError, also if a running container has the name.

    A dead container that has the name is removed first. If that fails, the new container's name gets a suffix.
    """
    try:
        return str(client.create_container_from_config(body, name)["Id"])
    except docker.errors.APIError as error:
        if error.status_code != 409:
            raise
    try:
        client.remove_container(name, v=True)
    except docker.errors.APIError:
        if client.inspect_container(name)["State"]["Running"]:
            raise
        name = f"{name}_{secrets.token_hex(NAME_SUFFIX_BYTES)}"
    return str(client.create_container_from_config(body, name)["Id"])


def _split_image_reference(name: str) -> tuple[str, str]:
    """Return the repository and the tag or digest to pull. The default tag is `latest`; Docker would pull all tags."""
    if "@" in name:
        repository, _, digest = name.partition("@")
        return repository, digest
    head, colon, tag = name.rpartition(":")
    return (head, tag) if colon and "/" not in tag else (name, "latest")
