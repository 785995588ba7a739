"""Measures, their samples beside a floor and a peer, and budgets. Pure but for the load of the machine.

A floor is the least that the machine itself takes for the same work, done by a bare client. A peer is other software
that does the same work. Samples of both are taken in turn with ours.
"""

from __future__ import annotations

import dataclasses
import os
import statistics
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Generic, TypeVar

import msgspec

from reconcile.terminal import table

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

Progress = Callable[[str], None]
"""Prints what a measure does now."""

HEADINGS = ("WHAT", "BUDGET", "MET", "P50", "P90", "RUNS", "FLOOR", "RATIO", "PEER", "RATIO", "LOAD")


def load_average() -> float:
    """Return the load average of the last minute."""
    return os.getloadavg()[0]


class Reference(StrEnum):
    """What the limit of a budget is a multiple of."""

    FIGURE = "figure"
    """Nothing: the limit is in the unit of the figure."""

    FLOOR = "floor"
    PEER = "peer"


class Budget(msgspec.Struct, frozen=True):
    """A limit of the median. A rate must reach it; everything else must not exceed it."""

    limit: float
    reference: Reference = Reference.FIGURE


def at_floor(limit: float) -> Budget:
    """Return a budget of this multiple of the floor."""
    return Budget(limit, Reference.FLOOR)


def at_peer(limit: float) -> Budget:
    """Return a budget of this multiple of the peer."""
    return Budget(limit, Reference.PEER)


class Figure(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """A measurement without its samples: the medians, the 90th percentile, and the load at the end."""

    what: str
    unit: str
    median: float
    p90: float
    runs: int
    budget: Budget | None = None
    floor: str = ""
    floor_median: float | None = None
    peer: str = ""
    peer_median: float | None = None
    load: float = 0.0

    @property
    def floor_ratio(self) -> float | None:
        """The median as a multiple of the floor; None without a floor, or if that is 0."""
        return self.median / self.floor_median if self.floor_median else None

    @property
    def peer_ratio(self) -> float | None:
        """The median as a multiple of the peer; None without a peer, or if that is 0."""
        return self.median / self.peer_median if self.peer_median else None

    @property
    def is_rate(self) -> bool:
        """True if more is better."""
        return is_rate(self.unit)

    @property
    def is_met(self) -> bool | None:
        """Whether the budget is met; None without a budget, or without what it refers to."""
        if self.budget is None:
            return None
        values = {
            Reference.FIGURE: self.median,
            Reference.FLOOR: self.floor_ratio,
            Reference.PEER: self.peer_ratio,
        }
        value = values[self.budget.reference]
        if value is None:
            return None
        return value >= self.budget.limit if self.is_rate else value <= self.budget.limit

    @property
    def budget_text(self) -> str:
        """The budget with its sign and unit, such as `≤ 60 MB` or `≤ 1.6 × floor`."""
        if self.budget is None:
            return "-"
        unit = self.unit if self.budget.reference is Reference.FIGURE else f"× {self.budget.reference}"
        return f"{'≥' if self.is_rate else '≤'} {self.budget.limit:,.10g} {unit}"


class Measurement(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """Samples of one quantity, beside those of a floor and of a peer, which are named."""

    what: str
    unit: str
    samples: tuple[float, ...]
    budget: Budget | None = None
    floor: str = ""
    floor_samples: tuple[float, ...] = ()
    peer: str = ""
    peer_samples: tuple[float, ...] = ()
    load: float = msgspec.field(default_factory=load_average)

    def figure(self) -> Figure:
        """Return the medians, and as `p90` what nine of ten samples do not exceed, or of rates, what they reach."""
        worst_last = sorted(self.samples, reverse=is_rate(self.unit))
        return Figure(
            what=self.what,
            unit=self.unit,
            median=statistics.median(self.samples),
            p90=worst_last[max(0, -(-len(worst_last) * 9 // 10) - 1)],
            runs=len(self.samples),
            budget=self.budget,
            floor=self.floor,
            floor_median=statistics.median(self.floor_samples) if self.floor_samples else None,
            peer=self.peer,
            peer_median=statistics.median(self.peer_samples) if self.peer_samples else None,
            load=self.load,
        )


def is_rate(unit: str) -> bool:
    """Return whether a unit is that of a rate, of which more is better."""
    return unit.endswith("/s")


class SizeName(StrEnum):
    """How much a measure does."""

    FULL = "full"
    """As much as makes figures that can be compared."""

    SMALLEST = "smallest"
    """As little as yields every figure. Its figures mean nothing."""


SizeT = TypeVar("SizeT", bound="DataclassInstance")


@dataclass(frozen=True, slots=True)
class Measure(Generic[SizeT]):
    """What one name of `python -m bench` measures. The type of its sizes is declared beside it."""

    description: str
    function: Callable[[SizeT, Progress], list[Measurement]]
    full: SizeT
    smallest: SizeT

    def run(self, size: SizeName, progress: Progress) -> list[Measurement]:
        """Measure, and return all figures. Processes, namespaces and files of the measure are gone afterwards."""
        return self.function(self._size(size), progress)

    def describe_size(self, size: SizeName) -> str:
        """Return the values of a size, such as `rounds=20 crowds=0,100`."""
        return " ".join(_values(dataclasses.asdict(self._size(size))))

    def _size(self, size: SizeName) -> SizeT:
        return self.full if size is SizeName.FULL else self.smallest


def _values(fields: Mapping[str, object], prefix: str = "") -> Iterator[str]:
    for name, value in fields.items():
        if isinstance(value, dict):
            yield from _values(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}={','.join(map(str, value)) if isinstance(value, tuple) else value}"


def number_text(value: float) -> str:
    """Return a number with about three digits."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}" if value >= 1 else f"{value:.2f}"


def ratio_text(ratio: float | None) -> str:
    """Return a ratio with two decimals, a dash if there is none."""
    return "-" if ratio is None else f"{ratio:.2f}"


def _met_text(is_met: bool | None) -> str:
    """Return yes or no, a dash if nothing can be said."""
    return "-" if is_met is None else "yes" if is_met else "no"


def _reference_text(name: str, median: float | None) -> str:
    """Return the median of a floor or peer with its name, a dash if there is none."""
    return "-" if median is None else f"{number_text(median)} ({name})"


def show(figures: Iterable[Figure]) -> str:
    """Return a table of figures."""
    return table(HEADINGS, [figure_cells(figure) for figure in figures])


def figure_cells(figure: Figure) -> tuple[str, ...]:
    """Return a figure as a row of the table, in the order of HEADINGS."""
    return (
        figure.what,
        figure.budget_text,
        _met_text(figure.is_met),
        f"{number_text(figure.median)} {figure.unit}",
        number_text(figure.p90),
        str(figure.runs),
        _reference_text(figure.floor, figure.floor_median),
        ratio_text(figure.floor_ratio),
        _reference_text(figure.peer, figure.peer_median),
        ratio_text(figure.peer_ratio),
        f"{figure.load:.1f}",
    )
