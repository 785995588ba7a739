"""Pod: one or more containers that share an address and a lane. Pure."""

from __future__ import annotations

import datetime
from typing import Any

import msgspec

from api.core.pod import FINAL_PHASES, ContainerStatus, Pod, PodStatus
from api.core.resources import is_sidecar
from api.meta.types import Condition
from api.validation import pod
from master.kinds.default_tolerations import with_tolerations
from master.kinds.kind import AGE, NAME, Column, Kind, Subresource, age, or_none, proxy, stream

EPHEMERAL = "ephemeralcontainers"
"""The subresource through which a pod that runs gets more containers."""

GATED = Condition(
    type="PodScheduled",
    status="False",
    reason="SchedulingGated",
    message="Scheduling is blocked due to non-empty scheduling gates",
)


def _on_create(item: Pod) -> Pod:
    conditions = (GATED,) if item.spec.scheduling_gates else ()
    status = PodStatus(phase="Pending", qos_class=item.status.qos_class, conditions=conditions)
    return with_tolerations(msgspec.structs.replace(item, status=status))


def _on_update(new: Pod, old: Pod) -> Pod:
    """What admission has filled in stays where a client leaves it out."""
    priority = old.spec.priority if new.spec.priority is None else new.spec.priority
    policy = new.spec.preemption_policy or old.spec.preemption_policy
    spec = msgspec.structs.replace(new.spec, priority=priority, preemption_policy=policy)
    return with_tolerations(msgspec.structs.replace(new, spec=spec, status=old.status))


# --- how a pod looks in a table ---------------------------------------------------------------------------------------


def _finished(status: ContainerStatus) -> str:
    state = status.state.terminated
    if state is None:
        return ""
    return state.reason or (f"Signal:{state.signal}" if state.signal else f"ExitCode:{state.exit_code}")


def is_ready(item: Pod) -> bool:
    """Whether a pod says that it can serve."""
    return any(row.type == "Ready" and row.status == "True" for row in item.status.conditions)


def _container_reason(item: Pod, reason: str) -> str:
    """What the containers say: the last one in order that has a reason wins, as with kubectl's reference."""
    running = False
    for status in reversed(item.status.container_statuses):
        waiting = status.state.waiting
        if waiting is not None and waiting.reason:
            reason = waiting.reason
        elif status.state.terminated is not None:
            reason = _finished(status)
        elif status.ready and status.state.running is not None:
            running = True
    if reason == "Completed" and running:
        return "Running" if is_ready(item) else "NotReady"
    return reason


def _sidecars(item: Pod) -> frozenset[str]:
    return frozenset(one.name for one in item.spec.init_containers if is_sidecar(one))


def _lasting(item: Pod) -> list[ContainerStatus]:
    """Of the containers that are to keep running: the pod's own, and sidecars."""
    sidecars = _sidecars(item)
    beside = [row for row in item.status.init_container_statuses if row.name in sidecars]
    return [*beside, *item.status.container_statuses]


def _init_reason(item: Pod) -> str:
    """What holds up the start, while init containers have not all ended well."""
    total = len(item.spec.init_containers)
    sidecars = _sidecars(item)
    for index, status in enumerate(item.status.init_container_statuses):
        ended, waiting = status.state.terminated, status.state.waiting
        if status.name in sidecars and status.started:
            continue
        if ended is not None and ended.exit_code == 0:
            continue
        if ended is not None:
            return f"Init:{_finished(status)}"
        if waiting is not None and waiting.reason not in ("", "PodInitializing"):
            return f"Init:{waiting.reason}"
        return f"Init:{index}/{total}"
    return ""


def state(item: Pod) -> str:
    """One word for how the pod is, as `kubectl get pods` shows it."""
    if item.metadata.deletion_timestamp and item.status.phase not in FINAL_PHASES:
        return "Unknown" if item.status.reason == "NodeLost" else "Terminating"
    reason = GATED.reason if GATED in item.status.conditions else item.status.reason or item.status.phase
    return _init_reason(item) or _container_reason(item, reason)


def _restarts(item: Pod, now: datetime.datetime) -> str:
    rows = _lasting(item)
    total = sum(status.restart_count for status in rows)
    ends = [row.last_state.terminated.finished_at for row in rows if row.last_state.terminated]
    last = max((end for end in ends if end), default=None)
    return f"{total} ({age(last, now)} ago)" if total and last else str(total)


def _gates(item: Pod) -> str:
    gates = [gate.condition_type for gate in item.spec.readiness_gates]
    if not gates:
        return "<none>"
    passed = {row.type for row in item.status.conditions if row.status == "True"}
    return f"{sum(gate in passed for gate in gates)}/{len(gates)}"


def _cells(item: Pod, now: datetime.datetime) -> tuple[object, ...]:
    ready = sum(row.ready and row.state.running is not None for row in _lasting(item))
    return (
        item.metadata.name,
        f"{ready}/{len(item.spec.containers) + len(_sidecars(item))}",
        state(item),
        _restarts(item, now),
        age(item.metadata.creation_timestamp, now),
        or_none(item.status.pod_ip),
        or_none(item.spec.node_name),
        or_none(item.status.nominated_node_name),
        _gates(item),
    )


def _fields(item: Pod) -> dict[str, str]:
    return {
        "spec.nodeName": item.spec.node_name,
        "spec.restartPolicy": item.spec.restart_policy,
        "spec.schedulerName": item.spec.scheduler_name,
        "spec.serviceAccountName": item.spec.service_account_name,
        "spec.hostNetwork": "true" if item.spec.host_network else "false",
        "status.phase": item.status.phase,
        "status.podIP": item.status.pod_ip,
        "status.podIPs": ",".join(row.ip for row in item.status.pod_ips),
        "status.nominatedNodeName": item.status.nominated_node_name,
    }


def _spec(item: Pod) -> Any:
    return item.spec


POD: Kind[Pod] = Kind(
    type=Pod,
    plural="pods",
    singular="pod",
    namespaced=True,
    short=("po",),
    categories=("all",),
    columns=(
        NAME,
        Column("Ready", "How many of its containers are ready to serve."),
        Column("Status", "Its phase, or what holds it up."),
        Column("Restarts", "How often its containers were started again, and when last."),
        AGE,
        Column("IP", "Its address.", wide=True),
        Column("Node", "The node it runs on.", wide=True),
        Column("Nominated Node", "The node that is being cleared for it.", wide=True),
        Column("Readiness Gates", "How many of its further conditions are met.", wide=True),
    ),
    cells=_cells,
    fields=_fields,
    on_create=_on_create,
    on_update=_on_update,
    with_status=lambda new, old: msgspec.structs.replace(old, status=new.status),
    reported=True,
    spec=_spec,
    held=lambda item: bool(item.metadata.deletion_grace_period_seconds),
    more=(
        stream("attach", "PodAttachOptions"),
        Subresource("binding", body=("", "v1", "Binding"), verbs=("create",)),
        Subresource("eviction", body=("policy", "v1", "Eviction"), verbs=("create",)),
        Subresource(EPHEMERAL, part=lambda new, old: pod.added(old, new)),
        stream("exec", "PodExecOptions"),
        Subresource("log", verbs=("get",), through=True),
        stream("portforward", "PodPortForwardOptions"),
        proxy("PodProxyOptions"),
    ),
)
