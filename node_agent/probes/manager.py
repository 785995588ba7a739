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
    ProbeOutcome,
    ProbeResults,
    ProbeState,
    container_probes,
    due_probes,
    initial_state,
    record_outcome,
)
from node_agent.runtime.container import RuntimeContainer
from node_agent.runtime.lifecycle_state import NO_RESULTS
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

    `on_probed` is called after each probe with the probe type, the outcome, the seconds that the probe took, and
    whether a result changed.
    """

    def __init__(
        self,
        prober: Prober,
        container: Container,
        target: ProbeTarget,
        state: ProbeState,
        on_probed: Callable[[str, ProbeOutcome, float, bool], None],
    ) -> None:
        self.state = state
        self.terminating = False
        self._prober = prober
        self._container = container
        self._target = target
        self._on_probed = on_probed
        self.task = asyncio.create_task(self._run())

    async def _run(self) -> None:
        in_flight: dict[asyncio.Task[tuple[ProbeOutcome, float]], str] = {}
        probes = container_probes(self._container)
        try:
            while True:
                self.state, due = due_probes(self.state, steady_clock(), self.terminating)
                for probe_type in due:
                    in_flight[asyncio.create_task(self._probe(probes[probe_type]))] = probe_type
                wake_at = self.state.wake_at(self.terminating)
                wait = None if wake_at is None else max((wake_at - steady_clock()).total_seconds(), 0.0)
                if in_flight:
                    done, _ = await asyncio.wait(in_flight, timeout=wait, return_when=asyncio.FIRST_COMPLETED)
                    for task in done:
                        self._record(in_flight.pop(task), *task.result())
                elif wait is None:
                    return
                else:
                    await asyncio.sleep(wait)
        finally:
            for task in in_flight:
                task.cancel()

    async def _probe(self, probe: Probe) -> tuple[ProbeOutcome, float]:
        """Execute a probe. Return its outcome and the seconds that it took."""
        started_at = steady_clock()
        outcome = await self._prober.probe(probe, self._target)
        return outcome, (steady_clock() - started_at).total_seconds()

    def _record(self, probe_type: str, outcome: ProbeOutcome, seconds: float) -> None:
        before = self.state.results
        self.state, after = record_outcome(self.state, probe_type, outcome.success)
        self._on_probed(probe_type, outcome, seconds, before != after)


class ProbeManager:
    """The probes of one pod's containers.

    `on_probed` is called after each probe with the container's name, the probe type, the outcome, and whether a result
    changed.
    `on_end` is called when a worker has ended, normally or with an error.
    """

    def __init__(
        self,
        dependencies: ProbeDependencies,
        on_probed: Callable[[str, str, ProbeOutcome, bool], None],
        on_end: Callable[[], None],
    ) -> None:
        self._dependencies = dependencies
        self._on_probed = on_probed
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
        previous: ProbeResults = NO_RESULTS,
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

        def on_probed(probe_type: str, outcome: ProbeOutcome, seconds: float, changed: bool) -> None:
            dependencies.metrics.record(runtime_container, probe_type, outcome.success, seconds)
            self._on_probed(container.name, probe_type, outcome, changed)

        worker = ProbeWorker(dependencies.prober, container, target, state, on_probed)
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
