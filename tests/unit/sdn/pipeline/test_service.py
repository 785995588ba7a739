"""Flows of services: properties of every set of ports and of every change."""

from __future__ import annotations

from dataclasses import replace
from ipaddress import IPv4Address

from hypothesis import given

from sdn.model.flow import Ct, Flow, FlowSet, Goto, GroupAction, Learn, Output
from sdn.model.match import ETH_TYPE, IN_PORT, IP_PROTO, IP_SRC, REG0, ct_state, ip
from sdn.model.service_port import (
    EndpointInfo,
    Protocol,
    ProxyMode,
    ServicePortChange,
    ServicePortInfo,
    ServicePortName,
)
from sdn.pipeline.compiler import compile_flows
from sdn.pipeline.flows import is_service_flow
from sdn.pipeline.service import GROUP_HASH_SLOTS, MAX_USED_OUTSIDE, ServiceFlows, service_node_flows
from sdn.pipeline.tables import FROM_ENDPOINT, MAX_PORTS_WITH_SENDERS, MAX_SENDERS, Table
from tests.unit.sdn.examples import CLUSTER, NODE, web
from tests.unit.sdn.pipeline.examples import EMPTY_NETWORK, port_sets


@given(port_sets(), port_sets())
def test_service_flow_changes_lead_to_the_same_flows_as_a_fresh_start(
    before: dict[ServicePortName, ServicePortInfo], after: dict[ServicePortName, ServicePortInfo]
) -> None:
    service_flows = ServiceFlows(NODE)
    installed = service_flows.sync(before.values())
    removed = tuple(port for key, port in before.items() if after.get(key) != port)
    added = tuple(port for key, port in after.items() if before.get(key) != port)
    closed, opened = service_flows.update(ServicePortChange(removed, added))
    assert closed.flows <= installed.flows
    changed = FlowSet(installed.flows - closed.flows | opened.flows, installed.groups - closed.groups | opened.groups)
    assert changed == service_flows.all() == ServiceFlows(NODE).sync(after.values())


@given(port_sets())
def test_service_flows_are_unique_and_refer_to_existing_groups(
    ports: dict[ServicePortName, ServicePortInfo],
) -> None:
    flow_set = ServiceFlows(NODE).sync(ports.values())
    every = flow_set.flows | compile_flows(EMPTY_NETWORK)
    assert len({flow.key for flow in every}) == len(every)
    assert all(map(is_service_flow, flow_set.flows))
    groups = {group.number for group in flow_set.groups}
    assert len(groups) == len(flow_set.groups)
    used = {action.group for flow in flow_set.flows for action in flow.actions if isinstance(action, GroupAction)}
    assert used == groups


def test_flow_of_established_connections_shares_its_priority_with_no_flow_that_may_match_their_packets() -> None:
    """The endpoint of a connection outside of the cluster may be an external IP and port of a service."""
    port = replace(web(), external_ips=(IPv4Address("172.29.0.1"),))
    flows = ServiceFlows(NODE).sync([port]).flows | service_node_flows(CLUSTER, NODE)
    in_table = [flow for flow in flows if flow.table == Table.SERVICE_LB]
    (established,) = [flow for flow in in_table if flow.match == ip() & ct_state("est")]
    frontends = [flow for flow in in_table if "nw_dst=172.29.0.1," in str(flow.match)]
    assert frontends
    assert all(flow.priority < established.priority for flow in frontends)
    assert [flow for flow in in_table if flow.priority == established.priority] == [established]


@given(port_sets())
def test_service_flows_admit_only_the_services_vnid_and_vnid_0(ports: dict[ServicePortName, ServicePortInfo]) -> None:
    for port in ports.values():
        for flow in ServiceFlows(NODE).sync([port]).flows:
            if _leads_on(flow) and flow.table == 21:
                requested = {field_match.value for field_match in flow.match.fields if field_match.field == REG0}
                assert requested <= {0, port.vnid}
                assert requested or port.vnid == 0


def test_endpoints_at_nodes_are_open_to_the_pods_of_their_services_until_the_last_one_goes() -> None:
    endpoint = EndpointInfo(IPv4Address("10.245.2.4"), 9100, is_on_node=True)
    closed = EndpointInfo(IPv4Address("10.245.2.4"), 10250)
    red = replace(web(), internal_endpoints=(endpoint, closed), cluster_endpoints=(endpoint, closed))
    again = replace(red, key=replace(red.key, service="again"))
    for_all = replace(red, key=replace(red.key, namespace="default"), vnid=0)
    service_flows = ServiceFlows(NODE)
    match = "ip,nw_dst=10.245.2.4,nw_proto=6,tcp_dst=9100"

    def opened() -> list[str]:
        flows = service_flows.all().flows
        return sorted(str(flow.match) for flow in flows if flow.table == Table.EXTERNAL_OUTPUT)

    service_flows.sync((red, again, for_all))
    assert opened() == [match, "ip,reg0=0xa,nw_dst=10.245.2.4,nw_proto=6,tcp_dst=9100"]
    service_flows.update(ServicePortChange(removed=(red,)))
    assert len(opened()) == 2
    service_flows.update(ServicePortChange(removed=(again,)))
    assert opened() == [match]
    service_flows.update(ServicePortChange(removed=(for_all,)))
    assert opened() == []


