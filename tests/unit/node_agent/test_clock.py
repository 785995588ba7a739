"""A clock that is set shows another time from then on; what is counted from a moment goes on as it did."""

from __future__ import annotations

from datetime import timedelta

import pytest

from node_agent.clock import SteadyClock
from tests.unit.node_agent.make import NOW


@pytest.mark.parametrize("step", [timedelta(hours=3), timedelta(hours=-3), timedelta(0)])
def test_an_even_clock_is_not_set(step: timedelta) -> None:
    seconds, shown = [100.0], [NOW]
    even = SteadyClock(lambda: shown[0], lambda: seconds[0])
    assert even() == NOW
    seconds[0] += 7
    shown[0] += timedelta(seconds=7) + step
    assert even() == NOW + timedelta(seconds=7)
