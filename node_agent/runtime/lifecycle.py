"""Runs hooks and probes of a pod's containers and stops containers; stores results in checkpoints."""

from __future__ import annotations

import asyncio
import logging
import math
from dataclasses import replace
from datetime import datetime, timedelta

from api.core.pod import Container, LifecycleHandler, Pod
from node_agent.docker.client import DockerClient
from node_agent.event_recorder import PodEvents
from node_agent.host import HostInfo
from node_agent.probes.manager import ProbeDependencies, ProbeManager
from node_agent.probes.prober import ProbeTarget
from node_agent.probes.state import ProbeOutcome, ProbeResults, needs_address
from node_agent.runtime import pod_files
from node_agent.runtime.container import RuntimeContainer, RuntimePod, named_ports, pre_stop_handler
from node_agent.runtime.lifecycle_state import (
    NO_RESULTS,
    POST_START,
    KillReason,
    LifecycleState,
    kill_reason,
    post_start_handler,
)
from node_agent.runtime.pod_files import Checkpoint
from node_agent.runtime.termination import MAX_GRACE_SECONDS, StopState, StopStep, next_stop_step, plan_termination
from reconcile.errors import NotReady
from reconcile.listeners import Listeners

log = logging.getLogger(__name__)

# Names of checkpoints. The files of earlier versions have these names.
POST_START_DONE = "postStart"
PRE_STOP_DONE = "preStop"
KILL_REQUESTED = "condemned"
"""The container has to stop. The text is the reason and the grace period in seconds."""

STARTUP_PASSED = "started"
READINESS_PASSED = "ready"


