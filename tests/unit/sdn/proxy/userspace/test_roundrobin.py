"""The userspace proxy's selection of endpoints."""

from __future__ import annotations

from dataclasses import replace
from ipaddress import IPv4Address

from hypothesis import given
from hypothesis import strategies as st

from sdn.model.service_port import EndpointInfo
from sdn.proxy.userspace.roundrobin import MAX_CLIENTS, RoundRobin
from tests.unit.sdn.proxy.userspace.examples import HERE, POD, STRANGER, THERE, WEB


def test_endpoints_are_selected_in_turn() -> None:
    balancer = RoundRobin()
    firsts = [balancer.candidates(WEB, WEB.internal_endpoints, POD, 0)[0] for _ in range(4)]
    assert firsts == [HERE, THERE, HERE, THERE]
    assert balancer.candidates(WEB, (), POD, 0) == []


STICKY = replace(WEB, affinity_timeout_seconds=60)


def test_session_affinity_keeps_an_endpoint_until_it_expires() -> None:
    balancer = RoundRobin()
    for now in (0.0, 59.0, 118.0):
        assert balancer.candidates(STICKY, WEB.internal_endpoints, POD, now)[0] == HERE
        balancer.record(STICKY, POD, HERE, now)
    assert balancer.candidates(STICKY, WEB.internal_endpoints, STRANGER, 118)[0] == THERE
    assert balancer.candidates(STICKY, (THERE,), POD, 118) == [THERE]
    late = [balancer.candidates(STICKY, WEB.internal_endpoints, POD, now)[0] for now in (178.5, 239, 299)]
    assert late in ([HERE, THERE, HERE], [THERE, HERE, THERE])


def test_parallel_connections_of_one_client_get_the_same_endpoint() -> None:
    balancer = RoundRobin()
    assert [balancer.candidates(STICKY, WEB.internal_endpoints, POD, 0)[0] for _ in range(3)] == [HERE] * 3


def test_session_affinity_moves_to_the_endpoint_that_accepted() -> None:
    balancer = RoundRobin()
    balancer.record(STICKY, POD, HERE, 0)
    balancer.record(STICKY, POD, THERE, 1)
    assert balancer.candidates(STICKY, WEB.internal_endpoints, POD, 2)[0] == THERE


def test_session_affinity_table_is_bounded() -> None:
    balancer = RoundRobin()
    for number in range(MAX_CLIENTS + 1):
        balancer.record(STICKY, IPv4Address(number), THERE, 0)
    assert balancer.candidates(STICKY, WEB.internal_endpoints, IPv4Address(1), 0)[0] == THERE
    assert balancer.candidates(STICKY, WEB.internal_endpoints, IPv4Address(0), 0)[0] == HERE
    assert balancer.candidates(STICKY, WEB.internal_endpoints, IPv4Address(2), 0)[0] == THERE
    balancer.forget(WEB.key)
    assert balancer.candidates(STICKY, WEB.internal_endpoints, IPv4Address(1), 0)[0] == HERE


@given(st.lists(st.integers(0, 9), unique=True, max_size=8), st.integers(0, 3), st.integers(0, 20))
def test_every_endpoint_is_a_candidate_once(numbers: list[int], client: int, turns: int) -> None:
    backends = tuple(EndpointInfo(IPv4Address(number), 1) for number in numbers)
    balancer = RoundRobin()
    for turn in range(turns):
        endpoint_infos = balancer.candidates(STICKY, backends, IPv4Address(client), turn)
        assert sorted(endpoint_infos) == sorted(backends)
        if endpoint_infos:
            balancer.record(STICKY, IPv4Address(client), endpoint_infos[-1], turn)
