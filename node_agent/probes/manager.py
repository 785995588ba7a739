"""Runs one worker for each container that has probes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from api.core.pod import Container, Probe
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
from node_agent.runtime.lifecycle_state import UNKNOWN
from node_agent.stats.metrics import ProbeMetrics


@dataclass(frozen=True, slots=True)
class ProbeDependencies:
    """Objects that all probes of the node share.

    `jitter` returns random numbers from 0 to 1. `agent_started_at` is by the steady clock.
    """

    prober: Prober
    jitter: Callable[[], float]
    agent_started_at: datetime
    metrics: ProbeMetrics = field(default_factory=ProbeMetrics)


class ProbeWorker:
    """The task that probes one container ID, until no probe can be due any more (kubelet: worker).

    `on_answer` is called with the name of the probe, the answer, and whether a result changed. `on_duration` is called
    with the name of the probe, the answer and the seconds that the probe took.
    """

    def __init__(
        self,
        prober: Prober,
        container: Container,
        target: ProbeTarget,
        state: ProbeState,
        on_answer: Callable[[str, ProbeAnswer, bool], None],
        on_duration: Callable[[str, ProbeAnswer, float], None],
    ) -> None:
        self.state = state
        self.terminating = False
        self._prober = prober
        self._container = container
        self._target = target
        self._on_answer = on_answer
        self._on_duration = on_duration
        self.task = asyncio.create_task(self._run())

    async def _run(self) -> None:
        in_flight: dict[asyncio.Task[ProbeAnswer], str] = {}
        probes = container_probes(self._container)
        try:
            while True:
                self.state, due = due_probes(self.state, steady_clock(), self.terminating)
                for kind in due:
                    in_flight[asyncio.create_task(self._probe(kind, probes[kind]))] = kind
                wake_at = self.state.wake_at(self.terminating)
                wait = None if wake_at is None else max((wake_at - steady_clock()).total_seconds(), 0.0)
                if in_flight:
                    done, _ = await asyncio.wait(in_flight, timeout=wait, return_when=asyncio.FIRST_COMPLETED)
                    for task in done:
                        self._record(in_flight.pop(task), task.result())
                elif wait is None:
                    return
                else:
                    await asyncio.sleep(wait)
        finally:
            for task in in_flight:
                task.cancel()

    async def _probe(self, kind: str, probe: Probe) -> ProbeAnswer:
        started_at = steady_clock()
        answer = await self._prober.probe(probe, self._target)
        self._on_duration(kind, answer, (steady_clock() - started_at).total_seconds())
        return answer

    def _record(self, kind: str, answer: ProbeAnswer) -> None:
        before = self.state.results
        self.state, after = record_answer(self.state, kind, answer.success)
        self._on_answer(kind, answer, before != after)


class ProbeManager:
    """The probes of one pod's containers.

    `on_answer` is called with the container's name, the name of the probe, the answer, and whether a result changed.
    `on_end` is called when a worker has ended, normally or with an error.
    """

    def __init__(
        self,
        dependencies: ProbeDependencies,
        on_answer: Callable[[str, str, ProbeAnswer, bool], None],
        on_end: Callable[[], None],
    ) -> None:
        self._dependencies = dependencies
        self._on_answer = on_answer
        self._on_end = on_end
        self._workers: dict[str, ProbeWorker] = {}
        """By container ID."""

    @property
    def results(self) -> Mapping[str, ProbeResults]:
        """Current results of the containers that are probed, by container ID."""
        return {container_id: worker.state.results for container_id, worker in self._workers.items()}

    def add_container(
        self,
        container: Container,
        runtime_container: RuntimeContainer,
        target: ProbeTarget,
        previous: ProbeResults = UNKNOWN,
    ) -> None:
        """Probe a running container from now on, if it has probes and is not probed already.

        `previous` are the results of this container ID from a previous agent process.
        """
        if runtime_container.id in self._workers or not container_probes(container):
            return
        # The start time is by Docker's wall clock, which may have been set since this process started.
        started_at = runtime_container.started_at
        age = wall_clock() - started_at if started_at is not None else timedelta(0)
        now = steady_clock()
        dependencies = self._dependencies
        state = initial_state(container, now - age, now, dependencies.agent_started_at, dependencies.jitter(), previous)

        def on_answer(kind: str, answer: ProbeAnswer, changed: bool) -> None:
            self._on_answer(container.name, kind, answer, changed)

        def on_duration(kind: str, answer: ProbeAnswer, seconds: float) -> None:
            dependencies.metrics.record(runtime_container, kind, answer.success, seconds)

        worker = ProbeWorker(dependencies.prober, container, target, state, on_answer, on_duration)
        self._workers[runtime_container.id] = worker
        worker.task.add_done_callback(lambda _: self._on_end())

    def retain(self, running: frozenset[str], terminating: bool) -> None:
        """Stop the workers of all other containers, by ID. Raises the error of a worker that has failed.

        `terminating`: the pod is being deleted, so that only readiness is probed.
        """
        for container_id in self._workers.keys() - running:
            self._workers.pop(container_id).task.cancel()
        for worker in self._workers.values():
            worker.terminating = terminating
            if worker.task.done():
                worker.task.result()

    def close(self) -> None:
        """Stop all workers."""
        self.retain(frozenset(), terminating=True)
