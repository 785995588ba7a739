"""The Docker Engine API: containers, images, events. Driver."""

from __future__ import annotations

import asyncio
import contextlib
import json
import secrets
import time
import urllib.parse
from collections.abc import AsyncIterable, Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import TypeVar

import aiohttp
import msgspec
from yarl import URL

from api.core.node import ContainerImage
from node_agent.docker.documents import (
    Created,
    ErrorResponse,
    Event,
    Info,
    InspectedContainer,
    InspectedImage,
    ListedContainer,
    ListedImage,
    Version,
    create_body,
)
from node_agent.docker.exec import ExecResult, run_exec
from node_agent.docker.http import TRANSIENT_ERRORS, docker_session, docker_timeout
from node_agent.docker.load import load_images
from node_agent.docker.process import process_user
from node_agent.docker.pull import ImagePuller
from node_agent.docker.wire_format import LogEntryReader, LogStreamError
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
    RuntimeContainer,
    labels_by_pod,
)
from node_agent.runtime.spec import ContainerConfig
from reconcile.errors import DriverError, Gone, NotReady, Refused

T = TypeVar("T")

MIN_API_VERSION = "1.41"

MAX_CONCURRENT_STARTS = 10
"""Containers that are created or started at once. Docker's throughput is highest with about this many."""

MAX_CONNECTIONS = MAX_CONCURRENT_STARTS + 10
"""Connections to Docker for requests. Events, execs, logs and pulls have connections of their own."""

REQUEST_TIMEOUT_SECONDS = 120

RECONNECT_SECONDS = 0.5
"""Time before the event stream is opened again after it broke."""

EVENT_OVERLAP_SECONDS = 2
"""Age of the events that are requested when the event stream is opened."""

