"""Restart policy and crash-loop back-off, as pod actions show them."""

from __future__ import annotations

from datetime import timedelta

import pytest

from node_agent.runtime.actions import PodActions, compute_pod_actions
from node_agent.runtime.restarts import backoff_delay
from tests.unit.node_agent.examples import NOW, make_container, make_pod, make_runtime_pod

WEB = make_pod()
POLICIES = {policy: make_pod(spec=f"  restartPolicy: {policy}") for policy in ("Always", "OnFailure", "Never")}


def names(of: PodActions) -> list[tuple[str, int, int]]:
    return [(start.container.name, start.restarts, start.crashes) for start in of.start]


@pytest.mark.parametrize(
    ("policy", "code", "again"),
    [("Always", 0, True), ("Always", 1, True), ("OnFailure", 0, False), ("OnFailure", 1, True), ("Never", 1, False)],
)
def test_restart_policy_decides_about_an_ended_container(policy: str, code: int, again: bool) -> None:
    pod = POLICIES[policy]
    actions = compute_pod_actions(pod, make_runtime_pod(make_container(pod, state="exited", code=code)), NOW)
    assert bool(actions.start) == again
    assert actions.finished != again


@pytest.mark.parametrize(
    ("crashes", "seconds"), [(0, 0), (1, 10), (2, 20), (3, 40), (5, 160), (6, 300), (7, 300), (4000, 300)]
)
def test_crash_back_off_doubles(crashes: int, seconds: int) -> None:
    assert backoff_delay(crashes) == timedelta(seconds=seconds)


def test_crash_back_off_counts_from_the_containers_end() -> None:
    dead = make_container(WEB, state="exited", code=1, restarts=2, crashes=2, ended=5)
    actions = compute_pod_actions(WEB, make_runtime_pod(dead), NOW)
    assert not actions.start
    assert actions.wake_at() == NOW + timedelta(seconds=15)
    later = compute_pod_actions(WEB, make_runtime_pod(dead), NOW + timedelta(seconds=15))
    assert names(later) == [("main", 3, 3)]


def test_crash_back_off_resets_after_a_long_run() -> None:
    dead = make_container(WEB, state="exited", code=1, restarts=7, crashes=6, ran=600)
    assert names(compute_pod_actions(WEB, make_runtime_pod(dead), NOW)) == [("main", 8, 1)]


def test_crash_soon_after_a_long_run_waits_for_the_first_delay_only() -> None:
    after_long_run = make_container(WEB, state="exited", code=1, restarts=4, crashes=4, ran=1200)
    restart = compute_pod_actions(WEB, make_runtime_pod(after_long_run), NOW).start[0]
    crashed_again = make_container(WEB, state="exited", code=1, restarts=restart.restarts, crashes=restart.crashes)
    actions = compute_pod_actions(WEB, make_runtime_pod(crashed_again), NOW)
    assert actions.wake_at() == NOW + timedelta(seconds=10)


def test_end_time_in_the_future_does_not_delay_a_restart() -> None:
    dead = make_container(WEB, state="exited", code=1, restarts=7, crashes=6, ended=-86400)
    assert names(compute_pod_actions(WEB, make_runtime_pod(dead), NOW)) == [("main", 8, 7)]
