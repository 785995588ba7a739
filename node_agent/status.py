"""Observed containers → the PodStatus that users see. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime

from api import times
from api.objects import (
    Condition,
    ContainerState,
    ContainerStateRunning,
    ContainerStateTerminated,
    ContainerStateWaiting,
    ContainerStatus,
    HostIP,
    Pod,
    PodIP,
    PodStatus,
)
from api.objects import Container as Wish
from node_agent.observed import Container, PodContainers
from node_agent.plan import crash_delay, exit_code, may_restart


@dataclass(frozen=True, slots=True)
class Facts:
    """What the containers alone do not tell.

    `address` is the pod's, empty while it has none; `troubles` says by container why it cannot start (reason, message);
    `trouble` is the sandbox's own.
    """

    node_address: str
    address: str
    now: datetime
    started_at: datetime
    troubles: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    trouble: tuple[str, str] | None = None
    terminating: bool = False


def summarise(pod: Pod, seen: PodContainers, facts: Facts) -> PodStatus:
    """The whole status; transition times of conditions that have not changed are kept."""
    rows = tuple(_container(pod, wish, seen.containers.get(wish.name, ()), facts) for wish in pod.spec.containers)
    phase = _phase(pod, seen, rows)
    ready = bool(rows) and all(row.ready for row in rows) and bool(facts.address)
    message = facts.trouble[1] if facts.trouble else ""
    return PodStatus(
        observed_generation=pod.metadata.generation,
        phase=phase,
        conditions=_conditions(pod, rows, phase, ready, facts),
        message=message,
        reason=facts.trouble[0] if facts.trouble else "",
        host_ip=facts.node_address,
        host_ips=(HostIP(ip=facts.node_address),),
        pod_ip=facts.address,
        pod_ips=(PodIP(ip=facts.address),) if facts.address else (),
        start_time=pod.status.start_time or times.text(facts.started_at),
        container_statuses=rows,
        qos_class=pod.status.qos_class,
    )


def _phase(pod: Pod, seen: PodContainers, rows: tuple[ContainerStatus, ...]) -> str:
    newest = [history[0] for wish in pod.spec.containers if (history := seen.containers.get(wish.name, ()))]
    ended = [one for one in newest if not one.running and one.state != "created"]
    final = [one for one in ended if not may_restart(pod.spec.restart_policy, one)]
    if rows and len(final) == len(rows):
        return "Succeeded" if all(exit_code(one) == 0 for one in final) else "Failed"
    return (
        "Running"
        if len(newest) == len(rows) and any(row.state.waiting is None or row.restart_count for row in rows)
        else "Pending"
    )


def _container(pod: Pod, wish: Wish, history: tuple[Container, ...], facts: Facts) -> ContainerStatus:
    newest = history[0] if history else None
    earlier = history[1] if len(history) > 1 else None
    state = _state(pod, wish, newest, facts)
    last = _terminated(earlier) if earlier is not None else None
    if state.waiting is not None and newest is not None and not newest.running and newest.state != "created":
        last = _terminated(newest)
    return ContainerStatus(
        name=wish.name,
        state=state,
        last_state=ContainerState(terminated=last),
        ready=state.running is not None and not facts.terminating,
        restart_count=newest.restarts if newest is not None else 0,
        image=wish.image,
        image_id=f"docker://{newest.image_id}" if newest is not None else "",
        container_id=f"docker://{newest.id}" if newest is not None else "",
        started=state.running is not None,
    )


def _state(pod: Pod, wish: Wish, newest: Container | None, facts: Facts) -> ContainerState:
    if newest is not None and newest.running:
        started = times.text(newest.started_at) if newest.started_at else None
        return ContainerState(running=ContainerStateRunning(started_at=started))
    if wish.name in facts.troubles:
        reason, message = facts.troubles[wish.name]
        return ContainerState(waiting=ContainerStateWaiting(reason=reason, message=message))
    if newest is None or newest.state == "created":
        return ContainerState(waiting=ContainerStateWaiting(reason="ContainerCreating"))
    delay = crash_delay(newest.crashes)
    held = may_restart(pod.spec.restart_policy, newest) and not facts.terminating
    if held and delay and newest.finished_at and facts.now < newest.finished_at + delay:
        meta = pod.metadata
        message = (
            f"back-off {int(delay.total_seconds())}s restarting failed container={wish.name} "
            f"pod={meta.name}_{meta.namespace}({meta.uid})"
        )
        return ContainerState(waiting=ContainerStateWaiting(reason="CrashLoopBackOff", message=message))
    return ContainerState(terminated=_terminated(newest))


def _terminated(dead: Container) -> ContainerStateTerminated:
    code = exit_code(dead)
    if dead.oom_killed:
        reason = "OOMKilled"
    elif dead.started_at is None and dead.error:
        reason = "ContainerCannotRun"
    else:
        reason = "Completed" if code == 0 else "Error"
    started = dead.started_at or dead.created_at
    finished = dead.finished_at or dead.created_at
    return ContainerStateTerminated(
        exit_code=code,
        reason=reason,
        message=dead.error,
        started_at=times.text(started) if started else None,
        finished_at=times.text(finished) if finished else None,
        container_id=f"docker://{dead.id}",
    )


def _conditions(
    pod: Pod, rows: tuple[ContainerStatus, ...], phase: str, ready: bool, facts: Facts
) -> tuple[Condition, ...]:
    unready = [row.name for row in rows if not row.ready]
    why = f"containers with unready status: [{' '.join(unready)}]"
    done = phase in {"Succeeded", "Failed"}
    reason = "" if ready else "PodCompleted" if phase == "Succeeded" else "ContainersNotReady"
    wishes = {
        "PodReadyToStartContainers": (bool(facts.address), "", ""),
        "Initialized": (True, "", ""),
        "Ready": (ready and not done, reason, "" if ready or done else why),
        "ContainersReady": (ready and not done, reason, "" if ready or done else why),
        "PodScheduled": (True, "", ""),
    }
    old = {condition.type: condition for condition in pod.status.conditions}
    return tuple(
        Condition(
            type=kind,
            status=str(holds),
            reason=reason,
            message=message,
            last_transition_time=_since(old.get(kind), str(holds), facts.now),
        )
        for kind, (holds, reason, message) in wishes.items()
    )


def _since(old: Condition | None, status: str, now: datetime) -> str:
    if old is not None and old.status == status and old.last_transition_time:
        return old.last_transition_time
    return times.text(now)
