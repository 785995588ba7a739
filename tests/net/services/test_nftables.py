"""Services for the node's own processes and for the outside, by the real firewall with real packets."""

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
from sdn.proxy.nftables import TABLE, Host
from sdn.proxy.nftables_backend import ServicesTable
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
HOST = Host(NODE, SUBNET, IPv4Network("172.30.0.0/16"), frozenset({NODE}), (30000, 32767))
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
async def services(node: Node) -> AsyncIterator[ServicesTable]:
    with contextlib.suppress(Exception):
        node.nft("delete", "table", "ip", TABLE)
    with inside(node.node):
        services = ServicesTable(nft := Nftables(), lambda: None)
        await services.open()
    yield services
    services.close()
    nft.close()


PLACES = {"cluster IP": (CLUSTER_IP, 80), "node port": (NODE, NODE_PORT), "outside IP": (OUTSIDE_IP, 80)}
KINDS = {"TCP": (Protocol.TCP, socket.SOCK_STREAM), "UDP": (Protocol.UDP, UDP)}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("place", PLACES)
async def test_node_reaches_every_endpoint_at_every_frontend(
    node: Node, services: ServicesTable, place: str, kind: str
) -> None:
    protocol, sock = KINDS[kind]
    await services.replace(HOST, [web(*HERE, *THERE, protocol=protocol)])
    heard = [call(node.node, *PLACES[place], sock) for _ in range(80)]
    count = Counter(one.backend for one in heard)
    assert sum((count[address] - 20) ** 2 / 20 for address in (*NEAR, *FAR)) < EVEN
    assert {one.caller for one in heard if one.backend in FAR} == {GATEWAY}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("place", ["node port", "outside IP"])
async def test_external_client_is_masqueraded_only_to_remote_endpoints(
    node: Node, services: ServicesTable, place: str, kind: str
) -> None:
    protocol, sock = KINDS[kind]
    await services.replace(HOST, [web(*HERE, *THERE, protocol=protocol)])
    heard = [call(node.outside, *PLACES[place], sock) for _ in range(80)]
    assert {one.caller for one in heard if one.backend in NEAR} == {OUTSIDER}
    assert {one.caller for one in heard if one.backend in FAR} == {GATEWAY}
    count = Counter(one.backend for one in heard)
    assert sum((count[address] - 20) ** 2 / 20 for address in (*NEAR, *FAR)) < EVEN


async def test_cluster_ip_is_not_reachable_from_outside(node: Node, services: ServicesTable) -> None:
    await services.replace(HOST, [web(*HERE)])
    assert call(node.outside, NODE, NODE_PORT).backend in NEAR
    with pytest.raises(TimeoutError), Caller(node.outside, CLUSTER_IP, 80, UDP) as caller:
        caller.ask(patience=SILENCE_SECONDS)
    assert call(node.node, CLUSTER_IP, 80).backend in NEAR


@pytest.mark.parametrize("affinity", [0, 600])
async def test_local_traffic_policy_uses_only_local_endpoints(
    node: Node, services: ServicesTable, affinity: int
) -> None:
    port = web(*HERE, *THERE, protocol=Protocol.UDP, affinity_timeout_seconds=affinity)
    kept = replace(port, external_endpoints=HERE[:1], external_policy_local=True)
    await services.replace(HOST, [port])
    assert call(node.outside, NODE, NODE_PORT, UDP).backend in {*NEAR, *FAR}
    await services.edit(HOST, ServicePortChange((port,), (kept,)))
    heard = [call(node.outside, NODE, NODE_PORT, UDP) for _ in range(20)]
    assert {(one.backend, one.caller) for one in heard} == {(NEAR[0], OUTSIDER)}
    assert call(node.node, CLUSTER_IP, 80, UDP).backend in {*NEAR, *FAR}
    await services.edit(HOST, ServicePortChange((kept,), (replace(kept, external_endpoints=()),)))
    with pytest.raises(TimeoutError), Caller(node.outside, NODE, NODE_PORT, UDP) as caller:
        caller.ask(patience=SILENCE_SECONDS)
    assert call(node.node, NODE, NODE_PORT, UDP).backend in {*NEAR, *FAR}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("place", PLACES)
