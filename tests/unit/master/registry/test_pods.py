"""Evictions of pods."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from api.core.pod import Pod
from master.errors import StatusError
from master.registry.pods import budget_after_eviction, decode_eviction, with_eviction_condition
from master.resources.disruption_budgets import PodDisruptionBudget, PodDisruptionBudgetStatus
from tests.unit.master.controllers.workloads.examples import NOW, budget, pod, status_of
from tests.unit.master.examples import meta

# --- evictions --------------------------------------------------------------------------------------------------------


def counted(allowed: int, healthy: int = 3, desired: int = 2, generation: int = 3) -> PodDisruptionBudgetStatus:
    return PodDisruptionBudgetStatus(
        observed_generation=generation,
        disruptions_allowed=allowed,
        current_healthy=healthy,
        desired_healthy=desired,
        expected_pods=3,
    )


def test_eviction_decreases_the_budget_and_reports_its_exhaustion() -> None:
    obj = budget(counted(2))
    once = budget_after_eviction(pod("a"), [obj], NOW)
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
def test_eviction_rejections_have_the_reference_messages(
    budgets: list[PodDisruptionBudget], code: int, why: str
) -> None:
    with pytest.raises(StatusError) as refused:
        budget_after_eviction(pod("a"), budgets, NOW)
    status = refused.value.status
    messages = [status.message, *(cause.message for cause in (status.details.causes if status.details else ()))]
    assert status.code == code
    assert any(why in text for text in messages), messages


FREE = [
    pod("a", phase="Succeeded"), pod("a", phase="Failed"), pod("a", phase="Pending"),
    pod("a", deletion_timestamp="2026-01-01T12:00:30Z"),
    replace(pod("a"), metadata=meta("a", namespace="red", labels={"app": "other"})),
    replace(pod("a"), metadata=meta("a", namespace="blue", labels={"app": "web"})),
]  # fmt: skip


@pytest.mark.parametrize("obj", FREE)
def test_eviction_of_pods_without_a_budget_is_free(obj: Pod) -> None:
    assert budget_after_eviction(obj, [budget(counted(0))], NOW) is None
    with pytest.raises(StatusError):
        budget_after_eviction(pod("a"), [budget(counted(0))], NOW)


@pytest.mark.parametrize(
    ("policy", "healthy", "free"),
    [(None, 2, True), (None, 1, False), ("IfHealthyBudget", 1, False), ("AlwaysAllow", 1, True)],
)
def test_unhealthy_pod_eviction_policy_is_applied(policy: str | None, healthy: int, free: bool) -> None:
    obj = budget(counted(0, healthy, 2), unhealthyPodEvictionPolicy=policy)
    if free:
        assert budget_after_eviction(pod("a", ready=False), [obj], NOW) is None
    else:
        with pytest.raises(StatusError):
            budget_after_eviction(pod("a", ready=False), [obj], NOW)


@given(st.integers(0, 8), st.integers(0, 10), st.lists(st.integers(0, 7), max_size=20))
def test_evictions_never_leave_fewer_healthy_pods_than_required(ready: int, wanted: int, order: list[int]) -> None:
    """Evictions in any order, the controller looking at any time: every second one here."""
    pods = {f"p{n}": pod(f"p{n}", n < ready) for n in range(8)}
    disruption_budget = budget(minAvailable=wanted)
    disruption_budget = replace(disruption_budget, status=status_of(disruption_budget, list(pods.values())))
    for turn, number in enumerate(order):
        stored_pod = pods.get(f"p{number}")
        if stored_pod is None:
            continue
        try:
            disruption_budget = budget_after_eviction(stored_pod, [disruption_budget], NOW) or disruption_budget
        except StatusError:
            continue
        del pods[f"p{number}"]
        healthy = sum(condition.status == "True" for left in pods.values() for condition in left.status.conditions)
        assert healthy >= min(wanted, ready)
        if turn % 2:
            disruption_budget = replace(disruption_budget, status=status_of(disruption_budget, list(pods.values())))


def test_eviction_body_is_validated() -> None:
    eviction = decode_eviction(
        "p", {"kind": "Eviction", "apiVersion": "policy/v1beta1", "metadata": {"name": "p"}, "spec": None}
    )
    assert eviction.delete_options is None
    requested = {"metadata": {"name": "p"}, "deleteOptions": {"gracePeriodSeconds": 7, "dryRun": ["All"]}}
    options = decode_eviction("p", requested).delete_options
    assert options is not None
    assert (options.grace_period_seconds, options.dry_run) == (7, ("All",))
    wrongs: tuple[Any, ...] = ({}, {"metadata": {"name": "q"}}, {"kind": "Pod", "metadata": {"name": "p"}}, [], None)
    for wrong in wrongs:
        with pytest.raises(StatusError) as refused:
            decode_eviction("p", wrong)
        assert refused.value.status.code == 400


def test_evicted_pod_has_a_disruption_condition() -> None:
    once = with_eviction_condition(pod("a"), NOW)
    condition = once.status.conditions[-1]
    assert (condition.type, condition.status, condition.reason) == ("DisruptionTarget", "True", "EvictionByEvictionAPI")
    assert with_eviction_condition(once, NOW) is once
