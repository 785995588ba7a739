"""What controllers read: their dependencies, and the newest state of objects.

The state includes writes that are not yet durable.
"""

from __future__ import annotations

import datetime
import socket
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from api.core.certificates import CertificateSigningRequest
from api.meta.types import ObjectMeta
from master.allocators import AllocatorCursor
from master.auth.certificate_signing import Authorize
from master.config import NetworkConfig
from master.controllers.actions import Action
from master.store.records import Key
from master.store.store import Store

Clock = Callable[[], datetime.datetime]


@dataclass(frozen=True, slots=True)
class ControllerContext:
    """`authority` is the certificate by which pods know this server, as PEM; `grace` the seconds for which a node may
    be silent, `finished_pods` how many pods that have ended are kept.

    `place` is where the server is reached; None until it is known. `sign` makes a token of claims. `clock` is the time
    of day; `steady` never jumps (seconds). `may` says whether somebody may do something, `issue` gives the certificate
    for a request that was granted. `host` is the name of this machine.
    """

    store: Store
    wish: NetworkConfig
    authority: str
    grace: float
    place: Callable[[], ServerAddress | None]
    sign: Callable[[Mapping[str, Any]], str]
    clock: Clock
    finished_pods: int
    may: Authorize
    issue: Sign
    steady: Callable[[], float] = time.monotonic
    host: Callable[[], str] = socket.gethostname


class Lister:
    """A live view: what a controller asks twice may differ when it has written meanwhile."""

    def __init__(self, environment: ControllerContext) -> None:
        self.env = environment
        self.refusals: CreateBackoffs = {}

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

    def cursor(self, name: str) -> AllocatorCursor:
        """Where an allocator goes on."""
        found: AllocatorCursor | None = self.one(AllocatorCursor.KIND, name)
        return found or AllocatorCursor(metadata=ObjectMeta(name=name))


@dataclass(frozen=True, slots=True)
class CreateBackoff:
    """`pause` is how long to wait, `again` until when (seconds of a steady clock)."""

    namespace: str
    message: str
    pause: float
    again: float


CreateBackoffs = Mapping[str, CreateBackoff]

Sign = Callable[[CertificateSigningRequest], bytes]


@dataclass(frozen=True, slots=True)
class ServerAddress:
    """Where the master is reached."""

    address: str
    port: int


RESYNC_SECONDS = 30.0
SHORT_LIVED_KINDS = ("Event", "Lease", "NodeQuery")
"""Kinds whose objects come and go all the time, and for which nobody waits."""


@dataclass(frozen=True, slots=True)
class Controller:
    """`kinds`: a change of one of these brings the next pass, at the latest it comes after `resync` seconds.

    `opens`: the server opens when its first pass is done.
    """

    name: str
    kinds: tuple[str, ...]
    decide: Callable[[Lister], Iterable[Action]]
    resync: float = RESYNC_SECONDS
    opens: bool = False
