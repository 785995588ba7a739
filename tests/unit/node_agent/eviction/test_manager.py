"""Evicted pods: containers, network and directory are removed; the object stays and states the reason."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from node_agent.config import Settings
from node_agent.eviction.manager import EvictionManager, observe_signals
from node_agent.eviction.thresholds import SIGNALS, NodePressure, Pressure
from node_agent.host import pod_dir
from node_agent.pods.status import evicted_status
from node_agent.pods.worker import PodWorker
from node_agent.stats.collector import task_count, working_set_bytes
from node_agent.stats.disk import DiskUsageScanner, directory_usage
from node_agent.volumes.paths import volume_dir
from tests.testbed.docker.fake import AgentKilled
from tests.testbed.node.events import FakeEventRecorder
from tests.unit.node_agent.examples import NOW, UID, pod
from tests.unit.node_agent.world import World, world

POLITE = """image: toolbox, command: ["trap 'exit 7' TERM"]"""
PAIR = pod(f"[{{name: main, {POLITE}}}, {{name: side, {POLITE}}}]", "  volumes: [{name: v, emptyDir: {}}]")
LIMITED = pod(
    f"[{{name: main, {POLITE}, resources: {{limits: {{ephemeral-storage: 4Mi}}}}}}]",
    "  volumes: [{name: v, emptyDir: {sizeLimit: 64Ki}}]",
)
GONE = {"containers": [], "inside": [], "attached": [], "directories": [], "phase": "Failed", "restarts": [0, 0]}


def is_cleared(here: World) -> bool:
    return not here.docker.held and not here.switch.attached and not here.left()["directories"]


async def test_agent_killed_during_eviction_leaves_nothing_of_the_pod(tmp_path: Path) -> None:
    calls, number = 100, 1
    while number <= calls:
        async with world(tmp_path / str(number)) as here:
            await here.live(PAIR, lambda: here.status.phase == "Running" and len(here.restarts()) == 2)
            before = here.docker.calls
            here.status = evicted_status(here.status, "words", NOW)
            here.docker.die_after = before + number
            with contextlib.suppress(AgentKilled):
                await here.live(PAIR, lambda: is_cleared(here))
                calls = here.docker.calls - before
            here.docker.die_after = None
            await here.live(PAIR, lambda: is_cleared(here))
            assert here.left() == GONE, f"killed after call {number}"
            assert (here.status.reason, here.status.message) == ("Evicted", "words")
            assert all(row.state.terminated is not None for row in here.status.container_statuses)
            assert here.status.conditions[-1].type == "DisruptionTarget"
            assert not here.gone, "the object stays"
        number += 1
    assert calls < 100


@dataclass(frozen=True, slots=True)
class Evicting:
    """An eviction manager, the pressure that it has found, and its events about the node."""

    manager: EvictionManager
    node_pressure: NodePressure
    recorder: FakeEventRecorder

    @property
    def pressure(self) -> Pressure:
        return self.node_pressure.current

    @property
    def events(self) -> list[str]:
        return [f"{reason}: {message}" for reason, message, _ in self.recorder.events]


@asynccontextmanager
async def evicting(here: World, worker: PodWorker, hard: str = "", **more: Any) -> AsyncIterator[Evicting]:
    """A worker whose pod runs, and who may send it away; at the end an evicted pod is cleared away."""

    async def reclaim() -> None:
        here.taken.add("reclaimed")

    def told() -> None:
        here.taken.add("told")

    recorder = FakeEventRecorder()
    pressure = NodePressure()

    state = str(Path(here.host.pods_dir).parent)
    settings = Settings(node_name="n", node_ip="1.2.3.4", state_dir=state, eviction_hard=hard, **more)
    events = asyncio.create_task(here.docker.watch_events(lambda _: worker.wake(), worker.wake))
    running = asyncio.create_task(worker.run())
    try:
        async with asyncio.timeout(20):
            while here.status.phase != "Running":
                await asyncio.sleep(0.001)
            pods = {UID: worker}
            evictor = EvictionManager(
                settings=settings,
                docker=here.docker,
                disks=DiskUsageScanner(here.docker, here.host),
                evictable=lambda: pods,
                reclaim=(reclaim,),
                pressure=pressure,
                events=recorder,
            )
            evictor.changed.add(told)
            yield Evicting(evictor, pressure, recorder)
            while worker.pod.status.reason == "Evicted" and not (worker.cleaned_up and is_cleared(here)):
                await asyncio.sleep(0.001)
    finally:
        for task in (events, running):
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task


async def test_pod_over_its_ephemeral_storage_limit_is_evicted(tmp_path: Path) -> None:
    async with world(tmp_path / "w") as here, evicting(here, here.worker(LIMITED)) as evictor:
        await evictor.manager.enforce_disk_limits()
        assert here.status.phase == "Running"
        main = here.docker.running("main")
        assert main is not None
        here.docker.written[main.id] = 5 << 20
        await evictor.manager.enforce_disk_limits()
        assert (here.status.phase, here.status.reason) == ("Failed", "Evicted")
        assert here.status.message == "Pod ephemeral local storage usage exceeds the total limit of containers 4Mi. "
    assert here.left()["phase"] == "Failed"
    assert ("main", "SIGTERM") in here.docker.signals


def fill(volume: Path) -> None:
    (volume / "data").write_bytes(b"x" * (128 << 10))


async def test_volume_contents_are_measured(tmp_path: Path) -> None:
    async with world(tmp_path / "w") as here, evicting(here, here.worker(LIMITED)) as evictor:
        fill(Path(volume_dir(pod_dir(here.host, UID), LIMITED.spec.volumes[0])))
        await evictor.manager.enforce_disk_limits()
        assert here.status.message == 'Usage of EmptyDir volume "v" exceeds the limit "64Ki". '


@pytest.mark.parametrize("signal", SIGNALS)
async def test_pressure_is_reported_and_a_pod_is_evicted(tmp_path: Path, signal: str) -> None:
    async with world(tmp_path / "w") as here, evicting(here, here.worker(LIMITED), f"{signal}<100%") as evictor:
        await evictor.manager.synchronize()
        assert here.status.reason == "Evicted"
        assert here.status.message.startswith(f"The node was low on resource: {SIGNALS[signal][0]}. Threshold")
        assert evictor.pressure != Pressure()
        assert "told" in here.taken
        assert f"EvictionThresholdMet: Attempting to reclaim {SIGNALS[signal][0]}" in evictor.events
        assert ("reclaimed" in here.taken) == evictor.pressure.disk


async def test_soft_eviction_waits_and_keeps_the_pods_grace_period(tmp_path: Path) -> None:
    soft = {"eviction_soft": "memory.available<100%", "eviction_soft_grace_period": "memory.available=0.1s"}
    slow = replace(LIMITED, spec=replace(LIMITED.spec, termination_grace_period_seconds=7))
    async with (
        world(tmp_path / "w") as here,
        evicting(here, here.worker(slow), eviction_max_pod_grace_period=5, **soft) as evictor,
    ):
        await evictor.manager.synchronize()
        assert here.status.phase == "Running"
        assert evictor.pressure == Pressure(memory=True)
        loop = asyncio.create_task(evictor.manager.loops[0].run())
        while here.status.reason != "Evicted":
            await asyncio.sleep(0.001)
        loop.cancel()
    assert ("main", "SIGTERM") in here.docker.signals


async def test_nothing_is_evicted_without_pressure(tmp_path: Path) -> None:
    async with world(tmp_path / "w") as here, evicting(here, here.worker(LIMITED), "memory.available<1") as evictor:
        await evictor.manager.synchronize()
        assert here.status.phase == "Running"
        assert evictor.pressure == Pressure()
        assert not here.taken
        assert not evictor.events


def test_host_signals_are_observed(tmp_path: Path) -> None:
    seen = observe_signals(str(tmp_path), "/")
    assert seen.keys() == SIGNALS.keys()
    assert all(0 <= one.available <= one.capacity and one.capacity for one in seen.values())
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
