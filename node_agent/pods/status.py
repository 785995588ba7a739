"""Computes the PodStatus from the containers (kubelet: generateAPIPodStatus). Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime

from msgspec.structs import replace

from api.core.pod import (
    FINAL_PHASES,
    Container,
    ContainerState,
    ContainerStateRunning,
    ContainerStateTerminated,
    ContainerStateWaiting,
    ContainerStatus,
    ContainerUser,
    HostIP,
    LinuxContainerUser,
    Pod,
    PodIP,
    PodStatus,
    ResourceRequirements,
    VolumeMountStatus,
)
from api.core.resources import is_regular_init_container
from api.meta import times
from api.meta.types import Condition
from node_agent.pods.conditions import (
    DISRUPTION,
    KUBELET_CONDITIONS,
    WRITTEN_CONDITIONS,
    ConditionInputs,
    pod_conditions,
)
from node_agent.runtime.container import RuntimeContainer, RuntimePod
from node_agent.runtime.restarts import (
    EXIT_CODE_NOT_STARTED,
    backoff_delay,
    exit_code,
    previous_crashes,
    previous_starts,
    restart_policy,
    restart_time,
    should_restart,
)
from node_agent.runtime.startup import NO_LIFECYCLE_STATE, LifecycleState, containers_to_start, init_failed

EVICTED = "Evicted"


def evicted_status(status: PodStatus, message: str, now: datetime) -> PodStatus:
    """Return the status of a pod that is evicted now. It is final."""
    disruption = Condition(
        type=DISRUPTION,
        status="True",
        reason="TerminationByKubelet",
        message=message,
        last_transition_time=times.format_time(now),
    )
    others = tuple(row for row in status.conditions if row.type != DISRUPTION)
    return replace(status, phase="Failed", reason=EVICTED, message=message, conditions=(*others, disruption))


def is_evicted(status: PodStatus) -> bool:
    """Return whether the pod was evicted. Nothing of it may be left on the node, but its object stays."""
    return status.phase == "Failed" and status.reason == EVICTED


KILLED = 137


def lost_container_status(row: ContainerStatus) -> ContainerStatus:
    """Return the status of a container that Docker no longer has, of a terminating pod: it does not run."""
    not_ready = replace(row, ready=False, started=False)
    if row.state.running is None:
        return not_ready
    terminated = _unknown(row, "The container could not be located when the pod was terminated")
    return replace(not_ready, state=ContainerState(terminated=terminated))


def last_termination(row: ContainerStatus | None) -> ContainerStateTerminated | None:
    """Return how a container ended that Docker no longer has. Return None if it never ran."""
    if row is None:
        return None
    if row.state.running is not None:
        return _unknown(row, "The container could not be located. It used to be Running")
    return row.state.terminated or row.last_state.terminated


def _unknown(row: ContainerStatus, message: str) -> ContainerStateTerminated:
    started = row.state.running.started_at if row.state.running is not None else None
    return ContainerStateTerminated(
        exit_code=KILLED,
        reason="ContainerStatusUnknown",
        message=message,
        started_at=started,
        container_id=row.container_id,
    )


def volume_mount_statuses(spec: Container) -> tuple[VolumeMountStatus, ...]:
    """Return the status of a container's volume mounts. Recursive read-only mounts are not supported."""
    return tuple(
        VolumeMountStatus(
            name=mount.name,
            mount_path=mount.mount_path,
            read_only=mount.read_only,
            recursive_read_only="Disabled" if mount.read_only else None,
        )
        for mount in spec.volume_mounts
    )


def container_resources(spec: Container, newest: RuntimeContainer | None) -> ResourceRequirements | None:
    """Return the resources of a container, which are those in its spec. Return None before it exists."""
    if newest is None:
        return None
    return ResourceRequirements(limits=spec.resources.limits, requests=spec.resources.requests)


def container_user(newest: RuntimeContainer | None, known: ContainerStatus | None) -> ContainerUser | None:
    """Return the user of the container when it was first seen running. A later change of user does not count."""
    if newest is None:
        return None
    if known is not None and known.user is not None and known.container_id == f"docker://{newest.id}":
        return known.user
    if newest.user is None:
        return None
    uid, gid, groups = newest.user
    return ContainerUser(linux=LinuxContainerUser(uid=uid, gid=gid, supplemental_groups=groups))


@dataclass(frozen=True, slots=True)
class StatusInputs:
    """What a pod's status depends on besides its containers.

    `address` is the pod's, empty while it has none. `container_failures`: reason and message of why a container cannot
    start, by its name. `sandbox_failure`: the same of the sandbox. `addressless`: the pod is attached to a network that
    provides no addresses. `messages`: termination messages by container ID.
    """

    node_address: str
    address: str
    now: datetime
    started_at: datetime
    container_failures: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    sandbox_failure: tuple[str, str] | None = None
    addressless: bool = False
    terminating: bool = False
    messages: Mapping[str, str] = field(default_factory=dict)
    state: LifecycleState = NO_LIFECYCLE_STATE