class ContainerLifecycle:
    """Hooks, probes and stops of one pod's containers.

    Hooks and probes run in the background. `changed` notifies when one of them has a result; the next update() takes
    the result over. Checkpoints survive a restart of the agent: hooks that were run, containers that have to stop, and
    passed probes.
    """

    def __init__(
        self, docker: DockerClient, host: HostInfo, uid: str, probes: ProbeDependencies, events: PodEvents
    ) -> None:
        self.changed = Listeners()
        self._docker = docker
        self._host = host
        self._uid = uid
        self._prober = probes.prober
        self._events = events
        self._probes = ProbeManager(probes, self._record_probe_event, self.changed.notify)
        self._last_errors: dict[tuple[str, str], str] = {}
        self._checkpoints: dict[Checkpoint, str] | None = None
        self._hooks: dict[Checkpoint, asyncio.Task[ProbeOutcome]] = {}
        self._stops: dict[str, StopState] = {}
        self._deadlines: dict[str, datetime] = {}
        self._pod_deadline: datetime | None = None

    @property
    def state(self) -> LifecycleState:
        """The results of hooks and probes."""
        checkpoints = self._checkpoints or {}
        to_kill = {
            checkpoint.container: _parse_kill_reason(text)
            for checkpoint, text in checkpoints.items()
            if checkpoint.name == KILL_REQUESTED
        }
        post_started = frozenset(
            checkpoint.container for checkpoint in checkpoints if checkpoint.name == POST_START_DONE
        )
        return LifecycleState(self._probes.results, post_started, to_kill)

    @property
    def stopping(self) -> bool:
        """Whether the pod as a whole is being stopped."""
        return self._pod_deadline is not None

    async def update(self, pod: Pod, runtime_pod: RuntimePod, address: str, *, stopping: bool, now: datetime) -> None:
        """Start and stop probes with their containers, and take over the results of hooks and probes.

        `address` is the pod's address, empty while it has none. `stopping`: all containers of the pod have to stop.
        Raises NotReady, and any exception that a hook or a probe raised.
        """
        if self._checkpoints is None:
            self._checkpoints = await asyncio.to_thread(pod_files.read_checkpoints, self._host, self._uid)
        running = {name: history[0] for name, history in runtime_pod.containers.items() if history[0].running}
        self._probes.retain(frozenset(container.id for container in running.values()), stopping)
        for spec in (*pod.spec.init_containers, *pod.spec.containers):
            container = running.get(spec.name)
            if container is None:
                continue
            if (address or not needs_address(spec)) and self.state.is_running(spec, container):
                target = ProbeTarget(container.id, address, named_ports(spec))
                self._probes.add_container(spec, container, target, self._checkpointed_results(container))
            await self._checkpoint_results(spec, container)
            if not stopping:
                await self._check_liveness(pod, spec, container)
        await self._collect_hooks(pod, running, stopping, now)
        existing = {container.id for container in runtime_pod.all}
        for checkpoint in [checkpoint for checkpoint in self._checkpoints if checkpoint.container not in existing]:
            await self._remove_checkpoint(checkpoint)

    def post_start(self, pod: Pod, container: RuntimeContainer, address: str) -> None:
        """Run the container's postStart hook in the background, unless it runs already."""
        spec = _container_spec(pod, container.name)
        hook = post_start_handler(spec)
        if hook is not None:
            target = ProbeTarget(container.id, address, named_ports(spec))
            self._start_hook(Checkpoint(container.id, POST_START_DONE), hook, target)

    async def stop_container(
        self, pod: Pod, container: RuntimeContainer, address: str, now: datetime
    ) -> datetime | None:
        """Take the next step to stop one container of a pod that keeps running. Return when to call again."""
        reason = self.state.to_kill.get(container.id)
        if reason is None:
            grace = pod.spec.termination_grace_period_seconds or 0
            message = f"Container {container.name} definition changed, will be restarted"
        else:
            grace = reason.grace
            message = reason.message(container.name, pod.spec.restart_policy)
        deadline = now + timedelta(seconds=min(grace, MAX_GRACE_SECONDS))
        deadline = self._deadlines.setdefault(container.id, deadline)
        return await self._stop(container, address, deadline, message, now)

    async def stop_pod(
        self, pod: Pod, runtime_pod: RuntimePod, address: str, deadline: datetime, now: datetime
    ) -> tuple[bool, datetime | None]:
        """Take the next step to stop all containers by a deadline. A later call can only bring the deadline forward.

        Return whether a container still runs, and when to call again.
        """
        self._pod_deadline = min(self._pod_deadline or deadline, deadline)
        signalled = frozenset(container_id for container_id, stop in self._stops.items() if stop.signalled)
        step = plan_termination(pod, runtime_pod, signalled, self._pod_deadline, now)
        moments = [step.deadline if now < self._pod_deadline else None]
        for container in step.signal + step.kill:
            container_deadline = min(self._pod_deadline, self._deadlines.get(container.id, self._pod_deadline))
            message = f"Stopping container {container.name}"
            moments.append(await self._stop(container, address, container_deadline, message, now))
        again_at = min((moment for moment in moments if moment is not None), default=None)
        return step.deadline is not None, again_at

    def close(self) -> None:
        """Cancel hooks and probes. Containers stay as they are."""
        self._probes.close()
        for task in self._hooks.values():
            task.cancel()

    # --- stops -----------------------------------------------------------------------------------------------------

    async def _stop(
        self, container: RuntimeContainer, address: str, deadline: datetime, message: str, now: datetime
    ) -> datetime | None:
        """Take the next step to stop one container: preStop hook, signal, kill. Return when to call again."""
        if container.id not in self._stops:
            self._events.record("Killing", message, container.name)
            self._stops[container.id] = StopState()
        stop = self._stops[container.id]
        checkpoint = Checkpoint(container.id, PRE_STOP_DONE)
        hook = None if checkpoint in (self._checkpoints or {}) else pre_stop_handler(container)
        step, again_at = next_stop_step(hook is not None, stop, deadline, now)
        if step is StopStep.HOOK and hook is not None:
            self._stops[container.id] = replace(stop, hook_running=True)
            self._start_hook(checkpoint, hook, ProbeTarget(container.id, address, {}))
        elif step is StopStep.SIGNAL:
            log.info("stopping container", extra={"uid": self._uid, "container": container.name})
            await self._docker.kill(container.id, container.stop_signal)
            if self._cancel_hook(checkpoint):
                failure = "PreStopHook failed: it took longer than there was time"
                self._events.record("FailedPreStopHook", failure, container.name)
            hook_finished_at = now if stop.hook_running else stop.hook_finished_at
            self._stops[container.id] = replace(stop, signalled=True, hook_finished_at=hook_finished_at)
        elif step is StopStep.KILL:
            await self._docker.kill(container.id, "SIGKILL")
            self._stops[container.id] = replace(stop, signalled=True)
            return None
        return again_at

    # --- hooks -----------------------------------------------------------------------------------------------------

    def _start_hook(self, checkpoint: Checkpoint, hook: LifecycleHandler, target: ProbeTarget) -> None:
        if checkpoint not in self._hooks:
            task = asyncio.create_task(self._prober.run_hook(hook, target, math.inf))
            task.add_done_callback(lambda _: self.changed.notify())
            self._hooks[checkpoint] = task

    def _cancel_hook(self, checkpoint: Checkpoint) -> bool:
        """Cancel a hook. Return whether it was running."""
        task = self._hooks.pop(checkpoint, None)
        return task is not None and task.cancel()

    async def _collect_hooks(
        self, pod: Pod, running: dict[str, RuntimeContainer], stopping: bool, now: datetime
    ) -> None:
        """Take over the results of finished hooks. Cancel the hooks of containers that have exited."""
        containers = {container.id: container for container in running.values()}
        for checkpoint, task in list(self._hooks.items()):
            container = containers.get(checkpoint.container)
            if container is None:
                self._cancel_hook(checkpoint)
            elif task.done():
                del self._hooks[checkpoint]
                if checkpoint.name == PRE_STOP_DONE:
                    await self._pre_stop_finished(container, checkpoint, task.result(), now)
                else:
                    await self._post_start_finished(pod, container, checkpoint, task.result(), stopping)

    async def _pre_stop_finished(
        self, container: RuntimeContainer, checkpoint: Checkpoint, outcome: ProbeOutcome, now: datetime
    ) -> None:
        if not outcome.success:
            self._events.record("FailedPreStopHook", f"PreStopHook failed: {outcome.message}", container.name)
        self._stops[container.id] = replace(self._stops[container.id], hook_running=False, hook_finished_at=now)
        await self._write_checkpoint(checkpoint)

    async def _post_start_finished(
        self, pod: Pod, container: RuntimeContainer, checkpoint: Checkpoint, outcome: ProbeOutcome, stopping: bool
    ) -> None:
        if outcome.success:
            await self._write_checkpoint(checkpoint)
        elif outcome.success is False and not stopping:
            self._events.record("FailedPostStartHook", f"PostStartHook failed: {outcome.message}", container.name)
            await self._request_kill(pod, _container_spec(pod, container.name), container, POST_START)

    # --- probes ----------------------------------------------------------------------------------------------------

    async def _check_liveness(self, pod: Pod, spec: Container, container: RuntimeContainer) -> None:
        """Request a kill if the container's startup or liveness probe has failed."""
        failed_probe = self._probes.results.get(container.id, NO_RESULTS).failed
        if failed_probe and Checkpoint(container.id, KILL_REQUESTED) not in (self._checkpoints or {}):
            await self._request_kill(pod, spec, container, failed_probe)

    async def _request_kill(self, pod: Pod, spec: Container, container: RuntimeContainer, cause: str) -> None:
        reason = kill_reason(spec, cause, pod.spec.termination_grace_period_seconds or 0)
        await self._write_checkpoint(Checkpoint(container.id, KILL_REQUESTED), f"{reason.cause} {reason.grace}")

    def _record_probe_event(self, name: str, probe_type: str, outcome: ProbeOutcome, changed: bool) -> None:
        """Record an event about a probe that was not successful. `changed`: the container's results have changed."""
        last_error = self._last_errors.pop((name, probe_type), "")
        if outcome.success is None:
            self._last_errors[name, probe_type] = outcome.message
            # A repeated error is not recorded, because the number of events is limited.
            if outcome.message != last_error:
                self._events.record("Unhealthy", f"{probe_type} probe errored: {outcome.message}", name)
        elif not outcome.success:
            self._events.record("Unhealthy", f"{probe_type} probe failed: {outcome.message}", name)
        elif outcome.message:
            self._events.record("ProbeWarning", f"{probe_type} probe warning: {outcome.message}", name)
        if changed:
            self.changed.notify()

    # --- checkpoints -----------------------------------------------------------------------------------------------

    def _checkpointed_results(self, container: RuntimeContainer) -> ProbeResults:
        """Return the probe results that an earlier agent process has stored for this container."""
        names = {checkpoint.name for checkpoint in self._checkpoints or () if checkpoint.container == container.id}
        return ProbeResults(started=STARTUP_PASSED in names, ready=READINESS_PASSED in names)

    async def _checkpoint_results(self, spec: Container, container: RuntimeContainer) -> None:
        """Write the probe results to checkpoints, so that the next agent process begins with them."""
        assert self._checkpoints is not None
        results = self._probes.results.get(container.id)
        if results is None:
            return
        for name, probe, passed in (
            (STARTUP_PASSED, spec.startup_probe, results.started),
            (READINESS_PASSED, spec.readiness_probe, results.ready),
        ):
            checkpoint = Checkpoint(container.id, name)
            if probe is None or passed == (checkpoint in self._checkpoints):
                continue
            if passed:
                await self._write_checkpoint(checkpoint)
            else:
                await self._remove_checkpoint(checkpoint)

    async def _write_checkpoint(self, checkpoint: Checkpoint, text: str = "") -> None:
        """Write a checkpoint, and store it in memory even if it cannot be written."""
        assert self._checkpoints is not None
        self._checkpoints[checkpoint] = text
        try:
            await asyncio.to_thread(pod_files.write_checkpoint, self._host, self._uid, checkpoint, text)
        except NotReady as error:
            log.warning("checkpoint could not be written", extra={"uid": self._uid, "error": error})

    async def _remove_checkpoint(self, checkpoint: Checkpoint) -> None:
        assert self._checkpoints is not None
        await asyncio.to_thread(pod_files.remove_checkpoint, self._host, self._uid, checkpoint)
        del self._checkpoints[checkpoint]


def _container_spec(pod: Pod, name: str) -> Container:
    containers = (*pod.spec.init_containers, *pod.spec.containers)
    return next(container for container in containers if container.name == name)


def _parse_kill_reason(text: str) -> KillReason:
    cause, grace = text.split()
    return KillReason(cause, int(grace))
