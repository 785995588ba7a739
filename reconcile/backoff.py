"""Exponential back-off. Pure."""

from __future__ import annotations

from dataclasses import dataclass

MAX_DOUBLINGS = 30
"""Limit of the exponent, so that any number of failures can be computed."""


@dataclass(frozen=True, slots=True)
class Backoff:
    """Waits in seconds between attempts: `base` after the first failure, then doubled, at most `maximum`."""

    base: float
    maximum: float

    def delay(self, failures: int) -> float:
        """Return the seconds to wait after this number of consecutive failures. Return 0.0 without a failure."""
        if failures <= 0:
            return 0.0
        return min(self.base * float(2 ** min(failures - 1, MAX_DOUBLINGS)), self.maximum)
