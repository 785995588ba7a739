"""One host with a Docker in memory, and the agent's worker for one pod."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

from aiohttp import web
from msgspec.structs import replace

from api.core.pod import Pod, PodStatus
from api.core.services import Service
from node_agent.cgroups.cgroupfs import CgroupfsDriver
from node_agent.cgroups.hierarchy import PodsCapacity
from node_agent.cgroups.manager import CgroupManager
from node_agent.cgroups.systemd import SystemdDriver
from node_agent.clock import steady_clock
from node_agent.host import HostInfo
from node_agent.network.plugin import PodNetwork as SandboxNetwork
from node_agent.network.sdn import SdnNetwork
from node_agent.object_cache import ObjectCache
from node_agent.pods.resize import PendingResize
from node_agent.pods.status_manager import StatusManager
from node_agent.pods.worker import PodWorker, PodWorkerFactory
from node_agent.probes.manager import ProbeDependencies
from node_agent.probes.prober import Prober
from node_agent.runtime.container import SANDBOX_ID
from node_agent.runtime.pleg import Pleg, PodCache
from node_agent.runtime.sandbox import PodSandbox
from node_agent.volumes.tokens import TokenCache
from tests.testbed.docker.fake import AgentKilled, FakeDocker
from tests.testbed.node.events import FakeEventRecorder
from tests.unit.node_agent.examples import make_pod
from tests.unit.node_agent.object_server import ObjectServer

SECONDS = 20.0


STEPS_BETWEEN_CALLS = 15
CONCURRENT_HOSTS = 4
"""Hosts on which a scenario runs at the same time: most of the time each of them waits."""

POLLS = 10
"""Number of polls after which an attempt has surely been made."""


class FakeSdnDaemon:
    """A server on a unix socket that responds as the sdn daemon does, and records the attached sandboxes."""

    def __init__(self) -> None:
        self.attached: set[str] = set()
        self.unavailable = False
        self.rejected_sandboxes: set[str] = set()
        self.while_listing: Callable[[], Awaitable[None]] | None = None

    @asynccontextmanager
    async def serving(self, socket: Path) -> AsyncIterator[None]:
        """Serve until the end of the block."""
        app = web.Application()
        app.router.add_post("/ADD", self._add)
        app.router.add_post("/DEL", self._del)
        app.router.add_get("/SANDBOXES", self._sandboxes)
        app.router.add_get("/STATUS", self._status)
        runner = web.AppRunner(app)
        await runner.setup()
        await web.UnixSite(runner, str(socket)).start()
        try:
            yield
        finally:
            await runner.cleanup()

    async def _add(self, request: web.Request) -> web.Response:
        if self.unavailable:
            return web.json_response({"code": 11, "msg": "no subnet yet"}, status=503)
        sandbox = (await request.json())["sandbox"]
        if sandbox in self.rejected_sandboxes:
            return web.json_response({"code": 3, "msg": "its address is not of this node's subnet"}, status=404)
        self.attached.add(sandbox)
        return web.json_response(
            {
                "ip": "10.128.0.2/23",
                "gateway": "10.128.0.1",
                "mac": "0a:58:0a:80:00:02",
                "mtu": 1450,
                "hostInterface": "v",
            }
        )

    async def _status(self, _: web.Request) -> web.Response:
        return web.json_response({"ready": True, "subnet": "10.128.0.0/23"})

    async def _del(self, request: web.Request) -> web.Response:
        self.attached.discard((await request.json())["sandbox"])
        return web.json_response({})

    async def _sandboxes(self, request: web.Request) -> web.Response:
        assert request.query["runtime"] == "node-agent"
        if self.while_listing is not None:
            await self.while_listing()
        return web.json_response({"sandboxes": sorted(self.attached)})


class RecordedStatuses(StatusManager):
    """A status manager that stores the statuses in its host instead of writing them to an API server."""

    def __init__(self, host: FakeHost) -> None:
        self._host = host

    def set_status(self, pod: Pod) -> None:
        self._host.set_status(pod.status)


class FakeHost:
    """One host with the state that survives the agent, and the agent's worker for the pod."""

    def __init__(self, root: Path) -> None:
        self.docker = FakeDocker("pause", "toolbox", "toolbox:2")
        self.switch = FakeSdnDaemon()
        self.objects = ObjectServer()
        self.services: tuple[Service, ...] = ()
        self.status = PodStatus()
        self.statuses: list[PodStatus] = []
        self.terminated = False
        self.resize_rejection: PendingResize | None = None
        self.recorder = FakeEventRecorder()
        self.done_steps: set[str] = set()
        root.mkdir(parents=True)
        self.host = HostInfo(
            str(root / "pods"),
            8 << 30,
            -1000,
            node_address="10.245.2.3",
            pause_image="pause",
            cluster_dns=("10.0.0.10",),
        )
        self.network: SandboxNetwork
        self.groups = root / "cgroup"
        (self.groups / "cpu").mkdir(parents=True)
        (self.groups / "memory").mkdir()
        self.references: ObjectCache
        self.tokens: TokenCache
        self._worker: PodWorker | None = None
        self.cache = PodCache(self.docker)
        self.prober: Prober

    def worker(self, pod: Pod) -> PodWorker:
        """Return the worker of a restarted agent, for a pod with the status that the API server has."""
        self.cache = PodCache(self.docker)
        factory = PodWorkerFactory(
            docker=self.docker,
            network=self.network,
            cgroups=self.cgroups(),
            host=self.host,
            cache=self.cache,
            objects=self.references,
            services=lambda _: self.services,
            tokens=self.tokens,
            probes=ProbeDependencies(self.prober, lambda: 0.0, steady_clock()),
            statuses=RecordedStatuses(self),
            events=self.recorder,
            node=lambda: None,
            resize_rejection=lambda _: self.resize_rejection,
        )
        return factory.create(replace(pod, status=self.status) if self.status.phase else pod)

    def cgroups(self) -> CgroupManager:
        """Return the manager of the host's cgroups."""
        files = CgroupfsDriver(self.groups)
        return CgroupManager(self.docker, files, SystemdDriver(files), "/", PodsCapacity(1, 8 << 30), tuple)

    def sandbox(self) -> PodSandbox:
        """Return the sandbox of the pod as a worker creates it."""
        events = self.recorder.for_pod(make_pod())
        return PodSandbox(self.docker, self.network, self.cgroups(), self.host, events)

    def pleg(self, worker: PodWorker) -> Pleg:
        """Return the PLEG of this agent, which wakes its worker."""
        pleg = Pleg(self.docker, self.cache, lambda _: worker.wake())
        pleg.connected.add(worker.wake)
        return pleg

    def wake(self) -> None:
        """Wake the worker, because an object of the pod has changed."""
        if self._worker is not None:
            self._worker.wake()

    def set_status(self, status: PodStatus) -> None:
        """Store a status that the worker reports."""
        self.status = status
        self.statuses.append(status)

    @property
    def recorded_events(self) -> list[tuple[str, str, str]]:
        """The events as reason, message and container."""
        return self.recorder.events

    async def run(self, worker: PodWorker) -> None:
        """Run a worker until its pod is terminated."""
        await worker.run()
        self.terminated = True

    async def live(self, pod: Pod, until: Callable[[], bool], *, leave: bool = False) -> None:
        """Run a worker until a condition holds and nothing is left to do. Raises AgentKilled."""
        worker = self._worker = self.worker(pod)
        if leave:
            worker.terminate()
        events = asyncio.create_task(self.pleg(worker).watch_events())
        running = asyncio.create_task(self.run(worker))
        try:
            async with asyncio.timeout(SECONDS):
                while not (until() or running.done()):
                    await asyncio.sleep(0.001)
                before = -1
                while before != self.docker.calls and not running.done():
                    before = self.docker.calls
                    await let_others_run()
        finally:
            for task in (events, running):
                task.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await task

    async def once(self, step: str, act: Callable[[], Awaitable[None]]) -> None:
        """Take a step of a scenario, unless it was taken before an agent was killed."""
        if step not in self.done_steps:
            await act()
            self.done_steps.add(step)

    async def end(self, name: str, code: int) -> None:
        """Let a container exit by itself."""
        container = self.docker.running(name)
        assert container is not None
        self.docker.end(container.id, code)

    def restarts(self) -> list[int]:
        """Return the restart counts of the running containers, by name."""
        return [
            container.restart_count for name in ("main", "side") if (container := self.docker.running(name)) is not None
        ]

    def remaining(self) -> dict[str, object]:
        """Return the state of the host without IDs and times."""
        names = {held.seen.id: held.spec.name for held in self.docker.held.values()}
        pods = Path(self.host.pods_dir)
        return {
            "containers": sorted((held.spec.name, held.seen.state) for held in self.docker.held.values()),
            "inside": sorted(
                (held.spec.name, names.get(held.seen.labels.get(SANDBOX_ID, ""), ""))
                for held in self.docker.held.values()
            ),
            "attached": sorted(names.get(sandbox_id, "a sandbox that is gone") for sandbox_id in self.switch.attached),
            "directories": sorted(entry.name for entry in pods.iterdir()) if pods.exists() else [],
            "phase": self.status.phase,
            "restarts": [status.restart_count for status in self.status.container_statuses],
        }


