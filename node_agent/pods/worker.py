"""One pod from first to last sync: sync, terminating, terminated (kubelet: pod_workers, SyncPod)."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Coroutine, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, TypeVar

from msgspec.structs import replace

from api.core.pod import FINAL_PHASES, Pod
from node_agent.clock import SteadyClock, WakeTimer, steady_clock, wall_clock
from node_agent.events import backoff_message
from node_agent.eviction.ranking import GRACE_SECONDS
from node_agent.images.manager import ImageManager, ImageUnavailable
from node_agent.metrics import SyncTimer
from node_agent.network.plugin import missing_address
from node_agent.object_cache import NotSynced
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
from node_agent.runtime.actions import ContainerStart, PodActions, compute_pod_actions, is_pod_finished
from node_agent.runtime.container import RuntimeContainer, RuntimePod
from node_agent.runtime.container_start import prepare_container_config, pull_credentials
from node_agent.runtime.lifecycle import ContainerLifecycle, PodCallbacks
from node_agent.runtime.sandbox import (
    WorkerDependencies,
    attach_network,
    create_sandbox,
    prepare_sandbox_config,
    write_pod_dns,
)
from node_agent.runtime.startup import LifecycleState, post_start_handler
from node_agent.runtime.termination import DEADLINE_EXCEEDED, active_deadline, grace_period_seconds
from node_agent.runtime.termination_message import TerminationMessages
from node_agent.volumes.manager import VolumeManager
from reconcile.backoff import Backoff
from reconcile.errors import DriverError, Gone, NotReady, Refused
from reconcile.loop import Loop, LoopTiming, containing_bugs

T = TypeVar("T")
U = TypeVar("U")


async def gather_both(first: Coroutine[Any, Any, T], second: Coroutine[Any, Any, U]) -> tuple[T, U]:
    """What the two return. What one of them raises is raised when the other one has ended, too."""
    one, other = await asyncio.gather(first, second, return_exceptions=True)
    if isinstance(one, BaseException):
        raise one
    if isinstance(other, BaseException):
        raise other
    return one, other


SANDBOX_BACKOFF = Backoff(1.0, 300.0)
"""Seconds between attempts to create a sandbox."""


@dataclass(slots=True)
class WorkerState:
    """`attached` is the sandbox that has its place in the network; `troubles` are (reason, message) by container.

    `retired` are ids of containers that were asked to stop because of their image, `held_back` of those that wait.
    """

    started_at: datetime
    address: str = ""
    attached: str = ""
    retired: set[str] = field(default_factory=set)
    troubles: dict[str, tuple[str, str]] = field(default_factory=dict)
    trouble: tuple[str, str] | None = None
    held_back: set[str] = field(default_factory=set)
    sandbox_failures: int = 0
    sandbox_due: datetime | None = None

    def newly_held(self, waiting: Mapping[str, str]) -> list[str]:
        """Of the containers that wait, by the ids of those that ended, the names of those that did not wait yet."""
        fresh = [waiting[identity] for identity in waiting.keys() - self.held_back]
        self.held_back = set(waiting)
        return fresh

    def sandbox_failed(self, now: datetime) -> datetime:
        """The next attempt waits, longer each time: Docker's own events of this one must not bring it about."""
        self.sandbox_failures += 1
        self.sandbox_due = now + timedelta(seconds=SANDBOX_BACKOFF.delay(self.sandbox_failures))
        return self.sandbox_due

    def sandbox_stands(self) -> None:
        """It runs, and has its place in the network."""
        self.sandbox_failures, self.sandbox_due = 0, None

    def holds_sandbox(self, now: datetime) -> bool:
        """Whether it is too early for another one."""
        return self.sandbox_due is not None and now < self.sandbox_due

    def facts(
        self, node_address: str, messages: Mapping[str, str], progress: LifecycleState, terminating: bool
    ) -> StatusInputs:
        """What a status tells besides the containers, now."""
        return StatusInputs(
            node_address=node_address,
            address=self.address,
            addressless=bool(self.attached) and not self.address and self.trouble is None,
            now=wall_clock(),
            started_at=self.started_at,
            troubles=dict(self.troubles),
            trouble=self.trouble,
            terminating=terminating,
            messages=messages,
            progress=progress,
        )


