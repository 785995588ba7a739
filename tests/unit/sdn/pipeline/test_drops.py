"""Reasons of dropped packets, and the pods concerned."""

from __future__ import annotations

import itertools
from ipaddress import IPv4Address, IPv4Network

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sdn.cniserver.pod_ports import InterfaceConfig, bridge_with_ports, names_of_pods, plan_attach
from sdn.model.flow import Flow, Output
from sdn.model.host import Bridge
from sdn.model.match import ip
from sdn.model.service_port import Protocol, ServicePortInfo, ServicePortName
from sdn.pipeline.compiler import compile_flows
from sdn.pipeline.cookies import DROP_BIT, CookieCategory, make_cookie, owner_of
from sdn.pipeline.drops import (
    DROP_DESCRIPTIONS,
    MISS_REASONS,
    UNKNOWN,
    DropReason,
    drop_cookie,
    drop_counters,
    drop_reason,
)
from sdn.pipeline.flows import make_flow, partition_of
from sdn.pipeline.service import ServiceFlows
from sdn.pipeline.tables import Priority, Table
from sdn.topology import AttachedPod, DockerNetwork, NodeNetwork, Peer, Pod, docker_subnet
from tests.unit.sdn.examples import CLUSTER, NODE

CONFIG = InterfaceConfig(
    sandbox="s1",
    namespace="red",
    name="web",
    uid="uid",
    netns="/proc/1/ns/net",
    netns_id="0:1",
    ifname="eth0",
    runtime="cni",
)
BRIDGE = bridge_with_ports(Bridge("br0"), plan_attach(Bridge("br0"), NODE, [CONFIG]).to_attach)
ADDRESS = NODE.first_pod
NAMES = names_of_pods(BRIDGE)
NETWORK = NodeNetwork(
    CLUSTER,
    NODE,
    peers=frozenset({Peer("node-2", IPv4Address("10.245.2.4"), IPv4Network("10.128.2.0/23"))}),
    pods=frozenset({Pod(16, ADDRESS, 10)}),
    pods_without_vnid=(AttachedPod("s2", "green", 17, ADDRESS + 1),),
    multicast=frozenset({10, 11}),
    docker=DockerNetwork(docker_subnet(NODE.subnet), 3, 10),
)
SERVICE_PORT = ServicePortInfo(
    key=ServicePortName("red", "web", "", Protocol.TCP),
    vnid=10,
    cluster_ip=None,
    port=80,
    external_ips=(IPv4Address("192.0.2.9"),),
)
FLOWS = compile_flows(NETWORK) | ServiceFlows(NODE).sync([SERVICE_PORT]).flows


def counted(**packets: int) -> dict[tuple[str, str], int]:
    """Return the counters above 0 when each flow that drops for a reason has matched so many packets."""
    flow_counts = {
        flow: packets.get(reason.label, 0) for flow in FLOWS if (reason := drop_reason(flow.cookie)) is not None
    }
    return {(reason, owner): count for reason, owner, count in drop_counters(flow_counts, {}, NAMES) if count}


def test_every_drop_flow_has_a_reason_and_no_other_flow_does() -> None:
    for flow in FLOWS:
        assert (drop_reason(flow.cookie) is None) == bool(flow.actions), flow
        assert bool(flow.cookie & DROP_BIT) == (not flow.actions), flow


@pytest.mark.parametrize(
    ("flow", "reason", "owner"),
    [
        ("table=0,priority=0,in_port=1", DropReason.UNKNOWN_TUNNEL_PEER, CookieCategory.NODE),
        ("table=0,priority=0,in_port=16", DropReason.SPOOFED, CookieCategory.POD),
        ("table=0,priority=0,in_port=17", DropReason.NO_VNID, CookieCategory.POD),
        ("table=0,priority=0,in_port=3", DropReason.SPOOFED, CookieCategory.DOCKER),
        (
            "table=0,priority=100,ip,in_port=2,vlan_tci=0x0/0x1fff,nw_src=10.128.0.0/14",
            DropReason.INVALID_GATEWAY_PACKET,
            CookieCategory.NODE,
        ),
        (
            "table=0,priority=200,arp,in_port=3,vlan_tci=0x0/0x1fff,arp_tpa=10.128.1.128/25",
            DropReason.ARP_BETWEEN_CONTAINERS,
            CookieCategory.DOCKER,
        ),
        ("table=10,priority=100,arp,arp_tpa=10.128.0.0/23", DropReason.NO_ARP_ENTRY, CookieCategory.NODE),
        (
            "table=10,priority=300,arp,arp_spa=10.128.0.2,arp_tpa=10.128.0.2",
            DropReason.ARP_ANNOUNCEMENT,
            CookieCategory.POD,
        ),
        ("table=21,priority=50,ip,nw_dst=172.30.0.0/16", DropReason.NO_SERVICE, CookieCategory.NODE),
        (
            "table=21,priority=100,ip,nw_dst=192.0.2.9,nw_proto=6,tcp_dst=80,ct_state=+new+trk",
            DropReason.NO_SERVICE,
            CookieCategory.SERVICE,
        ),
        (
            "table=21,priority=100,ip,nw_dst=192.0.2.9,nw_frag=0x1/0x1,ct_state=+new+trk,ct_nw_proto=6,ct_tp_dst=80",
            DropReason.SERVICE_FRAGMENT,
            CookieCategory.SERVICE,
        ),
        ("table=40,priority=50,ip,nw_dst=10.128.0.0/14", DropReason.NO_ROUTE, CookieCategory.NODE),
        ("table=40,priority=50,ip,nw_dst=172.30.0.0/16", DropReason.NO_SERVICE, CookieCategory.NODE),
        ("table=40,priority=50,ip,nw_dst=224.0.0.0/4", DropReason.MULTICAST_DISABLED, CookieCategory.NODE),
        ("table=40,priority=50,ip,nw_dst=255.255.255.255", DropReason.BROADCAST, CookieCategory.NODE),
        ("table=40,priority=50,ip,nw_dst=127.0.0.0/8", DropReason.LOOPBACK, CookieCategory.NODE),
        (
            "table=70,priority=100,ip,reg0=0xb,nw_dst=224.0.0.0/4",
            DropReason.NO_MULTICAST_RECEIVER,
            CookieCategory.NODE,
        ),
        ("table=70,priority=50,ip,nw_dst=10.128.0.2", DropReason.OTHER_PROJECT, CookieCategory.POD),
        ("table=70,priority=50,ip,nw_dst=10.128.1.128/25", DropReason.OTHER_PROJECT, CookieCategory.DOCKER),
        ("table=90,priority=300,ip,nw_proto=17,udp_dst=4789", DropReason.VXLAN_FROM_POD, CookieCategory.NODE),
    ],
)
def test_drop_flow_has_its_reason_and_owner(flow: str, reason: DropReason, owner: CookieCategory) -> None:
    [matching] = [dropping for dropping in FLOWS if str(dropping) == f"{flow} actions=drop"]
    found_owner = owner_of(matching.cookie)
    assert found_owner is not None
    assert (drop_reason(matching.cookie), found_owner.category) == (reason, owner)


