"""Limits of the connections of a server: decides which connections are kept. Pure.

A connection is counted by its source until a request on it has authenticated its user, and by this user from then on.
Sources from which a user has authenticated are counted apart from all others, so a flood of other connections leaves
room for them.
"""

from __future__ import annotations

import ipaddress
import math
from collections import OrderedDict
from dataclasses import dataclass, replace

RIPE_SECONDS = 2.0
"""Age at which a connection without authentication may be closed for a newer one, if no source has more than others. A
younger one is kept, because a client sends its first request at once: if new connections replaced those whose handshake
is not yet done, a burst of clients would let none of them in.
"""


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of a server: numbers of connections, and seconds.

    `authenticated` connections may be open, with at most `per_user` of one user. In addition, `unauthenticated` from
    sources from which no user has authenticated, with at most `per_source` of one source, and `unauthenticated` from
    the other sources. `handshake_seconds` limits the TLS handshake, `idle_seconds` the wait for the complete head of
    the next request.
    """

    authenticated: int = 18_000
    per_user: int = 1_000
    unauthenticated: int = 1_000
    per_source: int = 100
    handshake_seconds: float = 10.0
    idle_seconds: float = 75.0

    @property
    def connections(self) -> int:
        """Return the number of connections that may be open in all."""
        return self.authenticated + 2 * self.unauthenticated

    def within(self, connections: int) -> Limits:
        """Return the limits for a process that can have only this number of connections."""
        if connections >= self.connections:
            return self
        unauthenticated = max(1, self.unauthenticated * connections // self.connections)
        return replace(self, authenticated=max(1, connections - 2 * unauthenticated), unauthenticated=unauthenticated)


REASONS = ("per_source", "unauthenticated", "per_user", "authenticated")
"""Reasons of a Rejection: the field of Limits."""


@dataclass(frozen=True, slots=True)
class Rejection:
    """A connection that must be closed, and one of REASONS."""

    connection: int
    reason: str


def source(address: str) -> str:
    """Return the source that an IP address belongs to: an IPv4 address, or an IPv6 network of 64 bits.

    A client of IPv6 has as many addresses in its network as it wants.
    """
    ip = ipaddress.ip_address(address)
    if isinstance(ip, ipaddress.IPv4Address):
        return str(ip)
    if ip.ipv4_mapped is not None:
        return str(ip.ipv4_mapped)
    return str(ipaddress.IPv6Address(int(ip) >> 64 << 64))


class ConnectionLimiter:
    """The open connections of a server. Connections are numbers, which the server chooses; `now` is in seconds."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._unknown = FairPool(limits.unauthenticated, limits.per_source)
        self._known = FairPool(limits.unauthenticated, limits.unauthenticated)
        self._users = FairPool(limits.authenticated, limits.per_user, ripe_seconds=math.inf)
        self._exempt = FairPool(limits.authenticated, limits.authenticated)
        self._open: dict[int, tuple[FairPool, str]] = {}
        """Pool and source of each connection."""
        self._known_sources: OrderedDict[str, None] = OrderedDict()
        """Sources from which a user has authenticated, the latest last; at most as many as connections."""

    def add(self, connection: int, source: str, now: float) -> Rejection | None:
        """Add a new connection. Return the one that must be closed so that the limits hold; it can be the new one."""
        pool = self._known if self.is_known(source) else self._unknown
        victim, is_own = pool.make_room(source, now)
        if victim != REFUSED:
            pool.add(connection, source, now)
            self._open[connection] = pool, source
        return self._rejection(connection, victim, "per_source" if is_own else "unauthenticated")

    def is_known(self, source: str) -> bool:
        """Return whether a user has authenticated from this source before."""
        return source in self._known_sources

    def authenticate(self, connection: int, user: str, now: float, *, is_exempt: bool) -> Rejection | None:
        """Count a connection for the user of a request on it; the first one counts.

        Return the connection that must be closed so that the limits hold. If it is this one, it is still counted by its
        source. A user who is exempt is limited by `authenticated` alone, and replaces connections of others.
        """
        pool, source = self._open.get(connection, (None, ""))
        if pool is None or pool is self._users or pool is self._exempt:
            return None
        users = self._users
        if is_exempt:
            is_full = len(users) + len(self._exempt) >= self._limits.authenticated
            victim, is_own = users.oldest_of_largest() if is_full else None, False
        else:
            victim, is_own = users.make_room(user, now)
        if victim != REFUSED:
            pool.remove(connection)
            target = self._exempt if is_exempt else users
            target.add(connection, user, now)
            self._open[connection] = target, source
            self._remember(source)
        rejected = self._rejection(connection, victim, "per_user" if is_own else "authenticated")
        users.limit = self._limits.authenticated - len(self._exempt)
        return rejected

    def remove(self, connection: int) -> None:
        """Forget a closed connection."""
        pool, _ = self._open.pop(connection, (None, ""))
        if pool is not None:
            pool.remove(connection)
            self._users.limit = self._limits.authenticated - len(self._exempt)

    def _remember(self, source: str) -> None:
        self._known_sources[source] = None
        self._known_sources.move_to_end(source)
        if len(self._known_sources) > self._limits.connections:
            self._known_sources.popitem(last=False)

    def _rejection(self, connection: int, victim: int | None, reason: str) -> Rejection | None:
        if victim is None:
            return None
        if victim == REFUSED:
            return Rejection(connection, reason)
        self.remove(victim)
        return Rejection(victim, reason)


