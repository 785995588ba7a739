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
from api.core.resource_requests import is_regular_init_container
from api.meta import times
from api.meta.types import Condition
from node_agent.pods.conditions import (
    DISRUPTION,
    KUBELET_CONDITIONS,
    RESIZE_CONDITIONS,
    WRITTEN_CONDITIONS,
    ConditionInputs,
    pod_conditions,
)
from node_agent.pods.resize import NO_RESIZE, ResizeState
from node_agent.runtime.container import RuntimeContainer, RuntimePod
from node_agent.runtime.lifecycle_state import NO_LIFECYCLE_STATE, LifecycleState
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
from node_agent.runtime.spec import docker_resources
from node_agent.runtime.startup import containers_to_run, init_failed

EVICTED = "Evicted"
EXIT_CODE_KILLED = 137
"""Exit code in the status of a container that Docker no longer has (128 + SIGKILL)."""


def evicted_status(status: PodStatus, message: str, now: datetime) -> PodStatus:
    """Return the status of a pod that is evicted now. It is final."""
    disruption = Condition(
        type=DISRUPTION,
        status="True",
        reason="TerminationByKubelet",
        message=message,
        last_transition_time=times.format_time(now),
    )
    other_conditions = tuple(condition for condition in status.conditions if condition.type != DISRUPTION)
    return replace(status, phase="Failed", reason=EVICTED, message=message, conditions=(*other_conditions, disruption))


def is_evicted(status: PodStatus) -> bool:
    """Return whether the pod was evicted. Nothing of it may be left on the node, but its object stays."""
    return status.phase == "Failed" and status.reason == EVICTED


def lost_container_status(status: ContainerStatus) -> ContainerStatus:
    """Return the status of a terminating pod's container that Docker no longer has: the container does not run."""
    not_ready = replace(status, ready=False, started=False)
    if status.state.running is None:
        return not_ready
    terminated = _unknown_termination(status, "The container could not be located when the pod was terminated")
    return replace(not_ready, state=ContainerState(terminated=terminated))


def last_termination(status: ContainerStatus | None) -> ContainerStateTerminated | None:
    """Return the end of a container that Docker no longer has. Return None if it never ran."""
    if status is None:
        return None
    if status.state.running is not None:
        return _unknown_termination(status, "The container could not be located. It used to be Running")
    return status.state.terminated or status.last_state.terminated


def _unknown_termination(status: ContainerStatus, message: str) -> ContainerStateTerminated:
    started_at = status.state.running.started_at if status.state.running is not None else None
    return ContainerStateTerminated(
        exit_code=EXIT_CODE_KILLED,
        reason="ContainerStatusUnknown",
        message=message,
        started_at=started_at,
        container_id=status.container_id,
    )


def volume_mount_statuses(container: Container) -> tuple[VolumeMountStatus, ...]:
    """Return the status of a container's volume mounts. Recursive read-only mounts are not supported."""
    return tuple(
        VolumeMountStatus(
            name=mount.name,
            mount_path=mount.mount_path,
            read_only=mount.read_only,
            recursive_read_only="Disabled" if mount.read_only else None,
        )
        for mount in container.volume_mounts
    )


def container_resources(
    container: Container, newest: RuntimeContainer | None, previous: ContainerStatus | None, cpu_cfs_quota: bool
) -> ResourceRequirements | None:
    """Return the resources that a container has. Return None before it exists.

    They are those of its last status until a resize has changed the container.
    """
    if newest is None:
        return None
    is_resized = newest.resources in {None, docker_resources(container, cpu_cfs_quota)} or not newest.running
    if not is_resized and previous is not None and previous.resources is not None:
        return previous.resources
    return ResourceRequirements(limits=container.resources.limits, requests=container.resources.requests)


def container_user(newest: RuntimeContainer | None, previous: ContainerStatus | None) -> ContainerUser | None:
    """Return the user with which the container was first observed running. Later changes of the user are ignored."""
    if newest is None:
        return None
    if previous is not None and previous.user is not None and previous.container_id == f"docker://{newest.id}":
        return previous.user
    if newest.user is None:
        return None
    uid, gid, groups = newest.user
    return ContainerUser(linux=LinuxContainerUser(uid=uid, gid=gid, supplemental_groups=groups))


@dataclass(frozen=True, slots=True)
class StatusInputs:
    """The inputs of a pod's status besides the pod and its containers.

    `address`: the pod's address, empty while it has none. `container_failures`: reason and message of the failed start
    of a container, by its name. `sandbox_failure`: reason and message of a failure of the sandbox or its network.
    `network_has_no_addresses`: the pod is attached to a network that provides no addresses. `messages`: termination
    messages by container ID. `cpu_cfs_quota`: whether CPU limits are enforced.
    """

    node_address: str
    address: str
    now: datetime
    started_at: datetime
    container_failures: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    sandbox_failure: tuple[str, str] | None = None
    network_has_no_addresses: bool = False
    terminating: bool = False
    messages: Mapping[str, str] = field(default_factory=dict)
    state: LifecycleState = NO_LIFECYCLE_STATE
    resize: ResizeState = NO_RESIZE
    cpu_cfs_quota: bool = True


