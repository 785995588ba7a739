"""What a controller sees: the newest state of everything, writes included that are still on their way to the disk."""

from __future__ import annotations

import datetime
import socket
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from api.meta.types import ObjectMeta
from master.access.signers import May
from master.controllers.bootstrap import NetworkWish
from master.controllers.certificates import Sign
from master.controllers.network.master_service import Place
from master.controllers.refusals import Refusals
from master.store.records import Key
from master.store.store import Store
from master.writing.outcomes import Cursor

Clock = Callable[[], datetime.datetime]


@dataclass(frozen=True, slots=True)
class Environment:
    """`authority` is the certificate by which pods know this server, as PEM; `grace` the seconds for which a node may
    be silent, `finished_pods` how many pods that have ended are kept.

    `place` is where the server is reached; None until it is known. `sign` makes a token of claims. `clock` is the time
    of day; `steady` never jumps (seconds). `may` says whether somebody may do something, `issue` gives the certificate
    for a request that was granted. `host` is the name of this machine.
    """

    store: Store
    wish: NetworkWish
    authority: str
    grace: float
    place: Callable[[], Place | None]
    sign: Callable[[Mapping[str, Any]], str]
    clock: Clock
    finished_pods: int
    may: May
    issue: Sign
    steady: Callable[[], float] = time.monotonic
    host: Callable[[], str] = socket.gethostname


class Look:
    """A live view: what a controller asks twice may differ when it has written meanwhile."""

    def __init__(self, environment: Environment) -> None:
        self.env = environment
        self.refusals: Refusals = {}

    @property
    def refused(self) -> dict[str, str]:
        """By the uid of an owner: why nothing could be made for it."""
        return {uid: one.message for uid, one in self.refusals.items()}

    @property
    def now(self) -> datetime.datetime:
        """The time of day."""
        return self.env.clock()

    def all(self, kind: str, namespace: str = "") -> list[Any]:
        """Every object of a kind, in one namespace or in all."""
        return [record.object for record in self.env.store.scan_latest(kind, namespace)]

    def one(self, kind: str, name: str, namespace: str = "") -> Any:
        """An object; None if there is none."""
        record = self.env.store.latest(Key(kind, namespace, name))
        return None if record is None else record.object

    def cursor(self, name: str) -> Cursor:
        """Where an allocator goes on."""
        found: Cursor | None = self.one(Cursor.KIND, name)
        return found or Cursor(metadata=ObjectMeta(name=name))
