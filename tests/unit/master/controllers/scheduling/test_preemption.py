"""Preemption of pods by others of higher priority."""

from __future__ import annotations

import datetime
from collections.abc import Iterable

from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from api.core.node import Node
from api.core.pod import Pod
from api.meta.selectors import LabelSelector
from api.meta.types import ObjectMeta
from master.controllers.actions import Action, Create, Delete, Update
from master.controllers.scheduling import scheduler
from master.controllers.scheduling.preemption import Preemption, cluster_view, preemption
from master.controllers.scheduling.volume_binding import VolumeBinder
from master.resources.disruption_budgets import PodDisruptionBudget, PodDisruptionBudgetSpec, PodDisruptionBudgetStatus
from tests.unit.master.examples import node, pod

NOW = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)
SMALL = node("a", capacity={"cpu": "4", "pods": "10"})


def at(name: str, cpu: int, priority: int = 0, on: str = "a", **status: str) -> Pod:
    made = pod(name, node=on, requests={"cpu": str(cpu)}, phase="Running" if on else "Pending")
    made = replace(made, metadata=replace(made.metadata, labels={"name": name}))
    return replace(made, spec=replace(made.spec, priority=priority), status=replace(made.status, **status))


def preempt(new: Pod, pods: Iterable[Pod], *nodes: Node, budgets: tuple[PodDisruptionBudget, ...] = ()) -> list[str]:
    """Return the node and the names of the victims."""
    answer = preemption(new, cluster_view(nodes or (SMALL,), pods, (), budgets, VolumeBinder()))
    return [] if answer is None else [answer.node, *sorted(victim.metadata.name for victim in answer.victims)]


def budget(name: str, allowed: int) -> PodDisruptionBudget:
    return PodDisruptionBudget(
        metadata=ObjectMeta(name=name, namespace="red", uid=f"uid-{name}"),
        spec=PodDisruptionBudgetSpec(selector=LabelSelector(match_labels={"name": name})),
        status=PodDisruptionBudgetStatus(disruptions_allowed=allowed),
    )


def test_preemption_selects_the_fewest_and_lowest_priority_victims() -> None:
    there = [at("low", 1), at("mid", 1, 5), at("big", 2, 3)]
    assert preempt(at("new", 1, 10, on=""), there) == ["a", "low"]
    assert preempt(at("new", 2, 10, on=""), there) == ["a", "big"]
    assert preempt(at("new", 3, 10, on=""), there) == ["a", "big", "low"]
    assert preempt(at("new", 4, 10, on=""), there) == ["a", "big", "low", "mid"]


def test_preemption_needs_higher_priority_a_fit_and_a_preempting_policy() -> None:
    there = [at("one", 4, 5)]
    assert preempt(at("new", 1, 6, on=""), there) == ["a", "one"]
    assert preempt(at("new", 1, 5, on=""), there) == []
    assert preempt(at("new", 5, 6, on=""), there) == []
    modest = at("new", 1, 6, on="")
    assert preempt(replace(modest, spec=replace(modest.spec, preemption_policy="Never")), there) == []
    elsewhere = replace(modest, spec=replace(modest.spec, node_selector={"disk": "ssd"}))
    assert preempt(elsewhere, there) == []


def test_preemption_selects_the_node_with_the_least_loss() -> None:
    nodes = (SMALL, node("b", capacity={"cpu": "4"}), node("c", capacity={"cpu": "4"}))
    there = [at("a1", 4, 7), at("b1", 2, 1, "b"), at("b2", 2, 1, "b"), at("c1", 4, 1, "c")]
    assert preempt(at("new", 4, 9, on=""), there, *nodes) == ["c", "c1"]
    assert preempt(at("new", 2, 9, on=""), there, *nodes)[0] in ("b", "c")
    there[3] = at("c1", 4, 2, "c")
    assert preempt(at("new", 4, 9, on=""), there, *nodes) == ["b", "b1", "b2"]


