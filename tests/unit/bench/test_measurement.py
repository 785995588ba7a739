"""Budgets, medians and the table of figures."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from bench.measurement import Budget, Figure, Measure, Measurement, Progress, SizeName, at_floor, at_peer, show
from tests.unit.bench.examples import ATTACH, MEMORY, RATE


def figure(
    median: float, budget: Budget | None, unit: str = "ms", floor: float | None = None, peer: float | None = None
) -> Figure:
    return Figure(
        what="it", unit=unit, median=median, p90=median, runs=1, budget=budget, floor_median=floor, peer_median=peer
    )


@pytest.mark.parametrize(
    ("measured", "is_met"),
    [
        (figure(60, Budget(60)), True),
        (figure(61, Budget(60)), False),
        (figure(60, Budget(60), unit="answers/s"), True),
        (figure(59, Budget(60), unit="answers/s"), False),
        (figure(16, at_floor(1.6), floor=10), True),
        (figure(17, at_floor(1.6), floor=10, peer=100), False),
        (figure(50, at_floor(0.5), unit="pods/s", floor=100), True),
        (figure(49, at_floor(0.5), unit="pods/s", floor=100), False),
        (figure(10, at_peer(1), floor=1, peer=10), True),
        (figure(11, at_peer(1), floor=100, peer=10), False),
        (figure(0, Budget(0)), True),
        (figure(1, None), None),
        (figure(1, at_floor(1)), None),
        (figure(1, at_peer(1), floor=1), None),
    ],
)
def test_budget_is_a_limit_that_rates_reach_and_others_do_not_exceed(measured: Figure, is_met: bool | None) -> None:
    assert measured.is_met is is_met


@pytest.mark.parametrize(
    ("measured", "text"),
    [
        (figure(1, Budget(60), unit="MB"), "≤ 60 MB"),
        (figure(1, Budget(100_000), unit="answers/s"), "≥ 100,000 answers/s"),
        (figure(1, at_floor(1.6)), "≤ 1.6 × floor"),
        (figure(1, at_peer(0.5), unit="pods/s"), "≥ 0.5 × peer"),
        (figure(1, None), "-"),
    ],
)
def test_text_of_a_budget_has_its_sign_and_reference(measured: Figure, text: str) -> None:
    assert measured.budget_text == text


def test_figure_has_medians_and_ratios() -> None:
    attach, rate = ATTACH.figure(), RATE.figure()
    assert (attach.median, attach.floor_median, attach.peer_median, attach.runs) == (12, 6, None, 3)
    assert (attach.floor_ratio, attach.peer_ratio) == (2, None)
    assert (rate.median, rate.floor_ratio, rate.peer_ratio) == (95, None, 95 / 305)


@pytest.mark.parametrize(("unit", "p90"), [("ms", 9.0), ("pods/s", 2.0)])
def test_nine_of_ten_samples_are_at_least_as_good_as_p90(unit: str, p90: float) -> None:
    assert Measurement("it", unit, tuple(map(float, range(1, 11)))).figure().p90 == p90


def test_ratio_to_a_floor_of_zero_is_none() -> None:
    assert figure(1, at_floor(1), floor=0).floor_ratio is None


def test_table_shows_budget_verdict_and_references() -> None:
    lines = show(measurement.figure() for measurement in (ATTACH, RATE, MEMORY)).splitlines()
    assert "≤ 1.6 × floor" in lines[1]
    assert [line.split()[0] for line in lines] == ["WHAT", "attach", "in", "resident"]
    assert "6.0 (bare)" in lines[1]
    assert "305 (another)" in lines[2]
    assert ["no" in lines[1].split(), "no" in lines[2].split(), "yes" in lines[3].split()] == [True, True, True]


@dataclass(frozen=True, slots=True)
class Inner:
    seconds: float


@dataclass(frozen=True, slots=True)
class Size:
    crowds: tuple[int, ...]
    writes: Inner


def test_measure_runs_with_the_named_size() -> None:
    def measure(size: Size, progress: Progress) -> list[Measurement]:
        progress("now")
        return [Measurement("it", "ms", tuple(map(float, size.crowds)))]

    said: list[str] = []
    it = Measure("an example", measure, full=Size((1, 2), Inner(0.5)), smallest=Size((3,), Inner(0)))
    assert it.run(SizeName.FULL, said.append)[0].samples == (1, 2)
    assert it.run(SizeName.SMALLEST, said.append)[0].samples == (3,)
    assert said == ["now", "now"]
    assert it.describe_size(SizeName.FULL) == "crowds=1,2 writes.seconds=0.5"
