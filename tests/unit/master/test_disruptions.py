from __future__ import annotations

import datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from api.core.pod import Pod, PodSpec, PodStatus
from api.meta.types import Condition, Object, OwnerReference
from api.validation.registry import decode
from master.controllers.workloads.disruption_budgets import reconcile
from master.errors import StatusError
from master.registry.pods import budget_after_eviction, decode_eviction, with_eviction_condition
from master.resources.deployments import Deployment, DeploymentSpec, ReplicaSet, ReplicaSetSpec
from master.resources.disruption_budgets import POD_DISRUPTION_BUDGETS, PodDisruptionBudget, PodDisruptionBudgetStatus
from tests.unit.master.make import meta

NOW = datetime.datetime(2026, 1, 1, 12, tzinfo=datetime.UTC)
NUMBERS = ("expected_pods", "current_healthy", "desired_healthy", "disruptions_allowed")


def budget(status: PodDisruptionBudgetStatus | None = None, **spec: Any) -> PodDisruptionBudget:
    selecting = {"selector": {"matchLabels": {"app": "web"}}, **spec}
    document = {"metadata": {"name": "b", "namespace": "red", "generation": 3}, "spec": selecting}
    item, problems, _ = decode(PodDisruptionBudget, document, POD_DISRUPTION_BUDGETS.rules)
    assert item is not None, problems
    return replace(item, status=status or PodDisruptionBudgetStatus())


def owned_by(owner: Object | None) -> tuple[OwnerReference, ...]:
    if owner is None:
        return ()
    row = OwnerReference(
        api_version=owner.API_VERSION, kind=owner.KIND, name="o", uid=owner.metadata.uid, controller=True
    )
    return (row,)


def pod(name: str, ready: bool = True, owner: Object | None = None, phase: str = "Running", **rest: Any) -> Pod:
    labels = {"app": "web"}
    return Pod(
        metadata=meta(name, namespace="red", labels=labels, owner_references=owned_by(owner), **rest),
        spec=PodSpec(node_name="n"),
        status=PodStatus(phase=phase, conditions=(Condition(type="Ready", status=str(ready)),)),
    )


WEB = ReplicaSet(metadata=meta("web", namespace="red"), spec=ReplicaSetSpec(replicas=10))


def status_of(item: PodDisruptionBudget, pods: list[Pod], *owners: Object) -> PodDisruptionBudgetStatus:
    found = list(reconcile([item], pods, owners, NOW))
    for change in found:
        assert isinstance(change.item, PodDisruptionBudget)
        assert not list(reconcile([change.item], pods, owners, NOW)), "the second pass has nothing to say"
        return change.item.status
    return item.status


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
def test_numbers_are_those_of_the_reference(
    spec: dict[str, Any], pods: int, ready: int, wanted: tuple[int, ...]
) -> None:
    status = status_of(budget(**spec), [pod(f"p{n}", n < ready, WEB) for n in range(pods)], WEB)
    assert numbers(status) == wanted
    assert status.observed_generation == 3
    (row,) = status.conditions
    enough = ("True", "SufficientPods") if wanted[3] else ("False", "InsufficientPods")
    assert (row.type, row.status, row.reason) == ("DisruptionAllowed", *enough)


def test_a_deployment_is_asked_rather_than_its_replica_sets() -> None:
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
def test_what_cannot_be_counted_allows_nothing_and_says_why(kind: str, why: str) -> None:
    gone = OwnerReference(api_version="v1", kind=kind, name="o", uid="gone", controller=True)
    one = replace(pod("p"), metadata=replace(pod("p").metadata, owner_references=(gone,)))
    status = status_of(budget(maxUnavailable=1, status=PodDisruptionBudgetStatus(disruptions_allowed=5)), [one])
    assert status.disruptions_allowed == 0
    assert [(row.reason, row.message) for row in status.conditions] == [("SyncFailed", why)]
    with pytest.raises(StatusError) as refused:
        budget_after_eviction(one, [replace(budget(maxUnavailable=1), status=status)], NOW)
    assert refused.value.status.details is not None
    assert f"because it failed sync: {why}" in refused.value.status.details.causes[0].message


