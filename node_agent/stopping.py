"""How a container is brought to its end: its preStop hook, its stop signal, and SIGKILL when its time is over. Pure.

The time begins with the hook, and there are two seconds left after it in any case. Source: facts/node.md 12.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import Enum

import msgspec
from msgspec.structs import replace

from api.objects import Container as Wish
from api.objects import Pod
from api.probes import LifecycleHandler
from api.static_pods import is_static
from node_agent.eviction import is_evicted
from node_agent.observed import PRE_STOP, Container

LEAST_AFTER_HOOK = timedelta(seconds=2)
LONGEST_GRACE = (1 << 31) - 1
"""More than a life; API servers may know no bound."""

REMOVED_SECONDS = 2
"""The grace of a pod whose object is gone already: somebody did not want to wait."""


def grace_seconds(pod: Pod, evicted_with: int, leaving: bool) -> int:
    """How long the containers of a pod have for their end; `leaving`: no source wants the pod any more."""
    grace = pod.metadata.deletion_grace_period_seconds
    if grace is None or not pod.metadata.deletion_timestamp:
        grace = evicted_with if is_evicted(pod.status) else pod.spec.termination_grace_period_seconds or 0
    return min(grace, REMOVED_SECONDS if leaving and not is_static(pod) else LONGEST_GRACE)


class Step(Enum):
    """What to do next with a container that is to end."""

    HOOK = "run its preStop hook"
    SIGNAL = "ask it to stop"
    KILL = "end it"
    WAIT = "wait"


@dataclass(frozen=True, slots=True)
class Stop:
    """How far the end of a container has come. `hooked_at`: when its hook was over, however it went."""

    hooking: bool = False
    hooked_at: datetime | None = None
    signalled: bool = False


def next_step(has_hook: bool, stop: Stop, deadline: datetime, now: datetime) -> tuple[Step, datetime]:
    """What to do now, and when to look again without any event."""
    kill_at = deadline if stop.hooked_at is None else max(deadline, stop.hooked_at + LEAST_AFTER_HOOK)
    if stop.signalled:
        return (Step.KILL if now >= kill_at else Step.WAIT), kill_at
    if stop.hooked_at is not None:
        return Step.SIGNAL, kill_at
    if stop.hooking:
        # A hook that has used up all the time is cut off; the container has its two seconds all the same.
        return (Step.WAIT, deadline) if now < deadline else (Step.SIGNAL, now + LEAST_AFTER_HOOK)
    if now >= deadline:
        return Step.KILL, deadline
    return (Step.HOOK if has_hook else Step.SIGNAL), deadline


def labels(wish: Wish) -> dict[str, str]:
    """What an agent that knows nothing but the container needs to stop it well; names of ports become numbers."""
    hook = wish.lifecycle.pre_stop if wish.lifecycle is not None else None
    if hook is None:
        return {}
    if hook.http_get is not None and isinstance(hook.http_get.port, str):
        hook = replace(hook, http_get=replace(hook.http_get, port=ports(wish)[hook.http_get.port]))
    return {PRE_STOP: msgspec.json.encode(hook).decode()}


def signal_of(wish: Wish) -> str:
    """The signal with which a container wishes to be asked to stop; empty for that of its image."""
    return wish.lifecycle.stop_signal or "" if wish.lifecycle is not None else ""


def pre_stop(container: Container) -> LifecycleHandler | None:
    """The hook that is written on a container."""
    text = container.labels.get(PRE_STOP)
    return msgspec.json.decode(text, type=LifecycleHandler) if text else None


def ports(wish: Wish) -> dict[str, int]:
    """The named ports of a container."""
    return {port.name: port.container_port for port in wish.ports if port.name}
