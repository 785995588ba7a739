"""Admission plugins that fill in defaults: Priority, DefaultTolerationSeconds and DefaultIngressClass. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from msgspec.structs import replace

from api.core.placement import MEMORY_PRESSURE, NOT_READY, UNREACHABLE, Toleration
from api.core.pod import Pod
from api.core.resource_requests import qos_class
from master import errors
from master.admission.plugin import AdmissionPlugin, AdmissionRequest, Operation
from master.resources.ingresses import CLASS_ANNOTATION, Ingress, IngressClass
from master.resources.pods import PODS
from master.resources.priority_classes import PREEMPT_LOWER_PRIORITY, PRIORITY_CLASSES, PriorityClass
from master.resources.scheme import group_resource
from master.storage.interface import Transaction


class Priority(AdmissionPlugin):
    """Sets the priority of new pods from their PriorityClass. Allows one default PriorityClass."""

    def mutate(self, request: AdmissionRequest, item: Any, objects: Transaction) -> Any:
        if request.operation is not Operation.CREATE or not isinstance(item, Pod):
            return item
        return apply_priority(item, objects.list(group_resource(PriorityClass)))

    def validate(self, request: AdmissionRequest, item: Any, objects: Transaction) -> None:
        if request.operation is not Operation.DELETE and isinstance(item, PriorityClass):
            check_single_default(item, objects.list(group_resource(PriorityClass)))


def apply_priority(pod: Pod, classes: Iterable[PriorityClass]) -> Pod:
    """The pod with the priority and the policy of its class; a number of its own may only repeat them."""
    spec, known = pod.spec, {one.metadata.name: one for one in classes}
    if spec.priority_class_name and spec.priority_class_name not in known:
        why = f"no PriorityClass with name {spec.priority_class_name} was found"
        raise errors.forbidden(PODS, pod.metadata.name, why)
    usual = sorted((one for one in known.values() if one.global_default), key=lambda one: one.value)
    found = known[spec.priority_class_name] if spec.priority_class_name else (usual[0] if usual else PriorityClass())
    policy = found.preemption_policy or PREEMPT_LOWER_PRIORITY
    for given, wanted, what in (
        (spec.priority, found.value, "integer value of priority"),
        (spec.preemption_policy, policy, "string value of PreemptionPolicy"),
    ):
        if given is not None and given != wanted:
            why = (
                f"the {what} ({given}) must not be provided in pod spec; priority admission controller computed "
                f"{wanted} from the given PriorityClass name"
            )
            raise errors.forbidden(PODS, pod.metadata.name, why)
    name = spec.priority_class_name or found.metadata.name
    return replace(pod, spec=replace(spec, priority_class_name=name, priority=found.value, preemption_policy=policy))


def check_single_default(new: PriorityClass, others: Iterable[PriorityClass]) -> None:
    """Only one class is that of pods which name none."""
    if not new.global_default:
        return
    for other in others:
        if other.global_default and other.metadata.name != new.metadata.name:
            why = f"PriorityClass {other.metadata.name} is already marked as default. Only one default can exist"
            raise errors.forbidden(PRIORITY_CLASSES, new.metadata.name, why)


DEFAULT_TOLERATION_SECONDS = 300


class DefaultTolerationSeconds(AdmissionPlugin):
    """Lets pods stay on a node that is not ready or unreachable for DEFAULT_TOLERATION_SECONDS."""

    def mutate(self, request: AdmissionRequest, item: Any, objects: Transaction) -> Any:
        del objects
        if request.operation is Operation.DELETE or request.subresource or not isinstance(item, Pod):
            return item
        return apply_default_tolerations(item)


def apply_default_tolerations(pod: Pod) -> Pod:
    """Add tolerations for not-ready and unreachable nodes, and for memory pressure if the pod requests resources.

    A toleration of the pod itself for such a taint takes precedence.
    """
    tolerations = (*pod.spec.tolerations, *_missing_tolerations(pod))
    if tolerations == pod.spec.tolerations:
        return pod
    return replace(pod, spec=replace(pod.spec, tolerations=tolerations))


def _missing_tolerations(pod: Pod) -> Iterator[Toleration]:
    for key in (NOT_READY, UNREACHABLE):
        if not _tolerates(pod, key, "NoExecute"):
            yield Toleration(
                key=key, operator="Exists", effect="NoExecute", toleration_seconds=DEFAULT_TOLERATION_SECONDS
            )
    has_requests = qos_class((*pod.spec.init_containers, *pod.spec.containers)) != "BestEffort"
    if has_requests and not _tolerates(pod, MEMORY_PRESSURE, "NoSchedule"):
        yield Toleration(key=MEMORY_PRESSURE, operator="Exists", effect="NoSchedule")


def _tolerates(pod: Pod, key: str, effect: str) -> bool:
    return any(toleration.key in ("", key) and toleration.effect in ("", effect) for toleration in pod.spec.tolerations)


DEFAULT_CLASS_ANNOTATION = "ingressclass.kubernetes.io/is-default-class"
"""Annotation of the class that such ingresses get; of several the newest counts, and of those the first by name."""


class DefaultIngressClass(AdmissionPlugin):
    """Sets the default IngressClass of new ingresses that name none."""

    def mutate(self, request: AdmissionRequest, item: Any, objects: Transaction) -> Any:
        if request.operation is not Operation.CREATE or not isinstance(item, Ingress):
            return item
        return apply_default_class(item, objects.list(group_resource(IngressClass)))


def apply_default_class(item: Ingress, classes: Iterable[IngressClass]) -> Ingress:
    """The ingress with its class."""
    if item.spec.ingress_class_name is not None or CLASS_ANNOTATION in item.metadata.annotations:
        return item
    usual = sorted(
        (one for one in classes if one.metadata.annotations.get(DEFAULT_CLASS_ANNOTATION) == "true"),
        key=lambda one: one.metadata.name,
    )
    if not usual:
        return item
    newest = max(usual, key=lambda one: one.metadata.creation_timestamp or "")
    return replace(item, spec=replace(item.spec, ingress_class_name=newest.metadata.name))
