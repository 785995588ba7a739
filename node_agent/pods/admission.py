"""Admission predicates and the choice of pods to preempt. Pure.

The reasons are those of a kubelet (facts/node.md 2). Static pods and those of the highest priorities are critical:
others make room for them.
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
    """`reason` is one word for the status, `message` a sentence."""

    reason: str
    message: str

    @property
    def is_out_of_resources(self) -> bool:
        """Whether the pod could run if there were fewer others."""
        return self.reason.startswith("OutOf")


def admit(pod: Pod, node: Node, others: Iterable[Pod], sysctls: tuple[str, ...] = ()) -> Rejection | None:
    """Why the node does not take the pod beside the others that hold a part of it; None if it takes it.

    `sysctls` are those that its pods may set besides the safe ones.
    """
    beside = tuple(others)
    return (
        _node_mismatch(pod, node, sysctls) or _port_conflict(pod, beside) or _insufficient_resource(pod, node, beside)
    )


def is_critical_pod(pod: Pod) -> bool:
    """Whether others make room for it, and it for nobody."""
    return is_static(pod) or (pod.spec.priority or 0) >= SYSTEM_PRIORITY


def pressure_rejection(pod: Pod, pressure: Pressure) -> Rejection | None:
    """A node that runs short takes only what it must: short of memory it takes pods that request something, or that
    tolerate the taint of it; short of anything else, or of several things, critical pods only.
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
    """Who has to end so that a critical pod fits: no more than needed, the least protected first; none if it is no use.

    Among equals the youngest goes.
    """
    staying = list(others)
    given_up: list[Pod] = []
    candidates = sorted((one for one in staying if not is_critical_pod(one)), key=_age, reverse=True)
    candidates.sort(key=lambda one: (CLASSES.index(one.status.qos_class or CLASSES[0]), one.spec.priority or 0))
    for one in candidates:
        if _insufficient_resource(pod, node, staying) is None:
            break
        staying.remove(one)
        given_up.append(one)
    if _insufficient_resource(pod, node, staying) is not None:
        return ()
    for one in tuple(given_up[::-1]):
        if _insufficient_resource(pod, node, [*staying, one]) is None:
            staying.append(one)
            given_up.remove(one)
    return tuple(given_up)


def _age(pod: Pod) -> tuple[str, str]:
    return pod.metadata.creation_timestamp or "", pod.metadata.uid


def _node_mismatch(pod: Pod, node: Node, sysctls: tuple[str, ...]) -> Rejection | None:
    if pod.spec.os is not None and pod.spec.os.name not in {"", "linux"}:
        return Rejection("PodOSNotSupported", "Failed to admit pod as the OS field doesn't match node OS")
    if not placement.matches_node(pod.spec, node.metadata.name, node.metadata.labels):
        words = "Predicate NodeAffinity failed: node(s) didn't match Pod's node affinity/selector"
        return Rejection("NodeAffinity", words)
    taint = placement.find_untolerated_taint(pod.spec, node.spec.taints, ("NoExecute",))
    if taint is not None and not is_static(pod):
        words = f"Predicate TaintToleration failed: node(s) had untolerated taint {{{taint.key}: {taint.value}}}"
        return Rejection("TaintToleration", words)
    forbidden = forbidden_sysctl(pod, sysctls)
    return Rejection("SysctlForbidden", forbidden) if forbidden else None


def _port_conflict(pod: Pod, others: tuple[Pod, ...]) -> Rejection | None:
    if has_port_conflict(host_ports(pod), (port for other in others for port in host_ports(other))):
        words = "Predicate NodePorts failed: node(s) didn't have free ports for the requested pod ports"
        return Rejection("NodePorts", words)
    return None


def _insufficient_resource(pod: Pod, node: Node, others: Iterable[Pod]) -> Rejection | None:
    """What the node knows nothing of is for the scheduler to count."""
    room = allocatable(node)
    asked = {name: amount for name, amount in pod_requests(pod).items() if name in room}
    for name, wanted, taken, there in insufficient_resources(asked, total_requests(others), room):
        numbers = f"requested: {wanted}, used: {taken}, capacity: {there}"
        return Rejection(f"OutOf{name}", f"Node didn't have enough resource: {name}, {numbers}")
    return None
