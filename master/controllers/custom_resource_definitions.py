"""CustomResourceDefinitions: acceptance of their names, and deletion of all objects before the definition goes. Pure.

One write says that the names are accepted and that the kind is established. Its kind is served before.
"""

from __future__ import annotations

import datetime
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
from msgspec.structs import replace

from api.meta.types import Object
from master.apiextensions.definitions import (
    CLEANUP_FINALIZER,
    DEFINITIONS,
    ESTABLISHED,
    NAMES_ACCEPTED,
    TERMINATING,
    Definition,
    DefinitionCondition,
    DefinitionStatus,
    Names,
)
from master.controllers.actions import Action, Delete, Update, WriteAction
from master.controllers.context import Lister
from master.resources.group_resource import GroupResource
from master.resources.metadata import format_time, with_metadata
from master.resources.scheme import BUILTIN_GROUP_RESOURCES
from master.storage.interface import Key, WatchEvent


@dataclass(frozen=True, slots=True)
class Decision:
    """What becomes of a definition: its status, whether its finalizer goes, and the objects that are deleted."""

    definition: Definition
    status: DefinitionStatus
    is_finished: bool = False
    deleted: Sequence[Object] = ()

    @property
    def changes_definition(self) -> bool:
        """Return whether the definition is written."""
        return self.is_finished or self.status != self.definition.status

    @property
    def becomes_established(self) -> bool:
        """Return whether the kind is served from now on."""
        return self.status.is_true(ESTABLISHED) and not self.definition.is_established


# --- names ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _TakenNames:
    """The names of a group that other definitions have: those of resources, and those of kinds."""

    resources: frozenset[str]
    kinds: frozenset[str]


def accepted_names(definition: Definition, others: Iterable[Definition]) -> tuple[Names, tuple[str, str] | None]:
    """Return the names that a definition may have, and (reason, message) of the first conflict; None without one.

    A name that another definition of the group has is not accepted; the definition keeps the one that it had.
    """
    taken, wanted = _taken(others), definition.spec.names.completed()
    before = definition.status.accepted_names or Names()
    conflicts: list[tuple[str, str]] = []

    def accept(name: str, was: str, among: frozenset[str], reason: str) -> str:
        if name in among:
            conflicts.append((reason, f'"{name}" is already in use'))
            return was
        return name

    is_builtin = definition.group_resource in BUILTIN_GROUP_RESOURCES
    resources = taken.resources | ({wanted.plural} if is_builtin else frozenset())
    plural = accept(wanted.plural, before.plural, resources, "PluralConflict")
    singular = accept(wanted.singular, before.singular, taken.resources, "SingularConflict")
    used = [name for name in wanted.short_names if name in taken.resources]
    if used:
        conflicts.append(("ShortNamesConflict", ", ".join(f'"{name}" is already in use' for name in used)))
    kind = accept(wanted.kind, before.kind, taken.kinds, "KindConflict")
    list_kind = accept(wanted.list_kind, before.list_kind, taken.kinds, "ListKindConflict")
    names = Names(
        plural, singular, kind, list_kind, before.short_names if used else wanted.short_names, wanted.categories
    )
    return names, conflicts[0] if conflicts else None


def _taken(others: Iterable[Definition]) -> _TakenNames:
    resources, kinds = set[str](), set[str]()
    for other in others:
        names = other.status.accepted_names
        if names is not None:
            resources.update((names.plural, names.singular, *names.short_names))
            kinds.update((names.kind, names.list_kind))
    return _TakenNames(frozenset(resources - {""}), frozenset(kinds - {""}))


# --- decisions --------------------------------------------------------------------------------------------------------


def decide(
    definitions: Iterable[Definition],
    terminating: frozenset[GroupResource],
    list_objects: Callable[[GroupResource], Sequence[Object]],
    now: datetime.datetime,
) -> Iterator[Decision]:
    """Yield what changes. `terminating` are the kinds of which nobody can create objects any more.

    Definitions get their names in the order of their creation.
    """
    groups: dict[str, list[Definition]] = {}
    for definition in sorted(definitions, key=_age):
        groups.setdefault(definition.spec.group, []).append(definition)
    for members in groups.values():
        current = {definition.name: definition for definition in members}
        for name, definition in list(current.items()):
            if definition.is_terminating:
                decision = _decide_deletion(definition, terminating, list_objects, now)
            else:
                others = [other for other in current.values() if other.name != name]
                decision = _decide_names(definition, others, now)
            # Later definitions see the names that this one gets.
            current[name] = msgspec.structs.replace(definition, status=decision.status)
            if decision.changes_definition or decision.deleted:
                yield decision


