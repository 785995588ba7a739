"""Decides which containers should run now: init containers in order, sidecars, regular containers. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from api.core.pod import Container, EphemeralContainer, Pod
from api.core.resource_requests import is_sidecar, sidecars
from node_agent.runtime.container import SANDBOX_ID, RuntimeContainer, RuntimePod
from node_agent.runtime.lifecycle_state import NO_LIFECYCLE_STATE, LifecycleState
from reconcile.errors import Refused


@dataclass(frozen=True, slots=True)
class RunSet:
    """The containers that should run now, in start order, running or not. `initialized`: init containers are done."""

    containers: tuple[Container, ...]
    initialized: bool


def containers_to_run(
    pod: Pod, runtime_pod: RuntimePod, sandbox: RuntimeContainer | None, state: LifecycleState = NO_LIFECYCLE_STATE
) -> RunSet:
    """Return the containers that should run now in this sandbox, or in a new one if `sandbox` is None."""
    if has_started_regular_container(pod, runtime_pod, sandbox):
        return RunSet((*sidecars(pod), *pod.spec.containers), initialized=True)
    containers: list[Container] = []
    for container in pod.spec.init_containers:
        newest = _newest_in_sandbox(runtime_pod.containers.get(container.name, ()), sandbox)
        if is_sidecar(container):
            containers.append(container)
            if newest is None or not state.is_started(container, newest):
                return RunSet(tuple(containers), initialized=False)
        elif newest is None or not (newest.exited and newest.succeeded):
            return RunSet((*containers, container), initialized=False)
    return RunSet((*sidecars(pod), *pod.spec.containers), initialized=True)


def has_started_regular_container(pod: Pod, runtime_pod: RuntimePod, sandbox: RuntimeContainer | None) -> bool:
    """Return whether one of the pod's regular containers was started in this sandbox."""
    for container in pod.spec.containers:
        newest = _newest_in_sandbox(runtime_pod.containers.get(container.name, ()), sandbox)
        if newest is not None and not newest.never_started:
            return True
    return False


def init_failed(pod: Pod, runtime_pod: RuntimePod) -> bool:
    """Return whether an init container has failed that may not be tried again."""
    if pod.spec.restart_policy != "Never":
        return False
    init_containers = (container for container in pod.spec.init_containers if not is_sidecar(container))
    histories = (runtime_pod.containers.get(container.name, ()) for container in init_containers)
    return any(history[0].exited and not history[0].succeeded for history in histories if history)


def target_container_id(container: Container, runtime_pod: RuntimePod) -> str:
    """Return the ID of the container whose processes an ephemeral container sees. Return an empty string for none.

    Raises Refused if the target does not run.
    """
    if not isinstance(container, EphemeralContainer) or not container.target_container_name:
        return ""
    history = runtime_pod.containers.get(container.target_container_name, ())
    if not history or not history[0].running:
        raise Refused(f'unable to find target container "{container.target_container_name}": it does not run')
    return history[0].id


def _newest_in_sandbox(
    history: tuple[RuntimeContainer, ...], sandbox: RuntimeContainer | None
) -> RuntimeContainer | None:
    newest = history[0] if history else None
    if newest is None or sandbox is None or newest.labels.get(SANDBOX_ID) != sandbox.id:
        return None
    return newest
