"""Dropped packets of pods in the datapath's flows, and the limits of events about them."""

from __future__ import annotations

import itertools
import time
from collections import Counter
from dataclasses import replace
from ipaddress import IPv4Address, IPv4Network
from typing import cast

import pytest

from api.client.client import AlreadyExists, Client, Unreachable
from api.core.events import Event
from api.core.services import Service
from api.meta.types import ObjectMeta, Status
from api.network.queries import TraceRequest, TraceResult, TraceStep
from sdn.cniserver.attacher import PodAttacher
from sdn.cniserver.pod_ports import PodIdentity
from sdn.drivers.diagnostics import OvsAppctl
from sdn.model.service_port import Protocol, ServicePortInfo, ServicePortName
from sdn.network_state import NetworkState
from sdn.proxy.service_map import ServiceMap
from sdn.query.drop_events import (
    FORGET_SECONDS,
    MAX_EVENTS,
    MAX_EVENTS_PER_POD,
    MAX_EVENTS_PER_PROJECT,
    MAX_FLOWS,
    MAX_REFUSED_PER_POD,
    MAX_TRACES,
    MAX_TRACES_PER_POD,
    RETRACE_SECONDS,
    SAMPLE_SECONDS,
    DropEvents,
    ReportedDrops,
    pause_after,
)
from sdn.query.dropped_packets import (
    MAX_PACKETS_PER_POD,
    SENTENCES,
    DatapathSize,
    DroppedPacket,
    RefusedPacket,
    datapath_size,
    dropped_packets,
    event_message,
    refused_packets,
)
from sdn.query.trace import trace_request
from sdn.topology import Cluster, Node, NodeNetwork, Peer, Pod

WEB = PodIdentity("red", "web", "u1", IPv4Address("10.128.2.3"))
PODS = {"veth1": WEB}
SHOWN = "netdev@ovs-netdev:\n  flows         : (current {}) (avg 5) (max 125) (limit 39000)\n  dump duration : 1ms\n"
HEAD = "recirc_id(0),in_port(veth1),packet_type(ns=0,id=0),eth(src=0a:58:0a:80:02:03),eth_type(0x0800),"
END = ", packets:0, bytes:0, used:never, actions:drop\n"


def packet(target: str, protocol: str = "icmp", port: int = 0) -> DroppedPacket:
    return DroppedPacket(WEB, IPv4Address(target), protocol, port)


@pytest.mark.parametrize(
    ("flow", "expected"),
    [
        (f"{HEAD}ipv4(src=10.128.2.3,dst=10.128.2.2,proto=6,frag=no){END}", [packet("10.128.2.2")]),
        (
            f"ct_state(+new-est-rel+trk),recirc_id(0x16),in_port(veth1),eth_type(0x0800),"
            f"ipv4(dst=172.30.0.3,proto=6,frag=no),tcp(dst=81){END}",
            [packet("172.30.0.3", "tcp", 81)],
        ),
        (f"{HEAD}ipv4(dst=10.1.1.1/255.255.255.255,proto=17,frag=no),udp(src=5/0,dst=4789/0xffff){END}",
         [packet("10.1.1.1", "udp", 4789)]),
        (f"{HEAD}ipv4(dst=10.128.2.2,proto=6,frag=no),tcp(src=37086/0,dst=80/0){END}", [packet("10.128.2.2")]),
        (f"{HEAD}ipv4(src=10.128.2.3,dst=10.129.9.9/255.255.0.0,frag=no){END}", []),
        (f"{HEAD}ipv4(src=10.128.2.3,dst=10.128.2.2,proto=6,frag=no), packets:9, used:1s, actions:5\n", []),
        (f"recirc_id(0),in_port(eth0),eth_type(0x0800),ipv4(dst=10.128.2.2,proto=6,frag=no){END}", []),
        (f"recirc_id(0),in_port(veth1),eth_type(0x0806),arp(sip=10.128.2.3,tip=10.128.2.77,op=1){END}", []),
        (f"recirc_id(0),in_port(veth1),eth_type(0x86dd),ipv6(frag=no){END}", []),
    ],
)  # fmt: skip
def test_dropped_packet_is_read_from_a_flow(flow: str, expected: list[DroppedPacket]) -> None:
    assert list(dropped_packets(f"flow-dump from the main thread:\n{flow}{flow}", PODS)) == expected


