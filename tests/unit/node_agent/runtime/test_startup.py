"""The order of init containers, sidecars and ephemeral containers, and their status."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest
from msgspec.structs import replace as changed

from api.core.pod import ContainerStatus, EphemeralContainer, Pod, PodStatus
from node_agent.pods.status import StatusInputs, compute_pod_status
from node_agent.probes.state import ProbeResults
from node_agent.runtime.actions import PodActions, compute_pod_actions
from node_agent.runtime.container import RuntimeContainer, RuntimePod, group_containers
from node_agent.runtime.lifecycle_state import KillReason, LifecycleState, kill_reason
from node_agent.runtime.termination import plan_termination
from tests.unit.node_agent.examples import NOW, make_container, make_pod, make_runtime_pod, make_sandbox, with_status

INIT = """\
  initContainers:
  - {name: first, image: toolbox}
  - {name: proxy, image: toolbox, restartPolicy: Always}
  - {name: second, image: toolbox}
  - {name: late, image: toolbox, restartPolicy: Always}
"""
WEB = make_pod(spec=INIT)
NEVER = make_pod(spec=INIT + "  restartPolicy: Never")
FACTS = StatusInputs(node_address="10.245.2.3", address="10.128.0.2", now=NOW, started_at=NOW)


def ended(of: Pod, name: str, code: int = 0, **other: float) -> RuntimeContainer:
    return make_container(of, name, state="exited", code=code, **other)  # type: ignore[arg-type]


def starts(actions: PodActions) -> list[str]:
    return [start.container.name for start in actions.start]


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        ([], ["first"]),
        (["first"], []),
        (["first!"], ["proxy"]),
        (["first!", "proxy"], ["second"]),
        (["first!", "proxy", "second"], []),
        (["first!", "proxy", "second!"], ["late"]),
        (["first!", "proxy", "second!", "late"], ["main"]),
        (["first!", "proxy", "second!", "late", "main"], []),
        (["first!", "proxy!", "second!", "late", "main"], ["proxy"]),
        (["proxy", "late", "main"], []),
        (["main!"], ["proxy", "late", "main"]),
    ],
)
def test_init_containers_start_one_after_the_other(names: list[str], expected: list[str]) -> None:
    """`name!` has exited with 0. After a regular container was started, the pod is initialized."""
    runtime_pod = make_runtime_pod(
        *(ended(WEB, name[:-1]) if name.endswith("!") else make_container(WEB, name) for name in names)
    )
    assert starts(compute_pod_actions(WEB, runtime_pod, NOW)) == expected


def test_failed_init_container_is_retried_and_delays_the_rest() -> None:
    actions = compute_pod_actions(WEB, make_runtime_pod(ended(WEB, "first", 1, restarts=1, crashes=1, ended=4)), NOW)
    assert not actions.start
    assert actions.wake_at() == NOW + timedelta(seconds=6)
    assert starts(
        compute_pod_actions(WEB, make_runtime_pod(ended(WEB, "first", 1, restarts=1, crashes=1, ended=10)), NOW)
    ) == ["first"]


def test_permanently_failed_init_container_fails_the_pod() -> None:
    runtime_pod = make_runtime_pod(ended(NEVER, "first", 2))
    assert compute_pod_actions(NEVER, runtime_pod, NOW).finished
    status = compute_pod_status(NEVER, runtime_pod, FACTS)
    assert status.phase == "Failed"
    conditions = {
        condition.type: (condition.status, condition.reason, condition.message) for condition in status.conditions
    }
    expected = ("False", "ContainersNotInitialized", "containers with incomplete status: [first proxy second late]")
    assert conditions["Initialized"] == expected


def test_new_sandbox_restarts_with_the_first_init_container() -> None:
    done = [ended(WEB, "first"), ended(WEB, "second"), make_container(WEB, "proxy"), make_container(WEB, "main")]
    actions = compute_pod_actions(WEB, make_runtime_pod(*done, sandbox=make_sandbox(state="exited", attempt=1)), NOW)
    assert actions.sandbox_attempt == 2
    assert [(start.container.name, start.restarts) for start in actions.start] == [("first", 1)]
    inside = group_containers([*done, make_sandbox(2, identity="new"), replace(ended(WEB, "first", restarts=1), labels={
        **make_container(WEB, "first", restarts=1, inside="new").labels})])  # fmt: skip
    again = compute_pod_actions(WEB, inside, NOW)
    assert [(start.container.name, start.restarts) for start in again.start] == [("proxy", 1)]
    assert sorted(container.name for container in again.kill) == ["main", "proxy"]


def test_regular_containers_wait_for_init_containers() -> None:
    status = compute_pod_status(WEB, make_runtime_pod(make_container(WEB, "first")), FACTS)
    assert status.phase == "Pending"
    (main,) = status.container_statuses
    assert main.state.waiting is not None
    assert main.state.waiting.reason == "PodInitializing"
    first, proxy, second, later = status.init_container_statuses
    assert first.state.running is not None
    assert [container_status.ready for container_status in (first, proxy, second, later)] == [False] * 4
    assert {
        container_status.state.waiting.reason
        for container_status in (proxy, second, later)
        if container_status.state.waiting
    } == {"PodInitializing"}


def test_pod_with_a_replaced_sandbox_is_uninitialized_again() -> None:
    old = ended(WEB, "main", 137)
    runtime_pod = group_containers(
        [old, make_sandbox(1, identity="new"), make_container(WEB, "first", restarts=1, inside="new")]
    )
    (main,) = compute_pod_status(WEB, runtime_pod, FACTS).container_statuses
    assert main.state.waiting is not None
    assert main.state.waiting.reason == "PodInitializing"
    assert main.last_state.terminated is not None


RUNNING = make_runtime_pod(
    ended(WEB, "first"),
    make_container(WEB, "proxy"),
    ended(WEB, "second"),
    make_container(WEB, "late"),
    make_container(WEB),
)


def test_init_containers_of_an_initialized_pod_are_ready() -> None:
    status = compute_pod_status(WEB, RUNNING, FACTS)
    assert [
        (container_status.name, container_status.ready, container_status.started)
        for container_status in status.init_container_statuses
    ] == [
        ("first", True, False),
        ("proxy", True, True),
        ("second", True, False),
        ("late", True, True),
    ]
    assert {condition.type: condition.status for condition in status.conditions}["Initialized"] == "True"


def test_sidecars_end_last_in_reverse_order() -> None:
    deadline = NOW + timedelta(seconds=30)

    def to_stop(*names: str) -> list[str]:
        runtime_pod = make_runtime_pod(*(make_container(WEB, name) for name in names))
        return [container.name for container in plan_termination(WEB, runtime_pod, frozenset(), deadline, NOW).signal]

    assert to_stop("main", "proxy", "late") == ["main"]
    assert to_stop("proxy", "late") == ["late"]
    assert to_stop("proxy") == ["proxy"]
    later = plan_termination(
        WEB, make_runtime_pod(make_container(WEB), make_container(WEB, "proxy")), frozenset(), deadline, deadline
    )
    assert [container.name for container in later.kill] == ["main", "proxy"]


def test_pod_is_finished_when_its_sidecars_have_ended() -> None:
    pod = with_status(NEVER, PodStatus(phase="Running"))
    runtime_pod = make_runtime_pod(ended(pod, "main"), make_container(pod, "proxy"))
    assert compute_pod_actions(pod, runtime_pod, NOW).finished
    assert compute_pod_status(pod, runtime_pod, FACTS).phase == "Running"
    finished = compute_pod_status(pod, make_runtime_pod(ended(pod, "main"), ended(pod, "proxy", 143)), FACTS)
    assert finished.phase == "Succeeded"
    proxy = finished.init_container_statuses[1]
    assert proxy.state.terminated is not None


def debugged(of: Pod) -> Pod:
    extra = EphemeralContainer(name="debug", image="toolbox", target_container_name="main")
    return changed(of, spec=changed(of.spec, ephemeral_containers=(extra,)))


def with_extra(runtime_pod: RuntimePod, pod: Pod, state: str) -> RuntimePod:
    return group_containers([*runtime_pod.all, make_container(pod, "debug", state=state)])


def test_ephemeral_container_starts_at_once_and_never_restarts() -> None:
    pod = debugged(WEB)
    assert starts(compute_pod_actions(pod, make_runtime_pod(make_container(pod, "first")), NOW)) == ["debug"]
    assert starts(compute_pod_actions(pod, RUNNING, NOW)) == ["debug"]
    for state in ("running", "exited"):
        assert not compute_pod_actions(pod, with_extra(RUNNING, pod, state), NOW).start
    remaining = with_extra(RUNNING, pod, "created")
    assert (starts(compute_pod_actions(pod, remaining, NOW)), len(compute_pod_actions(pod, remaining, NOW).remove)) == (
        ["debug"],
        1,
    )
    assert not compute_pod_actions(
        pod, group_containers([make_sandbox(state="exited"), make_container(pod, "debug")]), NOW
    ).finished


def test_ephemeral_container_has_its_own_status() -> None:
    pod = debugged(WEB)
    status = compute_pod_status(pod, with_extra(RUNNING, pod, "exited"), FACTS)
    (container_status,) = status.ephemeral_container_statuses
    assert container_status.state.terminated is not None
    assert [container_status.name for container_status in status.container_statuses] == ["main"]
    assert {condition.type: condition.status for condition in status.conditions}["Ready"] == "True"


TCP = "{tcpSocket: {port: 1}}"
PROBED = f"name: main, image: toolbox, startupProbe: {TCP}, readinessProbe: {TCP}, livenessProbe: {TCP}"
PROBED_POD = make_pod(f"[{{{PROBED}}}]")
HOOKED = make_pod(
    "[{name: main, image: toolbox, lifecycle: {postStart: {exec: {command: [a]}}}}, {name: side, image: toolbox}]"
)
BESIDE = make_pod(
    spec=f"""\
  initContainers:
  - {{name: proxy, image: toolbox, restartPolicy: Always, startupProbe: {TCP}}}
