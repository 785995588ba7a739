"""Computes what to do for a pod now (kubelet: computePodActions). Pure.

A first restart is immediate; after that a container that keeps ending soon waits 10 s, 20 s, ... up to 5 min, counted
from its end. One that ran for 10 minutes begins anew.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from api.core.pod import FINAL_PHASES, Container, Pod
from node_agent.runtime.container import HASH, SANDBOX_ID, RuntimeContainer, RuntimePod
from node_agent.runtime.restarts import (
    policy_restarts,
    previous_crashes,
    previous_starts,
    restart_policy,
    restart_time,
    should_restart,
)
from node_agent.runtime.spec import container_hash
from node_agent.runtime.startup import NO_LIFECYCLE_STATE, LifecycleState, containers_to_start, init_failed


@dataclass(frozen=True, slots=True)
class ContainerStart:
    """A container to create and start, with its restart count and its number of consecutive crashes."""

    container: Container
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

    kill: tuple[RuntimeContainer, ...] = ()
    stop: tuple[RuntimeContainer, ...] = ()
    remove: tuple[RuntimeContainer, ...] = ()
    sandbox_attempt: int | None = None
    start: tuple[ContainerStart, ...] = ()
    backing_off: tuple[tuple[str, datetime], ...] = ()
    finished: bool = False
    post_start: RuntimeContainer | None = None

    def __str__(self) -> str:
        parts = [
            f"kill {_names(self.kill)}" if self.kill else "",
            f"stop {_names(self.stop)}" if self.stop else "",
            f"remove {len(self.remove)}" if self.remove else "",
            f"new sandbox {self.sandbox_attempt}" if self.sandbox_attempt is not None else "",
            f"start {' '.join(start.container.name for start in self.start)}" if self.start else "",
        ]
        return ", ".join(part for part in parts if part)

    def wake_at(self) -> datetime | None:
        """When there will be something to do without any event."""
        return min((until for _, until in self.backing_off), default=None)


def _names(containers: tuple[RuntimeContainer, ...]) -> str:
    return " ".join(one.name for one in containers)


def compute_pod_actions(
    pod: Pod,
    seen: RuntimePod,
    now: datetime,
    retired: frozenset[str] = frozenset(),
    progress: LifecycleState = NO_LIFECYCLE_STATE,
) -> PodActions:
    """The actions for a pod that is to run.

    `retired` are ids of containers that were asked to stop by such a plan, because of their image.

    A pod whose phase is final never starts anything again, whatever has become of its containers.
    """
    if pod.status.phase in FINAL_PHASES or is_pod_finished(pod, seen, retired, progress):
        return PodActions(kill=tuple(one for one in seen.sandboxes if one.running), finished=True)
    sandbox = seen.sandbox
    if sandbox is None or not sandbox.running:
        return _new_sandbox(pod, seen)
    return _in_sandbox(pod, seen, sandbox, now, retired, progress)


def _new_sandbox(pod: Pod, seen: RuntimePod) -> PodActions:
    """Containers of a sandbox that is gone have no network: they end, and all that may run again start anew."""
    stale = tuple(one for one in seen.all if one.running)
    if not any(_restarts_in_new_sandbox(pod, wish, seen) for wish in pod.spec.containers):
        return PodActions(kill=stale)
    starts = tuple(
        _container_start(pod, wish, seen)
        for wish in containers_to_start(pod, seen, None).containers
        if _restarts_in_new_sandbox(pod, wish, seen)
    )
    box = seen.sandbox
    attempt = 0 if box is None else box.attempt if box.never_started else box.attempt + 1
    gone = tuple(one for one in seen.all if one.never_started and not one.is_sandbox) + seen.sandboxes
    return PodActions(kill=stale, remove=gone, sandbox_attempt=attempt, start=starts)


def _in_sandbox(
    pod: Pod,
    seen: RuntimePod,
    sandbox: RuntimeContainer,
    now: datetime,
    retired: frozenset[str],
    progress: LifecycleState,
) -> PodActions:
    newest_of = [history[0] for history in seen.containers.values()]
    kill = [one for one in newest_of if one.running and one.labels.get(SANDBOX_ID) != sandbox.id]
    remove = [*seen.sandboxes[1:]]
    start, unborn = _ephemeral_containers(pod, seen)
    remove += unborn
    retire, waiting, hook = [], [], None
    for wish in containers_to_start(pod, seen, sandbox, progress).containers:
        history = seen.containers.get(wish.name, ())
        newest = history[0] if history else None
        if newest is None:
            start.append(_container_start(pod, wish, seen))
        elif newest.never_started:
            remove.append(newest)
            start.append(ContainerStart(wish, newest.restart_count, newest.crash_count))
        elif newest.labels.get(SANDBOX_ID) != sandbox.id:
            start += [_container_start(pod, wish, seen)] if _restarts_in_new_sandbox(pod, wish, seen) else []
        elif newest.running:
            outdated = newest.labels.get(HASH) != container_hash(wish)
            retire += [newest] if outdated or newest.id in progress.to_kill else []
            if not outdated and progress.needs_post_start(wish, newest):
                hook = newest
                break  # what comes after it waits for its hook
        elif newest.id in retired:
            start.append(ContainerStart(wish, newest.restart_count + 1, 0))
        elif should_restart(restart_policy(pod, wish), newest, progress):
            if now >= restart_time(newest, now):
                start.append(ContainerStart(wish, newest.restart_count + 1, previous_crashes(newest) + 1))
            else:
                waiting.append((wish.name, restart_time(newest, now)))
    return PodActions(tuple(kill), tuple(retire), tuple(remove), None, tuple(start), tuple(waiting), post_start=hook)


def _ephemeral_containers(pod: Pod, seen: RuntimePod) -> tuple[list[ContainerStart], list[RuntimeContainer]]:
    """Ephemeral containers that were never tried, and what is left of attempts to make them."""
    tried = [(wish, seen.containers.get(wish.name, ())) for wish in pod.spec.ephemeral_containers]
    starts = [ContainerStart(wish, 0, 0) for wish, found in tried if all(one.never_started for one in found)]
    return starts, [one for _, found in tried for one in found if one.never_started]


def _restarts_in_new_sandbox(pod: Pod, wish: Container, seen: RuntimePod) -> bool:
    """Whether a container that has lost its sandbox starts again: not if it has done its work, nor after Never.

    Init containers do their work anew in each sandbox.
    """
    if any(wish.name == one.name for one in pod.spec.init_containers):
        return True
    newest = next((one for one in seen.containers.get(wish.name, ()) if not one.never_started), None)
    if newest is None:
        return True
    policy = pod.spec.restart_policy
    return policy != "Never" if newest.running else policy_restarts(policy, newest)


def _container_start(pod: Pod, wish: Container, seen: RuntimePod) -> ContainerStart:
    history = [one for one in seen.containers.get(wish.name, ()) if not one.never_started]
    return ContainerStart(wish, history[0].restart_count + 1 if history else previous_starts(pod, wish.name), 0)


def is_pod_finished(
    pod: Pod, seen: RuntimePod, retired: frozenset[str] = frozenset(), progress: LifecycleState = NO_LIFECYCLE_STATE
) -> bool:
    """Whether every container of the pod's own has ended and none may start again, or an init container has failed."""
    if init_failed(pod, seen):
        return True
    newest = [seen.containers[wish.name][0] for wish in pod.spec.containers if seen.containers.get(wish.name)]
    return len(newest) == len(pod.spec.containers) and all(
        one.exited and one.id not in retired and not should_restart(pod.spec.restart_policy, one, progress)
        for one in newest
    )
