"""/metrics/cadvisor. Pure.

Names, types and labels are cAdvisor's. Rows are those of the machine (`/`), of all pods, of each pod, of its sandbox
and of its containers; the network of a pod is that of its sandbox.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

from node_agent.stats.cgroup_stats import CgroupUsage
from node_agent.stats.machine import NetworkInterface
from node_agent.stats.metrics import COUNTER, GAUGE, NANO, MetricFamily, Sample, format_labels
from node_agent.stats.model import ContainerStats, NodeStats, PodStats


class _Group(NamedTuple):
    """A control group of which rows tell."""

    labels: dict[str, str]
    use: CgroupUsage
    at: float
    started: float = 0.0
    oom_killed: bool = False


Value = Callable[[CgroupUsage], float | None]

USES: tuple[tuple[str, str, str, Value], ...] = (
    ("container_cpu_user_seconds_total", COUNTER, "Cumulative user cpu time in seconds.", lambda use: use.user / NANO),
    (
        "container_cpu_system_seconds_total",
        COUNTER,
        "Cumulative system cpu time in seconds.",
        lambda use: use.system / NANO,
    ),
    ("container_cpu_cfs_periods_total", COUNTER, "Elapsed enforcement periods.", lambda use: _held(use, use.periods)),
    (
        "container_cpu_cfs_throttled_periods_total",
        COUNTER,
        "Throttled periods.",
        lambda use: _held(use, use.throttled_periods),
    ),
    (
        "container_cpu_cfs_throttled_seconds_total",
        COUNTER,
        "Time the container has been throttled, in seconds.",
        lambda use: _held(use, use.throttled / NANO),
    ),
    ("container_memory_usage_bytes", GAUGE, "Current memory usage in bytes.", lambda use: use.memory),
    ("container_memory_working_set_bytes", GAUGE, "Current working set in bytes.", lambda use: use.working_set),
    ("container_memory_rss", GAUGE, "Size of RSS in bytes.", lambda use: use.rss),
    ("container_memory_cache", GAUGE, "Bytes of page cache memory.", lambda use: use.cache),
    ("container_memory_mapped_file", GAUGE, "Size of memory mapped files in bytes.", lambda use: use.mapped),
    ("container_memory_swap", GAUGE, "Swap usage in bytes.", lambda use: use.swap),
    ("container_memory_max_usage_bytes", GAUGE, "Maximum memory usage in bytes.", lambda use: use.most_memory),
    ("container_memory_failcnt", COUNTER, "Number of times memory hit its limit.", lambda use: use.failures),
    (
        "container_memory_total_active_file_bytes",
        GAUGE,
        "Active file memory in bytes.",
        lambda use: use.active_file,
    ),
    (
        "container_memory_total_inactive_file_bytes",
        GAUGE,
        "Inactive file memory in bytes.",
        lambda use: use.inactive_file,
    ),
    ("container_threads", GAUGE, "Number of threads running inside the container.", lambda use: use.tasks),
    (
        "container_threads_max",
        GAUGE,
        "Maximum number of threads allowed inside the container, infinity if 0.",
        lambda use: use.tasks_limit,
    ),
    ("container_spec_cpu_period", GAUGE, "CPU period of the container.", lambda use: use.period or None),
    ("container_spec_cpu_quota", GAUGE, "CPU quota of the container.", lambda use: use.quota or None),
    ("container_spec_cpu_shares", GAUGE, "CPU share of the container.", lambda use: use.shares or None),
    ("container_spec_memory_limit_bytes", GAUGE, "Memory limit for the container.", lambda use: use.memory_limit),
)
LINKS: tuple[tuple[str, str, Callable[[NetworkInterface], int]], ...] = (
    ("receive_bytes", "bytes received", lambda link: link.rx_bytes),
    ("receive_packets", "packets received", lambda link: link.rx_packets),
    ("receive_errors", "errors encountered while receiving", lambda link: link.rx_errors),
    ("receive_packets_dropped", "packets dropped while receiving", lambda link: link.rx_dropped),
    ("transmit_bytes", "bytes transmitted", lambda link: link.tx_bytes),
    ("transmit_packets", "packets transmitted", lambda link: link.tx_packets),
    ("transmit_errors", "errors encountered while transmitting", lambda link: link.tx_errors),
    ("transmit_packets_dropped", "packets dropped while transmitting", lambda link: link.tx_dropped),
)


def cadvisor_families(figures: NodeStats, cpus: int, machine_labels: dict[str, str]) -> Iterator[MetricFamily]:
    """Every family of the page; `machine_labels` tell which machine it is."""
    groups = tuple(_groups(figures))
    labels = [format_labels(**one.labels) for one in groups]
    total = [format_labels(cpu="total", **one.labels) for one in groups]
    rows = list(zip(labels, groups, strict=True))
    yield MetricFamily(
        "container_cpu_usage_seconds_total",
        COUNTER,
        "Cumulative cpu time consumed in seconds.",
        [Sample(one.use.cpu / NANO, text, one.at) for text, one in zip(total, groups, strict=True)],
    )
    for name, kind, words, value in USES:
        found = ((text, one, value(one.use)) for text, one in rows)
        yield MetricFamily(
            name, kind, words, [Sample(seen, text, one.at) for text, one, seen in found if seen is not None]
        )
    yield MetricFamily(
        "container_memory_failures_total",
        COUNTER,
        "Cumulative count of memory allocation failures.",
        [
            Sample(number, format_labels(failure_type=failure, scope="hierarchy", **one.labels), one.at)
            for one in groups
            for failure, number in (("pgfault", one.use.page_faults), ("pgmajfault", one.use.major_faults))
        ],
    )
    yield MetricFamily(
        "container_oom_events_total",
        COUNTER,
        "Count of out of memory events observed for the container",
        [Sample(int(one.oom_killed), text, one.at) for text, one in rows],
    )
    yield MetricFamily(
        "container_start_time_seconds",
        GAUGE,
        "Start time of the container since unix epoch in seconds.",
        [Sample(one.started, text) for text, one in rows if one.started],
    )
    yield MetricFamily(
        "container_last_seen",
        GAUGE,
        "Last time a container was seen by the exporter",
        [Sample(int(one.at), text, one.at) for text, one in rows],
    )
    yield from _networks(figures)
    yield from _disks(figures)
    yield from _machine(figures, cpus, format_labels(**machine_labels))


def _held(use: CgroupUsage, number: float) -> float | None:
    """Of a container that has a limit of CPU."""
    return number if use.quota else None


def _labels(group: str, pod: PodStats | None = None, one: ContainerStats | None = None) -> dict[str, str]:
    labels = dict.fromkeys(("container", "image", "name", "namespace", "pod"), "")
    labels["id"] = group
    if pod is not None:
        labels |= {"namespace": pod.pod.metadata.namespace, "pod": pod.pod.metadata.name}
    if one is not None:
        name = "POD" if one.container.is_sandbox else one.container.name
        labels |= {"container": name, "image": one.container.image, "name": one.container.id}
    return labels


def _groups(figures: NodeStats) -> Iterator[_Group]:
    yield _Group(_labels("/"), _whole(figures), figures.at, figures.machine.booted)
    if figures.everyone is not None:
        yield _Group(_labels(figures.everyone[0]), figures.everyone[1], figures.at)
    for pod in figures.pods:
        if pod.group:
            yield _Group(_labels(pod.group, pod), pod.use, pod.at)
        for one in (*((pod.sandbox,) if pod.sandbox else ()), *pod.containers):
            started = one.container.started_at
            yield _Group(
                _labels(one.group, pod, one),
                one.use,
                one.at,
                started.timestamp() if started is not None else 0.0,
                one.container.oom_killed,
            )


def _whole(figures: NodeStats) -> CgroupUsage:
    """The machine as if it were a group."""
    machine = figures.machine
    same = ("cpu", "user", "system", "memory", "working_set", "rss", "cache", "mapped", "active_file", "inactive_file")
    more = ("swap", "page_faults", "major_faults", "tasks", "tasks_limit")
    return CgroupUsage(**{name: getattr(machine, name) for name in (*same, *more)}, memory_limit=machine.total)


def _networks(figures: NodeStats) -> Iterator[MetricFamily]:
    of_pods = [
        (_labels(pod.sandbox.group, pod, pod.sandbox), pod.links, pod.at)
        for pod in figures.pods
        if pod.links is not None and pod.sandbox is not None
    ]
    carried = [(_labels("/"), figures.machine.links, figures.at), *of_pods]
    labels = [(format_labels(interface=link.name, **names), link, at) for names, links, at in carried for link in links]
    for name, words, number in LINKS:
        rows = [Sample(number(link), text, at) for text, link, at in labels]
        yield MetricFamily(f"container_network_{name}_total", COUNTER, f"Cumulative count of {words}", rows)


def _disks(figures: NodeStats) -> Iterator[MetricFamily]:
    used, limits, at = [], [], figures.at
    if figures.node_disk is not None:
        disk, labels = figures.node_disk, format_labels(device="", **_labels("/"))
        used.append(Sample(disk.used, labels, at))
        limits.append(Sample(disk.capacity, labels, at))
    for pod in figures.pods:
        for one in pod.containers:
            if pod.disk is not None and one.container.id in pod.disk.written:
                labels = format_labels(device="", **_labels(one.group, pod, one))
                used.append(Sample(pod.disk.written[one.container.id].size, labels, pod.disk.at))
    yield MetricFamily("container_fs_usage_bytes", GAUGE, "Number of bytes that are consumed on this filesystem.", used)
    yield MetricFamily("container_fs_limit_bytes", GAUGE, "Number of bytes that can be consumed.", limits)


def _machine(figures: NodeStats, cpus: int, labels: str) -> Iterator[MetricFamily]:
    machine = figures.machine
    yield MetricFamily("machine_cpu_cores", GAUGE, "Number of logical CPU cores.", [Sample(cpus, labels)])
    yield MetricFamily(
        "machine_memory_bytes", GAUGE, "Amount of memory installed on the machine.", [Sample(machine.total, labels)]
    )
    yield MetricFamily(
        "machine_swap_bytes",
        GAUGE,
        "Amount of swap memory available on the machine.",
        [Sample(machine.total_swap, labels)],
    )
    for name in ("container_scrape_error", "machine_scrape_error"):
        yield MetricFamily(name, GAUGE, "1 if there was an error while getting metrics, 0 otherwise", [Sample(0)])