async def test_service_without_endpoints_rejects_clients(
    node: Node, services: ServicesTable, place: str, kind: str
) -> None:
    protocol, sock = KINDS[kind]
    served, empty = web(*HERE, protocol=protocol), web(protocol=protocol)
    callers = [node.node] if place == "cluster IP" else [node.node, node.outside]
    await services.replace(HOST, [served])
    assert all(call(caller, *PLACES[place], sock).backend in NEAR for caller in callers)
    await services.edit(HOST, ServicePortChange((served,), (empty,)))
    for caller in callers:
        # To a process that sends a datagram by itself the kernel says EPERM.
        with pytest.raises((ConnectionRefusedError, PermissionError)):
            call(caller, *PLACES[place], sock)
    await services.edit(HOST, ServicePortChange((empty,), (served,)))
    assert all(call(caller, *PLACES[place], sock).backend in NEAR for caller in callers)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("place", PLACES)
async def test_pod_traffic_is_rejected_and_never_translated(
    node: Node, services: ServicesTable, place: str, kind: str
) -> None:
    protocol, sock = KINDS[kind]
    await services.replace(HOST, [web(*HERE, *THERE, protocol=protocol)])
    assert call(node.node, *PLACES[place], sock).backend in {*NEAR, *FAR}
    with pytest.raises(ConnectionRefusedError):
        call(node.pods, *PLACES[place], sock)


async def test_node_is_rejected_at_unused_service_addresses(node: Node, services: ServicesTable) -> None:
    await services.replace(HOST, [web(*HERE)])
    with pytest.raises(ConnectionRefusedError):
        call(node.node, CLUSTER_IP, 81)
    with pytest.raises(ConnectionRefusedError):
        call(node.node, CLUSTER_IP + 1, 80)


@pytest.mark.parametrize("kind", KINDS)
async def test_session_affinity_keeps_an_endpoint_while_it_exists(
    node: Node, services: ServicesTable, kind: str
) -> None:
    protocol, sock = KINDS[kind]
    port = web(*HERE, *THERE, protocol=protocol, affinity_timeout_seconds=600)
    await services.replace(HOST, [port])

    def heard(client: str) -> IPv4Address:
        (backend,) = {call(client, NODE, NODE_PORT, sock).backend for _ in range(12)}
        return backend

    first = heard(node.outside)
    await services.replace(HOST, [port])
    assert heard(node.outside) == first
    rest = tuple(backend for backend in (*HERE, *THERE) if backend.address != first)
    fewer = web(*rest, protocol=protocol, affinity_timeout_seconds=600)
    await services.edit(HOST, ServicePortChange((port,), (fewer,)))
    second = heard(node.outside)
    assert second != first
    await services.edit(HOST, ServicePortChange((fewer,), (port,)))
    assert heard(node.outside) == second
    assert "timeout 10m" in node.nft("list", "map", "ip", TABLE, "affinity")


async def test_session_affinity_spreads_clients_over_endpoints(node: Node, services: ServicesTable) -> None:
    others = tuple(IPv4Address("10.245.2.100") + number for number in range(40))
    await services.replace(HOST, [web(*HERE, *THERE, affinity_timeout_seconds=600)])
    with node.at_outside(others):
        heard = [call(node.outside, NODE, NODE_PORT, own=one).backend for one in (*others, *others)]
    assert heard[:40] == heard[40:]
    assert set(heard) == {*NEAR, *FAR}


async def test_udp_client_leaves_a_removed_endpoint(node: Node, services: ServicesTable) -> None:
    before, after = web(HERE[0], protocol=Protocol.UDP), web(THERE[0], protocol=Protocol.UDP)
    await services.replace(HOST, [before])
    for client in (node.node, node.outside):
        with Caller(client, NODE, NODE_PORT, UDP) as caller:
            assert caller.ask().backend == NEAR[0]
            await services.edit(HOST, ServicePortChange((before,), (after,)))
            assert caller.ask().backend == FAR[0]
            await services.edit(HOST, ServicePortChange((after,), (before,)))
            assert caller.ask().backend == NEAR[0]