def compute_pod_status(pod: Pod, runtime_pod: RuntimePod, inputs: StatusInputs) -> PodStatus:
    """Return the status of a pod.

    Conditions that have not changed keep their transition times. Conditions of other clients stay. While the pod
    terminates, the last statuses of removed containers stay.
    """
    phase = _phase(pod, runtime_pod, inputs)
    last = pod.status
    final_reason = (last.reason, last.message) if last.phase in FINAL_PHASES else ("", "")
    reason, message = inputs.sandbox_failure or final_reason
    rows, init_rows, extra_rows = (
        _rows(pod, specs, known, runtime_pod, inputs, phase)
        for specs, known in (
            (pod.spec.containers, last.container_statuses),
            (pod.spec.init_containers, last.init_container_statuses),
            (pod.spec.ephemeral_containers, last.ephemeral_container_statuses),
        )
    )
    connected = (
        runtime_pod.sandbox is not None and runtime_pod.sandbox.running and (bool(inputs.address) or inputs.addressless)
    )
    return PodStatus(
        observed_generation=pod.metadata.generation,
        phase=phase,
        conditions=pod_conditions(pod, runtime_pod, ConditionInputs(phase, connected, init_rows, rows), inputs.now),
        message=message,
        reason=reason,
        nominated_node_name=pod.status.nominated_node_name,
        host_ip=inputs.node_address,
        host_ips=(HostIP(ip=inputs.node_address),),
        pod_ip=inputs.address,
        pod_ips=(PodIP(ip=inputs.address),) if inputs.address else (),
        start_time=pod.status.start_time or times.format_time(inputs.started_at),
        init_container_statuses=init_rows,
        container_statuses=rows,
        ephemeral_container_statuses=extra_rows,
        qos_class=pod.status.qos_class,
    )


def _rows(
    pod: Pod,
    specs: tuple[Container, ...],
    known: tuple[ContainerStatus, ...],
    runtime_pod: RuntimePod,
    inputs: StatusInputs,
    phase: str,
) -> tuple[ContainerStatus, ...]:
    before = {row.name: row for row in known}
    return tuple(_container(pod, spec, before.get(spec.name), runtime_pod, inputs, phase) for spec in specs)


def rejected_status(pod: Pod, reason: str, message: str) -> PodStatus:
    """Return the status of a pod that the node has rejected. It is final."""
    return failed_status(pod, reason, f"Pod was rejected: {message}")


def failed_status(pod: Pod, reason: str, message: str) -> PodStatus:
    """Return the status of a pod that the node has made to fail."""
    generation = pod.metadata.generation
    return replace(pod.status, phase="Failed", reason=reason, message=message, observed_generation=generation)


def merge_status(ours: PodStatus, current: PodStatus) -> PodStatus:
    """Return `ours`, with the conditions and fields of `current` that other clients own."""
    own = tuple(row for row in ours.conditions if row.type in WRITTEN_CONDITIONS)
    owned = {*KUBELET_CONDITIONS, *(row.type for row in own)}
    conditions = own + tuple(row for row in current.conditions if row.type not in owned)
    return replace(
        ours,
        conditions=conditions,
        nominated_node_name=current.nominated_node_name,
        resize=current.resize,
        resource_claim_statuses=current.resource_claim_statuses,
    )


def _phase(pod: Pod, runtime_pod: RuntimePod, inputs: StatusInputs) -> str:
    if pod.status.phase in FINAL_PHASES:
        return pod.status.phase
    histories = [runtime_pod.containers.get(spec.name, ()) for spec in pod.spec.containers]
    begun = all(_has_begun(pod, spec, runtime_pod, inputs) for spec in pod.spec.containers)
    lasting = "Running" if begun else "Pending"
    if any(one.running for group in runtime_pod.containers.values() for one in group):
        return lasting
    if init_failed(pod, runtime_pod):
        return "Failed"
    tried = [history for history in histories if history and (history[0].exited or history[0].running)]
    ended = [history[0] for history in tried if history[0].exited]
    over = inputs.terminating or all(not should_restart(pod.spec.restart_policy, one, inputs.state) for one in ended)
    if len(ended) == len(histories) and over:
        return "Succeeded" if all(exit_code(one) == 0 for one in ended) else "Failed"
    if inputs.terminating and len(ended) == len(tried):
        return "Failed"
    return lasting


def _container(
    pod: Pod, spec: Container, known: ContainerStatus | None, runtime_pod: RuntimePod, inputs: StatusInputs, phase: str
) -> ContainerStatus:
    history = runtime_pod.containers.get(spec.name, ())
    if inputs.terminating and not history and known is not None:
        return lost_container_status(known)
    newest = history[0] if history else None
    earlier = history[1] if len(history) > 1 else None
    state = _state(pod, spec, runtime_pod, inputs, phase)
    last = last_termination(known) if newest is None else _kept(known, newest)
    if earlier is not None:
        last = _terminated(earlier, inputs)
    if state.waiting is not None and newest is not None and newest.exited:
        last = _terminated(newest, inputs)
    return ContainerStatus(
        name=spec.name,
        state=state,
        last_state=ContainerState(terminated=last),
        ready=_is_ready(pod, spec, newest, inputs),
        restart_count=newest.restart_count if newest is not None else known.restart_count if known is not None else 0,
        image=spec.image,
        image_id=image_id(newest) if newest is not None else "",
        container_id=f"docker://{newest.id}" if newest is not None else "",
        started=newest is not None and inputs.state.is_started(spec, newest),
        allocated_resources=spec.resources.requests if newest is not None else {},
        resources=container_resources(spec, newest),
        volume_mounts=volume_mount_statuses(spec),
        user=container_user(newest, known),
    )


