"""Node affinity, tolerations, operating system and deadlines: every problem by path."""

from __future__ import annotations

from typing import Any

import pytest

from api.objects import Pod
from api.validate import decode, immutable

PATH = "spec.affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms"


def pod(**spec: Any) -> dict[str, Any]:
    base: dict[str, Any] = {"containers": [{"name": "a", "image": "b:1"}]}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}, "spec": base | spec}


def terms(*rows: dict[str, Any]) -> dict[str, Any]:
    required = {"nodeSelectorTerms": list(rows)}
    return {"affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required}}}


def expression(**row: Any) -> dict[str, Any]:
    return terms({"matchExpressions": [{"key": "disk", "operator": "In", "values": ["ssd"], **row}]})


def field(**row: Any) -> dict[str, Any]:
    return terms({}, {"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n1"], **row}]})


@pytest.mark.parametrize(
    ("spec", "path"),
    [
        (expression(), ""),
        (expression(operator="Gt", values=["-7"]), ""),
        (expression(operator="Exists", values=[]), ""),
        (terms(), PATH),
        (expression(key="a b"), f"{PATH}[0].matchExpressions[0].key"),
        (expression(operator="Is"), f"{PATH}[0].matchExpressions[0].operator"),
        (expression(values=[]), f"{PATH}[0].matchExpressions[0].values"),
        (expression(operator="Exists"), f"{PATH}[0].matchExpressions[0].values"),
        (expression(operator="Gt", values=["--7"]), f"{PATH}[0].matchExpressions[0].values"),
        (expression(operator="Lt", values=["1", "2"]), f"{PATH}[0].matchExpressions[0].values"),
        (field(), ""),
        (field(key="metadata.uid"), f"{PATH}[1].matchFields[0].key"),
        (field(operator="Exists"), f"{PATH}[1].matchFields[0].operator"),
        (field(values=["a", "b"]), f"{PATH}[1].matchFields[0].values"),
        ({"tolerations": [{"operator": "Exists"}]}, ""),
        ({"tolerations": [{"key": "a", "operator": "Is"}]}, "spec.tolerations[0].operator"),
        ({"tolerations": [{"key": "a", "effect": "Never"}]}, "spec.tolerations[0].effect"),
        ({"tolerations": [{"value": "a"}]}, "spec.tolerations[0].operator"),
        ({"tolerations": [{"key": "a", "operator": "Exists", "value": "b"}]}, "spec.tolerations[0].value"),
        ({"tolerations": [{"key": "a", "tolerationSeconds": 1}]}, "spec.tolerations[0].effect"),
        ({"os": {"name": "windows"}}, ""),
        ({"os": {"name": "plan9"}}, "spec.os.name"),
        ({"activeDeadlineSeconds": 1}, ""),
        ({"activeDeadlineSeconds": 0}, "spec.activeDeadlineSeconds"),
        ({"activeDeadlineSeconds": 1 << 31}, "spec.activeDeadlineSeconds"),
        ({"terminationGracePeriodSeconds": 1 << 31}, "spec.terminationGracePeriodSeconds"),
    ],
)
def test_one_problem_has_one_path(spec: dict[str, Any], path: str) -> None:
    assert [problem.path for problem in decode(Pod, pod(**spec))[1]] == ([path] if path else [])


def test_what_nobody_acts_on_is_told() -> None:
    preferred = [{"weight": 1, "preference": {}}]
    affinity = {
        "nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": preferred},
        "podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [{}]},
    }
    assert [warning.partition(":")[0] for warning in decode(Pod, pod(affinity=affinity))[2]] == [
        "spec.affinity.nodeAffinity.preferredDuringSchedulingIgnoredDuringExecution",
        "spec.affinity.podAntiAffinity",
    ]


@pytest.mark.parametrize(
    ("before", "after", "good"), [(None, 5, True), (5, 5, True), (5, 4, True), (5, 6, False), (5, None, False)]
)
def test_a_deadline_only_comes_nearer(before: int | None, after: int | None, good: bool) -> None:
    old, new = (decode(Pod, pod(activeDeadlineSeconds=value))[0] for value in (before, after))
    assert old is not None
    assert new is not None
    assert [problem.path for problem in immutable(old, new)] == ([] if good else ["spec.activeDeadlineSeconds"])
