"""Dropped packets of pods in the datapath's flows, and the limits of events about them."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from ipaddress import IPv4Address
from typing import Any, cast

import pytest

from api.client.client import AlreadyExists, Client, Unreachable
from api.core.events import Event
from api.meta.types import Status
from api.network.queries import TraceResult, TraceStep
from sdn.cniserver.attacher import PodAttacher
from sdn.cniserver.pod_ports import PodIdentity
from sdn.drivers.diagnostics import OvsAppctl
from sdn.network_state import NetworkState
from sdn.query.drop_events import (
    FORGET_SECONDS,
    MAX_EVENTS,
    MAX_EVENTS_PER_POD,
    MAX_EVENTS_PER_PROJECT,
    MAX_FLOWS,
    MAX_TRACES,
    MAX_TRACES_PER_POD,
    RETRACE_SECONDS,
    SAMPLE_SECONDS,
    DropEvents,
    ReportedDrops,
    pause_after,
)
from sdn.query.dropped_packets import (
    MAX_PACKETS,
    MAX_PACKETS_PER_POD,
    SENTENCES,
    DatapathSize,
    DroppedPacket,
    datapath_size,
    dropped_packets,
    event_message,
)
from sdn.topology import NodeNetwork

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


def scan(interface: str) -> str:
    """Return flows of a pod that scans the network."""
    head = HEAD.replace("veth1", interface)
    return "".join(f"{head}ipv4(dst=10.{number >> 8 & 255}.{number & 255}.1,proto=6){END}" for number in range(5_000))


def test_scan_of_a_pod_costs_few_packets_and_hides_no_other_pod() -> None:
    pods = {f"veth{number}": replace(WEB, name=f"p{number}") for number in range(100)}
    other = f"{HEAD.replace('veth1', 'veth2')}ipv4(dst=10.1.1.1,proto=6){END}"
    found = Counter(each.pod.name for each in dropped_packets(f"{scan('veth1')}{other}", pods))
    assert found == {"p1": MAX_PACKETS_PER_POD, "p2": 1}
    assert len(list(dropped_packets("".join(map(scan, pods)), pods))) == MAX_PACKETS


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


def test_a_pod_gets_few_events_and_leaves_room_for_others() -> None:
    reported = ReportedDrops()
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
    reported, now = ReportedDrops(), 0.0
    packets = [replace(packet("10.1.1.1"), pod=replace(WEB, name=f"p{number}")) for number in range(1000)]
    while chosen := reported.select(packets, now):
        for each in chosen:
            reported.add(each, now)
        now += 1
    assert len([each for each in packets if each in reported._reported]) == MAX_EVENTS_PER_PROJECT
    other = replace(packet("10.1.1.1"), pod=pod(1))
    assert reported.select([*packets, other], now) == [other]


def test_packet_that_needs_no_event_is_looked_up_again_later() -> None:
    reported, one = ReportedDrops(), packet("10.1.1.1")
    reported.dismiss(one, 0.0)
    assert reported.select([one], RETRACE_SECONDS - 1) == []
    assert reported.select([one], RETRACE_SECONDS) == [one]


def test_a_node_writes_a_limited_number_of_events() -> None:
    reported = ReportedDrops()
    packets = [replace(packet("10.1.1.1"), pod=pod(number)) for number in range(1000)]
    assert len(reported.select(packets, 0.0)) == MAX_TRACES
    for number in range(MAX_EVENTS):
        reported.add(packets[number], 0.0)
    assert reported.select(packets, 1.0) == []
    assert len(reported.select(packets, FORGET_SECONDS + 1)) == MAX_TRACES


# --- sampling ---------------------------------------------------------------------------------------------------------


class FakeSwitch:
    """A datapath with these flows; `reason` is why it drops."""

    def __init__(self, flows: str, count: int = 12) -> None:
        self.flows, self.count, self.reads, self.reason = flows, count, 0, "other_project"

    async def datapaths(self) -> str:
        return SHOWN.format(self.count)

    async def datapath_flows(self, datapath: str) -> str:
        assert datapath == "netdev@ovs-netdev"
        self.reads += 1
        return self.flows

    async def trace(self, request: Any, network: Any) -> TraceResult:
        assert (request.sender, request.target) == ("10.128.2.3", "10.128.2.2")
        return TraceResult(steps=(TraceStep("POD_OUTPUT", drop_reason=self.reason),))

    def pods_by_interface(self) -> dict[str, PodIdentity]:
        return PODS


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
    state.network = cast("NodeNetwork", object())
    return DropEvents(
        cast("Client", client),
        "n1",
        state=state,
        attacher=cast("PodAttacher", switch),
        appctl=cast("OvsAppctl", switch),
        trace=switch.trace,
    )


FLOW = f"{HEAD}ipv4(src=10.128.2.3,dst=10.128.2.2,proto=6,frag=no){END}"


async def test_event_is_written_once_also_after_a_restart() -> None:
    switch, client = FakeSwitch(FLOW), FakeClient()
    for events in (first := drop_events(switch, client), first, drop_events(switch, client)):
        await events._sample()
    [event] = client.events.values()
    about = event.involved_object
    assert (about.kind, about.namespace, about.name, about.uid) == ("Pod", "red", "web", "u1")
    assert (event.metadata.namespace, event.reason, event.source.host) == ("red", "PacketsDropped", "n1")


async def test_event_that_did_not_reach_the_server_is_written_by_a_later_sample() -> None:
    switch, client = FakeSwitch(FLOW), FakeClient()
    events = drop_events(switch, client)
    client.error = Unreachable("no master")
    await events._sample()
    assert not client.events
    client.error = None
    await events._sample()
    assert len(client.events) == 1


@pytest.mark.parametrize("reason", ["", "spoofed", "no_endpoint"])
async def test_packets_that_are_not_dropped_by_policy_get_no_event(reason: str) -> None:
    assert reason not in SENTENCES
    switch, client = FakeSwitch(FLOW), FakeClient()
    switch.reason = reason
    await drop_events(switch, client)._sample()
    assert switch.reads == 1
    assert not client.events


@pytest.mark.parametrize(("count", "reads"), [(MAX_FLOWS, 1), (MAX_FLOWS + 1, 0)])
async def test_large_datapath_is_not_read(count: int, reads: int) -> None:
    switch, client = FakeSwitch(FLOW, count), FakeClient()
    await drop_events(switch, client)._sample()
    assert switch.reads == reads


def test_sampling_takes_a_thousandth_of_the_time() -> None:
    assert pause_after(0.0) == pause_after(0.005) == SAMPLE_SECONDS
    assert pause_after(0.07) == pytest.approx(70.0)