@pytest.mark.parametrize(
    ("state", "is_reported"),
    [("+new-est-rel+trk", True), ("+est-rel+trk", False), ("+rel+trk", False), ("-new-est-rel+trk", False)],
)
def test_only_first_packets_of_connections_to_services_are_reported(state: str, is_reported: bool) -> None:
    line = f"ct_state({state}),recirc_id(0x1),in_port(veth1),eth_type(0x0800),ipv4(dst=10.128.2.2,proto=6,frag=no){END}"
    assert list(dropped_packets(line, PODS)) == ([packet("10.128.2.2")] if is_reported else [])


FROM_NODE_2 = (
    "tunnel(tun_id=0xa,src=10.245.2.4,dst=10.245.2.3,flags(-df-csum+key)),recirc_id(0),in_port(vxlan_sys_4789),"
    "packet_type(ns=0,id=0),eth_type(0x0800),"
)
TO_WEB = (
    f"{FROM_NODE_2}ipv4(src=10.128.4.7/255.255.254.0,dst=10.128.2.3,proto=6,frag=no),tcp(src=52882/0x8000), "
    "packets:4, bytes:296, used:0.533s, flags:S, actions:drop\n"
)
NODE_2 = IPv4Address("10.245.2.4")


@pytest.mark.parametrize(
    ("flow", "expected"),
    [
        (TO_WEB, [RefusedPacket(WEB, NODE_2, 10)]),
        (TO_WEB.replace("flags(", "ttl=64/0,tp_src=5/0,tp_dst=4789/0,flags("), [RefusedPacket(WEB, NODE_2, 10)]),
        (
            TO_WEB.replace("0xa,src=10.245.2.4", "0xa/0xffffffffffffffff,src=10.245.2.4/255.255.255.255"),
            [RefusedPacket(WEB, NODE_2, 10)],
        ),
        (TO_WEB.replace("dst=10.128.2.3", "dst=10.128.2.4"), []),
        (TO_WEB.replace("dst=10.128.2.3", "dst=10.128.2.3/255.255.254.0"), []),
        (TO_WEB.replace("src=10.245.2.4", "src=10.245.2.4/255.255.255.0"), []),
        (TO_WEB.replace("tun_id=0xa", "tun_id=0xa/0x0"), []),
        (TO_WEB.replace("tun_id=0xa,", ""), []),
        (TO_WEB.replace("tun_id=0xa", "tun_id=0xffffffffff"), []),
        (TO_WEB.replace("actions:drop", "actions:5"), []),
        (f"{HEAD}ipv4(src=10.128.2.4,dst=10.128.2.3,proto=6,frag=no){END}", []),
    ],
)
def test_refused_packet_is_read_from_a_flow(flow: str, expected: list[RefusedPacket]) -> None:
    text = f"flow-dump from the main thread:\n{flow}{flow}"
    assert list(refused_packets(text, PODS)) == expected
    if expected:
        assert not list(dropped_packets(text, PODS))


