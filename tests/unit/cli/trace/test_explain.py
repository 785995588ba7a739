"""Explanations of traces, also to services and from outdated switches."""

from __future__ import annotations

import argparse
from dataclasses import replace
from ipaddress import IPv4Address, IPv4Network

import pytest
from msgspec import structs

from api.core.services import LoadBalancerIngress, LoadBalancerStatus, Service, ServicePort, ServiceSpec, ServiceStatus
from api.meta.types import ObjectMeta
from api.network.queries import RejectionReport, ServicePortReport, TraceRequest, TraceResult, TraceStep
from cli.trace.command import frontends_of
from cli.trace.explain import GENERIC, endpoint_lines, explain
from cli.trace.packet import add_arguments, build_request
from cli.trace.topology import ClusterTopology, Frontend, Hop, Host, next_hops
from tests.unit.cli.trace.examples import BLUE, KNOWN, RED

CLUSTER_IP = IPv4Address("172.30.0.9")
MAP = replace(
    KNOWN,
    frontends=(
        Frontend("blue/web", CLUSTER_IP, "tcp", 80),
        Frontend("blue/web", CLUSTER_IP, "udp", 53),
        Frontend("blue/web", IPv4Address("192.0.2.9"), "tcp", 80),
    ),
)
NODE = Host(IPv4Address("10.128.0.1"), "node-1", node="node-1")
WEB = ServicePortReport("blue/web", "80/TCP", vnid=11, cluster_endpoints=("10.128.2.3:8080",))
ASKED = TraceRequest("pod", "10.128.0.2", "172.30.0.9", sender="10.128.0.2", protocol="tcp", port=80)
DELIVERED = TraceResult(
    (TraceStep("classifier"), TraceStep("service_lb"), TraceStep("l3_forwarding")),
    ("tunnel 10.245.2.4",),
    11,
    endpoint="10.128.2.3:8080",
    service=WEB,
    endpoints=("10.128.2.3:8080", "198.51.100.7:443"),
    rejected=(RejectionReport("blue/web", "endpoint 10.128.9.9:8080", "is in the cluster network, but no pod has it"),),
)
STOPPED = structs.replace(DELIVERED, outputs=(), endpoint="", steps=(TraceStep("classifier"), TraceStep("service_lb")))


def explanation(answer: TraceResult, *onward: Hop, trace_request: TraceRequest = ASKED, source: Host = RED) -> str:
    target = MAP.find_host("blue/web")
    assert target is not None
    return explain(source, target, [Hop("node-1", trace_request, answer), *onward], MAP)


def test_explanation_of_a_delivered_connection_names_its_endpoint() -> None:
    far = Hop("node-2", ASKED, TraceResult((TraceStep("pod_output"),), ("pod 10.128.2.3",), 11))
    assert (
        explanation(DELIVERED, far) == "delivered: red/a reaches blue/b on node-2, an endpoint of the service blue/web"
    )


@pytest.mark.parametrize("endpoints", [(), ("10.128.2.3:80",)])
def test_explanation_of_a_fragment_to_a_service(endpoints: tuple[str, ...]) -> None:
    first = structs.replace(ASKED, protocol="udp", fragment="first")
    dropped = structs.replace(STOPPED, vnid=11, endpoints=endpoints)
    expected = "dropped because the switch of node-1 lets no connection to the service blue/web begin with a fragment"
    assert explanation(dropped, trace_request=first) == expected
    assert explanation(dropped) != expected


def test_explanation_names_the_endpoint_that_drops_the_packet() -> None:
    far = Hop("node-2", ASKED, TraceResult((TraceStep("pod_output"),), (), 10))
    assert explanation(DELIVERED, far) == "dropped because red (VNID 10) may not reach blue (VNID 11)"


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (
            structs.replace(STOPPED, vnid=10),
            "dropped because red (VNID 10) may not connect to the service blue/web (VNID 11)",
        ),
        (
            structs.replace(
                STOPPED, outputs=("node",), endpoints=(), service=structs.replace(WEB, cluster_endpoints=())
            ),
            "refused by node-1: the service blue/web has no ready endpoint",
        ),
        (
            structs.replace(STOPPED, outputs=("node",), endpoints=()),
            "refused by node-1: the service blue/web accepts connections at endpoints on node-1 only, "
            "and there is none",
        ),
        (
            structs.replace(STOPPED, outputs=("node",)),
            "delivered: red/a reaches the proxy of node-1, which connects to an endpoint of the service blue/web",
        ),
        (
            structs.replace(DELIVERED, steps=(), outputs=(), endpoint="198.51.100.7:443"),
            "forwarded: node-1 connects to 198.51.100.7:443, an endpoint of the service blue/web "
            "outside of the cluster network",
        ),
    ],
)
def test_explanation_states_why_a_connection_reaches_no_pod(answer: TraceResult, words: str) -> None:
    assert explanation(answer) == words


