"""A Docker in memory, the only fake of Docker.

`tests/contract/node_agent/test_docker_driver.py` compares it with a real Docker.

It knows five programs: `echo WORD` writes to the log, `exit N` ends at once, `trap 'exit N' TERM` ends with N on
SIGTERM, a path that begins with /nowhere cannot be started, and every other program runs until it is killed. `echo` is
also known to exec in a container.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from dataclasses import dataclass
from dataclasses import replace as changed
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from itertools import count
from secrets import token_hex
from typing import TypeVar

from api.core.node import ContainerImage
from node_agent.docker.client import DockerClient, StoredImage
from node_agent.docker.exec import EXIT_CODE_CANNOT_EXECUTE, MAX_OUTPUT_BYTES, ExecResult
from node_agent.images.credentials import Credential
from node_agent.images.pull_backoff import PullResult
from node_agent.runtime.container import (
    ATTEMPT,
    CRASHES,
    POD_UID,
    ContainerEvent,
    DockerResources,
    RuntimeContainer,
    labels_by_pod,
)
from node_agent.runtime.spec import ContainerConfig
from reconcile.errors import DriverError, Gone, NotReady, Refused

T = TypeVar("T")

LEAST_MEMORY = 6 << 20
KILLED = 137


def _image_id(name: str) -> str:
    return "sha256:" + sha256(name.removesuffix(":latest").encode()).hexdigest()


class AgentKilled(BaseException):
    """The end of the agent in the middle of an operation."""


@dataclass(slots=True)
class _Held:
    spec: ContainerConfig
    seen: RuntimeContainer

    @property
    def program(self) -> str:
        return " ".join((*(self.spec.entrypoint or ()), *(self.spec.command or ())))


class FakeDocker(DockerClient):
    """A Docker in memory that counts calls; `die_after` calls raise AgentKilled after they took effect.

    While `trouble` is set, every call raises it. While it is `quiet`, it sends no events. `pulls` are images that a
    registry has, or the error that it returns. `passwords` are the credentials that the registry requires for them.
    Pulls of images in `silent` never end. The containers in `stuck` cannot be removed. `programs` may be run in a
    container, with these exit codes; other programs that are run there do not end.
    """

    def __init__(self, *images: str) -> None:
        self.images = set(images)
        self.pulls: dict[str, DriverError | None] = {}
        self.passwords: dict[str, Credential] = {}
        self.silent: set[str] = set()
        self.cgroups = "none"
        self.trouble: DriverError | None = None
        self.quiet = False
        self.written: dict[str, int] = {}
        self.calls = 0
        self.die_after: int | None = None
        self.held: dict[str, _Held] = {}
        self.started: list[str] = []
        self.signals: list[tuple[str, str]] = []
        self.pull_requests: list[str] = []
        self.executed: list[tuple[str, str]] = []
        self.programs: dict[str, int] = {}
        self.stuck: set[str] = set()
        self._listeners: list[Callable[[ContainerEvent], None]] = []
        self._numbers = count(1)
        self._clock = datetime.now(UTC)

    # --- what the agent sees --------------------------------------------------------------------------------------

    async def version(self) -> str:
        return self._called("20.10.24")

    async def cgroup_driver(self) -> str:
        return self._called(self.cgroups)

    async def list_pod_containers(self, uid: str) -> list[RuntimeContainer]:
        return self._called([held.seen for held in self.held.values() if held.seen.pod_uid == uid])

    async def list_pods(self) -> dict[str, dict[str, str]]:
        return self._called(labels_by_pod(dict(held.seen.labels) for held in self.held.values()))

    async def list_sandboxes(self) -> frozenset[str]:
        return self._called(frozenset(held.seen.id for held in self.held.values() if held.seen.is_sandbox))

    async def list_containers(self) -> list[RuntimeContainer]:
        containers = [held.seen for held in self.held.values() if held.seen.labels.keys() & {ATTEMPT, CRASHES}]
        brief = [
            RuntimeContainer(
                id=container.id, labels=container.labels, state=container.state, image_id=container.image_id
            )
            for container in containers
        ]
        return self._called(
            [
                short if short.running else runtime_container
                for runtime_container, short in zip(containers, brief, strict=True)
            ]
        )

    async def root_dir(self) -> str:
        return self._called("/")

    async def list_images(self) -> list[StoredImage]:
        tags = [(_image_id(name), name if ":" in name else f"{name}:latest") for name in sorted(self.images)]
        return self._called([StoredImage(identity, (tag,)) for identity, tag in tags])

    async def images_in_use(self) -> frozenset[str]:
        return self._called(frozenset(held.seen.image_id for held in self.held.values()))

    async def remove_image(self, image: StoredImage) -> None:
        self._ready()
        if image.id in {held.seen.image_id for held in self.held.values()}:
            raise Refused(f"Docker: conflict: unable to remove {image.id}: container is using it")
        self.images = {name for name in self.images if _image_id(name) != image.id}
        self._called(None)

    async def writable_layer_sizes(self, uid: str) -> dict[str, int]:
        return self._called(
            {name: self.written.get(name, 0) for name, held in self.held.items() if held.seen.pod_uid == uid}
        )

    async def list_named_images(self) -> tuple[ContainerImage, ...]:
        tagged = sorted(name if ":" in name else f"{name}:latest" for name in self.images)
        return self._called(tuple(ContainerImage(names=(name,), size_bytes=1 << 20) for name in tagged))

    async def image_id(self, name: str) -> str:
        self._ready()
        if name != name.lower():
            raise Refused(f"Docker: invalid reference format: repository name must be lowercase: {name}")
        if name not in self.images and not name.startswith("sha256:"):
            raise Gone(f"Docker: No such image: {name}")
        return self._called(name if name.startswith("sha256:") else _image_id(name))

    async def image_user(self, image: str) -> str:
        return self._called("")

    async def pull(self, name: str, credential: Credential | None = None) -> PullResult:
        self._ready()
        self.pull_requests.append(credential.username if credential is not None else "")
        if name in self.silent:
            await asyncio.Event().wait()
        accepted = self.passwords.get(name, credential)
        if credential != accepted:
            raise Refused(f"Docker: pull access denied for {name}")
        error = self.pulls.get(name, NotReady("Docker: dial tcp 127.0.0.1:9: connect: connection refused"))
        if error is not None:
            raise error
        self.images.add(name)
        return self._called(PullResult(0.0, 1 << 20))

    async def create(self, spec: ContainerConfig) -> str:
        self._ready()
        holder = next((held for held in self.held.values() if held.spec.name == spec.name), None)
        if holder is not None and holder.seen.running:
            raise Refused(f"Docker: Conflict. The container name {spec.name} is already in use")
        if not spec.image.startswith("sha256:") and spec.image not in self.images:
            raise Gone(f"Docker: No such image: {spec.image}")
        if 0 < spec.memory < LEAST_MEMORY:
            raise Refused("Docker: Minimum memory limit allowed is 6MB")
        if holder is not None and holder.seen.id in self.stuck:
            spec = changed(spec, name=f"{spec.name}_{token_hex(4)}")
        elif holder is not None:
            self._drop(holder.seen.id)
        identity = f"{next(self._numbers):064x}"
        seen = RuntimeContainer(
            id=identity,
            labels=dict(spec.labels),
            created_at=self._now(),
            image=spec.image,
            stop_signal=spec.stop_signal or "SIGTERM",
            resources=DockerResources(spec.cpu_shares, spec.cpu_quota, spec.memory),
            image_id=spec.image if spec.image.startswith("sha256:") else _image_id(spec.image),
        )
        self.held[identity] = _Held(spec, seen)
        return self._called(identity)

    async def start(self, container: str) -> None:
        self._ready()
        held = self._held(container)
        kind, _, other = held.spec.network.partition(":")
        if kind == "container" and not (other in self.held and self.held[other].seen.running):
            self._start_fails(held, 128, "cannot join network of a non running container")
        if held.program.startswith("/nowhere"):
            self._start_fails(held, 127, f'exec: "{held.program}": stat {held.program}: no such file or directory')
        path = f"/var/lib/docker/containers/{container}/{container}-json.log"
        held.seen = changed(held.seen, state="running", pid=4242, started_at=self._now(), log_path=path)
        self.started.append(container)
        self._notify("start", held.seen)
        ends = re.search(r"(?<!')exit (\d+)(?!')", held.program)
        if ends is not None:
            self.end(container, int(ends.group(1)))
        self._called(None)

    async def inspect(self, container: str) -> RuntimeContainer:
        self._ready()
        return self._called(self._held(container).seen)

    async def kill(self, container: str, signal: str) -> None:
        self._ready()
        held = self.held.get(container)
        if held is not None and held.seen.running:
            self.signals.append((held.seen.name, signal))
            handled = re.search(r"trap 'exit (\d+)' TERM", held.program)
            if signal == "SIGKILL":
                self.end(container, KILLED)
            elif handled is not None:
                self.end(container, int(handled.group(1)))
        self._called(None)

    async def update(self, container: str, resources: DockerResources) -> None:
        self._ready()
        held = self._held(container)
        if 0 < resources.memory < LEAST_MEMORY:
            raise Refused("Docker: Minimum memory limit allowed is 6MB")
        held.seen = changed(held.seen, resources=resources)
        self._called(None)

    async def exec(self, container: str, command: tuple[str, ...], seconds: float) -> ExecResult:
        self._ready()
        held, program = self._held(container), " ".join(command)
        if not held.seen.running:
            raise Refused(f"Docker: Container {container} is not running")
        self.executed.append((held.seen.name, program))
        if program.startswith("/nowhere"):
            return self._called(ExecResult(EXIT_CODE_CANNOT_EXECUTE, f'exec: "{program}": no such file or directory'))
        output = re.fullmatch(r"echo (.*)", program)
        if output is not None:
            return self._called(ExecResult(0, f"{output[1]}\n"[:MAX_OUTPUT_BYTES]))
        ends = re.fullmatch(r"(?:sh -c )?exit (\d+)", program)
        if ends is None and program not in self.programs:
            await asyncio.sleep(seconds)
            return self._called(ExecResult(None))
        return self._called(ExecResult(int(ends[1]) if ends is not None else self.programs[program]))

    async def remove(self, container: str) -> None:
        self._ready()
        if container in self.stuck:
            raise Refused(f"Docker: container {container}: driver failed to remove root filesystem")
        self._drop(container)
        self._called(None)

    async def remove_unstarted(self, container: str) -> None:
        self._ready()
        if container in self.held and self.held[container].seen.running:
            raise Refused(f"Docker: You cannot remove a running container {container}")
        self._drop(container)
        self._called(None)

    async def log_tail(self, container: str, lines: int, max_bytes: int) -> str:
        self._ready()
        output = re.findall(r"echo (\w+)", self._held(container).program)
        return self._called("".join(f"{word}\n" for word in output[-lines:])[-max_bytes:])

    async def watch_events(self, on_event: Callable[[ContainerEvent], None], on_connect: Callable[[], None]) -> None:
        self._listeners.append(on_event)
        on_connect()
        try:
            await asyncio.Event().wait()
        finally:
            self._listeners.remove(on_event)

    def close(self) -> None:
        """Do nothing: there is no connection to close."""

    # --- what happens to it ---------------------------------------------------------------------------------------

    def end(self, container: str, code: int, *, ran: timedelta = timedelta(seconds=1), oom: bool = False) -> None:
        """End a running container that has run for this time."""
        held = self.held[container]
        assert held.seen.running, held.spec.name
        now = self._now()
        held.seen = changed(
            held.seen, state="exited", pid=0, exit_code=code, oom_killed=oom, started_at=now - ran, finished_at=now
        )
        self._notify("die", held.seen)

    def end_everything(self) -> None:
        """End all running containers, as a restart of Docker without live-restore does."""
        for identity in [held.seen.id for held in self.held.values() if held.seen.running]:
            self.end(identity, KILLED)

    def age(self, by: timedelta) -> None:
        """Move all times of containers into the past."""
        for held in self.held.values():
            times = {
                name: None if moment is None else moment - by
                for name, moment in (
                    ("created_at", held.seen.created_at),
                    ("started_at", held.seen.started_at),
                    ("finished_at", held.seen.finished_at),
                )
            }
            held.seen = changed(held.seen, **times)  # type: ignore[arg-type]

    def find(self, container: str) -> list[RuntimeContainer]:
        """Containers of this name in their pod (POD is the sandbox), oldest first."""
        return [held.seen for held in self.held.values() if held.seen.name == container]

    def running(self, container: str) -> RuntimeContainer | None:
        """Return the running container of this name, or None."""
        return next(
            (runtime_container for runtime_container in self.find(container) if runtime_container.running), None
        )

    def spec_of(self, container: RuntimeContainer) -> ContainerConfig:
        """Return the configuration with which a container was created."""
        return self.held[container.id].spec

    def _ready(self) -> None:
        if self.trouble is not None:
            raise self.trouble

    def _called(self, answer: T) -> T:
        self._ready()
        self.calls += 1
        if self.die_after is not None and self.calls >= self.die_after:
            raise AgentKilled
        return answer

    def _held(self, container: str) -> _Held:
        if container not in self.held:
            raise Gone(f"Docker: No such container: {container}")
        return self.held[container]

    def _start_fails(self, held: _Held, code: int, words: str) -> None:
        held.seen = changed(held.seen, exit_code=code, error=words)
        raise Refused(f"Docker: {words}")

    def _drop(self, container: str) -> None:
        held = self.held.get(container)
        if held is None:
            return
        if held.seen.running:
            self.end(container, KILLED)
        del self.held[container]
        self._notify("destroy", held.seen)

    def _notify(self, action: str, seen: RuntimeContainer) -> None:
        for listener in () if self.quiet else self._listeners:
            listener(ContainerEvent(action, seen.id, seen.labels.get(POD_UID, "")))

    def _now(self) -> datetime:
        self._clock = max(self._clock + timedelta(microseconds=1), datetime.now(UTC))
        return self._clock