KERNEL_FLOWS = """\
recirc_id(0),in_port(veth1),eth(src=0a:58:0a:80:02:03),eth_type(0x0800),ipv4(src=10.128.2.3,dst=10.128.2.4,proto=6,\
frag=no),tcp(src=32768/0x8000), packets:1, bytes:74, used:9.820s, flags:S, actions:drop
recirc_id(0x5),in_port(veth1),ct_state(+new-est-rel+trk),ct_tuple4(proto=17),eth(),eth_type(0x0800),ipv4(dst=172.30.0.3,\
proto=17,frag=no),udp(dst=81), packets:1, bytes:46, used:1.184s, actions:drop
recirc_id(0x5),in_port(veth1),ct_state(+new-est-rel+trk),ct_tuple4(proto=6),eth(),eth_type(0x0800),\
ipv4(dst=172.30.8.0/255.255.248.0,frag=no), packets:1, bytes:74, used:5.523s, flags:S, actions:drop
recirc_id(0),in_port(veth1),eth(src=0a:58:0a:80:02:03),eth_type(0x0800),ipv4(src=10.128.2.3,dst=10.129.2.0/255.255.254.0,\
tos=0/0x3,frag=no), packets:6, bytes:356, used:7.388s, flags:F., actions:set(tunnel(tun_id=0xa,dst=10.245.14.4,ttl=64,\
tp_dst=4789,flags(df|key))),vxlan_sys_4789
recirc_id(0),tunnel(tun_id=0xa,src=10.245.14.4,dst=10.245.14.3,flags(-df-csum+key)),in_port(vxlan_sys_4789),eth(),\
eth_type(0x0800),ipv4(src=10.129.2.0/255.255.254.0,dst=10.128.2.3,frag=no), packets:1, bytes:74, used:0.2s, actions:drop
recirc_id(0),in_port(veth1),eth(src=0a:58:0a:80:02:03,dst=ff:ff:ff:ff:ff:ff),eth_type(0x0806),arp(sip=10.128.2.3,\
tip=10.128.2.4,op=1/0xff,sha=0a:58:0a:80:02:03,tha=00:00:00:00:00:00), packets:0, bytes:0, used:never, \
actions:userspace(pid=4294967295,slow_path(action))
recirc_id(0),in_port(tun0),eth(),eth_type(0x86dd),ipv6(frag=no),key32(00 00/00 00), packets:0, bytes:0, used:never, \
actions:drop
"""
"""Flows as the kernel's datapath (Linux 6.1) has them; names, addresses and ports are changed."""


def test_dropped_packets_are_read_from_flows_of_the_kernels_datapath() -> None:
    assert list(dropped_packets(KERNEL_FLOWS, PODS)) == [packet("10.128.2.4"), packet("172.30.0.3", "udp", 81)]
    assert list(refused_packets(KERNEL_FLOWS, PODS)) == [RefusedPacket(WEB, IPv4Address("10.245.14.4"), 10)]


def scan(interface: str) -> str:
    """Return flows of a pod that scans the network."""
    head = HEAD.replace("veth1", interface)
    return "".join(f"{head}ipv4(dst=10.{number >> 8 & 255}.{number & 255}.1,proto=6){END}" for number in range(5_000))


def test_scan_of_a_pod_costs_few_packets_and_hides_no_other_pod() -> None:
    pods = {f"veth{number}": replace(WEB, name=f"p{number}") for number in range(5)}
    other = f"{HEAD.replace('veth1', 'veth2')}ipv4(dst=10.1.1.1,proto=6){END}"
    found = Counter(each.pod.name for each in dropped_packets(f"{scan('veth1')}{other}", pods))
    assert found == {"p1": MAX_PACKETS_PER_POD, "p2": 1}
    found = Counter(each.pod.name for each in dropped_packets("".join(map(scan, pods)), pods))
    assert found == dict.fromkeys((pod.name for pod in pods.values()), MAX_PACKETS_PER_POD)


def test_datapath_is_known_with_its_size() -> None:
    assert datapath_size(SHOWN.format(12)) == DatapathSize("netdev@ovs-netdev", 12)
    in_kernel = (
        "system@ovs-system:\n  flows         : (current 13) (avg 12) (max 13) (limit 12000)\n  dump duration : 1ms\n"
    )
    assert datapath_size(f"{in_kernel}  ufid enabled : true\n\n  4: (keys 13)\n") == DatapathSize(
        "system@ovs-system", 13
    )
    assert datapath_size(SHOWN.format(12) * 2) is None
    assert datapath_size("") is None


