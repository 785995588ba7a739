"""Stabilization, policies and bounds, with a clock that tests set."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from master.controllers.autoscaling.scaling_rules import (
    DESIRED_WITHIN_RANGE,
    READY_FOR_NEW_SCALE,
    SCALE_DOWN_LIMIT,
    SCALE_DOWN_STABILIZED,
    SCALE_UP_LIMIT,
    SCALE_UP_STABILIZED,
    TOO_FEW_REPLICAS,
    TOO_MANY_REPLICAS,
    Bounds,
    History,
    Normalized,
    Recommendation,
    ScaleEvent,
    begin,
    normalize,
    with_scale_event,
)
from master.resources.autoscaling import HorizontalPodAutoscalerBehavior, HPAScalingPolicy, HPAScalingRules

WIDE = Bounds(1, 1000)


def rules(window: int | None = 0, select: str = "Max", **policies: tuple[int, int]) -> HPAScalingRules:
    """Return rules with policies by type: value and seconds."""
    return HPAScalingRules(
        stabilization_window_seconds=window,
        select_policy=select,
        policies=tuple(
            HPAScalingPolicy(type=kind, value=value, period_seconds=s) for kind, (value, s) in policies.items()
        ),
    )


FREE = rules(Percent=(10_000, 15))
ALL_DOWN = rules(Percent=(100, 15))


def behavior(up: HPAScalingRules = FREE, down: HPAScalingRules = ALL_DOWN) -> HorizontalPodAutoscalerBehavior:
    return HorizontalPodAutoscalerBehavior(scale_up=up, scale_down=down)


def history(
    *recommendations: tuple[int, float],
    ups: tuple[tuple[int, float], ...] = (),
    downs: tuple[tuple[int, float], ...] = (),
) -> History:
    return History(
        tuple(Recommendation(*each) for each in recommendations),
        tuple(ScaleEvent(*each) for each in ups),
        tuple(ScaleEvent(*each) for each in downs),
    )


def at_1000(
    current: int,
    recommended: int,
    past: History = History(),  # noqa: B008 - frozen
    how: HorizontalPodAutoscalerBehavior | None = None,
    bounds: Bounds = WIDE,
) -> Normalized:
    return normalize(how, current, recommended, bounds, past, 300.0, 1000.0)


# --- without a behavior -----------------------------------------------------------------------------------------------


def test_highest_recommendation_of_five_minutes_is_applied() -> None:
    actual = at_1000(10, 3, history((9, 699.0), (8, 700.0), (7, 900.0)))
    assert (actual.replicas, actual.able) == (8, SCALE_DOWN_STABILIZED)
    assert (actual.limited, actual.is_limited) == (DESIRED_WITHIN_RANGE, False)
    assert at_1000(10, 3, history((9, 699.0))).replicas == 3
    assert at_1000(10, 3, history((9, 699.0))).able == READY_FOR_NEW_SCALE


@pytest.mark.parametrize(("current", "expected"), [(1, 4), (2, 4), (3, 6), (100, 200)])
def test_twice_the_number_or_four_are_the_limit_of_one_step_up(current: int, expected: int) -> None:
    actual = at_1000(current, 999)
    assert (actual.replicas, actual.limited, actual.is_limited) == (expected, SCALE_UP_LIMIT, True)


def test_bounds_of_the_spec_limit_the_number() -> None:
    high, low = at_1000(3, 9, bounds=Bounds(2, 5)), at_1000(3, 1, bounds=Bounds(2, 5))
    assert (high.replicas, high.limited, high.is_limited) == (5, TOO_MANY_REPLICAS, True)
    assert (low.replicas, low.limited, low.is_limited) == (2, TOO_FEW_REPLICAS, True)


def test_first_recommendation_is_the_current_number() -> None:
    begun = begin(History(), 7, 1000.0)
    assert begun == history((7, 1000.0))
    assert begin(begun, 3, 1001.0) == begun
    assert at_1000(7, 1, begun).replicas == 7


# --- with a behavior --------------------------------------------------------------------------------------------------


def test_lowest_recommendation_of_the_window_is_applied_upwards() -> None:
    how = behavior(up=rules(60, Percent=(10_000, 15)))
    actual = at_1000(4, 9, history((6, 941.0), (8, 970.0)), how)
    assert (actual.replicas, actual.able) == (6, SCALE_UP_STABILIZED)
    assert at_1000(4, 9, history((6, 940.0), (8, 970.0)), how).replicas == 8
    assert at_1000(4, 9, history((2, 970.0)), how).replicas == 4  # never the other direction


def test_highest_recommendation_of_the_window_is_applied_downwards() -> None:
    how = behavior(down=rules(60, Percent=(100, 15)))
    actual = at_1000(10, 2, history((9, 941.0), (5, 970.0)), how)
    assert (actual.replicas, actual.able) == (9, SCALE_DOWN_STABILIZED)
    assert at_1000(10, 2, history((9, 940.0), (5, 970.0)), how).replicas == 5
    assert at_1000(10, 2, history((99, 970.0)), how).replicas == 10


def test_window_down_is_that_of_the_settings_if_it_is_not_given() -> None:
    how = behavior(down=rules(None, Percent=(100, 15)))
    assert at_1000(10, 2, history((6, 701.0)), how).replicas == 6
    assert at_1000(10, 2, history((6, 700.0)), how).replicas == 2


@pytest.mark.parametrize(
    ("up", "past", "expected"),
    [
        (rules(Pods=(4, 60)), History(), 14),
        (rules(Percent=(25, 60)), History(), 13),  # 12.5 is rounded up
        (rules(Pods=(4, 60), Percent=(25, 60)), History(), 14),
        (rules(select="Min", Pods=(4, 60), Percent=(25, 60)), History(), 13),
        (rules(select="Disabled", Pods=(4, 60)), History(), 10),
        # 3 were added and 1 was removed within the minute: it began with 8.
        (rules(Pods=(4, 60)), history(ups=((3, 941.0), (2, 940.0)), downs=((1, 990.0),)), 12),
        (rules(Percent=(25, 60)), history(ups=((3, 941.0),), downs=((1, 990.0),)), 10),
        (rules(Pods=(4, 60)), history(ups=((9, 999.0),)), 10),  # used up
    ],
)
def test_policies_limit_how_fast_pods_are_added(up: HPAScalingRules, past: History, expected: int) -> None:
    actual = at_1000(10, 100, past, behavior(up=up))
    assert (actual.replicas, actual.limited, actual.is_limited) == (expected, SCALE_UP_LIMIT, True)


@pytest.mark.parametrize(
    ("down", "past", "expected"),
    [
        (rules(Pods=(4, 60)), History(), 6),
        (rules(Percent=(25, 60)), History(), 7),  # 7.5 is cut
        (rules(Pods=(4, 60), Percent=(25, 60)), History(), 6),
        (rules(select="Min", Pods=(4, 60), Percent=(25, 60)), History(), 7),
        (rules(select="Disabled", Pods=(4, 60)), History(), 10),
        (rules(Pods=(4, 60)), history(ups=((1, 990.0),), downs=((3, 941.0), (2, 940.0))), 8),
        (rules(Pods=(4, 60)), history(downs=((9, 999.0),)), 10),
    ],
)
def test_policies_limit_how_fast_pods_are_removed(down: HPAScalingRules, past: History, expected: int) -> None:
    actual = at_1000(10, 1, past, behavior(down=down))
    assert (actual.replicas, actual.limited, actual.is_limited) == (expected, SCALE_DOWN_LIMIT, True)


def test_bounds_of_the_spec_come_before_the_policies() -> None:
    high = at_1000(10, 100, how=behavior(up=rules(Pods=(50, 60))), bounds=Bounds(9, 12))
    low = at_1000(10, 1, how=behavior(), bounds=Bounds(9, 12))
    assert (high.replicas, high.limited) == (12, TOO_MANY_REPLICAS)
    assert (low.replicas, low.limited) == (9, TOO_FEW_REPLICAS)


# --- history ----------------------------------------------------------------------------------------------------------


def test_recommendations_that_later_ones_hide_are_dropped() -> None:
    past = history((5, 750.0), (9, 760.0), (4, 770.0), (6, 780.0), (6, 790.0))
    assert at_1000(6, 6, past).history == history((9, 760.0), (4, 770.0), (6, 1000.0))
    assert at_1000(6, 6, history((9, 699.0))).history == history((6, 1000.0))


def test_scale_events_are_kept_for_the_longest_period() -> None:
    how = behavior(up=rules(Pods=(1, 60)), down=rules(Pods=(1, 30)))
    past = history(ups=((1, 939.0), (2, 940.0)), downs=((5, 950.0),))
    after = with_scale_event(past, how, 10, 13, 1000.0)
    assert after == history(ups=((2, 940.0), (3, 1000.0)), downs=((5, 950.0),))
    assert with_scale_event(past, how, 10, 6, 1000.0).scale_downs[-1] == ScaleEvent(4, 1000.0)
    assert with_scale_event(past, None, 10, 13, 1000.0) == History()


# --- properties -------------------------------------------------------------------------------------------------------

_RULES = st.builds(
    lambda window, select, policies: HPAScalingRules(
        stabilization_window_seconds=window, select_policy=select, policies=tuple(policies)
    ),
    st.integers(0, 600),
    st.sampled_from(["Max", "Min", "Disabled"]),
    st.lists(
        st.builds(
            lambda kind, value, seconds: HPAScalingPolicy(type=kind, value=value, period_seconds=seconds),
            st.sampled_from(["Pods", "Percent"]),
            st.integers(1, (1 << 31) - 1),
            st.integers(1, 1800),
        ),
        min_size=1,
        max_size=3,
    ),
)
_BEHAVIOR = st.none() | st.builds(behavior, _RULES, _RULES)


@settings(max_examples=60)
@given(
    how=_BEHAVIOR,
    minimum=st.integers(1, 20),
    extra=st.integers(0, 10**9),
    start=st.integers(0, 30),
    steps=st.lists(st.tuples(st.integers(0, (1 << 31) - 1), st.floats(0, 700)), max_size=25),
    restart=st.integers(0, 25),
)
def test_number_stays_in_the_bounds_whatever_happens(
    how: HorizontalPodAutoscalerBehavior | None,
    minimum: int,
    extra: int,
    start: int,
    steps: list[tuple[int, float]],
    restart: int,
) -> None:
    """Recommendations are arbitrary, and the history is lost once, as by a restart of the master."""
    bounds = Bounds(minimum, minimum + extra)
    current = min(max(minimum, start), bounds.maximum)
    past, time = History(), 0.0
    for number, (recommended, seconds) in enumerate(steps):
        past = History() if number == restart else past
        time += seconds
        past = begin(past, current, time)
        actual = normalize(how, current, recommended, bounds, past, 300.0, time)
        assert bounds.minimum <= actual.replicas <= bounds.maximum
        assert (actual.replicas - current) * (max(0, recommended) - current) >= 0 or how is None
        past = with_scale_event(actual.history, how, current, actual.replicas, time)
        current = actual.replicas


@settings(max_examples=60)
@given(how=_BEHAVIOR, steps=st.lists(st.tuples(st.integers(1, 9), st.floats(0.1, 200)), min_size=1, max_size=30))
def test_dropped_recommendations_change_no_result(
    how: HorizontalPodAutoscalerBehavior | None, steps: list[tuple[int, float]]
) -> None:
    past, complete, time = History(), History(), 0.0
    for recommended, seconds in steps:
        time += seconds
        actual = normalize(how, 5, recommended, WIDE, past, 300.0, time)
        expected = normalize(how, 5, recommended, WIDE, complete, 300.0, time)
        assert (actual.replicas, actual.able) == (expected.replicas, expected.able)
        past = actual.history
        complete = History((*complete.recommendations, Recommendation(recommended, time)))
        assert len(past.recommendations) <= 2 * 9
