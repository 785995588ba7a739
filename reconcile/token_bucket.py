"""Token buckets (golang.org/x/time/rate: Limiter). Pure."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class TokenBucket:
    """The tokens of a bucket at a moment in seconds. A negative number counts reservations of future tokens."""

    tokens: float
    at: float


@dataclass(frozen=True, slots=True)
class RateLimit:
    """A limit of `burst` operations at once, and of `rate` operations per second over time.

    A `rate` of 0 means no limit. The state is a TokenBucket; None stands for a full bucket. Time that goes backwards
    adds no tokens.
    """

    rate: float
    burst: float

    def take(self, bucket: TokenBucket | None, now: float) -> tuple[TokenBucket, bool]:
        """Take one token if there is one. Return the new bucket, and whether the operation may happen."""
        tokens = self._tokens(bucket, now)
        if self.rate and tokens < 1:
            return TokenBucket(tokens, now), False
        return TokenBucket(tokens - 1, now), True

    def reserve(self, bucket: TokenBucket | None, now: float) -> tuple[TokenBucket, float]:
        """Reserve one token. Return the new bucket, and the seconds until the operation may happen."""
        tokens = self._tokens(bucket, now) - 1
        seconds = max(-tokens / self.rate, 0.0) if self.rate else 0.0
        return TokenBucket(tokens, now), seconds

    def _tokens(self, bucket: TokenBucket | None, now: float) -> float:
        if bucket is None or not self.rate:
            return self.burst
        return min(bucket.tokens + max(now - bucket.at, 0.0) * self.rate, self.burst)
