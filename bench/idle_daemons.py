"""Processor time and memory of the three daemons while the pods of a node run, and after many others came and went."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass

import psutil

from api.client.client import Client
from api.client.kubeconfig import Kubeconfig
from api.core.node import Namespace
from api.core.pod import Container, Pod, PodSpec
from api.meta.types import ObjectMeta
from bench.docker_node import docker_node
from bench.measurement import Budget, Measure, Measurement, Progress, at_floor
from bench.pod_timestamps import Watched
from bench.process_time import cpu_seconds
from tests.testbed.netns.cluster import NetnsCluster

PROJECT, IMAGE = "bench", "podlane/pause"
MEMORY_BUDGETS = {"podlane-master": Budget(60), "podlane-sdn": Budget(65), "podlane-node-agent": Budget(70)}
CPU_BUDGET = Budget(0.2)
BURST_BUDGET = at_floor(1.1)


@dataclass(frozen=True, slots=True)
class Size:
    """How many pods the node has, how long it is then idle, how many pods come and go at once, and how long after them
    the memory is measured.
    """

    pods: int
    idle_seconds: float
    burst: int
    settle_seconds: float


FULL = Size(pods=100, idle_seconds=30, burst=200, settle_seconds=60)
SMALLEST = Size(pods=1, idle_seconds=0.1, burst=1, settle_seconds=0)


def measure(size: Size, progress: Progress) -> list[Measurement]:
    """Measure processor time and memory with pods, then the memory after a burst of others."""
    with docker_node(max_pods=size.pods + size.burst) as cluster:
        return asyncio.run(_measure(size, cluster, progress))


MEASURE = Measure("processor time and memory of master, sdn and agent, idle and after a burst", measure, FULL, SMALLEST)


async def _measure(size: Size, cluster: NetnsCluster, progress: Progress) -> list[Measurement]:
    (node,) = cluster.lab.nodes
    daemons = {
        "podlane-master": cluster.process("master"),
        "podlane-sdn": cluster.process(f"{node.name} sdn"),
        "podlane-node-agent": cluster.process(f"{node.name} node-agent"),
    }
    async with _pods(cluster, node.name) as pods:
        progress(f"{size.pods} pods")
        await pods.start(_names("pod", size.pods))
        progress(f"idle for {size.settle_seconds} s, and then measured for {size.idle_seconds} s")
        await asyncio.sleep(size.settle_seconds)
        before = {name: _used_seconds(process) for name, process in daemons.items()}
        await asyncio.sleep(size.idle_seconds)
        busy = {
            name: (_used_seconds(process) - before[name]) / size.idle_seconds * 100 for name, process in daemons.items()
        }
        idle = _resident(daemons)
        progress(f"{size.burst} pods more at once, and their end")
        burst = _names("burst", size.burst)
        await pods.start(burst)
        await pods.delete(burst)
        progress(f"idle for {size.settle_seconds} s")
        await asyncio.sleep(size.settle_seconds)
        after = _resident(daemons)
    with_pods = f"{size.pods} pods"
    return [
        *(
            Measurement(f"{name}, idle, {with_pods}", "% of a core", (share,), CPU_BUDGET)
            for name, share in busy.items()
        ),
        *(
            Measurement(f"{name}, resident, {with_pods}", "MB", (memory,), MEMORY_BUDGETS[name])
            for name, memory in idle.items()
        ),
        *(
            Measurement(
                f"{name}, resident, {with_pods}, {size.settle_seconds} s after a burst of {size.burst}",
                "MB",
                (memory,),
                BURST_BUDGET,
                "before the burst",
                (idle[name],),
            )
            for name, memory in after.items()
        ),
    ]


def _names(prefix: str, count: int) -> list[str]:
    return [f"{prefix}-{number}" for number in range(count)]


def _used_seconds(process: psutil.Process) -> float:
    """Return the processor time of a process and of the programs that it has run."""
    children = process.cpu_times()
    return cpu_seconds(process.pid) + float(children.children_user + children.children_system)


def _resident(daemons: Mapping[str, psutil.Process]) -> dict[str, float]:
    """Return megabytes."""
    return {name: process.memory_info().rss / 1e6 for name, process in daemons.items()}


class _Pods:
    """Starts and deletes pods of one node."""

    def __init__(self, client: Client, watched: Watched, node: str) -> None:
        self._client = client
        self._watched = watched
        self._node = node

    async def start(self, names: list[str]) -> None:
        """Create pods at once, and wait until all run."""
        await asyncio.gather(*(self._client.create(self._pod(name)) for name in names))
        for name in names:
            await self._watched.wait(name, "Running")

    async def delete(self, names: list[str]) -> None:
        """Delete pods at once, and wait until nothing is left of them."""
        await asyncio.gather(*(self._client.delete(Pod, name, PROJECT) for name in names))
        for name in names:
            await self._watched.wait(name, "gone")

    def _pod(self, name: str) -> Pod:
        container = Container(name="main", image=IMAGE, image_pull_policy="IfNotPresent")
        return Pod(
            metadata=ObjectMeta(name=name, namespace=PROJECT),
            spec=PodSpec(node_name=self._node, containers=(container,)),
        )


@contextlib.asynccontextmanager
async def _pods(cluster: NetnsCluster, node: str) -> AsyncIterator[_Pods]:
    async with Client(Kubeconfig.load(cluster.lab.kubeconfig)) as client:
        await client.create(Namespace(metadata=ObjectMeta(name=PROJECT)))
        watched = Watched(client)
        following = asyncio.create_task(watched.follow())
        try:
            yield _Pods(client, watched, node)
        finally:
            following.cancel()
