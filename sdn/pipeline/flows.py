"""Makes flows of the pipeline, and divides them into the partitions of br0. Pure."""

from __future__ import annotations

from enum import StrEnum

from sdn.model.flow import Action, BridgeLayout, Flow, Goto
from sdn.model.match import Match, ct_state, ip
from sdn.pipeline.cookies import NODE_COOKIE, CookieCategory, category_of
from sdn.pipeline.drops import DropReason, drop_cookie
from sdn.pipeline.renumbering import PREVIOUS_ONLY_TABLES, PREVIOUS_TABLES, renumbered_flow, renumbered_group
from sdn.pipeline.tables import LEARNED_TABLES, Priority, Table


def make_flow(
    table: Table,
    priority: Priority,
    match: Match,
    *actions: Action,
    cookie: int = NODE_COOKIE,
    drop: DropReason | None = None,
) -> Flow:
    """Return a flow with actions, or one that drops packets for a reason, which its cookie carries.

    Raises ValueError for a flow with both or with neither.
    """
    if (drop is None) != bool(actions):
        raise ValueError(f"{table.name},priority={priority},{match}: either actions or a drop reason is required")
    return Flow(int(table), int(priority), match, actions, cookie if drop is None else drop_cookie(cookie, drop))


class Partition(StrEnum):
    """The partitions of the bridge: flows that follow from the network, and those that follow from services."""

    NODE = "node"
    SERVICE = "service"


def is_service_flow(flow: Flow) -> bool:
    """Return True if the flow belongs to services."""
    return category_of(flow.cookie) == CookieCategory.SERVICE


def partition_of(flow: Flow) -> Partition:
    """Return the partition of a flow."""
    return Partition.SERVICE if is_service_flow(flow) else Partition.NODE


BRIDGE_LAYOUT = BridgeLayout(
    partition_of=partition_of,
    unknown_flows=Partition.NODE,
    groups=Partition.SERVICE,
    learned_tables=frozenset(map(int, LEARNED_TABLES)),
    previous_version_flow=Flow(13, int(Priority.TOP), ip() & ct_state("est"), (Goto(20),), NODE_COOKIE),
    renumbered_flow=renumbered_flow,
    renumbered_group=renumbered_group,
    transition_flows=frozenset(
        Flow(table, int(Priority.MISS), Match(), (Goto(int(PREVIOUS_TABLES[table])),), NODE_COOKIE)
        for table in PREVIOUS_ONLY_TABLES
    ),
)
