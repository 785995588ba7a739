"""Runs hooks and probes of a pod's containers and stops containers; remembers results in checkpoints."""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from api.core.pod import Container as Wish
from api.core.pod import LifecycleHandler, Pod
from node_agent.docker.client import DockerClient
from node_agent.host import HostInfo
from node_agent.probes.manager import ProbeDependencies, ProbeManager
from node_agent.probes.prober import ProbeTarget
from node_agent.probes.state import ProbeAnswer, ProbeResults, needs_address
from node_agent.runtime import pod_dir
from node_agent.runtime.container import RuntimeContainer, RuntimePod, named_ports, pre_stop_handler
from node_agent.runtime.pod_dir import Checkpoint
from node_agent.runtime.startup import POST_START, UNKNOWN, KillReason, LifecycleState, kill_reason, post_start_handler
from node_agent.runtime.termination import MAX_GRACE_SECONDS, StopState, StopStep, next_stop_step, plan_termination
from reconcile.errors import NotReady

log = logging.getLogger(__name__)

POST_START_DONE, PRE_STOP_DONE, KILL_REQUESTED = "postStart", "preStop", "condemned"
STARTUP_PASSED, READINESS_PASSED = "started", "ready"
"""Words of marks: this hook has been run; the container has to end (why, and its grace in seconds); its startup or its
readiness probe has succeeded."""


@dataclass(frozen=True, slots=True)
class PodCallbacks:
    """How a pod is heard: `tell` (reason, message, container) an event, `wake` its worker."""

    tell: Callable[[str, str, str], None]
    wake: Callable[[], None]