def test_message_does_not_tell_pods_of_other_projects_from_unused_addresses() -> None:
    messages = {event_message(packet("10.128.2.2"), reason) for reason in ("other_project", "no_pod", "no_route")}
    assert messages == {
        "packets to 10.128.2.2 are dropped: nothing that this project may reach is there. An administrator sees the "
        "reason and what would change it by: podlane why red/web 10.128.2.2"
    }
    assert "172.30.0.3 port 81/tcp are" in event_message(packet("172.30.0.3", "tcp", 81), "no_service")
    assert event_message(packet("172.30.0.3", "tcp", 81), "no_service").endswith("172.30.0.3 -p 81/tcp")


# --- limits -----------------------------------------------------------------------------------------------------------


def pod(number: int) -> PodIdentity:
    """Return a pod of a project of its own."""
    return replace(WEB, namespace=f"n{number}", name=f"p{number}")


def limits() -> ReportedDrops[DroppedPacket]:
    return ReportedDrops(MAX_EVENTS_PER_POD)


def test_a_pod_gets_few_events_and_leaves_room_for_others() -> None:
    reported = limits()
    scan = [packet(f"10.1.1.{number}") for number in range(100)]
    other = replace(packet("10.1.1.1"), pod=pod(1))
    for now, expected in ((0.0, MAX_TRACES_PER_POD), (10.0, MAX_EVENTS_PER_POD - MAX_TRACES_PER_POD), (20.0, 0)):
        chosen = reported.select([*scan, other], now)
        assert len([each for each in chosen if each.pod == WEB]) == expected
        assert other in chosen
        for each in chosen:
            if each.pod == WEB:
                reported.add(each, now)
    assert reported.select(scan, 20.0 + FORGET_SECONDS)


def test_a_project_leaves_events_for_others() -> None:
    reported, now = limits(), 0.0
    packets = [replace(packet("10.1.1.1"), pod=replace(WEB, name=f"p{number}")) for number in range(1000)]
    while chosen := reported.select(packets, now):
        for each in chosen:
            reported.add(each, now)
        now += 1
    assert len([each for each in packets if each in reported._reported]) == MAX_EVENTS_PER_PROJECT
    other = replace(packet("10.1.1.1"), pod=pod(1))
    assert reported.select([*packets, other], now) == [other]


def test_packet_that_needs_no_event_is_looked_up_again_later() -> None:
    reported, one = limits(), packet("10.1.1.1")
    reported.dismiss(one, 0.0)
    assert reported.select([one], RETRACE_SECONDS - 1) == []
    assert reported.select([one], RETRACE_SECONDS) == [one]


def test_a_node_writes_a_limited_number_of_events() -> None:
    reported = limits()
    packets = [replace(packet("10.1.1.1"), pod=pod(number)) for number in range(1000)]
    assert len(reported.select(packets, 0.0)) == MAX_TRACES
    for number in range(MAX_EVENTS):
        reported.add(packets[number], 0.0)
    assert reported.select(packets[:MAX_EVENTS], 1.0) == []
    again = replace(packet("10.1.1.2"), pod=pod(0))
    first = packets[MAX_EVENTS]
    assert reported.select([again, first, replace(again, pod=first.pod)], 1.0) == [first]
    assert len(reported.select(packets, FORGET_SECONDS + 1)) == MAX_TRACES


def test_projects_with_many_lookups_come_last() -> None:
    reported, busy = limits(), [replace(packet("10.1.1.1"), pod=replace(WEB, name=f"p{n}")) for n in range(100)]
    for each in busy[:20]:
        reported.dismiss(each, 0.0)
    other = replace(packet("10.1.1.1"), pod=pod(1))
    assert reported.select([*busy, other], 1.0)[0] == other


