"""The Docker Engine API: containers, images, events. Driver."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import operator
import secrets
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, ParamSpec, TypeVar

import docker.errors
import requests
import urllib3.exceptions
from docker.types import LogConfig

from api.core.node import ContainerImage
from api.meta import times
from node_agent.cgroups.hierarchy import CPU_PERIOD
from node_agent.docker.exec import ExecResult, run_exec
from node_agent.docker.process import process_user
from node_agent.docker.pull import ImagePuller
from node_agent.images.credentials import Credential
from node_agent.images.pull_backoff import DEFAULT_LIMITS, PullLimits, PullResult
from node_agent.metrics import instrumented
from node_agent.runtime.container import ATTEMPT, CRASHES, POD_UID, SANDBOX_TYPE, TYPE, RuntimeContainer
from node_agent.runtime.spec import ContainerConfig
from reconcile.errors import Gone, NotReady, Refused


@dataclass(frozen=True, slots=True)
class LogLimits:
    """A container's log begins a new file at so many bytes; so many files are kept."""

    bytes: int
    files: int


T = TypeVar("T")


def with_driver_errors(act: Callable[[], T]) -> T:
    """What it returns. Raises NotReady, Refused or Gone."""
    try:
        return act()
    except docker.errors.NotFound as error:
        raise Gone(f"Docker: {error.explanation or error}") from None
    except docker.errors.APIError as error:
        words = str(error.explanation or error)
        raise (NotReady if is_transient(words) else Refused)(f"Docker: {words}") from None
    except (
        docker.errors.DockerException,
        docker.errors.StreamParseError,
        requests.exceptions.RequestException,
        urllib3.exceptions.HTTPError,
        OSError,
    ) as error:
        raise NotReady(f"Docker does not answer: {error}") from None


def is_transient(words: str) -> bool:
    """Whether an error is not about our wish, and may be gone the next time."""
    return any(
        sign in words for sign in ("connection refused", "no such host", "timeout", "i/o timeout", "unreachable")
    )


SUFFIX_BYTES = 4
"""Who reads dockershim's names takes a seventh field of eight hexadecimal digits (facts/node.md 3)."""


def create_named(client: Any, config: dict[str, Any], name: str) -> str:
    """Create a container. Returns its id. Raises APIError, also while a running one has its name.

    A dead one that has its name is removed first; where that fails the name gets a suffix.
    """
    try:
        return str(client.create_container_from_config(config, name)["Id"])
    except docker.errors.APIError as error:
        if error.status_code != 409:
            raise
    try:
        client.remove_container(name, v=True)
    except docker.errors.APIError:
        if client.inspect_container(name)["State"]["Running"]:
            raise
        name = f"{name}_{secrets.token_hex(SUFFIX_BYTES)}"
    return str(client.create_container_from_config(config, name)["Id"])


@dataclass(frozen=True, slots=True)
class StoredImage:
    """An image by its id; `names` are its tags, or its digests where it has none."""

    id: str
    names: tuple[str, ...] = ()


P = ParamSpec("P")

MIN_API_VERSION = "1.41"
MAX_CONCURRENT_STARTS = 10
"""Docker makes most of a burst when it is asked to create and start so many containers at once."""

THREADS = MAX_CONCURRENT_STARTS + 10
ANSWER_SECONDS = 120
RECONNECT_SECONDS = 0.5
OVERLAP_SECONDS = 2
NEVER = "0001-01-01T00:00:00Z"


