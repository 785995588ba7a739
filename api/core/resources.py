"""Requests and limits of pods, capacity of nodes, host ports and bandwidth annotations (bits per second). Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import NamedTuple

from api.core.node import Node
from api.core.pod import Container, ContainerPort, Pod, PodSpec
from api.core.pod import Container as Wish
from api.meta import quantity

INGRESS, EGRESS = "kubernetes.io/ingress-bandwidth", "kubernetes.io/egress-bandwidth"
LEAST, MOST = 1_000, 10**15


def bandwidth_limits(annotations: Mapping[str, str]) -> tuple[int, int]:
    """What a pod may receive and send, in bits a second; 0 where nothing is said. The annotations have been checked."""
    return (quantity.to_int(annotations.get(INGRESS, "0")), quantity.to_int(annotations.get(EGRESS, "0")))


Amount = Callable[[Container], int]
COMPUTING = ("cpu", "memory")


def is_sidecar(container: Container) -> bool:
    """Whether an init container keeps running beside the others."""
    return container.restart_policy == "Always"


def requested_cpu(container: Container) -> int:
    """Thousandths of a core; a limit without a request is one."""
    resources = container.resources
    return quantity.to_milli(resources.requests.get("cpu", resources.limits.get("cpu", 0)))


def requested_memory(container: Container) -> int:
    """Bytes; a limit without a request is one."""
    resources = container.resources
    return quantity.to_int(resources.requests.get("memory", resources.limits.get("memory", 0)))


def limited_cpu(container: Container) -> int:
    """Thousandths of a core, 0 without a limit."""
    return quantity.to_milli(container.resources.limits.get("cpu", 0))


def limited_memory(container: Container) -> int:
    """Bytes, 0 without a limit."""
    return quantity.to_int(container.resources.limits.get("memory", 0))


def pod_request(spec: PodSpec, amount: Amount) -> int:
    """The pod's need of one resource, `amount` being that of a container."""
    beside = highest = 0
    for container in spec.init_containers:
        if is_sidecar(container):
            beside += amount(container)
            highest = max(highest, beside)
        else:
            highest = max(highest, beside + amount(container))
    return max(beside + sum(map(amount, spec.containers)), highest)


def pod_limit(spec: PodSpec, amount: Amount) -> int:
    """The pod's limit of one resource; 0, which is no limit, unless every container has one."""
    return pod_request(spec, amount) if all(amount(one) for one in (*spec.init_containers, *spec.containers)) else 0


def qos_class(containers: Iterable[Container]) -> str:
    """Guaranteed, Burstable or BestEffort, from all containers with defaults; only CPU and memory count."""
    wished = [(_computing(one.resources.limits), _computing(one.resources.requests)) for one in containers]
    if not any(limits or requests for limits, requests in wished):
        return "BestEffort"
    full = all(len(limits) == len(COMPUTING) and requests == limits for limits, requests in wished)
    return "Guaranteed" if full else "Burstable"


def _computing(amounts: Mapping[str, str | int | float]) -> dict[str, int]:
    """What is there of CPU (thousandths) and memory (thousandths of bytes); nothing of nothing."""
    found = {name: quantity.to_milli(amounts[name]) for name in COMPUTING if name in amounts}
    return {name: amount for name, amount in found.items() if amount > 0}


def all_containers(pod: Pod) -> tuple[Container, ...]:
    """Every container of a pod, in the order in which they start."""
    return (*pod.spec.init_containers, *pod.spec.containers, *pod.spec.ephemeral_containers)


def sidecars(pod: Pod) -> tuple[Wish, ...]:
    """The init containers that keep running."""
    return tuple(one for one in pod.spec.init_containers if is_sidecar(one))


def is_regular_init_container(pod: Pod, wish: Wish) -> bool:
    """Whether it is an init container that is no sidecar."""
    return not is_sidecar(wish) and any(one.name == wish.name for one in pod.spec.init_containers)


COMMON = ("pods", "cpu", "memory", "ephemeral-storage")
"""What every node has, whether it reports how much or not."""

UNKNOWN_IS_ENOUGH = 1 << 62
"""What a node has of something common that it does not report."""

Amounts = Mapping[str, int]


def pod_requests(pod: Pod) -> dict[str, int]:
    """What the pod asks for as a whole; nothing of which it asks nothing."""
    found = {"pods": 1, "cpu": pod_request(pod.spec, requested_cpu), "memory": pod_request(pod.spec, requested_memory)}
    for name in {name for one in _containers(pod) for name in (*one.resources.requests, *one.resources.limits)}:
        if name not in found:
            found[name] = pod_request(pod.spec, partial(_requested, name))
    return {name: amount for name, amount in found.items() if amount}


def _containers(pod: Pod) -> Iterator[Container]:
    yield from pod.spec.init_containers
    yield from pod.spec.containers


def _requested(name: str, container: Container) -> int:
    """A limit without a request is one."""
    resources = container.resources
    return quantity.to_int(resources.requests.get(name, resources.limits.get(name, 0)))


def total(pods: Iterable[Pod]) -> dict[str, int]:
    """What they ask for together."""
    amount: Counter[str] = Counter()
    for pod in pods:
        amount.update(pod_requests(pod))
    return amount


def allocatable(node: Node) -> dict[str, int]:
    """What the node has for pods."""
    reported = {**node.status.capacity, **node.status.allocatable}
    found = dict.fromkeys(COMMON, UNKNOWN_IS_ENOUGH)
    for name, text in reported.items():
        try:
            found[name] = quantity.to_milli(text) if name == "cpu" else quantity.to_int(text)
        except quantity.BadQuantity:
            continue
    return found


class Shortage(NamedTuple):
    """A resource of which a node has too little: how much is wanted, taken already, and there."""

    name: str
    wanted: int
    taken: int
    there: int


def shortages(asked: Amounts, taken: Amounts, room: Amounts) -> Iterator[Shortage]:
    """Everything of which there would be too little; what a node does not have at all is one such."""
    for name, wanted in asked.items():
        row = Shortage(name, wanted, taken.get(name, 0), room.get(name, 0))
        if row.taken + wanted > row.there:
            yield row


EVERYWHERE = ("", "0.0.0.0")


def host_ports(pod: Pod) -> tuple[ContainerPort, ...]:
    """Those of its ports that are the host's."""
    return tuple(port for container in all_containers(pod) for port in container.ports if port.host_port)


def conflicting_port(wanted: Iterable[ContainerPort], taken: Iterable[ContainerPort]) -> bool:
    """Whether one of the ports is taken: the same number and protocol at the same address, or at any address."""
    there = tuple(taken)
    return any(_same(port, other) for port in wanted for other in there)


def _same(one: ContainerPort, other: ContainerPort) -> bool:
    if (one.host_port, one.protocol or "TCP") != (other.host_port, other.protocol or "TCP"):
        return False
    return one.host_ip == other.host_ip or one.host_ip in EVERYWHERE or other.host_ip in EVERYWHERE