NAME_SUFFIX_BYTES = 4
"""Random bytes in the suffix of a container's name. Programs that parse dockershim's names accept a seventh field of
eight hexadecimal digits.
"""


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
        self._log_options = {"max-size": str(log_limits.max_bytes), "max-file": str(log_limits.max_files)}
        self._puller = ImagePuller(socket, pull_limits)
        self._start_slots = asyncio.Semaphore(MAX_CONCURRENT_STARTS)
        self._session: aiohttp.ClientSession | None = None
        self._is_version_checked = False
        self._digests: dict[str, str] = {}
        """Repository digest by image ID."""
        self._users: dict[str, str] = {}
        """USER by image ID."""

    # --- Docker itself -------------------------------------------------------------------------------------------

    @operation("version")
    async def version(self) -> str:
        """Return Docker's version, for example 20.10.24."""
        return (await self._get("/version", Version)).version

    @operation("status")
    async def cgroup_driver(self) -> str:
        """Return Docker's cgroup driver: cgroupfs or systemd."""
        return (await self._get("/info", Info)).cgroup_driver

    @operation("status")
    async def root_dir(self) -> str:
        """Return the directory in which Docker stores images and containers."""
        return (await self._get("/info", Info)).docker_root_dir

    async def watch_events(self, on_event: Callable[[ContainerEvent], None], on_connect: Callable[[], None]) -> None:
        """Call `on_event` when a container of a pod starts, exits or is removed, until cancelled.

        `on_connect` is called each time the event stream was opened, because events may have been missed before.
        """
        while True:
            with contextlib.suppress(DriverError, aiohttp.ClientError, OSError, msgspec.MsgspecError):
                await self._follow_events(on_event, on_connect)
            await asyncio.sleep(RECONNECT_SECONDS)

    async def _follow_events(self, on_event: Callable[[ContainerEvent], None], on_connect: Callable[[], None]) -> None:
        """Call `on_event` for each event until Docker ends the stream. Raises ClientError, OSError, MsgspecError."""
        # Docker responds before it subscribes. Events in between are among those of the last seconds.
        since = int(time.time()) - EVENT_OVERLAP_SECONDS
        filters = {"type": ["container"], "label": [TYPE], "event": ["start", "die", "destroy", "oom"]}
        url = _url("/events", {"since": str(since), "filters": json.dumps(filters)})
        decoder = msgspec.json.Decoder(Event)
        async with docker_session(self._socket) as docker, docker.get(url, raise_for_status=True) as response:
            on_connect()
            incomplete_line = b""
            async for data in response.content.iter_any():
                *lines, incomplete_line = (incomplete_line + data).split(b"\n")
                for line in lines:
                    event = decoder.decode(line)
                    uid = event.actor.attributes.get(POD_UID)
                    if uid:
                        on_event(ContainerEvent(event.action, event.actor.id, uid))

    async def close(self) -> None:
        """Close the connections to Docker. Containers are not affected."""
        if self._session is not None:
            await self._session.close()

    # --- Lists of containers -------------------------------------------------------------------------------------

    @operation("container_status")
    async def list_pod_containers(self, uid: str) -> list[RuntimeContainer]:
        """Return all containers of one pod, running or not."""
        listed = await self._list({"label": [f"{POD_UID}={uid}"]})
        containers = await self._inspect_existing(container.id for container in listed)
        for image in {container.image_id for container in containers if not container.is_sandbox}:
            if image not in self._digests:
                self._digests[image] = await self._repo_digest(image)
        return [replace(container, digest=self._digests.get(container.image_id, "")) for container in containers]

    @operation("list_containers")
    async def list_pods(self) -> dict[str, dict[str, str]]:
        """Return the pods that have a container of this agent here: labels by pod UID (`labels_by_pod`)."""
        return labels_by_pod(container.labels or {} for container in await self._list({"label": [TYPE]}))

    @operation("list_podsandbox")
    async def list_sandboxes(self) -> frozenset[str]:
        """Return the IDs of all sandboxes, running or not."""
        return frozenset(container.id for container in await self._list({"label": [f"{TYPE}={SANDBOX_TYPE}"]}))

    @operation("list_containers")
    async def list_containers(self) -> list[RuntimeContainer]:
        """Return all containers of this agent. Running containers have only ID, labels, state and image ID."""
        containers = []
        for listed in await self._list({"label": [TYPE]}):
            labels = listed.labels or {}
            if not labels.keys() & {ATTEMPT, CRASHES}:
                continue
            container = RuntimeContainer(id=listed.id, labels=labels, state=listed.state, image_id=listed.image_id)
            containers += [container] if container.running else await self._inspect_existing([listed.id])
        return containers

    # --- Containers ----------------------------------------------------------------------------------------------

    @operation("create_container")
    async def create(self, config: ContainerConfig) -> str:
        """Create a container. Returns its ID. Raises Refused if a running container has the same name.

        A dead container with the same name is removed first. If that fails, the new container's name gets a suffix.
        """
        body = msgspec.json.encode(create_body(config, self._log_options))
        async with self._start_slots:
            try:
                return await self._create(body, config.name)
            except _Conflict:
                name = await self._free_name(config.name)
            return await self._create(body, name)

    @operation("start_container")
    async def start(self, container: str) -> None:
        """Start a container."""
        async with self._start_slots:
            await self._request("POST", f"/containers/{container}/start")

    @operation("container_status")
    async def inspect(self, container: str) -> RuntimeContainer:
        """Return one container. Raises Gone if it does not exist."""
        return _runtime_container(await self._inspect(container))

    @operation("stop_container")
    async def kill(self, container: str, signal: str) -> None:
        """Send a signal to a container. Does nothing if the container does not run."""
        with contextlib.suppress(Gone, Refused):
            await self._request("POST", f"/containers/{container}/kill", {"signal": signal})

    @operation("exec_sync")
    async def exec(self, container: str, command: tuple[str, ...], seconds: float) -> ExecResult:
        """Run a program in a running container, and wait for its end for at most `seconds`."""
        return await run_exec(self._socket, container, command, seconds)

    @operation("remove_container")
    async def remove(self, container: str) -> None:
        """Kill and remove a container. Does nothing if it does not exist."""
        with contextlib.suppress(Gone):
            await self._request("DELETE", f"/containers/{container}", {"v": "1", "force": "1"})

    @operation("remove_container")
    async def remove_unstarted(self, container: str) -> None:
        """Remove a container that was never started. Does nothing if it does not exist.

        Raises Refused if it runs after all, because Docker may execute a start request long after its timeout.
        """
        with contextlib.suppress(Gone):
            await self._request("DELETE", f"/containers/{container}", {"v": "1"})

    async def log_tail(self, container: str, lines: int, max_bytes: int) -> str:
        """Return the last lines of a container's log, at most the last `max_bytes` of them. Raises Gone."""
        tty = (await self._inspect(container)).config.tty
        query = {"stdout": "1", "stderr": "1", "tail": str(lines)}
        content = await self._request("GET", f"/containers/{container}/logs", query)
        entries = LogEntryReader(tty=tty, has_timestamps=False, show_timestamps=False)
        try:
            text = entries.read(content) + entries.finish()
        except LogStreamError as error:
            raise NotReady(f"Docker: {error}") from None
        return text[-max_bytes:].decode(errors="replace")

    async def writable_layer_sizes(self, uid: str) -> dict[str, int]:
        """Return the bytes in the writable layers of a pod's containers, by container ID. Docker walks the layers."""
        containers = await self._list({"label": [f"{POD_UID}={uid}"]}, size="1")
        return {container.id: container.size_rw for container in containers}

    # --- Images --------------------------------------------------------------------------------------------------

    @operation("list_images")
    async def list_images(self) -> list[StoredImage]:
        """Return all images of this host."""
        return [StoredImage(image.id, image.tags or image.digests) for image in await self._images()]

    @operation("list_images")
    async def list_named_images(self) -> tuple[ContainerImage, ...]:
        """Return all images that have a name: tags first, then digests, and the size in bytes."""
        images = (image.container_image() for image in await self._images())
        return tuple(image for image in images if image.names)

    async def images_in_use(self) -> frozenset[str]:
        """Return the IDs of the images of all containers, running or not, of this agent or not."""
        return frozenset(container.image_id for container in await self._list({}))

    @operation("image_status")
    async def image_id(self, name: str) -> str:
        """Return the ID of an image by its name. Raises Gone if the image is not present."""
        image = await self._inspect_image(name)
        self._users[image.id] = image.user
        return image.id

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
        return PullResult(seconds, (await self._inspect_image(name)).size)

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
                await self._request("DELETE", f"/images/{_quote(name)}")

    # --- Requests ------------------------------------------------------------------------------------------------

    async def _list(self, filters: Mapping[str, list[str]], **query: str) -> list[ListedContainer]:
        """Return all containers that match, running or not."""
        return await self._get(
            "/containers/json", list[ListedContainer], {"all": "1", "filters": json.dumps(filters), **query}
        )

    async def _inspect(self, container: str) -> InspectedContainer:
        return await self._get(f"/containers/{container}/json", InspectedContainer)

    async def _inspect_existing(self, containers: Iterable[str]) -> list[RuntimeContainer]:
        """Return those of the containers that still exist."""
        inspected = []
        for container in containers:
            with contextlib.suppress(Gone):
                inspected.append(_runtime_container(await self._inspect(container)))
        return inspected

    async def _create(self, body: bytes, name: str) -> str:
        """Create a container. Returns its ID. Raises _Conflict if the name is in use."""
        content = await self._request("POST", "/containers/create", {"name": name}, body)
        return _decode(content, Created).id

    async def _free_name(self, name: str) -> str:
        """Remove the dead container with this name. Return the name, with a suffix if that fails.

        Raises Refused if the container runs.
        """
        try:
            await self._request("DELETE", f"/containers/{name}", {"v": "1"})
        except (Refused, Gone):
            if (await self._inspect(name)).state.running:
                raise
            return f"{name}_{secrets.token_hex(NAME_SUFFIX_BYTES)}"
        return name

    async def _images(self) -> list[ListedImage]:
        return await self._get("/images/json", list[ListedImage])

    async def _inspect_image(self, name: str) -> InspectedImage:
        return await self._get(f"/images/{_quote(name)}/json", InspectedImage)

    async def _repo_digest(self, image: str) -> str:
        """Return the first name with digest of an image. Returns an empty string if it has none or does not exist."""
        try:
            return (await self._inspect_image(image)).digest
        except Gone:
            return ""

    async def _get(self, path: str, response_type: type[T], query: Mapping[str, str] | None = None) -> T:
        return _decode(await self._request("GET", path, query), response_type)

    async def _request(
        self, method: str, path: str, query: Mapping[str, str] | None = None, body: bytes | None = None
    ) -> bytes:
        """Send a request of the newest API version that Docker offers, and return the body of the response.

        Raises NotReady, Refused or Gone.
        """
        if not self._is_version_checked:
            await self._check_api_version()
        return await self._send(method, path, query, body)

    async def _check_api_version(self) -> None:
        """Raise NotReady if Docker's API is older than MIN_API_VERSION."""
        version = _decode(await self._send("GET", "/version"), Version).api_version
        if _version_tuple(version) < _version_tuple(MIN_API_VERSION):
            raise NotReady(f"Docker's API is {version}; {MIN_API_VERSION} (Docker 20.10) or newer is needed")
        self._is_version_checked = True

    async def _send(
        self, method: str, path: str, query: Mapping[str, str] | None = None, body: bytes | None = None
    ) -> bytes:
        if self._session is None:
            self._session = docker_session(self._socket, MAX_CONNECTIONS)
        headers = {"Content-Type": "application/json"} if body is not None else None
        async with (
            docker_timeout(self._timeout_seconds),
            self._session.request(
                method, _url(path, query), data=body, headers=headers, allow_redirects=False
            ) as response,
        ):
            content = await response.read()
        # 304 is the response to a start of a container that runs. Redirects are Docker's response to an invalid path.
        if response.status >= 300 and response.status != 304:
            raise _request_error(response.status, content)
        return content