def test_a_receiver_gets_one_event() -> None:
    reported = ReportedDrops[RefusedPacket](MAX_REFUSED_PER_POD)
    packets = [RefusedPacket(WEB, NODE_2, vnid) for vnid in range(1, 100)]
    other = RefusedPacket(pod(1), NODE_2, 1)
    assert reported.select([*packets, other], 0.0) == [packets[0], other]
    reported.add(packets[0], 0.0)
    assert reported.select([*packets, other], 1.0) == [other]


# --- sampling ---------------------------------------------------------------------------------------------------------


SAME = PodIdentity("red", "same", "u2", IPv4Address("10.128.2.4"))
FOREIGN = PodIdentity("blue", "db", "u3", IPv4Address("10.128.2.2"))
NETWORK = NodeNetwork(
    Cluster((IPv4Network("10.128.0.0/14"),), IPv4Network("172.30.0.0/16"), True, 4789, 1450),
    Node("n1", IPv4Address("10.245.2.3"), IPv4Network("10.128.2.0/23")),
    frozenset({Peer("n2", NODE_2, IPv4Network("10.128.4.0/23"))}),
    frozenset({Pod(16, WEB.address, 10), Pod(17, FOREIGN.address, 11), Pod(18, SAME.address, 10)}),
)


class FakeSwitch:
    """A datapath with these flows; `reason` is why it drops. `requests` are the packets that were traced."""

    def __init__(self, flows: str, count: int = 12, reason: str = "other_project") -> None:
        self.flows, self.count, self.reads, self.reason = flows, count, 0, reason
        self.requests: list[TraceRequest] = []

    async def datapaths(self) -> str:
        return SHOWN.format(self.count)

    async def datapath_flows(self, datapath: str) -> str:
        assert datapath == "netdev@ovs-netdev"
        self.reads += 1
        return self.flows

    async def trace(self, request: TraceRequest, network: NodeNetwork) -> TraceResult:
        trace_request(request, network)
        self.requests.append(request)
        return TraceResult(steps=(TraceStep("POD_OUTPUT", drop_reason=self.reason),))

    def pods_by_interface(self) -> dict[str, PodIdentity]:
        return {"veth1": WEB, "veth2": FOREIGN, "veth3": SAME}


class FakeServices:
    """Services of these projects, each with a cluster IP and the TCP port 80."""

    VNIDS = {"red": 10, "blue": 11, "default": 0}

    def __init__(self) -> None:
        self.ports = {
            project: ServicePortInfo(
                key=ServicePortName(project, "demo", "", Protocol.TCP),
                vnid=vnid,
                cluster_ip=IPv4Address("172.30.0.1") + vnid,
                port=80,
            )
            for project, vnid in self.VNIDS.items()
        }

    def service(self, key: tuple[str, str]) -> Service:
        return Service(metadata=ObjectMeta(namespace=key[0], name=key[1], uid=f"service of {key[0]}"))


class FakeClient:
    """An API server that keeps events, or fails with `error`."""

    def __init__(self) -> None:
        self.events: dict[str, Event] = {}
        self.error: Exception | None = None

    async def create(self, event: Event) -> Event:
        if self.error is not None:
            raise self.error
        if event.metadata.name in self.events:
            raise AlreadyExists(Status(code=409))
        self.events[event.metadata.name] = event
        return event


def drop_events(switch: FakeSwitch, client: FakeClient) -> DropEvents:
    state = NetworkState()
    state.network = NETWORK
    return DropEvents(
        cast("Client", client),
        "n1",
        state=state,
        attacher=cast("PodAttacher", switch),
        appctl=cast("OvsAppctl", switch),
        trace=switch.trace,
        service_map=cast("ServiceMap", FakeServices()),
    )


