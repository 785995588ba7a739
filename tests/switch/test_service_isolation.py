"""Every pod connects to every service at every frontend: the switches permit exactly what the model permits."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from ipaddress import IPv4Address

import pytest

from sdn.model.flow import FlowSet
from sdn.model.service_port import EndpointInfo, Protocol, ServicePortInfo, ServicePortName
from sdn.pipeline.compiler import compile_flows
from sdn.pipeline.service import ServiceFlows
from sdn.pipeline.tables import Table
from sdn.topology import GATEWAY_OFPORT, mac_of
from tests.testbed import frames
from tests.testbed.isolation.mutants import without_fields
from tests.testbed.isolation.world import NODES
from tests.testbed.trace.dummy_switch import DummySwitch
from tests.testbed.trace.trace_world import TraceWorld, populate

OUTSIDE = IPv4Address("198.51.100.9")
INGRESS = IPv4Address("172.29.0.1")
KINDS = {"pods": ("red-b", "red-c"), "outside": (), "nobody": None}


@pytest.fixture(scope="module")
def world() -> Iterator[TraceWorld]:
    with ExitStack() as stack:
        yield populate({name: stack.enter_context(DummySwitch()) for name in NODES}, multitenant=True)


def served(world: TraceWorld, project: str, kind: str, sticky: int = 0) -> ServicePortInfo:
    """Return a service whose backends are pods on both nodes, an external address, or none."""
    names = KINDS[kind]
    pods = [EndpointInfo(world.pods[name].address, 9999) for name in names or ()]
    there = tuple(pods or ([] if names is None else [EndpointInfo(OUTSIDE, 9999)]))
    key = ServicePortName(project, "web", "", Protocol.TCP)
    return ServicePortInfo(
        key=key,
        vnid=world.vnid(project),
        cluster_ip=IPv4Address("172.30.0.9"),
        port=80,
        node_port=30080,
        external_ips=(INGRESS,),
        internal_endpoints=there,
        cluster_endpoints=there,
        external_endpoints=there,
        affinity_timeout_seconds=sticky,
    )


def serve(world: TraceWorld, port: ServicePortInfo) -> None:
    for name, switch in world.switches.items():
        switch.replace_services(ServiceFlows(world.networks[name].node).sync([port]))


def fronts(world: TraceWorld) -> dict[str, tuple[IPv4Address, int]]:
    ports = {f"node port of {name}": (world.node_address(name), 30080) for name in world.switches}
    return {"cluster IP": (IPv4Address("172.30.0.9"), 80), "ingress IP": (INGRESS, 80), **ports}


def ends(world: TraceWorld, caller: str, address: IPv4Address, port: int) -> set[tuple[str, int]]:
    pod = world.pods[caller]
    segment = frames.tcp_syn(pod.address, address, b"")
    segment = segment[:22] + port.to_bytes(2, "big") + segment[24:]
    return world.ends(caller, frames.ethernet(mac_of(world.gateway(pod.node)), pod.mac, frames.IPV4, segment))


def wrong(world: TraceWorld, port: ServicePortInfo) -> list[str]:
    """Return the attempts whose outcome is not that of the model."""
    actual = []
    backends = {endpoint.address for endpoint in port.internal_endpoints}
    for caller, pod in world.pods.items():
        if pod.address in backends:
            continue  # it may be sent back, which is no output
        is_let = port.vnid == 0 or world.vnid(pod.project) in {0, port.vnid}
        for front, (address, number) in fronts(world).items():
            here = ends(world, caller, address, number)
            if here != here & _may_end(world, pod.node, port) or bool(here) != is_let:
                actual.append(f"{caller} at the {front}: {here}")
    return actual


def _may_end(world: TraceWorld, node: str, port: ServicePortInfo) -> set[tuple[str, int]]:
    addresses = {endpoint.address for endpoint in port.internal_endpoints}
    pods = {(pod.node, world.ports[name]) for name, pod in world.pods.items() if pod.address in addresses}
    return pods or {(node, GATEWAY_OFPORT)}


@pytest.mark.parametrize("sticky", [0, 60])
@pytest.mark.parametrize("kind", KINDS)
def test_only_project_and_global_pods_reach_a_service_at_any_frontend(
    world: TraceWorld, kind: str, sticky: int
) -> None:
    port = served(world, "red", kind, sticky)
    serve(world, port)
    assert not wrong(world, port)


def test_every_pod_reaches_a_global_service(world: TraceWorld) -> None:
    port = replace(served(world, "red", "outside"), vnid=0)
    serve(world, port)
    assert not wrong(world, port)


def test_node_port_without_a_service_reaches_nothing(world: TraceWorld) -> None:
    serve(world, served(world, "red", "pods"))
    node = world.node_address("node-2")
    assert ends(world, "red-a", node, 22) == {("node-1", GATEWAY_OFPORT)}
    for port in (30000, 30081, 32767):
        assert not ends(world, "red-a", node, port)


REMOVED_FIELDS = {"no match on the VNID": "reg0", "no match on the port": "tcp_dst"}


@pytest.mark.parametrize("hole", REMOVED_FIELDS)
def test_mutant_of_service_flows_is_detected(world: TraceWorld, hole: str) -> None:
    port = served(world, "red", "outside")
    for name, switch in world.switches.items():
        flow_set = ServiceFlows(world.networks[name].node).sync([port])
        flows = without_fields(flow_set.flows, Table.SERVICE_LB, REMOVED_FIELDS[hole])
        switch.replace_services(FlowSet(flows, flow_set.groups))
    assert wrong(world, port) or ends(world, "red-a", IPv4Address("172.30.0.9"), 81)


def test_mutant_of_the_table_before_service_flows_is_detected(world: TraceWorld) -> None:
    """Without the flow that drops packets to node ports, a packet of another project would leave through tun0."""
    serve(world, served(world, "red", "outside"))
    node = world.node_address("node-2")
    assert not ends(world, "blue-a", node, 30080)
    for name, switch in world.switches.items():
        closing = [
            flow for flow in compile_flows(world.networks[name]) if flow.table == Table.SERVICE_LB and not flow.actions
        ]
        switch.replace(compile_flows(world.networks[name]) - frozenset(closing))
    try:
        assert ends(world, "blue-a", node, 30080) == {("node-1", GATEWAY_OFPORT)}
    finally:
        for name, switch in world.switches.items():
            switch.replace(compile_flows(world.networks[name]))
