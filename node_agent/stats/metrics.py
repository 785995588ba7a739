"""/metrics, /metrics/resource and /metrics/probes in the Prometheus text format. Pure.

Metrics of the agent's own work are in `node_agent/metrics.py`; `node_agent/stats/provider.py` appends the families of
this module to them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from node_agent.runtime.container import POD_NAME, POD_NAMESPACE, RuntimeContainer
from node_agent.stats.cgroup_stats import CgroupUsage
from node_agent.stats.machine import MachineStats
from node_agent.stats.model import FilesystemStats, NodeStats, PodStats, PodWithContainers
from reconcile.exposition import COUNTER, GAUGE, HISTOGRAM, Histogram, MetricFamily, Sample, format_labels

# --- /metrics/probes --------------------------------------------------------------------------------------------------

BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10)
RESULTS = {True: "successful", False: "failed", None: "unknown"}


class _ProbeKey(NamedTuple):
    """A probe of a container."""

    uid: str
    namespace: str
    pod: str
    container: str
    probe_type: str

    def labels(self) -> dict[str, str]:
        """Return the labels of the probe's samples."""
        return {
            "container": self.container,
            "namespace": self.namespace,
            "pod": self.pod,
            "probe_type": self.probe_type,
        }


@dataclass(slots=True)
class _ProbeCounts:
    """The results and durations of a probe."""

    results: dict[str, int] = field(default_factory=dict)
    seconds: Histogram = field(default_factory=lambda: Histogram(BUCKETS))


class ProbeMetrics:
    """Counts the results and measures the duration of all probes."""

    def __init__(self) -> None:
        self._counts: dict[_ProbeKey, _ProbeCounts] = {}

    def record(self, container: RuntimeContainer, probe_type: str, success: bool | None, seconds: float) -> None:
        """Record the result of a probe. `probe_type` is Startup, Liveness or Readiness."""
        key = _ProbeKey(
            uid=container.pod_uid,
            namespace=container.labels.get(POD_NAMESPACE, ""),
            pod=container.labels.get(POD_NAME, ""),
            container=container.name,
            probe_type=probe_type,
        )
        counts = self._counts.setdefault(key, _ProbeCounts())
        result = RESULTS[success]
        counts.results[result] = counts.results.get(result, 0) + 1
        counts.seconds.observe(seconds)

    def remove_pod(self, uid: str) -> None:
        """Remove the metrics of a pod."""
        for key in [key for key in self._counts if key.uid == uid]:
            del self._counts[key]

    def families(self) -> Iterator[MetricFamily]:
        """Yield the metrics of probes."""
        yield MetricFamily(
            "prober_probe_duration_seconds", HISTOGRAM, "Duration in seconds for a probe response.", self._durations()
        )
        yield MetricFamily(
            "prober_probe_total",
            COUNTER,
            "Cumulative number of a liveness, readiness or startup probe for a container by result.",
            [
                Sample(number, format_labels(**key.labels(), pod_uid=key.uid, result=result))
                for key, counts in sorted(self._counts.items())
                for result, number in sorted(counts.results.items())
            ],
        )

    def _durations(self) -> Iterator[Sample]:
        for key, counts in sorted(self._counts.items(), key=lambda entry: entry[0]):
            yield from counts.seconds.samples(format_labels(**key.labels()))


# --- /metrics/resource ------------------------------------------------------------------------------------------------

NANOSECONDS = 1e9
RESOURCE_METRICS: tuple[tuple[str, str, str, Callable[[CgroupUsage | MachineStats], float]], ...] = (
    (
        "cpu_usage_seconds_total",
        COUNTER,
        "Cumulative cpu time consumed by the {} in core-seconds",
        lambda usage: usage.cpu / NANOSECONDS,
    ),
    ("memory_working_set_bytes", GAUGE, "Current working set of the {} in bytes", lambda usage: usage.working_set),
    ("swap_usage_bytes", GAUGE, "Current swap usage of the {} in bytes", lambda usage: usage.swap),
)


