"""Computes the PodStatus from the containers (kubelet: generateAPIPodStatus). Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime

from msgspec.structs import replace

from api.core.pod import (
    FINAL_PHASES,
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
from api.core.pod import Container as Wish
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
    """The status of a pod from the moment at which it has to go; it never changes back."""
    mark = Condition(
        type=DISRUPTION,
        status="True",
        reason="TerminationByKubelet",
        message=message,
        last_transition_time=times.format_time(now),
    )
    others = tuple(row for row in status.conditions if row.type != DISRUPTION)
    return replace(status, phase="Failed", reason=EVICTED, message=message, conditions=(*others, mark))


def is_evicted(status: PodStatus) -> bool:
    """Whether the pod had to go: nothing of it may be left on the node, while its object stays."""
    return status.phase == "Failed" and status.reason == EVICTED


KILLED = 137


def lost_container_status(row: ContainerStatus) -> ContainerStatus:
    """The row of a container of a pod that goes: it does not run, whatever became of it."""
    quiet = replace(row, ready=False, started=False)
    if row.state.running is None:
        return quiet
    gone = _unknown(row, "The container could not be located when the pod was terminated")
    return replace(quiet, state=ContainerState(terminated=gone))


def last_termination(row: ContainerStatus | None) -> ContainerStateTerminated | None:
    """How a container ended of which nothing is left; nothing if it never ran."""
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


def volume_mount_statuses(wish: Wish) -> tuple[VolumeMountStatus, ...]:
    """What the container asks for; what is mounted below a volume is never made read-only with it."""
    return tuple(
        VolumeMountStatus(
            name=mount.name,
            mount_path=mount.mount_path,
            read_only=mount.read_only,
            recursive_read_only="Disabled" if mount.read_only else None,
        )
        for mount in wish.volume_mounts
    )


def container_resources(wish: Wish, newest: RuntimeContainer | None) -> ResourceRequirements | None:
    """What the container has, which is what it asked for; nothing before there is one."""
    if newest is None:
        return None
    return ResourceRequirements(limits=wish.resources.limits, requests=wish.resources.requests)


def container_user(newest: RuntimeContainer | None, known: ContainerStatus | None) -> ContainerUser | None:
    """Who the container was when it was first seen running: what has become of it since does not count."""
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
    """What the containers alone do not tell.

    `address` is the pod's, empty while it has none; `troubles` says by container why it cannot start (reason, message);
    `trouble` is the sandbox's own. `addressless`: it is attached to a network that gives no addresses. `messages` are
    the last words of ended containers, by id.
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


def compute_pod_status(pod: Pod, seen: RuntimePod, facts: StatusInputs) -> PodStatus:
    """The whole status.

    Transition times of conditions that have not changed are kept, so are conditions of others and, while the pod goes,
    the last words about containers that are already removed.
    """
    phase = _phase(pod, seen, facts)
    told = pod.status
    verdict = (told.reason, told.message) if told.phase in FINAL_PHASES else ("", "")
    reason, message = facts.sandbox_failure or verdict
    rows, init_rows, extra_rows = (
        _rows(pod, wishes, known, seen, facts, phase)
        for wishes, known in (
            (pod.spec.containers, told.container_statuses),
            (pod.spec.init_containers, told.init_container_statuses),
            (pod.spec.ephemeral_containers, told.ephemeral_container_statuses),
        )
    )
    connected = seen.sandbox is not None and seen.sandbox.running and (bool(facts.address) or facts.addressless)
    return PodStatus(
        observed_generation=pod.metadata.generation,
        phase=phase,
        conditions=pod_conditions(pod, seen, ConditionInputs(phase, connected, init_rows, rows), facts.now),
        message=message,
        reason=reason,
        nominated_node_name=pod.status.nominated_node_name,
        host_ip=facts.node_address,
        host_ips=(HostIP(ip=facts.node_address),),
        pod_ip=facts.address,
        pod_ips=(PodIP(ip=facts.address),) if facts.address else (),
        start_time=pod.status.start_time or times.format_time(facts.started_at),
        init_container_statuses=init_rows,
        container_statuses=rows,
        ephemeral_container_statuses=extra_rows,
        qos_class=pod.status.qos_class,
    )


