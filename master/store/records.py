"""What is kept, and what happens to it: revisions of objects, changes to write, events. Values, no I/O."""

from __future__ import annotations

from typing import Any, NamedTuple

import msgspec

from api.meta.types import Object


class Key(NamedTuple):
    """`kind` as in the object; `namespace` is empty for what has none."""

    kind: str
    namespace: str
    name: str


class Record:
    """One revision of one object: as JSON, and decoded when somebody asks."""

    __slots__ = ("_decoded", "_type", "data", "key", "revision")

    def __init__(self, key: Key, revision: int, data: bytes, kind: type[Object], decoded: Object | None = None) -> None:
        self.key = key
        self.revision = revision
        self.data = data
        self._type = kind
        self._decoded = decoded

    @property
    def object(self) -> Any:
        """The object, with its resourceVersion set."""
        if self._decoded is None:
            self._decoded = msgspec.json.decode(self.data, type=self._type)
        return self._decoded

    def slim(self) -> None:
        """Keep only the JSON, for a revision that is history."""
        self._decoded = None


class Event(NamedTuple):
    """`type` is ADDED, MODIFIED or DELETED; `record` of a removal is the last state with the removal's revision."""

    type: str
    record: Record
    previous: Record | None


class Put(NamedTuple):
    """Create or replace. `expect`: the revision it replaces, 0 if it must not exist yet, None if either will do."""

    object: Object
    expect: int | None = None


class Remove(NamedTuple):
    """Take away. `last`: the state that watches are shown; `expect`: the revision that must be the newest, or None."""

    last: Object
    expect: int | None = None


class Mismatch(Exception):
    """A write expected another revision than `found` (None: there is no such object). Nothing was written."""

    def __init__(self, key: Key, found: Record | None) -> None:
        super().__init__(f"{key.kind} {key.namespace}/{key.name}: another revision was expected")
        self.key = key
        self.found = found


class Expired(Exception):
    """The revision asked for is no longer in the history, which begins after `oldest`."""

    def __init__(self, asked: int, oldest: int) -> None:
        super().__init__(f"too old resource version: {asked} ({oldest})")
        self.asked = asked
        self.oldest = oldest


def key_of(item: Object) -> Key:
    """Where an object is kept."""
    return Key(type(item).KIND, item.metadata.namespace, item.metadata.name)


def stamped(item: Object, revision: int) -> Object:
    """The object as it is kept: with kind, apiVersion and its resourceVersion."""
    metadata = msgspec.structs.replace(item.metadata, resource_version=str(revision))
    kind = type(item)
    return msgspec.structs.replace(item, api_version=kind.API_VERSION, kind=kind.KIND, metadata=metadata)
