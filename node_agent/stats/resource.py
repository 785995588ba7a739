"""What /metrics/resource of a kubelet tells: CPU and memory, for who watches over load. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from node_agent.stats.exposition import COUNTER, GAUGE, Family, Row, labelled
from node_agent.stats.figures import Figures
from node_agent.stats.machine import Machine
from node_agent.stats.uses import Use

NANO = 1e9
CPU, MEMORY, SWAP = "cpu_usage_seconds_total", "memory_working_set_bytes", "swap_usage_bytes"
USES: tuple[tuple[str, str, str, Callable[[Use | Machine], float]], ...] = (
    (CPU, COUNTER, "Cumulative cpu time consumed by the {} in core-seconds", lambda use: use.cpu / NANO),
    (MEMORY, GAUGE, "Current working set of the {} in bytes", lambda use: use.working_set),
    (SWAP, GAUGE, "Current swap usage of the {} in bytes", lambda use: use.swap),
)


def families(figures: Figures) -> Iterator[Family]:
    """Every family of the page."""
    pods = [(labelled(namespace=one.pod.metadata.namespace, pod=one.pod.metadata.name), one) for one in figures.pods]
    own = [
        (labelled(container=row.container.name, namespace=one.pod.metadata.namespace, pod=one.pod.metadata.name), row)
        for one in figures.pods
        for row in one.containers
    ]
    for name, kind, words, value in USES:
        rows = [Row(value(row.use), labels, row.at) for labels, row in own]
        yield Family(f"container_{name}", kind, words.format("container"), rows)
        rows = [Row(value(figures.machine), at=figures.at)]
        yield Family(f"node_{name}", kind, words.format("node"), rows)
        rows = [Row(value(one.use), labels, one.at) for labels, one in pods]
        yield Family(f"pod_{name}", kind, words.format("pod"), rows)
    yield Family(
        "container_start_time_seconds",
        GAUGE,
        "Start time of the container since unix epoch in seconds",
        [Row(row.container.started_at.timestamp(), labels) for labels, row in own if row.container.started_at],
    )
    for name in ("resource_scrape_error", "scrape_error"):
        yield Family(name, GAUGE, "1 if there was an error while getting container metrics, 0 otherwise", [Row(0)])
