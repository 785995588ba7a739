"""The choice of the pod to evict, its message, and disk limits of pods. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from api.core.pod import Container, Pod
from api.core.resource_requests import sidecars
from api.meta import quantity
from api.validation.static_pods import has_critical_priority
from node_agent.eviction.thresholds import SIGNALS, SignalObservation, Threshold

GRACE_SECONDS = 1
"""Grace period of an evicted pod, except for soft thresholds."""


@dataclass(frozen=True, slots=True)
class PodUsage:
    """The usage of a pod: bytes of memory (working set) and disk, inodes, processes.

    `container_memory` and `container_disk` are by container name. `volumes` are the emptyDir volumes on disk by name.
    `managed_files` are bytes of the agent's files that containers may write.
    """

    pod: Pod
    processes: int = 0
    inodes: int = 0
    container_memory: Mapping[str, int] = field(default_factory=dict)
    container_disk: Mapping[str, int] = field(default_factory=dict)
    volumes: Mapping[str, int] = field(default_factory=dict)
    managed_files: int = 0

    @property
    def memory(self) -> int:
        """Memory of all containers."""
        return sum(self.container_memory.values())

    @property
    def disk(self) -> int:
        """Disk usage of writable layers, logs, emptyDir volumes and managed files."""
        return sum(self.container_disk.values()) + sum(self.volumes.values()) + self.managed_files


@dataclass(frozen=True, slots=True)
class Eviction:
    """A pod to evict, the message in its status, and its grace period in seconds."""

    uid: str
    message: str
    grace: int = GRACE_SECONDS


# --- pressure ---------------------------------------------------------------------------------------------------------


def select_pod(
    met_thresholds: tuple[Threshold, ...],
    observations: Mapping[str, SignalObservation],
    pods: Iterable[PodUsage],
    max_grace: int = 0,
) -> Eviction | None:
    """Return the pod to evict for the first of the thresholds, None if no pod may be evicted.

    For a soft threshold the grace period is the pod's own, at most `max_grace` seconds.
    """
    if not met_thresholds:
        return None
    threshold = met_thresholds[0]
    resource = SIGNALS[threshold.signal].resource
    candidates = [usage for usage in pods if not has_critical_priority(usage.pod)]
    if not candidates:
        return None
    selected = min(candidates, key=lambda usage: _rank(resource, usage))
    grace = GRACE_SECONDS
    if threshold.grace is not None:
        grace = min(selected.pod.spec.termination_grace_period_seconds or 0, max_grace)
    message = _eviction_message(threshold, observations[threshold.signal], selected)
    return Eviction(selected.pod.metadata.uid, message, grace)


def _rank(resource: str, usage: PodUsage) -> tuple[float, ...]:
    """Return the sort key of a pod; the pod with the lowest key is evicted.

    Pods above their request come first, then those of the lowest priority, then those farthest above their request.
    """
    priority = usage.pod.spec.priority or 0
    if resource == "pids":
        return (priority, -usage.processes)
    used = {"memory": usage.memory, "ephemeral-storage": usage.disk, "inodes": usage.inodes}[resource]
    requested = sum(_request(container, resource) for container in long_running_containers(usage.pod))
    return (used <= requested, priority, requested - used)


def long_running_containers(pod: Pod) -> tuple[Container, ...]:
    """Return the containers that run as long as the pod does: sidecars and regular containers."""
    return (*sidecars(pod), *pod.spec.containers)


def _request(container: Container, resource: str) -> int:
    """Return the request of a container. A limit without a request counts as a request."""
    amounts = {**container.resources.limits, **container.resources.requests}
    return quantity.to_int(amounts.get(resource, 0))


def _eviction_message(threshold: Threshold, observation: SignalObservation, usage: PodUsage) -> str:
    resource = SIGNALS[threshold.signal].resource
    format_amount: Callable[[int], str] = str
    container_usage: Mapping[str, int] = {}
    if resource == "memory":
        format_amount = _format_bytes
        container_usage = usage.container_memory
    elif resource == "ephemeral-storage":
        format_amount = _format_bytes
        container_usage = usage.container_disk
    message = (
        f"The node was low on resource: {resource}. "
        f"Threshold quantity: {format_amount(threshold.limit(observation.capacity))}, "
        f"available: {format_amount(observation.available)}. "
    )
    for container in long_running_containers(usage.pod):
        used = container_usage.get(container.name, 0)
        requested = _request(container, resource)
        if used > requested:
            message += (
                f"Container {container.name} was using {_format_bytes(used)}, request is {_format_bytes(requested)}, "
                f"has larger consumption of {resource}. "
            )
    return message


def _format_bytes(amount: int) -> str:
    """Return bytes as Kubernetes writes them: in the largest unit that leaves a whole number."""
    for power, unit in reversed(tuple(enumerate(("Ki", "Mi", "Gi", "Ti"), 1))):
        if amount and amount % 1024**power == 0:
            return f"{amount // 1024**power}{unit}"
    return str(amount)


# --- disk limits ------------------------------------------------------------------------------------------------------


def local_storage_evictions(pods: Iterable[PodUsage]) -> tuple[Eviction, ...]:
    """Return an eviction for each pod that exceeds one of its disk limits. Critical pods are evicted, too."""
    evictions = []
    for usage in pods:
        message = next(_exceeded_limits(usage), "")
        if message:
            evictions.append(Eviction(usage.pod.metadata.uid, message))
    return tuple(evictions)


def has_disk_limits(pod: Pod) -> bool:
    """Return whether a pod has disk limits, so that its usage must be measured."""
    limited = any("ephemeral-storage" in container.resources.limits for container in long_running_containers(pod))
    return limited or bool(_volume_limits(pod))


def _volume_limits(pod: Pod) -> dict[str, str | int]:
    """Return the size limits of emptyDir volumes on disk by name."""
    limits = {}
    for volume in pod.spec.volumes:
        source = volume.empty_dir
        if source is not None and source.size_limit is not None and source.medium != "Memory":
            limits[volume.name] = source.size_limit
    return limits


def _exceeded_limits(usage: PodUsage) -> Iterator[str]:
    """Yield a message for each limit that a pod exceeds: of its volumes, of the pod, of its containers."""
    for name, limit in _volume_limits(usage.pod).items():
        if usage.volumes.get(name, 0) > quantity.to_int(limit):
            yield f'Usage of EmptyDir volume "{name}" exceeds the limit "{limit}". '
    container_limits = {
        container.name: container.resources.limits["ephemeral-storage"]
        for container in long_running_containers(usage.pod)
        if "ephemeral-storage" in container.resources.limits
    }
    total = sum(quantity.to_int(limit) for limit in container_limits.values())
    if container_limits and usage.disk > total:
        yield f"Pod ephemeral local storage usage exceeds the total limit of containers {_format_bytes(total)}. "
    for name, container_limit in container_limits.items():
        if usage.container_disk.get(name, 0) > quantity.to_int(container_limit):
            yield f'Container {name} exceeded its local ephemeral storage limit "{container_limit}". '
