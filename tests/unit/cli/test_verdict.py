"""Sentences for switches whose state differs from the API; the others: tests/switch/test_trace_sentences.py."""

from __future__ import annotations

from dataclasses import replace
from ipaddress import IPv4Address, IPv4Network

import pytest

from api.network.queries import TraceRequest, TraceResult, TraceStep
from cli.trace.explain import GENERIC, explain
from cli.trace.topology import ClusterTopology, Hop, Host
from tests.unit.cli.test_packet import BLUE, KNOWN, RED

NEAR = TraceRequest(enters="pod", sender="10.128.0.2", source="10.128.0.2", target="10.128.2.3")
FAR = TraceRequest(enters="tunnel", tunnel_source="10.245.2.3", vnid=10, source="10.128.0.2", target="10.128.2.3")
HOMELESS = replace(BLUE, node="node-3")
UNKNOWN = replace(KNOWN, vnids={"red": 10})


def drop(table: str, node: str, asked: TraceRequest) -> Hop:
    return Hop(node, asked, TraceResult((TraceStep(table),), vnid=10))


@pytest.mark.parametrize(
    ("target", "hop", "known", "why"),
    [
        (BLUE, drop("route", "node-1", NEAR), KNOWN, "node-1 does not know yet that 10.128.2.0/23 lies behind node-2"),
        (BLUE, drop("source", "node-2", FAR), KNOWN, "node-2 does not know yet that 10.128.0.0/23 lies behind node-1"),
        (HOMELESS, drop("route", "node-1", NEAR), KNOWN, "node-3 has no subnet"),
        (BLUE, drop("deliver", "node-2", FAR), UNKNOWN, "blue/b is cut off: blue has no VNID"),
        (BLUE, drop("source", "node-1", NEAR), KNOWN, f"no row of the table source {GENERIC}"),
        (BLUE, drop("flood", "node-1", NEAR), KNOWN, f"no row of the table flood {GENERIC}"),
    ],
)
def test_a_switch_that_is_behind_is_told_of(target: Host, hop: Hop, known: ClusterTopology, why: str) -> None:
    assert explain(RED, target, [hop], known) == f"dropped because {why}"


def test_with_the_flat_network_nobody_is_cut_off_for_want_of_a_vnid() -> None:
    flat = replace(KNOWN, vnids={})
    told = explain(RED, BLUE, [drop("deliver", "node-2", FAR)], flat)
    assert told == "dropped because blue/b is not attached to the switch of node-2"


def test_a_tunnel_to_somebody_who_is_gone() -> None:
    target = Host(IPv4Address("10.128.8.9"))
    first = Hop("node-1", NEAR, TraceResult((TraceStep("route"),), ("tunnel 10.245.2.99",), 10))
    known = replace(KNOWN, networks=(IPv4Network("10.128.0.0/14"),))
    assert explain(RED, target, [first], known) == "sent on: to 10.245.2.99, which is nobody's now"