def _rows(
    pod: Pod,
    wishes: tuple[Wish, ...],
    known: tuple[ContainerStatus, ...],
    seen: RuntimePod,
    facts: StatusInputs,
    phase: str,
) -> tuple[ContainerStatus, ...]:
    before = {row.name: row for row in known}
    return tuple(_container(pod, wish, before.get(wish.name), seen, facts, phase) for wish in wishes)


def rejected_status(pod: Pod, reason: str, message: str) -> PodStatus:
    """The status of a pod that the node does not take; it is never tried again."""
    return failed_status(pod, reason, f"Pod was rejected: {message}")


def failed_status(pod: Pod, reason: str, message: str) -> PodStatus:
    """The status of a pod that the node has given up."""
    generation = pod.metadata.generation
    return replace(pod.status, phase="Failed", reason=reason, message=message, observed_generation=generation)


def merge_status(ours: PodStatus, current: PodStatus) -> PodStatus:
    """What to write over `current`: ours, but for what is others' to say."""
    own = tuple(row for row in ours.conditions if row.type in WRITTEN_CONDITIONS)
    told = {*KUBELET_CONDITIONS, *(row.type for row in own)}
    conditions = own + tuple(row for row in current.conditions if row.type not in told)
    return replace(
        ours,
        conditions=conditions,
        nominated_node_name=current.nominated_node_name,
        resize=current.resize,
        resource_claim_statuses=current.resource_claim_statuses,
    )


def _phase(pod: Pod, seen: RuntimePod, facts: StatusInputs) -> str:
    if pod.status.phase in FINAL_PHASES:
        return pod.status.phase
    histories = [seen.containers.get(wish.name, ()) for wish in pod.spec.containers]
    begun = all(_has_begun(pod, wish, seen, facts) for wish in pod.spec.containers)
    lasting = "Running" if begun else "Pending"
    if any(one.running for group in seen.containers.values() for one in group):
        return lasting
    if init_failed(pod, seen):
        return "Failed"
    tried = [history for history in histories if history and (history[0].exited or history[0].running)]
    ended = [history[0] for history in tried if history[0].exited]
    over = facts.terminating or all(not should_restart(pod.spec.restart_policy, one, facts.state) for one in ended)
    if len(ended) == len(histories) and over:
        return "Succeeded" if all(exit_code(one) == 0 for one in ended) else "Failed"
    if facts.terminating and len(ended) == len(tried):
        return "Failed"
    return lasting


def _container(
    pod: Pod, wish: Wish, known: ContainerStatus | None, seen: RuntimePod, facts: StatusInputs, phase: str
) -> ContainerStatus:
    history = seen.containers.get(wish.name, ())
    if facts.terminating and not history and known is not None:
        return lost_container_status(known)
    newest = history[0] if history else None
    earlier = history[1] if len(history) > 1 else None
    state = _state(pod, wish, seen, facts, phase)
    last = last_termination(known) if newest is None else _kept(known, newest)
    if earlier is not None:
        last = _terminated(earlier, facts)
    if state.waiting is not None and newest is not None and newest.exited:
        last = _terminated(newest, facts)
    return ContainerStatus(
        name=wish.name,
        state=state,
        last_state=ContainerState(terminated=last),
        ready=_is_ready(pod, wish, newest, facts),
        restart_count=newest.restart_count if newest is not None else known.restart_count if known is not None else 0,
        image=wish.image,
        image_id=image_id(newest) if newest is not None else "",
        container_id=f"docker://{newest.id}" if newest is not None else "",
        started=newest is not None and facts.state.is_started(wish, newest),
        allocated_resources=wish.resources.requests if newest is not None else {},
        resources=container_resources(wish, newest),
        volume_mounts=volume_mount_statuses(wish),
        user=container_user(newest, known),
    )


