"""Restart policy, crash-loop back-off, restart counts. Pure."""

from __future__ import annotations

from datetime import datetime, timedelta

from api.core.pod import Container as Wish
from api.core.pod import ContainerStatus, EphemeralContainer, Pod
from api.core.resources import is_sidecar
from node_agent.runtime.container import RuntimeContainer
from node_agent.runtime.startup import LifecycleState
from reconcile.backoff import Backoff


def restart_policy(pod: Pod, wish: Wish) -> str:
    """The policy that holds for one container.

    A sidecar always comes back, an init container until it ends well, an ephemeral one never.
    """
    if isinstance(wish, EphemeralContainer):
        return "Never"
    if any(one.name == wish.name for one in pod.spec.init_containers):
        if is_sidecar(wish):
            return "Always"
        return "Never" if pod.spec.restart_policy == "Never" else "OnFailure"
    return pod.spec.restart_policy


def container_status_of(pod: Pod, name: str) -> ContainerStatus | None:
    """What the status last told of a container."""
    status = pod.status
    groups = (status.container_statuses, status.init_container_statuses, status.ephemeral_container_statuses)
    return next((row for group in groups for row in group if row.name == name), None)


def previous_starts(pod: Pod, name: str) -> int:
    """How often a container was started of which nothing is left."""
    row = container_status_of(pod, name)
    if row is None or not (row.state.running or row.state.terminated or row.last_state.terminated):
        return 0
    return row.restart_count + 1


CRASH_LOOP_BACKOFF = Backoff(10.0, 300.0)
"""Seconds. A container that ran for BACKOFF_RESET starts with the first delay again."""

BACKOFF_RESET = timedelta(seconds=600)
EXIT_CODE_NOT_STARTED = 128
"""Exit code of a container that could not be started, but for want of its program (127) or of rights to it (126)."""


def backoff_delay(crashes: int) -> timedelta:
    """How long a container waits that has ended soon so many times in a row, this one not counted."""
    return timedelta(seconds=CRASH_LOOP_BACKOFF.delay(crashes))


def previous_crashes(dead: RuntimeContainer) -> int:
    """How many starts in a row ended soon before this one; none when this one ran well."""
    ran = dead.finished_at - dead.started_at if dead.finished_at and dead.started_at else timedelta(0)
    return 0 if ran >= BACKOFF_RESET else dead.crash_count


def restart_time(dead: RuntimeContainer, now: datetime) -> datetime:
    """When an ended container may start again; an end that lies ahead of us (the clock was set back) does not count."""
    end = dead.exited_at
    return now if end is None or now < end else end + backoff_delay(previous_crashes(dead))


def policy_restarts(policy: str, dead: RuntimeContainer) -> bool:
    """Whether the pod's restartPolicy wants this container back."""
    return policy == "Always" or (policy == "OnFailure" and exit_code(dead) != 0)


def should_restart(policy: str, dead: RuntimeContainer, progress: LifecycleState) -> bool:
    """Whether an ended container starts again, because of its policy or because we ended it to start it again."""
    return policy_restarts(policy, dead) or progress.restarts_after_kill(policy, dead)


def exit_code(dead: RuntimeContainer) -> int:
    """Its exit code; a container that never ran because it could not be started has failed."""
    return dead.exit_code or (EXIT_CODE_NOT_STARTED if dead.error else 0)
