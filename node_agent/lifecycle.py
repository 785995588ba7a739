"""Probes, hooks and ends of one pod's containers: what goes on between two passes of its worker."""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from api.objects import Container as Wish
from api.objects import Pod
from api.probes import LifecycleHandler
from node_agent.containers import Host
from node_agent.drivers import marks
from node_agent.drivers.docker import Docker
from node_agent.drivers.marks import Mark
from node_agent.drivers.probe import Answer, Target
from node_agent.observed import Container, PodContainers
from node_agent.plan import terminate
from node_agent.prober import PodProber, Probing
from node_agent.probing import Verdict, needs_address
from node_agent.progress import POST_START, UNKNOWN, Condemned, Progress, condemned_by, post_start
from node_agent.stopping import LONGEST_GRACE, Step, Stop, next_step, ports, pre_stop
from reconcile.errors import NotReady

log = logging.getLogger(__name__)

BEGUN, STOPPED, CONDEMNED = "postStart", "preStop", "condemned"
STARTED, READY = "started", "ready"
"""Words of marks: this hook has been run; the container has to end (why, and its grace in seconds); its startup or its
readiness probe has succeeded."""


@dataclass(frozen=True, slots=True)
class Voice:
    """How a pod is heard: `tell` (reason, message, container) an event, `wake` its worker."""

    tell: Callable[[str, str, str], None]
    wake: Callable[[], None]


