"""NodeMetrics and PodMetrics: usage of nodes and pods. Never stored: made from summaries of kubelets. Pure.

Source: k8s.io/metrics/pkg/apis/metrics/v1beta1, with the words and columns of metrics-server; a summary is a
part of k8s.io/kubelet/pkg/apis/stats/v1alpha1.
"""

from __future__ import annotations

import datetime
from collections.abc import Callable
from typing import Any

from api.core.node import Node
from api.core.pod import Pod
from api.meta.types import Object, ObjectMeta, Value
from api.validation.registry import KindRules
from master.resources.metadata import format_time
from master.resources.printing import NAME
from master.resources.resource import Column, Resource

METRICS_GROUP = "metrics.k8s.io"
METRICS_VERBS = ("get", "list")
WINDOW = "10s"
"""Over about which time a kubelet takes the use of the processor."""


class Usage(Value, frozen=True):
    """The usage of CPU and memory, as quantities."""

    cpu: str = "0"
    memory: str = "0"


class ContainerMetrics(Value, frozen=True):
    """The usage of a container."""

    name: str = ""
    usage: Usage = Usage()


class NodeMetrics(Object, frozen=True):
    """The usage of a node, at `timestamp`, over `window`."""

    API_VERSION = f"{METRICS_GROUP}/v1beta1"
    KIND = "NodeMetrics"
    PLURAL = "nodes"
    NAMESPACED = False

    timestamp: str = ""
    window: str = ""
    usage: Usage = Usage()


class PodMetrics(Object, frozen=True):
    """The usage of the containers of a pod, at `timestamp`, over `window`."""

    API_VERSION = f"{METRICS_GROUP}/v1beta1"
    KIND = "PodMetrics"
    PLURAL = "pods"
    NAMESPACED = True

    timestamp: str = ""
    window: str = ""
    containers: tuple[ContainerMetrics, ...] = ()


# --- summaries of kubelets --------------------------------------------------------------------------------------------


class CpuStats(Value, frozen=True):
    """The CPU usage in the summary of a node. `usage_nano_cores` is in billionths of a core."""

    time: str = ""
    usage_nano_cores: int | None = None


class MemoryStats(Value, frozen=True):
    """The working set: the memory that cannot be reclaimed without harm."""

    working_set_bytes: int | None = None


class ContainerStats(Value, frozen=True):
    """A container in the summary of a node."""

    name: str = ""
    cpu: CpuStats | None = None
    memory: MemoryStats | None = None


class PodReference(Value, frozen=True):
    """The identity of a pod in the summary of a node."""

    name: str = ""
    namespace: str = ""


class PodStats(Value, frozen=True):
    """A pod in the summary of a node."""

    pod_ref: PodReference = PodReference()
    containers: tuple[ContainerStats, ...] = ()


class NodeStats(Value, frozen=True):
    """The machine in the summary of a node."""

    cpu: CpuStats | None = None
    memory: MemoryStats | None = None


class Summary(Value, frozen=True):
    """The used part of the response to /stats/summary."""

    node: NodeStats = NodeStats()
    pods: tuple[PodStats, ...] = ()


# --- metrics from summaries -------------------------------------------------------------------------------------------


def node_metrics(node: Node, summary: Summary, now: datetime.datetime) -> NodeMetrics | None:
    """Return the metrics of a node; None while the kubelet has none."""
    usage = _usage(summary.node.cpu, summary.node.memory)
    if usage is None or summary.node.cpu is None:
        return None
    metadata = _metadata(node.metadata, now)
    return NodeMetrics(
        NodeMetrics.API_VERSION, NodeMetrics.KIND, metadata, summary.node.cpu.time or format_time(now), WINDOW, usage
    )


def pod_metrics(pod: Pod, stats: PodStats, now: datetime.datetime) -> PodMetrics | None:
    """Return the metrics of a pod; None while a container has none, so that a part is never taken for the whole."""
    usages = [(container.name, _usage(container.cpu, container.memory)) for container in stats.containers]
    containers = tuple(ContainerMetrics(name, usage) for name, usage in sorted(usages) if usage is not None)
    if not containers or len(containers) < len(usages):
        return None
    times = [container.cpu.time for container in stats.containers if container.cpu is not None and container.cpu.time]
    timestamp = min(times, default=format_time(now))
    metadata = _metadata(pod.metadata, now)
    return PodMetrics(PodMetrics.API_VERSION, PodMetrics.KIND, metadata, timestamp, WINDOW, containers)


def _metadata(known: ObjectMeta, now: datetime.datetime) -> ObjectMeta:
    return ObjectMeta(
        name=known.name, namespace=known.namespace, labels=known.labels, creation_timestamp=format_time(now)
    )


def _usage(cpu: CpuStats | None, memory: MemoryStats | None) -> Usage | None:
    if cpu is None or memory is None or cpu.usage_nano_cores is None or memory.working_set_bytes is None:
        return None
    return Usage(f"{cpu.usage_nano_cores}n", f"{memory.working_set_bytes // 1024}Ki")


MAX_USAGE = 1 << 62
"""The greatest usage in thousandths. A node that reports more is not believed that much."""


def milli_usage(usage: Usage, resource: str) -> int | None:
    """Return the usage of CPU or memory in thousandths; None for other resources, which are not measured."""
    if resource == "cpu":
        return min(-(-int(usage.cpu.removesuffix("n")) // 1_000_000), MAX_USAGE)
    if resource == "memory":
        return min(int(usage.memory.removesuffix("Ki")) * 1024 * 1000, MAX_USAGE)
    return None


# --- kinds ------------------------------------------------------------------------------------------------------------


def _total(metrics: PodMetrics) -> Usage:
    cpu = sum(int(container.usage.cpu.removesuffix("n")) for container in metrics.containers)
    memory = sum(int(container.usage.memory.removesuffix("Ki")) for container in metrics.containers)
    return Usage(f"{cpu}n", f"{memory}Ki")


def _metrics_columns(usage: Callable[[Any], Usage]) -> tuple[Column, ...]:
    return (
        NAME,
        Column("CPU", "CPU usage.", lambda obj, _: usage(obj).cpu),
        Column("Memory", "Memory usage.", lambda obj, _: usage(obj).memory),
        Column("Window", "Over which time the processor was watched.", lambda obj, _: obj.window),
    )


NODE_METRICS = Resource(
    type=NodeMetrics,
    singular_name="",
    columns=_metrics_columns(lambda node: node.usage),
    rules=KindRules(),
    verbs=METRICS_VERBS,
    acted_on_by="computed on request: the master asks the nodes and keeps the answer for seconds; `kubectl top nodes`",
)
POD_METRICS = Resource(
    type=PodMetrics,
    singular_name="",
    columns=_metrics_columns(_total),
    rules=KindRules(),
    verbs=METRICS_VERBS,
    acted_on_by="computed on request; `kubectl top pods`. Pods of a node that does not answer are missing",
)
