"""Requests and limits of pods, capacity of nodes, host ports and bandwidth annotations (bits per second). Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import NamedTuple

from api.core.node import Node
from api.core.pod import Container, ContainerPort, Pod, PodSpec
from api.meta import quantity

INGRESS_BANDWIDTH = "kubernetes.io/ingress-bandwidth"
EGRESS_BANDWIDTH = "kubernetes.io/egress-bandwidth"
"""Annotations of a pod: limits of what it receives and sends, in bits per second."""

MIN_BANDWIDTH = 1_000
MAX_BANDWIDTH = 10**15

NODE_RESOURCES = ("pods", "cpu", "memory", "ephemeral-storage")
"""Resources that every node has, even if it does not report an amount."""

UNLIMITED = 1 << 62
"""Amount of a node resource that the node does not report."""

ALL_ADDRESSES = ("", "0.0.0.0")
"""Values of hostIP that stand for every address of the node."""

_QOS_RESOURCES = ("cpu", "memory")

ContainerAmount = Callable[[Container], int]
Amounts = Mapping[str, int]


# --- containers -------------------------------------------------------------------------------------------------------


def is_sidecar(container: Container) -> bool:
    """Return whether an init container keeps running beside the other containers."""
    return container.restart_policy == "Always"


def cpu_request(container: Container) -> int:
    """Return the CPU request in thousandths of a core. A limit without a request counts as a request."""
    resources = container.resources
    return quantity.to_milli(resources.requests.get("cpu", resources.limits.get("cpu", 0)))


def memory_request(container: Container) -> int:
    """Return the memory request in bytes. A limit without a request counts as a request."""
    return _request("memory", container)


def _request(name: str, container: Container) -> int:
    resources = container.resources
    return quantity.to_int(resources.requests.get(name, resources.limits.get(name, 0)))


def cpu_limit(container: Container) -> int:
    """Return the CPU limit in thousandths of a core, 0 without a limit."""
    return quantity.to_milli(container.resources.limits.get("cpu", 0))


def memory_limit(container: Container) -> int:
    """Return the memory limit in bytes, 0 without a limit."""
    return quantity.to_int(container.resources.limits.get("memory", 0))


def all_containers(pod: Pod) -> tuple[Container, ...]:
    """Return every container of a pod, in the order in which they start."""
    return (*pod.spec.init_containers, *pod.spec.containers, *pod.spec.ephemeral_containers)


def sidecars(pod: Pod) -> tuple[Container, ...]:
    """Return the init containers that keep running."""
    return tuple(container for container in pod.spec.init_containers if is_sidecar(container))


def is_regular_init_container(pod: Pod, container: Container) -> bool:
    """Return whether a container is an init container of the pod and not a sidecar."""
    return not is_sidecar(container) and any(init.name == container.name for init in pod.spec.init_containers)


# --- pods -------------------------------------------------------------------------------------------------------------


def pod_request(spec: PodSpec, amount: ContainerAmount) -> int:
    """Return the request of a pod for one resource. `amount` returns the request of a container.

    Init containers run one after another, and sidecars keep running: the pod needs the maximum over its start and its
    run.
    """
    started_sidecars = 0
    maximum = 0
    for container in spec.init_containers:
        if is_sidecar(container):
            started_sidecars += amount(container)
            maximum = max(maximum, started_sidecars)
        else:
            maximum = max(maximum, started_sidecars + amount(container))
    return max(started_sidecars + sum(map(amount, spec.containers)), maximum)


def pod_limit(spec: PodSpec, amount: ContainerAmount) -> int:
    """Return the limit of a pod for one resource; 0 (no limit) unless every container has one."""
    if not all(amount(container) for container in (*spec.init_containers, *spec.containers)):
        return 0
    return pod_request(spec, amount)


def pod_requests(pod: Pod) -> dict[str, int]:
    """Return the requests of a pod by resource, with the overhead of its runtime, without those that are 0. CPU is in
    thousandths of a core.
    """
    requests = {"pods": 1, "cpu": pod_request(pod.spec, cpu_request), "memory": pod_request(pod.spec, memory_request)}
    names = {
        name
        for container in (*pod.spec.init_containers, *pod.spec.containers)
        for name in (*container.resources.requests, *container.resources.limits)
    }
    for name in names - requests.keys():
        requests[name] = pod_request(pod.spec, partial(_request, name))
    for name, amount in pod.spec.overhead.items():
        in_units = quantity.to_milli(amount) if name == "cpu" else quantity.to_int(amount)
        requests[name] = requests.get(name, 0) + in_units
    return {name: amount for name, amount in requests.items() if amount}


def total_requests(pods: Iterable[Pod]) -> dict[str, int]:
    """Return the sum of the requests of pods by resource."""
    total: Counter[str] = Counter()
    for pod in pods:
        total.update(pod_requests(pod))
    return total


def qos_class(containers: Iterable[Container]) -> str:
    """Return Guaranteed, Burstable or BestEffort, from all containers after defaulting. Only CPU and memory count."""
    resources = [
        (_qos_amounts(container.resources.limits), _qos_amounts(container.resources.requests))
        for container in containers
    ]
    if not any(limits or requests for limits, requests in resources):
        return "BestEffort"
    if all(len(limits) == len(_QOS_RESOURCES) and requests == limits for limits, requests in resources):
        return "Guaranteed"
    return "Burstable"


def _qos_amounts(quantities: Mapping[str, str | int | float]) -> dict[str, int]:
    """Return the amounts of CPU and memory above 0, in thousandths."""
    amounts = {name: quantity.to_milli(quantities[name]) for name in _QOS_RESOURCES if name in quantities}
    return {name: amount for name, amount in amounts.items() if amount > 0}


def bandwidth_limits(annotations: Mapping[str, str]) -> tuple[int, int]:
    """Return ingress and egress limit of a pod in bits per second, 0 without a limit. The annotations must be valid."""
    return (
        quantity.to_int(annotations.get(INGRESS_BANDWIDTH, "0")),
        quantity.to_int(annotations.get(EGRESS_BANDWIDTH, "0")),
    )


def host_ports(pod: Pod) -> tuple[ContainerPort, ...]:
    """Return the ports of a pod that have a host port."""
    return tuple(port for container in all_containers(pod) for port in container.ports if port.host_port)


# --- nodes ------------------------------------------------------------------------------------------------------------


def allocatable(node: Node) -> dict[str, int]:
    """Return the resources that a node has for pods."""
    amounts = dict.fromkeys(NODE_RESOURCES, UNLIMITED)
    for name, text in {**node.status.capacity, **node.status.allocatable}.items():
        try:
            amounts[name] = quantity.to_milli(text) if name == "cpu" else quantity.to_int(text)
        except quantity.BadQuantity:
            continue
    return amounts


class InsufficientResource(NamedTuple):
    """A resource of which a node has too little: the amounts requested, already used, and available in total."""

    name: str
    requested: int
    used: int
    capacity: int


def insufficient_resources(requests: Amounts, used: Amounts, capacity: Amounts) -> Iterator[InsufficientResource]:
    """Yield each resource whose requests do not fit beside those in use. A resource that the node lacks has a capacity
    of 0.
    """
    for name, requested in requests.items():
        if used.get(name, 0) + requested > capacity.get(name, 0):
            yield InsufficientResource(name, requested, used.get(name, 0), capacity.get(name, 0))


def has_port_conflict(ports: Iterable[ContainerPort], used: Iterable[ContainerPort]) -> bool:
    """Return whether a port is in use: the same number and protocol at the same address, or at any address."""
    used = tuple(used)
    return any(_conflicts(port, other) for port in ports for other in used)


def _conflicts(port: ContainerPort, other: ContainerPort) -> bool:
    if (port.host_port, port.protocol or "TCP") != (other.host_port, other.protocol or "TCP"):
        return False
    return port.host_ip == other.host_ip or port.host_ip in ALL_ADDRESSES or other.host_ip in ALL_ADDRESSES
