"""Pipelines with one defect each, to show that the isolation tests detect it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from msgspec import structs

from sdn.host.firewall import masquerade_table
from sdn.model.flow import Flow, FlowSet
from sdn.model.match import Match
from sdn.model.service_port import ProxyMode, ServicePortInfo
from sdn.pipeline.compiler import compile_flows
from sdn.pipeline.drops import DropReason, drop_reason
from sdn.pipeline.service import GroupIds, service_port_flows
from sdn.pipeline.tables import Table
from sdn.proxy.nftables import services_table
from sdn.proxy.service_ports import ProxyConfig
from sdn.topology import Cluster, Node, NodeNetwork

Compile = Callable[[NodeNetwork], frozenset[Flow]]


@dataclass(frozen=True, slots=True)
class Mutant:
    """A defect: functions that replace those of the daemon, and the attempts that show it.

    `network_flows` and `port_flows` return the flows of a node and of one service port. `masquerade` and `services`
    return the two tables of the firewall. The names of attempts whose outcome differs from the model begin with
    `detected_by`.
    """

    network_flows: Compile
    detected_by: str
    port_flows: Callable[[ServicePortInfo, Node, ProxyMode, GroupIds], FlowSet] = service_port_flows
    masquerade: Callable[[Cluster, Node], str] = masquerade_table
    services: Callable[[ProxyConfig, Iterable[ServicePortInfo], int], str] = services_table


def without_fields(flows: Iterable[Flow], table: int, *fields: str) -> frozenset[Flow]:
    """Return the flows with these fields removed from the matches of one table; without fields, the table is empty."""
    changed: dict[object, Flow] = {}
    for flow in flows:
        if flow.table != table:
            changed[flow.key] = flow
        elif fields:
            remaining = tuple(match for match in flow.match.fields if match.field.name not in fields)
            wider = structs.replace(flow, match=Match(remaining))
            changed.setdefault(wider.key, wider)
    return frozenset(changed.values())


def _compile_without(table: Table, *fields: str) -> Compile:
    return lambda network: without_fields(compile_flows(network), table, *fields)


def _without_vxlan_drop(network: NodeNetwork) -> frozenset[Flow]:
    return frozenset(
        flow for flow in compile_flows(network) if drop_reason(flow.cookie) is not DropReason.VXLAN_FROM_POD
    )


def _masquerade_table_without_vxlan_drop(cluster: Cluster, node: Node) -> str:
    return _without_rule(masquerade_table(cluster, node), f"ip saddr @cluster udp dport {cluster.vxlan_port} drop")


def _services_table_with_open_nodes(config: ProxyConfig, ports: Iterable[ServicePortInfo], proxy_port: int) -> str:
    return services_table(replace(config, node=replace(config.node, open_ports=None)), ports, proxy_port)


def _service_port_without_vnid(port: ServicePortInfo, node: Node, mode: ProxyMode, groups: GroupIds) -> FlowSet:
    flow_set = service_port_flows(port, node, mode, groups)
    return FlowSet(without_fields(flow_set.flows, Table.SERVICE_LB, "reg0"), flow_set.groups)


def _service_port_without_drops(port: ServicePortInfo, node: Node, mode: ProxyMode, groups: GroupIds) -> FlowSet:
    flow_set = service_port_flows(port, node, mode, groups)
    return FlowSet(frozenset(flow for flow in flow_set.flows if flow.actions), flow_set.groups)


def _without_node_port_drop(network: NodeNetwork) -> frozenset[Flow]:
    flows = compile_flows(network)
    return flows - {
        flow for flow in flows if flow.table == Table.SERVICE_LB and not flow.actions and "reg2" in str(flow.match)
    }


def _services_table_for_pods(config: ProxyConfig, ports: Iterable[ServicePortInfo], proxy_port: int) -> str:
    return _without_rule(services_table(config, ports, proxy_port), 'iifname "tun0" goto from_pods')


def _services_table_without_reject(config: ProxyConfig, ports: Iterable[ServicePortInfo], proxy_port: int) -> str:
    text = _services_table_with_open_nodes(config, ports, proxy_port)
    [to_node_port] = [line for line in text.splitlines() if "@node_ips meta l4proto {" in line]
    return _without_rule(text, to_node_port)


def _without_rule(text: str, rule: str) -> str:
    assert text.count(rule) == 1, rule
    return text.replace(rule, "")


MUTANTS = {
    "no match on the VNID": Mutant(_compile_without(Table.POD_OUTPUT, "reg0"), "UDP"),
    "no match on the sender's address": Mutant(_compile_without(Table.CLASSIFIER, "nw_src"), "from the address"),
    "no match on the sender's MAC": Mutant(_compile_without(Table.CLASSIFIER, "eth_src"), "from a foreign MAC"),
    "no match on VLAN tags": Mutant(_compile_without(Table.CLASSIFIER, "vlan_tci"), "tagged 10"),
    "no match on the tunnel's source": Mutant(
        _compile_without(Table.CLASSIFIER, "tun_src"), "through a tunnel from a stranger"
    ),
    "no match on the sender's port": Mutant(
        _compile_without(Table.CLASSIFIER, "in_port"), "from the MAC and address of"
    ),
    "VXLAN from pods is forwarded": Mutant(
        _without_vxlan_drop,
        "VXLAN by hand",
        masquerade=_masquerade_table_without_vxlan_drop,
        services=_services_table_with_open_nodes,
    ),
    "no flows to external addresses": Mutant(_compile_without(Table.EXTERNAL_OUTPUT), "to the outside"),
}
"""Mutants by their defect."""

SERVICE_MUTANTS = {
    "no match on the VNID of a service's client": Mutant(
        compile_flows, "a call at the", port_flows=_service_port_without_vnid
    ),
    "the firewall translates connections of other projects": Mutant(
        compile_flows, "a call at the", port_flows=_service_port_without_drops, services=_services_table_for_pods
    ),
    "a connection to a node port leaves br0 and comes back": Mutant(
        _without_node_port_drop, "a call at the node port of", services=_services_table_without_reject
    ),
}
"""Mutants that show only where there are services. The firewall would drop the packets of the last two as well, so
they lack the rule of the firewall, too."""


class _StaleFlows:
    def __init__(self) -> None:
        self._all: dict[object, Flow] = {}

    def __call__(self, network: NodeNetwork) -> frozenset[Flow]:
        flows = compile_flows(network)
        self._all |= {flow.key: flow for flow in flows if flow.table == Table.POD_OUTPUT}
        return flows | frozenset(self._all.values())


STALE_FLOW_MUTANTS = {"flows of earlier VNIDs stay": Mutant(_StaleFlows(), "UDP")}
"""Mutants that show only when VNIDs change."""
