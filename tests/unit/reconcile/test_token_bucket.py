"""Rate limits by a token bucket."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from reconcile.token_bucket import RateLimit


@given(st.lists(st.floats(0, 100), max_size=60), st.floats(0.1, 50), st.integers(1, 20))
def test_reservations_are_limited_by_rate_and_burst(moments: list[float], rate: float, burst: int) -> None:
    bucket, start_times = None, []
    for moment in sorted(moments):
        bucket, wait = RateLimit(rate, burst).reserve(bucket, moment)
        start_times.append(moment + wait)
    assert start_times == sorted(start_times)
    for number, moment in enumerate(start_times):
        inside = [start_time for start_time in start_times[number:] if start_time <= moment + 10]
        assert len(inside) <= burst + 10 * rate + 1.001


def test_reservations_without_a_rate_never_wait() -> None:
    bucket = None
    for _ in range(100):
        bucket, wait = RateLimit(rate=0, burst=10).reserve(bucket, 5.0)
        assert wait == 0
