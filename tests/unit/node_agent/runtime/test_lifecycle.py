"""Probes and hooks of a pod against a Docker in memory, with the agent killed after every call."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from msgspec.structs import replace

from api.core.pod import Pod, PodSpec
from api.meta.types import ObjectMeta
from tests.unit.node_agent.examples import UID, make_pod
from tests.unit.node_agent.world import World, kill_anywhere, world

POLITE = """command: ["trap 'exit 0' TERM"]"""
FIRST = "periodSeconds: 1, failureThreshold: 1"


def probed(*probes: str, command: str = POLITE, spec: str = "", more: str = "") -> Pod:
    return make_pod(f"[{{name: main, image: toolbox, {command}, {', '.join(probes)}}}{more}]", spec)


def asks(program: str, more: str = FIRST) -> str:
    return f"{{exec: {{command: [{program}]}}, {more}}}"


def hook(which: str, program: str) -> str:
    return f"lifecycle: {{{which}: {{exec: {{command: [{program}]}}}}}}"


HEALTHY = probed(
    *(f"{kind}Probe: {asks('exit 0', 'periodSeconds: 60')}" for kind in ("startup", "liveness", "readiness"))
)
SICK = probed(f"livenessProbe: {asks('exit 1')}", spec="  restartPolicy: OnFailure")
NEVER_UP = probed(f"startupProbe: {asks('exit 1')}", spec="  restartPolicy: Never")
GREETED = probed(hook("postStart", "exit 0"), more=", {name: side, image: toolbox}")
REBUFFED = probed(hook("postStart", "exit 1"), spec="  restartPolicy: Never")
LEAVING = probed(hook("preStop", "echo bye"))


def waiting(host: World) -> str:
    state = host.status.container_statuses[0].state if host.status.container_statuses else None
    return state.waiting.reason if state is not None and state.waiting is not None else ""


def is_ready(host: World) -> bool:
    return any(condition.type == "Ready" and condition.status == "True" for condition in host.status.conditions)


async def healthy(host: World) -> None:
    """Every probe goes well."""
    await host.live(HEALTHY, lambda: is_ready(host))


async def sick(host: World) -> None:
    """It fails its liveness probe, is started again at once although it ended well, fails again, and has to wait."""
    await host.live(SICK, lambda: waiting(host) == "CrashLoopBackOff")


async def never_up(host: World) -> None:
    """It fails its startup probe and is not to come back."""
    await host.live(NEVER_UP, lambda: host.status.phase == "Succeeded")


async def greeted(host: World) -> None:
    """The hook comes before the next container."""
    await host.live(GREETED, lambda: is_ready(host))
    assert ("main", "exit 0") in host.docker.executed


async def rebuffed(host: World) -> None:
    """The hook fails, and so does the pod."""
    await host.live(REBUFFED, lambda: host.status.phase in {"Failed", "Succeeded"})


async def leaves(host: World) -> None:
    """The hook runs before the container is asked to stop, whoever asks."""
    await host.once("runs", lambda: host.live(LEAVING, lambda: is_ready(host)))
    if not host.gone:
        await host.live(LEAVING, lambda: host.gone, leave=True)
    assert ("main", "echo bye") in host.docker.executed


@pytest.mark.parametrize("scenario", [healthy, sick, never_up, greeted, rebuffed, leaves])
async def test_agent_killed_after_any_call_reaches_the_same_state(
    scenario: Callable[[World], Awaitable[None]], tmp_path: Path
) -> None:
    await kill_anywhere(scenario, tmp_path)


async def test_readiness_changes_are_reported_at_once(tmp_path: Path) -> None:
    pod = probed(f"readinessProbe: {asks('ready')}")
    async with world(tmp_path / "w") as host:
        host.docker.programs["ready"] = 1
        await host.live(pod, lambda: ("Unhealthy", "Readiness probe failed: exit code 1", "main") in host.told)
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
    pod = probed(*(f"{kind}Probe: {asks('well', slow)}" for kind in ("startup", "readiness")))
    async with world(tmp_path / "w") as host:
        host.docker.programs["well"] = 0
        await host.live(pod, lambda: is_ready(host))
        host.statuses.clear()
        asked = len(host.docker.executed)
        del host.docker.programs["well"]
        await host.live(pod, lambda: len(host.docker.executed) > asked)
        assert all(row.ready and row.started for status in host.statuses for row in status.container_statuses)
        assert is_ready(host)


async def test_container_killed_by_a_probe_is_reported_and_has_the_probes_grace_period(tmp_path: Path) -> None:
    own = asks("exit 1", f"{FIRST}, terminationGracePeriodSeconds: 1")
    pod = probed(f"livenessProbe: {own}", command="command: [deaf]", spec="  terminationGracePeriodSeconds: 600")
    async with world(tmp_path / "w") as host:
        await host.live(pod, lambda: host.restarts() == [1])
        assert ("Unhealthy", "Liveness probe failed: exit code 1", "main") in host.told
        assert ("Killing", "Container main failed liveness probe, will be restarted", "main") in host.told
        assert host.docker.signals[:2] == [("main", "SIGTERM"), ("main", "SIGKILL")]


async def test_failed_post_start_hook_is_reported_and_ends_the_container(tmp_path: Path) -> None:
    soon = "  terminationGracePeriodSeconds: 1"
    pod = probed(hook("postStart", "exit 1"), command="command: [deaf]", spec=soon)
    async with world(tmp_path / "w") as host:
        await host.live(pod, lambda: host.restarts() == [1])
        assert ("FailedPostStartHook", "PostStartHook failed: exit code 1", "main") in host.told
        reasons = [row.state.waiting for status in host.statuses for row in status.container_statuses]
        assert "PostStartHookError" in {state.reason for state in reasons if state is not None}
        assert not any(row.ready for status in host.statuses for row in status.container_statuses)


async def test_long_post_start_hook_does_not_delay_termination(tmp_path: Path) -> None:
    pod = probed(hook("postStart", "endless"), more=", {name: side, image: toolbox}")
    async with world(tmp_path / "w") as host:
        await host.live(pod, lambda: ("main", "endless") in host.docker.executed)
        assert host.status.phase == "Pending"
        assert host.docker.find("side") == []
        await host.live(pod, lambda: host.gone, leave=True)
        assert ("main", "SIGTERM") in host.docker.signals


async def test_overlong_pre_stop_hook_is_cancelled_and_the_container_signalled(
    tmp_path: Path,
) -> None:
    pod = probed(hook("preStop", "endless"))
    deleted_metadata = replace(pod.metadata, deletion_timestamp="2026-01-01T00:00:00Z", deletion_grace_period_seconds=1)
    async with world(tmp_path / "w") as host:
        await host.live(pod, lambda: is_ready(host))
        await host.live(replace(pod, metadata=deleted_metadata), lambda: host.gone)
        message = "PreStopHook failed: it took longer than there was time"
        assert ("FailedPreStopHook", message, "main") in host.told
        assert [one for one in host.docker.signals if one[0] == "main"] == [("main", "SIGTERM")]
        finished = next(status for status in reversed(host.statuses) if status.container_statuses[0].state.terminated)
        assert finished.phase == "Succeeded"


async def test_pre_stop_hook_is_skipped_without_grace_period_or_running_container(tmp_path: Path) -> None:
    async with world(tmp_path / "w") as here:
        pod = probed(hook("preStop", "echo bye"), command="command: [exit 0]", spec="  restartPolicy: Never")
        await here.live(pod, lambda: here.status.phase == "Succeeded")
        await here.live(pod, lambda: here.gone, leave=True)
        assert here.docker.executed == []
    async with world(tmp_path / "v") as host:
        deleted_metadata = replace(
            LEAVING.metadata, deletion_timestamp="2026-01-01T00:00:00Z", deletion_grace_period_seconds=0
        )
        await host.live(LEAVING, lambda: is_ready(host))
        await host.live(replace(LEAVING, metadata=deleted_metadata), lambda: host.gone)
        assert host.docker.executed == []


async def test_pre_stop_hook_runs_from_container_labels_after_agent_restart(tmp_path: Path) -> None:
    remains = Pod(metadata=ObjectMeta(name="unknown", uid=UID), spec=PodSpec(termination_grace_period_seconds=30))
    async with world(tmp_path / "w") as host:
        await host.live(LEAVING, lambda: is_ready(host))
        await host.live(remains, lambda: host.gone, leave=True)
        assert host.docker.executed == [("main", "echo bye")]
        assert host.left()["containers"] == []