def test_pods_on_their_way_out_and_promised_ones_do_not_count() -> None:
    pods = [pod("a"), pod("b", deletion_timestamp="2026-01-01T12:00:30Z"), pod("c"), pod("d")]
    promised = {"c": "2026-01-01T11:59:00Z", "d": "2026-01-01T11:57:00Z", "gone": "2026-01-01T11:59:00Z"}
    status = status_of(budget(PodDisruptionBudgetStatus(disrupted_pods=promised), minAvailable=1), pods)
    assert status.disrupted_pods == {"c": "2026-01-01T11:59:00Z"}
    assert numbers(status) == (4, 2, 1, 1)


def test_the_condition_keeps_its_time_until_it_turns() -> None:
    item, pods = budget(minAvailable=1), [pod("a"), pod("b")]
    first = status_of(item, pods)
    later = NOW + datetime.timedelta(hours=1)
    (change,) = reconcile([replace(item, status=first)], [*pods, pod("c")], (), later)
    assert change.item.status.conditions == first.conditions  # type: ignore[attr-defined]
    (change,) = reconcile([replace(item, status=first)], pods[:1], (), later)
    assert change.item.status.conditions[0].last_transition_time == "2026-01-01T13:00:00Z"  # type: ignore[attr-defined]


WRONG = [
    ({"minAvailable": 1, "maxUnavailable": 1}, "minAvailable and maxUnavailable cannot be both set"),
    ({"minAvailable": -1}, "must be greater than or equal to 0"),
    ({"maxUnavailable": "one"}, "must be an integer or percentage (e.g '5%')"),
    ({"maxUnavailable": "101%"}, "must not be greater than 100%"),
    ({"unhealthyPodEvictionPolicy": "Never"}, "IfHealthyBudget, AlwaysAllow are accepted"),
    ({"selector": {"matchExpressions": [{"key": "a", "operator": "Like"}]}}, "NotIn, Exists, DoesNotExist"),
]


@pytest.mark.parametrize(("spec", "why"), WRONG, ids=str)
def test_wrong_budgets_are_refused(spec: dict[str, Any], why: str) -> None:
    document = {"metadata": {"name": "b", "namespace": "red"}, "spec": spec}
    _, problems, _ = decode(PodDisruptionBudget, document, POD_DISRUPTION_BUDGETS.rules)
    assert any(why in problem.wanted for problem in problems), problems


# --- evictions --------------------------------------------------------------------------------------------------------


def counted(allowed: int, healthy: int = 3, desired: int = 2, generation: int = 3) -> PodDisruptionBudgetStatus:
    return PodDisruptionBudgetStatus(
        observed_generation=generation,
        disruptions_allowed=allowed,
        current_healthy=healthy,
        desired_healthy=desired,
        expected_pods=3,
    )


def test_a_budget_is_drawn_on_and_says_when_it_is_used_up() -> None:
    item = budget(counted(2))
    once = budget_after_eviction(pod("a"), [item], NOW)
    assert once is not None
    assert once.status.conditions[0].reason == "SufficientPods"
    twice = budget_after_eviction(pod("b"), [once], NOW)
    assert twice is not None
    assert (twice.status.disruptions_allowed, twice.status.conditions[0].reason) == (0, "InsufficientPods")
    with pytest.raises(StatusError) as refused:
        budget_after_eviction(pod("c"), [twice], NOW)
    status = refused.value.status
    assert (status.code, status.reason) == (429, "TooManyRequests")
    assert status.message == "Cannot evict pod as it would violate the pod's disruption budget."
    assert status.details is not None
    (cause,) = status.details.causes
    assert cause.reason == "DisruptionBudget"


REFUSED = [
    ([budget(counted(0, 2, 2))], 429, "The disruption budget b needs 2 healthy pods and has 2 currently"),
    ([budget(counted(5, generation=2))], 429, "The disruption budget b is still being processed by the server."),
    ([budget(counted(0, 3, 2))], 429, "The disruption budget b does not allow evicting pods currently"),
    ([budget(counted(-1))], 403, "pdb disruptions allowed is negative"),
    ([budget(counted(1)), budget(counted(1), minAvailable=1)], 500, "This pod has more than one PodDisruptionBudget"),
]  # fmt: skip


