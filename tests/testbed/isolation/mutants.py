"""Pipelines with one defect each, to show that the isolation tests detect it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from sdn.host.firewall import masquerade_table
from sdn.model.flow import Flow, FlowSet
from sdn.model.service_port import ProxyMode, ServicePortInfo
from sdn.pipeline.compiler import compile_flows
from sdn.pipeline.service import GroupIds, service_port_flows
from sdn.pipeline.tables import Priority, Table
from sdn.proxy.nftables import services_table
from sdn.proxy.service_ports import ProxyConfig
from sdn.topology import Cluster, Node, NodeNetwork

Compile = Callable[[NodeNetwork], frozenset[Flow]]


@dataclass(frozen=True, slots=True)
class Mutant:
    """`compiled` is the pipeline; `shown_by` is what the name of an attempt begins with that fares otherwise.

    `port_rows` are what one port of a service adds to it; `masks` and `services` are the firewall's two tables.
    """

    compiled: Compile
    shown_by: str
    port_rows: Callable[[ServicePortInfo, Node, ProxyMode, GroupIds], FlowSet] = service_port_flows
    masks: Callable[[Cluster, Node], str] = masquerade_table
    services: Callable[[ProxyConfig, Iterable[ServicePortInfo], int], str] = services_table


def without_fields(flows: Iterable[Flow], table: int, *fields: str) -> frozenset[Flow]:
    """The same flows, but those of one table no longer look at these fields; at no field: they are not there."""
    changed: dict[object, Flow] = {}
    for flow in flows:
        if flow.table != table:
            changed[flow.key] = flow
        elif fields:
            kept = tuple(one for one in flow.match.fields if one.field.name not in fields)
            less = replace(flow, match=replace(flow.match, fields=kept))
            changed.setdefault(less.key, less)
    return frozenset(changed.values())


def _no_look(table: Table, *fields: str) -> Compile:
    return lambda view: without_fields(compile_flows(view), table, *fields)


def _no_guard(view: NodeNetwork) -> frozenset[Flow]:
    return frozenset(
        one for one in compile_flows(view) if (one.table, one.priority) != (Table.EXTERNAL_OUTPUT, Priority.TOP)
    )


def _lets_vxlan_pass(cluster: Cluster, node: Node) -> str:
    return _less(masquerade_table(cluster, node), f"ip saddr @cluster udp dport {cluster.vxlan_port} drop")


def _no_look_at_callers(port: ServicePortInfo, node: Node, mode: ProxyMode, groups: GroupIds) -> FlowSet:
    rows = service_port_flows(port, node, mode, groups)
    return FlowSet(without_fields(rows.flows, Table.SERVICE_LB, "reg0"), rows.groups)


def _no_end_for_strangers(port: ServicePortInfo, node: Node, mode: ProxyMode, groups: GroupIds) -> FlowSet:
    rows = service_port_flows(port, node, mode, groups)
    return FlowSet(frozenset(one for one in rows.flows if one.actions), rows.groups)


def _node_ports_lead_out(view: NodeNetwork) -> frozenset[Flow]:
    rows = compile_flows(view)
    return rows - {
        one for one in rows if one.table == Table.SERVICE_LB and not one.actions and "reg2" in str(one.match)
    }


def _translates_for_pods(config: ProxyConfig, ports: Iterable[ServicePortInfo], proxy_port: int) -> str:
    return _less(services_table(config, ports, proxy_port), 'iifname "tun0" goto from_pods')


def _refuses_no_pods(config: ProxyConfig, ports: Iterable[ServicePortInfo], proxy_port: int) -> str:
    whole = services_table(config, ports, proxy_port)
    [to_node_port] = [line for line in whole.splitlines() if "@node_ips meta l4proto {" in line]
    return _less(whole, to_node_port)


def _less(text: str, rule: str) -> str:
    assert text.count(rule) == 1, rule
    return text.replace(rule, "")


MUTANTS = {
    "no look at the VNID": Mutant(_no_look(Table.POD_OUTPUT, "reg0"), "UDP"),
    "no look at the sender's address": Mutant(_no_look(Table.CLASSIFIER, "nw_src"), "from the address"),
    "no look at the sender's MAC": Mutant(_no_look(Table.CLASSIFIER, "eth_src"), "from a foreign MAC"),
    "no look at tags": Mutant(_no_look(Table.CLASSIFIER, "vlan_tci"), "tagged 10"),
    "no look at the tunnel's end": Mutant(_no_look(Table.CLASSIFIER, "tun_src"), "through a tunnel from a stranger"),
    "no look at the sender's port": Mutant(_no_look(Table.CLASSIFIER, "in_port"), "from the MAC and address of"),
    "VXLAN from pods": Mutant(_no_guard, "VXLAN by hand", masks=_lets_vxlan_pass),
    "no way out": Mutant(_no_look(Table.EXTERNAL_OUTPUT), "to the outside"),
}
"""By what is wrong with them."""

SERVICE_MUTANTS = {
    "no look at who calls a service": Mutant(compile_flows, "a call at the", port_rows=_no_look_at_callers),
    "the firewall translates a stranger's call": Mutant(
        compile_flows, "a call at the", port_rows=_no_end_for_strangers, services=_translates_for_pods
    ),
    "a call at a node port leaves and comes back": Mutant(
        _node_ports_lead_out, "a call at the node port of", services=_refuses_no_pods
    ),
}
"""Shows only where there are services. Who takes away a bar of the switch has another one before him, the firewall."""


class _StaleFlows:
    def __init__(self) -> None:
        self._ever: dict[object, Flow] = {}

    def __call__(self, view: NodeNetwork) -> frozenset[Flow]:
        flows = compile_flows(view)
        self._ever |= {flow.key: flow for flow in flows if flow.table == Table.POD_OUTPUT}
        return flows | frozenset(self._ever.values())


STALE_FLOW_MUTANTS = {"rows of earlier lanes stay": Mutant(_StaleFlows(), "UDP")}
"""Shows only when lanes change."""