def _age(definition: Definition) -> tuple[bool, str, str]:
    return not definition.is_established, definition.metadata.creation_timestamp or "", definition.name


def _decide_names(definition: Definition, others: Iterable[Definition], now: datetime.datetime) -> Decision:
    names, conflict = accepted_names(definition, others)
    if conflict is None:
        accepted = _condition(NAMES_ACCEPTED, "True", "NoConflicts", "no conflicts found")
    else:
        accepted = _condition(NAMES_ACCEPTED, "False", *conflict)
    conditions = [accepted]
    if not definition.is_established:
        established = _condition(ESTABLISHED, "False", "NotAccepted", "not all names are accepted")
        if conflict is None:
            established = _condition(
                ESTABLISHED, "True", "InitialNamesAccepted", "the initial names have been accepted"
            )
        conditions.append(established)
    return Decision(definition, _with_conditions(definition, conditions, now, names))


def _decide_deletion(
    definition: Definition,
    terminating: frozenset[GroupResource],
    list_objects: Callable[[GroupResource], Sequence[Object]],
    now: datetime.datetime,
) -> Decision:
    if CLEANUP_FINALIZER not in definition.metadata.finalizers:
        return Decision(definition, definition.status)
    objects: Sequence[Object] = ()
    if definition.is_established:
        # Until the kind is served as terminating, a client may still create an object.
        objects = list_objects(definition.group_resource)
        if not objects and definition.group_resource in terminating:
            return Decision(definition, definition.status, is_finished=True)
        text = "CustomResource deletion is in progress" if objects else "CustomResource deletion is pending"
        reason = "InstanceDeletionInProgress" if objects else "InstanceDeletionPending"
        condition = _condition(TERMINATING, "True", reason, text)
        deleted = [obj for obj in objects if not obj.metadata.deletion_timestamp]
        return Decision(definition, _with_conditions(definition, [condition], now), deleted=deleted)
    return Decision(definition, definition.status, is_finished=True)


def _condition(name: str, status: str, reason: str, message: str) -> DefinitionCondition:
    return DefinitionCondition(name, status, None, reason, message)


def _with_conditions(
    definition: Definition,
    conditions: Iterable[DefinitionCondition],
    now: datetime.datetime,
    names: Names | None = None,
) -> DefinitionStatus:
    """Return the status with these conditions, which hold for the present generation.

    A condition that stays as it is keeps its time.
    """
    status = definition.status
    known = {condition.type: condition for condition in status.conditions}
    for condition in conditions:
        old = known.get(condition.type)
        if old is not None and (old.status, old.reason, old.message) == (
            condition.status,
            condition.reason,
            condition.message,
        ):
            continue
        changed = old is None or old.status != condition.status
        since = format_time(now) if changed or old is None else old.last_transition_time
        known[condition.type] = replace(condition, last_transition_time=since)
    generation = definition.metadata.generation or 0
    observed = tuple(replace(condition, observed_generation=generation) for condition in known.values())
    return replace(
        status,
        conditions=observed,
        accepted_names=names or status.accepted_names,
        observed_generation=generation,
    )


# --- the controller ---------------------------------------------------------------------------------------------------


def actions(decision: Decision, stored: Any) -> Iterator[WriteAction]:
    """Yield the writes of a decision; `stored` is the definition as it is stored."""
    for obj in decision.deleted:
        yield Delete(obj)
    if decision.changes_definition:
        known: Mapping[str, Any] = msgspec.to_builtins(stored.status)
        document = {**known, **msgspec.to_builtins(decision.status)}
        new = replace(stored, status=msgspec.convert(document, type(stored.status)))
        if decision.is_finished:
            finalizers = tuple(name for name in stored.metadata.finalizers if name != CLEANUP_FINALIZER)
            new = with_metadata(new, finalizers=finalizers)
        yield Update(new, stored)


def concerns_definitions(event: WatchEvent) -> bool:
    """Return whether an event is about a definition, or the deletion of an object, for which a definition may wait."""
    return event.record.key.resource == DEFINITIONS or event.type == "DELETED"


def sync_definitions(lister: Lister) -> Iterator[Action]:
    """Accept names, establish kinds, and clean up after definitions that are being deleted."""
    kinds = lister.context.custom_kinds
    if kinds is None:
        return
    decisions = list(decide(kinds.definitions(), kinds.terminating(), lister.list_resource, lister.now))
    kinds.publish(
        msgspec.structs.replace(decision.definition, status=decision.status)
        for decision in decisions
        if decision.becomes_established
    )
    for decision in decisions:
        stored = lister.context.store.get_uncommitted(Key(DEFINITIONS, "", decision.definition.name))
        if stored is not None:
            yield from actions(decision, stored.object)
