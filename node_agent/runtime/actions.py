"""Computes what to do for a pod now (kubelet: computePodActions). Pure.

The delays of restarts are in `restarts.py`.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from api.core.pod import FINAL_PHASES, Container, Pod
from node_agent.runtime.container import HASH, SANDBOX_ID, RuntimeContainer, RuntimePod
from node_agent.runtime.lifecycle_state import NO_LIFECYCLE_STATE, LifecycleState
from node_agent.runtime.restarts import (
    next_crash_count,
    policy_restarts,
    previous_starts,
    restart_policy,
    restart_time,
    should_restart,
)
from node_agent.runtime.spec import container_hash
from node_agent.runtime.startup import containers_to_run, init_failed


@dataclass(frozen=True, slots=True)
class ContainerStart:
    """A container to create and start, with its restart count and its number of consecutive crashes."""

    container: Container
    restarts: int
    crashes: int


@dataclass(frozen=True, slots=True)
class PodActions:
    """The actions for a pod. `str` is one line for the log, empty if there is no action.

    The worker acts in the order of the fields. With a new sandbox, the containers in `remove` are removed after the
    sandbox is created and before it is started, so that restart counts survive a kill of the agent. `backing_off` and
    `finished` are no actions.

    `kill`: containers to kill at once. `stop`: containers to stop with their grace period, because their image has
    changed or a probe or hook has failed. `remove`: containers to remove. `sandbox_attempt`: number of the sandbox to
    create, None for no new sandbox. `start`: containers to start. `backing_off`: names of containers whose restart
    waits, and the time until which it waits. `post_start`: the container whose postStart hook runs next.

    `finished`: the pod has ended. Running containers are stopped, then the containers in `kill` are killed, and the
    network and the volumes of the pod are released.
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
        parts = []
        if self.kill:
            parts.append(f"kill {_names(self.kill)}")
        if self.stop:
            parts.append(f"stop {_names(self.stop)}")
        if self.remove:
            parts.append(f"remove {len(self.remove)}")
        if self.sandbox_attempt is not None:
            parts.append(f"new sandbox {self.sandbox_attempt}")
        if self.start:
            parts.append(f"start {' '.join(start.container.name for start in self.start)}")
        return ", ".join(parts)

    def wake_at(self) -> datetime | None:
        """Return the time at which the next container may restart. Return None if no restart waits."""
        return min((until for _, until in self.backing_off), default=None)


def _names(containers: tuple[RuntimeContainer, ...]) -> str:
    return " ".join(container.name for container in containers)


def compute_pod_actions(
    pod: Pod,
    runtime_pod: RuntimePod,
    now: datetime,
    stopped_for_restart: frozenset[str] = frozenset(),
    state: LifecycleState = NO_LIFECYCLE_STATE,
) -> PodActions:
    """Return the actions for a pod that is to run.

    `stopped_for_restart`: IDs of containers that earlier actions have stopped because their image has changed.

    A pod whose phase is final starts nothing again, whatever happens to its containers.
    """
    if pod.status.phase in FINAL_PHASES or is_pod_finished(pod, runtime_pod, stopped_for_restart, state):
        running_sandboxes = tuple(sandbox for sandbox in runtime_pod.sandboxes if sandbox.running)
        return PodActions(kill=running_sandboxes, finished=True)
    sandbox = runtime_pod.sandbox
    if sandbox is None or not sandbox.running:
        return _actions_for_new_sandbox(pod, runtime_pod)
    return _actions_in_sandbox(pod, runtime_pod, sandbox, now, stopped_for_restart, state)


def _actions_for_new_sandbox(pod: Pod, runtime_pod: RuntimePod) -> PodActions:
    """Kill the containers of the lost sandbox, because they have no network, and start those that may run again."""
    running = tuple(container for container in runtime_pod.all if container.running)
    if not any(_restarts_in_new_sandbox(pod, container, runtime_pod) for container in pod.spec.containers):
        return PodActions(kill=running)
    starts = tuple(
        _container_start(pod, container, runtime_pod)
        for container in containers_to_run(pod, runtime_pod, None).containers
        if _restarts_in_new_sandbox(pod, container, runtime_pod)
    )
    previous = runtime_pod.sandbox
    if previous is None:
        attempt = 0
    elif previous.never_started:
        attempt = previous.attempt
    else:
        attempt = previous.attempt + 1
    never_started = tuple(
        container for container in runtime_pod.all if container.never_started and not container.is_sandbox
    )
    return PodActions(kill=running, remove=never_started + runtime_pod.sandboxes, sandbox_attempt=attempt, start=starts)


