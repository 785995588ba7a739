"""What a trace means: whether packets pass, why, and the command that would change it."""

from __future__ import annotations

from dataclasses import replace
from ipaddress import IPv4Address

import pytest
from msgspec import structs

from api.network.queries import ServicePortReport, TraceRequest, TraceResult, TraceStep
from cli.command import UsageError
from cli.trace.topology import ClusterTopology, Frontend, Hop, Host
from cli.trace.verdict import (
    MULTICAST_ANNOTATION,
    OUTSIDE,
    Verdict,
    not_judged,
    outside_to_cluster_ip,
    outside_to_other_port,
    outside_to_pod,
    sender_problem,
    verdict,
)
from cli.why import _port, _service_names
from tests.unit.cli.trace.examples import BLUE, KNOWN, RED

TOPOLOGY = replace(KNOWN, frontends=(Frontend("blue/web", IPv4Address("172.30.0.9"), "tcp", 80),))
SERVICE = Host(IPv4Address("172.30.0.9"), "blue/web")
WEB = ServicePortReport("blue/web", "80/TCP", vnid=11, cluster_endpoints=("10.128.2.3:8080",))
TO_BLUE = TraceResult((TraceStep("pod_output"),), ("pod 10.128.2.3",), 10)
JOIN = "to change it: podlane network join red --to blue"


def hop(result: TraceResult, node: str = "node-2") -> Hop:
    return Hop(
        node, TraceRequest("pod", "10.128.0.2", "10.128.2.3", sender="10.128.0.2", protocol="tcp", port=80), result
    )


def dropped(reason: str, table: str = "pod_output") -> TraceResult:
    return TraceResult((TraceStep(table, drop_reason=reason),), (), 10)


def judged(
    result: TraceResult, target: Host = BLUE, source: Host = RED, topology: ClusterTopology = TOPOLOGY
) -> Verdict:
    return verdict(source, target, [hop(result)], topology)


@pytest.mark.parametrize(
    ("source", "problem"),
    [
        ("8.8.8.8", "SRC is 8.8.8.8, which is no address of the cluster; outside is accepted"),
        ("10.245.2.4", "SRC is 10.245.2.4, an address of node-2; node-2 is accepted"),
        ("10.131.0.9", "SRC is 10.131.0.9, which is in the subnet of no node; PROJECT/POD or a node is accepted"),
        ("blue/web", "SRC is blue/web, a service, which only receives; one of its pods is accepted"),
        ("172.30.7.7", "SRC is 172.30.7.7, a service, which only receives; one of its pods is accepted"),
        ("red/a", ""),
        ("node-1", ""),
        ("10.128.0.77", ""),
    ],
)
def test_sources_that_send_nothing_into_the_pod_network_are_refused(source: str, problem: str) -> None:
    host = TOPOLOGY.find_host(source)
    assert host is not None
    assert sender_problem(host, TOPOLOGY) == problem
    assert sender_problem(OUTSIDE, TOPOLOGY) == ""


@pytest.mark.parametrize(
    ("address", "reason"),
    [
        ("127.0.0.1", "packets to 127.0.0.1 do not leave red/a"),
        ("0.0.0.0", "packets to 0.0.0.0 do not leave red/a"),
        ("169.254.169.254", "169.254.169.254 is on the link of the node of red/a"),
        ("240.0.0.1", "240.0.0.1 is a reserved address"),
    ],
)
def test_addresses_about_which_the_pod_network_does_not_decide_are_not_judged(address: str, reason: str) -> None:
    assert not_judged(RED, Host(IPv4Address(address))).startswith(reason)


@pytest.mark.parametrize("address", ["8.8.8.8", "10.128.2.3", "172.30.0.9", "239.1.2.3", "255.255.255.255"])
def test_addresses_that_a_trace_judges(address: str) -> None:
    assert not_judged(RED, Host(IPv4Address(address))) == ""


@pytest.mark.parametrize(
    ("address", "receiver"),
    [("127.0.0.1", "the network stack of node-2, which forwards nothing to 127.0.0.1"), ("8.8.8.8", "the outside")],
)
def test_nodes_forward_nothing_to_loopback(address: str, receiver: str) -> None:
    found = judged(TraceResult((TraceStep("external_output"),), ("node",), 10), Host(IPv4Address(address)))
    assert found.sentence.startswith(f"delivered: red/a reaches {receiver}")


def test_packets_between_isolated_projects_pass_after_a_join() -> None:
    found = judged(dropped("other_project"))
    assert found == Verdict(False, "dropped because red (VNID 10) may not reach blue (VNID 11)", JOIN)
    joined = judged(TO_BLUE, topology=replace(TOPOLOGY, vnids={"red": 10, "blue": 10}))
    sentence = "delivered: red/a reaches blue/b on node-2, because red and blue share VNID 10"
    assert joined == Verdict(True, sentence)