@pytest.mark.parametrize(
    ("cluster_endpoints", "sentence"),
    [
        (
            ("10.128.2.3:8080",),
            "dropped because the service blue/web accepts connections at endpoints on node-1 only, and there is none",
        ),
        ((), "refused by node-1: the service blue/web has no ready endpoint"),
    ],
)
def test_explanation_for_an_external_client_depends_on_endpoints_of_other_nodes(
    cluster_endpoints: tuple[str, ...], sentence: str
) -> None:
    service = structs.replace(WEB, cluster_endpoints=cluster_endpoints)
    assert explanation(TraceResult(service=service), source=Host(IPv4Address("203.0.113.5"))) == sentence


@pytest.mark.parametrize(
    ("target", "trace_request", "why"),
    [
        ("172.30.0.77", ASKED, "172.30.0.77 is a service address, and no service has it"),
        ("blue/web", structs.replace(ASKED, port=81), "node-1 serves no port 81/TCP of blue/web"),
        ("blue/web", structs.replace(ASKED, protocol="icmp", port=0), "services take tcp, udp, sctp, not icmp"),
        (
            "10.245.2.4",
            structs.replace(ASKED, port=30999),
            "port 30999/TCP is in the range of node ports, and no service has it",
        ),
    ],
)
def test_explanation_states_why_a_frontend_is_not_served(target: str, trace_request: TraceRequest, why: str) -> None:
    end = MAP.find_host(target)
    assert end is not None
    hop = Hop("node-1", trace_request, TraceResult((TraceStep("classifier"), TraceStep("service_lb")), vnid=10))
    assert explain(RED, end, [hop], MAP) == f"dropped because {why}"


def test_trace_output_lists_all_and_rejected_endpoints() -> None:
    sticky = structs.replace(DELIVERED, service=structs.replace(WEB, affinity_seconds=600))
    assert list(endpoint_lines(Hop("node-1", ASKED, sticky), MAP)) == [
        "blue/web 80/TCP on node-1: blue/b (10.128.2.3:8080) (traced), 198.51.100.7:443; "
        "a client keeps its endpoint for 600 s",
        "rejected: endpoint 10.128.9.9:8080 is in the cluster network, but no pod has it",
    ]
    assert list(endpoint_lines(Hop("node-1", ASKED, TraceResult()), MAP)) == []


def test_trace_query_to_the_next_switch_targets_the_endpoint() -> None:
    [(node, trace_request)] = next_hops(Hop("node-1", ASKED, DELIVERED), MAP)
    assert (node, trace_request.target, trace_request.port, trace_request.source) == (
        "node-2",
        "10.128.2.3",
        8080,
        "10.128.0.2",
    )
    outside = structs.replace(ASKED, enters="node", source="203.0.113.5", sender="")
    [(_, trace_request)] = next_hops(Hop("node-1", outside, DELIVERED), MAP)
    assert (trace_request.source, trace_request.enters) == ("10.128.0.1", "tunnel")


@pytest.mark.parametrize(
    ("words", "kind"),
    [
        ("red/a blue/web", ("172.30.0.9", "tcp", 80)),
        ("red/a 172.30.0.9", ("172.30.0.9", "tcp", 80)),
        ("red/a blue/web --proto udp", ("172.30.0.9", "udp", 53)),
        ("red/a blue/web --port 53", ("172.30.0.9", "udp", 53)),
        ("red/a blue/web --port 81", ("172.30.0.9", "tcp", 81)),
        ("red/a blue/web --proto icmp", ("172.30.0.9", "icmp", 0)),
        ("red/a 192.0.2.9", ("192.0.2.9", "tcp", 80)),
        ("red/a blue/b", ("10.128.2.3", "icmp", 0)),
    ],
)
def test_trace_defaults_protocol_and_port_from_the_service(words: str, kind: tuple[str, str, int]) -> None:
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    arguments = parser.parse_args(words.split())
    source, target = MAP.find_host(arguments.source), MAP.find_host(arguments.target)
    assert source is not None
    assert target is not None
    _, trace_request = build_request(arguments, source, target, MAP)
    assert (trace_request.target, trace_request.protocol, trace_request.port) == kind


