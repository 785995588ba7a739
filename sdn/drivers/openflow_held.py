"""What a bridge holds, in two shares: rows and groups of services, and everything else. What has to change."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field

from sdn.drivers.openflow_codec import Command, Foreign, ForeignGroup, GroupCommand
from sdn.flow import Flow, Group, Rows
from sdn.flows import is_of_services

Step = tuple[Command, Flow | Foreign] | tuple[GroupCommand, Group | ForeignGroup]


@dataclass(frozen=True, slots=True)
class FlowChange:
    """How many rows and groups were written and deleted; `str` is empty when there was nothing to do."""

    added: int = 0
    removed: int = 0

    def __bool__(self) -> bool:
        return bool(self.added or self.removed)

    def __str__(self) -> str:
        return f"+{self.added} -{self.removed}" if self else ""

    def __add__(self, other: FlowChange) -> FlowChange:
        return FlowChange(self.added + other.added, self.removed + other.removed)


@dataclass(slots=True)
class Difference:
    """Rows and groups to be written or deleted; a row that is written takes the place of one like it."""

    added: Collection[Flow] = ()
    removed: Collection[Flow | Foreign] = ()
    put: Collection[Group | ForeignGroup] = ()
    dropped: Collection[Group | ForeignGroup] = ()

    def __bool__(self) -> bool:
        return bool(self.added or self.removed or self.put or self.dropped)

    def size(self) -> FlowChange:
        """How much is written, and how much is deleted for nothing new."""
        deleted = sum(1 for _ in self._stale()) + len(self.dropped)
        return FlowChange(len(self.added) + len(self.put), deleted)

    def _stale(self) -> Iterator[Flow | Foreign]:
        replaced = {flow.row for flow in self.added}
        return (flow for flow in self.removed if isinstance(flow, Foreign) or flow.row not in replaced)

    def steps(self) -> Iterator[Step]:
        """In the order in which no row leads to a group that is not there."""
        yield from ((GroupCommand.PUT, group) for group in self.put)
        yield from ((Command.DELETE_STRICT, flow) for flow in self._stale())
        yield from ((Command.ADD, flow) for flow in self.added)
        yield from ((GroupCommand.DELETE, group) for group in self.dropped)


def difference_of(gone: Rows, come: Rows) -> Difference:
    """What has to be done when these go and those come."""
    kept = {group.number for group in come.groups}
    dropped = [group for group in gone.groups if group.number not in kept]
    return Difference(come.flows, gone.flows - come.flows, come.groups, dropped)


@dataclass(slots=True)
class Share:
    """The rows and groups of services."""

    flows: set[Flow] = field(default_factory=set)
    groups: dict[int, Group | ForeignGroup] = field(default_factory=dict)

    def copy(self) -> Share:
        """Another one with the same content."""
        return Share(set(self.flows), dict(self.groups))

    def apply(self, difference: Difference) -> None:
        """Note that this has been done."""
        self.flows.difference_update(row for row in difference.removed if isinstance(row, Flow))
        self.flows.update(difference.added)
        for group in difference.dropped:
            self.groups.pop(group.number, None)
        self.groups.update((group.number, group) for group in difference.put)


class Held:
    """What the bridge holds; `base` are all rows but those of services.

    `is_right` tells whether the share of services has been made as it is to be since it was read.
    """

    def __init__(self, rows: Iterable[Flow | Foreign], groups: Iterable[Group | ForeignGroup]) -> None:
        self.base: set[Flow | Foreign] = set()
        self.services = Share(groups={group.number: group for group in groups})
        self.is_right = False
        for row in rows:
            if isinstance(row, Flow) and is_of_services(row):
                self.services.flows.add(row)
            else:
                self.base.add(row)

    def to_base(self, desired: frozenset[Flow]) -> Difference:
        """What makes everything but services as it is to be."""
        return Difference(added=desired - self.base, removed=self.base - desired)

    def to_services(self, desired: Share) -> Difference:
        """What makes the share of services as it is to be; groups of others go too.

        A row that only pretends to be of services, in the place of another, has been overwritten: it is not deleted.
        """
        here = self.services
        stale = here.flows - desired.flows
        others = {row.row for row in self.base if isinstance(row, Flow)} if stale else set()
        return Difference(
            added=desired.flows - here.flows,
            removed=[flow for flow in stale if flow.row not in others],
            put=[group for number, group in desired.groups.items() if here.groups.get(number) != group],
            dropped=[group for number, group in here.groups.items() if number not in desired.groups],
        )

    def apply(self, difference: Difference) -> None:
        """Note that this has been done."""
        self.base.difference_update(difference.removed)
        self.base.update(row for row in difference.added if not is_of_services(row))
        ours = [row for row in difference.added if is_of_services(row)]
        self.services.apply(Difference(ours, difference.removed, difference.put, difference.dropped))
