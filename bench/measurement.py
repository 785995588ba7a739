"""Samples, their baselines, and a table of them. Pure but for the machine's load."""

from __future__ import annotations

import os
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field

from reconcile.terminal import table

HEADS = ("WHAT", "BUDGET", "P50", "P90", "RUNS", "FLOOR", "P50", "RATIO", "LOAD")


def load_average() -> float:
    """Return the load average of the last minute."""
    return os.getloadavg()[0]


@dataclass(frozen=True, slots=True)
class Measurement:
    """A measurement. `floor` describes `floor_samples`, which are taken in turn with the samples."""

    what: str
    unit: str
    samples: tuple[float, ...]
    budget: str = ""
    floor: str = ""
    floor_samples: tuple[float, ...] = ()
    load: float = field(default_factory=load_average)

    @property
    def median(self) -> float:
        return statistics.median(self.samples)

    @property
    def p90(self) -> float:
        """The sample that nine of ten do not exceed; of rates, the one that nine of ten reach."""
        worst_last = sorted(self.samples, reverse=self.unit.endswith("/s"))
        return worst_last[max(0, -(-len(worst_last) * 9 // 10) - 1)]

    @property
    def floor_median(self) -> float | None:
        return statistics.median(self.floor_samples) if self.floor_samples else None

    @property
    def ratio(self) -> float | None:
        floor = self.floor_median
        return self.median / floor if floor else None

    def columns(self) -> tuple[str, ...]:
        floor, ratio = self.floor_median, self.ratio
        return (
            self.what,
            self.budget or "-",
            f"{_number(self.median)} {self.unit}",
            _number(self.p90),
            str(len(self.samples)),
            self.floor or "-",
            "-" if floor is None else _number(floor),
            "-" if ratio is None else f"{ratio:.2f}",
            f"{self.load:.1f}",
        )

    def document(self) -> dict[str, object]:
        """For --json."""
        return {
            "what": self.what,
            "unit": self.unit,
            "budget": self.budget,
            "median": self.median,
            "p90": self.p90,
            "samples": self.samples,
            "floor": self.floor,
            "floorMedian": self.floor_median,
            "floorSamples": self.floor_samples,
            "ratio": self.ratio,
            "load": self.load,
        }


def _number(value: float) -> str:
    return f"{value:.0f}" if value >= 100 else f"{value:.1f}" if value >= 1 else f"{value:.2f}"


def show(figures: Sequence[Measurement]) -> str:
    """Return a table of measurements."""
    return table(HEADS, [figure.columns() for figure in figures])
