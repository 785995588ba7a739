"""What to do with a pod now: desired × observed × now → actions. Pure.

A first restart is immediate; after that a container that keeps ending soon waits 10 s, 20 s, ... up to 5 min, counted
from its end. One that ran for 10 minutes begins anew.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

from api.objects import FINAL_PHASES, Pod
from api.objects import Container as Wish
from node_agent.containers import spec_hash
from node_agent.lost import starts_before
from node_agent.observed import HASH, SANDBOX_ID, Container, PodContainers
from node_agent.progress import NOTHING, Progress
from node_agent.stages import failed_for_good, restart_policy, sidecars, stage

FIRST_DELAY, LAST_DELAY = timedelta(seconds=10), timedelta(seconds=300)
GOOD_RUN = timedelta(seconds=600)
NOT_STARTED = 128
"""Exit code of a container that could not be started, but for want of its program (127) or of rights to it (126)."""


@dataclass(frozen=True, slots=True)
class Start:
    """A container to create and start."""

    wish: Wish
    restarts: int
    crashes: int


@dataclass(frozen=True, slots=True)
class PodActions:
    """In the order of the fields; `str` is one line for the log, empty when there is nothing to do.

    `kill` are containers to end at once; `retire` are asked to stop because their image has changed or a probe or hook
    has failed, and have their grace period; `remove` may be deleted; `sandbox_attempt` asks for a new sandbox;
    `waiting` tells until when a container is held back; the postStart hook of `hook` is run. `finished`: the pod has
    come to its end; what still runs is asked to stop, and then `kill` and what the pod holds besides its containers go.
    """

    kill: tuple[Container, ...] = ()
    retire: tuple[Container, ...] = ()
    remove: tuple[Container, ...] = ()
    sandbox_attempt: int | None = None
    start: tuple[Start, ...] = ()
    waiting: tuple[tuple[str, datetime], ...] = ()
    finished: bool = False
    hook: Container | None = None

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


def comes_back(policy: str, dead: Container, progress: Progress) -> bool:
    """Whether an ended container starts again, because of its policy or because we ended it to start it again."""
    return may_restart(policy, dead) or progress.comes_back(policy, dead)


def exit_code(dead: Container) -> int:
    """Its exit code; a container that never ran because it could not be started has failed."""
    return dead.exit_code or (NOT_STARTED if dead.error else 0)


def plan(
    pod: Pod,
    seen: PodContainers,
    now: datetime,
    retired: frozenset[str] = frozenset(),
    progress: Progress = NOTHING,
) -> PodActions:
    """The actions for a pod that is to run.

    `retired` are ids of containers that were asked to stop by such a plan, because of their image.

    A pod whose phase is final never starts anything again, whatever has become of its containers.
    """
    if pod.status.phase in FINAL_PHASES or is_finished(pod, seen, retired, progress):
        return PodActions(kill=tuple(one for one in seen.sandboxes if one.running), finished=True)
    sandbox = seen.sandbox
    if sandbox is None or not sandbox.running:
        return _new_sandbox(pod, seen)
    return _in_sandbox(pod, seen, sandbox, now, retired, progress)


def _new_sandbox(pod: Pod, seen: PodContainers) -> PodActions:
    """Containers of a sandbox that is gone have no network: they end, and all that may run again start anew."""
    stale = tuple(one for one in seen.everything if one.running)
    if not any(_is_to_run(pod, wish, seen) for wish in pod.spec.containers):
        return PodActions(kill=stale)
    starts = tuple(_start(pod, wish, seen) for wish in stage(pod, seen, None).due if _is_to_run(pod, wish, seen))
    box = seen.sandbox
    attempt = 0 if box is None else box.attempt if box.unborn else box.attempt + 1
    gone = tuple(one for one in seen.everything if one.unborn and not one.is_sandbox) + seen.sandboxes
    return PodActions(kill=stale, remove=gone, sandbox_attempt=attempt, start=starts)


def _in_sandbox(
    pod: Pod, seen: PodContainers, sandbox: Container, now: datetime, retired: frozenset[str], progress: Progress
) -> PodActions:
    newest_of = [history[0] for history in seen.containers.values()]
    kill = [one for one in newest_of if one.running and one.labels.get(SANDBOX_ID) != sandbox.id]
    remove = [*seen.sandboxes[1:]]
    start, unborn = _extras(pod, seen)
    remove += unborn
    retire, waiting, hook = [], [], None
    for wish in stage(pod, seen, sandbox, progress).due:
        history = seen.containers.get(wish.name, ())
        newest = history[0] if history else None
        if newest is None:
            start.append(_start(pod, wish, seen))
        elif newest.unborn:
            remove.append(newest)
            start.append(Start(wish, newest.restarts, newest.crashes))
        elif newest.labels.get(SANDBOX_ID) != sandbox.id:
            start += [_start(pod, wish, seen)] if _is_to_run(pod, wish, seen) else []
        elif newest.running:
            outdated = newest.labels.get(HASH) != spec_hash(wish)
            retire += [newest] if outdated or newest.id in progress.condemned else []
            if not outdated and progress.hook_is_due(wish, newest):
                hook = newest
                break  # what comes after it waits for its hook
        elif newest.id in retired:
            start.append(Start(wish, newest.restarts + 1, 0))
        elif comes_back(restart_policy(pod, wish), newest, progress):
            if now >= due(newest, now):
                start.append(Start(wish, newest.restarts + 1, crashes_before(newest) + 1))
            else:
                waiting.append((wish.name, due(newest, now)))
    return PodActions(tuple(kill), tuple(retire), tuple(remove), None, tuple(start), tuple(waiting), hook=hook)


def _extras(pod: Pod, seen: PodContainers) -> tuple[list[Start], list[Container]]:
    """Ephemeral containers that were never tried, and what is left of attempts to make them."""
    tried = [(wish, seen.containers.get(wish.name, ())) for wish in pod.spec.ephemeral_containers]
    starts = [Start(wish, 0, 0) for wish, found in tried if all(one.unborn for one in found)]
    return starts, [one for _, found in tried for one in found if one.unborn]


def _is_to_run(pod: Pod, wish: Wish, seen: PodContainers) -> bool:
    """Whether a container that has lost its sandbox starts again: not if it has done its work, nor after Never.

    Init containers do their work anew in each sandbox.
    """
    if any(wish.name == one.name for one in pod.spec.init_containers):
        return True
    newest = next((one for one in seen.containers.get(wish.name, ()) if not one.unborn), None)
    if newest is None:
        return True
    policy = pod.spec.restart_policy
    return policy != "Never" if newest.running else may_restart(policy, newest)


def _start(pod: Pod, wish: Wish, seen: PodContainers) -> Start:
    history = [one for one in seen.containers.get(wish.name, ()) if not one.unborn]
    return Start(wish, history[0].restarts + 1 if history else starts_before(pod, wish.name), 0)


def is_finished(
    pod: Pod, seen: PodContainers, retired: frozenset[str] = frozenset(), progress: Progress = NOTHING
) -> bool:
    """Whether every container of the pod's own has ended and none may start again, or an init container has failed."""
    if failed_for_good(pod, seen):
        return True
    newest = [seen.containers[wish.name][0] for wish in pod.spec.containers if seen.containers.get(wish.name)]
    return len(newest) == len(pod.spec.containers) and all(
        one.ended and one.id not in retired and not comes_back(pod.spec.restart_policy, one, progress) for one in newest
    )


@dataclass(frozen=True, slots=True)
class Termination:
    """The next step of a pod that is to go; without a deadline nothing runs any more."""

    signal: tuple[Container, ...] = ()
    kill: tuple[Container, ...] = ()
    deadline: datetime | None = None


def terminate(
    pod: Pod, seen: PodContainers, signalled: frozenset[str], deadline: datetime, now: datetime
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
