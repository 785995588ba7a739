"""The steps of a container's termination, and the labels that store them."""

from __future__ import annotations

from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from node_agent.host import HostInfo
from node_agent.runtime.container import ATTEMPT, PRE_STOP, RESERVED_LABELS, RuntimeContainer, pre_stop_handler
from node_agent.runtime.spec import ContainerInputs, container_config
from node_agent.runtime.termination import MAX_GRACE_SECONDS, StopState, StopStep, grace_period_seconds, next_stop_step
from tests.unit.node_agent.examples import NOW, make_pod

SECOND = timedelta(seconds=1)
LATER = NOW + 30 * SECOND


@pytest.mark.parametrize(
    ("has_hook", "stop", "seconds", "step", "again"),
    [
        (False, StopState(), 0, StopStep.SIGNAL, 30),
        (False, StopState(signalled=True), 29, StopStep.WAIT, 30),
        (False, StopState(signalled=True), 30, StopStep.KILL, 30),
        (False, StopState(), 30, StopStep.KILL, 30),
        (True, StopState(), 0, StopStep.HOOK, 30),
        (True, StopState(), 30, StopStep.KILL, 30),
        (True, StopState(hook_running=True), 29, StopStep.WAIT, 30),
        (True, StopState(hook_running=True), 30, StopStep.SIGNAL, 32),
        (True, StopState(hook_finished_at=NOW + 5 * SECOND), 5, StopStep.SIGNAL, 30),
        (True, StopState(hook_finished_at=NOW + 29 * SECOND), 29, StopStep.SIGNAL, 31),
        (True, StopState(hook_finished_at=NOW + 29 * SECOND, signalled=True), 30, StopStep.WAIT, 31),
        (True, StopState(hook_finished_at=NOW + 29 * SECOND, signalled=True), 31, StopStep.KILL, 31),
    ],
)
def test_termination_runs_hook_signal_and_kill_in_order(
    has_hook: bool, stop: StopState, seconds: int, step: StopStep, again: int
) -> None:
    assert next_stop_step(has_hook, stop, LATER, NOW + seconds * SECOND) == (step, NOW + again * SECOND)


@given(st.booleans(), st.floats(0, 60), st.floats(0, 90), st.lists(st.floats(0.01, 20), min_size=40, max_size=40))
def test_termination_always_completes_and_signals_before_killing(
    has_hook: bool, grace: float, hook_takes: float, waits: list[float]
) -> None:
    """At all times of calls, the container gets a signal before it is killed (if there is time), and not much later."""
    now, stop, deadline, hook_running_since = NOW, StopState(), NOW + grace * SECOND, NOW
    for wait in waits:
        if stop.hook_running and stop.hook_finished_at is None and now - hook_running_since >= hook_takes * SECOND:
            stop = StopState(hook_finished_at=now)
        step, again = next_stop_step(has_hook, stop, deadline, now)
        if step is StopStep.HOOK:
            assert not stop.hook_running
            stop, hook_running_since = StopState(hook_running=True), now
        elif step is StopStep.SIGNAL:
            assert not stop.signalled
            stop = StopState(hook_finished_at=now if stop.hook_running else stop.hook_finished_at, signalled=True)
        elif step is StopStep.KILL:
            assert stop.signalled or now >= deadline
            assert stop.hook_finished_at is None or now - stop.hook_finished_at >= 2 * SECOND
            return
        else:
            assert again > now
        now = min(now + wait * SECOND, max(again, now))
    assert now <= deadline + 40 * SECOND


HOOKED = make_pod(
    "[{name: main, image: toolbox, ports: [{containerPort: 8080, name: web}],"
    " lifecycle: {preStop: {httpGet: {port: web, path: /bye}}}}]"
)


def test_pre_stop_label_stores_the_hook_with_a_numeric_port() -> None:
    spec = container_config(HOOKED, HOOKED.spec.containers[0], ContainerInputs("image", "box"), HostInfo("/p", 1, 0))
    text = spec.labels["annotation.io.kubernetes.container.preStopHandler"]
    assert text == '{"httpGet":{"port":8080,"path":"/bye","scheme":"HTTP"}}'
    hook = pre_stop_handler(RuntimeContainer("id", labels=spec.labels))
    assert hook is not None
    assert hook.http_get is not None
    assert hook.http_get.port == 8080
    assert pre_stop_handler(RuntimeContainer("id")) is None


def test_container_sets_every_label_that_the_agent_reads_so_that_none_is_of_the_image() -> None:
    pod = make_pod()
    spec = container_config(pod, pod.spec.containers[0], ContainerInputs("image", "box"), HostInfo("/p", 1, 0))
    assert RESERVED_LABELS - spec.labels.keys() == {ATTEMPT}, "which counts for sandboxes only"
    assert spec.labels[PRE_STOP] == ""
    assert pre_stop_handler(RuntimeContainer("id", labels=spec.labels)) is None


def test_grace_period_is_capped_at_its_maximum() -> None:
    pod = make_pod()
    endless = replace(pod, spec=replace(pod.spec, termination_grace_period_seconds=10**17))
    assert grace_period_seconds(endless, None, removed=False) == MAX_GRACE_SECONDS
