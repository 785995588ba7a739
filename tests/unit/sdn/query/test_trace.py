"""The service of a traced packet, and the steps of its path."""

from __future__ import annotations

import asyncio
import dataclasses
from ipaddress import IPv4Address

import pytest
from msgspec import structs

from api.network.queries import TraceRequest, TraceResult, TraceStep
from sdn.model.service_port import EndpointInfo, Protocol, ServicePortInfo, ServicePortName
from sdn.proxy.service_ports import Rejection, ServiceState
from sdn.query.trace import ServiceConnection, service_connection, trace_service_connection
from sdn.topology import NodeNetwork
from tests.unit.sdn.examples import CLUSTER, NODE, PROXY_CONFIG

OTHER = IPv4Address("10.245.2.4")
NETWORK = NodeNetwork(CLUSTER, NODE, frozenset(), frozenset())
CONFIG = dataclasses.replace(PROXY_CONFIG, vnids={"red": 10}, node_ips=frozenset({NODE.address, OTHER}))
HERE, THERE = (
    EndpointInfo(IPv4Address("10.128.0.2"), 8080, is_local=True),
    EndpointInfo(IPv4Address("10.128.2.2"), 8080),
)
WEB = ServicePortInfo(
    key=ServicePortName("red", "web", "", Protocol.TCP),
    vnid=10,
    cluster_ip=IPv4Address("172.30.0.9"),
    port=80,
    node_port=30080,
    external_ips=(IPv4Address("192.0.2.9"),),
    internal_endpoints=(THERE, HERE),
    cluster_endpoints=(THERE,),
    external_endpoints=(HERE,),
)
SERVED = ServiceState({WEB.key: WEB}, (Rejection("endpoint 10.128.4.4:8080", "is in the cluster network"),))
FROM_POD = TraceRequest("pod", "10.128.0.7", "172.30.0.9", sender="10.128.0.7", protocol="tcp", port=80)
FROM_NODE = TraceRequest("node", "10.128.0.1", "172.30.0.9", protocol="tcp", port=80)
FROM_OUTSIDE = TraceRequest("node", "203.0.113.5", "10.245.2.3", protocol="tcp", port=30080)


def find(trace_request: TraceRequest) -> ServiceConnection | None:
    return service_connection(trace_request, CONFIG, [WEB], {("red", "web"): SERVED})


@pytest.mark.parametrize(
    ("trace_request", "backends"),
    [
        (FROM_POD, (THERE, HERE)),
        (structs.replace(FROM_POD, target="10.245.2.4", port=30080), (THERE,)),
        (structs.replace(FROM_POD, target="192.0.2.9"), (THERE,)),
        (structs.replace(FROM_POD, enters="docker"), (THERE, HERE)),
        (FROM_NODE, (THERE, HERE)),
        (structs.replace(FROM_NODE, target="192.0.2.9"), (THERE,)),
        (FROM_OUTSIDE, (HERE,)),
        (structs.replace(FROM_OUTSIDE, target="192.0.2.9", port=80), (HERE,)),
    ],
)
def test_trace_endpoints_are_those_available_to_the_caller(
    trace_request: TraceRequest, backends: tuple[EndpointInfo, ...]
) -> None:
    actual = find(trace_request)
    assert actual is not None
    assert (actual.port, actual.endpoints) == (WEB, backends)


@pytest.mark.parametrize(
    "trace_request",
    [
        structs.replace(FROM_POD, port=81),
        structs.replace(FROM_POD, protocol="udp"),
        structs.replace(FROM_POD, protocol="icmp", port=0),
        structs.replace(FROM_POD, target="10.128.0.1", port=30080),
        structs.replace(FROM_POD, enters="tunnel", sender="", tunnel_source="10.245.2.4"),
        structs.replace(FROM_OUTSIDE, target="172.30.0.9", port=80),
        structs.replace(FROM_OUTSIDE, target="10.245.2.4"),
        structs.replace(FROM_NODE, target="10.245.2.4", port=30080),
    ],
)
def test_trace_to_no_service_is_not_redirected(trace_request: TraceRequest) -> None:
    assert find(trace_request) is None


