"""Delays of password checks, so that passwords cannot be guessed quickly. Pure.

A failed check counts for its user and its client address. An address with many failures waits longer than a user with
many, because everybody can fail for a user. Spellings of a name that a provider may take for the same one count
together, and so do the addresses of one IPv6 network, which are those of one client.
"""

from __future__ import annotations

import unicodedata
from collections import Counter, OrderedDict
from dataclasses import dataclass

from reconcile.connection_limiter import source

FORGET_SECONDS = 900.0
"""Seconds without a failure after which failures are forgotten."""

FREE_USER_FAILURES, FREE_ADDRESS_FAILURES = 5, 20
"""Failures without a delay. Many users can share an address."""

FIRST_DELAY_SECONDS = 0.5
MAX_ADDRESS_DELAY_SECONDS, MAX_USER_DELAY_SECONDS = 8.0, 2.0

MAX_ENTRIES = 20_000
"""Users and addresses that are remembered. Beyond it, the oldest are forgotten."""


MAX_PENDING_LOGINS, MAX_PENDING_LOGINS_OF_CLIENT = 200, 50
"""Password checks that run, and those of one client. Each holds a connection and little memory."""

MAX_DELAYED_LOGINS = 1000
"""Password checks that wait after failures, of which one client has as many as of those that run."""

_Key = tuple[str, str]


@dataclass(frozen=True, slots=True)
class _Failures:
    number: int
    last: float


class PasswordThrottle:
    """Counts failed password checks by user and by client address. Times are seconds of a monotonic clock."""

    def __init__(self) -> None:
        self._failures: OrderedDict[_Key, _Failures] = OrderedDict()

    def delay(self, user_name: str, address: str, now: float) -> float:
        """Return the seconds to wait before the next check."""
        return max(
            self._delay(_user_key(user_name), FREE_USER_FAILURES, MAX_USER_DELAY_SECONDS, now),
            self._delay(_address_key(address), FREE_ADDRESS_FAILURES, MAX_ADDRESS_DELAY_SECONDS, now),
        )

    def failed(self, user_name: str, address: str, now: float) -> None:
        """Count a failed check."""
        for key in (_user_key(user_name), _address_key(address)):
            self._failures[key] = _Failures(self._number(key, now) + 1, now)
            self._failures.move_to_end(key)
        while len(self._failures) > MAX_ENTRIES:
            self._failures.popitem(last=False)

    def succeeded(self, user_name: str) -> None:
        """Forget the failures of a user. Those of the address stay: who owns one account could reset them with it."""
        self._failures.pop(_user_key(user_name), None)

    def _number(self, key: _Key, now: float) -> int:
        failures = self._failures.get(key)
        return 0 if failures is None or now - failures.last > FORGET_SECONDS else failures.number

    def _delay(self, key: _Key, free: int, longest: float, now: float) -> float:
        beyond = self._number(key, now) - free
        return 0.0 if beyond < 0 else min(FIRST_DELAY_SECONDS * 2.0 ** min(beyond, 10), longest)


class PendingLogins:
    """Counts the password checks that run, or those that wait: at most `limit`, and a part of them of one client."""

    def __init__(self, limit: int = MAX_PENDING_LOGINS) -> None:
        self._limit = limit
        self._clients: Counter[str] = Counter()

    def begin(self, address: str) -> bool:
        """Count a password check. Return False if too many are pending."""
        client = client_network(address)
        if self._clients.total() >= self._limit or self._clients[client] >= MAX_PENDING_LOGINS_OF_CLIENT:
            return False
        self._clients[client] += 1
        return True

    def end(self, address: str) -> None:
        """Count the end of a password check."""
        client = client_network(address)
        self._clients[client] -= 1
        if not self._clients[client]:
            del self._clients[client]


def client_network(address: str) -> str:
    """Return the address of a client, or its IPv6 network. A text that is no address stands for itself."""
    try:
        return source(address.partition("%")[0])
    except ValueError:
        return address


def _user_key(name: str) -> _Key:
    return "user", " ".join(unicodedata.normalize("NFKC", name).casefold().split())


def _address_key(address: str) -> _Key:
    return "address", client_network(address)
