"""/metrics/cadvisor. Pure.

Names, types and labels are cAdvisor's. There are samples for the machine (`/`), for all pods together, and for each
pod, its sandbox and its containers. The network of a pod is that of its sandbox.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

from node_agent.stats.cgroup_stats import SUMMED_FIELDS, CgroupUsage
from node_agent.stats.machine import NetworkInterface
from node_agent.stats.metrics import NANOSECONDS
from node_agent.stats.model import ContainerStats, NodeStats, PodStats
from reconcile.exposition import COUNTER, GAUGE, MetricFamily, Sample, format_labels

Value = Callable[[CgroupUsage], float | None]

CGROUP_METRICS: tuple[tuple[str, str, str, Value], ...] = (
    (
        "container_cpu_user_seconds_total",
        COUNTER,
        "Cumulative user cpu time in seconds.",
        lambda usage: usage.user / NANOSECONDS,
    ),
    (
        "container_cpu_system_seconds_total",
        COUNTER,
        "Cumulative system cpu time in seconds.",
        lambda usage: usage.system / NANOSECONDS,
    ),
    (
        "container_cpu_cfs_periods_total",
        COUNTER,
        "Elapsed enforcement periods.",
        lambda usage: _if_limited(usage, usage.periods),
    ),
    (
        "container_cpu_cfs_throttled_periods_total",
        COUNTER,
        "Throttled periods.",
        lambda usage: _if_limited(usage, usage.throttled_periods),
    ),
    (
        "container_cpu_cfs_throttled_seconds_total",
        COUNTER,
        "Time the container has been throttled, in seconds.",
        lambda usage: _if_limited(usage, usage.throttled_time / NANOSECONDS),
    ),
    ("container_memory_usage_bytes", GAUGE, "Current memory usage in bytes.", lambda usage: usage.memory),
    ("container_memory_working_set_bytes", GAUGE, "Current working set in bytes.", lambda usage: usage.working_set),
    ("container_memory_rss", GAUGE, "Size of RSS in bytes.", lambda usage: usage.rss),
    ("container_memory_cache", GAUGE, "Bytes of page cache memory.", lambda usage: usage.cache),
    ("container_memory_mapped_file", GAUGE, "Size of memory mapped files in bytes.", lambda usage: usage.mapped_file),
    ("container_memory_swap", GAUGE, "Swap usage in bytes.", lambda usage: usage.swap),
    ("container_memory_max_usage_bytes", GAUGE, "Maximum memory usage in bytes.", lambda usage: usage.max_memory),
    ("container_memory_failcnt", COUNTER, "Number of times memory hit its limit.", lambda usage: usage.memory_failures),
    (
        "container_memory_total_active_file_bytes",
        GAUGE,
        "Active file memory in bytes.",
        lambda usage: usage.active_file,
    ),
    (
        "container_memory_total_inactive_file_bytes",
        GAUGE,
        "Inactive file memory in bytes.",
        lambda usage: usage.inactive_file,
    ),
    ("container_threads", GAUGE, "Number of threads running inside the container.", lambda usage: usage.tasks),
    (
        "container_threads_max",
        GAUGE,
        "Maximum number of threads allowed inside the container, infinity if 0.",
        lambda usage: usage.tasks_limit,
    ),
    ("container_spec_cpu_period", GAUGE, "CPU period of the container.", lambda usage: usage.period or None),
    ("container_spec_cpu_quota", GAUGE, "CPU quota of the container.", lambda usage: usage.quota or None),
    ("container_spec_cpu_shares", GAUGE, "CPU share of the container.", lambda usage: usage.shares or None),
    ("container_spec_memory_limit_bytes", GAUGE, "Memory limit for the container.", lambda usage: usage.memory_limit),
)
INTERFACE_METRICS: tuple[tuple[str, str, Callable[[NetworkInterface], int]], ...] = (
    ("receive_bytes", "bytes received", lambda interface: interface.rx_bytes),
    ("receive_packets", "packets received", lambda interface: interface.rx_packets),
    ("receive_errors", "errors encountered while receiving", lambda interface: interface.rx_errors),
    ("receive_packets_dropped", "packets dropped while receiving", lambda interface: interface.rx_dropped),
    ("transmit_bytes", "bytes transmitted", lambda interface: interface.tx_bytes),
    ("transmit_packets", "packets transmitted", lambda interface: interface.tx_packets),
    ("transmit_errors", "errors encountered while transmitting", lambda interface: interface.tx_errors),
    ("transmit_packets_dropped", "packets dropped while transmitting", lambda interface: interface.tx_dropped),
)


class _CgroupSample(NamedTuple):
    """A cgroup with its labels and its usage."""

    labels: dict[str, str]
    usage: CgroupUsage
    at: float
    started_at: float = 0.0
    oom_killed: bool = False


def cadvisor_families(stats: NodeStats, cpus: int, machine_labels: dict[str, str]) -> Iterator[MetricFamily]:
    """Yield the metrics of /metrics/cadvisor. `machine_labels` identify the machine."""
    cgroups = tuple(_cgroups(stats))
    labelled = [(format_labels(**cgroup.labels), cgroup) for cgroup in cgroups]
    yield MetricFamily(
        "container_cpu_usage_seconds_total",
        COUNTER,
        "Cumulative cpu time consumed in seconds.",
        [
            Sample(cgroup.usage.cpu / NANOSECONDS, format_labels(cpu="total", **cgroup.labels), cgroup.at)
            for cgroup in cgroups
        ],
    )
    for name, metric_type, description, value in CGROUP_METRICS:
        values = [(labels, cgroup, value(cgroup.usage)) for labels, cgroup in labelled]
        samples = [Sample(number, labels, cgroup.at) for labels, cgroup, number in values if number is not None]
        yield MetricFamily(name, metric_type, description, samples)
    yield MetricFamily(
        "container_memory_failures_total",
        COUNTER,
        "Cumulative count of memory allocation failures.",
        [
            Sample(number, format_labels(failure_type=failure, scope="hierarchy", **cgroup.labels), cgroup.at)
            for cgroup in cgroups
            for failure, number in (("pgfault", cgroup.usage.page_faults), ("pgmajfault", cgroup.usage.major_faults))
        ],
    )
    yield MetricFamily(
        "container_oom_events_total",
        COUNTER,
        "Count of out of memory events observed for the container",
        [Sample(int(cgroup.oom_killed), labels, cgroup.at) for labels, cgroup in labelled],
    )
    yield MetricFamily(
        "container_start_time_seconds",
        GAUGE,
        "Start time of the container since unix epoch in seconds.",
        [Sample(cgroup.started_at, labels) for labels, cgroup in labelled if cgroup.started_at],
    )
    yield MetricFamily(
        "container_last_seen",
        GAUGE,
        "Last time a container was seen by the exporter",
        [Sample(int(cgroup.at), labels, cgroup.at) for labels, cgroup in labelled],
    )
    yield from _interface_families(stats)
    yield from _filesystem_families(stats)
    yield from _machine_families(stats, cpus, format_labels(**machine_labels))


def _if_limited(usage: CgroupUsage, number: float) -> float | None:
    """Return a number for a cgroup with a CPU limit, None for others."""
    return number if usage.quota else None


def _labels(cgroup: str, pod: PodStats | None = None, container: ContainerStats | None = None) -> dict[str, str]:
    labels = dict.fromkeys(("container", "image", "name", "namespace", "pod"), "")
    labels["id"] = cgroup
    if pod is not None:
        labels |= {"namespace": pod.pod.metadata.namespace, "pod": pod.pod.metadata.name}
    if container is not None:
        name = "POD" if container.container.is_sandbox else container.container.name
        labels |= {"container": name, "image": container.container.image, "name": container.container.id}
    return labels


def _cgroups(stats: NodeStats) -> Iterator[_CgroupSample]:
    yield _CgroupSample(_labels("/"), _machine_usage(stats), stats.at, stats.machine.boot_time)
    if stats.all_pods is not None:
        path, usage = stats.all_pods
        yield _CgroupSample(_labels(path), usage, stats.at)
    for pod in stats.pods:
        if pod.cgroup:
            yield _CgroupSample(_labels(pod.cgroup, pod), pod.usage, pod.at)
        containers = pod.containers if pod.sandbox is None else (pod.sandbox, *pod.containers)
        for container in containers:
            started_at = container.container.started_at
            yield _CgroupSample(
                _labels(container.cgroup, pod, container),
                container.usage,
                container.at,
                started_at.timestamp() if started_at is not None else 0.0,
                container.container.oom_killed,
            )


def _machine_usage(stats: NodeStats) -> CgroupUsage:
    """Return the usage of the machine in the form of the root cgroup."""
    machine = stats.machine
    shared = {name: getattr(machine, name) for name in SUMMED_FIELDS}
    return CgroupUsage(**shared, tasks_limit=machine.tasks_limit, memory_limit=machine.total_memory)


def _interface_families(stats: NodeStats) -> Iterator[MetricFamily]:
    pods = [
        (_labels(pod.sandbox.cgroup, pod, pod.sandbox), pod.interfaces, pod.at)
        for pod in stats.pods
        if pod.interfaces is not None and pod.sandbox is not None
    ]
    labelled = [
        (format_labels(interface=interface.name, **labels), interface, at)
        for labels, interfaces, at in [(_labels("/"), stats.machine.interfaces, stats.at), *pods]
        for interface in interfaces
    ]
    for name, description, value in INTERFACE_METRICS:
        samples = [Sample(value(interface), labels, at) for labels, interface, at in labelled]
        yield MetricFamily(f"container_network_{name}_total", COUNTER, f"Cumulative count of {description}", samples)


def _filesystem_families(stats: NodeStats) -> Iterator[MetricFamily]:
    usages = []
    limits = []
    if stats.node_fs is not None:
        labels = format_labels(device="", **_labels("/"))
        usages.append(Sample(stats.node_fs.used, labels, stats.at))
        limits.append(Sample(stats.node_fs.capacity, labels, stats.at))
    for pod in stats.pods:
        for container in pod.containers:
            if pod.disk is not None and container.container.id in pod.disk.rootfs:
                labels = format_labels(device="", **_labels(container.cgroup, pod, container))
                usages.append(Sample(pod.disk.rootfs[container.container.id].size, labels, pod.disk.at))
    yield MetricFamily(
        "container_fs_usage_bytes", GAUGE, "Number of bytes that are consumed on this filesystem.", usages
    )
    yield MetricFamily("container_fs_limit_bytes", GAUGE, "Number of bytes that can be consumed.", limits)


def _machine_families(stats: NodeStats, cpus: int, labels: str) -> Iterator[MetricFamily]:
    yield MetricFamily("machine_cpu_cores", GAUGE, "Number of logical CPU cores.", [Sample(cpus, labels)])
    yield MetricFamily(
        "machine_memory_bytes",
        GAUGE,
        "Amount of memory installed on the machine.",
        [Sample(stats.machine.total_memory, labels)],
    )
    yield MetricFamily(
        "machine_swap_bytes",
        GAUGE,
        "Amount of swap memory available on the machine.",
        [Sample(stats.machine.total_swap, labels)],
    )
    for name in ("container_scrape_error", "machine_scrape_error"):
        yield MetricFamily(name, GAUGE, "1 if there was an error while getting metrics, 0 otherwise", [Sample(0)])
