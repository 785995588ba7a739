"""The creates of one controller about which external calls are made, such as those of webhooks. Pure.

A controller does not wait for them: it creates the other objects and asks for these again in its later passes, with the
same generated names, uids and times, until all results are there.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

from master.admission.external_calls import ExternalCall, PendingWrite

MAX_CALLING, MAX_CALLING_OF_NAMESPACE = 256, 32
"""Creates of a controller whose calls are made at the same time. The others wait for a later pass.

A webhook may take 30 s for each create of one namespace; those of others must not wait for it.
"""

UNUSED_SECONDS = 60.0
"""A create that no pass has asked for in this time is given up: the controller does not need it any more."""

CreateKey = tuple[str, str, str]
"""The uid of the owner, the kind, and the name or the prefix of the generated name."""


@dataclass(slots=True, eq=False)
class PendingCreate:
    """A create that is decided again, and the calls for which it waits."""

    key: CreateKey
    namespace: str = ""
    write: PendingWrite = field(default_factory=PendingWrite)
    calls: tuple[ExternalCall, ...] = ()
    is_calling: bool = False
    used_at: float = 0.0


class PendingCreates:
    """Creates by key. Several of one key are told apart by their order in a pass."""

    def __init__(self) -> None:
        self._known: dict[CreateKey, list[PendingCreate]] = {}
        """Those of the passes before, which this pass has not asked for."""
        self._waiting: dict[CreateKey, list[PendingCreate]] = {}
        """Those that wait for results."""
        self._decided: list[PendingCreate] = []
        """Those whose objects are created by this pass, if its write succeeds."""
        self._calling: Counter[str] = Counter()
        """The number of creates whose calls are made, by namespace."""
        self._now = 0.0

    def __len__(self) -> int:
        return sum(map(len, (*self._known.values(), *self._waiting.values(), self._decided)))

    def begin_pass(self, now: float) -> None:
        """Begin a pass of the controller at a time in seconds, and drop what is not asked for any more."""
        unused = [create for creates in self._known.values() for create in creates]
        self._known, self._waiting, self._now = self._waiting, {}, now
        for create in (*self._decided, *unused):
            if create.is_calling or now < create.used_at + UNUSED_SECONDS:
                self._known.setdefault(create.key, []).append(create)
        self._decided = []

    def take(self, key: CreateKey, namespace: str = "") -> PendingCreate | None:
        """Return the next create of this key to decide; None if its calls have no results yet."""
        if not (known := self._known.get(key)):
            return PendingCreate(key, namespace, used_at=self._now)
        create = known.pop(0)
        create.used_at = self._now
        if create.is_calling or create.calls:
            self._waiting.setdefault(key, []).append(create)
            return None
        create.write.restart()
        return create

    def wait(self, create: PendingCreate, calls: tuple[ExternalCall, ...]) -> None:
        """Keep a create until calls have results."""
        create.calls = calls
        self._waiting.setdefault(create.key, []).append(create)

    def decide(self, create: PendingCreate) -> None:
        """Keep a create whose object is part of the write, until `end_pass`: the write may fail."""
        if create.write.external:
            self._decided.append(create)

    def end_pass(self) -> None:
        """Drop the creates whose objects have been written."""
        self._decided = []

    def start_calls(self) -> Iterator[PendingCreate]:
        """Yield the creates whose calls are to be made now. `finish_calls` follows for each."""
        for creates in self._waiting.values():
            for create in creates:
                if self._calling.total() >= MAX_CALLING:
                    return
                is_full = self._calling[create.namespace] >= MAX_CALLING_OF_NAMESPACE
                if create.calls and not create.is_calling and not is_full:
                    create.is_calling = True
                    self._calling[create.namespace] += 1
                    yield create

    def finish_calls(self, create: PendingCreate) -> None:
        """Let the next pass decide a create again. Calls that have no result are made again then."""
        create.is_calling, create.calls = False, ()
        self._calling[create.namespace] -= 1
        self._calling += Counter()  # Namespaces without calls are dropped.
