"""What the master asks of a store: revisions, reads, compare-and-swap, history for watches. An interface, no code.

There is one store today, `journaled_store.JournaledStore`. Whatever is to take its place passes
`tests/contract/store/test_store.py`. A store that others write to, too, reads from a mirror of its own, and may
raise Mismatch from `write` when somebody else was faster.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from master.store.records import Event, Key, Put, Record, Remove

Watch = Callable[[Event], None]


class Store(Protocol):
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
        """The objects as they were at a revision, sorted. Raises Expired."""

    def since(self, kind: str, revision: int) -> list[Event]:
        """The events of a kind after a revision, oldest first. Raises Expired, also for revisions not given yet."""

    def watch(self, kind: str, tell: Watch) -> Callable[[], None]:
        """Call `tell` for every event of a kind from now on, in order; the answer ends it.

        Asked for in the same breath as `since`, the two together miss nothing and tell nothing twice.
        """

    async def write(self, *changes: Put | Remove) -> tuple[Any, ...]:
        """Do all changes or none; returns the objects as kept when they are durable.

        With no changes it waits until all earlier writes are durable. Raises Mismatch, and NotReady when they cannot be
        kept or the store is closing: nothing was changed then.
        """

    async def compact(self, revision: int) -> None:
        """Forget what was replaced or removed up to and including a revision; older ones are Expired from then on.

        A store also forgets by itself. The newest event always stays. Raises NotReady when the disk refuses.
        """

    async def run(self) -> None:
        """Return when closed; raise what ended the writing, if it is a bug."""

    async def close(self) -> None:
        """Finish the writes on their way."""
