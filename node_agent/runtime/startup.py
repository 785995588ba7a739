"""Decides which containers run now: init containers in order, sidecars, the others; hooks, startup probe. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from api.core.pod import Container as Wish
from api.core.pod import EphemeralContainer, LifecycleHandler, Pod
from api.core.resources import is_sidecar, sidecars
from node_agent.probes.state import LIVENESS, STARTUP, ProbeResults
from node_agent.runtime.container import SANDBOX_ID, RuntimeContainer, RuntimePod
from reconcile.errors import Refused

POST_START = "PostStart"
UNKNOWN = ProbeResults(started=False, ready=False)


@dataclass(frozen=True, slots=True)
class KillReason:
    """A container that has to end, why (Startup, Liveness or PostStart), and in how many seconds at most."""

    why: str
    grace: int

    def message(self, name: str, policy: str) -> str:
        """As it is told of the container of that name, under its restart policy."""
        if self.why == POST_START:
            return "FailedPostStartHook"
        again = ", will be restarted" if policy != "Never" else ""
        return f"Container {name} failed {self.why.lower()} probe{again}"


@dataclass(frozen=True, slots=True)
class LifecycleState:
    """What hooks and probes have found out about a pod's containers, by container ID.

    `post_started`: containers whose postStart hook has succeeded. `to_kill`: containers that have to stop.
    """

    probe_results: Mapping[str, ProbeResults] = field(default_factory=lambda: MappingProxyType({}))
    post_started: frozenset[str] = frozenset()
    to_kill: Mapping[str, KillReason] = field(default_factory=lambda: MappingProxyType({}))

    def needs_post_start(self, wish: Wish, one: RuntimeContainer) -> bool:
        """Whether its postStart hook has not been completed yet."""
        return one.running and not self.is_running(wish, one) and one.id not in self.to_kill

    def is_running(self, wish: Wish, one: RuntimeContainer) -> bool:
        """Whether it runs and its postStart hook has gone well."""
        return one.running and (post_start_handler(wish) is None or one.id in self.post_started)

    def is_started(self, wish: Wish, one: RuntimeContainer) -> bool:
        """Whether it is up and its startup probe has succeeded."""
        probed = wish.startup_probe is not None
        return self.is_running(wish, one) and (not probed or self.probe_results.get(one.id, UNKNOWN).started)

    def is_ready(self, wish: Wish, one: RuntimeContainer) -> bool:
        """Whether it is started and its readiness probe has succeeded."""
        probed = wish.readiness_probe is not None
        return self.is_started(wish, one) and (not probed or self.probe_results.get(one.id, UNKNOWN).ready)

    def restarts_after_kill(self, policy: str, one: RuntimeContainer) -> bool:
        """Whether it has to be started again although its exit code may not ask for it: we have ended it."""
        return policy != "Never" and one.id in self.to_kill


NO_LIFECYCLE_STATE = LifecycleState()


def post_start_handler(wish: Wish) -> LifecycleHandler | None:
    """The hook that a container wishes for when it has been started."""
    return wish.lifecycle.post_start if wish.lifecycle is not None else None


def kill_reason(wish: Wish, why: str, grace: int) -> KillReason:
    """The end of a container by one of its probes or its hook; `grace` is the pod's, a probe may have its own."""
    probe = {STARTUP: wish.startup_probe, LIVENESS: wish.liveness_probe}.get(why)
    own = probe.termination_grace_period_seconds if probe is not None else None
    return KillReason(why, grace if own is None else own)


@dataclass(frozen=True, slots=True)
class StartSet:
    """The containers that are to run now, or to have run, in the order of their start."""

    containers: tuple[Wish, ...]
    initialized: bool


def containers_to_start(
    pod: Pod, seen: RuntimePod, sandbox: RuntimeContainer | None, progress: LifecycleState = NO_LIFECYCLE_STATE
) -> StartSet:
    """What has its turn in this sandbox, or in a new one when there is None."""
    due: list[Wish] = []
    if not is_initialized(pod, seen, sandbox):
        for wish in pod.spec.init_containers:
            newest = _inside(seen.containers.get(wish.name, ()), sandbox)
            if is_sidecar(wish):
                due.append(wish)
                if newest is None or not progress.is_started(wish, newest):
                    return StartSet(tuple(due), initialized=False)
            elif newest is None or not (newest.exited and newest.succeeded):
                return StartSet((*due, wish), initialized=False)
    return StartSet((*sidecars(pod), *pod.spec.containers), initialized=True)


def is_initialized(pod: Pod, seen: RuntimePod, sandbox: RuntimeContainer | None) -> bool:
    """Whether one of the pod's own containers was tried in this sandbox."""
    tried = (_inside(seen.containers.get(wish.name, ()), sandbox) for wish in pod.spec.containers)
    return any(one is not None and not one.never_started for one in tried)


def init_failed(pod: Pod, seen: RuntimePod) -> bool:
    """Whether an init container has failed that may not be tried again."""
    if pod.spec.restart_policy != "Never":
        return False
    histories = (seen.containers.get(one.name, ()) for one in pod.spec.init_containers if not is_sidecar(one))
    return any(history[0].exited and not history[0].succeeded for history in histories if history)


def target_container_id(wish: Wish, seen: RuntimePod) -> str:
    """The container whose processes an ephemeral one is to see; empty when it has none. Raises Refused."""
    if not isinstance(wish, EphemeralContainer) or not wish.target_container_name:
        return ""
    history = seen.containers.get(wish.target_container_name, ())
    if not history or not history[0].running:
        raise Refused(f'unable to find target container "{wish.target_container_name}": it does not run')
    return history[0].id


def _inside(history: tuple[RuntimeContainer, ...], sandbox: RuntimeContainer | None) -> RuntimeContainer | None:
    newest = history[0] if history else None
    if newest is None or sandbox is None or newest.labels.get(SANDBOX_ID) != sandbox.id:
        return None
    return newest
