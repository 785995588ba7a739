"""Megaflows: what the datapath's cache distinguishes between packets of two pods, and to services."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from ipaddress import IPv4Address

import pytest

from sdn.model.service_port import EndpointInfo, Protocol, ServicePortInfo, ServicePortName
from sdn.pipeline.service import ServiceFlows
from sdn.pipeline.tables import MAX_SENDERS
from sdn.topology import VXLAN_OFPORT, mac_of
from tests.testbed import frames
from tests.testbed.isolation.world import NODES
from tests.testbed.trace.dummy_switch import DummySwitch
from tests.testbed.trace.trace_world import TraceWorld, populate

PER_PACKET = {"tp_src", "tp_dst", "icmp_type", "icmp_code", "ct_state"}
"""Fields that differ between packets of one pod to another, as `ofproto/trace` names them."""

PAYLOADS: dict[str, Callable[[IPv4Address, IPv4Address], bytes]] = {
    "TCP": lambda source, target: frames.tcp_syn(source, target, b""),
    "UDP": lambda source, target: frames.udp(source, target, b"marker"),
    "ICMP": lambda source, target: frames.icmp_echo(source, target, b"marker"),
}


@pytest.fixture(scope="module")
def world() -> Iterator[TraceWorld]:
    with ExitStack() as stack:
        trace_world = populate({name: stack.enter_context(DummySwitch()) for name in NODES}, multitenant=True)
        for name, switch in trace_world.switches.items():
            node = trace_world.networks[name].node
            switch.replace_services(ServiceFlows(node).sync(services(trace_world)))
        yield trace_world


def services(world: TraceWorld) -> list[ServicePortInfo]:
    """Return services of every project, by TCP and UDP: red-b is an endpoint, and blue has too many for a flow each."""
    many = [IPv4Address("10.130.0.2") + number for number in range(MAX_SENDERS + 1)]
    endpoints = {"red": [world.pods["red-b"].address], "blue": many, "default": many[:2]}
    return [
        ServicePortInfo(
            key=ServicePortName(project, "web", "", protocol),
            vnid=world.vnid(project),
            cluster_ip=IPv4Address("172.30.0.9") + number,
            port=80,
            internal_endpoints=tuple(EndpointInfo(address, 8080) for address in addresses),
            cluster_endpoints=tuple(EndpointInfo(address, 8080) for address in addresses),
        )
        for number, (project, addresses) in enumerate(endpoints.items())
        for protocol in (Protocol.TCP, Protocol.UDP)
    ]


def distinguished(world: TraceWorld, source: str, target: str, protocol: str) -> set[str]:
    """Return the fields of one packet that the megaflows of all switches on its way match, of those that differ."""
    sender, receiver = world.pods[source], world.pods[target]
    mac = receiver.mac if sender.node == receiver.node else mac_of(receiver.address)
    frame = frames.ethernet(mac, sender.mac, frames.IPV4, PAYLOADS[protocol](sender.address, receiver.address))
    text = world.switches[sender.node].trace(f"in_port={world.ports[source]}", frame)
    if receiver.node != sender.node:
        tunnel = f"in_port={VXLAN_OFPORT},tun_src={world.node_address(sender.node)}"
        tunnel += f",tun_dst={world.node_address(receiver.node)},tun_id={world.vnid(sender.project)}"
        text += world.switches[receiver.node].trace(tunnel, frame)
    megaflows = re.findall(r"^Megaflow: (.*)$", text, re.MULTILINE)
    assert megaflows
    fields = {field.partition("=")[0] for megaflow in megaflows for field in megaflow.split(",")}
    return fields & PER_PACKET


@pytest.mark.parametrize("protocol", PAYLOADS)
@pytest.mark.parametrize(
    ("source", "target"), [("red-a", "red-b"), ("red-a", "red-c"), ("red-c", "red-a"), ("admin-a", "red-a")]
)
def test_pods_need_one_megaflow_for_each_direction_and_protocol(
    world: TraceWorld, source: str, target: str, protocol: str
) -> None:
    assert distinguished(world, source, target, protocol) == set()


def test_packets_of_an_endpoint_are_distinguished_by_what_makes_them_replies(world: TraceWorld) -> None:
    assert distinguished(world, "red-b", "red-a", "TCP") == {"tp_src"}
    assert distinguished(world, "red-b", "red-a", "ICMP") == {"icmp_type"}


def test_all_senders_of_a_vnid_with_many_endpoints_may_be_endpoints(world: TraceWorld) -> None:
    assert distinguished(world, "blue-a", "blue-b", "TCP") == {"tp_src"}
    assert distinguished(world, "red-a", "red-c", "TCP") == set()
