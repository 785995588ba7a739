"""Statuses of pods, written to a real master."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from msgspec.structs import replace

from api.client.bootstrap import node_kubeconfig
from api.client.client import Client, Event, NotFound
from api.client.kubeconfig import Kubeconfig
from api.core.node import Node
from api.core.pod import (
    Container,
    ContainerState,
    ContainerStateRunning,
    ContainerStatus,
    HostIP,
    Pod,
    PodIP,
    PodSpec,
    PodStatus,
)
from api.meta.types import Condition, ObjectMeta
from node_agent.pods.status_manager import StatusManager
from tests.testbed.apiserver.process import ApiServer

SECONDS = 20.0
GATE = Condition(type="example.com/lb", status="True")
SPEC = PodSpec(node_name="n1", containers=(Container(name="main", image="i"),))


def status(phase: str = "Running", address: str = "10.128.0.2", reason: str = "") -> PodStatus:
    kinds = ("PodReadyToStartContainers", "Initialized", "Ready", "ContainersReady", "PodScheduled")
    since = "2026-01-01T00:00:00Z"
    conditions = tuple(Condition(type=kind, status="True", reason=reason, last_transition_time=since) for kind in kinds)
    running = ContainerState(running=ContainerStateRunning(started_at=since))
    return PodStatus(
        phase=phase,
        conditions=conditions,
        reason=reason,
        host_ip="10.245.2.3",
        host_ips=(HostIP(ip="10.245.2.3"),),
        pod_ip=address,
        pod_ips=(PodIP(ip=address),) if address else (),
        container_statuses=(ContainerStatus(name="main", state=running, ready=True),),
        qos_class="BestEffort",
    )


@dataclass
class Cluster:
    """A master with one pod on node n1, and the node's writer."""

    server: ApiServer
    admin: Client
    node: Client
    shown: dict[str, Pod] = field(default_factory=dict)

    def writer(self) -> StatusManager:
        return StatusManager(self.node, lambda: self.shown)

    async def make(self) -> Pod:
        pod = await self.admin.create(Pod(metadata=ObjectMeta(name="web", namespace="default"), spec=SPEC))
        self.shown[pod.metadata.uid] = pod
        return pod

    async def pod(self) -> Pod | None:
        try:
            return await self.admin.get(Pod, "web", "default")
        except NotFound:
            return None

    async def until(self, holds: Callable[[Pod | None], bool]) -> Pod | None:
        pod = await self.pod()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(SECONDS):
                while not holds(pod):
                    await asyncio.sleep(0.02)
                    pod = await self.pod()
        assert holds(pod), pod
        return pod


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ApiServer]:
    api_server = ApiServer(tmp_path)
    api_server.start()
    yield api_server
    api_server.stop()


@pytest.fixture
async def cluster(server: ApiServer, tmp_path: Path) -> AsyncIterator[Cluster]:
    config = Kubeconfig.load(server.kubeconfig)
    async with Client(config) as admin:
        path = tmp_path / "node"
        path.write_text(await node_kubeconfig(admin, config, "n1"))
        async with Client(Kubeconfig.load(path)) as node:
            await node.create(Node(metadata=ObjectMeta(name="n1")))
            yield Cluster(server, admin, node)


@asynccontextmanager
async def running(writer: StatusManager) -> AsyncIterator[None]:
    task = asyncio.create_task(writer.loop.run())
    try:
        yield
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


async def test_pod_status_patch_writes_own_fields_and_removes_stale_ones(cluster: Cluster) -> None:
    pod = await cluster.make()
    gated = replace(pod, status=replace(pod.status, conditions=(GATE,), nominated_node_name="n9"))
    await cluster.admin.update_status(gated)
    writer = cluster.writer()
    async with running(writer):
        writer.set_status(replace(pod, status=status("Pending", "10.128.0.9", reason="FailedCreatePodSandBox")))
        await cluster.until(lambda actual: actual is not None and actual.status.pod_ip == "10.128.0.9")
        writer.set_status(replace(pod, status=status()))
        actual = await cluster.until(lambda actual: actual is not None and actual.status.phase == "Running")
    assert actual is not None
    assert replace(actual.status, conditions=()) == replace(status(), conditions=(), nominated_node_name="n9")
    assert sorted(actual.status.conditions, key=lambda condition: condition.type) == sorted(
        (*status().conditions, GATE), key=lambda condition: condition.type
    )


