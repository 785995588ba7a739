"""Evicted pods: containers, network and directory are removed; the object stays and states the reason."""

from __future__ import annotations

import asyncio
import contextlib
import errno
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from msgspec.structs import replace

from node_agent.config import Settings
from node_agent.eviction.manager import EvictionManager, observe_signals
from node_agent.eviction.thresholds import SIGNALS, NodePressure, Pressure
from node_agent.host import pod_dir, termination_message_path
from node_agent.pods.status import evicted_status
from node_agent.pods.worker import PodWorker
from node_agent.runtime.container import RuntimeContainer, RuntimePod
from node_agent.stats.collector import task_count, working_set_bytes
from node_agent.stats.disk import DiskUsageScanner, directory_usage
from node_agent.stats.model import PodWithContainers
from node_agent.volumes.paths import volume_dir
from reconcile.errors import NotReady
from tests.testbed.docker.fake import AgentKilled, FakeDocker
from tests.testbed.node.events import FakeEventRecorder
from tests.unit.node_agent.examples import NOW, UID, make_pod
from tests.unit.node_agent.fake_host import FakeHost, fake_host

POLITE = """image: toolbox, command: ["trap 'exit 7' TERM"]"""
PAIR = make_pod(f"[{{name: main, {POLITE}}}, {{name: side, {POLITE}}}]", "  volumes: [{name: v, emptyDir: {}}]")
LIMITED = make_pod(
    f"[{{name: main, {POLITE}, resources: {{limits: {{ephemeral-storage: 4Mi}}}}}}]",
    "  volumes: [{name: v, emptyDir: {sizeLimit: 64Ki}}]",
)
GONE = {"containers": [], "inside": [], "attached": [], "directories": [], "phase": "Failed", "restarts": [0, 0]}


def is_cleared(host: FakeHost) -> bool:
    return not host.docker.held and not host.switch.attached and not host.remaining()["directories"]


async def test_agent_killed_during_eviction_leaves_nothing_of_the_pod(tmp_path: Path) -> None:
    calls, number = 100, 1
    while number <= calls:
        async with fake_host(tmp_path / str(number)) as host:
            await host.live(PAIR, lambda: host.status.phase == "Running" and len(host.restarts()) == 2)
            before = host.docker.calls
            host.status = evicted_status(host.status, "words", NOW)
            host.docker.die_after = before + number
            with contextlib.suppress(AgentKilled):
                await host.live(PAIR, lambda: is_cleared(host))
                calls = host.docker.calls - before
            host.docker.die_after = None
            await host.live(PAIR, lambda: is_cleared(host))
            assert host.remaining() == GONE, f"killed after call {number}"
            assert (host.status.reason, host.status.message) == ("Evicted", "words")
            assert all(status.state.terminated is not None for status in host.status.container_statuses)
            assert host.status.conditions[-1].type == "DisruptionTarget"
            assert not host.terminated, "the object stays"
        number += 1
    assert calls < 100


@dataclass(frozen=True, slots=True)
class Evicting:
    """An eviction manager, the disk usage and the pods that it knows, the pressure that it has found, its events."""

    manager: EvictionManager
    disks: DiskUsageScanner
    pods: dict[str, PodWorker]
    node_pressure: NodePressure
    recorder: FakeEventRecorder

    @property
    def pressure(self) -> Pressure:
        return self.node_pressure.current

    @property
    def events(self) -> list[str]:
        return [f"{reason}: {message}" for reason, message, _ in self.recorder.events]


@asynccontextmanager
async def evicting(host: FakeHost, worker: PodWorker, hard: str = "", **more: Any) -> AsyncIterator[Evicting]:
    """Run an eviction manager for a worker whose pod runs. At the end, wait until an evicted pod is cleaned up."""

    async def reclaim() -> None:
        host.done_steps.add("reclaimed")

    def on_change() -> None:
        host.done_steps.add("told")

    recorder = FakeEventRecorder()
    pressure = NodePressure()

    state = str(Path(host.host.pods_dir).parent)
    settings = Settings(node_name="n", node_ip="1.2.3.4", state_dir=state, eviction_hard=hard, **more)
    events = asyncio.create_task(host.docker.watch_events(lambda _: worker.wake(), worker.wake))
    running = asyncio.create_task(worker.run())
    try:
        async with asyncio.timeout(20):
            while host.status.phase != "Running":
                await asyncio.sleep(0.001)
            pods = {UID: worker}
            disks = DiskUsageScanner(host.docker, host.host)
            manager = EvictionManager(
                settings=settings,
                docker=host.docker,
                disks=disks,
                evictable=lambda: pods,
                reclaim=(reclaim,),
                pressure=pressure,
                events=recorder,
            )
            manager.changed.add(on_change)
            yield Evicting(manager, disks, pods, pressure, recorder)
            while worker.pod.status.reason == "Evicted" and not (worker.cleaned_up and is_cleared(host)):
                await asyncio.sleep(0.001)
    finally:
        for task in (events, running):
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task