def _leads_on(flow: Flow) -> bool:
    return any(isinstance(action, GroupAction | Ct | Goto | Output) for action in flow.actions)


def test_endpoint_change_changes_one_group_and_the_flow_of_the_endpoint() -> None:
    before, after = web("10.128.0.2", "10.128.0.3"), web("10.128.0.2", "10.128.0.3", "10.128.0.4")
    service_flows = ServiceFlows(NODE)
    service_flows.sync([before])
    closed, opened = service_flows.update(ServicePortChange((before,), (after,)))
    assert not closed.flows
    assert [str(flow.match) for flow in opened.flows] == ["ip,nw_src=10.128.0.4"]
    assert [group.number for group in closed.groups] == [group.number for group in opened.groups]


def senders(service_flows: ServiceFlows) -> list[str]:
    """Return the matches of the packets that may be replies."""
    return sorted(str(flow.match) for flow in service_flows.all().flows if flow.table == Table.ENDPOINT_LOOKUP)


def test_senders_are_endpoints_until_a_vnid_has_too_many() -> None:
    first = int(IPv4Address("10.128.0.2"))
    addresses = [str(IPv4Address(first + number)) for number in range(MAX_SENDERS + 1)]
    few, many = web(*addresses[:-1]), web(*addresses)
    for_all = replace(web(addresses[0]), key=replace(few.key, namespace="default"), vnid=0)
    service_flows = ServiceFlows(NODE)
    service_flows.sync([few, for_all])
    exact = sorted(f"ip,nw_src={address}" for address in addresses[:-1])
    assert senders(service_flows) == exact
    service_flows.update(ServicePortChange((few,), (many,)))
    assert senders(service_flows) == ["ip,in_port=2", f"ip,nw_src={addresses[0]}", "ip,reg0=0xa"]
    service_flows.update(ServicePortChange((many,), (few,)))
    assert senders(service_flows) == exact
    service_flows.update(ServicePortChange((few,)))
    assert senders(service_flows) == [f"ip,nw_src={addresses[0]}"]


def test_senders_are_all_of_a_vnid_with_very_many_service_ports() -> None:
    ports = [
        replace(web("10.128.0.2"), key=ServicePortName("red", f"web-{number}", "", Protocol.TCP), cluster_ip=None)
        for number in range(MAX_PORTS_WITH_SENDERS + 1)
    ]
    service_flows = ServiceFlows(NODE)
    service_flows.sync(ports)
    assert senders(service_flows) == ["ip,in_port=2", "ip,reg0=0xa"]


@given(port_sets())
def test_packet_depends_on_ports_only_if_its_sender_may_be_an_endpoint(
    ports: dict[ServicePortName, ServicePortInfo],
) -> None:
    flows = ServiceFlows(NODE).sync(ports.values()).flows | compile_flows(EMPTY_NETWORK)
    for flow in flows:
        fields = {field_match.field for field_match in flow.match.fields}
        if flow.table == Table.ENDPOINT_LOOKUP:
            assert fields <= {ETH_TYPE, IP_SRC, IP_PROTO, IN_PORT, REG0}
            assert IP_PROTO not in fields or IN_PORT in fields
        if flow.table == Table.SERVICE_UNDNAT and fields != {ETH_TYPE}:
            assert FROM_ENDPOINT in fields


def service_lb_flows(port: ServicePortInfo, mode: ProxyMode = ProxyMode.NFTABLES) -> list[str]:
    """Return the flows of SERVICE_LB for clients with the VNID of the service."""
    flows = (flow for flow in ServiceFlows(NODE, mode).sync([port]).flows if flow.table == Table.SERVICE_LB)
    return sorted(str(flow).partition("table=21,")[2] for flow in flows if "reg0=0xa" in str(flow))


AT_CLUSTER_IP = "priority=200,ip,reg0=0xa,nw_dst=172.30.0.1,nw_proto=6,tcp_dst=80,ct_state=+new+trk"
AT_NODES = "ip,reg0=0xa,reg2=0x1,nw_proto=6,tcp_dst=30080,ct_state=+new+trk"
AT_OWN_NODE = f"ip,reg0=0xa,reg2=0x1,nw_dst={NODE.address},nw_proto=6,tcp_dst=30080,ct_state=+new+trk"
TO_GATEWAY = "set_field:0a:58:0a:80:00:01->eth_dst,output:2"
PERMITTED_TO_GATEWAY = f"set_field:0a:58:00:00:00:00->eth_src,{TO_GATEWAY}"


