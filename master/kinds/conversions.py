"""What is kept, in the form of the kind by which it is asked for. Pure."""

from __future__ import annotations

import msgspec

from master.kinds.kind import AnyKind
from master.store.records import Event, Record


def seen(kind: AnyKind, record: Record) -> Record:
    """A revision as objects of this kind look; that of a kind which is stored is as it is."""
    if kind.conversion is None:
        return record
    item = kind.seen(record.object)
    return Record(record.key, record.revision, msgspec.json.encode(item), kind.type, item)


def seen_event(kind: AnyKind, event: Event) -> Event:
    """The same for what happens to it."""
    if kind.conversion is None:
        return event
    previous = None if event.previous is None else seen(kind, event.previous)
    return Event(event.type, seen(kind, event.record), previous)