class _Conflict(Refused):
    """The error that the state of an object does not allow the request, or that a name is in use."""


def _request_error(status: int, content: bytes) -> DriverError:
    """Return the error that a response with an error status stands for."""
    try:
        message = f"Docker: {msgspec.json.decode(content, type=ErrorResponse).message}"
    except msgspec.MsgspecError:
        message = f"Docker: {content.decode(errors='replace').strip() or f'status {status}'}"
    if status == 404:
        return Gone(message)
    if any(text in message for text in TRANSIENT_ERRORS):
        return NotReady(message)
    return _Conflict(message) if status == 409 else Refused(message)


def _decode(content: bytes, response_type: type[T]) -> T:
    """Decode a response. Raises NotReady if it is not what Docker's API promises."""
    try:
        return msgspec.json.decode(content, type=response_type)
    except msgspec.MsgspecError as error:
        raise NotReady(f"Docker's answer cannot be read: {error}") from None


def _url(path: str, query: Mapping[str, str] | None = None) -> URL:
    """Return the URL of a path as it is. Without `encoded`, names in it could lead to other paths."""
    return URL.build(
        scheme="http", host="docker", path=path, query_string=urllib.parse.urlencode(query or {}), encoded=True
    )


def _quote(name: str) -> str:
    return urllib.parse.quote(name, safe="/:")


def _version_tuple(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split("."))


def _runtime_container(container: InspectedContainer) -> RuntimeContainer:
    return container.runtime_container(process_user(container.state.pid) if container.state.pid else None)


def _split_image_reference(name: str) -> tuple[str, str]:
    """Return the repository and the tag or digest to pull. The default tag is `latest`; Docker would pull all tags."""
    if "@" in name:
        repository, _, digest = name.partition("@")
        return repository, digest
    head, colon, tag = name.rpartition(":")
    return (head, tag) if colon and "/" not in tag else (name, "latest")