def compute_pod_status(pod: Pod, runtime_pod: RuntimePod, inputs: StatusInputs) -> PodStatus:
    """Return the status of a pod.

    Conditions that have not changed keep their transition times. Conditions of other clients stay. While the pod
    terminates, the last statuses of removed containers stay.
    """
    phase = _phase(pod, runtime_pod, inputs)
    previous = pod.status
    final_reason = (previous.reason, previous.message) if previous.phase in FINAL_PHASES else ("", "")
    reason, message = inputs.sandbox_failure or final_reason

    def statuses(
        specs: tuple[Container, ...], previous_statuses: tuple[ContainerStatus, ...]
    ) -> tuple[ContainerStatus, ...]:
        by_name = {status.name: status for status in previous_statuses}
        return tuple(_container_status(pod, spec, by_name.get(spec.name), runtime_pod, inputs, phase) for spec in specs)

    container_statuses = statuses(pod.spec.containers, previous.container_statuses)
    init_statuses = statuses(pod.spec.init_containers, previous.init_container_statuses)
    ephemeral_statuses = statuses(pod.spec.ephemeral_containers, previous.ephemeral_container_statuses)
    has_network = (
        runtime_pod.sandbox is not None
        and runtime_pod.sandbox.running
        and (bool(inputs.address) or inputs.network_has_no_addresses)
    )
    return PodStatus(
        observed_generation=pod.metadata.generation,
        phase=phase,
        conditions=pod_conditions(
            pod,
            runtime_pod,
            ConditionInputs(phase, has_network, init_statuses, container_statuses, inputs.resize),
            inputs.now,
        ),
        message=message,
        reason=reason,
        nominated_node_name=pod.status.nominated_node_name,
        host_ip=inputs.node_address,
        host_ips=(HostIP(ip=inputs.node_address),),
        pod_ip=inputs.address,
        pod_ips=(PodIP(ip=inputs.address),) if inputs.address else (),
        start_time=pod.status.start_time or times.format_time(inputs.started_at),
        init_container_statuses=init_statuses,
        container_statuses=container_statuses,
        ephemeral_container_statuses=ephemeral_statuses,
        qos_class=pod.status.qos_class,
    )


def rejected_status(pod: Pod, reason: str, message: str) -> PodStatus:
    """Return the status of a pod that the node has rejected. It is final."""
    return failed_status(pod, reason, f"Pod was rejected: {message}")


def failed_status(pod: Pod, reason: str, message: str) -> PodStatus:
    """Return the status of a pod that the node has made to fail."""
    generation = pod.metadata.generation
    return replace(pod.status, phase="Failed", reason=reason, message=message, observed_generation=generation)


def merge_status(status: PodStatus, current: PodStatus) -> PodStatus:
    """Return `status`, with the conditions and fields of `current` that other clients own."""
    own_conditions = tuple(condition for condition in status.conditions if condition.type in WRITTEN_CONDITIONS)
    own_types = {*KUBELET_CONDITIONS, *RESIZE_CONDITIONS, *(condition.type for condition in own_conditions)}
    conditions = own_conditions + tuple(
        condition for condition in current.conditions if condition.type not in own_types
    )
    return replace(
        status,
        conditions=conditions,
        nominated_node_name=current.nominated_node_name,
        resize=current.resize,
        resource_claim_statuses=current.resource_claim_statuses,
    )


def _phase(pod: Pod, runtime_pod: RuntimePod, inputs: StatusInputs) -> str:
    if pod.status.phase in FINAL_PHASES:
        return pod.status.phase
    histories = [runtime_pod.containers.get(spec.name, ()) for spec in pod.spec.containers]
    all_have_run = all(_has_ever_run(pod, spec, runtime_pod, inputs) for spec in pod.spec.containers)
    unfinished_phase = "Running" if all_have_run else "Pending"
    if any(container.running for group in runtime_pod.containers.values() for container in group):
        return unfinished_phase
    if init_failed(pod, runtime_pod):
        return "Failed"
    started_histories = [history for history in histories if history and (history[0].exited or history[0].running)]
    exited = [history[0] for history in started_histories if history[0].exited]
    restarting = any(should_restart(pod.spec.restart_policy, container, inputs.state) for container in exited)
    if len(exited) == len(histories) and (inputs.terminating or not restarting):
        return "Succeeded" if all(exit_code(container) == 0 for container in exited) else "Failed"
    if inputs.terminating and len(exited) == len(started_histories):
        return "Failed"
    return unfinished_phase


