"""Traces of service connections on real switches, and the resulting sentences."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from ipaddress import IPv4Address

import pytest

from cli.trace.explain import endpoint_lines
from sdn.model.service_port import EndpointInfo, Protocol, ProxyMode, ServicePortInfo, ServicePortName
from sdn.pipeline.service import ServiceFlows
from tests.testbed.isolation.world import NODES
from tests.testbed.trace.dummy_switch import DummySwitch
from tests.testbed.trace.trace_command import Ports, full_name, hops, sentence_for, topology_of
from tests.testbed.trace.trace_world import TraceWorld, populate

OUTSIDE_IP = IPv4Address("192.0.2.9")


def service(
    world: TraceWorld, node: str, name: str, number: int, pods: str = "", protocol: Protocol = Protocol.TCP
) -> ServicePortInfo:
    """Return a service of the project red on port 80 with a node port."""
    backends = tuple(
        EndpointInfo(world.pods[pod].address, 8080, is_local=world.pods[pod].node == node) for pod in pods.split()
    )
    return ServicePortInfo(
        key=ServicePortName("red", name, "", protocol),
        vnid=10,
        cluster_ip=IPv4Address("172.30.0.0") + number,
        port=80,
        node_port=30000 + number,
        internal_endpoints=backends,
        cluster_endpoints=backends,
        external_endpoints=backends,
    )


def served(world: TraceWorld, node: str) -> tuple[ServicePortInfo, ...]:
    return (
        replace(service(world, node, "web", 1, "red-b red-c"), external_ips=(OUTSIDE_IP,)),
        service(world, node, "far", 2, "red-c"),
        service(world, node, "self", 3, "red-a"),
        service(world, node, "empty", 4),
        replace(service(world, node, "sticky", 5, "red-b red-c"), affinity_timeout_seconds=600),
        service(world, node, "names", 6, "red-b", Protocol.UDP),
        replace(
            service(world, node, "local", 7, "red-c"),
            external_endpoints=(),
            external_policy_local=True,
            health_port=30107,
        ),
        replace(
            service(world, node, "all", 8, "admin-b"), vnid=0, key=ServicePortName("default", "all", "", Protocol.TCP)
        ),
    )


@pytest.fixture(scope="module")
def world() -> Iterator[TraceWorld]:
    with ExitStack() as stack:
        trace_world = populate({name: stack.enter_context(DummySwitch()) for name in NODES}, multitenant=True)
        for name, switch in trace_world.switches.items():
            switch.replace_services(ServiceFlows(trace_world.networks[name].node).sync(served(trace_world, name)))
        yield trace_world


@pytest.fixture(scope="module")
def ports(world: TraceWorld) -> Ports:
    return {name: served(world, name) for name in NODES}


WEB = "an endpoint of the service red/web"
SENTENCES = {
    "red/red-a red/web": f"delivered: red/red-a reaches red/red-b on node-1, {WEB}",
    "red/red-c red/web": f"delivered: red/red-c reaches red/red-b on node-1, {WEB}",
    "red/red-a 172.30.0.1 --proto tcp --port 80": f"delivered: red/red-a reaches red/red-b on node-1, {WEB}",
    "red/red-a 192.0.2.9": f"delivered: red/red-a reaches red/red-b on node-1, {WEB}",
    "red/red-a 10.245.2.3 --proto tcp --port 30001": f"delivered: red/red-a reaches red/red-b on node-1, {WEB}",
    "red/red-a 10.245.2.4 --proto tcp --port 30001": f"delivered: red/red-a reaches red/red-b on node-1, {WEB}",
    "default/admin-a red/web": f"delivered: default/admin-a reaches red/red-b on node-1, {WEB}",
    "red/red-a red/far": "delivered: red/red-a reaches red/red-c on node-2, an endpoint of the service red/far",
    "red/red-a red/self": "delivered: red/red-a reaches red/red-a on node-1, an endpoint of the service red/self",
    "red/red-a red/names": "delivered: red/red-a reaches red/red-b on node-1, an endpoint of the service red/names",
    "blue/blue-a default/all": "delivered: blue/blue-a reaches default/admin-b on node-2, "
    "an endpoint of the service default/all",
    # externalTrafficPolicy Local
    "red/red-a 10.245.2.3 --proto tcp --port 30007": "delivered: red/red-a reaches red/red-c on node-2, "
    "an endpoint of the service red/local",
    "red/red-a 10.245.2.4 --proto tcp --port 30007": "delivered: red/red-a reaches node-2, with the address of node-1, "
    "and gets an endpoint of the service red/local on node-2 only (externalTrafficPolicy Local)",
    "blue/blue-a 10.245.2.4 --proto tcp --port 30007": "dropped because blue (VNID 11) may not connect to "
    "the service red/local (VNID 10)",
    # health checks
    "red/red-a 10.245.2.3 --proto tcp --port 30107": "delivered: red/red-a reaches node-1 itself",
    "red/red-a 10.245.2.4 --proto tcp --port 30107": "delivered: red/red-a reaches node-2, with the address of node-1",
    "blue/blue-a 10.245.2.4 --proto tcp --port 30107": "dropped because port 30107/TCP is in the range of node ports, "
    "and no service has it",
    # others
    "blue/blue-a red/web": "dropped because blue (VNID 11) may not connect to the service red/web (VNID 10)",
    "blue/blue-a red/far": "dropped because blue (VNID 11) may not connect to the service red/far (VNID 10)",
    "blue/blue-a red/sticky": "dropped because blue (VNID 11) may not connect to the service red/sticky (VNID 10)",
    "blue/blue-a 192.0.2.9": "dropped because blue (VNID 11) may not connect to the service red/web (VNID 10)",
    "blue/blue-b 10.245.2.3 --proto tcp --port 30001": "dropped because blue (VNID 11) may not connect to "
    "the service red/web (VNID 10)",
    "blue/blue-a red/empty": "dropped because blue (VNID 11) may not connect to the service red/empty (VNID 10)",
    # nobody
    "red/red-a red/empty": "refused by node-1: the service red/empty has no ready endpoint",
    "red/red-a 172.30.0.77 --proto tcp --port 80": "dropped because 172.30.0.77 is a service address, "
    "and no service has it",
    "red/red-a red/web --port 81": "dropped because node-1 serves no port 81/TCP of red/web",
    "red/red-a red/web --proto icmp": "dropped because services take tcp, udp, sctp, not icmp",
    "red/red-a 10.245.2.4 --proto tcp --port 30999": "dropped because port 30999/TCP is in the range of node ports, "
    "and no service has it",
    "red/red-a 10.245.2.4 --proto tcp --port 22": "dropped because the firewall of node-1 rejects what comes from "
    "the pod network to tcp port 22 of node-2: podToNodePorts does not name it",
    # the node and the outside
    "node-1 red/web": f"delivered: node-1 reaches red/red-b on node-1, {WEB}",
    "node-1 red/far": "delivered: node-1 reaches red/red-c on node-2, an endpoint of the service red/far",
    "node-1 red/empty": "refused by node-1: the service red/empty has no ready endpoint",
    "8.8.8.8 10.245.2.3 --proto tcp --port 30001 --from-outside --on node-1": f"delivered: 8.8.8.8 reaches "
    f"red/red-b on node-1, {WEB}",
    "8.8.8.8 10.245.2.3 --proto tcp --port 30002 --from-outside --on node-1": "delivered: 8.8.8.8 reaches "
    "red/red-c on node-2, an endpoint of the service red/far",
    "8.8.8.8 10.245.2.3 --proto tcp --port 30007 --from-outside --on node-1": "dropped because the service red/local "
    "accepts connections at endpoints on node-1 only, and there is none",
}


@pytest.mark.parametrize(("words", "expected"), SENTENCES.items())
def test_trace_sentence_states_the_outcome_of_a_service_connection(
    world: TraceWorld, ports: Ports, words: str, expected: str
) -> None:
    assert sentence_for(world, words, ports) == expected


def test_trace_names_one_endpoint_with_session_affinity(world: TraceWorld, ports: Ports) -> None:
    target = {"red/red-b on node-1", "red/red-c on node-2"}
    output = sentence_for(world, "red/red-a red/sticky", ports)
    assert output in {
        f"delivered: red/red-a reaches {endpoint}, an endpoint of the service red/sticky" for endpoint in target
    }


def test_trace_lists_every_table_and_all_endpoints(world: TraceWorld, ports: Ports) -> None:
    first, second = hops(world, "red/red-a red/far", ports)
    assert [step.table for step in first.result.steps] == [
        "classifier",
        "service_conntrack",
        "service_lb",
        "l3_forwarding",
    ]
    owners = ["pod 10.128.0.2", "node node-1", "service red/far", "node node-2"]
    assert [step.owner for step in first.result.steps] == owners
    assert [step.table for step in second.result.steps] == [
        "classifier",
        "endpoint_lookup",
        "service_undnat",
        "pod_output",
    ]
    assert (second.request.target, second.request.port) == ("10.128.2.4", 8080)
    [dealt] = hops(world, "red/red-a red/web", ports)
    assert [step.table for step in dealt.result.steps] == [
        "classifier",
        "service_conntrack",
        "service_lb",
        "l3_forwarding",
        "endpoint_lookup",
        "service_undnat",
        "pod_output",
    ]
    assert list(endpoint_lines(dealt, topology_of(world, ports))) == [
        "red/web 80/TCP on node-1: red/red-b (10.128.0.3:8080) (traced), red/red-c (10.128.2.4:8080)"
    ]


def test_trace_sentence_agrees_with_the_vnids_for_every_pod(world: TraceWorld, ports: Ports) -> None:
    for pod in world.pods.values():
        ours = world.vnid(pod.project)
        for port in ports[pod.node]:
            kind = f"--proto {port.key.protocol.name.lower()} --port"
            fronts = [f"{port.cluster_ip} {kind} 80", *(f"{address} {kind} 80" for address in port.external_ips)]
            fronts += [f"{world.node_address(node)} {kind} {port.node_port}" for node in NODES]
            for front in fronts:
                output = sentence_for(world, f"{full_name(pod)} {front}", ports)
                if 0 not in {ours, port.vnid} and ours != port.vnid:
                    expected = f"dropped because {pod.project} (VNID {ours}) may not connect to the service"
                elif port.cluster_endpoints:
                    expected = f"delivered: {full_name(pod)} reaches "
                else:
                    expected = f"refused by {pod.node}: the service "
                assert output.startswith(expected), front


def test_trace_of_an_external_ip_names_services_as_the_flow_owner(world: TraceWorld, ports: Ports) -> None:
    [hop] = hops(world, "red/red-a 192.0.2.9 --proto icmp", ports)
    assert [step.owner for step in hop.result.steps if step.table == "service_conntrack"] == ["services"]


def test_trace_ends_at_the_userspace_proxy() -> None:
    with DummySwitch() as switch, DummySwitch() as other:
        trace_world = populate(dict(zip(NODES, (switch, other), strict=True)), multitenant=True)
        here = {"node-1": served(trace_world, "node-1")}
        switch.replace_services(
            ServiceFlows(trace_world.networks["node-1"].node, ProxyMode.USERSPACE).sync(here["node-1"])
        )
        assert sentence_for(trace_world, "red/red-a red/web", here) == (
            "delivered: red/red-a reaches the proxy of node-1, which connects to an endpoint of the service red/web"
        )
        assert sentence_for(trace_world, "blue/blue-a red/web", here) == (
            "dropped because blue (VNID 11) may not connect to the service red/web (VNID 10)"
        )