@instrumented
class DockerClient:
    """One host's Docker. Every call raises NotReady, Refused or Gone, with Docker's own words."""

    def __init__(
        self,
        socket: str,
        logs: LogLimits,
        answer_seconds: int = ANSWER_SECONDS,
        pulls: PullLimits = DEFAULT_LIMITS,
    ) -> None:
        self._socket = socket
        self._answer_seconds = answer_seconds
        self._logs = logs
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="docker")
        self._connecting = threading.Lock()
        self._pulls = ImagePuller(socket, pulls)
        self._starting = asyncio.Semaphore(MAX_CONCURRENT_STARTS)
        self._client: Any = None
        self._events: Any = None
        self._digests: dict[str, str] = {}
        self._users: dict[str, str] = {}

    async def version(self) -> str:
        """Docker's version, for example 20.10.24."""
        return str((await self._call(lambda client: client.version()))["Version"])

    async def cgroup_driver(self) -> str:
        """How Docker makes control groups: cgroupfs or systemd."""
        return str((await self._call(lambda client: client.info()))["CgroupDriver"])

    async def pod_containers(self, uid: str) -> list[RuntimeContainer]:
        """Every container of one pod, running or not."""
        found = await self._call(functools.partial(_inspect_all, filters={"label": f"{POD_UID}={uid}"}))
        images = {one.image_id for one in found if not one.is_sandbox} - self._digests.keys()
        if images:
            self._digests |= await self._call(lambda client: {image: _digest(client, image) for image in images})
        return [replace(one, digest=self._digests.get(one.image_id, "")) for one in found]

    async def pods(self) -> dict[str, dict[str, str]]:
        """UID of every pod that has a container here → the labels of one of its containers.

        Containers that another agent made by the same convention lack our own marks and are not ours.
        """
        found = await self._call(lambda client: client.containers(all=True, filters={"label": TYPE}))
        marks = {ATTEMPT, CRASHES}
        labels = [row["Labels"] for row in found if row["Labels"].keys() & marks]
        return {row[POD_UID]: row for row in labels if POD_UID in row}

    async def sandboxes(self) -> frozenset[str]:
        """Ids of all sandboxes, running or not."""
        filters = {"label": f"{TYPE}={SANDBOX_TYPE}"}
        found = await self._call(lambda client: client.containers(all=True, filters=filters))
        return frozenset(row["Id"] for row in found)

    async def all_containers(self) -> list[RuntimeContainer]:
        """Every container of ours. Of those that run only what a list tells: id, labels, state."""
        return await self._call(_list_all)

    async def root_dir(self) -> str:
        """Where this Docker keeps images and containers."""
        return str((await self._call(lambda client: client.info()))["DockerRootDir"])

    async def stored_images(self) -> list[StoredImage]:
        """Every image that is here."""
        return [_image(row) for row in await self._call(lambda client: client.images())]

    async def images_in_use(self) -> frozenset[str]:
        """Ids of the images of all containers, dead or alive, ours or others'."""
        return frozenset(row["ImageID"] for row in await self._call(lambda client: client.containers(all=True)))

    async def remove_image(self, image: StoredImage) -> None:
        """Delete an image with all its names. Raises Refused while a container or another image needs it."""
        for name in image.names or (image.id,):
            with contextlib.suppress(Gone):
                await self._call(operator.methodcaller("remove_image", name))

    async def written_bytes(self, uid: str) -> dict[str, int]:
        """What each container of a pod has written into its own layer, by id. Docker walks the layer to know."""
        filters = {"label": f"{POD_UID}={uid}"}
        found = await self._call(lambda client: client.containers(all=True, size=True, filters=filters))
        return {row["Id"]: row.get("SizeRw", 0) for row in found}

    async def image_sizes(self) -> tuple[ContainerImage, ...]:
        """Every image that has a name, with its tags first, then its digests."""
        rows = await self._call(lambda client: client.images())
        named = ((*_names(row, "RepoTags"), *_names(row, "RepoDigests")) for row in rows)
        return tuple(
            ContainerImage(names=names, size_bytes=row["Size"]) for names, row in zip(named, rows, strict=True) if names
        )

    async def image_id(self, name: str) -> str:
        """The id of an image that is here. Raises Gone."""
        found = await self._call(lambda client: client.inspect_image(name))
        self._users[found["Id"]] = str(found["Config"].get("User") or "")
        return str(found["Id"])

    async def image_user(self, image: str) -> str:
        """The USER of the image of this id, empty if it has none; it never changes. Raises Gone."""
        if image not in self._users:
            await self.image_id(image)
        return self._users[image]

    async def pull(self, name: str, credential: Credential | None = None) -> PullResult:
        """Fetch an image when it has its turn. Raises Refused, NotReady or RegistryUnavailable, in its words."""
        seconds = await self._pulls.fetch(*_split_image_reference(name), credential)
        self._digests.clear()
        return PullResult(seconds, int((await self._call(lambda client: client.inspect_image(name)))["Size"]))

    async def create(self, spec: ContainerConfig) -> str:
        """Create a container. Returns the id. Raises Refused while a running one has its name.

        A dead one that has its name is removed first; where that fails the name gets a suffix.
        """
        async with self._starting:
            return await self._call(functools.partial(_create, spec, self._logs))

    async def start(self, container: str) -> None:
        """Start it."""
        async with self._starting:
            await self._call(lambda client: client.start(container))

    async def inspect(self, container: str) -> RuntimeContainer:
        """One container. Raises Gone."""
        return _container(await self._call(lambda client: client.inspect_container(container)))

    async def signal(self, container: str, name: str) -> None:
        """Send a signal; one that does not run is no error."""
        with contextlib.suppress(Gone, Refused):
            await self._call(lambda client: client.kill(container, signal=name))

    async def execute(self, container: str, command: tuple[str, ...], seconds: float) -> ExecResult:
        """Run a program in a running container and wait for its end, so many seconds at most."""
        return await run_exec(self._socket, container, command, seconds)

    async def remove(self, container: str) -> None:
        """Kill and delete it; one that is not there is no error."""
        with contextlib.suppress(Gone):
            await self._call(lambda client: client.remove_container(container, v=True, force=True))

    async def discard(self, container: str) -> None:
        """Delete one that nobody has started; one that is not there is no error.

        Raises Refused when it runs after all: Docker may carry out what it was asked long after we gave it up.
        """
        with contextlib.suppress(Gone):
            await self._call(lambda client: client.remove_container(container, v=True))

    async def log_end(self, container: str, lines: int, most: int) -> str:
        """The last lines of what it has written, and of those the last bytes. Raises Gone."""
        said: bytes = await self._call(lambda client: client.logs(container, tail=lines))
        return said[-most:].decode(errors="replace")

    async def follow(self, on_event: Callable[[str], None], on_connect: Callable[[], None]) -> None:
        """Call `on_event` with the pod's UID whenever one of its containers starts, ends or goes, until cancelled.

        `on_connect` is called when the stream has begun, also after it broke: anything may have happened meanwhile.
        """
        loop = asyncio.get_running_loop()

        def listen() -> None:
            filters = {"type": "container", "label": TYPE, "event": ["start", "die", "destroy", "oom"]}
            # Docker answers before it subscribes: what happens in between is among the events of the last seconds.
            since = int(time.time()) - OVERLAP_SECONDS
            self._events = self._connected().events(since=since, decode=True, filters=filters)
            loop.call_soon_threadsafe(on_connect)
            for event in self._events:
                uid = event.get("Actor", {}).get("Attributes", {}).get(POD_UID)
                if uid:
                    loop.call_soon_threadsafe(on_event, uid)

        while True:
            with contextlib.suppress(NotReady, Refused, Gone):
                await self._in_thread(with_driver_errors, listen)
            await asyncio.sleep(RECONNECT_SECONDS)

    def close(self) -> None:
        """Let go of Docker; containers stay as they are."""
        if self._events is not None:
            with contextlib.suppress(OSError, AttributeError):
                self._events.close()
        self._threads.shutdown(wait=False, cancel_futures=True)
        if self._client is not None:
            self._client.close()

    async def _call(self, act: Callable[[Any], T]) -> T:
        return await self._in_thread(with_driver_errors, lambda: act(self._connected()))

    async def _in_thread(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._threads, functools.partial(function, *args, **kwargs))

    def _connected(self) -> Any:
        with self._connecting:
            if self._client is None:
                offered = _newest_api_version(self._socket, self._answer_seconds)
                self._client = _api(self._socket, offered, self._answer_seconds)
            return self._client