def _kept(known: ContainerStatus | None, newest: RuntimeContainer) -> ContainerStateTerminated | None:
    """Return how the previous container ended, if only the status still has it."""
    if known is None or not newest.restart_count:
        return None
    is_before = known.container_id not in ("", f"docker://{newest.id}")
    return last_termination(known) if is_before else known.last_state.terminated


def image_id(container: RuntimeContainer) -> str:
    """Return the image's name in its registry. Return its ID on this host if it comes from no registry."""
    return f"docker-pullable://{container.digest}" if container.digest else f"docker://{container.image_id}"


def _has_begun(pod: Pod, spec: Container, runtime_pod: RuntimePod, inputs: StatusInputs) -> bool:
    """Return whether a container has run at least once, as far as is known."""
    history = runtime_pod.containers.get(spec.name, ())
    has_run = len(history) > 1 or (bool(history) and _has_run(spec, history[0], inputs))
    return has_run or previous_starts(pod, spec.name) > 0


def _has_run(spec: Container, newest: RuntimeContainer, inputs: StatusInputs) -> bool:
    """Return whether a container has run. It has not while its postStart hook runs."""
    return newest.exited or inputs.state.is_running(spec, newest)


def _is_ready(pod: Pod, spec: Container, newest: RuntimeContainer | None, inputs: StatusInputs) -> bool:
    """Return whether a container is ready: an init container when it has succeeded, others by their probes."""
    if newest is None:
        return False
    if is_regular_init_container(pod, spec):
        return newest.exited and newest.succeeded
    return inputs.state.is_ready(spec, newest)


def _state(pod: Pod, spec: Container, runtime_pod: RuntimePod, inputs: StatusInputs, phase: str) -> ContainerState:
    newest = next(iter(runtime_pod.containers.get(spec.name, ())), None)
    if newest is not None and inputs.state.is_running(spec, newest):
        started = times.format_time(newest.started_at) if newest.started_at else None
        return ContainerState(running=ContainerStateRunning(started_at=started))
    over = inputs.terminating or phase in FINAL_PHASES
    held = newest is not None and not over and should_restart(restart_policy(pod, spec), newest, inputs.state)
    if spec.name in inputs.container_failures and (newest is None or not newest.exited or held):
        reason, message = inputs.container_failures[spec.name]
        return ContainerState(waiting=ContainerStateWaiting(reason=reason, message=message))
    if newest is None or newest.never_started or newest.running:
        return ContainerState(waiting=_before_it_runs(pod, newest, inputs))
    if (
        held
        and spec in pod.spec.containers
        and not containers_to_start(pod, runtime_pod, runtime_pod.sandbox, inputs.state).initialized
    ):
        return ContainerState(waiting=ContainerStateWaiting(reason="PodInitializing"))
    if held and inputs.now < restart_time(newest, inputs.now):
        meta, delay = pod.metadata, backoff_delay(previous_crashes(newest))
        message = (
            f"back-off {int(delay.total_seconds())}s restarting failed container={spec.name} "
            f"pod={meta.name}_{meta.namespace}({meta.uid})"
        )
        return ContainerState(waiting=ContainerStateWaiting(reason="CrashLoopBackOff", message=message))
    return ContainerState(terminated=_terminated(newest, inputs))


def _before_it_runs(pod: Pod, newest: RuntimeContainer | None, inputs: StatusInputs) -> ContainerStateWaiting:
    if newest is not None and newest.id in inputs.state.to_kill:
        return ContainerStateWaiting(reason="PostStartHookError", message="PostStartHook failed")
    return ContainerStateWaiting(reason=waiting_reason(pod))


def waiting_reason(pod: Pod) -> str:
    """Return the reason of a container that was not started and for which no failure is known."""
    return "PodInitializing" if pod.spec.init_containers else "ContainerCreating"


def _terminated(dead: RuntimeContainer, inputs: StatusInputs) -> ContainerStateTerminated:
    code = exit_code(dead)
    if dead.oom_killed:
        reason = "OOMKilled"
    elif dead.started_at is None and dead.error:
        reason = "StartError" if code == EXIT_CODE_NOT_STARTED else "ContainerCannotRun"
    else:
        reason = "Completed" if code == 0 else "Error"
    started = dead.started_at or dead.created_at
    finished = dead.finished_at or dead.created_at
    return ContainerStateTerminated(
        exit_code=code,
        reason=reason,
        message=inputs.messages.get(dead.id) or dead.error,
        started_at=times.format_time(started) if started else None,
        finished_at=times.format_time(finished) if finished else None,
        container_id=f"docker://{dead.id}",
    )
