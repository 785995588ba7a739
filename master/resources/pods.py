"""Pod, and PodAddress, its read-only projection for the network. Pure."""

from __future__ import annotations

import datetime
from typing import Any

import msgspec

from api.core.pod import FINAL_PHASES, ContainerStatus, Pod, PodSpec, PodStatus
from api.core.resource_requests import is_sidecar
from api.meta.types import Condition, ObjectMeta
from api.network.types import PodAddress
from api.validation.pod import add_ephemeral_containers, resize_pod
from api.validation.registry import RULES, KindRules
from master.resources.printing import AGE, NAME, age, none_if_empty
from master.resources.resource import (
    READ_VERBS,
    Column,
    Resource,
    Subresource,
    Version,
    proxy_subresource,
    stream_subresource,
)

EPHEMERAL_CONTAINERS = "ephemeralcontainers"
"""The subresource through which a pod that runs gets more containers."""

RESIZE = "resize"
"""The subresource that changes CPU and memory of containers that run."""

SCHEDULING_GATED = Condition(
    type="PodScheduled",
    status="False",
    reason="SchedulingGated",
    message="Scheduling is blocked due to non-empty scheduling gates",
)


def _prepare_pod_for_create(pod: Pod) -> Pod:
    conditions = (SCHEDULING_GATED,) if pod.spec.scheduling_gates else ()
    status = PodStatus(phase="Pending", qos_class=pod.status.qos_class, conditions=conditions)
    return msgspec.structs.replace(pod, status=status)


def _prepare_pod_for_update(new: Pod, old: Pod) -> Pod:
    """Keep fields that admission has set if the client omits them."""
    priority = old.spec.priority if new.spec.priority is None else new.spec.priority
    policy = new.spec.preemption_policy or old.spec.preemption_policy
    spec = msgspec.structs.replace(new.spec, priority=priority, preemption_policy=policy)
    return msgspec.structs.replace(new, spec=spec, status=old.status)


# --- columns ----------------------------------------------------------------------------------------------------------


def _termination_reason(status: ContainerStatus) -> str:
    state = status.state.terminated
    if state is None:
        return ""
    return state.reason or (f"Signal:{state.signal}" if state.signal else f"ExitCode:{state.exit_code}")


def is_pod_ready(pod: Pod) -> bool:
    """Return whether the pod's condition Ready is true."""
    return any(condition.type == "Ready" and condition.status == "True" for condition in pod.status.conditions)


def _container_reason(pod: Pod, reason: str) -> str:
    """Return the reason of the first container that has one, else `reason`, as kube-apiserver's printer does."""
    running = False
    for status in reversed(pod.status.container_statuses):
        waiting = status.state.waiting
        if waiting is not None and waiting.reason:
            reason = waiting.reason
        elif status.state.terminated is not None:
            reason = _termination_reason(status)
        elif status.ready and status.state.running is not None:
            running = True
    if reason == "Completed" and running:
        return "Running" if is_pod_ready(pod) else "NotReady"
    return reason


def _sidecar_names(pod: Pod) -> frozenset[str]:
    return frozenset(init_container.name for init_container in pod.spec.init_containers if is_sidecar(init_container))


def _running_statuses(pod: Pod) -> list[ContainerStatus]:
    """Return the statuses of long-running containers: the pod's own and its sidecars."""
    sidecars = _sidecar_names(pod)
    sidecar_statuses = [status for status in pod.status.init_container_statuses if status.name in sidecars]
    return [*sidecar_statuses, *pod.status.container_statuses]


def _init_reason(pod: Pod) -> str:
    """Return what delays the start, while init containers have not all succeeded."""
    total = len(pod.spec.init_containers)
    sidecars = _sidecar_names(pod)
    for index, status in enumerate(pod.status.init_container_statuses):
        ended, waiting = status.state.terminated, status.state.waiting
        if status.name in sidecars and status.started:
            continue
        if ended is not None and ended.exit_code == 0:
            continue
        if ended is not None:
            return f"Init:{_termination_reason(status)}"
        if waiting is not None and waiting.reason not in ("", "PodInitializing"):
            return f"Init:{waiting.reason}"
        return f"Init:{index}/{total}"
    return ""


def pod_state(pod: Pod) -> str:
    """Return the state of the pod in one word, as `kubectl get pods` shows it."""
    if pod.metadata.deletion_timestamp and pod.status.phase not in FINAL_PHASES:
        return "Unknown" if pod.status.reason == "NodeLost" else "Terminating"
    reason = (
        SCHEDULING_GATED.reason if SCHEDULING_GATED in pod.status.conditions else pod.status.reason or pod.status.phase
    )
    return _init_reason(pod) or _container_reason(pod, reason)


def _restarts(pod: Pod, now: datetime.datetime) -> str:
    statuses = _running_statuses(pod)
    total = sum(status.restart_count for status in statuses)
    ends = [status.last_state.terminated.finished_at for status in statuses if status.last_state.terminated]
    last = max((end for end in ends if end), default=None)
    return f"{total} ({age(last, now)} ago)" if total and last else str(total)


