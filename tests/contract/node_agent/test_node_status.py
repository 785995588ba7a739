"""Node status and lease, written to a real master with a short grace period."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from dataclasses import replace as changed
from datetime import UTC, datetime
from pathlib import Path

import pytest
from msgspec.structs import replace

from api.client.bootstrap import node_kubeconfig
from api.client.client import Client, NotFound
from api.client.kubeconfig import Kubeconfig
from api.core.node import NODE_LEASES, Lease, Node, Taint
from api.meta.types import Condition
from node_agent.eviction.thresholds import Pressure
from node_agent.node.lease import LeaseController
from node_agent.node.node_status import NodeHealth, NodeIdentity
from node_agent.node.registered_node import RegisteredNode
from tests.testbed.apiserver.process import ApiServer
from tests.testbed.node.events import FakeEventRecorder
from tests.unit.node_agent.examples import HOST_FACTS

SECONDS = 20.0
SELF = NodeIdentity(name="n1", address="10.245.2.3", max_pods=110, taints=(Taint(key="new", effect="NoSchedule"),))
THEIRS = Condition(type="NetworkUnavailable", status="False", reason="Routes", message="made")


@dataclass
class Cluster:
    server: ApiServer
    admin: Client
    node: Client
    state_dir: Path
    recorder: FakeEventRecorder = field(default_factory=FakeEventRecorder)

    def registered_node(self) -> RegisteredNode:
        return RegisteredNode(self.node, SELF, self.state_dir, self.recorder)

    @property
    def events(self) -> list[tuple[str, str]]:
        assert {(about.kind, about.uid) for about in self.recorder.objects} <= {("Node", "n1")}
        return [(reason, message) for reason, message, _ in self.recorder.events]

    async def shown(self) -> Node:
        return await self.admin.get(Node, "n1")

    async def is_well(self) -> bool:
        """Return whether the node has no taint of the master."""
        return (await self.shown()).spec.taints == SELF.taints

    async def lease(self) -> Lease | None:
        try:
            return await self.admin.get(Lease, "n1", NODE_LEASES)
        except NotFound:
            return None


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ApiServer]:
    api_server = ApiServer(tmp_path, "--node-monitor-grace-seconds", "2")
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
            yield Cluster(server, admin, node, tmp_path)


@asynccontextmanager
async def running(*work: Awaitable[None]) -> AsyncIterator[None]:
    tasks = [asyncio.ensure_future(coroutine) for coroutine in work]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task


async def until(holds: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(SECONDS):
        while not await holds():
            await asyncio.sleep(0.02)


def now() -> datetime:
    return datetime.now(UTC)


def ready(node: Node) -> str:
    return next(condition.status for condition in node.status.conditions if condition.type == "Ready")


async def test_node_registers_and_writes_only_changes(cluster: Cluster) -> None:
    node_object = cluster.registered_node()
    async with running(node_object.informer.run()):
        await node_object.update(HOST_FACTS, NodeHealth("starting"), now())
        first = await cluster.shown()
        assert (ready(first), first.spec.taints[:1]) == ("False", SELF.taints)
        await node_object.update(HOST_FACTS, NodeHealth(""), now())
        await until(cluster.is_well)
        second = await cluster.shown()
        assert ready(second) == "True"
        await node_object.update(HOST_FACTS, NodeHealth(""), now())
        assert await cluster.shown() == second
        await node_object.update(HOST_FACTS, NodeHealth("", Pressure(disk=True)), now())
        assert await cluster.shown() != second
    begun = ["Starting", "NodeHasSufficientMemory", "NodeHasNoDiskPressure", "NodeHasSufficientPID"]
    assert [reason for reason, _ in cluster.events] == [*begun, "NodeReady", "NodeHasDiskPressure"]


async def test_node_status_keeps_foreign_fields_and_corrects_own_ones(cluster: Cluster) -> None:
    node_object = cluster.registered_node()
    async with running(node_object.informer.run()):
        await node_object.update(HOST_FACTS, NodeHealth(""), now())
        node = await cluster.shown()
        others = replace(node.status, conditions=(THEIRS,), addresses=())
        await cluster.admin.update_status(replace(node, status=others))

        async def mended() -> bool:
            await node_object.update(HOST_FACTS, NodeHealth(""), now())
            stored = await cluster.shown()
            return {condition.type for condition in stored.status.conditions} >= {"Ready", THEIRS.type} and bool(
                stored.status.addresses
            )

        await until(mended)
        assert THEIRS in (await cluster.shown()).status.conditions


async def test_restarted_agent_finds_its_node_and_reports_a_reboot(cluster: Cluster) -> None:
    await cluster.registered_node().update(HOST_FACTS, NodeHealth(""), now())
    before = await cluster.shown()
    await cluster.admin.patch(Node, "n1", "", {"metadata": {"labels": {"kubernetes.io/arch": "vax", "disk": "ssd"}}})
    await cluster.registered_node().update(changed(HOST_FACTS, boot_id="b2"), NodeHealth(""), now())
    after = await cluster.shown()
    assert after.metadata.uid == before.metadata.uid
    assert (after.metadata.labels["kubernetes.io/arch"], after.metadata.labels["disk"]) == ("amd64", "ssd")
    assert after.status.node_info is not None
    assert after.status.node_info.boot_id == "b2"
    assert ("Rebooted", "Node n1 has been rebooted, boot id: b2") in cluster.events


async def test_deleted_node_registers_again(cluster: Cluster) -> None:
    node_object = cluster.registered_node()
    async with running(node_object.informer.run()):
        await node_object.update(HOST_FACTS, NodeHealth(""), now())
        first = (await cluster.shown()).metadata.uid
        await until(lambda: _holds(bool(node_object.informer.items)))
        await cluster.admin.delete(Node, "n1")
        await until(lambda: _holds(not node_object.informer.items))
        await node_object.update(HOST_FACTS, NodeHealth(""), now())
        assert (await cluster.shown()).metadata.uid != first


async def _holds(value: bool) -> bool:
    return value


async def test_node_is_ready_while_it_renews_its_lease(cluster: Cluster) -> None:
    node_object = cluster.registered_node()
    lease_controller = LeaseController(cluster.node, SELF, node_object, 0.2)
    async with running(node_object.informer.run()):
        async with running(lease_controller.loop.run()):
            await node_object.update(HOST_FACTS, NodeHealth(""), now())
            uid = (await cluster.shown()).metadata.uid

            async def renewed_often() -> bool:
                lease = await cluster.lease()
                return lease is not None and int(lease.metadata.resource_version) > begin + 15

            begin = int((await cluster.shown()).metadata.resource_version)
            await until(renewed_often)  # Three seconds of renewals, against a patience of two.
            assert ready(await cluster.shown()) == "True"
            lease = await cluster.lease()
            assert lease is not None
            assert [owner.uid for owner in lease.metadata.owner_references] == [uid]
        await until(lambda: _is("Unknown", cluster))
        await node_object.update(HOST_FACTS, NodeHealth(""), now())
        await until(lambda: _is("True", cluster))
    await cluster.admin.delete(Node, "n1")

    async def gone() -> bool:
        return await cluster.lease() is None

    await until(gone)


async def _is(status: str, cluster: Cluster) -> bool:
    return ready(await cluster.shown()) == status