FLOW = f"{HEAD}ipv4(src=10.128.2.3,dst=10.128.2.2,proto=6,frag=no){END}"


async def test_event_is_written_once_also_after_a_restart() -> None:
    switch, client = FakeSwitch(FLOW), FakeClient()
    for events in (first := drop_events(switch, client), first, drop_events(switch, client)):
        await events._sample()
    [event, of_receiver] = client.events.values()
    about = event.involved_object
    assert (about.kind, about.namespace, about.name, about.uid) == ("Pod", "red", "web", "u1")
    assert (event.metadata.namespace, event.reason, event.source.host) == ("red", "PacketsDropped", "n1")
    assert of_receiver.metadata.namespace == "blue"
    [request, again] = switch.requests
    assert request == again
    assert (request.enters, request.sender, request.target) == ("pod", "10.128.2.3", "10.128.2.2")


async def test_event_that_did_not_reach_the_server_is_written_by_a_later_sample() -> None:
    switch, client = FakeSwitch(FLOW), FakeClient()
    events = drop_events(switch, client)
    client.error = Unreachable("no master")
    await events._sample()
    assert not client.events
    client.error = None
    await events._sample()
    assert len(client.events) == 2


@pytest.mark.parametrize("reason", ["", "spoofed", "no_endpoint"])
async def test_packets_that_are_not_dropped_by_policy_get_no_event(reason: str) -> None:
    assert reason not in SENTENCES
    switch, client = FakeSwitch(FLOW), FakeClient()
    switch.reason = reason
    await drop_events(switch, client)._sample()
    assert switch.reads == 1
    assert not client.events


def written(client: FakeClient) -> list[tuple[str, str, str, str]]:
    """Return kind, project, name and message of the events."""
    return [
        (event.involved_object.kind, event.metadata.namespace, event.involved_object.name, event.message)
        for event in client.events.values()
    ]


REFUSED = (
    "packets from a pod of another project are dropped, because projects are isolated. "
    "An administrator lets another project in by: podlane network join PROJECT --to {}"
)


async def test_receiver_gets_the_same_event_wherever_the_sender_runs() -> None:
    from_tunnel = TO_WEB.replace(str(WEB.address), str(FOREIGN.address))
    for flows, requests, senders in (
        (from_tunnel, ["tunnel"], 0),
        (FLOW, ["pod"], 1),
        (f"{FLOW}{from_tunnel}", ["pod"], 1),
    ):
        switch, client = FakeSwitch(flows), FakeClient()
        events = drop_events(switch, client)
        for _ in range(2):
            await events._sample()
        assert written(client)[senders:] == [("Pod", "blue", "db", REFUSED.format("blue"))]
        assert [request.enters for request in switch.requests] == requests


async def test_packet_from_a_tunnel_is_looked_up_as_one_of_its_node_and_project() -> None:
    switch = FakeSwitch(TO_WEB)
    await drop_events(switch, FakeClient())._sample()
    assert switch.requests == [
        TraceRequest(
            enters="tunnel",
            source="10.128.4.1",
            target=str(WEB.address),
            tunnel_source=str(NODE_2),
            vnid=10,
        )
    ]


@pytest.mark.parametrize("reason", ["", "no_pod", "unknown_tunnel_peer"])
async def test_receiver_gets_no_event_unless_projects_are_isolated(reason: str) -> None:
    switch, client = FakeSwitch(TO_WEB, reason=reason), FakeClient()
    await drop_events(switch, client)._sample()
    assert len(switch.requests) == 1
    assert not client.events


async def test_packet_of_a_node_that_has_left_gets_no_event() -> None:
    switch, client = FakeSwitch(TO_WEB.replace(str(NODE_2), "10.245.2.5")), FakeClient()
    await drop_events(switch, client)._sample()
    assert not switch.requests
    assert not client.events


