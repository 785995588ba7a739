"""Services for the node's processes and for external clients: real nftables with real packets."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from ipaddress import IPv4Address, IPv4Network

import pytest

from reconcile.errors import Refused
from sdn.drivers.nftables import Nftables
from sdn.model.service_port import EndpointInfo, Protocol, ServicePortChange, ServicePortInfo, ServicePortName
from sdn.proxy.nftables import TABLE
from sdn.proxy.nftables_backend import NftablesBackend
from sdn.proxy.service_ports import ProxyConfig
from sdn.topology import VXLAN_PORT
from sdn.topology import Node as NodeConfig
from tests.testbed.namespaces import inside
from tests.testbed.netns.service_host import (
    FAR,
    GATEWAY,
    NEAR,
    NODE,
    OUTSIDER,
    PORT,
    SILENCE_SECONDS,
    SUBNET,
    Caller,
    Node,
    answering,
    call,
)

CLUSTER_IP, OUTSIDE_IP, NODE_PORT = IPv4Address("172.30.0.10"), IPv4Address("198.51.100.7"), 30080
CONFIG = ProxyConfig(
    node=NodeConfig("node-1", NODE, SUBNET),
    cluster_networks=(IPv4Network("10.128.0.0/14"),),
    service_network=IPv4Network("172.30.0.0/16"),
    node_port_range=(30000, 32767),
    vnids=None,
    node_ips=frozenset({NODE}),
    vxlan_port=VXLAN_PORT,
)
HERE = tuple(EndpointInfo(address, PORT, is_local=True) for address in NEAR)
THERE = tuple(EndpointInfo(address, PORT) for address in FAR)
UDP = socket.SOCK_DGRAM
EVEN = 27.9
"""Chi-square of four equal shares, three degrees of freedom: exceeded by chance once in 250,000 runs."""


def web(*backends: EndpointInfo, protocol: Protocol = Protocol.TCP, **others: object) -> ServicePortInfo:
    port = ServicePortInfo(
        key=ServicePortName("red", "web", "", protocol),
        vnid=10,
        cluster_ip=CLUSTER_IP,
        port=80,
        node_port=NODE_PORT,
        external_ips=(OUTSIDE_IP,),
        internal_endpoints=backends,
        cluster_endpoints=backends,
        external_endpoints=backends,
    )
    return replace(port, **others)  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def node() -> Iterator[Node]:
    made = Node()
    try:
        made.build()
        with answering(made.pods, (*NEAR, *FAR)):
            yield made
    finally:
        made.remove()


@pytest.fixture
async def services(node: Node) -> AsyncIterator[NftablesBackend]:
    with contextlib.suppress(Exception):
        node.nft("delete", "table", "ip", TABLE)
    async with running_backend(node) as services:
        yield services


@contextlib.asynccontextmanager
async def running_backend(node: Node) -> AsyncIterator[NftablesBackend]:
    with inside(node.node):
        backend = NftablesBackend(nft := Nftables(), lambda: None)
        await backend.open()
    yield backend
    await backend.close()
    nft.close()


FRONTENDS = {"cluster IP": (CLUSTER_IP, 80), "node port": (NODE, NODE_PORT), "outside IP": (OUTSIDE_IP, 80)}
KINDS = {"TCP": (Protocol.TCP, socket.SOCK_STREAM), "UDP": (Protocol.UDP, UDP)}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("frontend", FRONTENDS)
async def test_node_reaches_every_endpoint_at_every_frontend(
    node: Node, services: NftablesBackend, frontend: str, kind: str
) -> None:
    protocol, sock = KINDS[kind]
    await services.sync(CONFIG, [web(*HERE, *THERE, protocol=protocol)])
    replies = [call(node.node, *FRONTENDS[frontend], sock) for _ in range(80)]
    count = Counter(reply.backend for reply in replies)
    assert sum((count[address] - 20) ** 2 / 20 for address in (*NEAR, *FAR)) < EVEN
    assert {reply.caller for reply in replies} == {GATEWAY}
    local = web(*HERE, *THERE, protocol=protocol, external_endpoints=HERE, external_policy_local=True)
    await services.sync(CONFIG, [local])
    replies = [call(node.node, *FRONTENDS[frontend], sock) for _ in range(20)]
    assert {reply.caller for reply in replies} == {GATEWAY}
    assert {reply.backend for reply in replies} & set(FAR)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("frontend", ["node port", "outside IP"])
async def test_external_client_is_masqueraded_only_to_remote_endpoints(
    node: Node, services: NftablesBackend, frontend: str, kind: str
) -> None:
    protocol, sock = KINDS[kind]
    await services.sync(CONFIG, [web(*HERE, *THERE, protocol=protocol)])
    replies = [call(node.outside, *FRONTENDS[frontend], sock) for _ in range(80)]
    assert {reply.caller for reply in replies if reply.backend in NEAR} == {OUTSIDER}
    assert {service_reply.caller for service_reply in replies if service_reply.backend in FAR} == {GATEWAY}
    count = Counter(service_reply.backend for service_reply in replies)
    assert sum((count[address] - 20) ** 2 / 20 for address in (*NEAR, *FAR)) < EVEN


async def test_cluster_ip_is_not_reachable_from_outside(node: Node, services: NftablesBackend) -> None:
    await services.sync(CONFIG, [web(*HERE)])
    assert call(node.outside, NODE, NODE_PORT).backend in NEAR
    with pytest.raises(TimeoutError), Caller(node.outside, CLUSTER_IP, 80, UDP) as caller:
        caller.call(patience=SILENCE_SECONDS)
    assert call(node.node, CLUSTER_IP, 80).backend in NEAR


@pytest.mark.parametrize("affinity", [0, 600])
async def test_local_traffic_policy_uses_only_local_endpoints(
    node: Node, services: NftablesBackend, affinity: int
) -> None:
    port = web(*HERE, *THERE, protocol=Protocol.UDP, affinity_timeout_seconds=affinity)
    reduced = replace(port, external_endpoints=HERE[:1], external_policy_local=True)
    await services.sync(CONFIG, [port])
    assert call(node.outside, NODE, NODE_PORT, UDP).backend in {*NEAR, *FAR}
    await services.update(CONFIG, ServicePortChange((port,), (reduced,)))
    replies = [call(node.outside, NODE, NODE_PORT, UDP) for _ in range(20)]
    assert {(reply.backend, reply.caller) for reply in replies} == {(NEAR[0], OUTSIDER)}
    assert call(node.node, CLUSTER_IP, 80, UDP).backend in {*NEAR, *FAR}
    await services.update(CONFIG, ServicePortChange((reduced,), (replace(reduced, external_endpoints=()),)))
    with pytest.raises(TimeoutError), Caller(node.outside, NODE, NODE_PORT, UDP) as caller:
        caller.call(patience=SILENCE_SECONDS)
    assert call(node.node, NODE, NODE_PORT, UDP).backend in {*NEAR, *FAR}


@pytest.mark.parametrize("kind", KINDS)
async def test_local_traffic_policy_without_any_endpoint_rejects_clients(
    node: Node, services: NftablesBackend, kind: str
) -> None:
    protocol, sock = KINDS[kind]
    await services.sync(CONFIG, [web(protocol=protocol, external_policy_local=True)])
    for caller in (node.node, node.outside):
        # A process on the node that sends a datagram gets EPERM from the kernel.
        with pytest.raises((ConnectionRefusedError, PermissionError)):
            call(caller, NODE, NODE_PORT, sock)


async def test_udp_client_keeps_its_endpoint_after_a_change_to_local_traffic_policy(
    node: Node, services: NftablesBackend
) -> None:
    cluster = web(THERE[0], protocol=Protocol.UDP)
    local = replace(cluster, external_endpoints=(), external_policy_local=True)
    await services.sync(CONFIG, [cluster])
    with Caller(node.outside, NODE, NODE_PORT, UDP) as caller:
        assert caller.call().backend == FAR[0]
        await services.update(CONFIG, ServicePortChange((cluster,), (local,)))
        assert caller.call().backend == FAR[0]
        await services.sync(CONFIG, [local])
        assert caller.call().backend == FAR[0]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("frontend", FRONTENDS)
async def test_service_without_endpoints_rejects_clients(
    node: Node, services: NftablesBackend, frontend: str, kind: str
) -> None:
    protocol, sock = KINDS[kind]
    served, empty = web(*HERE, protocol=protocol), web(protocol=protocol)
    callers = [node.node] if frontend == "cluster IP" else [node.node, node.outside]
    await services.sync(CONFIG, [served])
    assert all(call(caller, *FRONTENDS[frontend], sock).backend in NEAR for caller in callers)
    await services.update(CONFIG, ServicePortChange((served,), (empty,)))
    for caller in callers:
        # A process on the node that sends a datagram gets EPERM from the kernel.
        with pytest.raises((ConnectionRefusedError, PermissionError)):
            call(caller, *FRONTENDS[frontend], sock)
    await services.update(CONFIG, ServicePortChange((empty,), (served,)))
    assert all(call(caller, *FRONTENDS[frontend], sock).backend in NEAR for caller in callers)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("frontend", FRONTENDS)
async def test_pod_traffic_is_rejected_and_never_translated(
    node: Node, services: NftablesBackend, frontend: str, kind: str
) -> None:
    protocol, sock = KINDS[kind]
    await services.sync(CONFIG, [web(*HERE, *THERE, protocol=protocol)])
    assert call(node.node, *FRONTENDS[frontend], sock).backend in {*NEAR, *FAR}
    with pytest.raises(ConnectionRefusedError):
        call(node.pods, *FRONTENDS[frontend], sock)


async def test_node_is_rejected_at_unused_service_addresses(node: Node, services: NftablesBackend) -> None:
    await services.sync(CONFIG, [web(*HERE)])
    with pytest.raises(ConnectionRefusedError):
        call(node.node, CLUSTER_IP, 81)
    with pytest.raises(ConnectionRefusedError):
        call(node.node, CLUSTER_IP + 1, 80)


@pytest.mark.parametrize("kind", KINDS)
async def test_session_affinity_keeps_an_endpoint_while_it_exists(
    node: Node, services: NftablesBackend, kind: str
) -> None:
    protocol, sock = KINDS[kind]
    port = web(*HERE, *THERE, protocol=protocol, affinity_timeout_seconds=600)
    await services.sync(CONFIG, [port])

    def wait_for_change(client: str) -> IPv4Address:
        (backend,) = {call(client, NODE, NODE_PORT, sock).backend for _ in range(12)}
        return backend

    first = wait_for_change(node.outside)
    await services.sync(CONFIG, [port])
    assert wait_for_change(node.outside) == first
    rest = tuple(backend for backend in (*HERE, *THERE) if backend.address != first)
    fewer = web(*rest, protocol=protocol, affinity_timeout_seconds=600)
    await services.update(CONFIG, ServicePortChange((port,), (fewer,)))
    second = wait_for_change(node.outside)
    assert second != first
    await services.update(CONFIG, ServicePortChange((fewer,), (port,)))
    assert wait_for_change(node.outside) == second
    assert "timeout 10m" in node.nft("list", "map", "ip", TABLE, "affinity")


async def test_session_affinity_spreads_clients_over_endpoints(node: Node, services: NftablesBackend) -> None:
    others = tuple(IPv4Address("10.245.2.100") + number for number in range(40))
    await services.sync(CONFIG, [web(*HERE, *THERE, affinity_timeout_seconds=600)])
    with node.at_outside(others):
        received = [call(node.outside, NODE, NODE_PORT, own=address).backend for address in (*others, *others)]
    assert received[:40] == received[40:]
    assert set(received) == {*NEAR, *FAR}


async def test_udp_client_leaves_a_removed_endpoint(node: Node, services: NftablesBackend) -> None:
    before, after = web(HERE[0], protocol=Protocol.UDP), web(THERE[0], protocol=Protocol.UDP)
    await services.sync(CONFIG, [before])
    for client in (node.node, node.outside):
        with Caller(client, NODE, NODE_PORT, UDP) as caller:
            assert caller.call().backend == NEAR[0]
            await services.update(CONFIG, ServicePortChange((before,), (after,)))
            assert caller.call().backend == FAR[0]
            await services.update(CONFIG, ServicePortChange((after,), (before,)))
            assert caller.call().backend == NEAR[0]


async def test_udp_client_is_rejected_after_a_restart_without_its_service(
    node: Node, services: NftablesBackend
) -> None:
    """The service was removed while no daemon ran. The client of a service that stays keeps its endpoint."""
    removed, kept = web(HERE[0], protocol=Protocol.UDP), web(*HERE, *THERE, protocol=Protocol.UDP)
    kept = replace(kept, cluster_ip=CLUSTER_IP + 1, node_port=NODE_PORT + 1, external_ips=())
    await services.sync(CONFIG, [removed, kept])
    with Caller(node.outside, NODE, NODE_PORT, UDP) as caller, Caller(node.outside, NODE, NODE_PORT + 1, UDP) as other:
        assert caller.call().backend == NEAR[0]
        backend = other.call().backend
        async with running_backend(node) as restarted:
            await restarted.sync(CONFIG, [kept])
        with pytest.raises(ConnectionRefusedError):
            caller.call()
        assert {other.call().backend for _ in range(8)} == {backend}


async def test_udp_client_is_served_once_the_service_appears(node: Node, services: NftablesBackend) -> None:
    port = web(*HERE, protocol=Protocol.UDP)
    await services.sync(CONFIG, [])
    with Caller(node.outside, NODE, NODE_PORT, UDP) as caller:
        with pytest.raises(ConnectionRefusedError):
            caller.call()
        await services.update(CONFIG, ServicePortChange((), (port,)))
        assert caller.call().backend in NEAR


async def test_established_connections_survive_rule_changes(node: Node, services: NftablesBackend) -> None:
    before, after = web(HERE[0]), web(THERE[0])
    await services.sync(CONFIG, [before])
    with Caller(node.outside, NODE, NODE_PORT) as far, Caller(node.node, CLUSTER_IP, 80) as own:
        for change in (
            services.sync(CONFIG, [before]),
            services.update(CONFIG, ServicePortChange((before,), (after,))),
            services.sync(CONFIG, []),
        ):
            await change
            assert {far.call().backend, own.call().backend} == {NEAR[0]}


FOREIGN = {
    "the ruleset is flushed": ("flush", "ruleset"),
    "an element is deleted": ("delete", "element", "ip", TABLE, "host_frontends", "{ 172.30.0.10 . tcp . 80 }"),
    "a rule is added": ("add", "rule", "ip", TABLE, "output", "accept"),
    "chains are flushed": ("flush", "table", "ip", TABLE),
}


async def wait_for_change(services: NftablesBackend) -> None:
    async with asyncio.timeout(10):
        while services.is_unmodified():
            await asyncio.sleep(0.01)


@pytest.mark.parametrize("what", FOREIGN)
async def test_foreign_changes_to_the_table_are_detected_and_undone(
    node: Node, services: NftablesBackend, what: str
) -> None:
    await services.sync(CONFIG, [web(*HERE)])
    listed = node.nft("list", "table", "ip", TABLE)
    assert services.is_unmodified()
    node.nft(*FOREIGN[what])
    await wait_for_change(services)
    await services.sync(CONFIG, [web(*HERE)])
    assert [services.is_unmodified(), node.nft("list", "table", "ip", TABLE)] == [True, listed]
    assert call(node.node, CLUSTER_IP, 80).backend in NEAR


async def test_foreign_change_right_after_our_own_is_detected(
    node: Node, services: NftablesBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = Nftables.run

    async def followed(nft: Nftables, text: str) -> None:
        await run(nft, text)
        node.nft("flush", "ruleset")

    await services.sync(CONFIG, [web(*HERE)])
    assert services.is_unmodified()
    with monkeypatch.context() as patched:
        patched.setattr(Nftables, "run", followed)
        await services.sync(CONFIG, [web(*HERE)])
    assert not services.is_unmodified()


async def test_own_changes_and_foreign_tables_are_not_drift(node: Node, services: NftablesBackend) -> None:
    port = web(*HERE)
    await services.sync(CONFIG, [])
    for _ in range(10):
        node.nft("add", "table", "ip", "others")
        node.nft("delete", "table", "ip", "others")
        await services.update(CONFIG, ServicePortChange((), (port,)))
        await services.update(CONFIG, ServicePortChange((port,), ()))
        assert services.is_unmodified()
    node.nft("add", "chain", "ip", TABLE, "marker")
    await wait_for_change(services)


async def test_failed_table_update_changes_nothing_and_requests_a_full_replace(
    node: Node, services: NftablesBackend
) -> None:
    port = web(*HERE)
    await services.sync(CONFIG, [port])
    listed = node.nft("list", "table", "ip", TABLE)
    with pytest.raises(Refused, match="the ruleset is as it was"):
        await services.update(CONFIG, ServicePortChange((replace(port, cluster_ip=CLUSTER_IP + 1),), ()))
    assert node.nft("list", "table", "ip", TABLE) == listed
    assert not services.is_unmodified()


async def test_table_of_another_version_is_replaced(node: Node, services: NftablesBackend) -> None:
    node.nft("add table ip podlane-services; add map ip podlane-services host_frontends { type mark : verdict; }")
    await services.sync(CONFIG, [web(*HERE)])
    assert call(node.node, CLUSTER_IP, 80).backend in NEAR