def test_every_reason_is_described_and_belongs_to_a_flow_or_a_table() -> None:
    assert set(DROP_DESCRIPTIONS) == set(DropReason)
    assert {drop_reason(flow.cookie) for flow in FLOWS if not flow.actions} | set(MISS_REASONS.values()) == set(
        DropReason
    )


@pytest.mark.parametrize("table", Table)
def test_drop_flow_of_any_table_keeps_its_reason_and_owner(table: Table) -> None:
    for reason, category in itertools.product(DropReason, CookieCategory):
        cookie = make_cookie(category, 0xFFFFFFFF)
        flow = make_flow(table, Priority.NORMAL, ip(), cookie=cookie, drop=reason)
        assert drop_reason(flow.cookie) is reason
        assert owner_of(flow.cookie) == (category, 0xFFFFFFFF)
        assert partition_of(flow) == partition_of(make_flow(table, Priority.NORMAL, ip(), Output(1), cookie=cookie))
        assert (reason.label, 3) in {(label, packets) for label, _, packets in drop_counters({flow: 3}, {}, {})}


def test_flow_has_either_actions_or_a_drop_reason() -> None:
    with pytest.raises(ValueError, match="either actions or a drop reason is required"):
        make_flow(Table.CLASSIFIER, Priority.NORMAL, ip())
    with pytest.raises(ValueError, match="either actions or a drop reason is required"):
        make_flow(Table.CLASSIFIER, Priority.NORMAL, ip(), Output(1), drop=DropReason.SPOOFED)


@given(table=st.integers(0, 254), cookie=st.integers(0, (1 << 64) - 1))
def test_drops_of_any_cookie_are_counted(table: int, cookie: int) -> None:
    assert sum(packets for _, _, packets in drop_counters({Flow(table, 1, ip(), cookie=cookie): 7}, {}, NAMES)) == 7


@pytest.mark.parametrize("cookie", [0, DROP_BIT, 0xFFFF_FFFF_FFFF_FFFF, 0x00FF_01FF_0000_0000, 0xDEAD])
def test_drops_of_an_unknown_cookie_have_no_known_reason_or_owner(cookie: int) -> None:
    assert (UNKNOWN, UNKNOWN, 7) in list(drop_counters({Flow(0, 1, ip(), cookie=cookie): 7}, {}, NAMES))


def test_drops_of_a_cookie_without_a_reason_are_counted_for_its_owner() -> None:
    flow = Flow(0, 1, ip(), cookie=make_cookie(CookieCategory.DOCKER) | DROP_BIT)
    assert (UNKNOWN, "docker", 7) in list(drop_counters({flow: 7}, {}, NAMES))


def test_drops_are_attributed_to_pods_by_name() -> None:
    assert counted(spoofed=2) == {("spoofed", "pod red/web"): 2, ("spoofed", "docker"): 4}
    assert counted(no_vnid=1) == {("no_vnid", "a pod that is gone"): 1}
    assert counted(other_project=3) == {("other_project", "pod red/web"): 3, ("other_project", "docker"): 3}
    assert counted(unknown_tunnel_peer=5) == {("unknown_tunnel_peer", "node"): 5}
    assert counted(vxlan_from_pod=1) == {("vxlan_from_pod", "node"): 1}


def test_unmatched_packets_are_counted_as_drops() -> None:
    counters = list(drop_counters({}, {int(Table.POD_OUTPUT): 4}, NAMES))
    assert counters == [
        (label, "node", 4 * (label == "no_pod")) for label in sorted({reason.label for reason in MISS_REASONS.values()})
    ]


def test_drops_of_a_deleted_pod_are_attributed_to_none() -> None:
    flow = Flow(int(Table.POD_OUTPUT), 50, ip(), cookie=drop_cookie(make_cookie(CookieCategory.POD, 9), DropReason(17)))
    assert ("other_project", "a pod that is gone", 1) in list(drop_counters({flow: 1}, {}, {}))
