"""Flows and groups of services of the previous version, moved to today's tables."""

from __future__ import annotations

from dataclasses import replace
from ipaddress import IPv4Address

from hypothesis import given

from sdn.drivers.openflow.bridge_state import BridgeState, FlowDiff, FlowSetState
from sdn.model.flow import Flow, FlowSet, Group
from sdn.model.service_port import ServicePortInfo, ServicePortName
from sdn.pipeline.compiler import compile_flows
from sdn.pipeline.flows import BRIDGE_LAYOUT, Partition
from sdn.pipeline.renumbering import renumbered_flow, renumbered_group
from sdn.pipeline.service import ServiceFlows
from sdn.pipeline.tables import Table
from sdn.topology import Pod
from tests.unit.sdn.examples import NODE
from tests.unit.sdn.pipeline.examples import (
    EMPTY_NETWORK,
    port_sets,
    previous_flows,
    previous_group,
    replaced_by_the_proxy,
)

NETWORK = replace(EMPTY_NETWORK, pods=frozenset({Pod(16, IPv4Address("10.128.0.2"), 10)}), multicast=frozenset({10}))


def service_flows(ports: dict[ServicePortName, ServicePortInfo]) -> FlowSet:
    return ServiceFlows(NODE).sync(ports.values())


@given(port_sets())
def test_flows_of_the_previous_version_become_todays(ports: dict[ServicePortName, ServicePortInfo]) -> None:
    today = service_flows(ports)
    assert {renumbered_flow(flow) for flow in previous_flows(today.flows)} == replaced_by_the_proxy(today.flows)
    assert {renumbered_group(previous_group(group)) for group in today.groups} == today.groups


@given(port_sets())
def test_flows_of_today_stay(ports: dict[ServicePortName, ServicePortInfo]) -> None:
    today = service_flows(ports)
    assert all(renumbered_flow(flow) == flow for flow in today.flows | replaced_by_the_proxy(today.flows))
    assert all(renumbered_group(group) == group for group in today.groups)


def after(state: FlowSet, diff: FlowDiff) -> FlowSet:
    """Return the state of a bridge after a difference. A written flow replaces the one with the same key."""
    deleted = {flow for flow in diff.removed if isinstance(flow, Flow)}
    flows = {flow.key: flow for flow in state.flows - deleted} | {flow.key: flow for flow in diff.added}
    groups = {group.number: group for group in state.groups} | {
        group.number: group for group in diff.added_groups if isinstance(group, Group)
    }
    return FlowSet(frozenset(flows.values()), frozenset(groups.values()))


@given(port_sets())
def test_first_sync_of_the_node_moves_every_flow_to_todays_tables(
    ports: dict[ServicePortName, ServicePortInfo],
) -> None:
    services, node = service_flows(ports), compile_flows(NETWORK)
    today = FlowSet(replaced_by_the_proxy(services.flows) | node, services.groups)
    before = FlowSet(previous_flows(services.flows | node), frozenset(map(previous_group, services.groups)))
    state = BridgeState(BRIDGE_LAYOUT, before.flows, before.groups)
    desired = FlowSetState.of(FlowSet(compile_flows(NETWORK)))
    diff = state.diff(Partition.NODE, desired) + state.renumbering(Partition.NODE)
    assert state.has_previous_version()
    assert after(before, diff) == today
    state.apply(diff)
    assert state.flows() == today.flows
    assert not state.renumbering(Partition.NODE)
    assert not state.has_previous_version()


def test_tables_of_services_have_numbers_that_the_previous_version_does_not_use_for_services() -> None:
    services = {Table.SERVICE_CONNTRACK, Table.SERVICE_LB, Table.SESSION_AFFINITY, Table.AFFINITY_CHECK}
    services |= {Table.ENDPOINT_DNAT, Table.ENDPOINT_LOOKUP, Table.USED_ENDPOINTS, Table.SERVICE_UNDNAT}
    assert not services & {12, 13, 14, 15, 16, 29}
