"""The proxier brings every backend up to date: all ports when it must, changes otherwise."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Collection
from dataclasses import replace
from datetime import UTC, datetime
from ipaddress import IPv4Address, IPv4Network

import pytest

from api.core.endpoints import EndpointSlice
from api.core.services import Service
from reconcile.errors import NotReady
from sdn.metrics import Drift
from sdn.model.service_port import EndpointInfo, ServicePortChange, ServicePortInfo, ServicePortName
from sdn.network_state import NetworkState
from sdn.proxy.proxier import Proxier
from sdn.proxy.service_map import ServiceMap
from sdn.proxy.service_ports import ProxyConfig
from sdn.topology import Cluster, Node, NodeNetwork, NodeNetworkConfig, Peer
from tests.unit.sdn.examples import NODE
from tests.unit.sdn.proxy.examples import HERE, MORE, PODS, THERE, backend, endpoint, fill, service, slice_of

CLUSTER = Cluster((IPv4Network("10.128.0.0/14"),), IPv4Network("172.30.0.0/16"), True, 4789, 1450)
PEER = Peer("node-2", IPv4Address("10.245.2.4"), IPv4Network("10.128.2.0/23"))
NETWORK = NodeNetworkConfig(CLUSTER, NODE, frozenset({PEER}), {"default": 0, "red": 10}, frozenset())
MOVED = Node("node-1", NODE.address, IPv4Network("10.128.6.0/23"))


class Datapath:
    """A backend that holds ports as a datapath does: each change must fit its state."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.ports: dict[ServicePortName, ServicePortInfo] = {}
        self.config: ProxyConfig | None = None
        self.syncs = 0
        self.updates = 0
        self.failure = ""
        self.modified = False
        self.is_open = False

    async def open(self) -> None:
        self.is_open = True

    async def close(self) -> None:
        self.is_open = False

    def is_unmodified(self) -> bool:
        return not self.modified

    def _check(self) -> None:
        if self.failure:
            self.ports.clear()
            raise NotReady(self.failure)

    async def sync(self, config: ProxyConfig, ports: Collection[ServicePortInfo]) -> bool:
        self._check()
        wanted = {port.key: port for port in ports}
        was_different, self.modified = self.ports != wanted, False
        self.ports, self.config, self.syncs = wanted, config, self.syncs + 1
        return was_different

    async def update(self, config: ProxyConfig, change: ServicePortChange) -> None:
        self._check()
        for port in change.removed:
            assert self.ports.pop(port.key) == port, "a port is removed that is not there"
        for port in change.added:
            assert port.key not in self.ports, "a port is added that is there"
            self.ports[port.key] = port
        self.config, self.updates = config, self.updates + 1


class Services:
    """Services as the API has them, in a real service map."""

    def __init__(self) -> None:
        self.service_map = fill(ServiceMap(), pods=PODS)
        self.synced = False

    def set(self, service: Service, *addresses: str) -> None:
        name, namespace = service.metadata.name, service.metadata.namespace
        endpoints: EndpointSlice = slice_of(name, *map(endpoint, addresses), namespace=namespace)
        self.service_map.set_service((namespace, name), service)
        self.service_map.set_slice((namespace, endpoints.metadata.name), endpoints)

    def remove(self, name: str) -> None:
        self.service_map.set_service(("red", name), None)

    def apply_changes(self, config: ProxyConfig) -> ServicePortChange:
        self.service_map.set_config(config)
        return self.service_map.apply_changes()

    def take_trigger_times(self) -> list[datetime]:
        return [datetime.now(UTC)]


class Node1:
    """A proxier with two backends in one stage and one before them."""

    def __init__(self) -> None:
        self.first, self.left, self.right = Datapath("first"), Datapath("left"), Datapath("right")
        self.datapaths = (self.first, self.left, self.right)
        self.services, self.state, self.drift = Services(), NetworkState(), Drift()
        self.trigger = asyncio.Event()
        self.proxier = Proxier(
            ((self.first,), (self.left, self.right)),
            services=self.services,
            state=self.state,
            drift=self.drift,
            trigger=self.trigger,
            resync_seconds=3600,
        )

    def install(self, config: NodeNetworkConfig) -> None:
        """Set the network of the node, with its flows."""
        self.state.config = config
        self.state.network = NodeNetwork(config.cluster, config.node, config.peers, frozenset())

    async def reconcile(self) -> None:
        """Run one pass, after which every backend without a failure has the ports of the service map."""
        await self.proxier.reconcile()
        wanted = dict(self.proxier.service_map.ports)
        assert [datapath.ports for datapath in self.datapaths if not datapath.failure] == [
            wanted for datapath in self.datapaths if not datapath.failure
        ]

    def calls(self) -> list[tuple[int, int]]:
        """Full syncs and updates of each backend so far."""
        return [(datapath.syncs, datapath.updates) for datapath in self.datapaths]


