"""The status of PodDisruptionBudgets."""

from __future__ import annotations

import datetime
from typing import Any

import pytest
from msgspec.structs import replace

from api.meta.types import OwnerReference
from api.validation.registry import decode
from master.controllers.workloads.disruption_budgets import reconcile
from master.errors import StatusError
from master.registry.pods import budget_after_eviction
from master.resources.deployments import Deployment, DeploymentSpec, ReplicaSet, ReplicaSetSpec
from master.resources.disruption_budgets import POD_DISRUPTION_BUDGETS, PodDisruptionBudget, PodDisruptionBudgetStatus
from tests.unit.master.controllers.workloads.examples import NOW, NUMBERS, budget, owned_by, pod, status_of
from tests.unit.master.examples import meta

WEB = ReplicaSet(metadata=meta("web", namespace="red"), spec=ReplicaSetSpec(replicas=10))


def numbers(status: PodDisruptionBudgetStatus) -> tuple[int, ...]:
    return tuple(getattr(status, name) for name in NUMBERS)


COUNTED = [
    ({"minAvailable": 2}, 3, 3, (3, 3, 2, 1)),
    ({"minAvailable": 3}, 3, 2, (3, 2, 3, 0)),
    ({"minAvailable": 0}, 3, 2, (3, 2, 0, 2)),
    ({"minAvailable": "50%"}, 9, 9, (10, 9, 5, 4)),
    ({"minAvailable": "55%"}, 10, 10, (10, 10, 6, 4)),
    ({"maxUnavailable": 1}, 10, 10, (10, 10, 9, 1)),
    ({"maxUnavailable": "15%"}, 10, 9, (10, 9, 8, 1)),
    ({"maxUnavailable": 20}, 10, 1, (10, 1, 0, 1)),
    ({"maxUnavailable": 0}, 10, 10, (10, 10, 10, 0)),
    ({}, 3, 3, (0, 3, 0, 0)),
    ({"minAvailable": 0, "selector": {"matchLabels": {"app": "other"}}}, 3, 3, (0, 0, 0, 0)),
    ({"minAvailable": 1, "selector": {}}, 3, 3, (3, 3, 1, 2)),
    ({"minAvailable": 1, "selector": None}, 3, 3, (0, 0, 1, 0)),
]


@pytest.mark.parametrize(("spec", "pods", "ready", "wanted"), COUNTED, ids=str)
def test_disruption_budget_status_equals_the_reference(
    spec: dict[str, Any], pods: int, ready: int, wanted: tuple[int, ...]
) -> None:
    status = status_of(budget(**spec), [pod(f"p{n}", n < ready, WEB) for n in range(pods)], WEB)
    assert numbers(status) == wanted
    assert status.observed_generation == 3
    (status_condition,) = status.conditions
    enough = ("True", "SufficientPods") if wanted[3] else ("False", "InsufficientPods")
    assert (status_condition.type, status_condition.status, status_condition.reason) == ("DisruptionAllowed", *enough)


def test_disruption_budget_counts_the_deployment_not_its_replica_sets() -> None:
    top = Deployment(metadata=meta("d", namespace="red"), spec=DeploymentSpec(replicas=4))
    sets = [
        ReplicaSet(
            metadata=meta(name, namespace="red", owner_references=owned_by(top)), spec=ReplicaSetSpec(replicas=3)
        )
        for name in ("old", "new")
    ]
    pods = [pod(f"p{n}", owner=sets[n % 2]) for n in range(4)]
    assert numbers(status_of(budget(maxUnavailable=1), pods, top, *sets)) == (4, 4, 3, 1)


@pytest.mark.parametrize(
    ("kind", "why"),
    [
        ("ReplicaSet", 'found no controllers for pod "p"'),
        ("Widget", 'found no controllers for pod "p"'),
        ("PersistentVolume", "persistentvolumes does not implement the scale subresource"),
    ],
)
def test_uncountable_disruption_budget_allows_nothing_with_a_reason(kind: str, why: str) -> None:
    owner = OwnerReference(api_version="v1", kind=kind, name="o", uid="gone", controller=True)
    owned_pod = replace(pod("p"), metadata=replace(pod("p").metadata, owner_references=(owner,)))
    status = status_of(budget(maxUnavailable=1, status=PodDisruptionBudgetStatus(disruptions_allowed=5)), [owned_pod])
    assert status.disruptions_allowed == 0
    assert [(condition.reason, condition.message) for condition in status.conditions] == [("SyncFailed", why)]
    with pytest.raises(StatusError) as refused:
        budget_after_eviction(owned_pod, [replace(budget(maxUnavailable=1), status=status)], NOW)
    assert refused.value.status.details is not None
    assert f"because it failed sync: {why}" in refused.value.status.details.causes[0].message


def test_terminating_and_disrupted_pods_are_not_counted_as_healthy() -> None:
    pods = [pod("a"), pod("b", deletion_timestamp="2026-01-01T12:00:30Z"), pod("c"), pod("d")]
    promised = {"c": "2026-01-01T11:59:00Z", "d": "2026-01-01T11:57:00Z", "gone": "2026-01-01T11:59:00Z"}
    status = status_of(budget(PodDisruptionBudgetStatus(disrupted_pods=promised), minAvailable=1), pods)
    assert status.disrupted_pods == {"c": "2026-01-01T11:59:00Z"}
    assert numbers(status) == (4, 2, 1, 1)


def test_disruption_condition_keeps_its_transition_time() -> None:
    obj, pods = budget(minAvailable=1), [pod("a"), pod("b")]
    first = status_of(obj, pods)
    later = NOW + datetime.timedelta(hours=1)
    (change,) = reconcile([replace(obj, status=first)], [*pods, pod("c")], (), later)
    assert change.object.status.conditions == first.conditions  # type: ignore[attr-defined]
    (change,) = reconcile([replace(obj, status=first)], pods[:1], (), later)
    assert change.object.status.conditions[0].last_transition_time == "2026-01-01T13:00:00Z"  # type: ignore[attr-defined]


WRONG = [
    ({"minAvailable": 1, "maxUnavailable": 1}, "minAvailable and maxUnavailable cannot be both set"),
    ({"minAvailable": -1}, "must be greater than or equal to 0"),
    ({"maxUnavailable": "one"}, "must be an integer or percentage (e.g '5%')"),
    ({"maxUnavailable": "101%"}, "must not be greater than 100%"),
    ({"unhealthyPodEvictionPolicy": "Never"}, "IfHealthyBudget, AlwaysAllow are accepted"),
    ({"selector": {"matchExpressions": [{"key": "a", "operator": "Like"}]}}, "NotIn, Exists, DoesNotExist"),
]


@pytest.mark.parametrize(("spec", "why"), WRONG, ids=str)
def test_invalid_disruption_budget_is_rejected(spec: dict[str, Any], why: str) -> None:
    document = {"metadata": {"name": "b", "namespace": "red"}, "spec": spec}
    _, problems, _ = decode(PodDisruptionBudget, document, POD_DISRUPTION_BUDGETS.rules)
    assert any(why in problem.detail for problem in problems), problems
