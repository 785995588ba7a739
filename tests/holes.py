"""Pipelines with a hole each, to show that a test which is to find holes does."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from sdn.flow import Flow
from sdn.flows import compile_flows
from sdn.pipeline import Priority, Table
from sdn.view import View

Compile = Callable[[View], frozenset[Flow]]


@dataclass(frozen=True, slots=True)
class Hole:
    """`compiled` is the pipeline; `shown_by` is what the name of an attempt begins with that fares otherwise."""

    compiled: Compile
    shown_by: str


def without(flows: Iterable[Flow], table: int, *fields: str) -> frozenset[Flow]:
    """The same flows, but those of one table no longer look at these fields; at no field: they are not there."""
    changed: dict[object, Flow] = {}
    for flow in flows:
        if flow.table != table:
            changed[flow.row] = flow
        elif fields:
            kept = tuple(one for one in flow.match.fields if one.field.name not in fields)
            less = replace(flow, match=replace(flow.match, fields=kept))
            changed.setdefault(less.row, less)
    return frozenset(changed.values())


def _no_look(table: Table, *fields: str) -> Compile:
    return lambda view: without(compile_flows(view), table, *fields)


def _no_guard(view: View) -> frozenset[Flow]:
    return frozenset(one for one in compile_flows(view) if (one.table, one.priority) != (Table.OUTSIDE, Priority.GUARD))


HOLES = {
    "no look at the VNID": Hole(_no_look(Table.DELIVER, "reg0"), "UDP"),
    "no look at the sender's address": Hole(_no_look(Table.SOURCE, "nw_src"), "from the address"),
    "no look at the sender's MAC": Hole(_no_look(Table.SOURCE, "eth_src"), "from a foreign MAC"),
    "no look at tags": Hole(_no_look(Table.SOURCE, "vlan_tci"), "tagged 10"),
    "no look at the tunnel's end": Hole(_no_look(Table.SOURCE, "tun_src"), "through a tunnel from a stranger"),
    "no look at the sender's port": Hole(_no_look(Table.SOURCE, "in_port"), "from the MAC and address of"),
    "VXLAN from pods": Hole(_no_guard, "VXLAN by hand"),
    "no way out": Hole(_no_look(Table.OUTSIDE), "to the outside"),
}
"""By what is wrong with them."""


class _Leftovers:
    def __init__(self) -> None:
        self._ever: dict[object, Flow] = {}

    def __call__(self, view: View) -> frozenset[Flow]:
        flows = compile_flows(view)
        self._ever |= {flow.row: flow for flow in flows if flow.table == Table.DELIVER}
        return flows | frozenset(self._ever.values())


LEFTOVERS = {"rows of earlier lanes stay": Hole(_Leftovers(), "UDP")}
"""Shows only when lanes change."""