def walk(
    trace_request: TraceRequest, *answers: TraceResult, port: ServicePortInfo = WEB
) -> tuple[TraceResult, list[TraceRequest]]:
    """Return the answer, and the requests to the switch."""
    questions: list[TraceRequest] = []
    trace_results = iter(answers)

    async def ask(packet: TraceRequest) -> TraceResult:
        questions.append(packet)
        return next(trace_results)

    actual = service_connection(trace_request, CONFIG, [port], {("red", "web"): SERVED})
    assert actual is not None
    return asyncio.run(trace_service_connection(trace_request, NETWORK, actual, ask)), questions


CLASSIFIER, L3_FORWARDING, POD_OUTPUT = (TraceStep(table) for table in ("classifier", "l3_forwarding", "pod_output"))
GROUP_SELECTED = TraceStep("service_lb", actions=("group:7",))
TO_POD = TraceResult((CLASSIFIER, L3_FORWARDING, POD_OUTPUT), ("pod 10.128.0.2",), 10)


def test_trace_through_a_group_follows_the_first_endpoint() -> None:
    answer, questions = walk(FROM_POD, TraceResult((CLASSIFIER, GROUP_SELECTED), vnid=10), TO_POD)
    assert questions == [FROM_POD, structs.replace(FROM_POD, target="10.128.2.2", port=8080)]
    assert [step.table for step in answer.steps] == ["classifier", "service_lb", "l3_forwarding", "pod_output"]
    assert (answer.outputs, answer.vnid, answer.endpoint) == (("pod 10.128.0.2",), 10, "10.128.2.2:8080")
    assert answer.endpoints == ("10.128.2.2:8080", "10.128.0.2:8080")
    assert answer.service is not None
    assert (answer.service.service, answer.service.port) == ("red/web", "80/TCP")
    assert [rejection_report.subject for rejection_report in answer.rejected] == ["endpoint 10.128.4.4:8080"]


def test_trace_follows_the_endpoint_named_by_the_switch() -> None:
    trace_result = TraceResult(
        (CLASSIFIER, L3_FORWARDING, POD_OUTPUT), ("pod 10.128.0.2",), 10, endpoint="10.128.0.2:8080"
    )
    answer, questions = walk(FROM_POD, trace_result)
    assert questions == [FROM_POD]
    assert (answer.endpoint, answer.steps) == ("10.128.0.2:8080", trace_result.steps)


def test_trace_of_a_dropped_connection_has_no_endpoint() -> None:
    dropped = TraceResult((CLASSIFIER, TraceStep("service_lb")), vnid=11)
    answer, questions = walk(FROM_POD, dropped)
    assert (questions, answer.outputs, answer.endpoint) == ([FROM_POD], (), "")
    assert answer.service is not None


@pytest.mark.parametrize(
    ("trace_request", "source", "target"),
    [
        (FROM_NODE, "10.128.0.1", "10.128.2.2"),
        (FROM_OUTSIDE, "203.0.113.5", "10.128.0.2"),
    ],
)
def test_trace_from_node_or_outside_is_translated_before_the_switch(
    trace_request: TraceRequest, source: str, target: str
) -> None:
    answer, questions = walk(trace_request, TO_POD)
    assert questions == [structs.replace(trace_request, source=source, target=target, port=8080)]
    assert answer.endpoint == f"{target}:8080"


def test_trace_from_outside_to_a_remote_pod_is_masqueraded() -> None:
    _, questions = walk(FROM_OUTSIDE, TO_POD, port=dataclasses.replace(WEB, external_endpoints=(THERE,)))
    assert [trace_request.source for trace_request in questions] == ["10.128.0.1"]


def test_trace_without_cluster_endpoints_does_not_query_the_switch() -> None:
    answer, questions = walk(FROM_NODE, port=dataclasses.replace(WEB, internal_endpoints=()))
    assert (answer.endpoints, answer.endpoint, questions) == ((), "", [])
    far = EndpointInfo(IPv4Address("198.51.100.7"), 443)
    answer, questions = walk(FROM_NODE, port=dataclasses.replace(WEB, internal_endpoints=(far,)))
    assert (answer.endpoint, questions) == ("198.51.100.7:443", [])
