"""The pod conditions that the agent writes. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime

from api.core.pod import FINAL_PHASES, ContainerStatus, Pod
from api.core.resource_requests import sidecars
from api.meta.types import Condition, transition_time
from node_agent.pods.resize import NO_RESIZE, ResizeState
from node_agent.runtime.container import RuntimePod
from node_agent.runtime.startup import has_started_regular_container

DISRUPTION = "DisruptionTarget"
RESIZE_PENDING, RESIZE_IN_PROGRESS = "PodResizePending", "PodResizeInProgress"

KUBELET_CONDITIONS = ("PodReadyToStartContainers", "Initialized", "Ready", "ContainersReady", "PodScheduled")
RESIZE_CONDITIONS = (RESIZE_PENDING, RESIZE_IN_PROGRESS)
"""The conditions that a pod has only during a resize."""

WRITTEN_CONDITIONS = (*KUBELET_CONDITIONS, *RESIZE_CONDITIONS, DISRUPTION)
"""The conditions that this agent may write, including the one that an eviction adds."""


@dataclass(frozen=True, slots=True)
class ConditionInputs:
    """The inputs of the conditions besides the pod. `has_network`: the sandbox runs and has an address."""

    phase: str
    has_network: bool
    init_statuses: tuple[ContainerStatus, ...]
    container_statuses: tuple[ContainerStatus, ...]
    resize: ResizeState = NO_RESIZE


@dataclass(frozen=True, slots=True)
class _ConditionState:
    """Status of one condition, and its reason."""

    is_true: bool
    reason: str = ""
    message: str = ""


def pod_conditions(pod: Pod, runtime_pod: RuntimePod, inputs: ConditionInputs, now: datetime) -> tuple[Condition, ...]:
    """Return the agent's conditions, then those of other clients. Unchanged conditions keep their transition times."""
    containers_ready = _containers_ready(pod, inputs)
    condition_states = (
        _ConditionState(inputs.has_network),
        _initialized(pod, runtime_pod, inputs),
        _ready(pod, containers_ready),
        containers_ready,
        _ConditionState(True),
    )
    by_type = dict(zip(KUBELET_CONDITIONS, condition_states, strict=True)) | dict(_resize_states(inputs.resize))
    old_by_type = {condition.type: condition for condition in pod.status.conditions}
    own_conditions = tuple(
        Condition(
            type=condition_type,
            status=str(condition_state.is_true),
            reason=condition_state.reason,
            message=condition_state.message,
            last_transition_time=transition_time(old_by_type.get(condition_type), str(condition_state.is_true), now),
            observed_generation=pod.metadata.generation,
        )
        for condition_type, condition_state in by_type.items()
    )
    return own_conditions + foreign_conditions(pod.status.conditions)


def foreign_conditions(conditions: tuple[Condition, ...]) -> tuple[Condition, ...]:
    """Return the conditions that a status keeps unchanged: those of other clients, and our own DisruptionTarget.

    `pod_conditions` does not compute DisruptionTarget. An eviction adds it.
    """
    own = {*KUBELET_CONDITIONS, *RESIZE_CONDITIONS}
    return tuple(condition for condition in conditions if condition.type not in own)


def _resize_states(resize: ResizeState) -> Iterator[tuple[str, _ConditionState]]:
    if resize.pending is not None:
        yield RESIZE_PENDING, _ConditionState(True, resize.pending.reason, resize.pending.message)
    if resize.in_progress:
        yield RESIZE_IN_PROGRESS, _ConditionState(True, "Error" if resize.error else "", resize.error)


def _containers_ready(pod: Pod, inputs: ConditionInputs) -> _ConditionState:
    """Return the state of ContainersReady (kubelet: GenerateContainersReadyCondition).

    Sidecars count like regular containers. Other init containers do not count.
    """
    if inputs.phase in FINAL_PHASES:
        return _ConditionState(False, "PodCompleted" if inputs.phase == "Succeeded" else "PodFailed")
    sidecar_names = {sidecar.name for sidecar in sidecars(pod)}
    statuses = (
        *(status for status in inputs.init_statuses if status.name in sidecar_names),
        *inputs.container_statuses,
    )
    not_ready = " ".join(status.name for status in statuses if not status.ready)
    if not_ready:
        return _ConditionState(False, "ContainersNotReady", f"containers with unready status: [{not_ready}]")
    if not inputs.has_network:
        return _ConditionState(False, "ContainersNotReady", "the pod has no network")
    return _ConditionState(True)


def _ready(pod: Pod, containers_ready: _ConditionState) -> _ConditionState:
    """Return the state of Ready (kubelet: GeneratePodReadyCondition).

    It is True if ContainersReady and all readiness gates are True.
    """
    unmet_gates = ", ".join(_unmet_readiness_gates(pod))
    if containers_ready.is_true and unmet_gates:
        return _ConditionState(False, "ReadinessGatesNotReady", unmet_gates)
    return containers_ready


def _unmet_readiness_gates(pod: Pod) -> Iterator[str]:
    status_by_type = {condition.type: condition.status for condition in pod.status.conditions}
    for gate in pod.spec.readiness_gates:
        name = gate.condition_type
        if name not in status_by_type:
            yield f'corresponding condition of pod readiness gate "{name}" does not exist.'
        elif status_by_type[name] != "True":
            yield f'the status of pod readiness gate "{name}" is not "True", but {status_by_type[name]}'


def _initialized(pod: Pod, runtime_pod: RuntimePod, inputs: ConditionInputs) -> _ConditionState:
    """Return the state of Initialized (kubelet: GeneratePodInitializedCondition).

    It is True if all sidecars are started and the other init containers have succeeded. It stays True once a regular
    container was started in the sandbox (kubelet: HasAnyRegularContainerStarted).
    """
    if inputs.phase == "Succeeded":
        return _ConditionState(True, "PodCompleted")
    has_run = inputs.phase in FINAL_PHASES and any(status.container_id for status in inputs.container_statuses)
    sidecar_names = {sidecar.name for sidecar in sidecars(pod)}
    incomplete = " ".join(
        status.name
        for status in inputs.init_statuses
        if not (status.started if status.name in sidecar_names else status.ready)
    )
    if has_run or not incomplete or has_started_regular_container(pod, runtime_pod, runtime_pod.sandbox):
        return _ConditionState(True)
    return _ConditionState(False, "ContainersNotInitialized", f"containers with incomplete status: [{incomplete}]")
