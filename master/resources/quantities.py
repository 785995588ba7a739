"""Resource quantities of containers and pods: requests and limits, parsed and summed. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from api.core.pod import Container, PodSpec
from api.core.resource_requests import pod_request
from api.meta import quantity
from api.meta.quantity import Amount

Quantities = Mapping[str, Amount]
RawQuantities = Mapping[str, str | int | float]
ContainerPart = Callable[[Container], RawQuantities]


def parse_all(quantities: RawQuantities) -> dict[str, Amount]:
    """Return the parsed quantities."""
    return {name: Amount.parse(text) for name, text in quantities.items()}


def format_all(amounts: Quantities) -> dict[str, str | int | float]:
    """Return the quantities as text, each in its shortest form."""
    return {name: str(amount) for name, amount in sorted(amounts.items())}


def canonical(quantities: RawQuantities) -> dict[str, str | int | float]:
    """Return the same quantities in their shortest form."""
    return format_all(parse_all(quantities))


def requests(container: Container) -> RawQuantities:
    """Return the requests of a container."""
    return container.resources.requests


def limits(container: Container) -> RawQuantities:
    """Return the limits of a container."""
    return container.resources.limits


def pod_total(spec: PodSpec, part: ContainerPart) -> dict[str, Amount]:
    """Return the total of a pod: the most that its containers need at the same time (`pod_request`).

    Sidecars run beside the containers that start after them, other init containers before the containers of the pod. A
    container without a value counts 0.
    """
    containers = (*spec.containers, *spec.init_containers)
    totals: dict[str, Amount] = {}
    for name in dict.fromkeys(name for container in containers for name in part(container)):
        amounts = [Amount.parse(part(container)[name]) for container in containers if name in part(container)]
        binary = next((amount.binary for amount in amounts if amount.milli), False)
        total = pod_request(spec, lambda container, name=name: quantity.to_milli(part(container).get(name, 0)))  # type: ignore[misc]
        totals[name] = Amount(total, binary)
    return totals


def plus(left: Quantities, right: Quantities) -> dict[str, Amount]:
    """Return the sums of both, by resource."""
    return {name: left.get(name, Amount()).add(right.get(name, Amount())) for name in (*left, *right)}
