"""How probes went, since each pod came here: what /metrics/probes of a kubelet tells. Pure."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from node_agent.observed import POD_NAME, POD_NAMESPACE, Container
from node_agent.stats.exposition import COUNTER, HISTOGRAM, Family, Row, labelled

BOUNDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10)
RESULTS = {True: "successful", False: "failed", None: "unknown"}


class _Key(NamedTuple):
    uid: str
    namespace: str
    pod: str
    container: str
    kind: str


@dataclass(slots=True)
class _Count:
    results: dict[str, int] = field(default_factory=dict)
    buckets: list[int] = field(default_factory=lambda: [0] * (len(BOUNDS) + 1))
    seconds: float = 0.0


class ProbeCounts:
    """Of every probe of every container: how often it was asked, what it said, how long it took."""

    def __init__(self) -> None:
        self._counts: dict[_Key, _Count] = {}

    def count(self, one: Container, kind: str, success: bool | None, seconds: float) -> None:
        """A probe of this container was answered; `kind` is Startup, Liveness or Readiness."""
        key = _Key(one.uid, one.labels.get(POD_NAMESPACE, ""), one.labels.get(POD_NAME, ""), one.name, kind)
        count = self._counts.setdefault(key, _Count())
        result = RESULTS[success]
        count.results[result] = count.results.get(result, 0) + 1
        count.buckets[bisect_left(BOUNDS, seconds)] += 1
        count.seconds += seconds

    def forget(self, uid: str) -> None:
        """The pod is gone."""
        for key in [key for key in self._counts if key.uid == uid]:
            del self._counts[key]

    def families(self) -> Iterator[Family]:
        """Every family of the page, but for the start of the process."""
        yield Family(
            "prober_probe_duration_seconds", HISTOGRAM, "Duration in seconds for a probe response.", self._times()
        )
        yield Family(
            "prober_probe_total",
            COUNTER,
            "Cumulative number of a liveness, readiness or startup probe for a container by result.",
            [
                Row(number, labelled(**_labels(key), pod_uid=key.uid, result=result))
                for key, count in sorted(self._counts.items())
                for result, number in sorted(count.results.items())
            ],
        )

    def _times(self) -> Iterator[Row]:
        for key, count in sorted(self._counts.items(), key=lambda row: row[0]):
            labels, below = labelled(**_labels(key)), 0
            for bound, number in zip((*map(str, BOUNDS), "+Inf"), count.buckets, strict=True):
                below += number
                yield Row(below, f'{labels},le="{bound}"', suffix="_bucket")
            yield Row(count.seconds, labels, suffix="_sum")
            yield Row(below, labels, suffix="_count")


def _labels(key: _Key) -> dict[str, str]:
    return {"container": key.container, "namespace": key.namespace, "pod": key.pod, "probe_type": key.kind}