def test_preemption_selects_pods_under_a_disruption_budget_last() -> None:
    there = [at("guarded", 2, 1), at("free", 2, 2)]
    new = at("new", 2, 9, on="")
    assert preempt(new, there) == ["a", "guarded"]
    assert preempt(new, there, budgets=(budget("guarded", 0),)) == ["a", "free"]
    assert preempt(new, there, budgets=(budget("guarded", 1),)) == ["a", "guarded"]
    assert preempt(at("new", 4, 9, on=""), there, budgets=(budget("guarded", 0),)) == ["a", "free", "guarded"]


def pass_over(*pods: Pod) -> list[Action]:
    return list(scheduler.reconcile([SMALL], pods, [], [], NOW))


def test_preemption_happens_once_and_nominates_the_node() -> None:
    new, old = at("new", 4, 9, on=""), at("old", 4)
    outcomes = pass_over(new, old)
    (end,) = (outcome for outcome in outcomes if isinstance(outcome, Delete))
    assert [condition.reason for condition in end.object.status.conditions] == ["PreemptionByScheduler"]  # type: ignore[attr-defined]
    (change,) = (outcome for outcome in outcomes if isinstance(outcome, Update))
    assert change.object.status.nominated_node_name == "a"  # type: ignore[attr-defined]
    reasons = {outcome.object.reason for outcome in outcomes if isinstance(outcome, Create)}  # type: ignore[attr-defined]
    assert reasons == {"Preempted", "FailedScheduling"}
    going = replace(old, metadata=replace(old.metadata, deletion_timestamp="2026-01-01T00:00:30Z"))
    waiting: Pod = change.object  # type: ignore[assignment]
    assert not pass_over(waiting, going)
    half = replace(going, spec=at("half", 2).spec)
    small = at("small", 1, on="")
    node_names = [
        action.object.spec.node_name  # type: ignore[attr-defined]
        for action in pass_over(waiting, half, small)
        if isinstance(action, Update)
    ]
    assert node_names == [""], "the small one does not take what is being made free for the important one"
    (placed,) = (action for action in pass_over(waiting) if isinstance(action, Update))
    assert (placed.object.spec.node_name, placed.object.status.nominated_node_name) == ("a", "")  # type: ignore[attr-defined]


def test_many_pending_pods_are_scheduled_in_batches() -> None:
    crowd = [pod(f"p{number:03}") for number in range(scheduler.MAX_PER_PASS + 5)]
    wide = node("a", capacity={"pods": "2000"})
    first = [action.object for action in scheduler.reconcile([wide], crowd, [], [], NOW) if isinstance(action, Update)]
    assert len(first) == scheduler.MAX_PER_PASS
    left = [candidate for candidate in crowd if candidate.metadata.name not in {bound.metadata.name for bound in first}]
    rest = [
        action
        for action in scheduler.reconcile([wide], [*left, *first], [], [], NOW)  # type: ignore[list-item]
        if isinstance(action, Update)
    ]
    assert len(rest) == 5


@given(st.lists(st.tuples(st.integers(1, 3), st.integers(0, 5)), max_size=6), st.integers(1, 4), st.integers(0, 6))
def test_preemption_victims_have_lower_priority_and_are_all_necessary(
    rows: list[tuple[int, int]], cpu: int, priority: int
) -> None:
    there = [at(f"p{number}", *arguments) for number, arguments in enumerate(rows)]
    used = sum(size for size, _ in rows)
    answer = preemption(at("new", cpu, priority, on=""), cluster_view([SMALL], there, (), (), VolumeBinder()))
    if answer is None:
        lower = sum(size for size, rank in rows if rank < priority)
        assert used - lower + cpu > 4 or not lower
        return
    assert isinstance(answer, Preemption)
    sizes = [
        dict(zip((candidate.metadata.name for candidate in there), rows, strict=True))[v.metadata.name]
        for v in answer.victims
    ]
    assert all(rank < priority for _, rank in sizes)
    freed = sum(size for size, _ in sizes)
    assert used - freed + cpu <= 4
    assert all(used - freed + size + cpu > 4 for size, _ in sizes)
