"""Restart policy, crash-loop back-off, restart counts. Pure.

A container that exits is restarted at once the first time. If it keeps exiting soon, it waits 10 s, 20 s, ... up to
5 min after its exit. A container that ran for 10 minutes starts with the first delay again. An exit that leads to a
restart counts as a crash whatever its exit code.
"""

from __future__ import annotations

from datetime import datetime, timedelta

from api.core.pod import Container, ContainerStatus, EphemeralContainer, Pod
from api.core.resource_requests import is_sidecar
from node_agent.runtime.container import RuntimeContainer
from node_agent.runtime.lifecycle_state import LifecycleState
from reconcile.backoff import Backoff

CRASH_LOOP_BACKOFF = Backoff(10.0, 300.0)
BACKOFF_RESET = timedelta(seconds=600)
"""Run time after which a container starts with the first delay again."""

EXIT_CODE_NOT_STARTED = 128
"""Exit code of a container that could not be started. Docker itself reports 127 if the program does not exist, and 126
if it may not be executed."""


def restart_policy(pod: Pod, container: Container) -> str:
    """Return the restart policy of one container.

    A sidecar always restarts, an init container until it succeeds, an ephemeral container never.
    """
    if isinstance(container, EphemeralContainer):
        return "Never"
    if any(init_container.name == container.name for init_container in pod.spec.init_containers):
        if is_sidecar(container):
            return "Always"
        return "Never" if pod.spec.restart_policy == "Never" else "OnFailure"
    return pod.spec.restart_policy


def policy_restarts(policy: str, exited: RuntimeContainer) -> bool:
    """Return whether the restart policy restarts this exited container."""
    return policy == "Always" or (policy == "OnFailure" and exit_code(exited) != 0)


def should_restart(policy: str, exited: RuntimeContainer, state: LifecycleState) -> bool:
    """Return whether an exited container restarts: because of its policy, or because the agent killed it."""
    return policy_restarts(policy, exited) or state.restarts_after_kill(policy, exited)


def exit_code(exited: RuntimeContainer) -> int:
    """Return the exit code. A container that could not be started has failed."""
    return exited.exit_code or (EXIT_CODE_NOT_STARTED if exited.error else 0)


def backoff_delay(crashes: int) -> timedelta:
    """Return the delay of a restart. `crashes`: number of starts in a row before the last one that exited soon."""
    return timedelta(seconds=CRASH_LOOP_BACKOFF.delay(crashes))


def previous_crashes(exited: RuntimeContainer) -> int:
    """Return the number of starts in a row that exited soon before this one, 0 if this one ran for BACKOFF_RESET."""
    ran_for = timedelta(0)
    if exited.finished_at and exited.started_at:
        ran_for = exited.finished_at - exited.started_at
    return 0 if ran_for >= BACKOFF_RESET else exited.crash_label


def next_crash_count(exited: RuntimeContainer) -> int:
    """Return the crash count that the restart of this container stores in its label."""
    return previous_crashes(exited) + 1


def restart_time(exited: RuntimeContainer, now: datetime) -> datetime:
    """Return the time of the next restart. An exit in the future counts as now, because the clock was set back."""
    exited_at = exited.exited_at
    if exited_at is None or now < exited_at:
        return now
    return exited_at + backoff_delay(previous_crashes(exited))


def container_status_of(pod: Pod, name: str) -> ContainerStatus | None:
    """Return the last status of a container of any kind, None before its first status."""
    pod_status = pod.status
    groups = (
        pod_status.container_statuses,
        pod_status.init_container_statuses,
        pod_status.ephemeral_container_statuses,
    )

    return next((status for group in groups for status in group if status.name == name), None)


def previous_starts(pod: Pod, name: str) -> int:
    """Return the number of starts of a container that Docker no longer has, from its last status."""
    status = container_status_of(pod, name)
    if status is None or not (status.state.running or status.state.terminated or status.last_state.terminated):
        return 0
    return status.restart_count + 1
