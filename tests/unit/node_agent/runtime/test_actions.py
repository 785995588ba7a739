"""Actions for a pod for every state of Docker."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

from hypothesis import given
from hypothesis import strategies as st

from api.core.pod import Pod, PodStatus
from api.core.resource_requests import all_containers
from node_agent.runtime import container as label
from node_agent.runtime.actions import PodActions, compute_pod_actions
from node_agent.runtime.container import RuntimePod, group_containers
from node_agent.runtime.termination import Termination, plan_termination
from tests.unit.node_agent.examples import NOW, make_container, make_pod, make_runtime_pod, make_sandbox, with_status

WEB = make_pod()
PAIR = make_pod("[{name: main, image: toolbox}, {name: side, image: toolbox}]")
POLICIES = {policy: make_pod(spec=f"  restartPolicy: {policy}") for policy in ("Always", "OnFailure", "Never")}


def names(of: PodActions) -> list[tuple[str, int, int]]:
    return [(start.container.name, start.restarts, start.crashes) for start in of.start]


def test_new_pod_gets_a_sandbox_and_all_containers() -> None:
    actions = compute_pod_actions(PAIR, group_containers([]), NOW)
    assert actions.sandbox_attempt == 0
    assert names(actions) == [("main", 0, 0), ("side", 0, 0)]
    assert str(actions) == "new sandbox 0, start main side"


def test_running_pod_needs_no_action() -> None:
    actions = compute_pod_actions(PAIR, make_runtime_pod(make_container(PAIR), make_container(PAIR, "side")), NOW)
    assert actions == PodActions()
    assert str(actions) == ""


def test_created_but_unstarted_container_is_recreated() -> None:
    never_started = make_container(WEB, state="created", restarts=3, crashes=2)
    actions = compute_pod_actions(WEB, make_runtime_pod(never_started), NOW)
    assert actions.remove == (never_started,)
    assert names(actions) == [("main", 3, 2)]


def test_containers_end_with_their_sandbox_and_start_in_a_new_one() -> None:
    runtime_pod = make_runtime_pod(
        make_container(PAIR),
        make_container(PAIR, "side", state="exited"),
        sandbox=make_sandbox(state="exited", attempt=4),
    )
    actions = compute_pod_actions(PAIR, runtime_pod, NOW)
    assert [container.name for container in actions.kill] == ["main"]
    assert actions.sandbox_attempt == 5
    assert actions.remove == runtime_pod.sandboxes
    assert names(actions) == [("main", 1, 0), ("side", 1, 0)]


def test_never_started_sandbox_is_ignored() -> None:
    never_started = make_sandbox(2, "created")
    actions = compute_pod_actions(WEB, group_containers([never_started]), NOW)
    assert (actions.sandbox_attempt, actions.remove) == (2, (never_started,))


def test_container_of_another_sandbox_is_replaced() -> None:
    actions = compute_pod_actions(WEB, make_runtime_pod(make_container(WEB, inside="another")), NOW)
    assert [container.name for container in actions.kill] == ["main"]
    assert names(actions) == [("main", 1, 0)]


def test_completed_container_is_not_repeated_when_the_sandbox_is_lost() -> None:
    pod = POLICIES["OnFailure"]
    done = make_container(pod, state="exited", code=0)
    assert compute_pod_actions(pod, make_runtime_pod(done, sandbox=make_sandbox(state="exited")), NOW).finished
    assert compute_pod_actions(pod, group_containers([done]), NOW).finished


def test_container_with_a_changed_image_restarts_without_back_off() -> None:
    old = replace(make_container(WEB), labels=dict(make_container(WEB).labels) | {label.HASH: "other"})
    actions = compute_pod_actions(WEB, make_runtime_pod(old), NOW)
    assert actions.stop == (old,)
    assert not actions.start
    exited = replace(old, state="exited", exit_code=143, finished_at=NOW)
    assert names(compute_pod_actions(WEB, make_runtime_pod(exited), NOW, frozenset({old.id}))) == [("main", 1, 0)]


def test_pod_in_a_final_phase_never_starts_again() -> None:
    actions = compute_pod_actions(
        with_status(WEB, PodStatus(phase="Failed")), make_runtime_pod(make_container(WEB)), NOW
    )
    assert actions.finished
    assert not actions.start
    assert [container.name for container in actions.kill] == ["POD"]


def test_termination_signals_once_and_kills_at_the_deadline() -> None:
    main, side = make_container(PAIR), make_container(PAIR, "side", state="exited")
    deadline = NOW + timedelta(seconds=30)
    first = plan_termination(PAIR, make_runtime_pod(main, side), frozenset(), deadline, NOW)
    assert (first.signal, first.kill, first.deadline) == ((main,), (), deadline)
    second = plan_termination(PAIR, make_runtime_pod(main, side), frozenset({main.id}), deadline, NOW)
    assert (second.signal, second.deadline) == ((), deadline)
    assert plan_termination(PAIR, make_runtime_pod(main, side), frozenset({main.id}), deadline, deadline).kill == (
        main,
    )
    finished = plan_termination(
        PAIR, make_runtime_pod(replace(main, state="exited"), side), frozenset({main.id}), deadline, NOW
    )
    assert finished == Termination()


def states() -> st.SearchStrategy[str]:
    return st.sampled_from(["running", "exited", "created"])


INIT = "  initContainers: [{name: first, image: i}, {name: proxy, image: p, restartPolicy: Always}]"


@st.composite
def situations(draw: st.DrawFn) -> tuple[Pod, RuntimePod]:
    """Return any pod of one or two containers, with any of its containers in Docker."""
    pod = make_pod(
        draw(st.sampled_from(["[{name: main, image: a}]", "[{name: main, image: a}, {name: side, image: b}]"])),
        f"  restartPolicy: {draw(st.sampled_from(['Always', 'OnFailure', 'Never']))}\n"
        + draw(st.sampled_from(["", INIT])),
    )
    sandboxes = [make_sandbox(number, draw(states()), f"box-{number}") for number in range(draw(st.integers(0, 2)))]
    containers = [
        make_container(
            pod,
            container.name,
            state=draw(states()),
            code=draw(st.sampled_from([0, 1])),
            restarts=number,
            crashes=number,
            ended=draw(st.sampled_from([0.0, 5.0, 9999.0])),
            inside=draw(st.sampled_from(["box-0", "box-1"])),
        )
        for container in all_containers(pod)
        for number in range(draw(st.integers(0, 3)))
    ]
    return pod, group_containers([*sandboxes, *containers])


def apply_actions(pod: Pod, runtime_pod: RuntimePod, actions: PodActions) -> RuntimePod:
    """Return the containers after the actions, when every start succeeds and every killed container exits."""
    dropped = {container.id for container in actions.remove}
    killed = {container.id for container in actions.kill}
    containers = [
        replace(container, state="exited", exit_code=137, finished_at=NOW) if container.id in killed else container
        for container in runtime_pod.all
        if container.id not in dropped
    ]
    sandbox_id = runtime_pod.sandbox.id if runtime_pod.sandbox is not None else ""
    if actions.sandbox_attempt is not None:
        sandbox_id = f"box-{actions.sandbox_attempt}"
        containers.append(make_sandbox(actions.sandbox_attempt, identity=sandbox_id))
    containers += [
        make_container(pod, start.container.name, restarts=start.restarts, crashes=start.crashes, inside=sandbox_id)
        for start in actions.start
    ]
    return group_containers(containers)


@given(situations())
def test_pod_actions_converge_after_one_round(situation: tuple[Pod, RuntimePod]) -> None:
    """From every state nothing runs twice, and after one round the next actions start and kill nothing more."""
    pod, runtime_pod = situation
    actions = compute_pod_actions(pod, runtime_pod, NOW)
    assert len({start.container.name for start in actions.start}) == len(actions.start)
    after = apply_actions(pod, runtime_pod, actions)
    for history in after.containers.values():
        assert len({container.restart_count for container in history}) == len(history), (
            "every start has a number of its own"
        )
    again = compute_pod_actions(pod, after, NOW)
    new_keys = {(start.container.name, start.restarts) for start in actions.start}
    assert not new_keys & {(container.name, container.restart_count) for container in again.kill}, (
        "what was just started is not killed"
    )
    assert again.sandbox_attempt is None or not actions.start
