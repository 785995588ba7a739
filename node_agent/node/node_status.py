"""The Node object: capacity, allocatable, conditions, status patch. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
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
from api.core.storage import LOCAL_VOLUMES_LABEL
from api.meta import quantity, times
from api.meta.types import Condition, ObjectMeta, transition_time
from api.network.attach import NetworkStatus, lost_peers_sentence
from node_agent.eviction.thresholds import Pressure, Threshold, hard_eviction_reservation

RESOURCES = ("cpu", "memory", "ephemeral-storage")


class BadReservation(ValueError):
    """An invalid list of reserved resources. The message says what was found and what is accepted."""


class ReservedResources(NamedTuple):
    """Resources that pods do not get: CPU in thousandths of a core, memory and disk in bytes."""

    cpu: int = 0
    memory: int = 0
    disk: int = 0


NOTHING_RESERVED = ReservedResources()


def parse_reserved(*texts: str) -> ReservedResources:
    """Return the sum of lists such as `cpu=100m,memory=200Mi,ephemeral-storage=1Gi`. Raises BadReservation."""
    total = dict.fromkeys(RESOURCES, 0)
    for part in (part for text in texts for part in text.split(",") if part.strip()):
        name, _, amount = (field.strip() for field in part.partition("="))
        if name not in RESOURCES:
            raise BadReservation(f"found {part.strip()!r}; RESOURCE=AMOUNT with {', '.join(RESOURCES)} is accepted")
        try:
            total[name] += quantity.to_milli(amount) if name == "cpu" else quantity.to_int(amount)
        except quantity.BadQuantity as error:
            raise BadReservation(f"{name}: {error}") from None
    return ReservedResources(*(total[name] for name in RESOURCES))


AGENT_PORT = 10250
NO_PRESSURE = Pressure()
MAX_IMAGES, MAX_NAMES_PER_IMAGE = 50, 5
"""Limits of the images in the status (kubelet: nodeStatusMaxImages)."""


@dataclass(frozen=True, slots=True)
class NodeIdentity:
    """The name, address and limits with which this host registers as a node.

    `max_pods` is the maximum number of pods. `port` is the port of the agent's server. `taints` are the node's taints
    at its registration. `reserved` are resources that pods do not get. `eviction_hard` are the hard eviction
    thresholds. `has_local_volumes` is whether claims can have volumes on the node.
    """

    name: str
    address: str
    max_pods: int
    port: int = AGENT_PORT
    taints: tuple[Taint, ...] = ()
    reserved: ReservedResources = NOTHING_RESERVED
    eviction_hard: tuple[Threshold, ...] = ()
    has_local_volumes: bool = True


@dataclass(frozen=True, slots=True)
class HostFacts:
    """Facts about the host that the Node object reports. What containers depend on is in HostInfo.

    Memory and disk are in bytes, `huge_pages` in bytes by page size (`2Mi`).
    """

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
    """The readiness, the pressure and the pod network of the node.

    `not_ready_reason` is empty if pods can run. `network` is None if the pod network does not answer.
    """

    not_ready_reason: str
    pressure: Pressure = NO_PRESSURE
    network: NetworkStatus | None = None


def parse_taint(text: str) -> Taint:
    """Parse a taint of the settings: `KEY=VALUE:EFFECT` or `KEY:EFFECT`."""
    head, _, effect = text.rpartition(":")
    key, _, value = head.partition("=")
    return Taint(key=key, value=value, effect=effect)


def node_labels(identity: NodeIdentity, facts: HostFacts) -> dict[str, str]:
    """Return the labels of the Node object: host name, operating system, architecture, and whether it has local
    volumes.
    """
    return {
        LOCAL_VOLUMES_LABEL: "true" if identity.has_local_volumes else "false",
        "kubernetes.io/hostname": identity.name,
        "kubernetes.io/os": "linux",
        "kubernetes.io/arch": facts.architecture,
        "beta.kubernetes.io/os": "linux",
        "beta.kubernetes.io/arch": facts.architecture,
    }


def new_node(identity: NodeIdentity, facts: HostFacts, health: NodeHealth, now: datetime) -> Node:
    """Return the Node object with which the host registers."""
    meta = ObjectMeta(name=identity.name, labels=node_labels(identity, facts))
    return Node(
        metadata=meta, spec=NodeSpec(taints=identity.taints), status=node_status(identity, facts, health, now, ())
    )


def node_status(
    identity: NodeIdentity, facts: HostFacts, health: NodeHealth, now: datetime, old_conditions: tuple[Condition, ...]
) -> NodeStatus:
    """Return the status of the node. A condition that has not changed keeps its transition time."""
    capacity = {
        "cpu": str(facts.cpus),
        "memory": f"{facts.memory // 1024}Ki",
        "ephemeral-storage": f"{facts.disk // 1024}Ki",
        "pods": str(identity.max_pods),
        **{f"hugepages-{size}": str(amount) for size, amount in facts.huge_pages.items()},
    }
    # Pods would be evicted if they used more than this (kubelet: hardEvictionReservation).
    eviction_reservation = hard_eviction_reservation(
        identity.eviction_hard, {"memory": facts.memory, "ephemeral-storage": facts.disk}
    )
    reserved_memory = eviction_reservation["memory"] + sum(facts.huge_pages.values()) + identity.reserved.memory
    reserved_disk = eviction_reservation["ephemeral-storage"] + identity.reserved.disk
    cores = max(facts.cpus * 1000 - identity.reserved.cpu, 0)
    allocatable = capacity | {
        "cpu": f"{cores}m" if cores % 1000 else str(cores // 1000),
        "memory": f"{max(facts.memory - reserved_memory, 0) // 1024}Ki",
        "ephemeral-storage": str(max(facts.disk - reserved_disk, 0)),
    }
    return NodeStatus(
        capacity=capacity,
        allocatable=allocatable,
        conditions=node_conditions(health, now, old_conditions),
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
    """Return the images for the Node object: the MAX_IMAGES largest, each with at most MAX_NAMES_PER_IMAGE names."""
    ordered = sorted((image for image in images if image.names), key=lambda image: (-image.size_bytes, image.names))
    return tuple(
        ContainerImage(names=image.names[:MAX_NAMES_PER_IMAGE], size_bytes=image.size_bytes)
        for image in ordered[:MAX_IMAGES]
    )


def node_conditions(health: NodeHealth, now: datetime, old_conditions: tuple[Condition, ...]) -> tuple[Condition, ...]:
    """Return the conditions of pressure and of the pod network, and Ready.

    A condition that has not changed keeps its transition time.
    """
    old_by_type = {condition.type: condition for condition in old_conditions}

    def condition(condition_type: str, is_true: bool, reason: str, message: str) -> Condition:
        return Condition(
            type=condition_type,
            status=str(is_true),
            reason=reason,
            message=message,
            last_heartbeat_time=times.format_time(now),
            last_transition_time=transition_time(old_by_type.get(condition_type), str(is_true), now),
        )

    pressure_conditions = [
        condition(pressure.type, pressure.is_true, pressure.reason, pressure.message)
        for pressure in health.pressure.conditions()
    ]
    if health.not_ready_reason:
        ready = condition("Ready", False, "KubeletNotReady", health.not_ready_reason)
    else:
        ready = condition("Ready", True, "KubeletReady", "the node agent is posting ready status")
    network_conditions = [condition(*each) for each in _network_conditions(health.network)]
    return (*pressure_conditions, *network_conditions, ready)


TUNNELS_LOST, FORWARDING_BLOCKED = "podlane.io/TunnelsLost", "podlane.io/ForwardingBlocked"


def _network_conditions(network: NetworkStatus | None) -> Iterator[tuple[str, bool, str, str]]:
    """Yield type, truth, reason and message of the conditions of the pod network.

    What is not known now, such as after a start of the sdn daemon, leaves the condition as it is.
    """
    if network is not None and network.lost_peers is not None:
        lost = lost_peers_sentence(network.lost_peers)
        yield TUNNELS_LOST, bool(lost), *(("PeersLost", lost) if lost else ("PeersAnswer", "probed peers answer"))
    if network is not None and network.firewall_problem is not None:
        found = network.firewall_problem
        words = ("FirewallPolicyDrop", found) if found else ("FirewallAccepts", "no firewall drops packets of pods")
        yield FORWARDING_BLOCKED, bool(found), *words


# --- status updates ---------------------------------------------------------------------------------------------------


def status_differs(desired: NodeStatus, current: NodeStatus) -> bool:
    """Return whether the status on the API server differs from the desired one.

    Times are not compared, nor are fields and conditions that other clients own. A new field of `node_status` has to
    be added to `_comparable`.
    """
    return _comparable(desired, desired) != _comparable(current, desired)


def _comparable(status: NodeStatus, desired: NodeStatus) -> tuple[object, ...]:
    types = {condition.type for condition in desired.conditions}
    conditions = {
        condition.type: (condition.status, condition.reason, condition.message)
        for condition in status.conditions
        if condition.type in types
    }
    capacity = {name: status.capacity.get(name) for name in desired.capacity}
    allocatable = {name: status.allocatable.get(name) for name in desired.allocatable}
    addresses = {address.type: address.address for address in status.addresses}
    # API servers before Kubernetes 1.31 do not store the features.
    features = desired.features if status.features is None else status.features
    return (
        conditions,
        capacity,
        allocatable,
        addresses,
        status.daemon_endpoints,
        status.node_info,
        status.images,
        features,
    )


def node_status_patch(status: NodeStatus) -> dict[str, Any]:
    """Return a strategic merge patch that leaves the conditions of other clients unchanged."""
    fields: dict[str, Any] = msgspec.to_builtins(status)
    for condition in fields["conditions"]:
        condition.setdefault("message", "")
    return {"status": {"images": None, **fields}}


def condition_events(before: tuple[Condition, ...], after: tuple[Condition, ...]) -> Iterable[tuple[str, str]]:
    """Yield the reason of an event, and the text after its message, for each condition that has changed."""
    old_status = {condition.type: condition.status for condition in before}
    for condition in after:
        if old_status.get(condition.type) == condition.status:
            continue
        if condition.type == "Ready":
            yield ("NodeReady", "") if condition.status == "True" else ("NodeNotReady", f" ({condition.message})")
        elif condition.type in old_status or condition.status == "True":
            yield condition.reason.replace("Kubelet", "Node"), ""
