"""One pod from first to last sync: sync, terminating, terminated (kubelet: pod_workers, SyncPod)."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Coroutine, Mapping
from dataclasses import dataclass
from dataclasses import replace as replace_value
from datetime import timedelta
from typing import Any, TypeVar

from msgspec.structs import replace

from api.core.node import Node
from api.core.pod import FINAL_PHASES, Pod, PodStatus
from api.core.services import Service
from node_agent.cgroups.manager import CgroupManager
from node_agent.clock import SteadyClock, WakeTimer, steady_clock, wall_clock
from node_agent.docker.client import DockerClient
from node_agent.event_recorder import EventRecorder, PodEvents
from node_agent.events import backoff_message
from node_agent.eviction.ranking import GRACE_SECONDS
from node_agent.host import HostInfo
from node_agent.images.manager import ImageManager
from node_agent.metrics import SyncTimer
from node_agent.network.plugin import PodNetwork
from node_agent.object_cache import NotSynced, ObjectCache
from node_agent.pods.resize import (
    NO_RESIZE,
    PendingResize,
    allocated_pod,
    container_resizes,
    has_resources_of,
    with_resources,
)
from node_agent.pods.status import (
    EVICTED,
    StatusInputs,
    compute_pod_status,
    evicted_status,
    failed_status,
    is_evicted,
    merge_status,
    waiting_reason,
)
from node_agent.pods.status_manager import StatusManager
from node_agent.probes.manager import ProbeDependencies
from node_agent.runtime.actions import ContainerStart, PodActions, compute_pod_actions, is_pod_finished
from node_agent.runtime.container import RuntimeContainer, RuntimePod
from node_agent.runtime.container_start import ContainerStarter, StartFailure
from node_agent.runtime.lifecycle import ContainerLifecycle
from node_agent.runtime.lifecycle_state import post_start_handler
from node_agent.runtime.pleg import PodCache
from node_agent.runtime.sandbox import PodSandbox, remove_container
from node_agent.runtime.termination import DEADLINE_EXCEEDED, active_deadline, grace_period_seconds
from node_agent.runtime.termination_message import TerminationMessages
from node_agent.volumes.manager import VolumeManager
from node_agent.volumes.tokens import TokenCache
from reconcile.errors import Gone, NotReady, Refused
from reconcile.loop import Loop, LoopTiming, retry_unexpected_errors

log = logging.getLogger(__name__)

T = TypeVar("T")
U = TypeVar("U")

RESYNC_SECONDS = 60.0

RESIZE_RETRY = timedelta(seconds=10)
"""Wait after the node had no room for a resize, or Docker refused it."""


async def gather_both(first_work: Coroutine[Any, Any, T], second_work: Coroutine[Any, Any, U]) -> tuple[T, U]:
    """Run two coroutines at the same time and return both results.

    If one of them raises an exception, the other one is awaited before the exception is raised.
    """
    first_result, second_result = await asyncio.gather(first_work, second_work, return_exceptions=True)
    if isinstance(first_result, BaseException):
        raise first_result
    if isinstance(second_result, BaseException):
        raise second_result
    return first_result, second_result


@dataclass(frozen=True, slots=True, kw_only=True)
class PodComponents:
    """The components that serve one pod, built by PodWorkerFactory."""

    events: PodEvents
    images: ImageManager
    volumes: VolumeManager
    sandbox: PodSandbox
    starter: ContainerStarter
    lifecycle: ContainerLifecycle
    termination_messages: TerminationMessages


class PodWorker:
    """Syncs one pod until nothing of it is left on this host.

    `removed`: no source has the pod any more. `cleaned_up`: the pod is evicted, and nothing of it is left on the host.
    `failure`: reason and message of the failure that the pod gets, None unless fail() was called.
    """

    def __init__(
        self,
        pod: Pod,
        components: PodComponents,
        *,
        docker: DockerClient,
        cgroups: CgroupManager,
        cache: PodCache,
        statuses: StatusManager,
        resize_rejection: Callable[[Pod], PendingResize | None],
        cpu_cfs_quota: bool,
        node_address: str,
    ) -> None:
        self.removed = False
        self.cleaned_up = False
        self.failure: tuple[str, str] | None = None
        self._source_pod = pod
        # The pod with the resources that the node has allocated.
        self._pod = allocated_pod(pod)
        self._uid = pod.metadata.uid
        self._name = f"{pod.metadata.namespace}/{pod.metadata.name}"
        self._events = components.events
        self._images = components.images
        self._volumes = components.volumes
        self._sandbox = components.sandbox
        self._starter = components.starter
        self._lifecycle = components.lifecycle
        self._termination_messages = components.termination_messages
        self._docker = docker
        self._cgroups = cgroups
        self._cache = cache
        self._statuses = statuses
        self._resize_rejection = resize_rejection
        self._cpu_cfs_quota = cpu_cfs_quota
        self._resize = NO_RESIZE
        self._has_wider_cgroup = False
        self._node_address = node_address
        # Agrees with the times in the pod's status, because it starts with the worker and not with the process.
        self._clock = SteadyClock()
        self._started_at = self._clock()
        self._eviction_grace = GRACE_SECONDS
        self._messages: Mapping[str, str] = {}
        # Reason and message of why a container waits, by its name.
        self._container_failures: dict[str, tuple[str, str]] = {}
        # IDs of containers that are stopped because their image has changed.
        self._stopped_for_restart: set[str] = set()
        # IDs of exited containers whose restart waits.
        self._backing_off: set[str] = set()
        self._timer = WakeTimer(self.wake)
        self._sync_timer = SyncTimer(self._sync, lambda: self._is_terminating)
        self._loop = Loop(
            f"pod {self._name}",
            retry_unexpected_errors(self._name, self._sync_timer.run),
            LoopTiming(resync=RESYNC_SECONDS),
        )
        self._terminated = asyncio.Event()
        self._lifecycle.changed.add(self.wake)

    @property
    def pod(self) -> Pod:
        """The newest version of the pod, with the resources that the node has allocated, and the computed status."""
        return self._pod

    @property
    def source_pod(self) -> Pod:
        """The newest version of the pod from its source."""
        return self._source_pod

    def wake(self) -> None:
        """Sync the pod now, because an input of its sync may have changed. Cancel an image pull if the pod stops."""
        if self._is_stopping:
            self._images.cancel()
        self._loop.wake()

    def update(self, pod: Pod) -> None:
        """Take over a newer version of the pod. This worker owns the status, except the fields of other clients."""
        self._source_pod = pod
        status = self._pod.status
        if status.conditions or status.phase in FINAL_PHASES:
            pod = replace(pod, status=merge_status(status, pod.status))
        self._set_pod(with_resources(pod, self._pod))
        self._sync_timer.next_operation = "update"
        self.wake()

    def restore_status(self, status: PodStatus) -> None:
        """Take over the status of a static pod from its mirror pod, after a restart of the agent."""
        self._set_status(status)
        self.wake()

    def network_changed(self) -> None:
        """Attach the sandbox to the network again, because the node has another subnet."""
        self._sandbox.network_changed()
        self.wake()

    def evict(self, message: str, grace: int = GRACE_SECONDS) -> None:
        """Fail the pod with this message and remove everything of it from the host. Its object stays.

        Do nothing if the pod is terminating or has ended.
        """
        self._eviction_grace = grace
        if not self._is_terminating and self._pod.status.phase not in FINAL_PHASES:
            self._events.record(EVICTED, message)
            self._set_status(evicted_status(self._pod.status, message, wall_clock()))
            self.wake()

    def fail(self, reason: str, message: str) -> None:
        """Stop the pod with its grace period. When nothing runs any more, it has failed. The first call counts."""
        if self.failure is None and self._pod.status.phase not in FINAL_PHASES:
            self.failure = (reason, message)
            self._events.record(reason, message)
            self.wake()

    def terminate(self) -> None:
        """Stop the pod and remove everything of it, because no source has it any more."""
        self.removed = True
        self.wake()

    async def run(self) -> None:
        """Run until nothing of the pod is left on this host."""
        syncs = asyncio.create_task(self._loop.run())
        terminated = asyncio.create_task(self._terminated.wait())
        try:
            finished, _ = await asyncio.wait({syncs, terminated}, return_when=asyncio.FIRST_COMPLETED)
            if syncs in finished:
                syncs.result()
        finally:
            syncs.cancel()
            terminated.cancel()
            self._lifecycle.close()
            self._timer.clear()

    # --- one sync: observe, plan, apply, report --------------------------------------------------------------------

    @property
    def _is_terminating(self) -> bool:
        return self.removed or self._pod.metadata.deletion_timestamp is not None

    @property
    def _is_stopping(self) -> bool:
        """Whether all containers of the pod have to stop."""
        return self._is_terminating or self.failure is not None or is_evicted(self._pod.status)

    async def _sync(self) -> None:
        if self._terminated.is_set():
            return
        observed = await self._observe()
        deadline = active_deadline(self._pod, observed, self._started_at)
        if deadline is not None and self._clock() >= deadline:
            self.fail(*DEADLINE_EXCEEDED)
        self._images.time_limit = None if deadline is None else (deadline - self._clock()).total_seconds()
        if self._is_terminating:
            if await self._sync_terminating_pod(observed):
                log.info("pod terminated", extra={"pod": self._name})
                self._terminated.set()
        elif is_evicted(self._pod.status):
            self.cleaned_up = await self._sync_terminating_pod(observed)
        elif self.failure is not None and self._pod.status.phase not in FINAL_PHASES:
            await self._sync_failed_pod(observed, *self.failure)
        else:
            await self._sync_pod(observed)
            if deadline is not None and self._pod.status.phase not in FINAL_PHASES:
                self._timer.at(deadline, self._clock())

    async def _observe(self) -> RuntimePod:
        """Return the pod's containers, after hooks, probes and termination messages were brought up to date."""
        observed = await self._cache.get(self._uid)
        await self._lifecycle.update(
            self._pod, observed, self._sandbox.address, stopping=self._is_stopping, now=self._clock()
        )
        self._messages = await self._termination_messages.read_all(self._pod, observed)
        return observed

    async def _sync_pod(self, observed: RuntimePod) -> None:
        """Take the next steps so that the containers match the pod's spec (kubelet: SyncPod)."""
        self._allocate_resources()
        stopped_for_restart = frozenset(self._stopped_for_restart)
        actions = compute_pod_actions(self._pod, observed, wall_clock(), stopped_for_restart, self._lifecycle.state)
        self._timer.clear()
        self._timer.at(actions.wake_at(), wall_clock())
        if self._resize.pending is not None:
            self._timer.at(self._clock() + RESIZE_RETRY, self._clock())
        self._record_new_backoffs(observed, actions)
        if actions.finished and self._pod.status.phase in FINAL_PHASES:
            await self._sync_finished_pod(observed, actions)
            return
        if not self._pod.status.conditions:
            self._report(observed)
        try:
            if actions.finished:
                await self._clean_up_finished_pod(observed, actions)
            else:
                await self._apply(observed, actions)
        except NotReady as error:
            if self._sandbox.failure is None and not self._is_terminating:
                self._events.record("FailedSync", f"Error syncing pod: {error}")
            raise
        finally:
            if self._sandbox.is_backing_off(steady_clock()):
                self._timer.at(self._sandbox.retry_at, steady_clock())
            observed = await self._observe()
            self._report(observed)
        if is_pod_finished(self._pod, observed, stopped_for_restart, self._lifecycle.state) and not actions.finished:
            self.wake()

    def _record_new_backoffs(self, observed: RuntimePod, actions: PodActions) -> None:
        """Record an event for each container whose restart has begun to wait."""
        backing_off = {observed.containers[name][0].id: name for name, _ in actions.backing_off}
        for container_id in backing_off.keys() - self._backing_off:
            name = backing_off[container_id]
            self._events.record("BackOff", backoff_message(self._pod, name), name)
        self._backing_off = set(backing_off)

    async def _apply(self, observed: RuntimePod, actions: PodActions) -> None:
        if str(actions):
            log.info("syncing pod", extra={"pod": self._name, "actions": actions})
            self._cache.invalidate(self._uid)
        for container in actions.kill:
            await self._docker.kill(container.id, "SIGKILL")
        for container in actions.stop:
            await self._stop_for_restart(container)
        self._images.clear_prefetched()
        if actions.sandbox_attempt is not None or actions.start:
            await self._volumes.prepare_for_start(self._pod)
        if actions.sandbox_attempt is None:
            sandbox = observed.sandbox
            has_volumes, first = await self._set_up_volumes(), None
            for container in actions.remove:
                await remove_container(self._docker, container)
        else:
            sandbox, has_volumes, first = await self._create_sandbox(actions.sandbox_attempt, actions, observed)
        if sandbox is None or not has_volumes:
            return
        try:
            await self._sandbox.attach(self._pod, sandbox)
        except Gone:
            self._cache.invalidate(self._uid)  # The sandbox was killed.
            raise
        self._container_failures.clear()
        await self._resize_containers(observed)
        await self._start_containers(actions.start, sandbox, observed, first)
        if actions.post_start is not None:
            self._lifecycle.post_start(self._pod, actions.post_start, self._sandbox.address)

    async def _stop_for_restart(self, container: RuntimeContainer) -> None:
        """Take the next step to stop a container that is started again afterwards."""
        if container.id not in self._lifecycle.state.to_kill:
            self._stopped_for_restart.add(container.id)
        now = self._clock()
        again_at = await self._lifecycle.stop_container(self._pod, container, self._sandbox.address, now)
        self._timer.at(again_at, now)

    def _allocate_resources(self) -> None:
        """Allocate the resources in the spec, if the node has room for them."""
        if has_resources_of(self._pod, self._source_pod):
            self._resize = replace_value(self._resize, pending=None)
            return
        pending = self._resize_rejection(with_resources(self._pod, self._source_pod))
        self._resize = replace_value(self._resize, pending=pending)
        if pending is None:
            log.info("resizing pod", extra={"pod": self._name})
            self._set_pod(with_resources(self._pod, self._source_pod))

    async def _resize_containers(self, observed: RuntimePod) -> None:
        """Give running containers the resources of the pod: first room in the pod's cgroup, then the containers."""
        resizes = tuple(container_resizes(self._pod, observed, self._cpu_cfs_quota))
        if not resizes and not self._has_wider_cgroup:
            return
        self._has_wider_cgroup = True
        await self._cgroups.create(self._pod, allocated_pod(self._pod))
        error = ""
        for resize in resizes:
            self._cache.invalidate(self._uid)
            try:
                if resize.restarts:
                    await self._stop_for_restart(resize.container)
                else:
                    await self._docker.update(resize.container.id, resize.resources)
            except (Refused, Gone) as refusal:
                error = str(refusal)
                self._timer.at(self._clock() + RESIZE_RETRY, self._clock())
        self._resize = replace_value(self._resize, error=error)
        if not error and not any(resize.restarts for resize in resizes):
            await self._cgroups.create(self._pod)
            self._has_wider_cgroup = False

    async def _create_sandbox(
        self, attempt: int, actions: PodActions, observed: RuntimePod
    ) -> tuple[RuntimeContainer | None, bool, str | StartFailure | None]:
        """Return the new sandbox, whether every volume is set up, and the result of creating the first container.

        The sandbox is None while it cannot be created. The result is the container's ID or the failure, and None if the
        container must be created later.
        """
        if not await self._set_up_volumes(defer_tokens=True) or self._sandbox.is_backing_off(steady_clock()):
            return None, False, None
        created = asyncio.create_task(self._sandbox.create(self._pod, attempt, actions))

        async def start_sandbox() -> RuntimeContainer:
            return await self._sandbox.start(await created)

        async def create_first_container() -> tuple[bool, str | StartFailure | None]:
            # The API server issues tokens, and images are looked up, while Docker creates the sandbox.
            has_volumes, _ = await gather_both(
                self._set_up_volumes(), self._images.prefetch([start.container for start in actions.start])
            )
            first = actions.start[0] if actions.start else None
            if not has_volumes or first is None or not self._starter.is_independent_of_sandbox(first.container):
                return has_volumes, None
            # Docker creates the container while it starts the sandbox, and while the network attaches it.
            try:
                return True, await self._create_container(first, await created, observed)
            except NotSynced:
                return True, None

        sandbox, (has_volumes, first_result) = await gather_both(start_sandbox(), create_first_container())
        return sandbox, has_volumes, first_result

    async def _set_up_volumes(self, defer_tokens: bool = False) -> bool:
        """Return whether every volume is set up. No container starts before."""
        result = await self._volumes.set_up(self._pod, steady_clock(), defer_tokens)
        self._timer.at(result.retry_at, steady_clock())
        if result.message:
            containers = (*self._pod.spec.init_containers, *self._pod.spec.containers)
            failure = (waiting_reason(self._pod), result.message)
            self._container_failures = {container.name: failure for container in containers}
        return not result.message

    async def _start_containers(
        self,
        starts: tuple[ContainerStart, ...],
        sandbox: RuntimeContainer,
        observed: RuntimePod,
        first: str | StartFailure | None,
    ) -> None:
        """Start containers one after the other. Those after one with a postStart hook wait for that hook.

        The next sync runs the hook. `first` is the result of creating the first container, or None if that was not
        tried yet.
        """
        for start in starts:
            try:
                created = first or await self._create_container(start, sandbox.id, observed)
            except NotSynced:
                continue  # The worker is woken when the object was read.
            first = None
            failure = (
                created
                if isinstance(created, StartFailure)
                else await self._starter.start(self._pod, start.container, created)
            )
            if failure is not None:
                self._container_failures[start.container.name] = (failure.reason, failure.message)
                self._timer.at(failure.retry_at, steady_clock())
            elif post_start_handler(start.container) is not None:
                self.wake()
                return

    async def _create_container(
        self, start: ContainerStart, sandbox_id: str, observed: RuntimePod
    ) -> str | StartFailure:
        """Create a container, and return its ID, or why it was not created. Raises NotReady, NotSynced."""
        status = replace(self._pod.status, pod_ip=self._sandbox.address, host_ip=self._node_address)
        pod = self._volumes.with_claims_resolved(replace(self._pod, status=status))
        return await self._starter.create(pod, start, sandbox_id, observed, self._report_progress)

    # --- the end of a pod ------------------------------------------------------------------------------------------

    async def _sync_finished_pod(self, observed: RuntimePod, actions: PodActions) -> None:
        """Clean up after a pod whose status is final already."""
        if not observed.all:
            await self._volumes.tear_down()
            return
        await self._clean_up_finished_pod(observed, actions)
        if self._lifecycle.stopping:
            self._report(await self._observe())

    async def _clean_up_finished_pod(self, observed: RuntimePod, actions: PodActions) -> None:
        """Stop the sidecars of a pod whose own containers have ended for good, then its sandbox and its network.

        The containers stay for their logs.
        """
        if await self._stop_containers(observed):
            return
        await self._sandbox.detach(observed.sandbox_ids)
        for container in actions.kill:
            await self._docker.kill(container.id, "SIGKILL")
            self._cache.invalidate(self._uid)
        await self._volumes.tear_down()

    async def _sync_failed_pod(self, observed: RuntimePod, reason: str, message: str) -> None:
        """Stop a pod for which fail() was called. Its status becomes final when nothing runs any more."""
        if not await self._stop_containers(observed):
            self._set_status(failed_status(self._pod, reason, message))
            self.wake()
        self._report(await self._observe())

    async def _sync_terminating_pod(self, observed: RuntimePod) -> bool:
        """Take the next step to remove the pod from this host. Return whether nothing of it is left.

        This also removes an evicted pod, whose object stays.
        """
        if await self._stop_containers(observed):
            self._report(await self._observe(), terminating=True)
            return False
        self._report(observed, terminating=True)
        self._cache.invalidate(self._uid)
        await self._sandbox.detach(observed.sandbox_ids)
        for container in observed.all:
            await self._docker.remove(container.id)
        await self._cgroups.remove(self._uid)
        await self._volumes.remove()
        return True

    async def _stop_containers(self, observed: RuntimePod) -> bool:
        """Take the next step to stop all containers. Return whether any of them still runs.

        The grace period begins with the first call. deletionTimestamp is not used, because it has whole seconds only
        and comes from another clock.
        """
        eviction_grace = self._eviction_grace if is_evicted(self._pod.status) else None
        grace = grace_period_seconds(self._pod, eviction_grace, self.removed)
        now = self._clock()
        deadline = now + timedelta(seconds=grace)
        is_running, again_at = await self._lifecycle.stop_pod(self._pod, observed, self._sandbox.address, deadline, now)
        self._timer.clear()
        self._timer.at(again_at, now)
        if is_running:
            self._cache.invalidate(self._uid)
        return is_running

    # --- the status ------------------------------------------------------------------------------------------------

    async def _report_progress(self) -> None:
        self._report(await self._observe())
        # The rest of this sync changes containers, and no event about that may arrive in time.
        self._cache.invalidate(self._uid)

    def _report(self, observed: RuntimePod, terminating: bool = False) -> None:
        """Compute the pod's status, and pass it on if it has changed."""
        inputs = StatusInputs(
            node_address=self._node_address,
            address=self._sandbox.address,
            network_has_no_addresses=self._sandbox.is_attached
            and not self._sandbox.address
            and self._sandbox.failure is None,
            now=wall_clock(),
            started_at=self._started_at,
            container_failures=dict(self._container_failures),
            sandbox_failure=self._sandbox.failure,
            terminating=terminating,
            messages=self._messages,
            state=self._lifecycle.state,
            resize=replace_value(
                self._resize, in_progress=any(container_resizes(self._pod, observed, self._cpu_cfs_quota))
            ),
            cpu_cfs_quota=self._cpu_cfs_quota,
        )
        status = compute_pod_status(self._pod, observed, inputs)
        before = self._pod.status
        if is_evicted(before):
            status = replace(status, reason=before.reason, message=before.message)
        elif self.failure is not None and status.phase in FINAL_PHASES:
            reason, message = self.failure
            status = replace(status, phase="Failed", reason=reason, message=message)
        if status != before:
            self._sync_timer.phase_changed(before.phase, status.phase)
            self._set_status(status)

    def _set_status(self, status: PodStatus) -> None:
        self._set_pod(replace(self._pod, status=status))
        self._statuses.set_status(self._pod)

    def _set_pod(self, pod: Pod) -> None:
        self._pod = pod
        self._events.pod = pod


