"""Admission plugins that fill in defaults: Priority, DefaultTolerationSeconds, DefaultIngressClass and
DefaultStorageClass. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from msgspec.structs import replace

from api.core.placement import MEMORY_PRESSURE, NOT_READY, UNREACHABLE, Toleration
from api.core.pod import Pod
from api.core.resource_requests import qos_class
from api.core.storage import PersistentVolumeClaim
from master import errors
from master.admission.plugin import AdmissionPlugin, AdmissionRequest, Operation
from master.admission.service_account import service_account_user
from master.auth.attributes import Attributes, Authorize
from master.resources.ingresses import CLASS_ANNOTATION, Ingress, IngressClass
from master.resources.pods import PODS
from master.resources.priority_classes import (
    PREEMPT_LOWER_PRIORITY,
    PRIORITY_CLASSES,
    SYSTEM_PREFIX,
    PriorityClass,
)
from master.resources.scheme import group_resource
from master.resources.volumes import StorageClass, claim_class, default_class
from master.storage.interface import Transaction

SYSTEM_NAMESPACE = "kube-system"
"""The namespace in which everybody who may create pods may use the system priority classes."""


class Priority(AdmissionPlugin):
    """Sets the priority of new pods from their PriorityClass. Allows one default PriorityClass.

    Pods of a system class evict those of all other tenants. Outside kube-system, the pod's service account or its
    requester needs the verb `use` for the class. With `authorize` None, everybody may use it.
    """

    def __init__(self, authorize: Authorize | None) -> None:
        self._authorize = authorize

    def mutate(self, request: AdmissionRequest, obj: Any, objects: Transaction) -> Any:
        if request.operation is not Operation.CREATE or not isinstance(obj, Pod):
            return obj
        return apply_priority(obj, objects.list(group_resource(PriorityClass)))

    def validate(self, request: AdmissionRequest, obj: Any, objects: Transaction) -> None:
        if request.operation is not Operation.DELETE and isinstance(obj, PriorityClass):
            check_single_default(obj, objects.list(group_resource(PriorityClass)))
        elif request.operation is Operation.CREATE and isinstance(obj, Pod):
            self._check_system_class(request, obj)

    def _check_system_class(self, request: AdmissionRequest, pod: Pod) -> None:
        name, namespace = pod.spec.priority_class_name, pod.metadata.namespace
        if self._authorize is None or not name.startswith(SYSTEM_PREFIX) or namespace == SYSTEM_NAMESPACE:
            return
        attributes = Attributes("use", PRIORITY_CLASSES.group, PRIORITY_CLASSES.plural, namespace=namespace, name=name)
        users = (service_account_user(pod), *((request.requester.user,) if request.requester is not None else ()))
        if not any(user.node or self._authorize(user, attributes) for user in users):
            reason = f"pods with {name} priorityClass is not permitted in {namespace} namespace"
            raise errors.forbidden(request.resource, pod.metadata.name, reason)


def apply_priority(pod: Pod, classes: Iterable[PriorityClass]) -> Pod:
    """Return the pod with the priority and preemption policy of its class. Raises Forbidden if its own differ."""
    spec, by_name = pod.spec, {priority_class.metadata.name: priority_class for priority_class in classes}
    if spec.priority_class_name and spec.priority_class_name not in by_name:
        reason = f"no PriorityClass with name {spec.priority_class_name} was found"
        raise errors.forbidden(PODS, pod.metadata.name, reason)
    defaults = sorted(
        (priority_class for priority_class in by_name.values() if priority_class.global_default),
        key=lambda priority_class: priority_class.value,
    )
    resolved = (
        by_name[spec.priority_class_name]
        if spec.priority_class_name
        else (defaults[0] if defaults else PriorityClass())
    )
    policy = resolved.preemption_policy or PREEMPT_LOWER_PRIORITY
    for value, expected, description in (
        (spec.priority, resolved.value, "integer value of priority"),
        (spec.preemption_policy, policy, "string value of PreemptionPolicy"),
    ):
        if value is not None and value != expected:
            reason = (
                f"the {description} ({value}) must not be provided in pod spec; priority admission controller computed "
                f"{expected} from the given PriorityClass name"
            )
            raise errors.forbidden(PODS, pod.metadata.name, reason)
    name = spec.priority_class_name or resolved.metadata.name
    return replace(pod, spec=replace(spec, priority_class_name=name, priority=resolved.value, preemption_policy=policy))


def check_single_default(new: PriorityClass, others: Iterable[PriorityClass]) -> None:
    """Require that no other PriorityClass is the default. Raises Forbidden."""
    if not new.global_default:
        return
    for other in others:
        if other.global_default and other.metadata.name != new.metadata.name:
            reason = f"PriorityClass {other.metadata.name} is already marked as default. Only one default can exist"
            raise errors.forbidden(PRIORITY_CLASSES, new.metadata.name, reason)


DEFAULT_TOLERATION_SECONDS = 300


class DefaultTolerationSeconds(AdmissionPlugin):
    """Lets pods stay on a node that is not ready or unreachable for DEFAULT_TOLERATION_SECONDS."""

    def mutate(self, request: AdmissionRequest, obj: Any, objects: Transaction) -> Any:
        del objects
        if request.operation is Operation.DELETE or request.subresource or not isinstance(obj, Pod):
            return obj
        return apply_default_tolerations(obj)


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
"""Annotation of the default IngressClass. Of several, the newest is used, and of equally new ones the first by name."""


class DefaultIngressClass(AdmissionPlugin):
    """Sets the default IngressClass of new ingresses that name none."""

    def mutate(self, request: AdmissionRequest, obj: Any, objects: Transaction) -> Any:
        if request.operation is not Operation.CREATE or not isinstance(obj, Ingress):
            return obj
        return apply_default_class(obj, objects.list(group_resource(IngressClass)))


def apply_default_class(ingress: Ingress, classes: Iterable[IngressClass]) -> Ingress:
    """Return the ingress with the default class, unless it names one."""
    if ingress.spec.ingress_class_name is not None or CLASS_ANNOTATION in ingress.metadata.annotations:
        return ingress
    defaults = sorted(
        (
            ingress_class
            for ingress_class in classes
            if ingress_class.metadata.annotations.get(DEFAULT_CLASS_ANNOTATION) == "true"
        ),
        key=lambda ingress_class: ingress_class.metadata.name,
    )
    if not defaults:
        return ingress
    newest = max(defaults, key=lambda ingress_class: ingress_class.metadata.creation_timestamp or "")
    return replace(ingress, spec=replace(ingress.spec, ingress_class_name=newest.metadata.name))


class DefaultStorageClass(AdmissionPlugin):
    """Sets the default StorageClass of new claims that name none. An empty name stands for no class, and stays."""

    def mutate(self, request: AdmissionRequest, obj: Any, objects: Transaction) -> Any:
        if request.operation is not Operation.CREATE or not isinstance(obj, PersistentVolumeClaim):
            return obj
        return apply_default_storage_class(obj, default_class(objects.list(group_resource(StorageClass))))


def apply_default_storage_class(claim: PersistentVolumeClaim, default: str) -> PersistentVolumeClaim:
    """Return the claim with the default class, unless it names one or there is no default."""
    if claim_class(claim) is not None or not default:
        return claim
    return replace(claim, spec=replace(claim.spec, storage_class_name=default))
