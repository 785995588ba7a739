"""The pod conditions that the agent writes. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime

from api.core.pod import FINAL_PHASES, ContainerStatus, Pod
from api.core.resources import sidecars
from api.meta import times
from api.meta.types import Condition
from node_agent.runtime.container import RuntimePod
from node_agent.runtime.startup import is_initialized

DISRUPTION = "DisruptionTarget"

KUBELET_CONDITIONS = ("PodReadyToStartContainers", "Initialized", "Ready", "ContainersReady", "PodScheduled")
WRITTEN_CONDITIONS = (*KUBELET_CONDITIONS, DISRUPTION)
"""Also what only the end of a pod brings."""


@dataclass(frozen=True, slots=True)
class ConditionInputs:
    """How far a pod is: its phase, whether its sandbox runs and has an address, and the rows of its containers."""

    phase: str
    connected: bool
    init_rows: tuple[ContainerStatus, ...]
    rows: tuple[ContainerStatus, ...]


@dataclass(frozen=True, slots=True)
class _State:
    """One condition, and why it does not hold."""

    holds: bool
    reason: str = ""
    message: str = ""


def pod_conditions(pod: Pod, seen: RuntimePod, standing: ConditionInputs, now: datetime) -> tuple[Condition, ...]:
    """Ours, then those of others as they are; the time of a condition that has not changed is kept."""
    containers = _containers(pod, standing)
    states = (
        _State(standing.connected),
        _initialized(pod, seen, standing),
        _gated(pod, containers),
        containers,
        _State(True),
    )
    wishes = dict(zip(KUBELET_CONDITIONS, states, strict=True))
    old = {condition.type: condition for condition in pod.status.conditions}
    ours = tuple(
        Condition(
            type=kind,
            status=str(state.holds),
            reason=state.reason,
            message=state.message,
            last_transition_time=_since(old.get(kind), str(state.holds), now),
            observed_generation=pod.metadata.generation,
        )
        for kind, state in wishes.items()
    )
    return ours + foreign_conditions(pod.status.conditions)


def foreign_conditions(rows: tuple[Condition, ...]) -> tuple[Condition, ...]:
    """What is not ours to say."""
    return tuple(row for row in rows if row.type not in KUBELET_CONDITIONS)


def _containers(pod: Pod, standing: ConditionInputs) -> _State:
    if standing.phase in FINAL_PHASES:
        return _State(False, "PodCompleted" if standing.phase == "Succeeded" else "PodFailed")
    beside = {wish.name for wish in sidecars(pod)}
    rows = (*(row for row in standing.init_rows if row.name in beside), *standing.rows)
    unready = " ".join(row.name for row in rows if not row.ready)
    if unready:
        return _State(False, "ContainersNotReady", f"containers with unready status: [{unready}]")
    if not standing.connected:
        return _State(False, "ContainersNotReady", "the pod has no network")
    return _State(True)


def _gated(pod: Pod, containers: _State) -> _State:
    """Ready: the containers are, and everything else that the pod waits for is True."""
    missing = ", ".join(_closed_gates(pod))
    return containers if not containers.holds or not missing else _State(False, "ReadinessGatesNotReady", missing)


def _closed_gates(pod: Pod) -> Iterator[str]:
    known = {row.type: row.status for row in pod.status.conditions}
    for gate in pod.spec.readiness_gates:
        name = gate.condition_type
        if name not in known:
            yield f'corresponding condition of pod readiness gate "{name}" does not exist.'
        elif known[name] != "True":
            yield f'the status of pod readiness gate "{name}" is not "True", but {known[name]}'


def _initialized(pod: Pod, seen: RuntimePod, standing: ConditionInputs) -> _State:
    if standing.phase == "Succeeded":
        return _State(True, "PodCompleted")
    began = standing.phase in FINAL_PHASES and any(row.container_id for row in standing.rows)
    incomplete = " ".join(row.name for row in standing.init_rows if not row.ready)
    if began or not incomplete or is_initialized(pod, seen, seen.sandbox):
        return _State(True)
    return _State(False, "ContainersNotInitialized", f"containers with incomplete status: [{incomplete}]")


def _since(old: Condition | None, status: str, now: datetime) -> str:
    if old is not None and old.status == status and old.last_transition_time:
        return old.last_transition_time
    return times.format_time(now)