"""
)


def lifecycle_state(results: ProbeResults) -> LifecycleState:
    return LifecycleState({"main-0": results, "proxy-0": results})


def container_status_in(
    of: Pod, progress: LifecycleState, *containers: RuntimeContainer, terminating: bool = False
) -> ContainerStatus:
    facts = StatusInputs("10.0.0.1", "10.128.0.2", NOW, NOW, terminating=terminating, state=progress)
    return compute_pod_status(of, make_runtime_pod(*containers), facts).container_statuses[0]


@pytest.mark.parametrize(
    ("progress", "started", "ready"),
    [
        (LifecycleState(), False, False),
        (lifecycle_state(ProbeResults(False, False)), False, False),
        (lifecycle_state(ProbeResults(True, False)), True, False),
        (lifecycle_state(ProbeResults(True, True)), True, True),
        (lifecycle_state(ProbeResults(True, True, "Liveness")), True, True),
    ],
)
def test_container_is_started_and_ready_by_its_probes(progress: LifecycleState, started: bool, ready: bool) -> None:
    status = container_status_in(PROBED_POD, progress, make_container(PROBED_POD))
    assert (status.started, status.ready) == (started, ready)
    assert status.state.running is not None
    facts = StatusInputs("10.0.0.1", "10.128.0.2", NOW, NOW, state=progress)
    conditions = {
        condition.type: condition
        for condition in compute_pod_status(PROBED_POD, make_runtime_pod(make_container(PROBED_POD)), facts).conditions
    }
    assert conditions["Ready"].status == conditions["ContainersReady"].status == str(ready)
    assert conditions["Ready"].message == ("" if ready else "containers with unready status: [main]")


def test_readiness_of_a_terminating_pod_is_reported() -> None:
    assert container_status_in(
        PROBED_POD, lifecycle_state(ProbeResults(True, True)), make_container(PROBED_POD), terminating=True
    ).ready
    assert not container_status_in(
        PROBED_POD, lifecycle_state(ProbeResults(True, False)), make_container(PROBED_POD), terminating=True
    ).ready
    assert not container_status_in(
        PROBED_POD,
        lifecycle_state(ProbeResults(True, True)),
        make_container(PROBED_POD, state="exited"),
        terminating=True,
    ).ready


def test_post_start_hook_runs_before_later_containers_and_delays_the_running_state() -> None:
    main = make_container(HOOKED)
    assert compute_pod_actions(HOOKED, make_runtime_pod(main), NOW) == PodActions(post_start=main)
    status = compute_pod_status(HOOKED, make_runtime_pod(main), StatusInputs("10.0.0.1", "10.128.0.2", NOW, NOW))
    first = status.container_statuses[0]
    assert status.phase == "Pending"
    assert first.state.waiting is not None
    assert (first.state.waiting.reason, first.started, first.ready) == ("ContainerCreating", False, False)
    done = LifecycleState(post_started=frozenset({main.id}))
    starts = compute_pod_actions(HOOKED, make_runtime_pod(main), NOW, state=done).start
    assert [start.container.name for start in starts] == ["side"]
    assert container_status_in(HOOKED, done, main).ready


def test_container_with_a_failed_hook_ends_with_its_reason() -> None:
    main = make_container(HOOKED)
    failed = LifecycleState(to_kill={main.id: KillReason("PostStart", 30)})
    actions = compute_pod_actions(HOOKED, make_runtime_pod(main), NOW, state=failed)
    assert (actions.stop, actions.post_start) == ((main,), None)
    state = container_status_in(HOOKED, failed, main).state
    assert state.waiting is not None
    assert state.waiting.reason == "PostStartHookError"


@pytest.mark.parametrize(("policy", "again"), [("Always", True), ("OnFailure", True), ("Never", False)])
def test_container_killed_by_a_probe_restarts_unless_policy_is_never(policy: str, again: bool) -> None:
    pod = make_pod(f"[{{{PROBED}}}]", f"  restartPolicy: {policy}")
    main = make_container(pod)
    dying = LifecycleState(to_kill={main.id: KillReason("Liveness", 5)})
    assert compute_pod_actions(pod, make_runtime_pod(main), NOW, state=dying).stop == (main,)
    dead = replace(main, state="exited", exit_code=0, finished_at=NOW)
    actions = compute_pod_actions(pod, make_runtime_pod(dead), NOW, state=dying)
    assert ([start.restarts for start in actions.start], actions.finished) == (([1], False) if again else ([], True))


def test_later_containers_start_when_the_sidecars_startup_probe_succeeds() -> None:
    proxy = make_container(BESIDE, "proxy")
    assert (
        compute_pod_actions(
            BESIDE, make_runtime_pod(proxy), NOW, state=lifecycle_state(ProbeResults(False, False))
        ).start
        == ()
    )
    after = compute_pod_actions(BESIDE, make_runtime_pod(proxy), NOW, state=lifecycle_state(ProbeResults(True, True)))
    assert [start.container.name for start in after.start] == ["main"]


def test_probe_may_have_its_own_grace_period() -> None:
    probe = "{tcpSocket: {port: 1}, terminationGracePeriodSeconds: 7}"
    container = make_pod(
        f"[{{name: main, image: toolbox, livenessProbe: {probe}, startupProbe: {TCP}}}]"
    ).spec.containers[0]
    assert kill_reason(container, "Liveness", 30) == KillReason("Liveness", 7)
    assert kill_reason(container, "Startup", 30) == KillReason("Startup", 30)
    assert kill_reason(container, "PostStart", 30) == KillReason("PostStart", 30)


@pytest.mark.parametrize(
    ("why", "policy", "message"),
    [
        ("Liveness", "Always", "Container web failed liveness probe, will be restarted"),
        ("Startup", "Never", "Container web failed startup probe"),
        ("PostStart", "Always", "FailedPostStartHook"),
    ],
)
def test_kill_reason_round_trips_as_text(why: str, policy: str, message: str) -> None:
    assert KillReason(why, 1).message("web", policy) == message