log = logging.getLogger(__name__)

RESYNC_SECONDS = 60.0
START_DELAY = timedelta(seconds=10)


class PodWorker:
    """Runs passes for one pod until nothing of it is left; `pod` is the latest wish."""

    def __init__(self, pod: Pod, tools: WorkerDependencies) -> None:
        self.pod = pod
        self._uid = pod.metadata.uid
        self.leaving = False
        self.cleared = False
        self.verdict: tuple[str, str] | None = None
        self._eviction_grace = GRACE_SECONDS
        self._tools = tools
        self._clock = SteadyClock()
        self._memory = WorkerState(self._clock(), address=pod.status.pod_ip)
        self._last_words = TerminationMessages(tools.docker, tools.host)
        self._messages: Mapping[str, str] = {}
        self._images = ImageManager(tools.docker, self._tell, self._show)
        self._volumes = VolumeManager(self._uid, tools.references, tools.tokens, tools.host, self._tell)
        self._lifecycle = ContainerLifecycle(
            tools.docker, tools.host, self._uid, tools.probing, PodCallbacks(self._tell, self.wake)
        )
        self._alarm = WakeTimer(self.wake)
        self._name = f"{pod.metadata.namespace}/{pod.metadata.name}"
        self._passes = SyncTimer(self._pass, lambda: self._going)
        self._loop = Loop(
            f"pod {self._name}", containing_bugs(self._name, self._passes.one), LoopTiming(resync=RESYNC_SECONDS)
        )
        self._done = asyncio.Event()

    def wake(self) -> None:
        """Something that matters to this pod may have changed."""
        if self._going or self.verdict or is_evicted(self.pod.status):
            self._images.give_up()
        self._loop.wake()

    def update(self, pod: Pod) -> None:
        """A newer wish; its status is ours to write, so the one that we know stays but for what others say in it."""
        ours = self.pod.status
        known = merge_status(ours, pod.status) if ours.conditions or ours.phase in FINAL_PHASES else pod.status
        self.pod, self._passes.next = replace(pod, status=known), "update"
        self.wake()

    def reattach(self) -> None:
        """The node's network has changed: ask again whether the sandbox still has its place in it."""
        self._memory.attached = ""
        self.wake()

    def evict(self, message: str, grace: int = GRACE_SECONDS) -> None:
        """The node has no room for the pod: its object stays, with this message, and nothing else of it."""
        self._eviction_grace = grace
        if not self.leaving and not self.pod.metadata.deletion_timestamp and self.pod.status.phase not in FINAL_PHASES:
            self.pod = replace(self.pod, status=evicted_status(self.pod.status, message, wall_clock()))
            self._tell(EVICTED, message)
            self._tools.report(self._uid, self.pod.status)
            self.wake()

    def leave(self) -> None:
        """The pod is wanted no more."""
        self.leaving = True
        self.wake()

    async def run(self) -> None:
        """Until nothing is left of the pod."""
        passes = asyncio.create_task(self._loop.run())
        done = asyncio.create_task(self._done.wait())
        try:
            finished, _ = await asyncio.wait({passes, done}, return_when=asyncio.FIRST_COMPLETED)
            if passes in finished:
                passes.result()
        finally:
            passes.cancel()
            done.cancel()
            self._lifecycle.close()
            self._alarm.clear()

    @property
    def _going(self) -> bool:
        return self.leaving or self.pod.metadata.deletion_timestamp is not None

    async def _pass(self) -> None:
        if self._done.is_set():
            return
        seen = await self._observe()
        until = active_deadline(self.pod, seen, self._memory.started_at)
        if until is not None and self._clock() >= until:
            self.fail(*DEADLINE_EXCEEDED)
        self._images.seconds = None if until is None else (until - self._clock()).total_seconds()
        if self._going:
            if await self._take_down(seen):
                log.info("pod gone", extra={"pod": self._name})
                self._tools.gone(self._uid)
                self._done.set()
        elif is_evicted(self.pod.status):
            self.cleared = await self._take_down(seen)
        elif self.verdict and self.pod.status.phase not in FINAL_PHASES:
            await self._fail(seen, *self.verdict)
        else:
            await self._sync(seen)
            if until is not None and self.pod.status.phase not in FINAL_PHASES:
                self._alarm.at(until, self._clock())

    def fail(self, reason: str, message: str) -> None:
        """End the pod, with its grace period; once nothing runs any more it has failed. The first verdict stays."""
        if self.verdict is None and self.pod.status.phase not in FINAL_PHASES:
            self.verdict = (reason, message)
            self._tell(reason, message)
            self.wake()

    async def _fail(self, seen: RuntimePod, reason: str, message: str) -> None:
        if not await self._stop(seen):
            self.pod = replace(self.pod, status=failed_status(self.pod, reason, message))
            self._tools.report(self._uid, self.pod.status)
            self.wake()
        self._report(await self._observe())

    async def _show(self) -> None:
        self._report(await self._observe())
        # The rest of this pass changes containers, and no event about that may arrive in time.
        self._tools.cache.invalidate(self._uid)

    async def _observe(self) -> RuntimePod:
        seen = await self._tools.cache.get(self._uid)
        going = self._going or is_evicted(self.pod.status) or self.verdict is not None
        await self._lifecycle.follow(self.pod, seen, self._memory.address, going, self._clock())
        self._messages = await self._last_words.learn(self.pod, seen)
        return seen

    async def _sync(self, seen: RuntimePod) -> None:
        retired = frozenset(self._memory.retired)
        actions = compute_pod_actions(self.pod, seen, wall_clock(), retired, self._lifecycle.progress)
        self._alarm.clear()
        self._alarm.at(actions.wake_at(), wall_clock())
        for name in self._memory.newly_held({seen.containers[name][0].id: name for name, _ in actions.waiting}):
            self._tell("BackOff", backoff_message(self.pod, name), name)
        if actions.finished and self.pod.status.phase in FINAL_PHASES:
            if not seen.everything:  # Its status says all there is to say.
                await self._volumes.take_down()
                return
            await self._release(actions, seen)
            if self._lifecycle.stopping:
                self._report(await self._observe())
            return
        if not self.pod.status.conditions:
            self._report(seen)
        try:
            await (self._release if actions.finished else self._act)(actions, seen)
        except NotReady as error:
            if self._memory.trouble is None and not self._going:
                self._tell("FailedSync", f"Error syncing pod: {error}")
            raise
        finally:
            seen = await self._observe()
            self._report(seen)
        if is_pod_finished(self.pod, seen, retired, self._lifecycle.progress) and not actions.finished:
            self.wake()

    async def _act(self, actions: PodActions, seen: RuntimePod) -> None:
        if str(actions):
            log.info("pod", extra={"pod": self._name, "actions": actions})
            self._tools.cache.invalidate(self._uid)
        for one in actions.kill:
            await self._tools.docker.kill(one.id, "SIGKILL")
        for one in actions.retire:
            self._memory.retired |= {one.id} - self._lifecycle.progress.condemned.keys()
            now = self._clock()
            self._alarm.at(await self._lifecycle.retire(self.pod, one, self._memory.address, now), now)
        sandbox = seen.sandbox
        self._images.look_anew()
        if actions.sandbox_attempt is not None or actions.start:
            await self._volumes.look_anew(self.pod)
        if actions.sandbox_attempt is None:
            has_volumes = await self._set_up_volumes()
            for one in actions.remove:
                await self._remove(one)
        else:
            has_volumes, sandbox = await self._move_in(actions.sandbox_attempt, actions)
        if sandbox is None or not has_volumes:
            return
        await self._attach(sandbox)
        self._memory.troubles.clear()
        await self._start_all(actions.start, sandbox, seen)
        if actions.hook is not None:
            self._lifecycle.post_start(self.pod, actions.hook, self._memory.address)

    async def _move_in(self, attempt: int, actions: PodActions) -> tuple[bool, RuntimeContainer | None]:
        """Whether every volume is there, and a new sandbox, unless something but tokens is lacking."""
        if not await self._set_up_volumes(but_tokens=True) or self._memory.holds_sandbox(steady_clock()):
            self._alarm.at(self._memory.sandbox_due, steady_clock())
            return False, None
        if attempt > 0:
            self._tell("SandboxChanged", "Pod sandbox changed, it will be killed and re-created.")
        # The master gives tokens while Docker is at work.
        return await gather_both(self._set_up_volumes(), self._new_sandbox(attempt, actions))

    async def _set_up_volumes(self, but_tokens: bool = False) -> bool:
        """Whether every volume is there; without, no container starts."""
        lacking, retry_at = await self._volumes.set_up(self.pod, steady_clock(), but_tokens)
        self._alarm.at(retry_at, steady_clock())
        if lacking:
            names = (one.name for one in (*self.pod.spec.init_containers, *self.pod.spec.containers))
            self._memory.troubles = dict.fromkeys(names, (waiting_reason(self.pod), lacking))
        return not lacking

    def _tell(self, reason: str, message: str, container: str = "") -> None:
        self._tools.event(self.pod, reason, message, container)

    async def _new_sandbox(self, attempt: int, actions: PodActions) -> RuntimeContainer:
        """The earlier ones go once there is a new one: what is counted from them is not lost when we are killed."""
        docker, cgroups = self._tools.docker, self._tools.cgroups
        try:
            spec = await prepare_sandbox_config(self._tools, self.pod, attempt)
            identity, _ = await asyncio.gather(create_sandbox(docker, spec), cgroups.create(self.pod))
            await self._drop(actions.remove)
            await asyncio.gather(docker.start(identity), self._images.expect([one.wish for one in actions.start]))
            sandbox = await docker.inspect(identity)
        except DriverError as error:
            self._sandbox_failed(str(error))
            raise
        self._memory.trouble = None
        return sandbox

    async def _drop(self, containers: tuple[RuntimeContainer, ...]) -> None:
        for one in containers:
            if one.is_sandbox:
                await self._tools.network.detach(one.id)
            await self._remove(one)
        self._memory.address = self._memory.attached = ""

    async def _remove(self, one: RuntimeContainer) -> None:
        await (self._tools.docker.remove_unstarted if one.unborn else self._tools.docker.remove)(one.id)

    async def _attach(self, sandbox: RuntimeContainer) -> None:
        if self._memory.attached == sandbox.id:
            return
        try:
            address, nameserver = await attach_network(self.pod, sandbox, self._tools.network, self._tools.node_address)
        except DriverError as error:
            if isinstance(error, Gone):
                log.warning("sandbox is cut off", extra={"pod": self._name, "error": error})
                await self._tools.docker.kill(sandbox.id, "SIGKILL")
                self._tools.cache.invalidate(self._uid)
            self._sandbox_failed(f"network: {error}")
            raise
        self._memory.trouble = missing_address(self.pod, address)
        self._memory.address = address
        for reason, message in await write_pod_dns(self.pod, self._tools.host, address, nameserver):
            self._tell(reason, message)
        self._memory.attached = sandbox.id
        self._memory.sandbox_stands()

    def _sandbox_failed(self, words: str) -> None:
        self._memory.trouble = ("FailedCreatePodSandBox", words)
        self._tell("FailedCreatePodSandBox", f"Failed to create pod sandbox: {words}")
        self._alarm.at(self._memory.sandbox_failed(steady_clock()), steady_clock())

    async def _start_all(self, starts: tuple[ContainerStart, ...], sandbox: RuntimeContainer, seen: RuntimePod) -> None:
        """One after the other; those after one with a postStart hook wait for it, and a pass has to begin it."""
        for start in starts:
            with contextlib.suppress(NotSynced):  # its change wakes us
                await self._start(start, sandbox, seen)
                if post_start_handler(start.wish) is not None and start.wish.name not in self._memory.troubles:
                    self.wake()
                    return

    async def _start(self, start: ContainerStart, sandbox: RuntimeContainer, seen: RuntimePod) -> None:
        name = start.wish.name
        credentials = pull_credentials(start.wish, self.pod, self._tools.references, self._tell)
        image = await self._images.get(start.wish, credentials)
        if isinstance(image, ImageUnavailable):
            self._memory.troubles[name] = (image.reason, image.message)
            self._alarm.at(image.due, steady_clock())
            return
        addresses = replace(self.pod.status, pod_ip=self._memory.address, host_ip=self._tools.node_address)
        pod = self._volumes.with_storage(replace(self.pod, status=addresses))
        try:
            spec = await prepare_container_config(self._tools, pod, start, image, sandbox.id, seen)
        except Refused as error:
            self._cannot(name, "CreateContainerConfigError", error)
            return
        try:
            identity = await self._tools.docker.create(spec)
        except Refused as error:
            self._cannot(name, "CreateContainerError", error)
            return
        self._tell("Created", "Container created", name)
        try:
            await self._tools.docker.start(identity)
            self._tell("Started", "Container started", name)
        except Refused as error:
            log.warning("container cannot run", extra={"pod": self._name, "container": name, "error": error})
            self._cannot(name, "RunContainerError", error)

    def _cannot(self, container: str, reason: str, error: DriverError) -> None:
        self._memory.troubles[container] = (reason, str(error))
        self._tell("Failed", f"Error: {error}", container)
        self._alarm.at(steady_clock() + START_DELAY, steady_clock())

    async def _release(self, actions: PodActions, seen: RuntimePod) -> None:
        """The pod's own containers have ended for good: sidecars stop, then the sandbox and its network go.

        The containers stay for their logs.
        """
        if await self._stop(seen):
            return
        for identity in seen.sandbox_ids:
            await self._tools.network.detach(identity)
        for one in actions.kill:
            await self._tools.docker.kill(one.id, "SIGKILL")
            self._tools.cache.invalidate(self._uid)
        self._memory.attached = ""
        await self._volumes.take_down()

    async def _take_down(self, seen: RuntimePod) -> bool:
        """The next step of a pod that is to go; whether nothing of it is left on this host."""
        if await self._stop(seen):
            self._report(await self._observe(), terminating=True)
            return False
        self._report(seen, terminating=True)
        self._tools.cache.invalidate(self._uid)
        for identity in seen.sandbox_ids:
            await self._tools.network.detach(identity)
        for one in seen.everything:
            await self._tools.docker.remove(one.id)
        await self._tools.cgroups.remove(self._uid)
        await self._volumes.forget()
        return True

    async def _stop(self, seen: RuntimePod) -> bool:
        """Take the next step of the end of what runs; False when nothing runs any more.

        The grace period begins when we see that the pod is to go: the master's deletionTimestamp has whole seconds
        only, and its clock may not be ours.
        """
        grace = grace_period_seconds(self.pod, self._eviction_grace, self.leaving)
        now = self._clock()
        deadline = now + timedelta(seconds=grace)
        running, again = await self._lifecycle.stop(self.pod, seen, self._memory.address, deadline, now)
        self._alarm.clear()
        self._alarm.at(again, now)
        if running:
            self._tools.cache.invalidate(self._uid)
        return running

    def _report(self, seen: RuntimePod, terminating: bool = False) -> None:
        progress, address = self._lifecycle.progress, self._tools.node_address
        facts = self._memory.facts(address, self._messages, progress, terminating)
        status = compute_pod_status(self.pod, seen, facts)
        if is_evicted(self.pod.status):
            status = replace(status, reason=self.pod.status.reason, message=self.pod.status.message)
        elif self.verdict and status.phase in FINAL_PHASES:
            status = replace(status, phase="Failed", reason=self.verdict[0], message=self.verdict[1])
        if status != self.pod.status:
            self._passes.told(self.pod.status.phase, status.phase)
            self.pod = replace(self.pod, status=status)
            self._tools.report(self._uid, status)
