"""PodNodeConstraints: who may choose the node of a pod. Pure.

Source: the admission plugin PodNodeConstraints of OpenShift. A pod with `spec.nodeName` avoids the scheduler, with the
taints and the resources of nodes. Its requester needs the right to bind pods.
"""

from __future__ import annotations

from typing import Any

from api.core.pod import Pod
from master import errors
from master.admission.plugin import AdmissionPlugin, AdmissionRequest, Operation
from master.auth.attributes import Attributes
from master.resources.pod_template import template_of
from master.storage.interface import Transaction


class PodNodeConstraints(AdmissionPlugin):
    """Rejects new pods and templates with a node from requesters who may not bind pods.

    A template is checked when it is written, not when a controller creates pods from it. Nodes are restricted by
    NodeRestriction.
    """

    def validate(self, request: AdmissionRequest, obj: Any, objects: Transaction) -> None:
        del objects
        requester = request.requester
        if requester is None or requester.user.node or request.subresource:
            return
        if request.operation is Operation.CREATE:
            before = ""
        elif request.operation is Operation.UPDATE:
            before = _node_name(request.old)
        else:
            return
        if _node_name(obj) in ("", before):
            return
        namespace = obj.metadata.namespace
        if not requester.is_allowed(Attributes("create", "", "pods", "binding", namespace, obj.metadata.name)):
            reason = "node selection by nodeName is prohibited by policy for your role"
            raise errors.forbidden(request.resource, obj.metadata.name, reason)


def _node_name(obj: Any) -> str:
    """Return the node that a pod or the template of a workload names; empty for other objects."""
    if isinstance(obj, Pod):
        return obj.spec.node_name
    template = template_of(obj)
    return template.spec.node_name if template is not None else ""
