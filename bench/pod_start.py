"""Pods on one node with its own Docker, from binding to running, compared with the time of Docker alone."""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from itertools import count

import psutil

from api.client.client import Client
from api.client.kubeconfig import Kubeconfig
from api.codec import manifest
from api.core.node import Namespace
from api.core.pod import Pod
from api.meta.types import ObjectMeta
from bench.baseline_docker import BarePods, best_in_flight
from bench.measurement import Budget, Measure, Measurement, Progress, at_floor
from bench.pod_timestamps import Docked, Watched
from tests.testbed.node.single_node import NODE, SingleNode

IMAGE = "podlane/pause"
"""It waits, and ends as soon as it is asked to."""

PAIR, RUN, BARE = "Docker: 2 containers", "docker run -d", "Docker, bare client"

PROJECT = "bench"
POD = f"""\
apiVersion: v1
kind: Pod
metadata: {{name: NAME, namespace: {PROJECT}}}
spec:
  nodeName: {NODE}
  containers: [{{name: main, image: {IMAGE}, imagePullPolicy: IfNotPresent}}]
"""
AGENT = ("--heartbeat-seconds=10",)


@dataclass(frozen=True, slots=True)
class Size:
    """How many pods start in turn, how many at once, and how often; at last `crowds[-1] - 1` pods start at once. With
    each number of pods in `crowds`, the agent settles and is idle.
    """

    rounds: int
    burst: int
    bursts: int
    crowds: tuple[int, ...]
    idle_seconds: float
    settle_seconds: float


FULL = Size(rounds=30, burst=40, bursts=3, crowds=(0, 10, 50, 100), idle_seconds=30, settle_seconds=5)
SMALLEST = Size(rounds=1, burst=2, bursts=1, crowds=(0, 2), idle_seconds=0.1, settle_seconds=0)


def measure(size: Size, progress: Progress) -> list[Measurement]:
    """Measure one pod at a time, an idle agent with an increasing number of pods, and many pods at once."""
    with SingleNode() as node:
        node.agent(*AGENT)
        return asyncio.run(_measure(size, node, progress))


MEASURE = Measure("pods from binding to running, beside Docker alone, and the agent's memory", measure, FULL, SMALLEST)


async def _measure(size: Size, node: SingleNode, progress: Progress) -> list[Measurement]:
    async with _pods(node) as pods:
        progress(f"{size.rounds} pods in turn with their containers made by a bare client, and with docker run")
        figures = await _in_turn(pods, size.rounds)
        node.agent(*AGENT)
        figures += await _idle(size, pods, progress)
        return figures + await _bursts(size, pods, progress)


class Pods:
    """Makes pods and takes them away; names are never used again."""

    def __init__(self, node: SingleNode, client: Client, docked: Docked) -> None:
        self.node = node
        self.docked = docked
        self.watched = Watched(client)
        self._client = client
        self._numbers = count(1)

    async def make(self, many: int) -> list[str]:
        """So many at once; they run when this returns."""
        names = [f"pod-{next(self._numbers)}" for _ in range(many)]
        await asyncio.gather(*(self._client.create(_pod(name)) for name in names))
        for name in names:
            await self.watched.wait(name, "Running")
        return names

    async def drop(self, names: list[str]) -> None:
        """Delete pods, and wait until nothing is left of them."""
        await asyncio.gather(*(self._client.delete(Pod, name, PROJECT) for name in names))
        for name in names:
            await self.watched.wait(name, "gone")

    async def ran(self, name: str) -> float:
        """Return the start of the pod's container, in seconds since 1970."""
        return await asyncio.to_thread(self.docked.wait, name)

    @contextlib.asynccontextmanager
    async def like_ours(self) -> AsyncIterator[BarePods]:
        """Yield a bare client that creates the containers of a Podlane pod."""
        (name,) = await self.make(1)
        bare = await asyncio.to_thread(BarePods, self.node.docker_socket, self.docked, name)
        try:
            yield bare
        finally:
            await asyncio.to_thread(bare.close)
            await self.drop([name])


@contextlib.asynccontextmanager
async def _pods(node: SingleNode) -> AsyncIterator[Pods]:
    async with Client(Kubeconfig.load(str(node.root / "admin"))) as client:
        await client.create(Namespace(metadata=ObjectMeta(name=PROJECT)))
        with Docked(node.docker_socket) as docked:
            pods = Pods(node, client, docked)
            following = asyncio.create_task(pods.watched.follow())
            try:
                await pods.drop(await pods.make(1))  # the agent is up, images and threads are warm
                yield pods
            finally:
                following.cancel()


def _pod(name: str) -> Pod:
    (document,) = manifest.parse_manifest(POD.replace("NAME", name))
    if not isinstance(document.obj, Pod):
        raise TypeError(f"no pod: {document.errors}")
    return document.obj