def to_service(vnid: int, port: str) -> str:
    address = IPv4Address("172.30.0.1") + vnid
    return f"ct_state(+new-est-rel+trk),{HEAD}ipv4(dst={address},proto=6,frag=no),tcp(dst={port}){END}"


@pytest.mark.parametrize(
    ("flow", "project", "on_pod", "on_service"),
    [
        (
            to_service(10, "81"),
            "red",
            "packets to 172.30.0.11 port 81/tcp, the service red/demo, are dropped: it has no port 81/tcp. "
            "To see its ports: kubectl get service -n red demo",
            "packets to port 81/tcp of this service are dropped: it has no such port. "
            "To add a port: kubectl edit service -n red demo",
        ),
        (
            to_service(10, "81/0xf0"),
            "red",
            "packets to 172.30.0.11, the service red/demo, are dropped: none of its ports accepts them. "
            "To see its ports: kubectl get service -n red demo",
            "packets to this service are dropped: none of its ports accepts them. "
            "To add a port: kubectl edit service -n red demo",
        ),
        (
            to_service(0, "81"),
            "default",
            "packets to 172.30.0.1 port 81/tcp, the service default/demo, are dropped: it has no port 81/tcp. "
            "To see its ports: kubectl get service -n default demo",
            "packets from a pod of another project to this service are dropped: it lacks their port. "
            "To add a port: kubectl edit service -n default demo",
        ),
        (
            to_service(11, "80"),
            "blue",
            "packets to 172.30.0.12 port 80/tcp are dropped: nothing that this project may reach is there. An "
            "administrator sees the reason and what would change it by: podlane why red/web 172.30.0.12 -p 80/tcp",
            "packets from a pod of another project to this service are dropped, because projects are isolated. "
            "An administrator lets another project in by: podlane network join PROJECT --to blue",
        ),
    ],
)
async def test_service_gets_an_event_and_its_client_learns_only_of_services_that_it_may_use(
    flow: str, project: str, on_pod: str, on_service: str
) -> None:
    client = FakeClient()
    await drop_events(FakeSwitch(flow, reason="no_service"), client)._sample()
    assert written(client) == [("Pod", "red", "web", on_pod), ("Service", project, "demo", on_service)]


async def test_service_event_names_neither_client_nor_port_of_another_project() -> None:
    client = FakeClient()
    flows = "".join(to_service(11, str(port)) for port in range(1000, 1009))
    await drop_events(FakeSwitch(flows, reason="no_service"), client)._sample()
    [text] = [message for kind, _, _, message in written(client) if kind == "Service"]
    assert not any(word in text for word in (str(WEB.address), "red", "web", "100"))


async def test_address_without_a_service_gives_no_event_on_a_service() -> None:
    client = FakeClient()
    await drop_events(FakeSwitch(to_service(99, "80"), reason="no_service"), client)._sample()
    assert [(kind, project) for kind, project, _, _ in written(client)] == [("Pod", "red")]


@pytest.mark.parametrize(("count", "reads"), [(MAX_FLOWS, 1), (MAX_FLOWS + 1, 0)])
async def test_large_datapath_is_not_read(count: int, reads: int) -> None:
    switch, client = FakeSwitch(FLOW, count), FakeClient()
    await drop_events(switch, client)._sample()
    assert switch.reads == reads


async def test_sample_that_waits_for_the_processor_does_not_delay_the_next_one(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = itertools.count(0.0, 0.05)
    monkeypatch.setattr(time, "monotonic", lambda: next(clock))
    few, many = [await drop_events(FakeSwitch("", count), FakeClient())._sample() for count in (57, MAX_FLOWS)]
    assert pause_after(few) == SAMPLE_SECONDS
    assert pause_after(many) == pytest.approx(50.0)


def test_sampling_takes_a_thousandth_of_the_time() -> None:
    assert pause_after(0.0) == pause_after(0.005) == SAMPLE_SECONDS
    assert pause_after(0.07) == pytest.approx(70.0)