def _container_status(
    pod: Pod,
    spec: Container,
    previous: ContainerStatus | None,
    runtime_pod: RuntimePod,
    inputs: StatusInputs,
    phase: str,
) -> ContainerStatus:
    history = runtime_pod.containers.get(spec.name, ())
    if inputs.terminating and not history and previous is not None:
        return lost_container_status(previous)
    newest = history[0] if history else None
    older = history[1] if len(history) > 1 else None
    state = _container_state(pod, spec, runtime_pod, inputs, phase)
    last_termination_state = last_termination(previous) if newest is None else _previous_termination(previous, newest)
    if older is not None:
        last_termination_state = _termination(older, inputs)
    if state.waiting is not None and newest is not None and newest.exited:
        last_termination_state = _termination(newest, inputs)
    if newest is not None:
        restart_count = newest.restart_count
    else:
        restart_count = previous.restart_count if previous is not None else 0
    return ContainerStatus(
        name=spec.name,
        state=state,
        last_state=ContainerState(terminated=last_termination_state),
        ready=_is_ready(pod, spec, newest, inputs),
        restart_count=restart_count,
        image=spec.image,
        image_id=image_id(newest) if newest is not None else "",
        container_id=f"docker://{newest.id}" if newest is not None else "",
        started=newest is not None and inputs.state.is_started(spec, newest),
        allocated_resources=spec.resources.requests if newest is not None else {},
        resources=container_resources(spec, newest, previous, inputs.cpu_cfs_quota),
        volume_mounts=volume_mount_statuses(spec),
        user=container_user(newest, previous),
    )


def _previous_termination(
    previous: ContainerStatus | None, newest: RuntimeContainer
) -> ContainerStateTerminated | None:
    """Return the end of the previous container if it is recorded only in the status."""
    if previous is None or not newest.restart_count:
        return None
    is_older = previous.container_id not in ("", f"docker://{newest.id}")
    return last_termination(previous) if is_older else previous.last_state.terminated


def image_id(container: RuntimeContainer) -> str:
    """Return the image's name in its registry. Return its ID on this host if it comes from no registry."""
    return f"docker-pullable://{container.digest}" if container.digest else f"docker://{container.image_id}"


def _has_ever_run(pod: Pod, spec: Container, runtime_pod: RuntimePod, inputs: StatusInputs) -> bool:
    """Return whether a container has run at least once, according to Docker or to the last status."""
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


def _container_state(
    pod: Pod, spec: Container, runtime_pod: RuntimePod, inputs: StatusInputs, phase: str
) -> ContainerState:
    newest = next(iter(runtime_pod.containers.get(spec.name, ())), None)
    if newest is not None and inputs.state.is_running(spec, newest):
        started_at = times.format_time(newest.started_at) if newest.started_at else None
        return ContainerState(running=ContainerStateRunning(started_at=started_at))
    is_ending = inputs.terminating or phase in FINAL_PHASES
    will_restart = (
        newest is not None and not is_ending and should_restart(restart_policy(pod, spec), newest, inputs.state)
    )
    if spec.name in inputs.container_failures and (newest is None or not newest.exited or will_restart):
        reason, message = inputs.container_failures[spec.name]
        return ContainerState(waiting=ContainerStateWaiting(reason=reason, message=message))
    if newest is None or newest.never_started or newest.running:
        return ContainerState(waiting=_waiting_state(pod, newest, inputs))
    if (
        will_restart
        and spec in pod.spec.containers
        and not containers_to_run(pod, runtime_pod, runtime_pod.sandbox, inputs.state).initialized
    ):
        return ContainerState(waiting=ContainerStateWaiting(reason="PodInitializing"))
    if will_restart and inputs.now < restart_time(newest, inputs.now):
        meta, delay = pod.metadata, backoff_delay(previous_crashes(newest))
        message = (
            f"back-off {int(delay.total_seconds())}s restarting failed container={spec.name} "
            f"pod={meta.name}_{meta.namespace}({meta.uid})"
        )
        return ContainerState(waiting=ContainerStateWaiting(reason="CrashLoopBackOff", message=message))
    return ContainerState(terminated=_termination(newest, inputs))


def _waiting_state(pod: Pod, newest: RuntimeContainer | None, inputs: StatusInputs) -> ContainerStateWaiting:
    if newest is not None and newest.id in inputs.state.to_kill:
        return ContainerStateWaiting(reason="PostStartHookError", message="PostStartHook failed")
    return ContainerStateWaiting(reason=waiting_reason(pod))


def waiting_reason(pod: Pod) -> str:
    """Return the reason of the waiting state of a container that was not started and has no failure."""
    return "PodInitializing" if pod.spec.init_containers else "ContainerCreating"


def _termination(exited: RuntimeContainer, inputs: StatusInputs) -> ContainerStateTerminated:
    code = exit_code(exited)
    if exited.oom_killed:
        reason = "OOMKilled"
    elif exited.started_at is None and exited.error:
        reason = "StartError" if code == EXIT_CODE_NOT_STARTED else "ContainerCannotRun"
    else:
        reason = "Completed" if code == 0 else "Error"
    started_at = exited.started_at or exited.created_at
    finished_at = exited.finished_at or exited.created_at
    return ContainerStateTerminated(
        exit_code=code,
        reason=reason,
        message=inputs.messages.get(exited.id) or exited.error,
        started_at=times.format_time(started_at) if started_at else None,
        finished_at=times.format_time(finished_at) if finished_at else None,
        container_id=f"docker://{exited.id}",
    )
