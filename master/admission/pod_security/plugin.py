"""PodSecurity: rejects pods, and warns of pods, that a level of the Pod Security Standards forbids. Pure.

Source: the admission plugin PodSecurity of Kubernetes. Labels of the namespace choose the levels. It runs after SCC
admission, so it checks pods as they are filled in.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice
from typing import Any

from api.core.node import Namespace
from api.core.pod import Pod
from api.meta.types import ObjectMeta
from master import errors
from master.admission.plugin import AdmissionPlugin, AdmissionRequest, Operation
from master.admission.pod_security.checks import PRIVILEGED, CheckedPod, Violation, violations
from master.admission.pod_security.policy import LevelVersion, Policy, label_errors, parse_policy
from master.resources.metadata import controller_of
from master.resources.pod_template import template_of
from master.resources.pods import EPHEMERAL_CONTAINERS
from master.resources.scheme import group_resource
from master.storage.interface import Key, Transaction

ENFORCE_ANNOTATION = "pod-security.kubernetes.io/enforce-policy"
VIOLATIONS_ANNOTATION = "pod-security.kubernetes.io/audit-violations"
ERROR_ANNOTATION = "pod-security.kubernetes.io/error"
"""Annotations of audit events."""

MAX_PODS = 3000
"""Pods of a namespace that are checked when its level changes."""

MAX_NAMED_PODS = 20
"""Warnings about pods of a namespace whose level changes."""


class PodSecurity(AdmissionPlugin):
    """Checks pods by the labels of their namespace, and the labels by their values."""

    def validate(self, request: AdmissionRequest, obj: Any, objects: Transaction) -> None:
        if request.operation not in (Operation.CREATE, Operation.UPDATE):
            return
        if request.resource.is_stored_as(Namespace) and not request.subresource:
            self._validate_namespace(request, obj.metadata, objects)
        elif isinstance(obj, Pod) and request.subresource in ("", EPHEMERAL_CONTAINERS):
            if request.old is None or _has_other_containers(obj, request.old):
                self._validate_pod(request, obj, objects)
        elif not request.subresource and (template := template_of(obj)) is not None:
            subject = CheckedPod(template.metadata.annotations, template.spec)
            _report(request, subject, _policy(request, obj.metadata.namespace, objects))

    @staticmethod
    def _validate_pod(request: AdmissionRequest, pod: Pod, objects: Transaction) -> None:
        policy = _policy(request, pod.metadata.namespace, objects)
        subject = CheckedPod(pod.metadata.annotations, pod.spec)
        request.annotate(ENFORCE_ANNOTATION, str(policy.enforce))
        found = violations(subject, *policy.enforce)
        if found:
            reason = f'violates PodSecurity "{policy.enforce}": {_joined(found)}'
            raise errors.forbidden(request.resource, pod.metadata.name, reason)
        _report(request, subject, policy)

    @staticmethod
    def _validate_namespace(request: AdmissionRequest, meta: ObjectMeta, objects: Transaction) -> None:
        """Reject invalid labels, and warn of the pods that a new level would reject."""
        old = request.old.metadata.labels if request.old is not None else {}
        problems = tuple(label_errors(meta.labels, old))
        if problems:
            raise errors.invalid(request.resource, meta.name, problems)
        enforced = parse_policy(meta.labels).enforce
        if request.old is None or enforced == parse_policy(old).enforce or enforced.level == PRIVILEGED:
            return
        for warning in pod_warnings(meta.name, enforced, objects.list(group_resource(Pod), meta.name)):
            request.warn(warning)


def pod_warnings(namespace: str, enforced: LevelVersion, pods: Iterable[Pod]) -> list[str]:
    """Return warnings about the pods of a namespace that a level would reject, one for all pods of the same reasons.

    Of the pods of one controller, one is checked.
    """
    by_controller: dict[str, Pod] = {}
    for pod in pods:
        owner = controller_of(pod.metadata)
        by_controller.setdefault(owner.uid if owner is not None else f"{pod.metadata.name} itself", pod)
    names_by_reason: dict[str, list[str]] = {}
    for pod in islice(by_controller.values(), MAX_PODS):
        found = violations(CheckedPod(pod.metadata.annotations, pod.spec), *enforced)
        if found:
            names_by_reason.setdefault(_joined(found), []).append(pod.metadata.name)
    if not names_by_reason:
        return []
    warnings = [f'existing pods in namespace "{namespace}" violate the new PodSecurity enforce level "{enforced}"']
    for reason, names in sorted(islice(names_by_reason.items(), MAX_NAMED_PODS), key=lambda item: item[1][0]):
        others = len(names) - 1
        more = f" (and {others} other {'pod' if others == 1 else 'pods'})" if others else ""
        warnings.append(f"{names[0]}{more}: {reason}")
    return warnings


def _policy(request: AdmissionRequest, namespace: str, objects: Transaction) -> Policy:
    """Return the policy of a namespace. Invalid labels of earlier times are named in audit events."""
    stored: Namespace | None = objects.get(Key(group_resource(Namespace), "", namespace))
    if stored is None:
        return Policy()
    if problems := ", ".join(map(str, label_errors(stored.metadata.labels, {}))):
        request.annotate(ERROR_ANNOTATION, f"Failed to parse policy: {problems}")
    return parse_policy(stored.metadata.labels)


def _report(request: AdmissionRequest, subject: CheckedPod, policy: Policy) -> None:
    """Send the warning of the level for warnings, and annotate audit events with that of the level for audit."""
    warning = _would_violate(subject, policy.warn)
    if warning:
        request.warn(warning)
    # Both levels are the same unless somebody has set one of them.
    finding = warning if policy.audit == policy.warn else _would_violate(subject, policy.audit)
    if finding:
        request.annotate(VIOLATIONS_ANNOTATION, finding)


def _would_violate(subject: CheckedPod, level: LevelVersion) -> str:
    """Return the text about a pod that a level would forbid; empty if it allows the pod."""
    found = violations(subject, *level)
    return f'would violate PodSecurity "{level}": {_joined(found)}' if found else ""


def _joined(found: Iterable[Violation]) -> str:
    return ", ".join(map(str, found))


def _has_other_containers(new: Pod, old: Pod) -> bool:
    """Return whether the set of containers or an image changes. Other updates of a pod are not checked."""
    return _images(new) != _images(old)


def _images(pod: Pod) -> list[tuple[str, str]]:
    spec = pod.spec
    containers = (*spec.init_containers, *spec.containers, *spec.ephemeral_containers)
    return [(container.name, container.image) for container in containers]
