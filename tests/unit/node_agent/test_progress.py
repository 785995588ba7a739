"""What probes and hooks make of a pod: its plan and its status."""

from __future__ import annotations

from dataclasses import replace

import pytest

from api.core.pod import ContainerStatus, Pod
from node_agent.pods.status import StatusInputs, compute_pod_status
from node_agent.probes.state import ProbeResults
from node_agent.runtime.actions import PodActions, compute_pod_actions
from node_agent.runtime.container import RuntimeContainer
from node_agent.runtime.startup import KillReason, LifecycleState, kill_reason
from tests.unit.node_agent.make import NOW, container, held, pod

TCP = "{tcpSocket: {port: 1}}"
PROBED = f"name: main, image: toolbox, startupProbe: {TCP}, readinessProbe: {TCP}, livenessProbe: {TCP}"
WEB = pod(f"[{{{PROBED}}}]")
HOOKED = pod(
    "[{name: main, image: toolbox, lifecycle: {postStart: {exec: {command: [a]}}}}, {name: side, image: toolbox}]"
)
BESIDE = pod(
    spec=f"""\
  initContainers:
  - {{name: proxy, image: toolbox, restartPolicy: Always, startupProbe: {TCP}}}
"""
)


def told(verdict: ProbeResults) -> LifecycleState:
    return LifecycleState({"main-0": verdict, "proxy-0": verdict})


def row(of: Pod, progress: LifecycleState, *found: RuntimeContainer, terminating: bool = False) -> ContainerStatus:
    facts = StatusInputs("10.0.0.1", "10.128.0.2", NOW, NOW, terminating=terminating, progress=progress)
    return compute_pod_status(of, held(*found), facts).container_statuses[0]


@pytest.mark.parametrize(
    ("progress", "started", "ready"),
    [
        (LifecycleState(), False, False),
        (told(ProbeResults(False, False)), False, False),
        (told(ProbeResults(True, False)), True, False),
        (told(ProbeResults(True, True)), True, True),
        (told(ProbeResults(True, True, "Liveness")), True, True),
    ],
)
def test_a_container_is_started_and_ready_when_its_probes_say_so(
    progress: LifecycleState, started: bool, ready: bool
) -> None:
    seen = row(WEB, progress, container(WEB))
    assert (seen.started, seen.ready) == (started, ready)
    assert seen.state.running is not None
    facts = StatusInputs("10.0.0.1", "10.128.0.2", NOW, NOW, progress=progress)
    conditions = {one.type: one for one in compute_pod_status(WEB, held(container(WEB)), facts).conditions}
    assert conditions["Ready"].status == conditions["ContainersReady"].status == str(ready)
    assert conditions["Ready"].message == ("" if ready else "containers with unready status: [main]")


def test_of_a_pod_that_goes_readiness_is_still_told() -> None:
    assert row(WEB, told(ProbeResults(True, True)), container(WEB), terminating=True).ready
    assert not row(WEB, told(ProbeResults(True, False)), container(WEB), terminating=True).ready
    assert not row(WEB, told(ProbeResults(True, True)), container(WEB, state="exited"), terminating=True).ready


def test_a_hook_is_run_before_what_comes_after_and_until_then_the_container_does_not_count_as_running() -> None:
    main = container(HOOKED)
    assert compute_pod_actions(HOOKED, held(main), NOW) == PodActions(hook=main)
    status = compute_pod_status(HOOKED, held(main), StatusInputs("10.0.0.1", "10.128.0.2", NOW, NOW))
    first = status.container_statuses[0]
    assert status.phase == "Pending"
    assert first.state.waiting is not None
    assert (first.state.waiting.reason, first.started, first.ready) == ("ContainerCreating", False, False)
    done = LifecycleState(begun=frozenset({main.id}))
    assert [start.wish.name for start in compute_pod_actions(HOOKED, held(main), NOW, progress=done).start] == ["side"]
    assert row(HOOKED, done, main).ready


def test_a_container_whose_hook_failed_is_ended_with_its_reason() -> None:
    main = container(HOOKED)
    failed = LifecycleState(condemned={main.id: KillReason("PostStart", 30)})
    actions = compute_pod_actions(HOOKED, held(main), NOW, progress=failed)
    assert (actions.retire, actions.hook) == ((main,), None)
    state = row(HOOKED, failed, main).state
    assert state.waiting is not None
    assert state.waiting.reason == "PostStartHookError"


@pytest.mark.parametrize(("policy", "again"), [("Always", True), ("OnFailure", True), ("Never", False)])
def test_what_a_probe_has_ended_comes_back_unless_the_policy_is_never(policy: str, again: bool) -> None:
    wish = pod(f"[{{{PROBED}}}]", f"  restartPolicy: {policy}")
    main = container(wish)
    dying = LifecycleState(condemned={main.id: KillReason("Liveness", 5)})
    assert compute_pod_actions(wish, held(main), NOW, progress=dying).retire == (main,)
    dead = replace(main, state="exited", exit_code=0, finished_at=NOW)
    actions = compute_pod_actions(wish, held(dead), NOW, progress=dying)
    assert ([start.restarts for start in actions.start], actions.finished) == (([1], False) if again else ([], True))


def test_a_sidecar_lets_the_others_start_when_its_startup_probe_has_succeeded() -> None:
    proxy = container(BESIDE, "proxy")
    assert compute_pod_actions(BESIDE, held(proxy), NOW, progress=told(ProbeResults(False, False))).start == ()
    after = compute_pod_actions(BESIDE, held(proxy), NOW, progress=told(ProbeResults(True, True)))
    assert [start.wish.name for start in after.start] == ["main"]


def test_a_probe_may_have_a_grace_of_its_own() -> None:
    own = "{tcpSocket: {port: 1}, terminationGracePeriodSeconds: 7}"
    wish = pod(f"[{{name: main, image: toolbox, livenessProbe: {own}, startupProbe: {TCP}}}]").spec.containers[0]
    assert kill_reason(wish, "Liveness", 30) == KillReason("Liveness", 7)
    assert kill_reason(wish, "Startup", 30) == KillReason("Startup", 30)
    assert kill_reason(wish, "PostStart", 30) == KillReason("PostStart", 30)


@pytest.mark.parametrize(
    ("why", "policy", "words"),
    [
        ("Liveness", "Always", "Container web failed liveness probe, will be restarted"),
        ("Startup", "Never", "Container web failed startup probe"),
        ("PostStart", "Always", "FailedPostStartHook"),
    ],
)
def test_the_reason_of_an_end_in_words(why: str, policy: str, words: str) -> None:
    assert KillReason(why, 1).words("web", policy) == words
