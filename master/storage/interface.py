"""The storage interface: keys, records, events, compare-and-swap writes, history for watches, transactions. Pure.

There is one implementation, `sqlite.SQLiteStorage`. Another one must pass `tests/contract/store/test_store.py`. A
storage to which other processes write, such as etcd, feeds a watch cache of its own and may raise Conflict when another
writer was first. Registry and controllers then decide again.
"""

from __future__ import annotations

import contextlib
import zlib
from collections import defaultdict
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, Protocol

import msgspec

from api.meta.types import Object
from master.resources.group_resource import GroupResource


class Key(NamedTuple):
    """The identity of a stored object: resource, namespace (empty for cluster-scoped objects) and name."""

    resource: GroupResource
    namespace: str
    name: str

    @classmethod
    def of(cls, resource: GroupResource, obj: Object) -> Key:
        """Return the key of an object of a resource."""
        return cls(resource, obj.metadata.namespace, obj.metadata.name)

    def __str__(self) -> str:
        return f"{self.resource} {self.namespace}/{self.name}" if self.namespace else f"{self.resource} {self.name}"


class UndecodableObject(Exception):
    """A stored object that does not have the form of its type, such as one that another version wrote."""


COMPRESSION_LEVEL = 1
"""100 KB of JSON take 1 ms, and become 10 KB."""

Decoder = Callable[[bytes], Object]
"""Returns the object of a stored JSON. Raises MsgspecError."""


class Record:
    """One revision of one object: its JSON, decoded at the first use of `object`.

    The JSON of a kind whose objects are large and rarely read (`KEEPS_DECODED` is False) is compressed, and decoded
    again for each use. `size` is the length of the JSON. `converted` is what a reader has made of it last, with the
    resource for which: the same for every further reader.
    """

    __slots__ = ("_data", "_decode", "_decoded", "_is_compressed", "converted", "key", "revision", "size")

    def __init__(
        self, key: Key, revision: int, data: bytes, decode_as: type[Object] | Decoder, decoded: Object | None = None
    ) -> None:
        self.key = key
        self.revision = revision
        self.size = len(data)
        self._is_compressed = not getattr(decode_as, "KEEPS_DECODED", True)
        self._data = zlib.compress(data, COMPRESSION_LEVEL) if self._is_compressed else data
        self._decode = decode_as
        self._decoded = None if self._is_compressed else decoded
        self.converted: tuple[object, Record | None] | None = None

    @property
    def data(self) -> bytes:
        """Return the JSON."""
        return zlib.decompress(self._data) if self._is_compressed else self._data

    @property
    def object(self) -> Any:
        """Return the object, with its resourceVersion set. Raises UndecodableObject."""
        if self._decoded is not None and not self._is_compressed:
            return self._decoded
        try:
            if isinstance(self._decode, type):
                decoded: Object = msgspec.json.decode(self.data, type=self._decode)
            else:
                decoded = self._decode(self.data)
        except msgspec.MsgspecError as error:
            raise UndecodableObject(f"the stored {self.key} cannot be decoded: {error}") from error
        if not self._is_compressed:
            self._decoded = decoded
        return decoded

    @property
    def head(self) -> Any:
        """Return the object. Of one whose JSON is compressed only apiVersion, kind and metadata, which stay decoded.

        Raises UndecodableObject.
        """
        if not self._is_compressed:
            return self.object
        if self._decoded is None:
            assert isinstance(self._decode, type)
            try:
                head = msgspec.json.decode(self.data, type=Object)
            except msgspec.MsgspecError as error:
                raise UndecodableObject(f"the stored {self.key} cannot be decoded: {error}") from error
            self._decoded = self._decode(api_version=head.api_version, kind=head.kind, metadata=head.metadata)
        return self._decoded

    def drop_decoded(self) -> None:
        """Release the decoded object, for a revision that is history."""
        self._decoded = None
        self.converted = None


class WatchEvent(NamedTuple):
    """A change of an object. `type` is ADDED, MODIFIED or DELETED.

    The `record` of a deletion is the last state, with the revision of the deletion.
    """

    type: str
    record: Record
    previous: Record | None


class Put(NamedTuple):
    """A create or replace. `expect` is the revision to replace; 0: there must be no object; None: no condition."""

    key: Key
    object: Object
    expect: int | None = None


class Delete(NamedTuple):
    """A deletion. Watches get `last_state`. `expect` is the revision that must be the newest; None: no condition."""

    key: Key
    last_state: Object
    expect: int | None = None


class Conflict(Exception):
    """A write whose precondition does not hold. `stored` is the newest record, None if there is no object.

    Nothing was written.
    """

    def __init__(self, key: Key, stored: Record | None) -> None:
        super().__init__(f"{key}: another revision was expected")
        self.key = key
        self.stored = stored


class Compacted(Exception):
    """The requested revision is no longer in the history, which begins after `oldest`."""

    def __init__(self, requested: int, oldest: int) -> None:
        super().__init__(f"too old resource version: {requested} ({oldest})")
        self.requested = requested
        self.oldest = oldest


