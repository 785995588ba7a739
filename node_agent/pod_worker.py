"""One pod from its first container to its last trace: sync, terminating, terminated, never backwards."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Mapping
from datetime import timedelta

from msgspec.structs import replace

from api.objects import FINAL_PHASES, Pod
from node_agent.alarm import Alarm
from node_agent.both import both
from node_agent.clock import EvenClock, steady, wall
from node_agent.deadline import EXCEEDED, active_until
from node_agent.events import held_back
from node_agent.eviction import EVICTED, GRACE_SECONDS, evicted, is_evicted
from node_agent.guard import guarded
from node_agent.images import Images, Missing
from node_agent.last_words import LastWords
from node_agent.lifecycle import Lifecycle, Voice
from node_agent.measures import Passes
from node_agent.observed import Container, PodContainers
from node_agent.plan import PodActions, Start, is_finished, plan
from node_agent.pod_memory import PodMemory
from node_agent.pod_network import no_address
from node_agent.pod_volumes import PodVolumes
from node_agent.progress import post_start
from node_agent.references import Unread
from node_agent.sight import Sight
from node_agent.status import before_start, failed, merged, summarise
from node_agent.stopping import grace_seconds
from node_agent.surroundings import boxed, connected, created, credentials_for, named, surrounded
from node_agent.tools import Tools
from reconcile.errors import DriverError, Gone, NotReady, Refused
from reconcile.loop import Loop, Pace

log = logging.getLogger(__name__)

RESYNC_SECONDS = 60.0
START_DELAY = timedelta(seconds=10)


class PodWorker:
    """Runs passes for one pod until nothing of it is left; `pod` is the latest wish."""

    def __init__(self, pod: Pod, tools: Tools) -> None:
        self.pod = pod
        self._uid = pod.metadata.uid
        self.leaving = False
        self.cleared = False
        self.verdict: tuple[str, str] | None = None
        self._eviction_grace = GRACE_SECONDS
        self.sight = Sight(tools.docker, pod.metadata.uid)
        self._tools = tools
        self._clock = EvenClock()
        self._memory = PodMemory(self._clock(), address=pod.status.pod_ip)
        self._last_words = LastWords(tools.docker, tools.host)
        self._messages: Mapping[str, str] = {}
        self._images = Images(tools.docker, self._tell, self._show)
        self._volumes = PodVolumes(self._uid, tools.references, tools.tokens, tools.host, self._tell)
        self._lifecycle = Lifecycle(tools.docker, tools.host, self._uid, tools.probing, Voice(self._tell, self.wake))
        self._alarm = Alarm(self.wake)
        self._name = f"{pod.metadata.namespace}/{pod.metadata.name}"
        self._passes = Passes(self._pass, lambda: self._going)
        self._loop = Loop(f"pod {self._name}", guarded(self._name, self._passes.one), Pace(resync=RESYNC_SECONDS))
        self._done = asyncio.Event()

    def wake(self) -> None:
        """Something that matters to this pod may have changed."""
        if self._going or self.verdict or is_evicted(self.pod.status):
            self._images.give_up()
        self._loop.wake()

    def look(self) -> None:
        """Something may have happened to its containers."""
        self.sight.blur()
        self.wake()

    def update(self, pod: Pod) -> None:
        """A newer wish; its status is ours to write, so the one that we know stays but for what others say in it."""
        ours = self.pod.status
        known = merged(ours, pod.status) if ours.conditions or ours.phase in FINAL_PHASES else pod.status
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
            self.pod = replace(self.pod, status=evicted(self.pod.status, message, wall()))
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
        until = active_until(self.pod, seen, self._memory.started_at)
        if until is not None and self._clock() >= until:
            self.fail(*EXCEEDED)
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

    async def _fail(self, seen: PodContainers, reason: str, message: str) -> None:
        if not await self._stop(seen):
            self.pod = replace(self.pod, status=failed(self.pod, reason, message))
            self._tools.report(self._uid, self.pod.status)
            self.wake()
        self._report(await self._observe())

    async def _show(self) -> None:
        self._report(await self._observe())
        self.sight.blur()  # More is to be done in this pass, and what is done now would not be seen.

    async def _observe(self) -> PodContainers:
        seen = await self.sight.look()
        going = self._going or is_evicted(self.pod.status) or self.verdict is not None
        await self._lifecycle.follow(self.pod, seen, self._memory.address, going, self._clock())
        self._messages = await self._last_words.learn(self.pod, seen)
        return seen

    async def _sync(self, seen: PodContainers) -> None:
        retired = frozenset(self._memory.retired)
        actions = plan(self.pod, seen, wall(), retired, self._lifecycle.progress)
        self._alarm.clear()
        self._alarm.at(actions.wake_at(), wall())
        for name in self._memory.newly_held({seen.containers[name][0].id: name for name, _ in actions.waiting}):
            self._tell("BackOff", held_back(self.pod, name), name)
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
        if is_finished(self.pod, seen, retired, self._lifecycle.progress) and not actions.finished:
            self.wake()

    async def _act(self, actions: PodActions, seen: PodContainers) -> None:
        if str(actions):
            log.info("pod", extra={"pod": self._name, "actions": actions})
            self.sight.blur()
        for one in actions.kill:
            await self._tools.docker.signal(one.id, "SIGKILL")
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

    async def _move_in(self, attempt: int, actions: PodActions) -> tuple[bool, Container | None]:
        """Whether every volume is there, and a new sandbox, unless something but tokens is lacking."""
        if not await self._set_up_volumes(but_tokens=True) or self._memory.holds_sandbox(steady()):
            self._alarm.at(self._memory.sandbox_due, steady())
            return False, None
        if attempt > 0:
            self._tell("SandboxChanged", "Pod sandbox changed, it will be killed and re-created.")
        # The master gives tokens while Docker is at work.
        return await both(self._set_up_volumes(), self._new_sandbox(attempt, actions))

    async def _set_up_volumes(self, but_tokens: bool = False) -> bool:
        """Whether every volume is there; without, no container starts."""
        lacking, retry_at = await self._volumes.set_up(self.pod, steady(), but_tokens)
        self._alarm.at(retry_at, steady())
        if lacking:
            names = (one.name for one in (*self.pod.spec.init_containers, *self.pod.spec.containers))
            self._memory.troubles = dict.fromkeys(names, (before_start(self.pod), lacking))
        return not lacking

    def _tell(self, reason: str, message: str, container: str = "") -> None:
        self._tools.event(self.pod, reason, message, container)

    async def _new_sandbox(self, attempt: int, actions: PodActions) -> Container:
        """The earlier ones go once there is a new one: what is counted from them is not lost when we are killed."""
        docker, cgroups = self._tools.docker, self._tools.cgroups
        try:
            spec = await boxed(self._tools, self.pod, attempt)
            identity, _ = await asyncio.gather(created(docker, spec), cgroups.make(self.pod))
            await self._drop(actions.remove)
            await asyncio.gather(docker.start(identity), self._images.expect([one.wish for one in actions.start]))
            sandbox = await docker.inspect(identity)
        except DriverError as error:
            self._sandbox_failed(str(error))
            raise
        self._memory.trouble = None
        return sandbox

    async def _drop(self, containers: tuple[Container, ...]) -> None:
        for one in containers:
            if one.is_sandbox:
                await self._tools.network.detach(one.id)
            await self._remove(one)
        self._memory.address = self._memory.attached = ""

    async def _remove(self, one: Container) -> None:
        await (self._tools.docker.discard if one.unborn else self._tools.docker.remove)(one.id)

    async def _attach(self, sandbox: Container) -> None:
        if self._memory.attached == sandbox.id:
            return
        try:
            address, nameserver = await connected(self.pod, sandbox, self._tools.network, self._tools.node_address)
        except DriverError as error:
            if isinstance(error, Gone):
                log.warning("sandbox is cut off", extra={"pod": self._name, "error": error})
                await self._tools.docker.signal(sandbox.id, "SIGKILL")
                self.sight.blur()
            self._sandbox_failed(f"network: {error}")
            raise
        self._memory.trouble = no_address(self.pod, address)
        self._memory.address = address
        for reason, message in await named(self.pod, self._tools.host, address, nameserver):
            self._tell(reason, message)
        self._memory.attached = sandbox.id
        self._memory.sandbox_stands()

    def _sandbox_failed(self, words: str) -> None:
        self._memory.trouble = ("FailedCreatePodSandBox", words)
        self._tell("FailedCreatePodSandBox", f"Failed to create pod sandbox: {words}")
        self._alarm.at(self._memory.sandbox_failed(steady()), steady())

    async def _start_all(self, starts: tuple[Start, ...], sandbox: Container, seen: PodContainers) -> None:
        """One after the other; those after one with a postStart hook wait for it, and a pass has to begin it."""
        for start in starts:
            with contextlib.suppress(Unread):  # its change wakes us
                await self._start(start, sandbox, seen)
                if post_start(start.wish) is not None and start.wish.name not in self._memory.troubles:
                    self.wake()
                    return

    async def _start(self, start: Start, sandbox: Container, seen: PodContainers) -> None:
        name = start.wish.name
        credentials = credentials_for(start.wish, self.pod, self._tools.references, self._tell)
        image = await self._images.get(start.wish, credentials)
        if isinstance(image, Missing):
            self._memory.troubles[name] = (image.reason, image.message)
            self._alarm.at(image.due, steady())
            return
        addresses = replace(self.pod.status, pod_ip=self._memory.address, host_ip=self._tools.node_address)
        pod = self._volumes.with_storage(replace(self.pod, status=addresses))
        try:
            spec = await surrounded(self._tools, pod, start, image, sandbox.id, seen)
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
        self._alarm.at(steady() + START_DELAY, steady())

    async def _release(self, actions: PodActions, seen: PodContainers) -> None:
        """The pod's own containers have ended for good: sidecars stop, then the sandbox and its network go.

        The containers stay for their logs.
        """
        if await self._stop(seen):
            return
        for identity in seen.sandbox_ids:
            await self._tools.network.detach(identity)
        for one in actions.kill:
            await self._tools.docker.signal(one.id, "SIGKILL")
            self.sight.blur()
        self._memory.attached = ""
        await self._volumes.take_down()

    async def _take_down(self, seen: PodContainers) -> bool:
        """The next step of a pod that is to go; whether nothing of it is left on this host."""
        if await self._stop(seen):
            self._report(await self._observe(), terminating=True)
            return False
        self._report(seen, terminating=True)
        self.sight.blur()
        for identity in seen.sandbox_ids:
            await self._tools.network.detach(identity)
        for one in seen.everything:
            await self._tools.docker.remove(one.id)
        await self._tools.cgroups.remove(self._uid)
        await self._volumes.forget()
        return True

    async def _stop(self, seen: PodContainers) -> bool:
        """Take the next step of the end of what runs; False when nothing runs any more.

        The grace period begins when we see that the pod is to go: the master's deletionTimestamp has whole seconds
        only, and its clock may not be ours.
        """
        grace = grace_seconds(self.pod, self._eviction_grace, self.leaving)
        now = self._clock()
        deadline = now + timedelta(seconds=grace)
        running, again = await self._lifecycle.stop(self.pod, seen, self._memory.address, deadline, now)
        self._alarm.clear()
        self._alarm.at(again, now)
        if running:
            self.sight.blur()
        return running

    def _report(self, seen: PodContainers, terminating: bool = False) -> None:
        progress, address = self._lifecycle.progress, self._tools.node_address
        facts = self._memory.facts(address, self._messages, progress, terminating)
        status = summarise(self.pod, seen, facts)
        if is_evicted(self.pod.status):
            status = replace(status, reason=self.pod.status.reason, message=self.pod.status.message)
        elif self.verdict and status.phase in FINAL_PHASES:
            status = replace(status, phase="Failed", reason=self.verdict[0], message=self.verdict[1])
        if status != self.pod.status:
            self._passes.told(self.pod.status.phase, status.phase)
            self.pod = replace(self.pod, status=status)
            self._tools.report(self._uid, status)
