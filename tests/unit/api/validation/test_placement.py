"""Affinity, tolerations, operating system and deadlines: every error by path."""

from __future__ import annotations

from typing import Any

import pytest

from api.core.pod import Pod
from api.validation.registry import check_update, decode

PATH = "spec.affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms"


def pod(**spec: Any) -> dict[str, Any]:
    base: dict[str, Any] = {"containers": [{"name": "a", "image": "b:1"}]}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}, "spec": base | spec}


def terms(*rows: dict[str, Any]) -> dict[str, Any]:
    required = {"nodeSelectorTerms": list(rows)}
    return {"affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required}}}


def expression(**fields: Any) -> dict[str, Any]:
    return terms({"matchExpressions": [{"key": "disk", "operator": "In", "values": ["ssd"], **fields}]})


def field(**fields: Any) -> dict[str, Any]:
    return terms({}, {"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n1"], **fields}]})


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
def test_invalid_placement_is_rejected_by_path(spec: dict[str, Any], path: str) -> None:
    assert [problem.path for problem in decode(Pod, pod(**spec))[1]] == ([path] if path else [])


REQUIRED, PREFERRED = (f"{how}DuringSchedulingIgnoredDuringExecution" for how in ("required", "preferred"))
ZONE: dict[str, Any] = {"topologyKey": "zone", "labelSelector": {"matchLabels": {"a": "b"}}}
EVEN: dict[str, Any] = {**ZONE, "maxSkew": 1, "whenUnsatisfiable": "DoNotSchedule"}


@pytest.mark.parametrize("half", ["podAffinity", "podAntiAffinity"])
@pytest.mark.parametrize(
    ("term", "path"),
    [
        (ZONE, ""),
        ({**ZONE, "topologyKey": ""}, ".topologyKey"),
        ({**ZONE, "topologyKey": "a b"}, ".topologyKey"),
        ({**ZONE, "labelSelector": {"matchExpressions": [{"key": "a", "operator": "In"}]}}, ".labelSelector.matchExp"),
        ({**ZONE, "namespaceSelector": {"matchLabels": {"a b": ""}}}, ".namespaceSelector.matchLabels"),
        ({**ZONE, "namespaces": ["A"]}, ".namespaces[0]"),
        ({**ZONE, "matchLabelKeys": ["a b"]}, ".matchLabelKeys[0]"),
        ({"topologyKey": "zone", "mismatchLabelKeys": ["a"]}, ".mismatchLabelKeys"),
    ],
)
def test_pod_affinity_is_validated(half: str, term: dict[str, Any], path: str) -> None:
    weighted = {"weight": 1, "podAffinityTerm": term}
    for how, fields, inside in ((REQUIRED, term, ""), (PREFERRED, weighted, ".podAffinityTerm")):
        problems = [error.path for error in decode(Pod, pod(affinity={half: {how: [fields]}}))[1]]
        assert len(problems) == bool(path)
        assert not path or problems[0].startswith(f"spec.affinity.{half}.{how}[0]{inside}{path}")
    light = decode(Pod, pod(affinity={half: {PREFERRED: [{**weighted, "weight": 0}]}}))[1]
    assert [field_error.path for field_error in light][:1] == [f"spec.affinity.{half}.{PREFERRED}[0].weight"]


@pytest.mark.parametrize(
    ("rows", "paths"),
    [
        ([EVEN], []),
        ([{**EVEN, "maxSkew": 0}], ["[0].maxSkew"]),
        ([{**EVEN, "whenUnsatisfiable": "Never"}], ["[0].whenUnsatisfiable"]),
        ([{**EVEN, "minDomains": 0}], ["[0].minDomains"]),
        ([{**EVEN, "minDomains": 2}], []),
        ([{**EVEN, "minDomains": 2, "whenUnsatisfiable": "ScheduleAnyway"}], ["[0].minDomains"]),
        ([{**EVEN, "nodeAffinityPolicy": "Maybe"}], ["[0].nodeAffinityPolicy"]),
        ([{**EVEN, "matchLabelKeys": ["a b"]}], ["[0].matchLabelKeys[0]"]),
        ([EVEN, EVEN], ["[1].{topologyKey, whenUnsatisfiable}"]),
    ],
)
def test_topology_spread_constraints_are_validated(rows: list[dict[str, Any]], paths: list[str]) -> None:
    problems = decode(Pod, pod(topologySpreadConstraints=rows))[1]
    assert [error.path for error in problems] == [f"spec.topologySpreadConstraints{path}" for path in paths]


def test_preferred_node_affinity_is_validated() -> None:
    bad = {"weight": 101, "preference": {"matchExpressions": [{"key": "a", "operator": "In"}]}}
    problems = decode(Pod, pod(affinity={"nodeAffinity": {PREFERRED: [bad]}}))[1]
    path = f"spec.affinity.nodeAffinity.{PREFERRED}[0]"
    assert [error.path for error in problems] == [f"{path}.weight", f"{path}.preference.matchExpressions[0].values"]


@pytest.mark.parametrize(
    ("before", "after", "good"), [(None, 5, True), (5, 5, True), (5, 4, True), (5, 6, False), (5, None, False)]
)
def test_active_deadline_may_only_decrease(before: int | None, after: int | None, good: bool) -> None:
    old, new = (decode(Pod, pod(activeDeadlineSeconds=value))[0] for value in (before, after))
    assert old is not None
    assert new is not None
    assert [problem.path for problem in check_update(old, new)] == ([] if good else ["spec.activeDeadlineSeconds"])