def with_revision(obj: Object, revision: int) -> Object:
    """Return the object as it is stored: with kind, apiVersion and this resourceVersion."""
    metadata = msgspec.structs.replace(obj.metadata, resource_version=str(revision))
    kind = type(obj)
    api_version = obj.api_version if kind.IS_STORED_IN_VERSIONS else kind.API_VERSION
    return msgspec.structs.replace(obj, api_version=api_version, kind=kind.KIND, metadata=metadata)


Watch = Callable[[WatchEvent], None]
Records = list[Record]
WatchEvents = list[WatchEvent]
Objects = list[Any]
"""Names of types for classes in which `list` is a method."""


class Storage(Protocol):
    """Revisions of all objects. Belongs to one event loop. Only `write`, `compact`, `run` and `close` wait.

    A write is decided against the newest state, which includes writes that are not yet durable, and gets its revision
    at once. So a caller that reads with `get_uncommitted` and writes without waiting in between never conflicts with
    another write of this process. Readers and watches see a write when it is durable.
    """

    @property
    def revision(self) -> int:
        """Return the newest durable revision; 0 before the first write. All resources share one sequence."""

    def get(self, key: Key) -> Record | None:
        """Return the durable state of an object; None if there is none."""

    def get_uncommitted(self, key: Key) -> Record | None:
        """Return the state of an object after all queued writes. Decide writes by this state."""

    def list(self, resource: GroupResource, namespace: str = "") -> Records:
        """Return the durable objects of a resource, of one namespace or of all, sorted by namespace and name."""

    def list_uncommitted(self, resource: GroupResource, namespace: str = "") -> Records:
        """Return the objects of a resource after all queued writes, not sorted."""

    def list_at(self, resource: GroupResource, namespace: str, revision: int) -> Records:
        """Return the objects of a resource as they were at a revision, sorted. Raises Compacted."""

    def events_since(self, resource: GroupResource, revision: int) -> WatchEvents:
        """Return the events of a resource after a revision, oldest first.

        Raises Compacted, also for a future revision.
        """

    def watch(self, resource: GroupResource, callback: Watch) -> Callable[[], None]:
        """Call `callback` for every later event of a resource, in order. Return a function that ends the watch.

        A caller that uses `events_since` and `watch` without waiting in between gets every event once.
        """

    async def write(self, *changes: Put | Delete) -> tuple[Any, ...]:
        """Make all changes or none. Return the stored objects when they are durable.

        Without changes, wait until all queued writes are durable. Raises Conflict if another writer was first; the
        reads of this storage have the newer state by then. Raises NotReady if the backend fails or the storage is
        closing. In both cases nothing was changed.
        """

    async def compact(self, revision: int) -> None:
        """Drop states that were replaced or deleted up to and including a revision. Older revisions are Compacted then.

        A storage also compacts by itself. The newest event always stays. Raises NotReady if the backend fails.
        """

    async def run(self) -> None:
        """Return when the storage is closed. Raise the exception that ended the commits, which is a bug."""

    async def close(self) -> None:
        """Finish the queued writes and close."""


class Transaction:
    """The newest state of the storage, with changes that are not yet written. Do not wait while one is in use."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self._puts: defaultdict[GroupResource, dict[Key, Put]] = defaultdict(dict)

    @property
    def changes(self) -> tuple[Put, ...]:
        """Return the changes to write, one per object."""
        return tuple(put for puts in self._puts.values() for put in puts.values())

    def get(self, key: Key) -> Any:
        """Return an object; None if there is none."""
        if (put := self._puts[key.resource].get(key)) is not None:
            return put.object
        record = self._storage.get_uncommitted(key)
        return None if record is None else record.object

    def list(self, resource: GroupResource, namespace: str = "") -> Objects:
        """Return all objects of a resource, of one namespace or of all."""
        puts = self._puts[resource]
        records = self._storage.list_uncommitted(resource, namespace)
        stored = [record.object for record in records if record.key not in puts]
        return stored + [put.object for key, put in puts.items() if namespace in ("", key.namespace)]

    @contextlib.contextmanager
    def savepoint(self) -> Iterator[None]:
        """Undo the changes made in this context if it ends with an exception."""
        before = {resource: dict(puts) for resource, puts in self._puts.items()}
        try:
            yield
        except Exception:
            self._puts = defaultdict(dict, before)
            raise

    def put(self, resource: GroupResource, obj: Object) -> None:
        """Add an object of a resource to the changes. It replaces an earlier put of the same object.

        The write raises Conflict if another writer has changed the object since the first put.
        """
        key = Key.of(resource, obj)
        earlier = self._puts[resource].get(key)
        if earlier is not None:
            self._puts[resource][key] = earlier._replace(object=obj)
            return
        record = self._storage.get_uncommitted(key)
        self._puts[resource][key] = Put(key, obj, expect=0 if record is None else record.revision)