def _api(socket: str, version: str, seconds: int) -> Any:
    return docker.APIClient(base_url=f"unix://{socket}", version=version, timeout=seconds, max_pool_size=THREADS)


def _newest_api_version(socket: str, seconds: int) -> str:
    """The newest version of its API that this Docker offers. Raises NotReady when it is too old for us."""
    probe = _api(socket, MIN_API_VERSION, seconds)
    try:
        offered = str(probe.version(api_version=False)["ApiVersion"])
    finally:
        probe.close()
    if _number(offered) < _number(MIN_API_VERSION):
        raise NotReady(f"Docker's API is {offered}; {MIN_API_VERSION} (Docker 20.10) or newer is needed")
    return offered


def _number(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split("."))


def _inspect_all(client: Any, filters: dict[str, str]) -> list[RuntimeContainer]:
    found = []
    for row in client.containers(all=True, filters=filters):
        with contextlib.suppress(docker.errors.NotFound):
            found.append(_container(client.inspect_container(row["Id"])))
    return found


def _list_all(client: Any) -> list[RuntimeContainer]:
    found = []
    for row in client.containers(all=True, filters={"label": TYPE}):
        if not row["Labels"].keys() & {ATTEMPT, CRASHES}:
            continue
        brief = RuntimeContainer(id=row["Id"], labels=row["Labels"], state=row["State"], image_id=row["ImageID"])
        if brief.running:
            found.append(brief)
            continue
        with contextlib.suppress(docker.errors.NotFound):
            found.append(_container(client.inspect_container(row["Id"])))
    return found


