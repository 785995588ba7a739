"""The userspace proxy's decisions: what was called, who may answer, whose turn it is."""

from __future__ import annotations

from dataclasses import replace
from ipaddress import IPv4Address, IPv4Network

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sdn.model.service_port import EndpointInfo, Protocol, ServicePortChange, ServicePortInfo, ServicePortName
from sdn.proxy.service_map import ClientConnection, FrontendLookup
from sdn.proxy.userspace.roundrobin import MAX_CLIENTS, RoundRobin

CLUSTER_IP, OUTSIDE_IP = IPv4Address("172.30.0.9"), IPv4Address("192.0.2.9")
NODE, OTHER_NODE = IPv4Address("10.245.2.3"), IPv4Address("10.245.2.4")
POD, STRANGER = IPv4Address("10.128.0.7"), IPv4Address("203.0.113.5")
HERE, THERE = (
    EndpointInfo(IPv4Address("10.128.0.2"), 8080, is_local=True),
    EndpointInfo(IPv4Address("10.128.2.2"), 8080),
)
WEB = ServicePortInfo(
    ServicePortName("red", "web", "", Protocol.TCP),
    vnid=10,
    cluster_ip=CLUSTER_IP,
    port=80,
    node_port=30080,
    external_ips=(OUTSIDE_IP,),
    internal_endpoints=(HERE, THERE),
    cluster_endpoints=(THERE,),
    external_endpoints=(HERE,),
)


def directory(*ports: ServicePortInfo) -> FrontendLookup:
    served = FrontendLookup(lambda address: address in IPv4Network("10.128.0.0/14"), {NODE, OTHER_NODE}.__contains__)
    served.edit(ServicePortChange(added=ports))
    return served


def call(address: IPv4Address, port: int, client: IPv4Address = POD, *, is_own: bool = False) -> ClientConnection:
    return ClientConnection((address, Protocol.TCP, port), client, is_own)


@pytest.mark.parametrize(
    ("one", "backends"),
    [
        (call(CLUSTER_IP, 80), WEB.internal_endpoints),
        (call(CLUSTER_IP, 80, NODE, is_own=True), WEB.internal_endpoints),
        (call(OUTSIDE_IP, 80), WEB.cluster_endpoints),
        (call(NODE, 30080), WEB.cluster_endpoints),
        (call(OTHER_NODE, 30080), WEB.cluster_endpoints),
        (call(NODE, 30080, NODE, is_own=True), WEB.cluster_endpoints),
        (call(NODE, 30080, STRANGER), WEB.external_endpoints),
        (call(OUTSIDE_IP, 80, STRANGER), WEB.external_endpoints),
        (call(NODE, 30080, OTHER_NODE), WEB.external_endpoints),
        (call(CLUSTER_IP, 81), ()),
        (call(CLUSTER_IP, 30080), ()),
        (call(NODE, 80), ()),
        (call(POD, 30080), ()),
        (ClientConnection((CLUSTER_IP, Protocol.UDP, 80), POD, is_own=False), ()),
    ],
)
def test_who_may_answer_follows_from_what_was_called_and_by_whom(
    one: ClientConnection, backends: tuple[EndpointInfo, ...]
) -> None:
    assert directory(WEB).backends(one) == backends


def test_a_front_is_never_a_backend() -> None:
    rounds = (
        EndpointInfo(CLUSTER_IP, 80),
        EndpointInfo(OUTSIDE_IP, 80),
        EndpointInfo(NODE, 30080),
        EndpointInfo(OTHER_NODE, 30080),
    )
    harmless = (EndpointInfo(NODE, 80), EndpointInfo(STRANGER, 30080), HERE)
    served = directory(replace(WEB, internal_endpoints=(*rounds, *harmless)))
    assert served.backends(call(CLUSTER_IP, 80)) == harmless


