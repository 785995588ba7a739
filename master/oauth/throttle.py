"""Delays of password checks, so that passwords cannot be guessed quickly. Pure.

A failed check counts for its user and its client address. An address with many failures waits longer than a user with
many, because everybody can fail for a user.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

FORGET_SECONDS = 900.0
"""Seconds without a failure after which failures are forgotten."""

FREE_USER_FAILURES, FREE_ADDRESS_FAILURES = 5, 20
"""Failures without a delay. Many users can share an address."""

FIRST_DELAY_SECONDS = 0.5
MAX_ADDRESS_DELAY_SECONDS, MAX_USER_DELAY_SECONDS = 8.0, 2.0

MAX_ENTRIES = 20_000
"""Users and addresses that are remembered. Beyond it, the oldest are forgotten."""


@dataclass(frozen=True, slots=True)
class _Failures:
    number: int
    last: float


class PasswordThrottle:
    """Counts failed password checks by user and by client address. Times are seconds of a monotonic clock."""

    def __init__(self) -> None:
        self._failures: OrderedDict[tuple[str, str], _Failures] = OrderedDict()

    def delay(self, user_name: str, address: str, now: float) -> float:
        """Return the seconds to wait before the next check."""
        return max(
            self._delay(("user", user_name), FREE_USER_FAILURES, MAX_USER_DELAY_SECONDS, now),
            self._delay(("address", address), FREE_ADDRESS_FAILURES, MAX_ADDRESS_DELAY_SECONDS, now),
        )

    def failed(self, user_name: str, address: str, now: float) -> None:
        """Count a failed check."""
        for key in (("user", user_name), ("address", address)):
            self._failures[key] = _Failures(self._number(key, now) + 1, now)
            self._failures.move_to_end(key)
        while len(self._failures) > MAX_ENTRIES:
            self._failures.popitem(last=False)

    def succeeded(self, user_name: str) -> None:
        """Forget the failures of a user. Those of the address stay: who owns one account could reset them with it."""
        self._failures.pop(("user", user_name), None)

    def _number(self, key: tuple[str, str], now: float) -> int:
        failures = self._failures.get(key)
        return 0 if failures is None or now - failures.last > FORGET_SECONDS else failures.number

    def _delay(self, key: tuple[str, str], free: int, longest: float, now: float) -> float:
        beyond = self._number(key, now) - free
        return 0.0 if beyond < 0 else min(FIRST_DELAY_SECONDS * 2.0 ** min(beyond, 10), longest)
