"""The storage interface: keys, records, events, compare-and-swap writes, history for watches, transactions. Pure.

There is one implementation, `sqlite.SQLiteStorage`. Another one must pass `tests/contract/test_store_contract.py`. A
storage to which other processes write reads from a cache of its own, and `write` may raise Conflict when another writer
was first.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

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


class WatchEvent(NamedTuple):
    """`type` is ADDED, MODIFIED or DELETED; `record` of a removal is the last state with the removal's revision."""

    type: str
    record: Record
    previous: Record | None


class Put(NamedTuple):
    """Create or replace. `expect`: the revision it replaces, 0 if it must not exist yet, None if either will do."""

    object: Object
    expect: int | None = None


class Delete(NamedTuple):
    """Take away. `last`: the state that watches are shown; `expect`: the revision that must be the newest, or None."""

    last: Object
    expect: int | None = None


class Conflict(Exception):
    """A write expected another revision than `found` (None: there is no such object). Nothing was written."""

    def __init__(self, key: Key, found: Record | None) -> None:
        super().__init__(f"{key.kind} {key.namespace}/{key.name}: another revision was expected")
        self.key = key
        self.found = found


class Compacted(Exception):
    """The revision asked for is no longer in the history, which begins after `oldest`."""

    def __init__(self, asked: int, oldest: int) -> None:
        super().__init__(f"too old resource version: {asked} ({oldest})")
        self.asked = asked
        self.oldest = oldest


def key_of(item: Object) -> Key:
    """Where an object is kept."""
    return Key(type(item).KIND, item.metadata.namespace, item.metadata.name)


def with_revision(item: Object, revision: int) -> Object:
    """The object as it is kept: with kind, apiVersion and its resourceVersion."""
    metadata = msgspec.structs.replace(item.metadata, resource_version=str(revision))
    kind = type(item)
    return msgspec.structs.replace(item, api_version=kind.API_VERSION, kind=kind.KIND, metadata=metadata)


Watch = Callable[[WatchEvent], None]


class Storage(Protocol):
    """Belongs to one event loop. Nothing but `write`, `compact`, `run` and `close` waits.

    A write is decided against the newest state, also of writes still on their way to disk, and gets its revision at
    once; so whoever reads with `latest` and writes in the same breath is never too late for a write of this process.
    Readers and watches see a write only when it is durable.
    """

    @property
    def revision(self) -> int:
        """The newest revision that is durable; 0 before the first write. All kinds share the count."""

    def get(self, key: Key) -> Record | None:
        """What is durable."""

    def latest(self, key: Key) -> Record | None:
        """What will be durable when the writes on their way are; read this to decide a write."""

    def scan(self, kind: str, namespace: str = "") -> list[Record]:
        """What is durable, sorted by namespace and name; all namespaces if none is named."""

    def scan_latest(self, kind: str, namespace: str = "") -> list[Record]:
        """As `scan`, with the writes on their way; not sorted."""

    def scan_at(self, kind: str, namespace: str, revision: int) -> list[Record]:
        """The objects as they were at a revision, sorted. Raises Compacted."""

    def since(self, kind: str, revision: int) -> list[WatchEvent]:
        """The events of a kind after a revision, oldest first. Raises Compacted, also for revisions not given yet."""

    def watch(self, kind: str, tell: Watch) -> Callable[[], None]:
        """Call `tell` for every event of a kind from now on, in order; the answer ends it.

        Asked for in the same breath as `since`, the two together miss nothing and tell nothing twice.
        """

    async def write(self, *changes: Put | Delete) -> tuple[Any, ...]:
        """Do all changes or none; returns the objects as kept when they are durable.

        With no changes it waits until all earlier writes are durable. Raises Conflict, and NotReady when they cannot be
        kept or the store is closing: nothing was changed then.
        """

    async def compact(self, revision: int) -> None:
        """Forget what was replaced or removed up to and including a revision; older ones are Compacted from then on.

        A store also forgets by itself. The newest event always stays. Raises NotReady when the disk refuses.
        """

    async def run(self) -> None:
        """Return when closed; raise what ended the writing, if it is a bug."""

    async def close(self) -> None:
        """Finish the writes on their way."""


class Transaction:
    """The newest state of the store, and over it what is to be put into it. Nothing may wait while it is used."""

    def __init__(self, store: Storage) -> None:
        self._store = store
        self._puts: defaultdict[str, dict[Key, Put]] = defaultdict(dict)

    @property
    def puts(self) -> tuple[Put, ...]:
        """What is to be written, one for each object."""
        return tuple(put for puts in self._puts.values() for put in puts.values())

    def one(self, key: Key) -> Any:
        """An object; None if there is none."""
        if (ahead := self._puts[key.kind].get(key)) is not None:
            return ahead.object
        record = self._store.latest(key)
        return None if record is None else record.object

    def all(self, kind: str, namespace: str = "") -> list[Any]:
        """Every object of a kind, in one namespace or in all."""
        ahead = self._puts[kind]
        kept = [row.object for row in self._store.scan_latest(kind, namespace) if row.key not in ahead]
        return kept + [put.object for key, put in ahead.items() if namespace in ("", key.namespace)]

    def put(self, item: Object) -> None:
        """Write that, too; another put of the same object takes the place of the first."""
        key = key_of(item)
        self._puts[key.kind][key] = Put(item)
