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
FINAL_PHASES = frozenset(("Succeeded", "Failed"))


@dataclass(frozen=True, slots=True)
class Start:
    """A container to create and start."""

    wish: Wish
    restarts: int
    crashes: int


@dataclass(frozen=True, slots=True)
class PodActions:
    """In the order of the fields; `str` is one line for the log, empty when there is nothing to do.

    `kill` are containers to end at once; `retire` are asked to stop because their image has changed, and have the
    pod's grace period; `remove` may be deleted; `sandbox_attempt` asks for a new sandbox; `waiting` tells until when a
    container is held back. `finished`: the pod has come to its end, what it holds besides its containers may go.
    """

    kill: tuple[Container, ...] = ()
    retire: tuple[Container, ...] = ()
    remove: tuple[Container, ...] = ()
    sandbox_attempt: int | None = None
    start: tuple[Start, ...] = ()
    waiting: tuple[tuple[str, datetime], ...] = ()
    finished: bool = False

    def __str__(self) -> str:
        parts = [
            f"kill {_names(self.kill)}" if self.kill else "",
            f"retire {_names(self.retire)}" if self.retire else "",
            f"remove {len(self.remove)}" if self.remove else "",
            f"new sandbox {self.sandbox_attempt}" if self.sandbox_attempt is not None else "",
            f"start {' '.join(one.wish.name for one in self.start)}" if self.start else "",
        ]
        return ", ".join(part for part in parts if part)

    def wake_at(self) -> datetime | None:
        """When there will be something to do without any event."""
        return min((until for _, until in self.waiting), default=None)


def _names(containers: tuple[Container, ...]) -> str:
    return " ".join(one.name for one in containers)


def crash_delay(crashes: int) -> timedelta:
    """How long a container waits that has ended soon so many times in a row, this one not counted."""
    if crashes <= 0:
        return timedelta(0)
    return min(FIRST_DELAY * float(2 ** min(crashes - 1, 10)), LAST_DELAY)


def crashes_before(dead: Container) -> int:
    """How many starts in a row ended soon before this one; none when this one ran well."""
    ran = dead.finished_at - dead.started_at if dead.finished_at and dead.started_at else timedelta(0)
    return 0 if ran >= GOOD_RUN else dead.crashes


def due(dead: Container, now: datetime) -> datetime:
    """When an ended container may start again; an end that lies ahead of us (the clock was set back) does not count."""
    end = dead.ended_at
    return now if end is None or now < end else end + crash_delay(crashes_before(dead))


def may_restart(policy: str, dead: Container) -> bool:
    """Whether the pod's restartPolicy wants this container back."""
    return policy == "Always" or (policy == "OnFailure" and exit_code(dead) != 0)


def exit_code(dead: Container) -> int:
    """Its exit code; a container that never ran because it could not be started has failed."""
    return dead.exit_code or (128 if dead.error else 0)


def plan(pod: Pod, seen: PodContainers, now: datetime, retired: frozenset[str] = frozenset()) -> PodActions:
    """The actions for a pod that is to run. `retired` are ids of containers that were asked to stop by such a plan.

    A pod whose phase is final never starts anything again, whatever has become of its containers.
    """
    if pod.status.phase in FINAL_PHASES or is_finished(pod, seen, retired):
        return PodActions(kill=tuple(one for one in seen.everything if one.running), finished=True)
    sandbox = seen.sandbox
    if sandbox is None or not sandbox.running:
        return _new_sandbox(pod, seen)
    return _in_sandbox(pod, seen, sandbox, now, retired)


def _new_sandbox(pod: Pod, seen: PodContainers) -> PodActions:
    """Containers of a sandbox that is gone have no network: they end, and all that may run again start anew."""
    stale = tuple(one for one in seen.everything if one.running)
    starts = tuple(_start(wish, seen) for wish in pod.spec.containers if _is_to_run(pod, wish, seen))
    if not starts:
        return PodActions(kill=stale)
    box = seen.sandbox
    attempt = 0 if box is None else box.attempt if box.unborn else box.attempt + 1
    gone = tuple(one for one in seen.everything if one.unborn and not one.is_sandbox) + seen.sandboxes
    return PodActions(kill=stale, remove=gone, sandbox_attempt=attempt, start=starts)


def _in_sandbox(
    pod: Pod, seen: PodContainers, sandbox: Container, now: datetime, retired: frozenset[str]
) -> PodActions:
    kill, retire, start, waiting = [], [], [], []
    remove = [*seen.sandboxes[1:]]
    for wish in pod.spec.containers:
        history = seen.containers.get(wish.name, ())
        remove += [one for one in history[2:] if not one.running]
        newest = history[0] if history else None
        if newest is None:
            start.append(Start(wish, 0, 0))
        elif newest.unborn:
            remove.append(newest)
            start.append(Start(wish, newest.restarts, newest.crashes))
        elif newest.labels.get(SANDBOX_ID) != sandbox.id:
            kill += [newest] if newest.running else []
            start += [_start(wish, seen)] if _is_to_run(pod, wish, seen) else []
        elif newest.running:
            retire += [newest] if newest.labels.get(HASH) != spec_hash(wish) else []
        elif newest.id in retired:
            start.append(Start(wish, newest.restarts + 1, 0))
        elif may_restart(pod.spec.restart_policy, newest):
            if now >= due(newest, now):
                start.append(Start(wish, newest.restarts + 1, crashes_before(newest) + 1))
            else:
                waiting.append((wish.name, due(newest, now)))
    return PodActions(tuple(kill), tuple(retire), tuple(remove), None, tuple(start), tuple(waiting))


def _is_to_run(pod: Pod, wish: Wish, seen: PodContainers) -> bool:
    """Whether a container that has lost its sandbox starts again: not if it has done its work, nor after Never."""
    newest = next((one for one in seen.containers.get(wish.name, ()) if not one.unborn), None)
    if newest is None:
        return True
    policy = pod.spec.restart_policy
    return policy != "Never" if newest.running else may_restart(policy, newest)


def _start(wish: Wish, seen: PodContainers) -> Start:
    history = [one for one in seen.containers.get(wish.name, ()) if not one.unborn]
    return Start(wish, history[0].restarts + 1 if history else 0, 0)


def is_finished(pod: Pod, seen: PodContainers, retired: frozenset[str] = frozenset()) -> bool:
    """Whether every container has ended and none may start again."""
    newest = [seen.containers[wish.name][0] for wish in pod.spec.containers if seen.containers.get(wish.name)]
    return len(newest) == len(pod.spec.containers) and all(
        one.ended and one.id not in retired and not may_restart(pod.spec.restart_policy, one) for one in newest
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
