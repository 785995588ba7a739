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
from api.core.resource_requests import (
    allocatable,
    has_port_conflict,
    host_ports,
    insufficient_resources,
    pod_requests,
    total_requests,
)
from api.validation.static_pods import is_critical_pod, is_static
from node_agent.eviction.thresholds import MEMORY, Pressure
from node_agent.pods.status import EVICTED
from node_agent.runtime.security import forbidden_sysctl

MEMORY_TAINT = Taint(key=placement.MEMORY_PRESSURE, effect="NoSchedule")
CLASSES = ("BestEffort", "Burstable", "Guaranteed")


@dataclass(frozen=True, slots=True)
class Rejection:
    """A decision not to admit a pod, as reason and message of its status."""

    reason: str
    message: str

    @property
    def is_out_of_resources(self) -> bool:
        """Whether the pod could run if there were fewer other pods."""
        return self.reason.startswith("OutOf")


def admit(pod: Pod, node: Node, other_pods: Iterable[Pod], sysctls: tuple[str, ...] = ()) -> Rejection | None:
    """Return the rejection of a pod, given the other pods on the node. Return None if the node admits the pod.

    `sysctls` are unsafe sysctls that pods may set.
    """
    other_pods = tuple(other_pods)
    return (
        _node_mismatch(pod, node, sysctls)
        or _port_conflict(pod, other_pods)
        or _insufficient_resource(pod, node, other_pods)
    )


def pressure_rejection(pod: Pod, pressure: Pressure) -> Rejection | None:
    """Return the rejection of a pod by a node under pressure. Return None if the node admits the pod.

    Critical pods are admitted. Under memory pressure alone, so are pods that request resources or tolerate the taint.
    """
    true_conditions = [condition.type for condition in pressure.conditions() if condition.is_true]
    if not true_conditions or is_critical_pod(pod):
        return None
    if true_conditions == [MEMORY]:
        requests_resources = pod.status.qos_class != CLASSES[0]
        if requests_resources or placement.find_untolerated_taint(pod.spec, (MEMORY_TAINT,), ("NoSchedule",)) is None:
            return None
    return Rejection(EVICTED, f"The node had condition: [{' '.join(true_conditions)}]. ")


def select_victims(pod: Pod, node: Node, other_pods: Iterable[Pod]) -> tuple[Pod, ...]:
    """Return the pods to preempt so that a critical pod fits. Return none if preemption does not help.

    No more pods are preempted than needed: BestEffort first, then by priority, then the youngest.
    """
    remaining = list(other_pods)
    victims: list[Pod] = []
    candidates = [other for other in remaining if not is_critical_pod(other)]
    candidates.sort(key=_creation_key, reverse=True)
    candidates.sort(key=lambda other: (CLASSES.index(other.status.qos_class or CLASSES[0]), other.spec.priority or 0))
    for candidate in candidates:
        if _insufficient_resource(pod, node, remaining) is None:
            break
        remaining.remove(candidate)
        victims.append(candidate)
    if _insufficient_resource(pod, node, remaining) is not None:
        return ()
    for victim in tuple(victims[::-1]):
        if _insufficient_resource(pod, node, [*remaining, victim]) is None:
            remaining.append(victim)
            victims.remove(victim)
    return tuple(victims)


def _creation_key(pod: Pod) -> tuple[str, str]:
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


def _port_conflict(pod: Pod, other_pods: tuple[Pod, ...]) -> Rejection | None:
    if has_port_conflict(host_ports(pod), (port for other_pod in other_pods for port in host_ports(other_pod))):
        message = "Predicate NodePorts failed: node(s) didn't have free ports for the requested pod ports"
        return Rejection("NodePorts", message)
    return None


def _insufficient_resource(pod: Pod, node: Node, other_pods: Iterable[Pod]) -> Rejection | None:
    """Return a rejection for the first resource of which the node has too little.

    Resources that the node does not list are not checked, because the scheduler counts them.
    """
    capacity = allocatable(node)
    requests = {name: amount for name, amount in pod_requests(pod).items() if name in capacity}
    for name, requested, used, available in insufficient_resources(requests, total_requests(other_pods), capacity):
        quantities = f"requested: {requested}, used: {used}, capacity: {available}"
        return Rejection(f"OutOf{name}", f"Node didn't have enough resource: {name}, {quantities}")
    return None
