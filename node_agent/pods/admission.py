"""Admission predicates and the choice of pods to preempt. Pure.

The reasons are kubelet's. Static pods and pods with a system-critical priority are critical: other pods are preempted
for them.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from api.core import placement
from api.core.node import Node, Taint
from api.core.pod import Pod
from api.core.resources import (
    allocatable,
    has_port_conflict,
    host_ports,
    insufficient_resources,
    pod_requests,
    total_requests,
)
from api.validation.static_pods import is_static
from node_agent.eviction.thresholds import MEMORY, Pressure
from node_agent.pods.status import EVICTED
from node_agent.runtime.security import forbidden_sysctl

SYSTEM_PRIORITY = 2_000_000_000
MEMORY_TAINT = Taint(key=placement.MEMORY_PRESSURE, effect="NoSchedule")
CLASSES = ("BestEffort", "Burstable", "Guaranteed")


@dataclass(frozen=True, slots=True)
class Rejection:
    """Why a pod is not admitted: reason and message of its status."""

    reason: str
    message: str

    @property
    def is_out_of_resources(self) -> bool:
        """Whether the pod could run if there were fewer other pods."""
        return self.reason.startswith("OutOf")


def admit(pod: Pod, node: Node, others: Iterable[Pod], sysctls: tuple[str, ...] = ()) -> Rejection | None:
    """Return why the node rejects a pod, given the other pods on it. Return None if it admits the pod.

    `sysctls` are unsafe sysctls that pods may set.
    """
    other_pods = tuple(others)
    return (
        _node_mismatch(pod, node, sysctls)
        or _port_conflict(pod, other_pods)
        or _insufficient_resource(pod, node, other_pods)
    )


def is_critical_pod(pod: Pod) -> bool:
    """Return whether other pods are preempted for this pod, and this pod for none."""
    return is_static(pod) or (pod.spec.priority or 0) >= SYSTEM_PRIORITY


def pressure_rejection(pod: Pod, pressure: Pressure) -> Rejection | None:
    """Return why a node under pressure rejects a pod. Return None if it admits the pod.

    Critical pods are admitted. Under memory pressure alone, so are pods that request resources or tolerate the taint.
    """
    present = [condition.type for condition in pressure.conditions() if condition.is_true]
    if not present or is_critical_pod(pod):
        return None
    if present == [MEMORY]:
        modest = pod.status.qos_class != CLASSES[0]
        if modest or placement.find_untolerated_taint(pod.spec, (MEMORY_TAINT,), ("NoSchedule",)) is None:
            return None
    return Rejection(EVICTED, f"The node had condition: [{' '.join(present)}]. ")


def select_victims(pod: Pod, node: Node, others: Iterable[Pod]) -> tuple[Pod, ...]:
    """Return the pods to preempt so that a critical pod fits. Return none if preemption does not help.

    No more pods are preempted than needed: BestEffort first, then by priority, then the youngest.
    """
    staying = list(others)
    victims: list[Pod] = []
    candidates = sorted((other for other in staying if not is_critical_pod(other)), key=_age, reverse=True)
    candidates.sort(key=lambda other: (CLASSES.index(other.status.qos_class or CLASSES[0]), other.spec.priority or 0))
    for candidate in candidates:
        if _insufficient_resource(pod, node, staying) is None:
            break
        staying.remove(candidate)
        victims.append(candidate)
    if _insufficient_resource(pod, node, staying) is not None:
        return ()
    for victim in tuple(victims[::-1]):
        if _insufficient_resource(pod, node, [*staying, victim]) is None:
            staying.append(victim)
            victims.remove(victim)
    return tuple(victims)


def _age(pod: Pod) -> tuple[str, str]:
    return pod.metadata.creation_timestamp or "", pod.metadata.uid


def _node_mismatch(pod: Pod, node: Node, sysctls: tuple[str, ...]) -> Rejection | None:
    if pod.spec.os is not None and pod.spec.os.name not in {"", "linux"}:
        return Rejection("PodOSNotSupported", "Failed to admit pod as the OS field doesn't match node OS")
    if not placement.matches_node(pod.spec, node.metadata.name, node.metadata.labels):
        message = "Predicate NodeAffinity failed: node(s) didn't match Pod's node affinity/selector"
        return Rejection("NodeAffinity", message)
    taint = placement.find_untolerated_taint(pod.spec, node.spec.taints, ("NoExecute",))
    if taint is not None and not is_static(pod):
        message = f"Predicate TaintToleration failed: node(s) had untolerated taint {{{taint.key}: {taint.value}}}"
        return Rejection("TaintToleration", message)
    forbidden = forbidden_sysctl(pod, sysctls)
    return Rejection("SysctlForbidden", forbidden) if forbidden else None


def _port_conflict(pod: Pod, others: tuple[Pod, ...]) -> Rejection | None:
    if has_port_conflict(host_ports(pod), (port for other in others for port in host_ports(other))):
        message = "Predicate NodePorts failed: node(s) didn't have free ports for the requested pod ports"
        return Rejection("NodePorts", message)
    return None


def _insufficient_resource(pod: Pod, node: Node, others: Iterable[Pod]) -> Rejection | None:
    """Resources that the node does not list are left to the scheduler."""
    room = allocatable(node)
    asked = {name: amount for name, amount in pod_requests(pod).items() if name in room}
    for name, wanted, taken, there in insufficient_resources(asked, total_requests(others), room):
        numbers = f"requested: {wanted}, used: {taken}, capacity: {there}"
        return Rejection(f"OutOf{name}", f"Node didn't have enough resource: {name}, {numbers}")
    return None