async def test_pod_over_its_ephemeral_storage_limit_is_evicted(tmp_path: Path) -> None:
    async with fake_host(tmp_path / "w") as host, evicting(host, host.worker(LIMITED)) as eviction:
        await eviction.manager.enforce_disk_limits()
        assert host.status.phase == "Running"
        main = host.docker.running("main")
        assert main is not None
        host.docker.written[main.id] = 5 << 20
        await eviction.manager.enforce_disk_limits()
        assert (host.status.phase, host.status.reason) == ("Failed", "Evicted")
        assert host.status.message == "Pod ephemeral local storage usage exceeds the total limit of containers 4Mi. "
    assert host.remaining()["phase"] == "Failed"
    assert ("main", "SIGTERM") in host.docker.signals


def fill(file: Path, size: int) -> None:
    file.write_bytes(b"x" * size)


def volume_file(host: FakeHost) -> Path:
    return Path(volume_dir(pod_dir(host.host, UID), LIMITED.spec.volumes[0]), "data")


async def test_volume_contents_are_measured(tmp_path: Path) -> None:
    async with fake_host(tmp_path / "w") as host, evicting(host, host.worker(LIMITED)) as eviction:
        fill(volume_file(host), 128 << 10)
        await eviction.manager.enforce_disk_limits()
        assert host.status.message == 'Usage of EmptyDir volume "v" exceeds the limit "64Ki". '


