"""How much a pod asks for and how much a node has. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from api import quantity
from api.objects import Node, Pod
from api.resources import needed, requested_cpu, requested_memory

UNKNOWN_IS_ENOUGH = 1 << 62
"""What a node has of something that it does not report."""


class Amount(NamedTuple):
    """CPU in thousandths, memory in bytes, and pods."""

    cpu: int
    memory: int
    pods: int

    def plus(self, other: Amount) -> Amount:
        """Both together."""
        return Amount(self.cpu + other.cpu, self.memory + other.memory, self.pods + other.pods)


NOTHING = Amount(0, 0, 0)


def requests(pod: Pod) -> Amount:
    """What the pod asks for as a whole."""
    return Amount(needed(pod.spec, requested_cpu), needed(pod.spec, requested_memory), 1)


def total(pods: Iterable[Pod]) -> Amount:
    """What they ask for together."""
    amount = NOTHING
    for pod in pods:
        amount = amount.plus(requests(pod))
    return amount


def allocatable(node: Node) -> Amount:
    """What the node has for pods; what it does not report is no limit."""
    found = {**node.status.capacity, **node.status.allocatable}
    return Amount(
        cpu=_reported(found, "cpu", 1000),
        memory=_reported(found, "memory", 1),
        pods=_reported(found, "pods", 1),
    )


def _reported(found: Mapping[str, str], name: str, factor: int) -> int:
    try:
        return quantity.milli(found[name]) if factor == 1000 else quantity.whole(found[name])
    except (KeyError, quantity.BadQuantity):
        return UNKNOWN_IS_ENOUGH