def test_what_has_gone_is_found_no_more_and_what_took_its_place_is() -> None:
    served = directory(WEB)
    moved = replace(WEB, cluster_ip=IPv4Address("172.30.0.10"), node_port=0)
    heir = replace(WEB, key=ServicePortName("red", "heir", "", Protocol.TCP), external_ips=())
    served.edit(ServicePortChange(removed=(WEB,), added=(moved, heir)))
    assert served.find((CLUSTER_IP, Protocol.TCP, 80)) == heir
    assert served.find((NODE, Protocol.TCP, 30080)) == heir
    assert served.find((OUTSIDE_IP, Protocol.TCP, 80)) == moved
    served.edit(served.difference([]))
    assert not served.ports
    assert served.find((CLUSTER_IP, Protocol.TCP, 80)) is served.find((NODE, Protocol.TCP, 30080)) is None


def test_the_difference_names_what_changed_and_nothing_else() -> None:
    other = replace(
        WEB, key=ServicePortName("red", "other", "", Protocol.TCP), cluster_ip=None, external_ips=(), node_port=0
    )
    served = directory(WEB, other)
    assert not served.difference([WEB, other])
    smaller = replace(WEB, internal_endpoints=(HERE,))
    assert served.difference([smaller, other]) == ServicePortChange(removed=(WEB,), added=(smaller,))


def test_backends_take_turns() -> None:
    rotation = RoundRobin()
    firsts = [rotation.candidates(WEB, WEB.internal_endpoints, POD, 0)[0] for _ in range(4)]
    assert firsts == [HERE, THERE, HERE, THERE]
    assert rotation.candidates(WEB, (), POD, 0) == []


STICKY = replace(WEB, affinity_timeout_seconds=60)


def test_a_client_goes_where_it_was_as_long_as_it_comes_back_in_time() -> None:
    rotation = RoundRobin()
    for now in (0.0, 59.0, 118.0):
        assert rotation.candidates(STICKY, WEB.internal_endpoints, POD, now)[0] == HERE
        rotation.took(STICKY, POD, HERE, now)
    assert rotation.candidates(STICKY, WEB.internal_endpoints, STRANGER, 118)[0] == THERE
    assert rotation.candidates(STICKY, (THERE,), POD, 118) == [THERE]
    late = [rotation.candidates(STICKY, WEB.internal_endpoints, POD, now)[0] for now in (178.5, 239, 299)]
    assert late in ([HERE, THERE, HERE], [THERE, HERE, THERE])


def test_a_client_that_calls_twice_at_once_gets_the_same_backend() -> None:
    rotation = RoundRobin()
    assert [rotation.candidates(STICKY, WEB.internal_endpoints, POD, 0)[0] for _ in range(3)] == [HERE] * 3


def test_a_backend_that_refused_is_replaced_by_the_one_that_took() -> None:
    rotation = RoundRobin()
    rotation.took(STICKY, POD, HERE, 0)
    rotation.took(STICKY, POD, THERE, 1)
    assert rotation.candidates(STICKY, WEB.internal_endpoints, POD, 2)[0] == THERE


def test_clients_are_remembered_within_bounds() -> None:
    rotation = RoundRobin()
    for number in range(MAX_CLIENTS + 1):
        rotation.took(STICKY, IPv4Address(number), THERE, 0)
    assert rotation.candidates(STICKY, WEB.internal_endpoints, IPv4Address(1), 0)[0] == THERE
    assert rotation.candidates(STICKY, WEB.internal_endpoints, IPv4Address(0), 0)[0] == HERE
    assert rotation.candidates(STICKY, WEB.internal_endpoints, IPv4Address(2), 0)[0] == THERE
    rotation.forget(WEB.key)
    assert rotation.candidates(STICKY, WEB.internal_endpoints, IPv4Address(1), 0)[0] == HERE


@given(st.lists(st.integers(0, 9), unique=True, max_size=8), st.integers(0, 3), st.integers(0, 20))
def test_every_backend_is_a_candidate_once(numbers: list[int], client: int, turns: int) -> None:
    backends = tuple(EndpointInfo(IPv4Address(number), 1) for number in numbers)
    rotation = RoundRobin()
    for turn in range(turns):
        found = rotation.candidates(STICKY, backends, IPv4Address(client), turn)
        assert sorted(found) == sorted(backends)
        if found:
            rotation.took(STICKY, IPv4Address(client), found[-1], turn)
