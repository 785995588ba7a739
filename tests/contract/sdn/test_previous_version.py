"""Flows and groups that the previous version has left on a switch become today's in one bundle."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from ipaddress import IPv4Address

import pytest

from sdn.drivers.openflow import client
from sdn.drivers.openflow.bridge_state import DiffCount
from sdn.drivers.openflow.client import OpenFlowClient
from sdn.model.flow import Flow, FlowSet
from sdn.pipeline.compiler import compile_flows
from sdn.pipeline.flows import BRIDGE_LAYOUT, Partition
from sdn.pipeline.service import ServiceFlows
from sdn.topology import Pod
from tests.testbed.trace.dummy_switch import DummySwitch
from tests.testbed.wait import DEADLINE_SECONDS
from tests.unit.sdn.examples import NODE, web
from tests.unit.sdn.pipeline.examples import EMPTY_NETWORK, previous_flows, previous_group, replaced_by_the_proxy

NETWORK = FlowSet(compile_flows(replace(EMPTY_NETWORK, pods=frozenset({Pod(16, IPv4Address("10.128.0.2"), 10)}))))
STICKY = replace(web("10.128.0.4"), affinity_timeout_seconds=60, cluster_ip=IPv4Address("172.30.0.2"), node_port=0)
STICKY = replace(STICKY, key=replace(STICKY.key, service="sticky"))
SERVICES = ServiceFlows(NODE).sync((web("10.128.0.2", "10.128.0.3"), STICKY))
PREVIOUS_LAYOUT = replace(BRIDGE_LAYOUT, previous_version_flow=Flow(200, 0, next(iter(NETWORK.flows)).match))


@pytest.fixture
def switch() -> Iterator[DummySwitch]:
    with DummySwitch() as running:
        for partition, flows in ((Partition.NODE, NETWORK), (Partition.SERVICE, SERVICES)):
            previous = FlowSet(previous_flows(flows.flows), frozenset(map(previous_group, flows.groups)))
            asyncio.run(write_previous(running, partition, previous))
        yield running


async def write_previous(switch: DummySwitch, partition: Partition, flows: FlowSet) -> None:
    async with connected(switch, previous=True) as driver:
        await driver.sync(partition, flows)


@contextlib.asynccontextmanager
async def connected(switch: DummySwitch, *, previous: bool = False) -> AsyncIterator[OpenFlowClient]:
    layout = PREVIOUS_LAYOUT if previous else BRIDGE_LAYOUT
    driver = OpenFlowClient(switch.rundir / "br0.mgmt", layout, lambda: None)
    running = asyncio.create_task(driver.run())
    try:
        async with asyncio.timeout(DEADLINE_SECONDS):
            while not driver.connected:
                await asyncio.sleep(0.005)
        yield driver
    finally:
        running.cancel()


async def test_first_sync_replaces_the_flows_of_the_node_and_moves_those_of_services(
    switch: DummySwitch, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client, "TRANSITION_SECONDS", 0.5)
    today = NETWORK.flows | SERVICES.flows
    async with connected(switch) as driver:
        assert BRIDGE_LAYOUT.previous_version_flow in await driver.read()
        assert await driver.sync(Partition.NODE, NETWORK)
        moved = NETWORK.flows | replaced_by_the_proxy(SERVICES.flows)
        assert await driver.read() == moved | BRIDGE_LAYOUT.transition_flows
        assert await driver.sync(Partition.SERVICE, SERVICES) == DiffCount(len(today - moved), len(moved - today))
        assert await driver.read() == today | BRIDGE_LAYOUT.transition_flows
        assert await driver.sync(Partition.SERVICE, SERVICES) == DiffCount(0, 0)
        assert await driver.sync(Partition.NODE, NETWORK) == DiffCount(0, 0)
        async with asyncio.timeout(DEADLINE_SECONDS):
            while await driver.read() != today:
                await asyncio.sleep(0.05)
        assert await driver.restore() == DiffCount(0, 0)
        assert await driver.sync(Partition.NODE, NETWORK) == DiffCount(0, 0)


async def test_next_start_ends_a_transition_that_was_interrupted(switch: DummySwitch) -> None:
    async with connected(switch) as driver:
        await driver.sync(Partition.NODE, NETWORK)
    async with connected(switch) as driver:
        count = await driver.sync(Partition.NODE, NETWORK)
        assert count == DiffCount(0, len(BRIDGE_LAYOUT.transition_flows))
        assert await driver.read() == NETWORK.flows | replaced_by_the_proxy(SERVICES.flows)
        assert await driver.sync(Partition.SERVICE, SERVICES) != DiffCount(0, 0)
        assert await driver.read() == NETWORK.flows | SERVICES.flows
        assert await driver.sync(Partition.SERVICE, SERVICES) == DiffCount(0, 0)
