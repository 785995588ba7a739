"""What a pod asks for as a whole: requests, limits and class of service, from those of its containers. Pure.

Init containers run one after the other, each beside the sidecars that were started before it; so a pod needs the larger
of what its containers and sidecars need together and what its most demanding init step needs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from api import quantity
from api.objects import Container, Pod, PodSpec
from api.objects import Container as Wish

Amount = Callable[[Container], int]
COMPUTING = ("cpu", "memory")


def is_sidecar(container: Container) -> bool:
    """Whether an init container keeps running beside the others."""
    return container.restart_policy == "Always"


def requested_cpu(container: Container) -> int:
    """Thousandths of a core; a limit without a request is one."""
    resources = container.resources
    return quantity.milli(resources.requests.get("cpu", resources.limits.get("cpu", 0)))


def requested_memory(container: Container) -> int:
    """Bytes; a limit without a request is one."""
    resources = container.resources
    return quantity.whole(resources.requests.get("memory", resources.limits.get("memory", 0)))


def limited_cpu(container: Container) -> int:
    """Thousandths of a core, 0 without a limit."""
    return quantity.milli(container.resources.limits.get("cpu", 0))


def limited_memory(container: Container) -> int:
    """Bytes, 0 without a limit."""
    return quantity.whole(container.resources.limits.get("memory", 0))


def needed(spec: PodSpec, amount: Amount) -> int:
    """The pod's need of one resource, `amount` being that of a container."""
    beside = highest = 0
    for container in spec.init_containers:
        if is_sidecar(container):
            beside += amount(container)
            highest = max(highest, beside)
        else:
            highest = max(highest, beside + amount(container))
    return max(beside + sum(map(amount, spec.containers)), highest)


def allowed(spec: PodSpec, amount: Amount) -> int:
    """The pod's limit of one resource; 0, which is no limit, unless every container has one."""
    return needed(spec, amount) if all(amount(one) for one in (*spec.init_containers, *spec.containers)) else 0


def qos_class(containers: Iterable[Container]) -> str:
    """Guaranteed, Burstable or BestEffort, from all containers with defaults; only CPU and memory count."""
    wished = [(_computing(one.resources.limits), _computing(one.resources.requests)) for one in containers]
    if not any(limits or requests for limits, requests in wished):
        return "BestEffort"
    full = all(len(limits) == len(COMPUTING) and requests == limits for limits, requests in wished)
    return "Guaranteed" if full else "Burstable"


def _computing(amounts: Mapping[str, str | int | float]) -> dict[str, int]:
    """What is there of CPU (thousandths) and memory (thousandths of bytes); nothing of nothing."""
    found = {name: quantity.milli(amounts[name]) for name in COMPUTING if name in amounts}
    return {name: amount for name, amount in found.items() if amount > 0}


def containers_of(pod: Pod) -> tuple[Container, ...]:
    """Every container of a pod, in the order in which they start."""
    return (*pod.spec.init_containers, *pod.spec.containers, *pod.spec.ephemeral_containers)


def sidecars(pod: Pod) -> tuple[Wish, ...]:
    """The init containers that keep running."""
    return tuple(one for one in pod.spec.init_containers if is_sidecar(one))


def is_regular_init_container(pod: Pod, wish: Wish) -> bool:
    """Whether it is an init container that is no sidecar."""
    return not is_sidecar(wish) and any(one.name == wish.name for one in pod.spec.init_containers)