@pytest.mark.parametrize(("budgets", "code", "why"), REFUSED, ids=[why for *_, why in REFUSED])
def test_evictions_are_refused_in_the_words_of_the_reference(
    budgets: list[PodDisruptionBudget], code: int, why: str
) -> None:
    with pytest.raises(StatusError) as refused:
        budget_after_eviction(pod("a"), budgets, NOW)
    status = refused.value.status
    told = [status.message, *(cause.message for cause in (status.details.causes if status.details else ()))]
    assert status.code == code
    assert any(why in text for text in told), told


FREE = [
    pod("a", phase="Succeeded"), pod("a", phase="Failed"), pod("a", phase="Pending"),
    pod("a", deletion_timestamp="2026-01-01T12:00:30Z"),
    replace(pod("a"), metadata=meta("a", namespace="red", labels={"app": "other"})),
    replace(pod("a"), metadata=meta("a", namespace="blue", labels={"app": "web"})),
]  # fmt: skip


@pytest.mark.parametrize("one", FREE)
def test_pods_that_no_budget_guards_cost_nothing(one: Pod) -> None:
    assert budget_after_eviction(one, [budget(counted(0))], NOW) is None
    with pytest.raises(StatusError):
        budget_after_eviction(pod("a"), [budget(counted(0))], NOW)


@pytest.mark.parametrize(
    ("policy", "healthy", "free"),
    [(None, 2, True), (None, 1, False), ("IfHealthyBudget", 1, False), ("AlwaysAllow", 1, True)],
)
def test_pods_that_are_not_healthy_go_by_the_policy(policy: str | None, healthy: int, free: bool) -> None:
    item = budget(counted(0, healthy, 2), unhealthyPodEvictionPolicy=policy)
    if free:
        assert budget_after_eviction(pod("a", ready=False), [item], NOW) is None
    else:
        with pytest.raises(StatusError):
            budget_after_eviction(pod("a", ready=False), [item], NOW)


@given(st.integers(0, 8), st.integers(0, 10), st.lists(st.integers(0, 7), max_size=20))
def test_no_evictions_leave_fewer_healthy_pods_than_wanted(ready: int, wanted: int, order: list[int]) -> None:
    """Evictions in any order, the controller looking at any time: every second one here."""
    pods = {f"p{n}": pod(f"p{n}", n < ready) for n in range(8)}
    item = budget(minAvailable=wanted)
    item = replace(item, status=status_of(item, list(pods.values())))
    for turn, number in enumerate(order):
        one = pods.get(f"p{number}")
        if one is None:
            continue
        try:
            item = budget_after_eviction(one, [item], NOW) or item
        except StatusError:
            continue
        del pods[f"p{number}"]
        healthy = sum(row.status == "True" for left in pods.values() for row in left.status.conditions)
        assert healthy >= min(wanted, ready)
        if turn % 2:
            item = replace(item, status=status_of(item, list(pods.values())))


def test_bodies_of_evictions() -> None:
    found = decode_eviction(
        "p", {"kind": "Eviction", "apiVersion": "policy/v1beta1", "metadata": {"name": "p"}, "spec": None}
    )
    assert found.delete_options is None
    asked = {"metadata": {"name": "p"}, "deleteOptions": {"gracePeriodSeconds": 7, "dryRun": ["All"]}}
    options = decode_eviction("p", asked).delete_options
    assert options is not None
    assert (options.grace_period_seconds, options.dry_run) == (7, ("All",))
    wrongs: tuple[Any, ...] = ({}, {"metadata": {"name": "q"}}, {"kind": "Pod", "metadata": {"name": "p"}}, [], None)
    for wrong in wrongs:
        with pytest.raises(StatusError) as refused:
            decode_eviction("p", wrong)
        assert refused.value.status.code == 400


def test_the_pod_says_why_it_ends() -> None:
    once = with_eviction_condition(pod("a"), NOW)
    row = once.status.conditions[-1]
    assert (row.type, row.status, row.reason) == ("DisruptionTarget", "True", "EvictionByEvictionAPI")
    assert with_eviction_condition(once, NOW) is once
