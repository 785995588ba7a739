"""Properties that every compiled set of flows has."""

from __future__ import annotations

from dataclasses import replace
from ipaddress import IPv4Address, IPv4Network

import pytest
from hypothesis import given
from hypothesis import strategies as st

from api.meta.types import ObjectMeta
from api.network.types import NetNamespace
from sdn.drivers.openflow.messages import Command, flow_mod
from sdn.model.flow import Flow, Goto, Output, SetField
from sdn.model.match import ETH_DST, IN_PORT, IP_SRC, FieldMatch, Match, arp, dst_port, field_equals, in_port, ip
from sdn.pipeline.compiler import compile_flows, flows_of_peer, flows_of_pod
from sdn.pipeline.multicast import multicast_tunnel_flows
from sdn.topology import MULTICAST_ENABLED, TUN0, VXLAN0, Cluster, Node, NodeNetwork, Peer, Pod, multicast_vnids

CLUSTER = Cluster((IPv4Network("10.128.0.0/14"),), IPv4Network("172.30.0.0/16"), True, 4789, 1450)
NODE = Node("node-1", IPv4Address("10.245.2.3"), IPv4Network("10.128.0.0/23"))

pods = st.lists(st.tuples(st.integers(2, 509), st.integers(0, 30)), max_size=20, unique_by=lambda row: row[0])
peers = st.sets(st.integers(1, 500), max_size=20)


@st.composite
def views(draw: st.DrawFn) -> NodeNetwork:
    here = frozenset(
        Pod(16 + number, NODE.subnet.network_address + offset, vnid) for number, (offset, vnid) in enumerate(draw(pods))
    )
    there = frozenset(
        Peer(f"n{n}", IPv4Address("10.245.2.3") + n, IPv4Network((0x0A800000 + 512 * n, 23))) for n in draw(peers)
    )
    return NodeNetwork(CLUSTER, NODE, there, here)


@given(views())
def test_no_two_flows_are_the_same_row(view: NodeNetwork) -> None:
    flows = compile_flows(view)
    assert len({flow.key for flow in flows}) == len(flows)


@given(views())
def test_only_the_flows_of_a_pod_and_of_nobody_else_change_with_it(view: NodeNetwork) -> None:
    for pod in view.pods:
        without = compile_flows(replace(view, pods=view.pods - {pod}))
        assert compile_flows(view) - without == flows_of_pod(pod)
        assert without <= compile_flows(view)


@given(views())
def test_only_the_flows_of_a_peer_change_with_it(view: NodeNetwork) -> None:
    for peer in view.peers:
        without = compile_flows(replace(view, peers=view.peers - {peer}))
        assert compile_flows(view) - without == flows_of_peer(peer)


@given(views())
def test_a_pods_port_gets_only_packets_for_its_address_and_lane(view: NodeNetwork) -> None:
    port_of = {pod.ofport: pod for pod in view.pods}
    for flow in compile_flows(view):
        for action in flow.actions:
            if isinstance(action, Output) and action.port in port_of:
                pod = port_of[action.port]
                fields = {match.field.name: match for match in flow.match.fields}
                assert fields["nw_dst"].value == int(pod.address)
                assert pod.vnid == 0 or fields["reg0"].value in {0, pod.vnid}
            elif isinstance(action, Output):
                assert action.port in {VXLAN0, TUN0}


def test_a_field_is_matched_once() -> None:
    with pytest.raises(ValueError, match="in_port is matched twice"):
        in_port(1) & in_port(2)
    with pytest.raises(ValueError, match="eth_type is matched twice"):
        ip() & arp()


def test_a_value_fits_its_field_and_mask() -> None:
    with pytest.raises(ValueError, match="does not fit"):
        FieldMatch(IP_SRC, 1 << 32, IP_SRC.all_ones)
    with pytest.raises(ValueError, match="does not fit"):
        FieldMatch(IP_SRC, 0x0A000001, 0xFFFFFF00)


def test_goto_is_last_and_only_forward() -> None:
    with pytest.raises(ValueError, match="cannot go back"):
        Flow(20, 1, Match(), (Goto(20),))
    with pytest.raises(ValueError, match="not the last"):
        Flow(0, 1, Match(), (Goto(10), Output(1)))


def test_text_is_what_ovs_ofctl_takes() -> None:
    flow = Flow(0, 7, dst_port(17, 4789) & in_port(3), (SetField(ETH_DST, 0x0A580A800001), Output(2)))
    assert str(flow) == (
        "table=0,priority=7,ip,in_port=3,nw_proto=17,udp_dst=4789 actions=set_field:0a:58:0a:80:00:01->eth_dst,output:2"
    )
    assert str(Flow(0, 0, Match())) == "table=0,priority=0 actions=drop"
    assert str(ip(src=IPv4Network("10.0.0.0/8"))) == "ip,nw_src=10.0.0.0/8"
    assert field_equals(IN_PORT, 5) == in_port(5)


# --- multicast --------------------------------------------------------------------------------------------------------


def many(count: int) -> frozenset[Peer]:
    base = IPv4Address("10.32.0.1")
    return frozenset(Peer(f"n{n}", base + n, IPv4Network((0x0B000000 + 256 * n, 24))) for n in range(count))


@pytest.mark.parametrize(
    ("peers", "tables"), [(0, []), (1, [21]), (1500, [21]), (1501, [21, 22]), (5000, [21, 22, 23, 24])]
)
def test_every_peer_gets_one_copy_and_no_row_is_too_long(peers: int, tables: list[int]) -> None:
    rows = sorted(multicast_tunnel_flows(many(peers)), key=lambda flow: flow.table)
    assert [flow.table for flow in rows] == tables
    targets = [action.value for flow in rows for action in flow.actions if isinstance(action, SetField)]
    assert len(targets) == len(set(targets)) == peers
    assert all(len(flow_mod(Command.ADD, flow, 1)) < 2**16 - 64 for flow in rows)
    assert [flow.actions[-1] for flow in rows] == [Goto(table) for table in [*tables[1:], 30]][: len(rows)]


def test_peers_beyond_all_tables_are_left_out_rather_than_written_elsewhere() -> None:
    assert {flow.table for flow in multicast_tunnel_flows(many(20_000))} == set(range(21, 29))


def test_a_lane_has_multicast_when_all_of_its_projects_have() -> None:
    def lane(name: str, netid: int, on: str = "") -> NetNamespace:
        annotations = {MULTICAST_ENABLED: on} if on else {}
        return NetNamespace(metadata=ObjectMeta(name=name, annotations=annotations), netname=name, netid=netid)

    found = (lane("a", 10, "true"), lane("b", 11, "true"), lane("c", 11), lane("d", 12, "yes"), lane("e", 13, "true"))
    assert multicast_vnids({one.netname: one.netid for one in found}, found) == {10, 13}
    assert multicast_vnids(None, found) == frozenset()
