"""How much a pod asks for and how much a node has. Pure.

Amounts are whole numbers by the name of the resource: thousandths of a core for `cpu`, bytes for `memory` and
`ephemeral-storage`, pieces for `pods` and for whatever else nodes report, such as `example.com/gpu`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from typing import NamedTuple

from api import quantity
from api.objects import Container, Node, Pod
from api.resources import needed, requested_cpu, requested_memory

COMMON = ("pods", "cpu", "memory", "ephemeral-storage")
"""What every node has, whether it reports how much or not."""

UNKNOWN_IS_ENOUGH = 1 << 62
"""What a node has of something common that it does not report."""

Amounts = Mapping[str, int]


def requests(pod: Pod) -> dict[str, int]:
    """What the pod asks for as a whole; nothing of which it asks nothing."""
    found = {"pods": 1, "cpu": needed(pod.spec, requested_cpu), "memory": needed(pod.spec, requested_memory)}
    for name in {name for one in _containers(pod) for name in (*one.resources.requests, *one.resources.limits)}:
        if name not in found:
            found[name] = needed(pod.spec, partial(_requested, name))
    return {name: amount for name, amount in found.items() if amount}


def _containers(pod: Pod) -> Iterator[Container]:
    yield from pod.spec.init_containers
    yield from pod.spec.containers


def _requested(name: str, container: Container) -> int:
    """A limit without a request is one."""
    resources = container.resources
    return quantity.whole(resources.requests.get(name, resources.limits.get(name, 0)))


def total(pods: Iterable[Pod]) -> dict[str, int]:
    """What they ask for together."""
    amount: Counter[str] = Counter()
    for pod in pods:
        amount.update(requests(pod))
    return amount


def allocatable(node: Node) -> dict[str, int]:
    """What the node has for pods."""
    reported = {**node.status.capacity, **node.status.allocatable}
    found = dict.fromkeys(COMMON, UNKNOWN_IS_ENOUGH)
    for name, text in reported.items():
        try:
            found[name] = quantity.milli(text) if name == "cpu" else quantity.whole(text)
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
