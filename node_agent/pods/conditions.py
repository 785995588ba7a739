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
"""The conditions that this agent may write, including the one that an eviction adds."""


@dataclass(frozen=True, slots=True)
class ConditionInputs:
    """What the conditions depend on. `connected`: the sandbox runs and has an address."""

    phase: str
    connected: bool
    init_rows: tuple[ContainerStatus, ...]
    rows: tuple[ContainerStatus, ...]


@dataclass(frozen=True, slots=True)
class _State:
    """Status of one condition, and the reason if it is False."""

    holds: bool
    reason: str = ""
    message: str = ""


def pod_conditions(pod: Pod, runtime_pod: RuntimePod, inputs: ConditionInputs, now: datetime) -> tuple[Condition, ...]:
    """Return our conditions, then those of other clients. Unchanged conditions keep their transition times."""
    containers = _containers(pod, inputs)
    states = (
        _State(inputs.connected),
        _initialized(pod, runtime_pod, inputs),
        _gated(pod, containers),
        containers,
        _State(True),
    )
    by_type = dict(zip(KUBELET_CONDITIONS, states, strict=True))
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
        for kind, state in by_type.items()
    )
    return ours + foreign_conditions(pod.status.conditions)


def foreign_conditions(rows: tuple[Condition, ...]) -> tuple[Condition, ...]:
    """Return the conditions that other clients own."""
    return tuple(row for row in rows if row.type not in KUBELET_CONDITIONS)


def _containers(pod: Pod, inputs: ConditionInputs) -> _State:
    if inputs.phase in FINAL_PHASES:
        return _State(False, "PodCompleted" if inputs.phase == "Succeeded" else "PodFailed")
    sidecar_names = {sidecar.name for sidecar in sidecars(pod)}
    rows = (*(row for row in inputs.init_rows if row.name in sidecar_names), *inputs.rows)
    unready = " ".join(row.name for row in rows if not row.ready)
    if unready:
        return _State(False, "ContainersNotReady", f"containers with unready status: [{unready}]")
    if not inputs.connected:
        return _State(False, "ContainersNotReady", "the pod has no network")
    return _State(True)


def _gated(pod: Pod, containers: _State) -> _State:
    """Return the state of Ready: the containers are ready and all readiness gates are True."""
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


def _initialized(pod: Pod, runtime_pod: RuntimePod, inputs: ConditionInputs) -> _State:
    if inputs.phase == "Succeeded":
        return _State(True, "PodCompleted")
    began = inputs.phase in FINAL_PHASES and any(row.container_id for row in inputs.rows)
    incomplete = " ".join(row.name for row in inputs.init_rows if not row.ready)
    if began or not incomplete or is_initialized(pod, runtime_pod, runtime_pod.sandbox):
        return _State(True)
    return _State(False, "ContainersNotInitialized", f"containers with incomplete status: [{incomplete}]")


def _since(old: Condition | None, status: str, now: datetime) -> str:
    if old is not None and old.status == status and old.last_transition_time:
        return old.last_transition_time
    return times.format_time(now)