def _image(row: dict[str, Any]) -> StoredImage:
    return StoredImage(row["Id"], tuple(_names(row, "RepoTags") or _names(row, "RepoDigests")))


def _names(row: dict[str, Any], field: str) -> list[str]:
    return [name for name in row[field] or () if "<none>" not in name]


def _digest(client: Any, image: str) -> str:
    """The first name and digest under which a registry has the image."""
    try:
        return str(next(iter(client.inspect_image(image)["RepoDigests"] or ()), ""))
    except docker.errors.ImageNotFound:
        return ""


def _container(answer: dict[str, Any]) -> RuntimeContainer:
    state, config = answer["State"], answer["Config"]
    return RuntimeContainer(
        id=answer["Id"],
        labels=config["Labels"] or {},
        state=state["Status"],
        pid=state["Pid"],
        exit_code=state["ExitCode"],
        error=state["Error"],
        oom_killed=state["OOMKilled"],
        created_at=_time(answer["Created"]),
        started_at=_time(state["StartedAt"]),
        finished_at=_time(state["FinishedAt"]),
        image=config["Image"],
        image_id=answer["Image"],
        stop_signal=config.get("StopSignal") or "SIGTERM",
        log_path=answer["LogPath"],
        layer=(answer["GraphDriver"].get("Data") or {}).get("UpperDir", ""),
        user=process_user(state["Pid"]) if state["Pid"] else None,
    )


def _time(written: str) -> datetime | None:
    return None if written == NEVER or not written else times.parse_time(written)


def _create(spec: ContainerConfig, logs: LogLimits, client: Any) -> str:
    rights = spec.rights
    host = client.create_host_config(
        network_mode=spec.network,
        ipc_mode=spec.ipc,
        pid_mode=spec.pid or None,
        uts_mode=spec.uts or None,
        binds=list(spec.binds),
        cpu_shares=spec.cpu_shares,
        cpu_period=CPU_PERIOD if spec.cpu_quota else None,
        cpu_quota=spec.cpu_quota or None,
        mem_limit=spec.memory or None,
        memswap_limit=spec.memory or None,
        oom_score_adj=spec.oom_score_adj,
        security_opt=list(rights.options) or None,
        group_add=list(map(str, rights.groups)) or None,
        privileged=rights.privileged,
        cap_add=list(rights.cap_add) or None,
        cap_drop=list(rights.cap_drop) or None,
        read_only=rights.read_only,
        sysctls=dict(spec.sysctls) or None,
        runtime=spec.runtime or None,
        cgroup_parent=spec.cgroup_parent or None,
        log_config=_log_config(logs),
    )
    if rights.hidden is not None:
        host |= {"MaskedPaths": list(rights.hidden)} | ({} if rights.hidden else {"ReadonlyPaths": []})
    config = client.create_container_config(
        image=spec.image,
        user=rights.user or None,
        command=None,
        labels=dict(spec.labels),
        environment=list(spec.environment),
        working_dir=spec.working_dir or None,
        hostname=spec.hostname or None,
        domainname=spec.domain or None,
        tty=spec.tty,
        stdin_open=spec.stdin,
        host_config=host,
        healthcheck={"test": ["NONE"]},
        network_disabled=spec.network == "none",  # else Docker executes itself twice in there, for nothing
        stop_signal=spec.stop_signal or None,
    )
    config |= {"StdinOnce": spec.stdin_once, "AttachStdout": False, "AttachStderr": False}
    if spec.entrypoint is not None:
        config["Entrypoint"] = list(spec.entrypoint)
    if spec.command is not None:
        config["Cmd"] = list(spec.command)
    return create_named(client, config, spec.name)


def _log_config(logs: LogLimits) -> LogConfig:
    return LogConfig(type=LogConfig.types.JSON, config={"max-size": str(logs.bytes), "max-file": str(logs.files)})


def _split_image_reference(name: str) -> tuple[str, str]:
    """The repository and the tag (or digest) to pull; without one it is `latest`, not every tag there is."""
    if "@" in name:
        repository, _, digest = name.partition("@")
        return repository, digest
    head, colon, tag = name.rpartition(":")
    return (head, tag) if colon and "/" not in tag else (name, "latest")
