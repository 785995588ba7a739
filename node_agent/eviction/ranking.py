"""Which pod is evicted, with which message; disk limits of pods. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from api.core.pod import Container, Pod
from api.core.resources import sidecars
from api.meta import quantity
from node_agent.eviction.thresholds import SIGNALS, SignalObservation, Threshold

GRACE_SECONDS = 1
CRITICAL_PRIORITY = 2_000_000_000


@dataclass(frozen=True, slots=True)
class PodUsage:
    """What a pod takes: bytes of memory (working set) and disk, inodes, processes.

    `memory_of` and `disk_of` are by container, `volumes` by name of emptyDirs on disk.
    """

    pod: Pod
    processes: int = 0
    inodes: int = 0
    memory_of: Mapping[str, int] = field(default_factory=dict)
    disk_of: Mapping[str, int] = field(default_factory=dict)
    volumes: Mapping[str, int] = field(default_factory=dict)

    @property
    def memory(self) -> int:
        """Of all its containers."""
        return sum(self.memory_of.values())

    @property
    def disk(self) -> int:
        """Writable layers, logs and emptyDirs."""
        return sum(self.disk_of.values()) + sum(self.volumes.values())


@dataclass(frozen=True, slots=True)
class Eviction:
    """A pod that has to go, what its status says, and in how many seconds at most it has to have ended."""

    uid: str
    message: str
    grace: int = GRACE_SECONDS


def select_pod(
    low: tuple[Threshold, ...], seen: Mapping[str, SignalObservation], pods: Iterable[PodUsage], most_grace: int = 0
) -> Eviction | None:
    """The pod that goes in this round for the first of these thresholds; None when nobody may be sent away.

    For a soft threshold it has its own grace period, up to `most_grace` seconds.
    """
    if not low:
        return None
    resource = SIGNALS[low[0].signal][0]
    ranked = sorted((one for one in pods if not has_critical_priority(one.pod)), key=lambda one: _rank(resource, one))
    if not ranked:
        return None
    pod = ranked[0].pod
    grace = GRACE_SECONDS if low[0].grace is None else min(pod.spec.termination_grace_period_seconds or 0, most_grace)
    return Eviction(pod.metadata.uid, _message(low[0], seen[low[0].signal], ranked[0]), grace)


def has_critical_priority(pod: Pod) -> bool:
    """Whether the cluster would suffer more from the loss of the pod than from the pressure."""
    return (pod.spec.priority or 0) >= CRITICAL_PRIORITY


def _rank(resource: str, one: PodUsage) -> tuple[float, ...]:
    """Who takes more than requested goes first, then who matters least, then who is farthest above the request."""
    priority = one.pod.spec.priority or 0
    if resource == "pids":
        return (priority, -one.processes)
    taken = {"memory": one.memory, "ephemeral-storage": one.disk, "inodes": one.inodes}[resource]
    asked = sum(_request(container, resource) for container in long_running_containers(one.pod))
    return (taken <= asked, priority, asked - taken)


def long_running_containers(pod: Pod) -> tuple[Container, ...]:
    """The containers that run as long as the pod does."""
    return (*sidecars(pod), *pod.spec.containers)


def _request(container: Container, resource: str) -> int:
    """A limit without a request is a request."""
    wishes = {**container.resources.limits, **container.resources.requests}
    return quantity.to_int(wishes.get(resource, 0))


def _message(limit: Threshold, seen: SignalObservation, one: PodUsage) -> str:
    resource = SIGNALS[limit.signal][0]
    of_bytes = resource in {"memory", "ephemeral-storage"}
    shown = _binary if of_bytes else str
    words = (
        f"The node was low on resource: {resource}. "
        f"Threshold quantity: {shown(limit.of(seen.capacity))}, available: {shown(seen.available)}. "
    )
    usage = one.memory_of if resource == "memory" else one.disk_of if of_bytes else {}
    for container in long_running_containers(one.pod):
        taken, asked = usage.get(container.name, 0), _request(container, resource)
        if taken > asked:
            words += (
                f"Container {container.name} was using {_binary(taken)}, request is {_binary(asked)}, "
                f"has larger consumption of {resource}. "
            )
    return words


def _binary(amount: int) -> str:
    """As Kubernetes writes bytes: with the largest unit that leaves a whole number."""
    for power, unit in reversed(tuple(enumerate(("Ki", "Mi", "Gi", "Ti"), 1))):
        if amount and amount % 1024**power == 0:
            return f"{amount // 1024**power}{unit}"
    return str(amount)


def local_storage_evictions(pods: Iterable[PodUsage]) -> tuple[Eviction, ...]:
    """Every pod that takes more disk than it said it would at most: all of them go, critical or not."""
    found = ((one, next(_excesses(one), "")) for one in pods)
    return tuple(Eviction(one.pod.metadata.uid, words) for one, words in found if words)


def has_disk_limits(pod: Pod) -> bool:
    """Whether its use of disk has to be measured at all."""
    limited = any("ephemeral-storage" in container.resources.limits for container in long_running_containers(pod))
    return limited or bool(_sized_volumes(pod))


def _sized_volumes(pod: Pod) -> dict[str, str | int]:
    sized = {}
    for volume in pod.spec.volumes:
        source = volume.empty_dir
        if source is not None and source.size_limit is not None and source.medium != "Memory":
            sized[volume.name] = source.size_limit
    return sized


def _excesses(one: PodUsage) -> Iterator[str]:
    for name, most in _sized_volumes(one.pod).items():
        if one.volumes.get(name, 0) > quantity.to_int(most):
            yield f'Usage of EmptyDir volume "{name}" exceeds the limit "{most}". '
    limits = {
        container.name: container.resources.limits["ephemeral-storage"]
        for container in long_running_containers(one.pod)
        if "ephemeral-storage" in container.resources.limits
    }
    total = sum(quantity.to_int(limit) for limit in limits.values())
    if limits and one.disk > total:
        yield f"Pod ephemeral local storage usage exceeds the total limit of containers {_binary(total)}. "
    for name, limit in limits.items():
        if one.disk_of.get(name, 0) > quantity.to_int(limit):
            yield f'Container {name} exceeded its local ephemeral storage limit "{limit}". '
