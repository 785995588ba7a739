"""Limits and requests of a container as text (`resourceFieldRef`). Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from decimal import ROUND_CEILING

from api import quantity
from api.objects import Pod
from api.resources import containers_of
from api.schema import NOT_SUPPORTED, Problem, shown
from api.value import ResourceFieldSelector

_ACCEPTED = re.compile(r"(limits|requests)\.(cpu|memory|ephemeral-storage|hugepages-[A-Za-z0-9]+)")
WORDS = "limits. and requests. of cpu, memory, ephemeral-storage and hugepages-SIZE are accepted"


def check(path: str, selector: ResourceFieldSelector) -> Iterator[Problem]:
    """What is wrong with the question itself."""
    if not _ACCEPTED.fullmatch(selector.resource):
        yield Problem(f"{path}.resource", shown(selector.resource), WORDS, NOT_SUPPORTED)
    try:
        if selector.divisor is not None and quantity.parse(selector.divisor) < 0:
            yield Problem(f"{path}.divisor", shown(selector.divisor), "a quantity above 0 is accepted")
    except quantity.BadQuantity as error:
        yield Problem(f"{path}.divisor", shown(selector.divisor), str(error))


def value_of(pod: Pod, selector: ResourceFieldSelector, container: str, allocatable: Mapping[str, str]) -> str:
    """In whole divisors, rounded up; a limit that is missing is what the node can give (facts: node 7).

    `container` is asked unless the selector names another. Raises KeyError if the pod has no such container.
    """
    name = selector.container_name or container
    found = next((one for one in containers_of(pod) if one.name == name), None)
    if found is None:
        raise KeyError(name)
    kind, _, resource = selector.resource.partition(".")
    if kind == "limits":
        given = found.resources.limits.get(resource, allocatable.get(resource, "0"))
    else:
        given = found.resources.requests.get(resource, "0")
    divisor = quantity.parse(selector.divisor or 1) or quantity.parse(1)
    return str(int((quantity.parse(given) / divisor).to_integral_value(ROUND_CEILING)))