def _actions_in_sandbox(
    pod: Pod,
    runtime_pod: RuntimePod,
    sandbox: RuntimeContainer,
    now: datetime,
    stopped_for_restart: frozenset[str],
    state: LifecycleState,
) -> PodActions:
    start, never_started = _ephemeral_containers(pod, runtime_pod)
    remove = [*runtime_pod.sandboxes[1:], *never_started]
    stop: list[RuntimeContainer] = []
    backing_off: list[tuple[str, datetime]] = []
    post_start = None
    for container in containers_to_run(pod, runtime_pod, sandbox, state).containers:
        history = runtime_pod.containers.get(container.name, ())
        newest = history[0] if history else None
        if newest is None or newest.never_started or newest.labels.get(SANDBOX_ID) != sandbox.id:
            start += _starts_in_sandbox(pod, container, newest, runtime_pod)
            remove += _never_started(newest)
        elif newest.running:
            is_outdated = newest.labels.get(HASH) != container_hash(container)
            if is_outdated or newest.id in state.to_kill:
                stop.append(newest)
            if not is_outdated and state.needs_post_start(container, newest):
                post_start = newest
                break  # The containers after this one wait for its hook.
        elif newest.id in stopped_for_restart:
            start.append(ContainerStart(container, newest.restart_count + 1, 0))
        elif should_restart(restart_policy(pod, container), newest, state):
            if now >= restart_time(newest, now):
                start.append(ContainerStart(container, newest.restart_count + 1, next_crash_count(newest)))
            else:
                backing_off.append((container.name, restart_time(newest, now)))
    return PodActions(
        kill=_running_outside(runtime_pod, sandbox),
        stop=tuple(stop),
        remove=tuple(remove),
        start=tuple(start),
        backing_off=tuple(backing_off),
        post_start=post_start,
    )


def _running_outside(runtime_pod: RuntimePod, sandbox: RuntimeContainer) -> tuple[RuntimeContainer, ...]:
    """Return the containers that run in another sandbox."""
    newest_containers = (history[0] for history in runtime_pod.containers.values())
    return tuple(
        container
        for container in newest_containers
        if container.running and container.labels.get(SANDBOX_ID) != sandbox.id
    )


def _ephemeral_containers(pod: Pod, runtime_pod: RuntimePod) -> tuple[list[ContainerStart], list[RuntimeContainer]]:
    """Return the ephemeral containers to start, and the containers left by attempts that did not start them."""
    starts: list[ContainerStart] = []
    never_started: list[RuntimeContainer] = []
    for container in pod.spec.ephemeral_containers:
        history = runtime_pod.containers.get(container.name, ())
        if all(attempt.never_started for attempt in history):
            starts.append(ContainerStart(container, 0, 0))
        never_started += [attempt for attempt in history if attempt.never_started]
    return starts, never_started


def _starts_in_sandbox(
    pod: Pod, container: Container, newest: RuntimeContainer | None, runtime_pod: RuntimePod
) -> list[ContainerStart]:
    """Return the start of a container that has not been started in this sandbox. Return none if it may not restart."""
    if newest is not None and newest.never_started:
        return [ContainerStart(container, newest.restart_count, newest.crash_label)]
    if newest is None or _restarts_in_new_sandbox(pod, container, runtime_pod):
        return [_container_start(pod, container, runtime_pod)]
    return []


def _never_started(container: RuntimeContainer | None) -> list[RuntimeContainer]:
    return [container] if container is not None and container.never_started else []


def _restarts_in_new_sandbox(pod: Pod, container: Container, runtime_pod: RuntimePod) -> bool:
    """Return whether a container that has lost its sandbox starts again.

    It does not if it has succeeded, or under restartPolicy Never. Init containers run again in each sandbox.
    """
    if any(container.name == init_container.name for init_container in pod.spec.init_containers):
        return True
    history = runtime_pod.containers.get(container.name, ())
    newest = next((attempt for attempt in history if not attempt.never_started), None)
    if newest is None:
        return True
    policy = pod.spec.restart_policy
    return policy != "Never" if newest.running else policy_restarts(policy, newest)


def _container_start(pod: Pod, container: Container, runtime_pod: RuntimePod) -> ContainerStart:
    history = [attempt for attempt in runtime_pod.containers.get(container.name, ()) if not attempt.never_started]
    restarts = history[0].restart_count + 1 if history else previous_starts(pod, container.name)
    return ContainerStart(container, restarts, 0)


def is_pod_finished(
    pod: Pod,
    runtime_pod: RuntimePod,
    stopped_for_restart: frozenset[str] = frozenset(),
    state: LifecycleState = NO_LIFECYCLE_STATE,
) -> bool:
    """Return whether all regular containers have exited and none may restart, or an init container has failed."""
    if init_failed(pod, runtime_pod):
        return True
    histories = [runtime_pod.containers.get(container.name, ()) for container in pod.spec.containers]
    return all(
        history
        and history[0].exited
        and history[0].id not in stopped_for_restart
        and not should_restart(pod.spec.restart_policy, history[0], state)
        for history in histories
    )
