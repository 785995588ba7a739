"""Facts of the host → the Node object. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from api import times
from api.objects import (
    Condition,
    DaemonEndpoint,
    Node,
    NodeAddress,
    NodeDaemonEndpoints,
    NodeStatus,
    NodeSystemInfo,
    ObjectMeta,
)
from node_agent.eviction import Pressure

AGENT_PORT = 10250
NO_PRESSURE = Pressure()
MOST_PODS = 110


@dataclass(frozen=True, slots=True)
class HostFacts:
    """What the host is; memory and disk are in bytes."""

    cpus: int
    memory: int
    disk: int
    machine_id: str
    boot_id: str
    kernel: str
    os_image: str
    architecture: str
    docker_version: str
    agent_version: str


def new_node(name: str, address: str, facts: HostFacts, unready: str, now: datetime) -> Node:
    """The object with which a host registers."""
    labels = {
        "kubernetes.io/hostname": name,
        "kubernetes.io/os": "linux",
        "kubernetes.io/arch": facts.architecture,
    }
    status = node_status(name, address, facts, unready, now, ())
    return Node(metadata=ObjectMeta(name=name, labels=labels), status=status)


def node_status(
    name: str,
    address: str,
    facts: HostFacts,
    unready: str,
    now: datetime,
    old: tuple[Condition, ...],
    pressure: Pressure = NO_PRESSURE,
) -> NodeStatus:
    """The status at this heartbeat; `unready` says why no pod can run here, empty when one can."""
    capacity = {
        "cpu": str(facts.cpus),
        "memory": f"{facts.memory // 1024}Ki",
        "ephemeral-storage": f"{facts.disk // 1024}Ki",
        "pods": str(MOST_PODS),
    }
    return NodeStatus(
        capacity=capacity,
        allocatable=capacity,
        conditions=conditions(unready, now, old, pressure),
        addresses=(
            NodeAddress(type="InternalIP", address=address),
            NodeAddress(type="Hostname", address=name),
        ),
        daemon_endpoints=NodeDaemonEndpoints(kubelet_endpoint=DaemonEndpoint(port=AGENT_PORT)),
        node_info=NodeSystemInfo(
            machine_id=facts.machine_id,
            system_uuid=facts.machine_id,
            boot_id=facts.boot_id,
            kernel_version=facts.kernel,
            os_image=facts.os_image,
            container_runtime_version=f"docker://{facts.docker_version}",
            kubelet_version=f"v{facts.agent_version}+podlane",
            operating_system="linux",
            architecture=facts.architecture,
        ),
    )


def conditions(unready: str, now: datetime, old: tuple[Condition, ...], pressure: Pressure) -> tuple[Condition, ...]:
    """Ready and the pressures; the time of the last change is kept where nothing changed."""
    rows = (
        *pressure.rows(),
        ("Ready", "False", "KubeletNotReady", unready)
        if unready
        else ("Ready", "True", "KubeletReady", "the node agent is posting ready status"),
    )
    before = {condition.type: condition for condition in old}
    return tuple(
        Condition(
            type=kind,
            status=status,
            reason=reason,
            message=message,
            last_heartbeat_time=times.text(now),
            last_transition_time=_since(before.get(kind), status, now),
        )
        for kind, status, reason, message in rows
    )


def _since(old: Condition | None, status: str, now: datetime) -> str:
    if old is not None and old.status == status and old.last_transition_time:
        return old.last_transition_time
    return times.text(now)
