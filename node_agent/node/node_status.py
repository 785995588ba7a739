"""The Node object: capacity, allocatable, conditions, status patch. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, NamedTuple

import msgspec

from api.core.node import (
    ContainerImage,
    DaemonEndpoint,
    Node,
    NodeAddress,
    NodeDaemonEndpoints,
    NodeSpec,
    NodeStatus,
    NodeSystemInfo,
    Taint,
)
from api.meta import quantity, times
from api.meta.types import Condition, ObjectMeta
from node_agent.eviction.thresholds import Pressure

RESOURCES = ("cpu", "memory", "ephemeral-storage")


class BadReservation(ValueError):
    """`str(error)` says what was found and what is accepted."""


class ReservedResources(NamedTuple):
    """Thousandths of cores, and bytes."""

    cpu: int = 0
    memory: int = 0
    disk: int = 0


NOTHING_RESERVED = ReservedResources()


def parse_reserved(*texts: str) -> ReservedResources:
    """The sum of lists such as `cpu=100m,memory=200Mi,ephemeral-storage=1Gi`. Raises BadReservation."""
    total = dict.fromkeys(RESOURCES, 0)
    for part in (part for text in texts for part in text.split(",") if part.strip()):
        name, _, amount = (word.strip() for word in part.partition("="))
        if name not in RESOURCES:
            raise BadReservation(f"found {part.strip()!r}; RESOURCE=AMOUNT with {', '.join(RESOURCES)} is accepted")
        try:
            total[name] += quantity.to_milli(amount) if name == "cpu" else quantity.to_int(amount)
        except quantity.BadQuantity as error:
            raise BadReservation(f"{name}: {error}") from None
    return ReservedResources(*(total[name] for name in RESOURCES))


AGENT_PORT = 10250
NO_PRESSURE = Pressure()
MOST_IMAGES, MOST_NAMES = 50, 5

KEPT_MEMORY = 100 << 20
KEPT_DISK = 0.1
"""What pods are not given, because below it they would be evicted (bytes, part of the disk)."""


@dataclass(frozen=True, slots=True)
class NodeIdentity:
    """Under which name and address the host is a node, how many pods it takes, and what keeps others off it.

    `port` is where the agent's server listens. `reserved` is what pods do not get of it.
    """

    name: str
    address: str
    max_pods: int
    port: int = AGENT_PORT
    taints: tuple[Taint, ...] = ()
    reserved: ReservedResources = NOTHING_RESERVED


@dataclass(frozen=True, slots=True)
class HostFacts:
    """What the host is; memory and disk are in bytes, `huge_pages` bytes by page size (`2Mi`)."""

    cpus: int
    memory: int
    disk: int
    machine_id: str
    system_uuid: str
    boot_id: str
    kernel: str
    os_image: str
    architecture: str
    docker_version: str
    agent_version: str
    huge_pages: Mapping[str, int] = field(default_factory=dict)
    images: tuple[ContainerImage, ...] = ()


@dataclass(frozen=True, slots=True)
class NodeHealth:
    """How the node is; `unready` says why no pod can run here, empty when one can."""

    unready: str
    pressure: Pressure = NO_PRESSURE


def parse_taint(text: str) -> Taint:
    """`KEY=VALUE:EFFECT` or `KEY:EFFECT`, as the settings have it."""
    head, _, effect = text.rpartition(":")
    key, _, value = head.partition("=")
    return Taint(key=key, value=value, effect=effect)


def node_labels(identity: NodeIdentity, facts: HostFacts) -> dict[str, str]:
    """The labels that tell what the host is."""
    return {
        "kubernetes.io/hostname": identity.name,
        "kubernetes.io/os": "linux",
        "kubernetes.io/arch": facts.architecture,
        "beta.kubernetes.io/os": "linux",
        "beta.kubernetes.io/arch": facts.architecture,
    }


def new_node(identity: NodeIdentity, facts: HostFacts, health: NodeHealth, now: datetime) -> Node:
    """The object with which a host registers."""
    meta = ObjectMeta(name=identity.name, labels=node_labels(identity, facts))
    return Node(
        metadata=meta, spec=NodeSpec(taints=identity.taints), status=node_status(identity, facts, health, now, ())
    )


def node_status(
    identity: NodeIdentity, facts: HostFacts, health: NodeHealth, now: datetime, old: tuple[Condition, ...]
) -> NodeStatus:
    """The status now; of conditions that have not changed the time of the last change is kept."""
    capacity = {
        "cpu": str(facts.cpus),
        "memory": f"{facts.memory // 1024}Ki",
        "ephemeral-storage": f"{facts.disk // 1024}Ki",
        "pods": str(identity.max_pods),
        **{f"hugepages-{size}": str(amount) for size, amount in facts.huge_pages.items()},
    }
    kept = KEPT_MEMORY + sum(facts.huge_pages.values()) + identity.reserved.memory
    cores = max(facts.cpus * 1000 - identity.reserved.cpu, 0)
    allocatable = capacity | {
        "cpu": f"{cores}m" if cores % 1000 else str(cores // 1000),
        "memory": f"{max(facts.memory - kept, 0) // 1024}Ki",
        "ephemeral-storage": str(max(int(facts.disk * (1 - KEPT_DISK)) - identity.reserved.disk, 0)),
    }
    return NodeStatus(
        capacity=capacity,
        allocatable=allocatable,
        conditions=node_conditions(health, now, old),
        addresses=(
            NodeAddress(type="InternalIP", address=identity.address),
            NodeAddress(type="Hostname", address=identity.name),
        ),
        daemon_endpoints=NodeDaemonEndpoints(kubelet_endpoint=DaemonEndpoint(port=identity.port)),
        node_info=NodeSystemInfo(
            machine_id=facts.machine_id,
            system_uuid=facts.system_uuid,
            boot_id=facts.boot_id,
            kernel_version=facts.kernel,
            os_image=facts.os_image,
            container_runtime_version=f"docker://{facts.docker_version}",
            kubelet_version=f"v{facts.agent_version}+podlane",
            operating_system="linux",
            architecture=facts.architecture,
        ),
        images=largest_images(facts.images),
        features={"supplementalGroupsPolicy": True},
    )


def largest_images(images: Iterable[ContainerImage]) -> tuple[ContainerImage, ...]:
    """The images that the Node object names: the largest, each with a few of its names."""
    ordered = sorted((image for image in images if image.names), key=lambda image: (-image.size_bytes, image.names))
    return tuple(
        ContainerImage(names=one.names[:MOST_NAMES], size_bytes=one.size_bytes) for one in ordered[:MOST_IMAGES]
    )


def node_conditions(health: NodeHealth, now: datetime, old: tuple[Condition, ...]) -> tuple[Condition, ...]:
    """Return the pressure conditions and Ready. A condition that has not changed keeps its transition time."""
    before = {condition.type: condition for condition in old}

    def condition(kind: str, is_true: bool, reason: str, message: str) -> Condition:
        return Condition(
            type=kind,
            status=str(is_true),
            reason=reason,
            message=message,
            last_heartbeat_time=times.format_time(now),
            last_transition_time=_since(before.get(kind), str(is_true), now),
        )

    pressure = [condition(row.type, row.is_true, row.reason, row.message) for row in health.pressure.conditions()]
    if health.unready:
        ready = condition("Ready", False, "KubeletNotReady", health.unready)
    else:
        ready = condition("Ready", True, "KubeletReady", "the node agent is posting ready status")
    return (*pressure, ready)


def _since(old: Condition | None, status: str, now: datetime) -> str:
    if old is not None and old.status == status and old.last_transition_time:
        return old.last_transition_time
    return times.format_time(now)


# --- what is written and when -----------------------------------------------------------------------------------------


def status_differs(new: NodeStatus, shown: NodeStatus) -> bool:
    """Whether the master shows something else than this, times and what others say aside."""
    return _comparable(new, new) != _comparable(shown, new)


def _comparable(status: NodeStatus, ours: NodeStatus) -> tuple[object, ...]:
    kinds = {row.type for row in ours.conditions}
    rows = {row.type: (row.status, row.reason, row.message) for row in status.conditions if row.type in kinds}
    capacity = {name: status.capacity.get(name) for name in ours.capacity}
    allocatable = {name: status.allocatable.get(name) for name in ours.allocatable}
    addresses = {row.type: row.address for row in status.addresses}
    return rows, capacity, allocatable, addresses, status.daemon_endpoints, status.node_info, status.images


def node_status_patch(status: NodeStatus) -> dict[str, Any]:
    """A strategic merge patch that leaves alone what others say of the node."""
    said: dict[str, Any] = msgspec.to_builtins(status)
    for row in said["conditions"]:
        row.setdefault("message", "")
    return {"status": {"images": None, **said}}


def condition_events(before: tuple[Condition, ...], after: tuple[Condition, ...]) -> Iterable[tuple[str, str]]:
    """The events for conditions that have changed: the reason, and what is to be added in words."""
    known = {row.type: row.status for row in before}
    for row in after:
        if known.get(row.type) == row.status:
            continue
        if row.type == "Ready":
            yield ("NodeReady", "") if row.status == "True" else ("NodeNotReady", f" ({row.message})")
        elif row.type in known or row.status == "True":
            yield row.reason.replace("Kubelet", "Node"), ""
