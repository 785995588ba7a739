"""Results of a pod's hooks and probes: which containers are started, ready or to be killed. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from api.core.pod import Container, LifecycleHandler
from node_agent.probes.state import LIVENESS, STARTUP, ProbeResults
from node_agent.runtime.container import RuntimeContainer

POST_START = "PostStart"
NO_RESULTS = ProbeResults(started=False, ready=False)
"""The results of a container whose probes have no result yet."""


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
        return spec.startup_probe is None or self.probe_results.get(container.id, NO_RESULTS).started

    def is_ready(self, spec: Container, container: RuntimeContainer) -> bool:
        """Return whether the container is started and its readiness probe, if any, has succeeded."""
        if not self.is_started(spec, container):
            return False
        return spec.readiness_probe is None or self.probe_results.get(container.id, NO_RESULTS).ready

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