def resource_families(stats: NodeStats) -> Iterator[MetricFamily]:
    """Yield the metrics of /metrics/resource."""
    pods = [(_pod_labels(pod), pod) for pod in stats.pods]
    containers = [
        (_pod_labels(pod, container=container.container.name), container)
        for pod in stats.pods
        for container in pod.containers
    ]
    for name, metric_type, description, value in RESOURCE_METRICS:
        samples = [Sample(value(container.usage), labels, container.at) for labels, container in containers]
        yield MetricFamily(f"container_{name}", metric_type, description.format("container"), samples)
        samples = [Sample(value(stats.machine), at=stats.at)]
        yield MetricFamily(f"node_{name}", metric_type, description.format("node"), samples)
        samples = [Sample(value(pod.usage), labels, pod.at) for labels, pod in pods]
        yield MetricFamily(f"pod_{name}", metric_type, description.format("pod"), samples)
    yield MetricFamily(
        "container_start_time_seconds",
        GAUGE,
        "Start time of the container since unix epoch in seconds",
        [
            Sample(container.container.started_at.timestamp(), labels)
            for labels, container in containers
            if container.container.started_at
        ],
    )
    for name in ("resource_scrape_error", "scrape_error"):
        yield MetricFamily(
            name, GAUGE, "1 if there was an error while getting container metrics, 0 otherwise", [Sample(0)]
        )


def _pod_labels(pod: PodStats, **labels: str) -> str:
    return format_labels(namespace=pod.pod.metadata.namespace, pod=pod.pod.metadata.name, **labels)


# --- /metrics ---------------------------------------------------------------------------------------------------------

CONTAINER_STATES = ("created", "exited", "running")
VOLUME_METRICS: tuple[tuple[str, str, Callable[[FilesystemStats], int]], ...] = (
    ("available_bytes", "Number of available bytes in the volume", lambda volume: volume.available),
    ("capacity_bytes", "Capacity in bytes of the volume", lambda volume: volume.capacity),
    ("used_bytes", "Number of used bytes in the volume", lambda volume: volume.used),
    ("inodes", "Maximum number of inodes in the volume", lambda volume: volume.inodes),
    ("inodes_free", "Number of free inodes in the volume", lambda volume: volume.inodes_free),
    ("inodes_used", "Number of used inodes in the volume", lambda volume: volume.inodes - volume.inodes_free),
)


def kubelet_families(
    node: str, pods: Sequence[PodWithContainers], claims: Mapping[tuple[str, str], FilesystemStats]
) -> Iterator[MetricFamily]:
    """Yield the kubelet's own metrics. `claims` are file systems by pod UID and volume name."""
    running_pods = sum(1 for pod in pods if any(sandbox.running for sandbox in pod.containers.sandboxes))
    states = Counter(
        _container_state(container) for pod in pods for container in pod.containers.all if not container.is_sandbox
    )
    yield MetricFamily(
        "kubelet_node_name", GAUGE, "The node's name. The count is always 1.", [Sample(1, format_labels(node=node))]
    )
    yield MetricFamily(
        "kubelet_running_pods", GAUGE, "Number of pods that have a running pod sandbox", [Sample(running_pods)]
    )
    yield MetricFamily(
        "kubelet_running_containers",
        GAUGE,
        "Number of containers by their state",
        [Sample(states[state], format_labels(container_state=state)) for state in CONTAINER_STATES],
    )
    volumes = dict(_claim_volumes(pods, claims))
    for name, description, value in VOLUME_METRICS:
        samples = [Sample(value(filesystem), labels) for labels, filesystem in sorted(volumes.items())]
        yield MetricFamily(f"kubelet_volume_stats_{name}", GAUGE, description, samples)


def _container_state(container: RuntimeContainer) -> str:
    if container.running:
        return "running"
    return "created" if container.never_started else "exited"


def _claim_volumes(
    pods: Iterable[PodWithContainers], claims: Mapping[tuple[str, str], FilesystemStats]
) -> Iterator[tuple[str, FilesystemStats]]:
    """Yield labels and file system of each volume with a PersistentVolumeClaim."""
    for pod_with_containers in pods:
        meta = pod_with_containers.pod.metadata
        for volume in pod_with_containers.pod.spec.volumes:
            claim = volume.persistent_volume_claim
            filesystem = claims.get((meta.uid, volume.name))
            if filesystem is not None and claim is not None:
                labels = format_labels(namespace=meta.namespace, persistentvolumeclaim=claim.claim_name)
                yield labels, filesystem
