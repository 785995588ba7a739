"""Properties of every compiled set of flows."""

from __future__ import annotations

from dataclasses import replace
from ipaddress import IPv4Address, IPv4Network

from hypothesis import given
from hypothesis import strategies as st

from sdn.model.flow import Output
from sdn.model.match import ip
from sdn.pipeline.compiler import compile_flows, flows_of_peer, flows_of_pod
from sdn.pipeline.tables import Priority, Table
from sdn.topology import GATEWAY_OFPORT, VXLAN_OFPORT, NodeNetwork, Peer, Pod
from tests.unit.sdn.examples import CLUSTER, NODE, peers

pods = st.lists(st.tuples(st.integers(2, 509), st.integers(0, 30)), max_size=20, unique_by=lambda pod: pod[0])


@st.composite
def node_networks(draw: st.DrawFn) -> NodeNetwork:
    here = frozenset(
        Pod(16 + number, NODE.subnet.network_address + offset, vnid) for number, (offset, vnid) in enumerate(draw(pods))
    )
    there = frozenset(
        Peer(f"n{n}", IPv4Address("10.245.2.3") + n, IPv4Network((0x0A800000 + 512 * n, 23))) for n in draw(peers)
    )
    return NodeNetwork(CLUSTER, NODE, there, here)


@given(node_networks())
def test_compiled_flows_are_unique_by_table_priority_and_match(network: NodeNetwork) -> None:
    flows = compile_flows(network)
    assert len({flow.key for flow in flows}) == len(flows)


@given(node_networks())
def test_pod_change_changes_only_its_own_flows(network: NodeNetwork) -> None:
    for pod in network.pods:
        without = compile_flows(replace(network, pods=network.pods - {pod}))
        assert compile_flows(network) - without == flows_of_pod(pod)
        assert without <= compile_flows(network)


@given(node_networks())
def test_peer_change_changes_only_its_own_flows(network: NodeNetwork) -> None:
    for peer in network.peers:
        without = compile_flows(replace(network, peers=network.peers - {peer}))
        assert compile_flows(network) - without == flows_of_peer(peer)


@given(node_networks())
def test_pod_port_gets_only_packets_for_its_address_and_vnid(network: NodeNetwork) -> None:
    port_of = {pod.ofport: pod for pod in network.pods}
    for flow in compile_flows(network):
        for action in flow.actions:
            if isinstance(action, Output) and action.port in port_of:
                pod = port_of[action.port]
                fields = {match.field.name: match for match in flow.match.fields}
                assert fields["nw_dst"].value == int(pod.address)
                assert pod.vnid == 0 or fields["reg0"].value in {0, pod.vnid}
            elif isinstance(action, Output):
                assert action.port in {VXLAN_OFPORT, GATEWAY_OFPORT}


@given(node_networks())
def test_pods_of_every_project_reach_the_gateway_address_with_every_protocol(network: NodeNetwork) -> None:
    """DNS (port 53) and NTP (port 123) of the node need no flow of their own."""
    to_gateway = {
        Table(flow.table): (flow.priority, len(flow.actions))
        for flow in compile_flows(network)
        if flow.match == ip(dst=NODE.gateway)
    }
    assert to_gateway == {
        Table.L3_FORWARDING: (Priority.HIGH, 1),
        Table.POD_OUTPUT: (Priority.HIGH, 2),
    }