def _readiness_gates(pod: Pod) -> str:
    gates = [gate.condition_type for gate in pod.spec.readiness_gates]
    if not gates:
        return "<none>"
    passed = {condition.type for condition in pod.status.conditions if condition.status == "True"}
    return f"{sum(gate in passed for gate in gates)}/{len(gates)}"


def _ready_text(pod: Pod) -> str:
    ready = sum(status.ready and status.state.running is not None for status in _running_statuses(pod))
    return f"{ready}/{len(pod.spec.containers) + len(_sidecar_names(pod))}"


def _pod_fields(pod: Pod) -> dict[str, str]:
    return {
        "spec.nodeName": pod.spec.node_name,
        "spec.restartPolicy": pod.spec.restart_policy,
        "spec.schedulerName": pod.spec.scheduler_name,
        "spec.serviceAccountName": pod.spec.service_account_name,
        "spec.hostNetwork": "true" if pod.spec.host_network else "false",
        "status.phase": pod.status.phase,
        "status.podIP": pod.status.pod_ip,
        "status.podIPs": ",".join(pod_ip.ip for pod_ip in pod.status.pod_ips),
        "status.nominatedNodeName": pod.status.nominated_node_name,
    }


def _pod_spec(pod: Pod) -> Any:
    return pod.spec


PODS: Resource[Pod] = Resource(
    type=Pod,
    short_names=("po",),
    categories=("all",),
    columns=(
        NAME,
        Column("Ready", "Number of ready containers and of all containers.", lambda pod, _: _ready_text(pod)),
        Column("Status", "Its phase, or what holds it up.", lambda pod, _: pod_state(pod)),
        Column(
            "Restarts",
            "Number of restarts of the containers, and the time since the last one.",
            _restarts,
        ),
        AGE,
        Column("IP", "Its address.", lambda pod, _: none_if_empty(pod.status.pod_ip), wide=True),
        Column("Node", "The node it runs on.", lambda pod, _: none_if_empty(pod.spec.node_name), wide=True),
        Column(
            "Nominated Node",
            "The node that is being cleared for it.",
            lambda pod, _: none_if_empty(pod.status.nominated_node_name),
            wide=True,
        ),
        Column(
            "Readiness Gates",
            "Number of readiness gates that are met, and of all.",
            lambda pod, _: _readiness_gates(pod),
            wide=True,
        ),
    ),
    rules=RULES[Pod],
    selectable_fields=_pod_fields,
    prepare_for_create=_prepare_pod_for_create,
    prepare_for_update=_prepare_pod_for_update,
    status_update_keeps_metadata=True,
    spec=_pod_spec,
    blocks_deletion=lambda pod: bool(pod.metadata.deletion_grace_period_seconds),
    subresources=(
        stream_subresource("attach", "PodAttachOptions"),
        Subresource("binding", body_kind=("", "v1", "Binding"), verbs=("create",)),
        Subresource("eviction", body_kind=("policy", "v1", "Eviction"), verbs=("create",)),
        Subresource(EPHEMERAL_CONTAINERS, replace=lambda new, old: add_ephemeral_containers(old, new)),
        stream_subresource("exec", "PodExecOptions"),
        Subresource("log", verbs=("get",), proxied=True),
        stream_subresource("portforward", "PodPortForwardOptions"),
        proxy_subresource("PodProxyOptions"),
        Subresource(RESIZE, replace=lambda new, old: resize_pod(old, new), changes_usage=True),
    ),
    acted_on_by=(
        "the scheduler and the node agents; `log`, `exec`, `attach`, `portforward` and `proxy` are forwarded "
        "to its node"
    ),
)


def _pod_address_from_stored(pod: Pod) -> PodAddress:
    meta = pod.metadata
    return PodAddress(
        metadata=ObjectMeta(
            name=meta.name,
            namespace=meta.namespace,
            uid=meta.uid,
            resource_version=meta.resource_version,
            creation_timestamp=meta.creation_timestamp,
            deletion_timestamp=meta.deletion_timestamp,
        ),
        phase=pod.status.phase,
        ip=pod.status.pod_ip,
        host_network=pod.spec.host_network,
    )


def _pod_address_to_stored(pod_address: PodAddress) -> Pod:
    """Return a pod with the visible fields, for columns and selectors; it is never stored."""
    return Pod(
        metadata=pod_address.metadata,
        spec=PodSpec(host_network=pod_address.host_network),
        status=PodStatus(phase=pod_address.phase, pod_ip=pod_address.ip),
    )


POD_ADDRESSES = Resource(
    type=PodAddress,
    columns=(
        NAME,
        Column("IP", "The pod's address.", lambda address, _: none_if_empty(address.ip)),
        Column("Phase", "Pending, Running, Succeeded, Failed or Unknown.", lambda address, _: address.phase),
        Column(
            "Host network",
            "True if the pod uses the address of its node.",
            lambda address, _: address.host_network,
            type="boolean",
        ),
        AGE,
    ),
    rules=KindRules(),
    stored_as=Version(PODS, _pod_address_from_stored, _pod_address_to_stored),
    verbs=READ_VERBS,
    create_denial="a PodAddress is a projection of a Pod: write the pod",
    acted_on_by="read only, the owner of an address; nodes see nothing else of the pods of other nodes",
)