REFUSED = -1
"""Stands for the connection that makes the others too many."""


class FairPool:
    """Connections by holder, such as a source or a user: at most `limit`, and `per_holder` of one holder.

    All operations take constant time, because a flood of connections calls them.
    """

    def __init__(self, limit: int, per_holder: int, ripe_seconds: float = RIPE_SECONDS) -> None:
        self.limit = limit
        self._per_holder = per_holder
        self._ripe_seconds = ripe_seconds
        self._opened: dict[int, tuple[str, float]] = {}
        """Holder and time of each connection, the oldest first."""
        self._by_holder: dict[str, dict[int, None]] = {}
        self._holders: dict[int, dict[str, None]] = {}
        """Holders by the number of their connections."""
        self._largest = 0
        """The largest number of connections of one holder."""

    def __len__(self) -> int:
        return len(self._opened)

    def add(self, connection: int, holder: str, now: float) -> None:
        """Add a connection."""
        self._opened[connection] = holder, now
        connections = self._by_holder.setdefault(holder, {})
        self._set_number(holder, len(connections), len(connections) + 1)
        connections[connection] = None
        self._largest = max(self._largest, len(connections))

    def remove(self, connection: int) -> None:
        """Remove a connection."""
        holder, _ = self._opened.pop(connection)
        connections = self._by_holder[holder]
        self._set_number(holder, len(connections), len(connections) - 1)
        if len(connections) == self._largest and self._largest not in self._holders:
            self._largest -= 1
        del connections[connection]
        if not connections:
            del self._by_holder[holder]

    def make_room(self, holder: str, now: float) -> tuple[int | None, bool]:
        """Return the connection that must give way to a new one of this holder, REFUSED if none must, None if there is
        room; and whether this is for the limit of the holder alone.

        A holder with fewer connections than another one takes a place of that one.
        """
        own = self._by_holder.get(holder, {})
        is_own = len(own) >= self._per_holder
        if is_own:
            oldest = next(iter(own))
        elif len(self) < self.limit:
            return None, False
        elif len(own) + 1 < self._largest:
            return self.oldest_of_largest(), False
        else:
            oldest = next(iter(self._opened), REFUSED)
        is_ripe = oldest != REFUSED and now - self._opened[oldest][1] >= self._ripe_seconds
        return oldest if is_ripe else REFUSED, is_own

    def oldest_of_largest(self) -> int:
        """Return the oldest connection of a holder that has the most, REFUSED if there is none."""
        holder = next(iter(self._holders.get(self._largest, ())), None)
        return REFUSED if holder is None else next(iter(self._by_holder[holder]))

    def _set_number(self, holder: str, before: int, after: int) -> None:
        if before:
            del self._holders[before][holder]
            if not self._holders[before]:
                del self._holders[before]
        if after:
            self._holders.setdefault(after, {})[holder] = None
