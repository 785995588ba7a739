"""The numbers of items that a pod may have."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from api.core.pod import PodSpec
from api.meta.schema import TOO_MANY
from api.validation.placement import PREFERRED, REQUIRED
from api.validation.pod_limits import MAX_AFFINITY_TERMS, MAX_CONTAINERS, MAX_EXPRESSIONS, check_numbers

Part = Callable[[int], dict[str, Any]]


ITEM = {
    "name": "x", "value": "1", "containerPort": 1, "mountPath": "/", "ip": "::1", "conditionType": "x", "key": "k",
    "operator": "Exists",
}  # fmt: skip
"""The required fields of the items of all lists."""


def in_container(*path: str) -> Part:
    """Return the function that makes a spec with so many items in the second of two containers."""

    def part(number: int) -> dict[str, Any]:
        value: Any = (
            dict.fromkeys(map(str, range(number)), "1") if path[0] == "resources" else [_item(path[-1])] * number
        )
        for name in reversed(path):
            value = {name: value}
        return {"containers": [{}], "initContainers": [value]}

    return part


def _item(name: str) -> Any:
    return "x" if name in ("command", "args", "add", "drop") else ITEM


def nodes(terms: Any, field: str = REQUIRED) -> dict[str, Any]:
    required = {"nodeSelectorTerms": terms} if field == REQUIRED else terms
    return {"affinity": {"nodeAffinity": {field: required}}}


def pod_terms(name: str, field: str) -> Part:
    return lambda number: {"affinity": {name: {field: [ITEM] * number}}}


ROWS: dict[str, tuple[int, Part]] = {
    "containers": (MAX_CONTAINERS, lambda number: {"containers": [{}] * (number - 2), "initContainers": [{}] * 2}),
    "containers[*].command": (10_000, in_container("command")),
    "containers[*].args": (10_000, in_container("args")),
    "containers[*].env": (10_000, in_container("env")),
    "containers[*].envFrom": (1000, in_container("envFrom")),
    "containers[*].ports": (5000, in_container("ports")),
    "containers[*].volumeMounts": (5000, in_container("volumeMounts")),
    "containers[*].resources.limits": (2000, in_container("resources", "limits")),
    "containers[*].resources.requests": (2000, in_container("resources", "requests")),
    "containers[*].securityContext.capabilities.add": (2000, in_container("securityContext", "capabilities", "add")),
    "containers[*].securityContext.capabilities.drop": (2000, in_container("securityContext", "capabilities", "drop")),
    "volumes": (1000, lambda number: {"volumes": [ITEM] * number}),
    "nodeSelector": (100, lambda number: {"nodeSelector": dict.fromkeys(map(str, range(number)), "")}),
    "imagePullSecrets": (100, lambda number: {"imagePullSecrets": [ITEM] * number}),
    "tolerations": (500, lambda number: {"tolerations": [ITEM] * number}),
    "hostAliases": (1000, lambda number: {"hostAliases": [ITEM] * number}),
    "readinessGates": (100, lambda number: {"readinessGates": [ITEM] * number}),
    "schedulingGates": (100, lambda number: {"schedulingGates": [ITEM] * number}),
    "topologySpreadConstraints": (50, lambda number: {"topologySpreadConstraints": [ITEM] * number}),
    "securityContext.supplementalGroups": (
        1000,
        lambda number: {"securityContext": {"supplementalGroups": [1] * number}},
    ),
    "securityContext.sysctls": (100, lambda number: {"securityContext": {"sysctls": [ITEM] * number}}),
    f"affinity.nodeAffinity.{REQUIRED}.nodeSelectorTerms": (MAX_AFFINITY_TERMS, lambda number: nodes([ITEM] * number)),
    f"affinity.nodeAffinity.{PREFERRED}": (MAX_AFFINITY_TERMS, lambda number: nodes([ITEM] * number, PREFERRED)),
    "affinity.nodeAffinity": (
        MAX_EXPRESSIONS,
        lambda number: nodes([{"matchExpressions": [ITEM] * (number - 1)}, {"matchFields": [ITEM]}]),
    ),
    **{f"affinity.{name}.{field}": (MAX_AFFINITY_TERMS, pod_terms(name, field))
       for name in ("podAffinity", "podAntiAffinity") for field in (REQUIRED, PREFERRED)},
}  # fmt: skip
"""Path → the accepted number, and the spec with a number of items."""


@pytest.mark.parametrize("path", ROWS)
def test_pod_has_at_most_so_many_items(path: str) -> None:
    limit, part = ROWS[path]
    assert list(check_numbers("spec", msgspec.convert(part(limit), PodSpec))) == []
    (problem,) = check_numbers("spec", msgspec.convert(part(limit + 1), PodSpec))
    expected = (f"spec.{path}", str(limit + 1), f"must have at most {limit} items", TOO_MANY)
    assert tuple(problem) == expected
