"""The steps to stop containers: grace period, preStop hook, signal, kill; activeDeadlineSeconds. Pure.

The grace period begins with the preStop hook. After the hook a container has at least two more seconds (kubelet:
killContainer).
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import Enum

from api.core.pod import Pod
from api.core.resource_requests import sidecars
from api.meta import times
from api.validation.static_pods import is_static
from node_agent.runtime.container import RuntimeContainer, RuntimePod

MIN_AFTER_HOOK = timedelta(seconds=2)
MAX_GRACE_SECONDS = (1 << 31) - 1
"""Upper limit of a grace period, 68 years. API servers may have no limit."""

REMOVED_SECONDS = 2
"""Upper limit of the grace period of a pod whose object is gone already, because its deletion was forced."""


def grace_period_seconds(pod: Pod, override: int | None, removed: bool) -> int:
    """Return the seconds that the containers of a pod have to stop.

    `override`: the grace period of an eviction, None without one. `removed`: no source has the pod any more.
    """
    grace = pod.metadata.deletion_grace_period_seconds
    if grace is None or not pod.metadata.deletion_timestamp:
        grace = override if override is not None else pod.spec.termination_grace_period_seconds or 0
    return min(grace, REMOVED_SECONDS if removed and not is_static(pod) else MAX_GRACE_SECONDS)


class StopStep(Enum):
    """The next step to stop a container."""

    HOOK = "run its preStop hook"
    SIGNAL = "send its stop signal"
    KILL = "kill it"
    WAIT = "wait"


@dataclass(frozen=True, slots=True)
class StopState:
    """Progress of stopping a container. `hook_finished_at`: end of its preStop hook, successful or not."""

    hook_running: bool = False
    hook_finished_at: datetime | None = None
    signalled: bool = False


def next_stop_step(has_hook: bool, stop: StopState, deadline: datetime, now: datetime) -> tuple[StopStep, datetime]:
    """Return the next step to stop a container, and when to call again if no event happens before."""
    kill_at = deadline if stop.hook_finished_at is None else max(deadline, stop.hook_finished_at + MIN_AFTER_HOOK)
    if stop.signalled:
        return (StopStep.KILL if now >= kill_at else StopStep.WAIT), kill_at
    if stop.hook_finished_at is not None:
        return StopStep.SIGNAL, kill_at
    if stop.hook_running:
        # A hook that has used up the grace period is cancelled. The container has two more seconds nevertheless.
        return (StopStep.WAIT, deadline) if now < deadline else (StopStep.SIGNAL, now + MIN_AFTER_HOOK)
    if now >= deadline:
        return StopStep.KILL, deadline
    return (StopStep.HOOK if has_hook else StopStep.SIGNAL), deadline


DEADLINE_EXCEEDED = ("DeadlineExceeded", "Pod was active on the node longer than the specified deadline")
"""Reason and message."""


def active_deadline(pod: Pod, runtime_pod: RuntimePod, started_at: datetime) -> datetime | None:
    """Return the time by which the pod must have ended (activeDeadlineSeconds). Return None without such a limit.

    The time counts from the start time in the status. Without one it counts from `started_at` or from the oldest
    container, whichever is earlier, so that a restart of the agent gives no pod more time.
    """
    if pod.spec.active_deadline_seconds is None:
        return None
    if pod.status.start_time:
        since = times.parse_time(pod.status.start_time)
    else:
        created_at = [container.created_at for container in runtime_pod.all if container.created_at is not None]
        since = min([started_at, *created_at])
    return since + timedelta(seconds=min(pod.spec.active_deadline_seconds, MAX_GRACE_SECONDS))


@dataclass(frozen=True, slots=True)
class Termination:
    """The containers to signal and to kill now. Without a deadline nothing runs any more."""

    signal: tuple[RuntimeContainer, ...] = ()
    kill: tuple[RuntimeContainer, ...] = ()
    deadline: datetime | None = None


def plan_termination(
    pod: Pod, runtime_pod: RuntimePod, signalled: frozenset[str], deadline: datetime, now: datetime
) -> Termination:
    """Return the next step to stop all containers: signals first, kills at the deadline.

    Sidecars are stopped after the other containers, one after the other, in reverse start order.
    """
    running = tuple(
        container for history in runtime_pod.containers.values() for container in history if container.running
    )
    if not running:
        return Termination()
    if now >= deadline:
        return Termination(kill=running, deadline=deadline)
    sidecar_order = {sidecar.name: number for number, sidecar in enumerate(sidecars(pod))}
    to_stop = [container for container in running if container.name not in sidecar_order]
    if not to_stop:
        to_stop = [max(running, key=lambda container: sidecar_order[container.name])]
    signal = tuple(container for container in to_stop if container.id not in signalled)
    return Termination(signal=signal, deadline=deadline)
