"""Moves flows and groups of services from the tables of the previous version to today's. Pure.

The flows of the node and those of services are written at different times: the service proxy first needs the services
from the API server. When a new version of the daemon starts, its first write replaces the flows of the node and moves
those of services, in one bundle. So no new packet meets tables of both versions.

A packet that is in connection tracking at that moment returns to a table of the previous version. For some seconds,
flows there send it on to the table of this version, so the packet is not lost.
"""

from __future__ import annotations

from msgspec.structs import replace

from sdn.model.flow import Action, Bucket, Ct, Flow, Goto, Group, Learn, Resubmit
from sdn.pipeline.tables import Table

PREVIOUS_TABLES: dict[int, Table] = {
    12: Table.SERVICE_CONNTRACK,
    13: Table.SERVICE_LB,
    14: Table.SESSION_AFFINITY,
    15: Table.AFFINITY_CHECK,
    16: Table.ENDPOINT_DNAT,
    20: Table.L3_FORWARDING,
    29: Table.ENDPOINT_LOOKUP,
    30: Table.POD_OUTPUT,
}
"""Tables of the previous version that its flows of services are in or lead to.

Its table 29 decided by the port alone which packets may be replies. Its flows do the same in ENDPOINT_LOOKUP, until the
service proxy replaces them.
"""

PREVIOUS_ONLY_TABLES = frozenset(PREVIOUS_TABLES) - {int(table) for table in Table}
"""Those that have no flows today. The previous version has no flow of a service in another table."""


def renumbered_flow(flow: Flow) -> Flow:
    """Return the flow of a service in today's tables. A flow that is in one of them already stays as it is."""
    if flow.table not in PREVIOUS_ONLY_TABLES:
        return flow
    table, actions = int(PREVIOUS_TABLES[flow.table]), tuple(map(_renumbered_action, flow.actions))
    return Flow(table, flow.priority, flow.match, actions, flow.cookie)


def renumbered_group(group: Group) -> Group:
    """Return a group whose buckets lead to today's tables."""
    return Group(
        group.number,
        tuple(Bucket(bucket.weight, tuple(map(_renumbered_action, bucket.actions))) for bucket in group.buckets),
    )


def _renumbered_action(action: Action) -> Action:
    if isinstance(action, Goto | Ct | Resubmit | Learn) and action.table in PREVIOUS_TABLES:
        return replace(action, table=int(PREVIOUS_TABLES[action.table]))
    return action