class ContainerLifecycle:
    """Hooks and probes run beside the worker and wake it; only its passes take up what they found.

    What must outlive the agent is in marks: hooks that were run, and containers that have to end.
    """

    def __init__(
        self, docker: DockerClient, host: HostInfo, uid: str, probing: ProbeDependencies, voice: PodCallbacks
    ) -> None:
        self._docker = docker
        self._host = host
        self._uid = uid
        self._client = probing.client
        self._voice = voice
        self._prober = ProbeManager(probing, self._heard, voice.wake)
        self._silent: dict[tuple[str, str], str] = {}
        self._marks: dict[Checkpoint, str] | None = None
        self._hooks: dict[Checkpoint, asyncio.Task[ProbeAnswer]] = {}
        self._stops: dict[str, StopState] = {}
        self._deadlines: dict[str, datetime] = {}
        self._pod_deadline: datetime | None = None

    @property
    def progress(self) -> LifecycleState:
        """What is known now."""
        known = self._marks or {}
        condemned = {
            mark.container: _parse_kill_reason(text) for mark, text in known.items() if mark.word == KILL_REQUESTED
        }
        begun = frozenset(mark.container for mark in known if mark.word == POST_START_DONE)
        return LifecycleState(self._prober.verdicts, begun, condemned)

    @property
    def stopping(self) -> bool:
        """Whether the pod as a whole is being stopped."""
        return self._pod_deadline is not None

    async def follow(self, pod: Pod, seen: RuntimePod, address: str, going: bool, now: datetime) -> None:
        """Begin and end probes with the containers that run, and take up what hooks and probes have found.

        `address` is the pod's, empty while it has none. Raises NotReady, and whatever a hook or a probe raised.
        """
        if self._marks is None:
            self._marks = await asyncio.to_thread(pod_dir.read_checkpoints, self._host, self._uid)
        newest = {name: history[0] for name, history in seen.containers.items() if history[0].running}
        self._prober.keep(frozenset(one.id for one in newest.values()), going)
        for wish in (*pod.spec.init_containers, *pod.spec.containers):
            one = newest.get(wish.name)
            if one is not None and (address or not needs_address(wish)) and self.progress.is_up(wish, one):
                self._prober.begin(wish, one, ProbeTarget(one.id, address, named_ports(wish)), self._known_of(one))
            if one is not None:
                await self._remember(wish, one)
            if one is not None and not going:
                await self._judge(pod, wish, one)
        await self._take_up(pod, newest, going, now)
        there = {one.id for one in seen.everything}
        for mark in [mark for mark in self._marks if mark.container not in there]:
            await self._unmark(mark)

    def _known_of(self, one: RuntimeContainer) -> ProbeResults:
        """What an earlier agent has found out about this container id; nothing of one that is new."""
        words = {mark.word for mark in self._marks or () if mark.container == one.id}
        return ProbeResults(started=STARTUP_PASSED in words, ready=READINESS_PASSED in words)

    async def _remember(self, wish: Wish, one: RuntimeContainer) -> None:
        """So that the next agent begins with what this one knows, whether or not a master can tell."""
        assert self._marks is not None
        verdict = self._prober.verdicts.get(one.id, UNKNOWN)
        for word, probe, holds in (
            (STARTUP_PASSED, wish.startup_probe, verdict.started),
            (READINESS_PASSED, wish.readiness_probe, verdict.ready),
        ):
            mark = Checkpoint(one.id, word)
            if probe is not None and one.id in self._prober.verdicts and holds != (mark in self._marks):
                await (self._mark(mark) if holds else self._unmark(mark))

    def post_start(self, pod: Pod, one: RuntimeContainer, address: str) -> None:
        """Run its postStart hook, unless it runs already."""
        wish = _container_spec(pod, one.name)
        hook = post_start_handler(wish)
        if hook is not None:
            self._begin(Checkpoint(one.id, POST_START_DONE), hook, ProbeTarget(one.id, address, named_ports(wish)))

    async def retire(self, pod: Pod, one: RuntimeContainer, address: str, now: datetime) -> datetime | None:
        """The next step of ending one container of a pod that goes on; when to look again."""
        why = self.progress.condemned.get(one.id)
        grace = why.grace if why is not None else pod.spec.termination_grace_period_seconds or 0
        deadline = self._deadlines.setdefault(one.id, now + timedelta(seconds=min(grace, MAX_GRACE_SECONDS)))
        changed = f"Container {one.name} definition changed, will be restarted"
        words = why.words(one.name, pod.spec.restart_policy) if why is not None else changed
        return await self._stop(one, address, deadline, words, now)

    async def stop(
        self, pod: Pod, seen: RuntimePod, address: str, deadline: datetime, now: datetime
    ) -> tuple[bool, datetime | None]:
        """The next step of ending all containers by a time, which may only come nearer.

        Whether something runs, and when to look again.
        """
        self._pod_deadline = min(self._pod_deadline or deadline, deadline)
        signalled = frozenset(identity for identity, stop in self._stops.items() if stop.signalled)
        step = plan_termination(pod, seen, signalled, self._pod_deadline, now)
        again = [step.deadline if now < self._pod_deadline else None]
        for one in step.signal + step.kill:
            until = min(self._pod_deadline, self._deadlines.get(one.id, self._pod_deadline))
            again.append(await self._stop(one, address, until, f"Stopping container {one.name}", now))
        return step.deadline is not None, min((at for at in again if at is not None), default=None)

    def close(self) -> None:
        """Let go of everything; containers stay as they are."""
        self._prober.close()
        for task in self._hooks.values():
            task.cancel()

    def _begin(self, mark: Checkpoint, hook: LifecycleHandler, target: ProbeTarget) -> None:
        if mark not in self._hooks:
            task = asyncio.create_task(self._client.carry_out(hook, target, math.inf))
            task.add_done_callback(lambda _: self._voice.wake())
            self._hooks[mark] = task

    async def _stop(
        self, one: RuntimeContainer, address: str, deadline: datetime, words: str, now: datetime
    ) -> datetime | None:
        """Take the next step of one container's end; when to look again."""
        if one.id not in self._stops:
            self._voice.tell("Killing", words, one.name)
            self._stops[one.id] = StopState()
        stop, mark = self._stops[one.id], Checkpoint(one.id, PRE_STOP_DONE)
        hook = None if mark in (self._marks or {}) else pre_stop_handler(one)
        step, again = next_stop_step(hook is not None, stop, deadline, now)
        if step is StopStep.HOOK and hook is not None:
            self._stops[one.id] = replace(stop, hooking=True)
            self._begin(mark, hook, ProbeTarget(one.id, address, {}))
        elif step is StopStep.SIGNAL:
            log.info("asking to stop", extra={"uid": self._uid, "container": one.name})
            await self._docker.kill(one.id, one.stop_signal)
            if self._cut_off(mark):
                self._voice.tell(
                    "FailedPreStopHook", "PreStopHook failed: it took longer than there was time", one.name
                )
            self._stops[one.id] = replace(stop, signalled=True, hooked_at=now if stop.hooking else stop.hooked_at)
        elif step is StopStep.KILL:
            await self._docker.kill(one.id, "SIGKILL")
            self._stops[one.id] = replace(stop, signalled=True)
            return None
        return again

    def _cut_off(self, mark: Checkpoint) -> bool:
        """End a hook that runs; whether it did."""
        task = self._hooks.pop(mark, None)
        return task is not None and task.cancel()

    async def _take_up(self, pod: Pod, newest: dict[str, RuntimeContainer], going: bool, now: datetime) -> None:
        """What hooks have come to; those of containers that have ended are of no interest."""
        running = {one.id: one for one in newest.values()}
        for mark, task in list(self._hooks.items()):
            if mark.container not in running:
                self._cut_off(mark)
            elif task.done():
                del self._hooks[mark]
                if mark.word == PRE_STOP_DONE:
                    await self._pre_stop_ended(running[mark.container], mark, task.result(), now)
                else:
                    await self._post_start_ended(pod, running[mark.container], mark, task.result(), going)

    async def _pre_stop_ended(self, one: RuntimeContainer, mark: Checkpoint, heard: ProbeAnswer, now: datetime) -> None:
        if not heard.success:
            self._voice.tell("FailedPreStopHook", f"PreStopHook failed: {heard.words}", one.name)
        self._stops[one.id] = replace(self._stops[one.id], hooking=False, hooked_at=now)
        await self._mark(mark)

    async def _post_start_ended(
        self, pod: Pod, one: RuntimeContainer, mark: Checkpoint, heard: ProbeAnswer, going: bool
    ) -> None:
        if heard.success:
            await self._mark(mark)
        elif heard.success is False and not going:
            self._voice.tell("FailedPostStartHook", f"PostStartHook failed: {heard.words}", one.name)
            await self._condemn(pod, _container_spec(pod, one.name), one, POST_START)

    async def _judge(self, pod: Pod, wish: Wish, one: RuntimeContainer) -> None:
        failed = self._prober.verdicts.get(one.id, UNKNOWN).failed
        if failed and Checkpoint(one.id, KILL_REQUESTED) not in (self._marks or {}):
            await self._condemn(pod, wish, one, failed)

    async def _condemn(self, pod: Pod, wish: Wish, one: RuntimeContainer, why: str) -> None:
        end = kill_reason(wish, why, pod.spec.termination_grace_period_seconds or 0)
        await self._mark(Checkpoint(one.id, KILL_REQUESTED), f"{end.why} {end.grace}")

    async def _mark(self, mark: Checkpoint, text: str = "") -> None:
        """What cannot be written down now is known all the same, as long as this agent lives."""
        assert self._marks is not None
        self._marks[mark] = text
        try:
            await asyncio.to_thread(pod_dir.write_checkpoint, self._host, self._uid, mark, text)
        except NotReady as error:
            log.warning("mark not written", extra={"uid": self._uid, "error": error})

    async def _unmark(self, mark: Checkpoint) -> None:
        assert self._marks is not None
        await asyncio.to_thread(pod_dir.remove_checkpoint, self._host, self._uid, mark)
        del self._marks[mark]

    def _heard(self, name: str, kind: str, heard: ProbeAnswer, changed: bool) -> None:
        silent = self._silent.pop((name, kind), "")
        if heard.success is None:
            self._silent[name, kind] = heard.words
            if heard.words != silent:  # what does not answer is told once, and leaves room for other events
                self._voice.tell("Unhealthy", f"{kind} probe errored: {heard.words}", name)
        elif not heard.success:
            self._voice.tell("Unhealthy", f"{kind} probe failed: {heard.words}", name)
        elif heard.words:
            self._voice.tell("ProbeWarning", f"{kind} probe warning: {heard.words}", name)
        if changed:
            self._voice.wake()


def _container_spec(pod: Pod, name: str) -> Wish:
    return next(one for one in (*pod.spec.init_containers, *pod.spec.containers) if one.name == name)


def _parse_kill_reason(text: str) -> KillReason:
    why, grace = text.split()
    return KillReason(why, int(grace))
