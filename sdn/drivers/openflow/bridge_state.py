"""Flows and groups that a bridge is known to hold, and the difference to the desired ones. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field

from sdn.drivers.openflow.messages import Command, GroupCommand, UnknownFlow, UnknownGroup
from sdn.model.flow import Flow, FlowSet, Group
from sdn.pipeline.cookies import is_service_flow

Step = tuple[Command, Flow | UnknownFlow] | tuple[GroupCommand, Group | UnknownGroup]


@dataclass(frozen=True, slots=True)
class DiffCount:
    """How many rows and groups were written and deleted; `str` is empty when there was nothing to do."""

    added: int = 0
    removed: int = 0

    def __bool__(self) -> bool:
        return bool(self.added or self.removed)

    def __str__(self) -> str:
        return f"+{self.added} -{self.removed}" if self else ""

    def __add__(self, other: DiffCount) -> DiffCount:
        return DiffCount(self.added + other.added, self.removed + other.removed)


@dataclass(slots=True)
class FlowDiff:
    """Rows and groups to be written or deleted; a row that is written takes the place of one like it."""

    added: Collection[Flow] = ()
    removed: Collection[Flow | UnknownFlow] = ()
    put: Collection[Group | UnknownGroup] = ()
    dropped: Collection[Group | UnknownGroup] = ()

    def __bool__(self) -> bool:
        return bool(self.added or self.removed or self.put or self.dropped)

    def size(self) -> DiffCount:
        """How much is written, and how much is deleted for nothing new."""
        deleted = sum(1 for _ in self._stale()) + len(self.dropped)
        return DiffCount(len(self.added) + len(self.put), deleted)

    def _stale(self) -> Iterator[Flow | UnknownFlow]:
        replaced = {flow.key for flow in self.added}
        return (flow for flow in self.removed if isinstance(flow, UnknownFlow) or flow.key not in replaced)

    def steps(self) -> Iterator[Step]:
        """In the order in which no row leads to a group that is not there."""
        yield from ((GroupCommand.PUT, group) for group in self.put)
        yield from ((Command.DELETE_STRICT, flow) for flow in self._stale())
        yield from ((Command.ADD, flow) for flow in self.added)
        yield from ((GroupCommand.DELETE, group) for group in self.dropped)


def diff_of(gone: FlowSet, come: FlowSet) -> FlowDiff:
    """What has to be done when these go and those come."""
    kept = {group.number for group in come.groups}
    dropped = [group for group in gone.groups if group.number not in kept]
    return FlowDiff(come.flows, gone.flows - come.flows, come.groups, dropped)


@dataclass(slots=True)
class FlowSetState:
    """The rows and groups of services."""

    flows: set[Flow] = field(default_factory=set)
    groups: dict[int, Group | UnknownGroup] = field(default_factory=dict)

    def copy(self) -> FlowSetState:
        """Another one with the same content."""
        return FlowSetState(set(self.flows), dict(self.groups))

    def apply(self, difference: FlowDiff) -> None:
        """Note that this has been done."""
        self.flows.difference_update(row for row in difference.removed if isinstance(row, Flow))
        self.flows.update(difference.added)
        for group in difference.dropped:
            self.groups.pop(group.number, None)
        self.groups.update((group.number, group) for group in difference.put)


class BridgeState:
    """What the bridge holds; `base` are all rows but those of services.

    `is_right` tells whether the share of services has been made as it is to be since it was read.
    """

    def __init__(self, rows: Iterable[Flow | UnknownFlow], groups: Iterable[Group | UnknownGroup]) -> None:
        self.base: set[Flow | UnknownFlow] = set()
        self.services = FlowSetState(groups={group.number: group for group in groups})
        self.is_right = False
        for row in rows:
            if isinstance(row, Flow) and is_service_flow(row):
                self.services.flows.add(row)
            else:
                self.base.add(row)

    def to_base(self, desired: frozenset[Flow]) -> FlowDiff:
        """What makes everything but services as it is to be."""
        return FlowDiff(added=desired - self.base, removed=self.base - desired)

    def to_services(self, desired: FlowSetState) -> FlowDiff:
        """What makes the share of services as it is to be; groups of others go too.

        A row that only pretends to be of services, in the place of another, has been overwritten: it is not deleted.
        """
        here = self.services
        stale = here.flows - desired.flows
        others = {row.key for row in self.base if isinstance(row, Flow)} if stale else set()
        return FlowDiff(
            added=desired.flows - here.flows,
            removed=[flow for flow in stale if flow.key not in others],
            put=[group for number, group in desired.groups.items() if here.groups.get(number) != group],
            dropped=[group for number, group in here.groups.items() if number not in desired.groups],
        )

    def apply(self, difference: FlowDiff) -> None:
        """Note that this has been done."""
        self.base.difference_update(difference.removed)
        self.base.update(row for row in difference.added if not is_service_flow(row))
        ours = [row for row in difference.added if is_service_flow(row)]
        self.services.apply(FlowDiff(ours, difference.removed, difference.put, difference.dropped))
