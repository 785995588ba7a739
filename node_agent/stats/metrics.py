"""/metrics, /metrics/resource and /metrics/probes in the Prometheus text format. Pure.

The client library has no counters whose names do not end in `_total`, of which a kubelet has many, and takes ten times
as long for the thousands of rows that a node has.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from node_agent.runtime.container import POD_NAME, POD_NAMESPACE, RuntimeContainer
from node_agent.stats.cgroup_stats import CgroupUsage
from node_agent.stats.machine import MachineStats
from node_agent.stats.model import FilesystemStats, NodeStats, PodWithContainers

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
COUNTER, GAUGE, HISTOGRAM = "counter", "gauge", "histogram"
_ESCAPED = str.maketrans({"\\": "\\\\", "\n": "\\n", '"': '\\"'})


class Sample(NamedTuple):
    """A value; `labels` as `labelled` writes them, `at` in seconds since 1970, 0 for the time of asking.

    `suffix` is what the name of a row has beyond that of its family.
    """

    value: float
    labels: str = ""
    at: float = 0.0
    suffix: str = ""


class MetricFamily(NamedTuple):
    """Rows of one name; `kind` is counter, gauge or histogram."""

    name: str
    kind: str
    help: str
    rows: Iterable[Sample]


def format_labels(**labels: str) -> str:
    """Labels in the order of their names."""
    return ",".join(f'{name}="{text.translate(_ESCAPED)}"' for name, text in sorted(labels.items()))


def format_families(families: Iterable[MetricFamily]) -> str:
    """The text; a family without rows is left out."""
    return "".join(line for family in families for line in _lines(family))


def _lines(family: MetricFamily) -> Iterator[str]:
    head = f"# HELP {family.name} {family.help}\n# TYPE {family.name} {family.kind}\n"
    for row in family.rows:
        labels = f"{{{row.labels}}}" if row.labels else ""
        moment = f" {int(row.at * 1000)}" if row.at else ""
        yield f"{head}{family.name}{row.suffix}{labels} {row.value!r}{moment}\n"
        head = ""


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


class ProbeMetrics:
    """Of every probe of every container: how often it was asked, what it said, how long it took."""

    def __init__(self) -> None:
        self._counts: dict[_Key, _Count] = {}

    def count(self, one: RuntimeContainer, kind: str, success: bool | None, seconds: float) -> None:
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

    def families(self) -> Iterator[MetricFamily]:
        """Every family of the page, but for the start of the process."""
        yield MetricFamily(
            "prober_probe_duration_seconds", HISTOGRAM, "Duration in seconds for a probe response.", self._times()
        )
        yield MetricFamily(
            "prober_probe_total",
            COUNTER,
            "Cumulative number of a liveness, readiness or startup probe for a container by result.",
            [
                Sample(number, format_labels(**_labels(key), pod_uid=key.uid, result=result))
                for key, count in sorted(self._counts.items())
                for result, number in sorted(count.results.items())
            ],
        )

    def _times(self) -> Iterator[Sample]:
        for key, count in sorted(self._counts.items(), key=lambda row: row[0]):
            labels, below = format_labels(**_labels(key)), 0
            for bound, number in zip((*map(str, BOUNDS), "+Inf"), count.buckets, strict=True):
                below += number
                yield Sample(below, f'{labels},le="{bound}"', suffix="_bucket")
            yield Sample(count.seconds, labels, suffix="_sum")
            yield Sample(below, labels, suffix="_count")


def _labels(key: _Key) -> dict[str, str]:
    return {"container": key.container, "namespace": key.namespace, "pod": key.pod, "probe_type": key.kind}


NANO = 1e9
CPU, MEMORY, SWAP = "cpu_usage_seconds_total", "memory_working_set_bytes", "swap_usage_bytes"
USES: tuple[tuple[str, str, str, Callable[[CgroupUsage | MachineStats], float]], ...] = (
    (CPU, COUNTER, "Cumulative cpu time consumed by the {} in core-seconds", lambda use: use.cpu / NANO),
    (MEMORY, GAUGE, "Current working set of the {} in bytes", lambda use: use.working_set),
    (SWAP, GAUGE, "Current swap usage of the {} in bytes", lambda use: use.swap),
)


def resource_families(figures: NodeStats) -> Iterator[MetricFamily]:
    """Every family of the page."""
    pods = [
        (format_labels(namespace=one.pod.metadata.namespace, pod=one.pod.metadata.name), one) for one in figures.pods
    ]
    own = [
        (
            format_labels(
                container=row.container.name, namespace=one.pod.metadata.namespace, pod=one.pod.metadata.name
            ),
            row,
        )
        for one in figures.pods
        for row in one.containers
    ]
    for name, kind, words, value in USES:
        rows = [Sample(value(row.use), labels, row.at) for labels, row in own]
        yield MetricFamily(f"container_{name}", kind, words.format("container"), rows)
        rows = [Sample(value(figures.machine), at=figures.at)]
        yield MetricFamily(f"node_{name}", kind, words.format("node"), rows)
        rows = [Sample(value(one.use), labels, one.at) for labels, one in pods]
        yield MetricFamily(f"pod_{name}", kind, words.format("pod"), rows)
    yield MetricFamily(
        "container_start_time_seconds",
        GAUGE,
        "Start time of the container since unix epoch in seconds",
        [Sample(row.container.started_at.timestamp(), labels) for labels, row in own if row.container.started_at],
    )
    for name in ("resource_scrape_error", "scrape_error"):
        yield MetricFamily(
            name, GAUGE, "1 if there was an error while getting container metrics, 0 otherwise", [Sample(0)]
        )


STATES = ("created", "exited", "running")
VOLUMES: tuple[tuple[str, str, Callable[[FilesystemStats], int]], ...] = (
    ("available_bytes", "Number of available bytes in the volume", lambda one: one.available),
    ("capacity_bytes", "Capacity in bytes of the volume", lambda one: one.capacity),
    ("used_bytes", "Number of used bytes in the volume", lambda one: one.used),
    ("inodes", "Maximum number of inodes in the volume", lambda one: one.inodes),
    ("inodes_free", "Number of free inodes in the volume", lambda one: one.inodes_free),
    ("inodes_used", "Number of used inodes in the volume", lambda one: one.inodes - one.inodes_free),
)


def kubelet_families(
    node: str, pods: Sequence[PodWithContainers], claims: Mapping[tuple[str, str], FilesystemStats]
) -> Iterator[MetricFamily]:
    """Every family; `claims` are the file systems of claims by the pod's uid and the name of its volume."""
    everything = [one for pod in pods for one in pod.containers.all]
    running = sum(1 for pod in pods if any(one.running for one in pod.containers.sandboxes))
    states = Counter(map(_state, (one for one in everything if not one.is_sandbox)))
    yield MetricFamily(
        "kubelet_node_name", GAUGE, "The node's name. The count is always 1.", [Sample(1, format_labels(node=node))]
    )
    yield MetricFamily(
        "kubelet_running_pods", GAUGE, "Number of pods that have a running pod sandbox", [Sample(running)]
    )
    yield MetricFamily(
        "kubelet_running_containers",
        GAUGE,
        "Number of containers by their state",
        [Sample(states[state], format_labels(container_state=state)) for state in STATES],
    )
    volumes = dict(_volumes(pods, claims))
    for name, words, number in VOLUMES:
        rows: Iterable[Sample] = [Sample(number(space), labels) for labels, space in sorted(volumes.items())]
        yield MetricFamily(f"kubelet_volume_stats_{name}", GAUGE, words, rows)


def _state(one: RuntimeContainer) -> str:
    return "running" if one.running else "created" if one.never_started else "exited"


def _volumes(
    pods: Iterable[PodWithContainers], claims: Mapping[tuple[str, str], FilesystemStats]
) -> Iterator[tuple[str, FilesystemStats]]:
    for known in pods:
        meta = known.pod.metadata
        for volume in known.pod.spec.volumes:
            space, claim = claims.get((meta.uid, volume.name)), volume.persistent_volume_claim
            if space is not None and claim is not None:
                yield format_labels(namespace=meta.namespace, persistentvolumeclaim=claim.claim_name), space