@pytest.mark.parametrize(
    ("vnids", "target", "reason"),
    [
        ({"red": 10, "blue": 0}, BLUE, ", because blue has VNID 0, which is open to all projects"),
        ({"red": 0, "blue": 11}, BLUE, ", because red has VNID 0, which is open to all projects"),
        ({"red": 10}, replace(BLUE, project="red", name="red/b"), ", because both belong to red (VNID 10)"),
        ({}, BLUE, ""),
    ],
)
def test_the_reason_why_packets_pass_is_that_of_the_vnids(vnids: dict[str, int], target: Host, reason: str) -> None:
    found = judged(TO_BLUE, target, topology=replace(TOPOLOGY, vnids=vnids, pods=(RED, target)))
    assert found == Verdict(True, f"delivered: red/a reaches {target} on node-2{reason}")


@pytest.mark.parametrize(
    ("result", "target", "advice"),
    [
        (dropped("no_pod"), Host(IPv4Address("10.128.2.9"), node="node-2"), "to see why: kubectl get pods -A -o wide"),
        (dropped("no_service", "service_lb"), SERVICE, "to see why: kubectl get service -n blue web"),
        (
            dropped("no_service", "service_lb"),
            Host(IPv4Address("172.30.0.99")),
            "to see why: kubectl get services -A",
        ),
        (
            dropped("multicast_disabled", "l3_forwarding"),
            Host(IPv4Address("224.0.0.5")),
            f"to change it: kubectl annotate netnamespace red {MULTICAST_ANNOTATION}=true",
        ),
        (dropped("spoofed", "classifier"), BLUE, ""),
    ],
)
def test_each_drop_has_its_command(result: TraceResult, target: Host, advice: str) -> None:
    found = judged(result, target)
    assert (found.passes, found.advice) == (False, advice)
    assert found.sentence.startswith("dropped because ")


LB = (TraceStep("classifier"), TraceStep("service_lb", drop_reason="no_service"))


@pytest.mark.parametrize(
    ("result", "advice"),
    [
        (TraceResult(LB, (), 10, service=WEB), JOIN),
        (
            TraceResult(LB, ("node",), 11, service=structs.replace(WEB, cluster_endpoints=())),
            "to see why: kubectl get pods,endpoints -n blue",
        ),
        (
            TraceResult(LB, ("node",), 11, service=WEB),
            """to change it: kubectl patch service -n blue web -p '{"spec": {"internalTrafficPolicy": "Cluster"}}'""",
        ),
    ],
)
def test_each_refused_connection_to_a_service_has_its_command(result: TraceResult, advice: str) -> None:
    found = judged(result, SERVICE)
    assert (found.passes, found.advice) == (False, advice)


def test_a_drop_at_the_endpoint_names_the_project_of_the_endpoint() -> None:
    first = hop(
        TraceResult((TraceStep("service_lb"),), ("tunnel 10.245.2.4",), 10, endpoint="10.128.2.3:80", service=WEB)
    )
    found = verdict(RED, SERVICE, [first, hop(dropped("other_project"))], TOPOLOGY)
    assert (found.passes, found.advice) == (False, JOIN)


def test_outside_reaches_pods_through_services_only() -> None:
    expose = "to change it: kubectl expose pod -n blue b --type=NodePort --port=PORT"
    assert (outside_to_pod(BLUE).passes, outside_to_pod(BLUE).advice) == (False, expose)
    assert "kubectl patch service -n blue web" in outside_to_cluster_ip(SERVICE).advice
    assert outside_to_other_port(SERVICE, 81).sentence == "dropped because blue/web has no port 81"
    assert OUTSIDE.enters == ""


@pytest.mark.parametrize(
    ("text", "project", "names"),
    [
        ("web", "red", ["red/web"]),
        ("web", "", []),
        ("web.blue", "red", ["blue/web"]),
        ("web.blue.svc", "red", ["blue/web"]),
        ("web.blue.svc.cluster.local.", "", ["blue/web"]),
        ("web.blue.example.com", "red", []),
    ],
)
def test_names_of_services_are_those_that_pods_use(text: str, project: str, names: list[str]) -> None:
    assert list(_service_names(text, project)) == names


@pytest.mark.parametrize("text", ["0", "65536", "http", "80/sctp", "-1", "9" * 5000])
def test_a_wrong_port_is_refused(text: str) -> None:
    assert (_port("80"), _port("53/UDP"), _port("")) == ((80, "tcp"), (53, "udp"), (0, ""))
    with pytest.raises(UsageError, match="1 to 65535 is accepted"):
        _port(text)
