"""Privilege escalation: a user grants by roles and bindings only what the user may do. Pure.

Source: the escalation check of Kubernetes' RBAC registry (`rbac.authorization.k8s.io`, verbs `escalate` and `bind`).
"""

from __future__ import annotations

from typing import Any

from master.admission.plugin import AdmissionPlugin, AdmissionRequest, Operation
from master.auth import rbac
from master.storage.interface import Transaction


class RBACEscalation(AdmissionPlugin):
    """Rejects roles and bindings that grant more than the requester holds."""

    def validate(self, request: AdmissionRequest, obj: Any, objects: Transaction) -> None:
        del objects
        if request.operation is Operation.DELETE or request.requester is None:
            return
        resource = request.resource
        if resource.stored_resource.type in rbac.ESCALATION_CHECKED:
            old = None if request.old is None else resource.to_stored(request.old)
            rbac.check_escalation(resource, resource.to_stored(obj), old, request.requester)
