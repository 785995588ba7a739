"""The backend for clients in pods flushes stale conntrack entries, also after a restart or an error."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from pathlib import Path

import pytest

from reconcile.errors import NotReady
from sdn.drivers.openflow.bridge_state import DiffCount
from sdn.drivers.openflow.client import OpenFlowClient
from sdn.drivers.openflow.messages import UnknownFlow
from sdn.model.flow import Flow, FlowSet
from sdn.model.host import ConntrackFilter
from sdn.model.service_port import Protocol, ProxyMode, ServicePortChange, ServicePortInfo
from sdn.pipeline.flows import BRIDGE_LAYOUT
from sdn.proxy import openflow_backend
from sdn.proxy.conntrack import conntrack_filters
from sdn.proxy.openflow_backend import OpenFlowBackend
from tests.unit.sdn.examples import PROXY_CONFIG, web

SECONDS = 20.0
BEFORE = web("10.128.0.2", "10.128.0.3", protocol=Protocol.UDP)
AFTER = web("10.128.0.3", protocol=Protocol.UDP)
LATER = web("10.128.0.4", protocol=Protocol.UDP)


class FakeOpenFlowClient(OpenFlowClient):
    """A switch that holds flows and records the filters of flushes. A flush or a write can fail."""

    def __init__(self) -> None:
        super().__init__(Path("br0.mgmt"), BRIDGE_LAYOUT, lambda: None)
        self.flows: frozenset[Flow] = frozenset()
        self.flushed: set[ConntrackFilter] = set()
        self.write_failure = ""
        self.flush_failure = ""
        self.failed_flushes = 0

    async def installed_flows(self) -> frozenset[Flow | UnknownFlow]:
        return self.flows | {UnknownFlow(0, 0, b"")}

    async def sync(self, partition: str, desired: FlowSet) -> DiffCount:
        del partition
        count = DiffCount(len(desired.flows - self.flows), len(self.flows - desired.flows))
        self.flows = desired.flows
        return count

    async def update(self, partition: str, removed: FlowSet, added: FlowSet) -> DiffCount:
        del partition
        if self.write_failure:
            raise NotReady(self.write_failure)
        self.flows = self.flows - removed.flows | added.flows
        return DiffCount(len(added.flows), len(removed.flows))

    async def flush_conntrack(self, filters: Iterable[ConntrackFilter]) -> None:
        if self.flush_failure:
            self.failed_flushes += 1
            raise NotReady(self.flush_failure)
        self.flushed |= set(filters)

    def take_flushed(self) -> set[ConntrackFilter]:
        """Return the filters of the flushes since the last call."""
        flushed, self.flushed = self.flushed, set()
        return flushed


def stale(before: ServicePortInfo, after: ServicePortInfo) -> frozenset[ConntrackFilter]:
    return conntrack_filters([before]) - conntrack_filters([after])


@pytest.fixture
async def switch() -> FakeOpenFlowClient:
    """A switch as a daemon has left it that served BEFORE."""
    switch = FakeOpenFlowClient()
    assert await OpenFlowBackend(switch, ProxyMode.NFTABLES).sync(PROXY_CONFIG, [BEFORE])
    assert not switch.take_flushed()
    return switch


@pytest.fixture
async def backend(switch: FakeOpenFlowClient) -> OpenFlowBackend:
    """The backend of a new daemon, which serves BEFORE, too."""
    backend = OpenFlowBackend(switch, ProxyMode.NFTABLES)
    assert not await backend.sync(PROXY_CONFIG, [BEFORE])
    assert not switch.take_flushed()
    return backend


async def test_sync_flushes_entries_of_endpoints_that_went_while_the_daemon_was_down(
    switch: FakeOpenFlowClient,
) -> None:
    backend = OpenFlowBackend(switch, ProxyMode.NFTABLES)
    assert await backend.sync(PROXY_CONFIG, [AFTER])
    assert switch.take_flushed() == stale(BEFORE, AFTER)
    await backend.sync(PROXY_CONFIG, [AFTER])
    assert not switch.take_flushed()


async def test_update_flushes_entries_of_removed_endpoints_once(
    switch: FakeOpenFlowClient, backend: OpenFlowBackend
) -> None:
    await backend.update(PROXY_CONFIG, ServicePortChange((BEFORE,), (AFTER,)))
    assert switch.take_flushed() == stale(BEFORE, AFTER)
    assert not await backend.sync(PROXY_CONFIG, [AFTER])
    assert not switch.take_flushed()


async def test_sync_repeats_a_flush_that_failed(switch: FakeOpenFlowClient, backend: OpenFlowBackend) -> None:
    switch.flush_failure = "no answer"
    with pytest.raises(NotReady):
        await backend.update(PROXY_CONFIG, ServicePortChange((BEFORE,), (AFTER,)))
    with pytest.raises(NotReady):
        await backend.sync(PROXY_CONFIG, [LATER])
    switch.flush_failure = ""
    assert not await backend.sync(PROXY_CONFIG, [LATER])
    assert switch.take_flushed() == conntrack_filters([BEFORE])


async def test_sync_flushes_after_a_write_that_failed(switch: FakeOpenFlowClient, backend: OpenFlowBackend) -> None:
    switch.write_failure = "no answer"
    with pytest.raises(NotReady):
        await backend.update(PROXY_CONFIG, ServicePortChange((BEFORE,), (AFTER,)))
    assert await backend.sync(PROXY_CONFIG, [AFTER])
    assert switch.take_flushed() == stale(BEFORE, AFTER)


async def test_endpoint_that_has_returned_is_not_flushed(switch: FakeOpenFlowClient, backend: OpenFlowBackend) -> None:
    switch.flush_failure = "no answer"
    with pytest.raises(NotReady):
        await backend.update(PROXY_CONFIG, ServicePortChange((BEFORE,), (AFTER,)))
    switch.flush_failure = ""
    await backend.sync(PROXY_CONFIG, [BEFORE])
    assert not switch.take_flushed()


async def test_flush_is_repeated_but_for_entries_that_are_used_again(
    switch: FakeOpenFlowClient, backend: OpenFlowBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A packet on a cached path of the switch may have made an entry again."""
    monkeypatch.setattr(openflow_backend, "REPEATED_FLUSH_SECONDS", (0.01, 0.02))
    await backend.update(PROXY_CONFIG, ServicePortChange((BEFORE,), (LATER,)))
    assert switch.take_flushed() == conntrack_filters([BEFORE])
    await backend.update(PROXY_CONFIG, ServicePortChange((LATER,), (AFTER,)))
    assert switch.take_flushed() == conntrack_filters([LATER])
    async with asyncio.timeout(SECONDS):
        while switch.flushed != stale(BEFORE, AFTER) | conntrack_filters([LATER]):
            await asyncio.sleep(0.01)
    assert not switch.flushed & conntrack_filters([AFTER])


async def test_repeated_flush_that_fails_is_made_by_the_next_call(
    switch: FakeOpenFlowClient, backend: OpenFlowBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(openflow_backend, "REPEATED_FLUSH_SECONDS", (0.0,))
    await backend.update(PROXY_CONFIG, ServicePortChange((BEFORE,), (AFTER,)))
    switch.take_flushed()
    switch.flush_failure = "no answer"
    async with asyncio.timeout(SECONDS):
        while not switch.failed_flushes:
            await asyncio.sleep(0.01)
    switch.flush_failure = ""
    assert not await backend.sync(PROXY_CONFIG, [AFTER])
    assert switch.take_flushed() == stale(BEFORE, AFTER)


async def test_closed_backend_repeats_no_flush(
    switch: FakeOpenFlowClient, backend: OpenFlowBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(openflow_backend, "REPEATED_FLUSH_SECONDS", (0.02,))
    await backend.update(PROXY_CONFIG, ServicePortChange((BEFORE,), (AFTER,)))
    switch.take_flushed()
    await backend.close()
    await asyncio.sleep(0.1)
    assert not switch.flushed