@pytest.fixture
def unreadable(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """UIDs of pods whose disk usage cannot be read."""
    uids: set[str] = set()

    def usage(path: Path) -> tuple[int, int]:
        if uids & set(path.parts):
            raise OSError(errno.EIO, "Input/output error")
        return directory_usage(path)

    monkeypatch.setattr("node_agent.stats.disk.directory_usage", usage)
    return uids


@pytest.fixture
def unlisted(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """UIDs of pods whose containers Docker does not list."""
    uids: set[str] = set()
    list_containers = FakeDocker.list_pod_containers

    async def containers(docker: FakeDocker, uid: str) -> list[RuntimeContainer]:
        if uid in uids:
            raise NotReady("Docker: a container cannot be read")
        return await list_containers(docker, uid)

    monkeypatch.setattr(FakeDocker, "list_pod_containers", containers)
    return uids


OTHER = replace(
    LIMITED,
    metadata=replace(LIMITED.metadata, uid="other", name="unknown"),
    spec=replace(LIMITED.spec, priority=1),
)


def precede_by_other(pods: dict[str, PodWorker]) -> list[str]:
    """Add the pod OTHER before the pod that there is. Return the list of messages with which it is evicted."""
    messages: list[str] = []
    other = SimpleNamespace(pod=OTHER, cleaned_up=True, evict=lambda message, _: messages.append(message))
    pods |= {"other": cast("PodWorker", other), UID: pods.pop(UID)}
    return messages


@pytest.mark.parametrize("cause", ["unreadable", "unlisted"])
async def test_pod_with_unknown_usage_does_not_stop_the_limits_of_others(
    tmp_path: Path, cause: str, request: pytest.FixtureRequest, caplog: pytest.LogCaptureFixture
) -> None:
    request.getfixturevalue(cause).add("other")
    async with fake_host(tmp_path / "w") as host, evicting(host, host.worker(LIMITED)) as eviction:
        messages = precede_by_other(eviction.pods)
        fill(volume_file(host), 128 << 10)
        await eviction.manager.enforce_disk_limits()
        assert host.status.message == 'Usage of EmptyDir volume "v" exceeds the limit "64Ki". '
        assert not messages
        assert "unknown" in [getattr(record, "pod", "") for record in caplog.records]


@pytest.mark.parametrize("cause", ["unreadable", "unlisted"])
async def test_pod_with_unknown_usage_does_not_stop_eviction_under_pressure(
    tmp_path: Path, cause: str, request: pytest.FixtureRequest
) -> None:
    request.getfixturevalue(cause).add("other")
    async with (
        fake_host(tmp_path / "w") as host,
        evicting(host, host.worker(LIMITED), "pid.available<100%") as eviction,
    ):
        messages = precede_by_other(eviction.pods)
        await eviction.manager.synchronize()
        assert host.status.reason == "Evicted"
        assert not messages, "it has the higher priority"


async def test_last_disk_usage_counts_while_it_cannot_be_read(tmp_path: Path, unreadable: set[str]) -> None:
    async with fake_host(tmp_path / "w") as host, evicting(host, host.worker(LIMITED)) as eviction:
        unreadable.add(UID)
        await eviction.manager.enforce_disk_limits()
        assert host.status.phase == "Running", "it was never read"
        unreadable.clear()
        fill(volume_file(host), 128 << 10)
        await eviction.disks.scan(LIMITED, [])
        unreadable.add(UID)
        await eviction.manager.enforce_disk_limits()
        assert host.status.message == 'Usage of EmptyDir volume "v" exceeds the limit "64Ki". '


async def test_pod_whose_disk_usage_is_unreadable_does_not_stop_the_scan(
    tmp_path: Path, unreadable: set[str], caplog: pytest.LogCaptureFixture
) -> None:
    async with fake_host(tmp_path / "w") as host:
        disks = DiskUsageScanner(host.docker, host.host)
        pods = [PodWithContainers(pod, RuntimePod()) for pod in (OTHER, LIMITED)]
        unreadable.add("other")
        await disks.scan_if_due(pods)
        assert disks.last(UID) is not None
        assert disks.last("other") is None
        assert "disk usage of pod red/unknown: Input/output error" in [
            getattr(record, "error", "") for record in caplog.records
        ]
        unreadable.clear()
        await disks.scan_if_due(pods)
        assert disks.last("other") is not None


async def test_termination_message_counts_as_disk_of_the_pod(tmp_path: Path) -> None:
    async with fake_host(tmp_path / "w") as host, evicting(host, host.worker(LIMITED)) as eviction:
        await eviction.manager.enforce_disk_limits()
        assert host.status.phase == "Running"
        fill(Path(termination_message_path(host.host, UID, "main", 0)), 5 << 20)
        await eviction.manager.enforce_disk_limits()
        assert host.status.message == "Pod ephemeral local storage usage exceeds the total limit of containers 4Mi. "


@pytest.mark.parametrize("signal", SIGNALS)
async def test_pressure_is_reported_and_a_pod_is_evicted(tmp_path: Path, signal: str) -> None:
    async with fake_host(tmp_path / "w") as host, evicting(host, host.worker(LIMITED), f"{signal}<100%") as eviction:
        await eviction.manager.synchronize()
        assert host.status.reason == "Evicted"
        assert host.status.message.startswith(f"The node was low on resource: {SIGNALS[signal][0]}. Threshold")
        assert eviction.pressure != Pressure()
        assert "told" in host.done_steps
        assert f"EvictionThresholdMet: Attempting to reclaim {SIGNALS[signal][0]}" in eviction.events
        assert ("reclaimed" in host.done_steps) == eviction.pressure.disk


async def test_soft_eviction_waits_and_keeps_the_pods_grace_period(tmp_path: Path) -> None:
    soft = {"eviction_soft": "memory.available<100%", "eviction_soft_grace_period": "memory.available=0.1s"}
    slow = replace(LIMITED, spec=replace(LIMITED.spec, termination_grace_period_seconds=7))
    async with (
        fake_host(tmp_path / "w") as host,
        evicting(host, host.worker(slow), eviction_max_pod_grace_period=5, **soft) as eviction,
    ):
        await eviction.manager.synchronize()
        assert host.status.phase == "Running"
        assert eviction.pressure == Pressure(memory=True)
        loop = asyncio.create_task(eviction.manager.loops[0].run())
        while host.status.reason != "Evicted":
            await asyncio.sleep(0.001)
        loop.cancel()
    assert ("main", "SIGTERM") in host.docker.signals


async def test_nothing_is_evicted_without_pressure(tmp_path: Path) -> None:
    async with (
        fake_host(tmp_path / "w") as host,
        evicting(host, host.worker(LIMITED), "memory.available<1") as eviction,
    ):
        await eviction.manager.synchronize()
        assert host.status.phase == "Running"
        assert eviction.pressure == Pressure()
        assert not host.done_steps
        assert not eviction.events


def test_host_signals_are_observed(tmp_path: Path) -> None:
    observations = observe_signals(str(tmp_path), "/")
    assert observations.keys() == SIGNALS.keys()
    assert all(
        0 <= observation.available <= observation.capacity and observation.capacity
        for observation in observations.values()
    )
    assert working_set_bytes(0) == task_count(0) == 0


def test_directory_usage_equals_du(tmp_path: Path) -> None:
    (tmp_path / "inner").mkdir()
    (tmp_path / "inner" / "data").write_bytes(b"x" * 100_000)
    alone, inodes = directory_usage(tmp_path)
    assert alone >= 100_000
    assert inodes == 3
    (tmp_path / "again").hardlink_to(tmp_path / "inner" / "data")
    (tmp_path / "elsewhere").symlink_to("/")
    assert directory_usage(tmp_path)[1] == 4
    assert directory_usage(tmp_path)[0] < alone + 50_000
    assert directory_usage(tmp_path / "gone") == (0, 0)
