"""What to do with a pod now: desired × observed × now → actions. Pure.

A first restart is immediate; after that a container that keeps ending soon waits 10 s, 20 s, ... up to 5 min, counted
from its end. One that ran for 10 minutes begins anew.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

from api.objects import Container as Wish
from api.objects import Pod
from node_agent.containers import spec_hash
from node_agent.observed import HASH, SANDBOX_ID, Container, PodContainers

FIRST_DELAY, LAST_DELAY = timedelta(seconds=10), timedelta(seconds=300)
GOOD_RUN = timedelta(seconds=600)


@dataclass(frozen=True, slots=True)
class Start:
    """A container to create and start."""

    wish: Wish
    restarts: int
    crashes: int


@dataclass(frozen=True, slots=True)
class PodActions:
    """In the order of the fields; `str` is one line for the log, empty when there is nothing to do.

    `kill` are containers to stop at once; `remove` may be deleted; `sandbox_attempt` asks for a new sandbox;
    `waiting` tells until when a container is held back.
    """

    kill: tuple[Container, ...] = ()
    remove: tuple[Container, ...] = ()
    sandbox_attempt: int | None = None
    start: tuple[Start, ...] = ()
    waiting: tuple[tuple[str, datetime], ...] = ()
    finished: bool = False

    def __str__(self) -> str:
        parts = [
            f"kill {' '.join(one.name for one in self.kill)}" if self.kill else "",
            f"remove {len(self.remove)}" if self.remove else "",
            f"new sandbox {self.sandbox_attempt}" if self.sandbox_attempt is not None else "",
            f"start {' '.join(one.wish.name for one in self.start)}" if self.start else "",
        ]
        return ", ".join(part for part in parts if part)

    def wake_at(self) -> datetime | None:
        """When there will be something to do without any event."""
        return min((until for _, until in self.waiting), default=None)


def crash_delay(crashes: int) -> timedelta:
    """How long a container waits that has ended soon so many times in a row, this one not counted."""
    if crashes <= 0:
        return timedelta(0)
    return min(FIRST_DELAY * float(2 ** min(crashes - 1, 10)), LAST_DELAY)


def crashes_after(dead: Container) -> int:
    """The count that the next start carries."""
    ran = dead.finished_at - dead.started_at if dead.finished_at and dead.started_at else timedelta(0)
    return 0 if ran >= GOOD_RUN else dead.crashes + 1


def may_restart(policy: str, dead: Container) -> bool:
    """Whether the pod's restartPolicy wants this container back."""
    return policy == "Always" or (policy == "OnFailure" and exit_code(dead) != 0)


def exit_code(dead: Container) -> int:
    """Its exit code; a container that never ran because it could not be started has failed."""
    return dead.exit_code or (128 if dead.error else 0)


def plan(pod: Pod, seen: PodContainers, now: datetime) -> PodActions:
    """The actions for a pod that is to run."""
    if is_finished(pod, seen):
        running = tuple(one for one in seen.sandboxes if one.running)
        return PodActions(kill=running, finished=True)
    sandbox = seen.sandbox
    if sandbox is None or not sandbox.running:
        stale = tuple(one for one in seen.everything if one.running)
        attempt = sandbox.attempt + 1 if sandbox is not None else 0
        gone = tuple(one for one in seen.everything if one.state == "created") + seen.sandboxes
        starts = tuple(_start(wish, seen) for wish in pod.spec.containers)
        return PodActions(kill=stale, remove=gone, sandbox_attempt=attempt, start=starts)
    return _in_sandbox(pod, seen, sandbox, now)


def _in_sandbox(pod: Pod, seen: PodContainers, sandbox: Container, now: datetime) -> PodActions:
    kill, start, waiting = [], [], []
    remove = [*seen.sandboxes[1:]]
    for wish in pod.spec.containers:
        history = seen.containers.get(wish.name, ())
        remove += [one for one in history[2:] if not one.running]
        newest = history[0] if history else None
        if newest is None or newest.labels.get(SANDBOX_ID) != sandbox.id:
            start.append(_start(wish, seen))
        elif newest.state == "created":
            remove.append(newest)
            start.append(Start(wish, newest.restarts, newest.crashes))
        elif newest.running:
            if newest.labels.get(HASH) != spec_hash(wish):
                kill.append(newest)
                start.append(Start(wish, newest.restarts + 1, 0))
        elif may_restart(pod.spec.restart_policy, newest):
            due = (newest.finished_at or now) + crash_delay(newest.crashes)
            if now >= due:
                start.append(Start(wish, newest.restarts + 1, crashes_after(newest)))
            else:
                waiting.append((wish.name, due))
    return PodActions(kill=tuple(kill), remove=tuple(remove), start=tuple(start), waiting=tuple(waiting))


def _start(wish: Wish, seen: PodContainers) -> Start:
    history = [one for one in seen.containers.get(wish.name, ()) if one.state != "created"]
    return Start(wish, history[0].restarts + 1 if history else 0, 0)


def is_finished(pod: Pod, seen: PodContainers) -> bool:
    """Whether every container has ended and none may start again."""
    newest = [seen.containers[wish.name][0] for wish in pod.spec.containers if seen.containers.get(wish.name)]
    return len(newest) == len(pod.spec.containers) and all(
        not one.running and one.state != "created" and not may_restart(pod.spec.restart_policy, one) for one in newest
    )


@dataclass(frozen=True, slots=True)
class Termination:
    """The next step of a pod that is to go: signals first, then the network, then everything else."""

    signal: tuple[Container, ...] = ()
    kill: tuple[Container, ...] = ()
    deadline: datetime | None = None
    remove: tuple[Container, ...] = ()


def terminate(seen: PodContainers, signalled: frozenset[str], deadline: datetime, now: datetime) -> Termination:
    """Ask running containers to stop, kill them at the deadline; remove everything when none runs any more."""
    running = tuple(one for group in seen.containers.values() for one in group if one.running)
    if not running:
        return Termination(remove=seen.everything)
    if now >= deadline:
        return Termination(kill=running)
    return Termination(signal=tuple(one for one in running if one.id not in signalled), deadline=deadline)