class Lifecycle:
    """Hooks and probes run beside the worker and wake it; only its passes take up what they found.

    What must outlive the agent is in marks: hooks that were run, and containers that have to end.
    """

    def __init__(self, docker: Docker, host: Host, uid: str, probing: Probing, voice: Voice) -> None:
        self._docker = docker
        self._host = host
        self._uid = uid
        self._client = probing.client
        self._voice = voice
        self._prober = PodProber(probing, self._heard, voice.wake)
        self._silent: dict[tuple[str, str], str] = {}
        self._marks: dict[Mark, str] | None = None
        self._hooks: dict[Mark, asyncio.Task[Answer]] = {}
        self._stops: dict[str, Stop] = {}
        self._deadlines: dict[str, datetime] = {}
        self._pod_deadline: datetime | None = None

    @property
    def progress(self) -> Progress:
        """What is known now."""
        known = self._marks or {}
        condemned = {mark.container: _condemned(text) for mark, text in known.items() if mark.word == CONDEMNED}
        begun = frozenset(mark.container for mark in known if mark.word == BEGUN)
        return Progress(self._prober.verdicts, begun, condemned)

    @property
    def stopping(self) -> bool:
        """Whether the pod as a whole is being stopped."""
        return self._pod_deadline is not None

    async def follow(self, pod: Pod, seen: PodContainers, address: str, going: bool, now: datetime) -> None:
        """Begin and end probes with the containers that run, and take up what hooks and probes have found.

        `address` is the pod's, empty while it has none. Raises NotReady, and whatever a hook or a probe raised.
        """
        if self._marks is None:
            self._marks = await asyncio.to_thread(marks.read, self._host, self._uid)
        newest = {name: history[0] for name, history in seen.containers.items() if history[0].running}
        self._prober.keep(frozenset(one.id for one in newest.values()), going)
        for wish in (*pod.spec.init_containers, *pod.spec.containers):
            one = newest.get(wish.name)
            if one is not None and (address or not needs_address(wish)) and self.progress.is_up(wish, one):
                self._prober.begin(wish, one, Target(one.id, address, ports(wish)), self._known_of(one))
            if one is not None:
                await self._remember(wish, one)
            if one is not None and not going:
                await self._judge(pod, wish, one)
        await self._take_up(pod, newest, going, now)
        there = {one.id for one in seen.everything}
        for mark in [mark for mark in self._marks if mark.container not in there]:
            await self._unmark(mark)

    def _known_of(self, one: Container) -> Verdict:
        """What an earlier agent has found out about this container id; nothing of one that is new."""
        words = {mark.word for mark in self._marks or () if mark.container == one.id}
        return Verdict(started=STARTED in words, ready=READY in words)

    async def _remember(self, wish: Wish, one: Container) -> None:
        """So that the next agent begins with what this one knows, whether or not a master can tell."""
        assert self._marks is not None
        verdict = self._prober.verdicts.get(one.id, UNKNOWN)
        for word, probe, holds in (
            (STARTED, wish.startup_probe, verdict.started),
            (READY, wish.readiness_probe, verdict.ready),
        ):
            mark = Mark(one.id, word)
            if probe is not None and one.id in self._prober.verdicts and holds != (mark in self._marks):
                await (self._mark(mark) if holds else self._unmark(mark))

    def post_start(self, pod: Pod, one: Container, address: str) -> None:
        """Run its postStart hook, unless it runs already."""
        wish = _wish(pod, one.name)
        hook = post_start(wish)
        if hook is not None:
            self._begin(Mark(one.id, BEGUN), hook, Target(one.id, address, ports(wish)))

    async def retire(self, pod: Pod, one: Container, address: str, now: datetime) -> datetime | None:
        """The next step of ending one container of a pod that goes on; when to look again."""
        why = self.progress.condemned.get(one.id)
        grace = why.grace if why is not None else pod.spec.termination_grace_period_seconds or 0
        deadline = self._deadlines.setdefault(one.id, now + timedelta(seconds=min(grace, LONGEST_GRACE)))
        changed = f"Container {one.name} definition changed, will be restarted"
        words = why.words(one.name, pod.spec.restart_policy) if why is not None else changed
        return await self._stop(one, address, deadline, words, now)

    async def stop(
        self, pod: Pod, seen: PodContainers, address: str, deadline: datetime, now: datetime
    ) -> tuple[bool, datetime | None]:
        """The next step of ending all containers by a time, which may only come nearer.

        Whether something runs, and when to look again.
        """
        self._pod_deadline = min(self._pod_deadline or deadline, deadline)
        signalled = frozenset(identity for identity, stop in self._stops.items() if stop.signalled)
        step = terminate(pod, seen, signalled, self._pod_deadline, now)
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

    def _begin(self, mark: Mark, hook: LifecycleHandler, target: Target) -> None:
        if mark not in self._hooks:
            task = asyncio.create_task(self._client.carry_out(hook, target, math.inf))
            task.add_done_callback(lambda _: self._voice.wake())
            self._hooks[mark] = task

    async def _stop(
        self, one: Container, address: str, deadline: datetime, words: str, now: datetime
    ) -> datetime | None:
        """Take the next step of one container's end; when to look again."""
        if one.id not in self._stops:
            self._voice.tell("Killing", words, one.name)
            self._stops[one.id] = Stop()
        stop, mark = self._stops[one.id], Mark(one.id, STOPPED)
        hook = None if mark in (self._marks or {}) else pre_stop(one)
        step, again = next_step(hook is not None, stop, deadline, now)
        if step is Step.HOOK and hook is not None:
            self._stops[one.id] = replace(stop, hooking=True)
            self._begin(mark, hook, Target(one.id, address, {}))
        elif step is Step.SIGNAL:
            log.info("asking to stop", extra={"uid": self._uid, "container": one.name})
            await self._docker.signal(one.id, one.stop_signal)
            if self._cut_off(mark):
                self._voice.tell(
                    "FailedPreStopHook", "PreStopHook failed: it took longer than there was time", one.name
                )
            self._stops[one.id] = replace(stop, signalled=True, hooked_at=now if stop.hooking else stop.hooked_at)
        elif step is Step.KILL:
            await self._docker.signal(one.id, "SIGKILL")
            self._stops[one.id] = replace(stop, signalled=True)
            return None
        return again

    def _cut_off(self, mark: Mark) -> bool:
        """End a hook that runs; whether it did."""
        task = self._hooks.pop(mark, None)
        return task is not None and task.cancel()

    async def _take_up(self, pod: Pod, newest: dict[str, Container], going: bool, now: datetime) -> None:
        """What hooks have come to; those of containers that have ended are of no interest."""
        running = {one.id: one for one in newest.values()}
        for mark, task in list(self._hooks.items()):
            if mark.container not in running:
                self._cut_off(mark)
            elif task.done():
                del self._hooks[mark]
                if mark.word == STOPPED:
                    await self._pre_stop_ended(running[mark.container], mark, task.result(), now)
                else:
                    await self._post_start_ended(pod, running[mark.container], mark, task.result(), going)

    async def _pre_stop_ended(self, one: Container, mark: Mark, heard: Answer, now: datetime) -> None:
        if not heard.success:
            self._voice.tell("FailedPreStopHook", f"PreStopHook failed: {heard.words}", one.name)
        self._stops[one.id] = replace(self._stops[one.id], hooking=False, hooked_at=now)
        await self._mark(mark)

    async def _post_start_ended(self, pod: Pod, one: Container, mark: Mark, heard: Answer, going: bool) -> None:
        if heard.success:
            await self._mark(mark)
        elif heard.success is False and not going:
            self._voice.tell("FailedPostStartHook", f"PostStartHook failed: {heard.words}", one.name)
            await self._condemn(pod, _wish(pod, one.name), one, POST_START)

    async def _judge(self, pod: Pod, wish: Wish, one: Container) -> None:
        failed = self._prober.verdicts.get(one.id, UNKNOWN).failed
        if failed and Mark(one.id, CONDEMNED) not in (self._marks or {}):
            await self._condemn(pod, wish, one, failed)

    async def _condemn(self, pod: Pod, wish: Wish, one: Container, why: str) -> None:
        end = condemned_by(wish, why, pod.spec.termination_grace_period_seconds or 0)
        await self._mark(Mark(one.id, CONDEMNED), f"{end.why} {end.grace}")

    async def _mark(self, mark: Mark, text: str = "") -> None:
        """What cannot be written down now is known all the same, as long as this agent lives."""
        assert self._marks is not None
        self._marks[mark] = text
        try:
            await asyncio.to_thread(marks.write, self._host, self._uid, mark, text)
        except NotReady as error:
            log.warning("mark not written", extra={"uid": self._uid, "error": error})

    async def _unmark(self, mark: Mark) -> None:
        assert self._marks is not None
        await asyncio.to_thread(marks.remove, self._host, self._uid, mark)
        del self._marks[mark]

    def _heard(self, name: str, kind: str, heard: Answer, changed: bool) -> None:
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


def _wish(pod: Pod, name: str) -> Wish:
    return next(one for one in (*pod.spec.init_containers, *pod.spec.containers) if one.name == name)


def _condemned(text: str) -> Condemned:
    why, grace = text.split()
    return Condemned(why, int(grace))