def test_service_cannot_be_a_trace_source() -> None:
    service = MAP.find_host("blue/web")
    assert service == Host(CLUSTER_IP, "blue/web")
    assert service.enters == ""
    assert (NODE.enters, BLUE.enters) == ("node", "pod")


def test_frontends_are_addresses_and_ports_of_services() -> None:
    ports = (ServicePort(port=80), ServicePort(port=53, protocol="UDP"), ServicePort(port=9, protocol="SCTP"))
    spec = ServiceSpec(cluster_ip="172.30.0.9", external_ips=("192.0.2.9",), ports=ports)
    ingress = LoadBalancerStatus(ingress=(LoadBalancerIngress(ip="172.29.0.1"), LoadBalancerIngress(hostname="web")))
    meta = ObjectMeta(name="web", namespace="blue")
    service = Service(metadata=meta, spec=spec, status=ServiceStatus(load_balancer=ingress))
    headless = Service(
        metadata=ObjectMeta(name="none", namespace="blue"), spec=ServiceSpec(cluster_ip="None", ports=ports)
    )
    frontends = frontends_of([service, headless])
    assert {str(frontend.address) for frontend in frontends} == {"172.30.0.9", "192.0.2.9", "172.29.0.1"}
    assert {(frontend.name, frontend.protocol, frontend.port) for frontend in frontends} == {
        ("blue/web", "tcp", 80),
        ("blue/web", "udp", 53),
    }


NEAR = TraceRequest(enters="pod", sender="10.128.0.2", source="10.128.0.2", target="10.128.2.3")
FAR = TraceRequest(enters="tunnel", tunnel_source="10.245.2.3", vnid=10, source="10.128.0.2", target="10.128.2.3")
HOMELESS = replace(BLUE, node="node-3")
UNKNOWN = replace(KNOWN, vnids={"red": 10})


def drop(table: str, node: str, trace_request: TraceRequest) -> Hop:
    return Hop(node, trace_request, TraceResult((TraceStep(table),), vnid=10))


@pytest.mark.parametrize(
    ("target", "hop", "topology", "why"),
    [
        (
            BLUE,
            drop("l3_forwarding", "node-1", NEAR),
            KNOWN,
            "node-1 does not know yet that 10.128.2.0/23 is the subnet of node-2",
        ),
        (
            BLUE,
            drop("classifier", "node-2", FAR),
            KNOWN,
            "node-2 does not know yet that 10.128.0.0/23 is the subnet of node-1",
        ),
        (HOMELESS, drop("l3_forwarding", "node-1", NEAR), KNOWN, "node-3 has no subnet"),
        (BLUE, drop("pod_output", "node-2", FAR), UNKNOWN, "blue/b is cut off: blue has no VNID"),
        (BLUE, drop("classifier", "node-1", NEAR), KNOWN, f"no flow of the table classifier {GENERIC}"),
        (BLUE, drop("multicast_tunnel", "node-1", NEAR), KNOWN, f"no flow of the table multicast_tunnel {GENERIC}"),
    ],
)
def test_explanation_reports_an_outdated_switch(target: Host, hop: Hop, topology: ClusterTopology, why: str) -> None:
    assert explain(RED, target, [hop], topology) == f"dropped because {why}"


def test_explanation_in_the_flat_network_mentions_no_missing_vnid() -> None:
    flat = replace(KNOWN, vnids={})
    reported = explain(RED, BLUE, [drop("pod_output", "node-2", FAR)], flat)
    assert reported == "dropped because blue/b is not attached to the switch of node-2"


def test_explanation_reports_a_tunnel_to_a_deleted_node() -> None:
    target = Host(IPv4Address("10.128.8.9"))
    first = Hop("node-1", NEAR, TraceResult((TraceStep("l3_forwarding"),), ("tunnel 10.245.2.99",), 10))
    topology = replace(KNOWN, networks=(IPv4Network("10.128.0.0/14"),))
    assert explain(RED, target, [first], topology) == "forwarded to 10.245.2.99: no host has this address any more"
