"""Metrics as values, and the text format of Prometheus. Pure.

For daemons and pages for which the Prometheus client library does not fit: it supports only counters whose names end in
`_total`, while Kubernetes has others, it takes ten times as long for thousands of samples, and 1 MB of memory. An
increment and an observation take a quarter of its time.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

COUNTER, GAUGE, HISTOGRAM = "counter", "gauge", "histogram"
_ESCAPED = str.maketrans({"\\": "\\\\", "\n": "\\n", '"': '\\"'})


class Sample(NamedTuple):
    """A value with labels in the form of `format_labels`.

    `at` is the time in seconds since 1970, 0 for a sample without a time. `suffix` is appended to the family's name.
    """

    value: float
    labels: str = ""
    at: float = 0.0
    suffix: str = ""


class MetricFamily(NamedTuple):
    """Samples of one name. `type` is counter, gauge or histogram."""

    name: str
    type: str
    help: str
    samples: Iterable[Sample]


def format_labels(**labels: str) -> str:
    """Return labels as text, ordered by name."""
    return ",".join(f'{name}="{text.translate(_ESCAPED)}"' for name, text in sorted(labels.items()))


def format_families(families: Iterable[MetricFamily]) -> str:
    """Return families as text. A family without samples is omitted."""
    return "".join(line for family in families for line in _format_family(family))


def _format_family(family: MetricFamily) -> Iterator[str]:
    header = f"# HELP {family.name} {family.help}\n# TYPE {family.name} {family.type}\n"
    for sample in family.samples:
        labels = f"{{{sample.labels}}}" if sample.labels else ""
        timestamp = f" {int(sample.at * 1000)}" if sample.at else ""
        yield f"{header}{family.name}{sample.suffix}{labels} {sample.value!r}{timestamp}\n"
        header = ""


class Histogram:
    """The number of observed values by bucket, and their sum. `bounds` are the upper bounds of buckets, ascending."""

    __slots__ = ("_bounds", "_counts", "_sum")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self._sum = 0.0

    def observe(self, value: float) -> None:
        """Count a value."""
        self._counts[bisect_left(self._bounds, value)] += 1
        self._sum += value

    def samples(self, labels: str = "") -> Iterator[Sample]:
        """Yield the samples of the histogram. `labels` are those of all of them."""
        before = f"{labels}," if labels else ""
        cumulative = 0
        for bound, number in zip((*map(str, self._bounds), "+Inf"), self._counts, strict=True):
            cumulative += number
            yield Sample(cumulative, f'{before}le="{bound}"', suffix="_bucket")
        yield Sample(self._sum, labels, suffix="_sum")
        yield Sample(cumulative, labels, suffix="_count")


def counter(name: str, description: str, values: Mapping[str, float]) -> MetricFamily:
    """Return a counter with its values by labels."""
    return MetricFamily(name, COUNTER, description, [Sample(value, labels) for labels, value in sorted(values.items())])


def gauge(name: str, description: str, values: Mapping[str, float]) -> MetricFamily:
    """Return a gauge with its values by labels."""
    return MetricFamily(name, GAUGE, description, [Sample(value, labels) for labels, value in sorted(values.items())])


def histogram(name: str, description: str, histograms: Mapping[str, Histogram]) -> MetricFamily:
    """Return a histogram with its values by labels."""
    samples = (sample for labels, values in sorted(histograms.items()) for sample in values.samples(labels))
    return MetricFamily(name, HISTOGRAM, description, samples)
