"""Probes and hooks of a pod against a Docker in memory, with the agent killed after every call."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from msgspec.structs import replace

from api.core.pod import Pod, PodSpec
from api.meta.types import ObjectMeta
from tests.unit.node_agent.examples import UID, make_pod
from tests.unit.node_agent.fake_host import FakeHost, fake_host, kill_anywhere

POLITE = """command: ["trap 'exit 0' TERM"]"""
FIRST = "periodSeconds: 1, failureThreshold: 1"


def probed(*probes: str, command: str = POLITE, spec: str = "", more: str = "") -> Pod:
    return make_pod(f"[{{name: main, image: toolbox, {command}, {', '.join(probes)}}}{more}]", spec)


def exec_probe(program: str, more: str = FIRST) -> str:
    return f"{{exec: {{command: [{program}]}}, {more}}}"


def hook(handler: str, program: str) -> str:
    return f"lifecycle: {{{handler}: {{exec: {{command: [{program}]}}}}}}"


HEALTHY = probed(
    *(f"{kind}Probe: {exec_probe('exit 0', 'periodSeconds: 60')}" for kind in ("startup", "liveness", "readiness"))
)
SICK = probed(f"livenessProbe: {exec_probe('exit 1')}", spec="  restartPolicy: OnFailure")
NEVER_UP = probed(f"startupProbe: {exec_probe('exit 1')}", spec="  restartPolicy: Never")
GREETED = probed(hook("postStart", "exit 0"), more=", {name: side, image: toolbox}")
REBUFFED = probed(hook("postStart", "exit 1"), spec="  restartPolicy: Never")
LEAVING = probed(hook("preStop", "echo bye"))


def waiting(host: FakeHost) -> str:
    state = host.status.container_statuses[0].state if host.status.container_statuses else None
    return state.waiting.reason if state is not None and state.waiting is not None else ""


def is_ready(host: FakeHost) -> bool:
    return any(condition.type == "Ready" and condition.status == "True" for condition in host.status.conditions)


async def healthy(host: FakeHost) -> None:
    """Every probe succeeds."""
    await host.live(HEALTHY, lambda: is_ready(host))


async def unhealthy(host: FakeHost) -> None:
    """The liveness probe fails; the container restarts at once although it exited with 0, fails again, and waits."""
    await host.live(SICK, lambda: waiting(host) == "CrashLoopBackOff")


async def startup_failed(host: FakeHost) -> None:
    """The startup probe fails, and the container does not restart."""
    await host.live(NEVER_UP, lambda: host.status.phase == "Succeeded")


async def post_start_ran(host: FakeHost) -> None:
    """The postStart hook runs before the next container starts."""
    await host.live(GREETED, lambda: is_ready(host))
    assert ("main", "exit 0") in host.docker.executed


async def post_start_failed(host: FakeHost) -> None:
    """The postStart hook fails, and so does the pod."""
    await host.live(REBUFFED, lambda: host.status.phase in {"Failed", "Succeeded"})


async def pre_stop_ran(host: FakeHost) -> None:
    """The preStop hook runs before the container gets its stop signal."""
    await host.once("runs", lambda: host.live(LEAVING, lambda: is_ready(host)))
    if not host.terminated:
        await host.live(LEAVING, lambda: host.terminated, leave=True)
    assert ("main", "echo bye") in host.docker.executed


@pytest.mark.parametrize(
    "scenario", [healthy, unhealthy, startup_failed, post_start_ran, post_start_failed, pre_stop_ran]
)
async def test_agent_killed_after_any_call_reaches_the_same_state(
    scenario: Callable[[FakeHost], Awaitable[None]], tmp_path: Path
) -> None:
    await kill_anywhere(scenario, tmp_path)


async def test_readiness_changes_are_reported_at_once(tmp_path: Path) -> None:
    pod = probed(f"readinessProbe: {exec_probe('ready')}")
    async with fake_host(tmp_path / "w") as host:
        host.docker.programs["ready"] = 1
        await host.live(
            pod, lambda: ("Unhealthy", "Readiness probe failed: exit code 1", "main") in host.recorded_events
        )
        assert host.status.phase == "Running"
        assert not is_ready(host)
        host.docker.programs["ready"] = 0
        await host.live(pod, lambda: is_ready(host))
        host.docker.programs["ready"] = 1
        await host.live(pod, lambda: not is_ready(host))
        assert host.status.container_statuses[0].started
        assert host.restarts() == [0]


async def test_agent_restart_keeps_readiness(tmp_path: Path) -> None:
    slow = "periodSeconds: 1, timeoutSeconds: 600"
    pod = probed(*(f"{kind}Probe: {exec_probe('well', slow)}" for kind in ("startup", "readiness")))
    async with fake_host(tmp_path / "w") as host:
        host.docker.programs["well"] = 0
        await host.live(pod, lambda: is_ready(host))
        host.statuses.clear()
        executed = len(host.docker.executed)
        del host.docker.programs["well"]
        await host.live(pod, lambda: len(host.docker.executed) > executed)
        assert all(
            container_status.ready and container_status.started
            for status in host.statuses
            for container_status in status.container_statuses
        )
        assert is_ready(host)


async def test_container_killed_by_a_probe_is_reported_and_has_the_probes_grace_period(tmp_path: Path) -> None:
    probe = exec_probe("exit 1", f"{FIRST}, terminationGracePeriodSeconds: 1")
    pod = probed(f"livenessProbe: {probe}", command="command: [deaf]", spec="  terminationGracePeriodSeconds: 600")
    async with fake_host(tmp_path / "w") as host:
        await host.live(pod, lambda: host.restarts() == [1])
        assert ("Unhealthy", "Liveness probe failed: exit code 1", "main") in host.recorded_events
        assert ("Killing", "Container main failed liveness probe, will be restarted", "main") in host.recorded_events
        assert host.docker.signals[:2] == [("main", "SIGTERM"), ("main", "SIGKILL")]


async def test_failed_post_start_hook_is_reported_and_ends_the_container(tmp_path: Path) -> None:
    soon = "  terminationGracePeriodSeconds: 1"
    pod = probed(hook("postStart", "exit 1"), command="command: [deaf]", spec=soon)
    async with fake_host(tmp_path / "w") as host:
        await host.live(pod, lambda: host.restarts() == [1])
        assert ("FailedPostStartHook", "PostStartHook failed: exit code 1", "main") in host.recorded_events
        reasons = [
            container_status.state.waiting for status in host.statuses for container_status in status.container_statuses
        ]
        assert "PostStartHookError" in {state.reason for state in reasons if state is not None}
        assert not any(
            container_status.ready for status in host.statuses for container_status in status.container_statuses
        )


async def test_long_post_start_hook_does_not_delay_termination(tmp_path: Path) -> None:
    pod = probed(hook("postStart", "endless"), more=", {name: side, image: toolbox}")
    async with fake_host(tmp_path / "w") as host:
        await host.live(pod, lambda: ("main", "endless") in host.docker.executed)
        assert host.status.phase == "Pending"
        assert host.docker.find("side") == []
        await host.live(pod, lambda: host.terminated, leave=True)
        assert ("main", "SIGTERM") in host.docker.signals


async def test_overlong_pre_stop_hook_is_cancelled_and_the_container_signalled(
    tmp_path: Path,
) -> None:
    pod = probed(hook("preStop", "endless"))
    deleted_metadata = replace(pod.metadata, deletion_timestamp="2026-01-01T00:00:00Z", deletion_grace_period_seconds=1)
    async with fake_host(tmp_path / "w") as host:
        await host.live(pod, lambda: is_ready(host))
        await host.live(replace(pod, metadata=deleted_metadata), lambda: host.terminated)
        message = "PreStopHook failed: it took longer than there was time"
        assert ("FailedPreStopHook", message, "main") in host.recorded_events
        assert [signal for signal in host.docker.signals if signal[0] == "main"] == [("main", "SIGTERM")]
        finished = next(status for status in reversed(host.statuses) if status.container_statuses[0].state.terminated)
        assert finished.phase == "Succeeded"


async def test_pre_stop_hook_is_skipped_without_grace_period_or_running_container(tmp_path: Path) -> None:
    async with fake_host(tmp_path / "w") as host:
        pod = probed(hook("preStop", "echo bye"), command="command: [exit 0]", spec="  restartPolicy: Never")
        await host.live(pod, lambda: host.status.phase == "Succeeded")
        await host.live(pod, lambda: host.terminated, leave=True)
        assert host.docker.executed == []
    async with fake_host(tmp_path / "v") as host:
        deleted_metadata = replace(
            LEAVING.metadata, deletion_timestamp="2026-01-01T00:00:00Z", deletion_grace_period_seconds=0
        )
        await host.live(LEAVING, lambda: is_ready(host))
        await host.live(replace(LEAVING, metadata=deleted_metadata), lambda: host.terminated)
        assert host.docker.executed == []


async def test_pre_stop_hook_runs_from_container_labels_after_agent_restart(tmp_path: Path) -> None:
    remains = Pod(metadata=ObjectMeta(name="unknown", uid=UID), spec=PodSpec(termination_grace_period_seconds=30))
    async with fake_host(tmp_path / "w") as host:
        await host.live(LEAVING, lambda: is_ready(host))
        await host.live(remains, lambda: host.terminated, leave=True)
        assert host.docker.executed == [("main", "echo bye")]
        assert host.remaining()["containers"] == []