@dataclass(frozen=True, slots=True, kw_only=True)
class PodWorkerFactory:
    """Builds the worker of each pod from objects that all pods of the node share."""

    docker: DockerClient
    network: PodNetwork
    cgroups: CgroupManager
    host: HostInfo
    cache: PodCache
    objects: ObjectCache
    services: Callable[[Pod], Collection[Service]]
    tokens: TokenCache
    probes: ProbeDependencies
    statuses: StatusManager
    events: EventRecorder
    node: Callable[[], Node | None]
    resize_rejection: Callable[[Pod], PendingResize | None]

    def create(self, pod: Pod) -> PodWorker:
        """Return a worker for this pod. Nothing runs before its run()."""
        uid = pod.metadata.uid
        events = self.events.for_pod(pod)
        images = ImageManager(self.docker, events)
        components = PodComponents(
            events=events,
            images=images,
            volumes=VolumeManager(uid, self.objects, self.tokens, self.host, events, self.node),
            sandbox=PodSandbox(self.docker, self.network, self.cgroups, self.host, events, address=pod.status.pod_ip),
            starter=ContainerStarter(self.docker, images, self.objects, self.services, self.cgroups, self.host, events),
            lifecycle=ContainerLifecycle(self.docker, self.host, uid, self.probes, events),
            termination_messages=TerminationMessages(self.docker, self.host),
        )
        return PodWorker(
            pod,
            components,
            docker=self.docker,
            cgroups=self.cgroups,
            cache=self.cache,
            statuses=self.statuses,
            resize_rejection=self.resize_rejection,
            cpu_cfs_quota=self.host.cpu_cfs_quota,
            node_address=self.host.node_address,
        )

    def forget(self, uid: str) -> None:
        """Remove the cache entry and the metrics of a pod that is terminated."""
        self.cache.forget(uid)
        self.probes.metrics.remove_pod(uid)
