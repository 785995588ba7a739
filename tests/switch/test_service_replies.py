"""Replies of endpoints pass connection tracking on the client's node, also while the daemon changes versions."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace

import pytest

from sdn.model.flow import Ct, Flow, FlowSet
from sdn.model.match import from_port
from sdn.model.service_port import EndpointInfo, Protocol
from sdn.pipeline.cookies import service_cookie
from sdn.pipeline.service import ServiceFlows
from sdn.pipeline.tables import CT_ZONE_SERVICE, Priority, Table
from sdn.topology import VXLAN_OFPORT, mac_of
from tests.testbed import frames
from tests.testbed.isolation.world import NODES
from tests.testbed.trace.dummy_switch import DummySwitch
from tests.testbed.trace.trace_world import TraceWorld, populate
from tests.unit.sdn.examples import web

PORT = 40000
"""The source port of `frames.tcp_syn`: such a packet is a reply if this is the port of an endpoint."""

TRACKED = f"ct(table={int(Table.POD_OUTPUT)},zone={CT_ZONE_SERVICE},nat)"


@pytest.fixture(scope="module")
def world() -> Iterator[TraceWorld]:
    with ExitStack() as stack:
        yield populate({name: stack.enter_context(DummySwitch()) for name in NODES}, multitenant=True)


def is_tracked(world: TraceWorld, sender: str, receiver: str) -> bool:
    """Return whether a packet passes connection tracking before the receiver gets it."""
    source, target = world.pods[sender], world.pods[receiver]
    frame = frames.ethernet(
        mac_of(target.address), source.mac, frames.IPV4, frames.tcp_syn(source.address, target.address, b"")
    )
    if source.node == target.node:
        enters = f"in_port={world.ports[sender]}"
    else:
        enters = f"in_port={VXLAN_OFPORT},tun_src={world.node_address(source.node)}"
        enters += f",tun_dst={world.node_address(target.node)},tun_id={world.vnid(source.project)}"
    text = world.switches[target.node].trace(enters, frame)
    assert f"output:{world.ports[receiver]}" in text or TRACKED in text
    return TRACKED in text


@pytest.mark.parametrize("endpoint", ["red-b", "red-c"])
def test_only_packets_of_endpoints_are_tracked(world: TraceWorld, endpoint: str) -> None:
    [other] = {"red-b", "red-c"} - {endpoint}
    there = (EndpointInfo(world.pods[endpoint].address, PORT),)
    port = replace(web(), internal_endpoints=there, cluster_endpoints=there)
    for name, switch in world.switches.items():
        flows = ServiceFlows(world.networks[name].node)
        switch.replace_services(flows.sync([port]))
    assert is_tracked(world, endpoint, "red-a")
    assert not is_tracked(world, other, "red-a")
    assert not is_tracked(world, "red-a", other)


@pytest.mark.parametrize("endpoint", ["red-b", "red-c"])
def test_flows_of_the_version_before_find_replies_until_they_are_replaced(world: TraceWorld, endpoint: str) -> None:
    """That version found replies by the port alone, in the first of today's tables."""
    [match] = from_port(Protocol.TCP, PORT)
    reply = Ct(CT_ZONE_SERVICE, int(Table.POD_OUTPUT))
    before = Flow(int(Table.ENDPOINT_LOOKUP), int(Priority.HIGH), match, (reply,), service_cookie())
    for switch in world.switches.values():
        switch.replace_services(FlowSet(frozenset({before})))
    assert is_tracked(world, endpoint, "red-a")