async def _in_turn(pods: Pods, rounds: int) -> list[Measurement]:
    ours, reported, pair, alone = [], [], [], []
    async with pods.like_ours() as bare:
        for _ in range(rounds):
            (name,) = await pods.make(1)
            bound = await pods.watched.wait(name, "bound")
            ours.append((await pods.ran(name) - bound) * 1000)
            reported.append((await pods.watched.wait(name, "Running") - bound) * 1000)
            await pods.drop([name])
            pair.append(await asyncio.to_thread(_pair, bare))
            alone.append(await asyncio.to_thread(_docker_run, pods.node))
    over = tuple(duration - floor for duration, floor in zip(ours, pair, strict=True))
    return [
        Measurement("pod start, bound to running", "ms", tuple(ours), None, PAIR, tuple(pair)),
        Measurement("pod start, over Docker's own time", "ms", over, Budget(20)),
        Measurement("pod start, beside one docker run", "ms", tuple(ours), peer=RUN, peer_samples=tuple(alone)),
        Measurement("pod start, bound to Running on the master", "ms", tuple(reported), None, PAIR, tuple(pair)),
    ]


def _pair(bare: BarePods) -> float:
    begin = time.time()
    took = (bare.make("pair") - begin) * 1000
    bare.remove()
    return took


def _docker_run(node: SingleNode) -> float:
    command = ["docker", "-H", f"unix://{node.docker_socket}", "run", "-d", "--network=none", IMAGE]
    begin = time.perf_counter()
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    took = (time.perf_counter() - begin) * 1000
    node.docker("rm", "-f", done.stdout.strip())
    return took


async def _idle(size: Size, pods: Pods, progress: Progress) -> list[Measurement]:
    """Measure a new idle agent with an increasing number of pods."""
    figures: list[Measurement] = []
    names: list[str] = []
    agent = psutil.Process(pods.node.agent_pid)
    for crowd in size.crowds:
        names += await pods.make(crowd - len(names))
        progress(f"{size.idle_seconds} s of idleness with {crowd} pods")
        await asyncio.sleep(size.settle_seconds)
        before = _busy(agent)
        await asyncio.sleep(size.idle_seconds)
        busy = (_busy(agent) - before) / size.idle_seconds * 100
        memory, last = agent.memory_full_info(), crowd == size.crowds[-1]
        figures += [
            Measurement(
                f"podlane-node-agent, resident, {crowd} pods", "MB", (memory.rss / 1e6,), Budget(70) if last else None
            ),
            Measurement(f"podlane-node-agent, its share (PSS), {crowd} pods", "MB", (memory.pss / 1e6,)),
            Measurement(
                f"podlane-node-agent, idle, {crowd} pods", "% of a core", (busy,), Budget(0.2) if last else None
            ),
        ]
    await pods.drop(names)
    return figures


def _busy(process: psutil.Process) -> float:
    """Seconds of a core that it has used, and the programs that it has run."""
    times = process.cpu_times()
    return float(times.user + times.system + times.children_user + times.children_system)


async def _bursts(size: Size, pods: Pods, progress: Progress) -> list[Measurement]:
    figures = []
    async with pods.like_ours() as bare:
        in_flight = await asyncio.to_thread(best_in_flight, bare, size.burst // 2)
        floor = f"{BARE}, {in_flight} in flight"
        for many, times, budget in ((size.burst, size.bursts, at_floor(0.9)), (size.crowds[-1] - 1, 1, None)):
            ours, reported, bares = [], [], []
            for number in range(times):
                progress(f"{many} pods at once, {number + 1} of {times}; beside it {floor}")
                ran, running = await _burst(pods, many)
                ours.append(ran)
                reported.append(running)
                bares.append(await asyncio.to_thread(bare.rate, many, in_flight))
            figures += [
                Measurement(f"{many} pods at once, running", "pods/s", tuple(ours), budget, floor, tuple(bares)),
                Measurement(
                    f"{many} pods at once, Running on the master", "pods/s", tuple(reported), None, floor, tuple(bares)
                ),
            ]
    rss = psutil.Process(pods.node.agent_pid).memory_info().rss / 1e6
    return [*figures, Measurement("podlane-node-agent, resident, after these bursts", "MB", (rss,))]


async def _burst(pods: Pods, many: int) -> tuple[float, float]:
    """Pods a second, until the last container ran and until the master showed the last pod Running."""
    names = await pods.make(many)
    begin = min([await pods.watched.wait(name, "bound") for name in names])
    ran = max([await pods.ran(name) for name in names])
    running = max([await pods.watched.wait(name, "Running") for name in names])
    await pods.drop(names)
    return many / (ran - begin), many / (running - begin)
