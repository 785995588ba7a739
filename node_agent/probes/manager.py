"""Runs one worker for each container that has probes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from api.core.pod import Container as Wish
from api.core.pod import Probe
from node_agent.clock import steady_clock, wall_clock
from node_agent.probes.prober import Prober, ProbeTarget
from node_agent.probes.state import (
    ProbeAnswer,
    ProbeResults,
    ProbeState,
    container_probes,
    due_probes,
    initial_state,
    record_answer,
)
from node_agent.runtime.container import RuntimeContainer
from node_agent.runtime.startup import UNKNOWN
from node_agent.stats.metrics import ProbeMetrics


@dataclass(frozen=True, slots=True)
class ProbeDependencies:
    """What probes are asked with. `began`: when the agent did, by `steady`; `share` gives random parts, 0 to 1.

    `counts` is told of each answer.
    """

    client: Prober
    share: Callable[[], float]
    began: datetime
    counts: ProbeMetrics = field(default_factory=ProbeMetrics)


class ProbeWorker:
    """The probes of one container id, until they are over or it is cancelled."""

    def __init__(
        self,
        tools: ProbeDependencies,
        wish: Wish,
        target: ProbeTarget,
        state: ProbeState,
        told: Callable[[str, ProbeAnswer, bool], None],
        timed: Callable[[str, ProbeAnswer, float], None],
    ) -> None:
        self.state = state
        self.going = False
        self._client = tools.client
        self._wish = wish
        self._target = target
        self._told = told
        self._timed = timed
        self.task = asyncio.create_task(self._run())

    async def _run(self) -> None:
        asked: dict[asyncio.Task[ProbeAnswer], str] = {}
        wishes = container_probes(self._wish)
        try:
            while True:
                self.state, kinds = due_probes(self.state, steady_clock(), self.going)
                for kind in kinds:
                    asked[asyncio.create_task(self._ask(kind, wishes[kind]))] = kind
                due = self.state.wake_at(self.going)
                wait = None if due is None else max((due - steady_clock()).total_seconds(), 0.0)
                if asked:
                    done, _ = await asyncio.wait(asked, timeout=wait, return_when=asyncio.FIRST_COMPLETED)
                    for task in done:
                        self._answered(asked.pop(task), task.result())
                elif wait is None:
                    return
                else:
                    await asyncio.sleep(wait)
        finally:
            for task in asked:
                task.cancel()

    async def _ask(self, kind: str, probe: Probe) -> ProbeAnswer:
        began = steady_clock()
        heard = await self._client.ask(probe, self._target)
        self._timed(kind, heard, (steady_clock() - began).total_seconds())
        return heard

    def _answered(self, kind: str, heard: ProbeAnswer) -> None:
        before = self.state.verdict
        self.state, after = record_answer(self.state, kind, heard.success)
        self._told(kind, heard, before != after)


class ProbeManager:
    """The probes of one pod. `told` hears every answer, and whether a verdict changed: (container, probe, answer,
    changed). `ended` is called when there is no more to ask, or when asking failed."""

    def __init__(
        self, tools: ProbeDependencies, told: Callable[[str, str, ProbeAnswer, bool], None], ended: Callable[[], None]
    ) -> None:
        self._tools = tools
        self._told = told
        self._ended = ended
        self._probers: dict[str, ProbeWorker] = {}

    @property
    def verdicts(self) -> Mapping[str, ProbeResults]:
        """By container id, of those that have probes."""
        return {identity: prober.state.verdict for identity, prober in self._probers.items()}

    def begin(self, wish: Wish, one: RuntimeContainer, target: ProbeTarget, known: ProbeResults = UNKNOWN) -> None:
        """Ask a container from now on, unless it is asked already; `known` is what was told of it before."""
        if one.id in self._probers or not container_probes(wish):
            return
        # By the clock that Docker has; it may have been set since we began.
        age = wall_clock() - one.started_at if one.started_at is not None else timedelta(0)
        now = steady_clock()
        state = initial_state(wish, now - age, now, self._tools.began, self._tools.share(), known)

        def told(kind: str, heard: ProbeAnswer, changed: bool) -> None:
            self._told(wish.name, kind, heard, changed)

        def timed(kind: str, heard: ProbeAnswer, seconds: float) -> None:
            self._tools.counts.count(one, kind, heard.success, seconds)

        prober = self._probers[one.id] = ProbeWorker(self._tools, wish, target, state, told, timed)
        prober.task.add_done_callback(lambda _: self._ended())

    def keep(self, running: frozenset[str], going: bool) -> None:
        """Forget containers that do not run; of a pod that goes ask only for readiness. Raises what a task raised."""
        for identity in self._probers.keys() - running:
            self._probers.pop(identity).task.cancel()
        for prober in self._probers.values():
            prober.going = going
            if prober.task.done():
                prober.task.result()

    def close(self) -> None:
        """Ask nothing any more."""
        self.keep(frozenset(), going=True)