async def test_udp_client_is_served_once_the_service_appears(node: Node, services: ServicesTable) -> None:
    port = web(*HERE, protocol=Protocol.UDP)
    await services.replace(HOST, [])
    with Caller(node.outside, NODE, NODE_PORT, UDP) as caller:
        with pytest.raises(ConnectionRefusedError):
            caller.ask()
        await services.edit(HOST, ServicePortChange((), (port,)))
        assert caller.ask().backend in NEAR


async def test_established_connections_survive_rule_changes(node: Node, services: ServicesTable) -> None:
    before, after = web(HERE[0]), web(THERE[0])
    await services.replace(HOST, [before])
    with Caller(node.outside, NODE, NODE_PORT) as far, Caller(node.node, CLUSTER_IP, 80) as own:
        for change in (
            services.replace(HOST, [before]),
            services.edit(HOST, ServicePortChange((before,), (after,))),
            services.replace(HOST, []),
        ):
            await change
            assert {far.ask().backend, own.ask().backend} == {NEAR[0]}


FOREIGN = {
    "the ruleset is flushed": ("flush", "ruleset"),
    "an element is deleted": ("delete", "element", "ip", TABLE, "own", "{ 172.30.0.10 . tcp . 80 }"),
    "a rule is added": ("add", "rule", "ip", TABLE, "output", "accept"),
    "chains are flushed": ("flush", "table", "ip", TABLE),
}


async def heard(services: ServicesTable) -> None:
    async with asyncio.timeout(10):
        while not services.is_touched:
            await asyncio.sleep(0.01)


@pytest.mark.parametrize("what", FOREIGN)
async def test_foreign_changes_to_the_table_are_detected_and_undone(
    node: Node, services: ServicesTable, what: str
) -> None:
    await services.replace(HOST, [web(*HERE)])
    listed = node.nft("list", "table", "ip", TABLE)
    assert not services.is_touched
    node.nft(*FOREIGN[what])
    await heard(services)
    await services.replace(HOST, [web(*HERE)])
    assert [services.is_touched, node.nft("list", "table", "ip", TABLE)] == [False, listed]
    assert call(node.node, CLUSTER_IP, 80).backend in NEAR


async def test_foreign_change_right_after_our_own_is_detected(
    node: Node, services: ServicesTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = Nftables.run

    async def followed(nft: Nftables, text: str) -> None:
        await run(nft, text)
        node.nft("flush", "ruleset")

    await services.replace(HOST, [web(*HERE)])
    assert not services.is_touched
    with monkeypatch.context() as patched:
        patched.setattr(Nftables, "run", followed)
        await services.replace(HOST, [web(*HERE)])
    assert services.is_touched


async def test_own_changes_and_foreign_tables_are_not_drift(node: Node, services: ServicesTable) -> None:
    port = web(*HERE)
    await services.replace(HOST, [])
    for _ in range(10):
        node.nft("add", "table", "ip", "others")
        node.nft("delete", "table", "ip", "others")
        await services.edit(HOST, ServicePortChange((), (port,)))
        await services.edit(HOST, ServicePortChange((port,), ()))
        assert not services.is_touched
    node.nft("add", "chain", "ip", TABLE, "marker")
    await heard(services)


async def test_failed_table_update_changes_nothing_and_requests_a_full_replace(
    node: Node, services: ServicesTable
) -> None:
    port = web(*HERE)
    await services.replace(HOST, [port])
    listed = node.nft("list", "table", "ip", TABLE)
    with pytest.raises(Refused, match="the ruleset is as it was"):
        await services.edit(HOST, ServicePortChange((replace(port, cluster_ip=CLUSTER_IP + 1),), ()))
    assert node.nft("list", "table", "ip", TABLE) == listed
    assert services.is_touched


async def test_table_of_another_version_is_replaced(node: Node, services: ServicesTable) -> None:
    node.nft("add table ip podlane-services; add map ip podlane-services own { type mark : verdict; }")
    await services.replace(HOST, [web(*HERE)])
    assert call(node.node, CLUSTER_IP, 80).backend in NEAR