async def test_overwritten_pod_status_is_corrected(cluster: Cluster) -> None:
    pod = await cluster.make()
    writer = cluster.writer()
    async with running(writer):
        writer.set_status(replace(pod, status=status()))
        actual = await cluster.until(lambda actual: actual is not None and actual.status.phase == "Running")
        assert actual is not None
        cluster.shown = {pod.metadata.uid: actual}
        changed = await cluster.admin.update_status(replace(actual, status=replace(actual.status, phase="Failed")))
        cluster.shown = {pod.metadata.uid: changed}
        writer.loop.wake()
        await cluster.until(lambda actual: actual is not None and actual.status.phase == "Running")


async def test_unchanged_pod_status_is_not_written_again(cluster: Cluster) -> None:
    pod = await cluster.make()
    await cluster.admin.update_status(replace(pod, status=replace(pod.status, conditions=(GATE,))))
    writer = cluster.writer()
    async with running(writer):
        writer.set_status(replace(pod, status=status()))
        actual = await cluster.until(lambda actual: actual is not None and actual.status.phase == "Running")
        assert actual is not None
        cluster.shown = {pod.metadata.uid: actual}
        other = await cluster.admin.create(Pod(metadata=ObjectMeta(name="other", namespace="default"), spec=SPEC))
        cluster.shown[other.metadata.uid] = other
        writer.set_status(replace(other, status=status("Failed")))
        async with asyncio.timeout(SECONDS):
            while (await cluster.admin.get(Pod, "other", "default")).status.phase != "Failed":
                await asyncio.sleep(0.02)
    assert await cluster.pod() == actual


async def test_final_pod_status_is_written_before_deletion(cluster: Cluster) -> None:
    pod = await cluster.make()
    watch = cluster.admin.watch(Pod, pod.metadata.resource_version)
    await cluster.admin.delete(Pod, "web", "default", grace_seconds=30)
    writer = cluster.writer()
    async with running(writer), asyncio.timeout(SECONDS):
        writer.delete_pod(pod)
        writer.set_status(replace(pod, status=status("Failed")))
        last = [event async for event in _until_deleted(watch)][-1]
    assert last.object.status.phase == "Failed"
    assert last.object.status.conditions == status().conditions


async def _until_deleted(watch: AsyncIterator[Event[Pod]]) -> AsyncIterator[Event[Pod]]:
    async for event in watch:
        yield event
        if event.type == "DELETED":
            return


async def test_newest_status_and_deletion_are_sent_once_the_master_returns(cluster: Cluster) -> None:
    pod = await cluster.make()
    await cluster.admin.delete(Pod, "web", "default", grace_seconds=30)
    cluster.server.stop()
    writer = cluster.writer()
    async with running(writer):
        writer.set_status(replace(pod, status=status("Running")))
        writer.set_status(replace(pod, status=status("Failed")))
        writer.delete_pod(pod)
        async with asyncio.timeout(SECONDS):
            while not writer.loop.failures:
                await asyncio.sleep(0.02)
        cluster.server.start()
        await cluster.until(lambda actual: actual is None)


async def test_pod_is_not_deleted_while_its_status_cannot_be_written(cluster: Cluster) -> None:
    pod = await cluster.make()
    await cluster.admin.delete(Pod, "web", "default", grace_seconds=30)
    writer = cluster.writer()
    bad = replace(status("Failed"), conditions=(Condition(type="Ready", status="True", observed_generation="x"),))  # type: ignore[arg-type]
    async with running(writer):
        writer.set_status(replace(pod, status=bad))
        writer.delete_pod(pod)
        async with asyncio.timeout(SECONDS):
            while writer.loop.failures < 2:
                await asyncio.sleep(0.02)
        assert await cluster.pod() is not None
        writer.set_status(replace(pod, status=status("Failed")))
        await cluster.until(lambda actual: actual is None)


async def test_another_pod_of_the_same_name_is_not_changed(cluster: Cluster) -> None:
    pod = await cluster.make()
    await cluster.admin.delete(Pod, "web", "default", grace_seconds=0)
    successor = await cluster.make()
    writer = cluster.writer()
    async with running(writer):
        writer.set_status(replace(pod, status=status("Failed")))
        writer.delete_pod(pod)
        async with asyncio.timeout(SECONDS):
            while writer.is_deleting(pod.metadata.uid):
                await asyncio.sleep(0.02)
    assert await cluster.pod() == successor