def test_external_traffic_policy_local_sends_pods_to_the_node_whose_port_they_call() -> None:
    cluster = replace(web("10.128.2.2"), node_port=30080)
    local = replace(cluster, external_endpoints=(), external_policy_local=True)
    dnat = "ct(commit,table=40,zone=1,nat(dst=10.128.2.2:8080))"
    everywhere, at_cluster_ip = f"priority=200,{AT_NODES} actions={dnat}", f"{AT_CLUSTER_IP} actions={dnat}"
    assert service_lb_flows(cluster) == sorted([everywhere, at_cluster_ip])
    at_own_node = f"priority=200,{AT_OWN_NODE} actions={dnat}"
    at_others = f"priority=100,{AT_NODES} actions={PERMITTED_TO_GATEWAY}"
    assert service_lb_flows(local) == sorted([at_own_node, at_others, at_cluster_ip])
    without_endpoints = replace(local, internal_endpoints=(), cluster_endpoints=())
    refused = f"priority=200,{AT_NODES} actions={TO_GATEWAY}"
    assert service_lb_flows(without_endpoints) == sorted([refused, f"{AT_CLUSTER_IP} actions={TO_GATEWAY}"])


def test_userspace_proxy_gets_no_connection_to_another_node_with_external_traffic_policy_local() -> None:
    local = replace(web("10.128.2.2"), node_port=30080, external_endpoints=(), external_policy_local=True)
    at_own_node = f"priority=200,{AT_OWN_NODE} actions={TO_GATEWAY}"
    at_others = f"priority=100,{AT_NODES} actions={PERMITTED_TO_GATEWAY}"
    at_cluster_ip = f"{AT_CLUSTER_IP} actions={TO_GATEWAY}"
    assert service_lb_flows(local, ProxyMode.USERSPACE) == sorted([at_own_node, at_others, at_cluster_ip])


def test_health_checks_are_open_to_the_pods_of_their_service_until_its_last_port_goes() -> None:
    first = replace(web("10.128.2.2"), health_port=30100)
    second = replace(first, key=replace(first.key, port_name="second"), cluster_ip=None, node_port=0)
    match = "priority=200,ip,reg0=0xa,reg2=0x1,nw_proto=6,tcp_dst=30100,ct_state=+new+trk"
    expected = f"{match} actions={PERMITTED_TO_GATEWAY}"
    assert service_lb_flows(second) == [expected]
    service_flows = ServiceFlows(NODE)
    service_flows.sync([first, second])

    def is_open() -> bool:
        return any(match in str(flow) for flow in service_flows.all().flows)

    service_flows.update(ServicePortChange((first,)))
    assert is_open()
    service_flows.update(ServicePortChange((second,)))
    assert not is_open()


def test_group_hash_slots_are_spread_evenly_over_endpoints() -> None:
    for count in range(2, 17):
        [group] = ServiceFlows(NODE).sync([web(*(f"10.128.0.{2 + n}" for n in range(count)))]).groups
        weights = [bucket.weight for bucket in group.buckets]
        assert GROUP_HASH_SLOTS // 2 < sum(weights) <= GROUP_HASH_SLOTS
        assert len(set(weights[:-1])) == 1


def test_service_ports_with_equal_checksums_get_separate_groups() -> None:
    """CRC-32 of `plumless` and `buckeroo` is the same."""
    ports = [
        replace(web("10.128.0.2", "10.128.0.3"), key=ServicePortName("red", name, "", Protocol.TCP), cluster_ip=address)
        for name, address in (("plumless", IPv4Address("172.30.0.1")), ("buckeroo", IPv4Address("172.30.0.2")))
    ]
    alone = {group.number for port in ports for group in ServiceFlows(NODE).sync([port]).groups}
    assert len(alone) == 1
    assert len({group.number for group in ServiceFlows(NODE).sync(ports).groups}) == 2


def test_switch_remembers_a_limited_number_of_endpoints_outside_of_the_cluster_network() -> None:
    learned = {
        flow: action
        for flow in service_node_flows(CLUSTER, NODE)
        for action in flow.actions
        if isinstance(action, Learn)
    }
    outside, inside = sorted(learned, key=lambda flow: flow.priority)
    assert "nw_dst" not in str(outside.match)
    assert learned[outside].limit == MAX_USED_OUTSIDE
    assert f"nw_dst={CLUSTER.networks[0]}" in str(inside.match)
    assert learned[inside].limit == 0
    assert learned[inside].cookie != learned[outside].cookie
