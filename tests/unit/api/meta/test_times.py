"""Times as the API and as Docker write them."""

from __future__ import annotations

from datetime import UTC, datetime

from hypothesis import given
from hypothesis import strategies as st

from api.meta import times


@given(st.datetimes(min_value=datetime(1971, 1, 1), max_value=datetime(2200, 1, 1)))
def test_times_round_trip(moment: datetime) -> None:
    whole = moment.replace(microsecond=0, tzinfo=UTC)
    assert times.parse_time(times.format_time(whole)) == whole


def test_dockers_times_with_nine_digits_are_read() -> None:
    assert times.parse_time("2026-11-21T04:37:23.056888850Z") == datetime(2026, 11, 21, 4, 37, 23, 56888, UTC)
    assert times.parse_time("2026-11-21T05:37:23.5+01:00") == datetime(2026, 11, 21, 4, 37, 23, 500000, UTC)
