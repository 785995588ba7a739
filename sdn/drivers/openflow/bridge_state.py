"""Flows and groups that a bridge is known to hold, and the difference to the desired ones. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field
from typing import cast

from sdn.drivers.openflow.messages import FlowCommand, GroupCommand, UnknownFlow, UnknownGroup
from sdn.model.flow import BridgeLayout, Flow, FlowSet, Group

Step = tuple[FlowCommand, Flow | UnknownFlow] | tuple[GroupCommand, Group | UnknownGroup]


@dataclass(frozen=True, slots=True)
class DiffCount:
    """Numbers of flows and groups that were written and deleted; `str` is empty if there were none."""

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
    """Flows and groups to write and to delete. A flow that is written replaces the flow with the same key."""

    added: Collection[Flow] = ()
    removed: Collection[Flow | UnknownFlow] = ()
    added_groups: Collection[Group | UnknownGroup] = ()
    removed_groups: Collection[Group | UnknownGroup] = ()

    def __bool__(self) -> bool:
        return bool(self.added or self.removed or self.added_groups or self.removed_groups)

    def __add__(self, other: FlowDiff) -> FlowDiff:
        return FlowDiff(
            [*self.added, *other.added],
            [*self.removed, *other.removed],
            [*self.added_groups, *other.added_groups],
            [*self.removed_groups, *other.removed_groups],
        )

    def count(self) -> DiffCount:
        """Count writes and deletions. A flow or group that is replaced counts as written only."""
        deleted = sum(1 for _ in self._deleted()) + len(self.removed_groups)
        return DiffCount(len(self.added) + len(self.added_groups), deleted)

    def _deleted(self) -> Iterator[Flow | UnknownFlow]:
        if not self.removed:
            return iter(())
        replaced = {flow.key for flow in self.added}
        return (flow for flow in self.removed if isinstance(flow, UnknownFlow) or flow.key not in replaced)

    def steps(self) -> Iterator[Step]:
        """Yield the steps in an order in which no flow refers to a group that does not exist."""
        yield from ((GroupCommand.PUT, group) for group in self.added_groups)
        yield from ((FlowCommand.DELETE_STRICT, flow) for flow in self._deleted())
        yield from ((FlowCommand.ADD, flow) for flow in self.added)
        yield from ((GroupCommand.DELETE, group) for group in self.removed_groups)


def diff_between(removed: FlowSet, added: FlowSet) -> FlowDiff:
    """Return the difference of a change: flows and groups of `removed` go, those of `added` come."""
    added_group_numbers = {group.number for group in added.groups}
    removed_groups = [group for group in removed.groups if group.number not in added_group_numbers]
    return FlowDiff(added.flows, removed.flows - added.flows, added.groups, removed_groups)


@dataclass(slots=True)
class FlowSetState:
    """Flows and groups of one partition."""

    flows: set[Flow | UnknownFlow] = field(default_factory=set)
    groups: dict[int, Group | UnknownGroup] = field(default_factory=dict)

    @classmethod
    def of(cls, flow_set: FlowSet) -> FlowSetState:
        """Return the state in which the partition holds exactly these flows and groups."""
        return cls(set(flow_set.flows), {group.number: group for group in flow_set.groups})

    def copy(self) -> FlowSetState:
        """Return a copy that can be changed by itself."""
        return FlowSetState(set(self.flows), dict(self.groups))

    def apply(self, diff: FlowDiff) -> None:
        """Record that the difference has been committed."""
        self.flows.difference_update(diff.removed)
        self.flows.update(diff.added)
        self.apply_groups(diff)

    def apply_groups(self, diff: FlowDiff) -> None:
        """Record that the groups of the difference have been committed."""
        for group in diff.removed_groups:
            self.groups.pop(group.number, None)
        self.groups.update((group.number, group) for group in diff.added_groups)


class BridgeState:
    """Flows and groups of a bridge, by partition.

    `in_sync` are the partitions that have been made as desired since the state was read from the switch.
    """

    def __init__(
        self, layout: BridgeLayout, flows: Iterable[Flow | UnknownFlow], groups: Iterable[Group | UnknownGroup]
    ) -> None:
        self.in_sync: set[str] = set()
        self._layout = layout
        self._partitions: defaultdict[str, FlowSetState] = defaultdict(FlowSetState)
        self._partitions[layout.groups].groups.update((group.number, group) for group in groups)
        for flow in flows:
            self._partition_of(flow).flows.add(flow)

    def flows(self) -> frozenset[Flow | UnknownFlow]:
        """Return the flows of all partitions."""
        return frozenset().union(*(partition.flows for partition in self._partitions.values()))

    def diff(self, partition: str, desired: FlowSetState) -> FlowDiff:
        """Return the difference that makes a partition as desired.

        The partition that has the groups also deletes unknown groups, and the partition that has the unknown flows
        deletes those.
        """
        present = self._partitions[partition]
        stale = present.flows - desired.flows
        if partition != self._layout.unknown_flows:
            stale = self._not_overwritten(stale)
        return FlowDiff(
            added=cast("set[Flow]", desired.flows - present.flows),  # Nobody desires unknown flows.
            removed=stale,
            added_groups=[group for number, group in desired.groups.items() if present.groups.get(number) != group],
            removed_groups=[group for number, group in present.groups.items() if number not in desired.groups],
        )

    def has_previous_version(self) -> bool:
        """Return True if the previous version has written the flows."""
        return any(self._layout.previous_version_flow in state.flows for state in self._partitions.values())

    def renumbering(self, written: str) -> FlowDiff:
        """Return the difference that moves what the previous version has left to today's tables.

        The partition `written` is left out, because its sync replaces what it has.
        """
        flows = {
            flow: self._layout.renumbered_flow(flow)
            for partition, state in self._partitions.items()
            for flow in state.flows
            if partition != written and isinstance(flow, Flow)
        }
        moved = {flow: renumbered for flow, renumbered in flows.items() if renumbered != flow}
        groups = self._partitions[self._layout.groups].groups.values() if written != self._layout.groups else ()
        renumbered_groups = {
            group: self._layout.renumbered_group(group) for group in groups if isinstance(group, Group)
        }
        return FlowDiff(
            added=moved.values(),
            removed=moved.keys(),
            added_groups=[renumbered for group, renumbered in renumbered_groups.items() if renumbered != group],
        )

    def _not_overwritten(self, stale: set[Flow | UnknownFlow]) -> set[Flow | UnknownFlow]:
        """Leave out flows whose key has been written in the partition of the unknown flows since.

        Another program may have replaced such a flow by one with the cookie of this partition. To delete it would
        delete the flow that was restored.
        """
        if not stale:
            return stale
        others = {flow.key for flow in self._partitions[self._layout.unknown_flows].flows if isinstance(flow, Flow)}
        return {flow for flow in stale if isinstance(flow, UnknownFlow) or flow.key not in others}

    def apply(self, diff: FlowDiff) -> None:
        """Record that the difference has been committed.

        A set of flows of one partition is added as a whole, because it knows the hashes of its flows.
        """
        for flow in diff.removed:
            self._partition_of(flow).flows.discard(flow)
        partitions = {self._layout.partition_of(flow) for flow in diff.added}
        if len(partitions) == 1:
            self._partitions[partitions.pop()].flows.update(diff.added)
        else:
            for flow in diff.added:
                self._partition_of(flow).flows.add(flow)
        self._partitions[self._layout.groups].apply_groups(diff)

    def share(self, partition: str, desired: FlowSetState) -> None:
        """Use `desired`, which the partition holds, from now on: what was read from the switch is freed.

        Otherwise a daemon that restarts would have all of them twice.
        """
        self._partitions[partition] = desired

    def _partition_of(self, flow: Flow | UnknownFlow) -> FlowSetState:
        if isinstance(flow, UnknownFlow):
            return self._partitions[self._layout.unknown_flows]
        return self._partitions[self._layout.partition_of(flow)]
