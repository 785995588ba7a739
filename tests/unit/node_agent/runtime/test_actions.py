"""Actions for a pod, and its status, for every state of Docker."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from api.core.pod import Pod, PodStatus
from api.core.resource_requests import all_containers
from api.meta.types import Condition
from node_agent.pods.status import StatusInputs, compute_pod_status, merge_status
from node_agent.runtime import container as label
from node_agent.runtime.actions import PodActions, compute_pod_actions
from node_agent.runtime.container import RuntimePod, group_containers
from node_agent.runtime.restarts import backoff_delay
from node_agent.runtime.termination import Termination, plan_termination
from tests.unit.node_agent.examples import NOW, container, pod, runtime_pod, sandbox, with_status

WEB = pod()
PAIR = pod("[{name: main, image: toolbox}, {name: side, image: toolbox}]")
POLICIES = {policy: pod(spec=f"  restartPolicy: {policy}") for policy in ("Always", "OnFailure", "Never")}


def names(of: PodActions) -> list[tuple[str, int, int]]:
    return [(start.container.name, start.restarts, start.crashes) for start in of.start]


def test_new_pod_gets_a_sandbox_and_all_containers() -> None:
    actions = compute_pod_actions(PAIR, group_containers([]), NOW)
    assert actions.sandbox_attempt == 0
    assert names(actions) == [("main", 0, 0), ("side", 0, 0)]
    assert str(actions) == "new sandbox 0, start main side"


def test_running_pod_needs_no_action() -> None:
    actions = compute_pod_actions(PAIR, runtime_pod(container(PAIR), container(PAIR, "side")), NOW)
    assert actions == PodActions()
    assert str(actions) == ""


def test_created_but_unstarted_container_is_recreated() -> None:
    unborn = container(WEB, state="created", restarts=3, crashes=2)
    actions = compute_pod_actions(WEB, runtime_pod(unborn), NOW)
    assert actions.remove == (unborn,)
    assert names(actions) == [("main", 3, 2)]


@pytest.mark.parametrize(
    ("policy", "code", "again"),
    [("Always", 0, True), ("Always", 1, True), ("OnFailure", 0, False), ("OnFailure", 1, True), ("Never", 1, False)],
)
def test_restart_policy_decides_about_an_ended_container(policy: str, code: int, again: bool) -> None:
    wish = POLICIES[policy]
    actions = compute_pod_actions(wish, runtime_pod(container(wish, state="exited", code=code)), NOW)
    assert bool(actions.start) == again
    assert actions.finished != again


@pytest.mark.parametrize(
    ("crashes", "seconds"), [(0, 0), (1, 10), (2, 20), (3, 40), (5, 160), (6, 300), (7, 300), (4000, 300)]
)
def test_crash_back_off_doubles(crashes: int, seconds: int) -> None:
    assert backoff_delay(crashes) == timedelta(seconds=seconds)


def test_crash_back_off_counts_from_the_containers_end() -> None:
    dead = container(WEB, state="exited", code=1, restarts=2, crashes=2, ended=5)
    actions = compute_pod_actions(WEB, runtime_pod(dead), NOW)
    assert not actions.start
    assert actions.wake_at() == NOW + timedelta(seconds=15)
    later = compute_pod_actions(WEB, runtime_pod(dead), NOW + timedelta(seconds=15))
    assert names(later) == [("main", 3, 3)]


def test_crash_back_off_resets_after_a_long_run() -> None:
    dead = container(WEB, state="exited", code=1, restarts=7, crashes=6, ran=600)
    assert names(compute_pod_actions(WEB, runtime_pod(dead), NOW)) == [("main", 8, 1)]


def test_end_time_in_the_future_does_not_delay_a_restart() -> None:
    dead = container(WEB, state="exited", code=1, restarts=7, crashes=6, ended=-86400)
    assert names(compute_pod_actions(WEB, runtime_pod(dead), NOW)) == [("main", 8, 7)]


def test_containers_end_with_their_sandbox_and_start_in_a_new_one() -> None:
    seen = runtime_pod(container(PAIR), container(PAIR, "side", state="exited"), box=sandbox(state="exited", attempt=4))
    actions = compute_pod_actions(PAIR, seen, NOW)
    assert [one.name for one in actions.kill] == ["main"]
    assert actions.sandbox_attempt == 5
    assert actions.remove == seen.sandboxes
    assert names(actions) == [("main", 1, 0), ("side", 1, 0)]


def test_never_started_sandbox_is_ignored() -> None:
    unborn = sandbox(2, "created")
    actions = compute_pod_actions(WEB, group_containers([unborn]), NOW)
    assert (actions.sandbox_attempt, actions.remove) == (2, (unborn,))


def test_container_of_another_sandbox_is_replaced() -> None:
    actions = compute_pod_actions(WEB, runtime_pod(container(WEB, inside="another")), NOW)
    assert [one.name for one in actions.kill] == ["main"]
    assert names(actions) == [("main", 1, 0)]


def test_completed_container_is_not_repeated_when_the_sandbox_is_lost() -> None:
    wish = POLICIES["OnFailure"]
    done = container(wish, state="exited", code=0)
    assert compute_pod_actions(wish, runtime_pod(done, box=sandbox(state="exited")), NOW).finished
    assert compute_pod_actions(wish, group_containers([done]), NOW).finished


def test_container_with_a_changed_image_restarts_without_back_off() -> None:
    old = replace(container(WEB), labels=dict(container(WEB).labels) | {label.HASH: "other"})
    actions = compute_pod_actions(WEB, runtime_pod(old), NOW)
    assert actions.stop == (old,)
    assert not actions.start
    ended = replace(old, state="exited", exit_code=143, finished_at=NOW)
    assert names(compute_pod_actions(WEB, runtime_pod(ended), NOW, frozenset({old.id}))) == [("main", 1, 0)]


def test_pod_in_a_final_phase_never_starts_again() -> None:
    actions = compute_pod_actions(with_status(WEB, PodStatus(phase="Failed")), runtime_pod(container(WEB)), NOW)
    assert actions.finished
    assert not actions.start
    assert [one.name for one in actions.kill] == ["POD"]


def test_termination_signals_once_and_kills_at_the_deadline() -> None:
    main, side = container(PAIR), container(PAIR, "side", state="exited")
    deadline = NOW + timedelta(seconds=30)
    first = plan_termination(PAIR, runtime_pod(main, side), frozenset(), deadline, NOW)
    assert (first.signal, first.kill, first.deadline) == ((main,), (), deadline)
    second = plan_termination(PAIR, runtime_pod(main, side), frozenset({main.id}), deadline, NOW)
    assert (second.signal, second.deadline) == ((), deadline)
    assert plan_termination(PAIR, runtime_pod(main, side), frozenset({main.id}), deadline, deadline).kill == (main,)
    gone = plan_termination(PAIR, runtime_pod(replace(main, state="exited"), side), frozenset({main.id}), deadline, NOW)
    assert gone == Termination()


def states() -> st.SearchStrategy[str]:
    return st.sampled_from(["running", "exited", "created"])


INIT = "  initContainers: [{name: first, image: i}, {name: proxy, image: p, restartPolicy: Always}]"


@st.composite
def situations(draw: st.DrawFn) -> tuple[Pod, RuntimePod]:
    """Any pod of one or two containers, and anything that may lie in Docker of it."""
    wish = pod(
        draw(st.sampled_from(["[{name: main, image: a}]", "[{name: main, image: a}, {name: side, image: b}]"])),
        f"  restartPolicy: {draw(st.sampled_from(['Always', 'OnFailure', 'Never']))}\n"
        + draw(st.sampled_from(["", INIT])),
    )
    boxes = [sandbox(number, draw(states()), f"box-{number}") for number in range(draw(st.integers(0, 2)))]
    found = [
        container(
            wish,
            one.name,
            state=draw(states()),
            code=draw(st.sampled_from([0, 1])),
            restarts=number,
            crashes=number,
            ended=draw(st.sampled_from([0.0, 5.0, 9999.0])),
            inside=draw(st.sampled_from(["box-0", "box-1"])),
        )
        for one in all_containers(wish)
        for number in range(draw(st.integers(0, 3)))
    ]
    return wish, group_containers([*boxes, *found])


def carried_out(wish: Pod, seen: RuntimePod, actions: PodActions) -> RuntimePod:
    """Docker after the actions, when every start succeeds and every container that is killed ends."""
    dropped = {one.id for one in actions.remove}
    killed = {one.id for one in actions.kill}
    found = [
        replace(one, state="exited", exit_code=137, finished_at=NOW) if one.id in killed else one
        for one in seen.all
        if one.id not in dropped
    ]
    box = seen.sandbox.id if seen.sandbox is not None else ""
    if actions.sandbox_attempt is not None:
        box = f"box-{actions.sandbox_attempt}"
        found.append(sandbox(actions.sandbox_attempt, identity=box))
    found += [
        container(wish, start.container.name, restarts=start.restarts, crashes=start.crashes, inside=box)
        for start in actions.start
    ]
    return group_containers(found)


@given(situations())
def test_pod_actions_converge_after_one_round(situation: tuple[Pod, RuntimePod]) -> None:
    """Whatever was found: nothing runs twice, and after one round the next plan starts and kills nothing more."""
    wish, seen = situation
    actions = compute_pod_actions(wish, seen, NOW)
    assert len({start.container.name for start in actions.start}) == len(actions.start)
    after = carried_out(wish, seen, actions)
    for history in after.containers.values():
        assert len({one.restart_count for one in history}) == len(history), "every start has a number of its own"
    again = compute_pod_actions(wish, after, NOW)
    fresh = {(start.container.name, start.restarts) for start in actions.start}
    assert not fresh & {(one.name, one.restart_count) for one in again.kill}, "what was just started is not killed"
    assert again.sandbox_attempt is None or not actions.start


def facts(**other: object) -> StatusInputs:
    return StatusInputs(node_address="10.245.2.3", address="10.128.0.2", now=NOW, started_at=NOW, **other)  # type: ignore[arg-type]


def test_running_pod_is_ready() -> None:
    status = compute_pod_status(WEB, runtime_pod(container(WEB)), facts())
    assert (status.phase, status.pod_ip, status.host_ip) == ("Running", "10.128.0.2", "10.245.2.3")
    assert {row.type: row.status for row in status.conditions} == {
        "PodReadyToStartContainers": "True",
        "Initialized": "True",
        "Ready": "True",
        "ContainersReady": "True",
        "PodScheduled": "True",
    }


def test_condition_transition_time_changes_only_with_its_status() -> None:
    first = compute_pod_status(WEB, runtime_pod(container(WEB)), facts())
    known = with_status(WEB, first)
    later = replace(facts(), now=NOW + timedelta(seconds=60))
    assert compute_pod_status(known, runtime_pod(container(WEB)), later) == first
    broken = compute_pod_status(known, runtime_pod(container(WEB, state="exited", code=1, ended=0)), later)
    moved = {row.type for row in broken.conditions if row.last_transition_time == "2026-01-31T12:01:00Z"}
    assert moved == {"Ready", "ContainersReady"}


def test_crash_loop_is_reported_with_its_back_off() -> None:
    dead = container(WEB, state="exited", code=3, restarts=2, crashes=2)
    (row,) = compute_pod_status(WEB, runtime_pod(dead), facts()).container_statuses
    assert row.restart_count == 2
    assert row.state.waiting is not None
    assert row.state.waiting.reason == "CrashLoopBackOff"
    assert row.state.waiting.message == f"back-off 20s restarting failed container=main pod=web_red({WEB.metadata.uid})"
    assert row.last_state.terminated is not None
    assert row.last_state.terminated.exit_code == 3


@pytest.mark.parametrize(("codes", "phase"), [((0, 0), "Succeeded"), ((0, 1), "Failed")])
def test_completed_pod_has_a_final_phase(codes: tuple[int, int], phase: str) -> None:
    wish = pod("[{name: main, image: a}, {name: side, image: b}]", "  restartPolicy: Never")
    main, side = (
        container(wish, name, state="exited", code=code) for name, code in zip(("main", "side"), codes, strict=True)
    )
    status = compute_pod_status(wish, runtime_pod(main, side), facts())
    assert status.phase == phase
    assert {row.reason for row in status.conditions if row.type == "Ready"} == {
        f"Pod{'Completed' if phase == 'Succeeded' else 'Failed'}"
    }
    assert compute_pod_status(with_status(wish, status), group_containers([]), facts()).phase == phase, (
        "a final phase stays"
    )


def test_unstartable_container_reports_why() -> None:
    dead = container(WEB, state="created", code=127, error="exec: no such file")
    trouble = {"main": ("RunContainerError", "Docker: exec: no such file")}
    (row,) = compute_pod_status(WEB, runtime_pod(dead), facts(container_failures=trouble)).container_statuses
    assert row.state.waiting is not None
    assert (row.state.waiting.reason, row.state.waiting.message) == trouble["main"]
    assert not row.ready


def test_last_state_of_removed_containers_is_kept() -> None:
    ended = compute_pod_status(WEB, runtime_pod(container(WEB, state="exited", code=7)), facts(terminating=True))
    after = compute_pod_status(with_status(WEB, ended), group_containers([]), facts(terminating=True))
    assert (after.phase, after.container_statuses) == ("Failed", ended.container_statuses)


def test_oom_kill_is_reported() -> None:
    wish = POLICIES["Never"]
    dead = replace(container(wish, state="exited", code=137), oom_killed=True)
    (row,) = compute_pod_status(wish, runtime_pod(dead), facts()).container_statuses
    assert row.state.terminated is not None
    assert row.state.terminated.reason == "OOMKilled"


def test_pod_without_a_sandbox_waits_and_is_not_ready() -> None:
    status = compute_pod_status(
        WEB, group_containers([]), replace(facts(), address="", sandbox_failure=("FailedCreatePodSandBox", "no room"))
    )
    assert (status.phase, status.reason, status.message) == ("Pending", "FailedCreatePodSandBox", "no room")
    assert not any(row.status == "True" for row in status.conditions if row.type in {"Ready", "ContainersReady"})


def test_status_fields_of_others_are_kept() -> None:
    ours = compute_pod_status(WEB, runtime_pod(container(WEB)), facts())
    gate = Condition(type="example.com/gate", status="True")
    theirs = PodStatus(phase="Failed", conditions=(gate, *ours.conditions), nominated_node_name="node-9")
    written = merge_status(ours, theirs)
    assert written.conditions == (*ours.conditions, gate)
    assert (written.phase, written.nominated_node_name) == ("Running", "node-9")
    assert merge_status(ours, written) == written