def _kept(known: ContainerStatus | None, newest: RuntimeContainer) -> ContainerStateTerminated | None:
    """How the container before this one ended, when only the status still tells of it."""
    if known is None or not newest.restart_count:
        return None
    is_before = known.container_id not in ("", f"docker://{newest.id}")
    return last_termination(known) if is_before else known.last_state.terminated


def image_id(container: RuntimeContainer) -> str:
    """The image as others can pull it, where it came from a registry; its id on this host otherwise."""
    return f"docker-pullable://{container.digest}" if container.digest else f"docker://{container.image_id}"


def _has_begun(pod: Pod, wish: Wish, seen: RuntimePod, facts: StatusInputs) -> bool:
    """Whether a container has got as far as running at least once, as far as is known."""
    history = seen.containers.get(wish.name, ())
    has_run = len(history) > 1 or (bool(history) and _has_run(wish, history[0], facts))
    return has_run or previous_starts(pod, wish.name) > 0


def _has_run(wish: Wish, newest: RuntimeContainer, facts: StatusInputs) -> bool:
    """Whether it has got as far as running; while its postStart hook runs, it has not."""
    return newest.exited or facts.state.is_running(wish, newest)


def _is_ready(pod: Pod, wish: Wish, newest: RuntimeContainer | None, facts: StatusInputs) -> bool:
    """An init container is ready when it has done its work, all others while they run and their probes say so."""
    if newest is None:
        return False
    if is_regular_init_container(pod, wish):
        return newest.exited and newest.succeeded
    return facts.state.is_ready(wish, newest)


def _state(pod: Pod, wish: Wish, seen: RuntimePod, facts: StatusInputs, phase: str) -> ContainerState:
    newest = next(iter(seen.containers.get(wish.name, ())), None)
    if newest is not None and facts.state.is_running(wish, newest):
        started = times.format_time(newest.started_at) if newest.started_at else None
        return ContainerState(running=ContainerStateRunning(started_at=started))
    over = facts.terminating or phase in FINAL_PHASES
    held = newest is not None and not over and should_restart(restart_policy(pod, wish), newest, facts.state)
    if wish.name in facts.container_failures and (newest is None or not newest.exited or held):
        reason, message = facts.container_failures[wish.name]
        return ContainerState(waiting=ContainerStateWaiting(reason=reason, message=message))
    if newest is None or newest.never_started or newest.running:
        return ContainerState(waiting=_before_it_runs(pod, newest, facts))
    if (
        held
        and wish in pod.spec.containers
        and not containers_to_start(pod, seen, seen.sandbox, facts.state).initialized
    ):
        return ContainerState(waiting=ContainerStateWaiting(reason="PodInitializing"))
    if held and facts.now < restart_time(newest, facts.now):
        meta, delay = pod.metadata, backoff_delay(previous_crashes(newest))
        message = (
            f"back-off {int(delay.total_seconds())}s restarting failed container={wish.name} "
            f"pod={meta.name}_{meta.namespace}({meta.uid})"
        )
        return ContainerState(waiting=ContainerStateWaiting(reason="CrashLoopBackOff", message=message))
    return ContainerState(terminated=_terminated(newest, facts))


def _before_it_runs(pod: Pod, newest: RuntimeContainer | None, facts: StatusInputs) -> ContainerStateWaiting:
    if newest is not None and newest.id in facts.state.to_kill:
        return ContainerStateWaiting(reason="PostStartHookError", message="PostStartHook failed")
    return ContainerStateWaiting(reason=waiting_reason(pod))


def waiting_reason(pod: Pod) -> str:
    """Why a container of this pod that has not been started waits, where nothing worse is known."""
    return "PodInitializing" if pod.spec.init_containers else "ContainerCreating"


def _terminated(dead: RuntimeContainer, facts: StatusInputs) -> ContainerStateTerminated:
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
        message=facts.messages.get(dead.id) or dead.error,
        started_at=times.format_time(started) if started else None,
        finished_at=times.format_time(finished) if finished else None,
        container_id=f"docker://{dead.id}",
    )
