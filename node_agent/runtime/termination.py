"""How containers are stopped: grace period, preStop, signal, kill; activeDeadlineSeconds. Pure.

The time begins with the hook, and there are two seconds left after it in any case. Source: facts/node.md 12.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import Enum

from api.core.pod import Pod
from api.core.resources import sidecars
from api.meta import times
from api.validation.static_pods import is_static
from node_agent.runtime.container import RuntimeContainer, RuntimePod

MIN_AFTER_HOOK = timedelta(seconds=2)
MAX_GRACE_SECONDS = (1 << 31) - 1
"""More than a life; API servers may know no bound."""

REMOVED_SECONDS = 2
"""The grace of a pod whose object is gone already: somebody did not want to wait."""


def grace_period_seconds(pod: Pod, override: int | None, removed: bool) -> int:
    """Return the seconds that the containers of a pod get to stop.

    `override`: the grace period of an eviction, None without one. `removed`: no source has the pod any more.
    """
    grace = pod.metadata.deletion_grace_period_seconds
    if grace is None or not pod.metadata.deletion_timestamp:
        grace = override if override is not None else pod.spec.termination_grace_period_seconds or 0
    return min(grace, REMOVED_SECONDS if removed and not is_static(pod) else MAX_GRACE_SECONDS)


class StopStep(Enum):
    """What to do next with a container that is to end."""

    HOOK = "run its preStop hook"
    SIGNAL = "ask it to stop"
    KILL = "end it"
    WAIT = "wait"


@dataclass(frozen=True, slots=True)
class StopState:
    """How far the end of a container has come. `hook_finished_at`: when its hook was over, however it went."""

    hook_running: bool = False
    hook_finished_at: datetime | None = None
    signalled: bool = False


def next_stop_step(has_hook: bool, stop: StopState, deadline: datetime, now: datetime) -> tuple[StopStep, datetime]:
    """What to do now, and when to look again without any event."""
    kill_at = deadline if stop.hook_finished_at is None else max(deadline, stop.hook_finished_at + MIN_AFTER_HOOK)
    if stop.signalled:
        return (StopStep.KILL if now >= kill_at else StopStep.WAIT), kill_at
    if stop.hook_finished_at is not None:
        return StopStep.SIGNAL, kill_at
    if stop.hook_running:
        # A hook that has used up all the time is cut off; the container has its two seconds all the same.
        return (StopStep.WAIT, deadline) if now < deadline else (StopStep.SIGNAL, now + MIN_AFTER_HOOK)
    if now >= deadline:
        return StopStep.KILL, deadline
    return (StopStep.HOOK if has_hook else StopStep.SIGNAL), deadline


DEADLINE_EXCEEDED = ("DeadlineExceeded", "Pod was active on the node longer than the specified deadline")
"""Reason and message."""


def active_deadline(pod: Pod, seen: RuntimePod, begun: datetime) -> datetime | None:
    """The moment, None without a deadline.

    It counts from the start that the status tells; while it tells none, from `begun` or the oldest container, whichever
    is earlier, so that a restart of the agent gives no pod more time.
    """
    if pod.spec.active_deadline_seconds is None:
        return None
    if pod.status.start_time:
        since = times.parse_time(pod.status.start_time)
    else:
        since = min([begun, *(one.created_at for one in seen.all if one.created_at is not None)])
    return since + timedelta(seconds=min(pod.spec.active_deadline_seconds, MAX_GRACE_SECONDS))


@dataclass(frozen=True, slots=True)
class Termination:
    """The next step of a pod that is to go; without a deadline nothing runs any more."""

    signal: tuple[RuntimeContainer, ...] = ()
    kill: tuple[RuntimeContainer, ...] = ()
    deadline: datetime | None = None


def plan_termination(
    pod: Pod, seen: RuntimePod, signalled: frozenset[str], deadline: datetime, now: datetime
) -> Termination:
    """Ask running containers to stop, kill them at the deadline.

    Sidecars are asked when the others have ended, one after the other, the one that was started last first.
    """
    running = tuple(one for group in seen.containers.values() for one in group if one.running)
    if not running:
        return Termination()
    if now >= deadline:
        return Termination(kill=running, deadline=deadline)
    last = {wish.name: number for number, wish in enumerate(sidecars(pod))}
    turn = [one for one in running if one.name not in last] or [max(running, key=lambda one: last[one.name])]
    return Termination(signal=tuple(one for one in turn if one.id not in signalled), deadline=deadline)
