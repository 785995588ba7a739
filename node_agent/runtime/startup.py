"""Decides which containers start now: init containers in order, sidecars, regular containers. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from api.core.pod import Container, EphemeralContainer, LifecycleHandler, Pod
from api.core.resource_requests import is_sidecar, sidecars
from node_agent.probes.state import LIVENESS, STARTUP, ProbeResults
from node_agent.runtime.container import SANDBOX_ID, RuntimeContainer, RuntimePod
from reconcile.errors import Refused

POST_START = "PostStart"
UNKNOWN = ProbeResults(started=False, ready=False)


@dataclass(frozen=True, slots=True)
class KillReason:
    """The cause of a kill (Startup, Liveness or PostStart), and the container's grace period in seconds."""

    cause: str
    grace: int

    def message(self, name: str, policy: str) -> str:
        """Return the message of the Killing event of the container with this name and restart policy."""
        if self.cause == POST_START:
            return "FailedPostStartHook"
        suffix = ", will be restarted" if policy != "Never" else ""
        return f"Container {name} failed {self.cause.lower()} probe{suffix}"


@dataclass(frozen=True, slots=True)
class LifecycleState:
    """The results of the hooks and probes of a pod's containers, by container ID.

    `post_started`: containers whose postStart hook has succeeded. `to_kill`: containers that have to stop.
    """

    probe_results: Mapping[str, ProbeResults] = field(default_factory=lambda: MappingProxyType({}))
    post_started: frozenset[str] = frozenset()
    to_kill: Mapping[str, KillReason] = field(default_factory=lambda: MappingProxyType({}))

    def needs_post_start(self, spec: Container, container: RuntimeContainer) -> bool:
        """Return whether the container's postStart hook has not succeeded yet."""
        return container.running and not self.is_running(spec, container) and container.id not in self.to_kill

    def is_running(self, spec: Container, container: RuntimeContainer) -> bool:
        """Return whether the container runs and its postStart hook, if any, has succeeded."""
        has_post_started = post_start_handler(spec) is None or container.id in self.post_started
        return container.running and has_post_started

    def is_started(self, spec: Container, container: RuntimeContainer) -> bool:
        """Return whether the container is running and its startup probe, if any, has succeeded."""
        if not self.is_running(spec, container):
            return False
        return spec.startup_probe is None or self.probe_results.get(container.id, UNKNOWN).started

    def is_ready(self, spec: Container, container: RuntimeContainer) -> bool:
        """Return whether the container is started and its readiness probe, if any, has succeeded."""
        if not self.is_started(spec, container):
            return False
        return spec.readiness_probe is None or self.probe_results.get(container.id, UNKNOWN).ready

    def restarts_after_kill(self, policy: str, container: RuntimeContainer) -> bool:
        """Return whether a container restarts regardless of its exit code, because the agent has killed it."""
        return policy != "Never" and container.id in self.to_kill


NO_LIFECYCLE_STATE = LifecycleState()


def post_start_handler(container: Container) -> LifecycleHandler | None:
    """Return the postStart hook of a container."""
    return container.lifecycle.post_start if container.lifecycle is not None else None


def kill_reason(container: Container, cause: str, grace: int) -> KillReason:
    """Return the reason for a kill. `grace` is the pod's grace period in seconds; a probe may have its own."""
    probe = {STARTUP: container.startup_probe, LIVENESS: container.liveness_probe}.get(cause)
    probe_grace = probe.termination_grace_period_seconds if probe is not None else None
    return KillReason(cause, grace if probe_grace is None else probe_grace)


@dataclass(frozen=True, slots=True)
class StartSet:
    """The containers that are to run now or to have run, in start order. `initialized`: init containers are done."""

    containers: tuple[Container, ...]
    initialized: bool


def containers_to_start(
    pod: Pod, runtime_pod: RuntimePod, sandbox: RuntimeContainer | None, state: LifecycleState = NO_LIFECYCLE_STATE
) -> StartSet:
    """Return the containers that start now in this sandbox, or in a new one if `sandbox` is None."""
    if is_initialized(pod, runtime_pod, sandbox):
        return StartSet((*sidecars(pod), *pod.spec.containers), initialized=True)
    containers: list[Container] = []
    for container in pod.spec.init_containers:
        newest = _newest_in_sandbox(runtime_pod.containers.get(container.name, ()), sandbox)
        if is_sidecar(container):
            containers.append(container)
            if newest is None or not state.is_started(container, newest):
                return StartSet(tuple(containers), initialized=False)
        elif newest is None or not (newest.exited and newest.succeeded):
            return StartSet((*containers, container), initialized=False)
    return StartSet((*sidecars(pod), *pod.spec.containers), initialized=True)


def is_initialized(pod: Pod, runtime_pod: RuntimePod, sandbox: RuntimeContainer | None) -> bool:
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