async def let_others_run() -> None:
    """Let the event loop and its threads do what is pending, for 30 ms at least and longer on a busy machine.

    A worker takes at most this many steps between two calls of Docker. Each waits for the event loop or for a thread.
    """
    for _ in range(STEPS_BETWEEN_CALLS):
        await asyncio.to_thread(time.sleep, 0.001)
        await asyncio.sleep(0.001)


@asynccontextmanager
async def fake_host(root: Path) -> AsyncIterator[FakeHost]:
    """Yield a new host."""
    host = FakeHost(root)
    async with (
        host.switch.serving(root / "s"),
        SdnNetwork(str(root / "s")) as host.network,
        host.objects.client() as client,
        Prober(host.docker) as host.prober,
    ):
        host.references = ObjectCache(client, asyncio.create_task, lambda _: host.wake())
        host.tokens = TokenCache(client)
        yield host


async def kill_anywhere(scenario: Callable[[FakeHost], Awaitable[None]], tmp_path: Path) -> None:
    """Run a scenario, then again with the agent killed after each call. The result must be the same."""
    async with fake_host(tmp_path / "whole") as host:
        await scenario(host)
        expected, calls = host.remaining(), host.docker.calls
    assert calls > 5
    slots = asyncio.Semaphore(CONCURRENT_HOSTS)

    async def kill_after(number: int) -> None:
        async with slots, fake_host(tmp_path / str(number)) as host:
            host.docker.die_after = number
            with contextlib.suppress(AgentKilled):
                await scenario(host)
            host.docker.die_after = None
            await scenario(host)
            assert host.remaining() == expected, f"killed after call {number} of {calls}"

    async with asyncio.TaskGroup() as tasks:
        for number in range(1, calls + 1):
            tasks.create_task(kill_after(number))
