"""What pods ask for, by the name of the resource: requests and limits of all their containers together. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from api.core.pod import Container, PodSpec
from api.core.resources import pod_request
from api.meta import quantity
from api.meta.quantity import Quantity

Amounts = Mapping[str, Quantity]
Given = Mapping[str, str | int | float]
Part = Callable[[Container], Given]


def read(given: Given) -> dict[str, Quantity]:
    """The amounts that an object names."""
    return {name: quantity.read(text) for name, text in given.items()}


def written(amounts: Amounts) -> dict[str, str | int | float]:
    """The amounts as an object names them, each in its shortest form."""
    return {name: str(amount) for name, amount in sorted(amounts.items())}


def shortest(given: Given) -> dict[str, str | int | float]:
    """The same amounts in their shortest form."""
    return written(read(given))


def requests(container: Container) -> Given:
    """What a container asks for."""
    return container.resources.requests


def limits(container: Container) -> Given:
    """What a container may have at most."""
    return container.resources.limits


def of_pod(spec: PodSpec, part: Part) -> dict[str, Quantity]:
    """What the pod needs together, where init containers run before the others; a container that is silent counts 0."""
    containers = (*spec.containers, *spec.init_containers)
    found: dict[str, Quantity] = {}
    for name in dict.fromkeys(name for one in containers for name in part(one)):
        rows = [quantity.read(part(one)[name]) for one in containers if name in part(one)]
        binary = next((row.binary for row in rows if row.milli), False)
        total = pod_request(spec, lambda one, name=name: quantity.to_milli(part(one).get(name, 0)))  # type: ignore[misc]
        found[name] = Quantity(total, binary)
    return found


def plus(one: Amounts, other: Amounts) -> dict[str, Quantity]:
    """The sums of all that is in either."""
    return {name: one.get(name, Quantity()).plus(other.get(name, Quantity())) for name in (*one, *other)}