@pytest.fixture
async def node() -> Node1:
    node1 = Node1()
    node1.services.set(service(), HERE, THERE)
    node1.services.synced = True
    node1.install(NETWORK)
    return node1


def endpoints(datapath: Datapath) -> set[EndpointInfo]:
    return {info for port in datapath.ports.values() for info in port.cluster_endpoints}


async def test_no_backend_is_written_before_the_network_and_the_services_are_known(node: Node1) -> None:
    node.state.network, node.services.synced = None, False
    await node.proxier.reconcile()
    assert node.proxier.not_ready_reason == "waiting for the network"
    node.install(NETWORK)
    await node.proxier.reconcile()
    assert node.proxier.not_ready_reason == "waiting for the master's first answer"
    assert node.calls() == [(0, 0)] * 3
    node.services.synced = True
    await node.reconcile()
    assert node.proxier.not_ready_reason == ""
    assert node.calls() == [(1, 0)] * 3
    assert endpoints(node.left) == {backend(HERE), backend(THERE)}


async def test_backends_get_changes_only_after_the_first_sync(node: Node1) -> None:
    await node.reconcile()
    node.services.set(service(), HERE, MORE)
    await node.reconcile()
    assert endpoints(node.right) == {backend(HERE), backend(MORE)}
    node.services.set(service("other", cluster_ip="172.30.0.8"), THERE)
    node.services.remove("web")
    await node.reconcile()
    assert endpoints(node.right) == {backend(THERE)}
    assert node.calls() == [(1, 2)] * 3


async def test_pass_without_a_change_calls_no_backend(node: Node1) -> None:
    for _ in range(3):
        await node.reconcile()
    node.install(replace(NETWORK))
    await node.reconcile()
    assert node.calls() == [(1, 0)] * 3


async def test_backend_that_fails_gets_all_ports_again_and_the_others_continue(node: Node1) -> None:
    await node.reconcile()
    node.left.failure = "the switch is not there"
    node.services.set(service(), MORE)
    with pytest.raises(NotReady, match="the switch is not there"):
        await node.reconcile()
    assert node.proxier.not_ready_reason == "the switch is not there"
    assert endpoints(node.right) == endpoints(node.first) == {backend(MORE)}
    node.services.set(service(), HERE)
    with pytest.raises(NotReady):
        await node.reconcile()
    node.left.failure = ""
    await node.reconcile()
    assert node.proxier.not_ready_reason == ""
    assert node.calls() == [(1, 2), (2, 0), (1, 2)]
    assert node.drift.count == 0


async def test_change_by_another_program_is_reverted_and_counted_as_drift(node: Node1) -> None:
    await node.reconcile()
    node.right.ports.clear()
    node.right.modified = True
    await node.reconcile()
    assert node.calls() == [(1, 0), (1, 0), (2, 0)]
    assert node.drift.count == 1
    node.right.modified = True
    await node.reconcile()
    assert node.drift.count == 1


async def test_new_node_and_changed_vnid_are_changes(node: Node1) -> None:
    await node.reconcile()
    third = Peer("node-3", IPv4Address("10.245.2.5"), IPv4Network("10.128.4.0/23"))
    node.install(replace(NETWORK, peers=NETWORK.peers | {third}))
    await node.reconcile()
    assert all(datapath.config is not None and third.address in datapath.config.node_ips for datapath in node.datapaths)
    node.install(replace(NETWORK, vnids={"default": 0, "red": 12}))
    await node.reconcile()
    assert {port.vnid for port in node.left.ports.values()} == {12}
    assert node.calls() == [(1, 2)] * 3


async def test_new_subnet_of_the_node_is_a_full_sync(node: Node1) -> None:
    await node.reconcile()
    node.install(replace(NETWORK, node=MOVED))
    await node.reconcile()
    assert node.calls() == [(2, 0)] * 3
    assert node.first.config is not None
    assert node.first.config.node == MOVED
    assert node.drift.count == 0


async def test_run_opens_and_closes_backends_and_follows_the_trigger(node: Node1) -> None:
    running = asyncio.create_task(node.proxier.run())
    async with asyncio.timeout(5):
        while not node.right.syncs:
            await asyncio.sleep(0)
        assert [datapath.is_open for datapath in node.datapaths] == [True] * 3
        node.services.remove("web")
        node.trigger.set()
        while node.right.ports:
            await asyncio.sleep(0)
        running.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await running
    assert [datapath.is_open for datapath in node.datapaths] == [False] * 3
