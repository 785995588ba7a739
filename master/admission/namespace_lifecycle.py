"""NamespaceLifecycle: objects are created only in a namespace that exists and is not terminating. Pure."""

from __future__ import annotations

from typing import Any

from api.core.node import Namespace
from api.meta.types import StatusCause
from master import errors
from master.admission.plugin import AdmissionPlugin, AdmissionRequest, Operation
from master.resources.namespaces import NAMESPACES
from master.resources.resource import AnyResource
from master.resources.scheme import group_resource
from master.storage.interface import Key, Transaction


class NamespaceLifecycle(AdmissionPlugin):
    """Rejects new objects in a namespace that does not exist or is terminating."""

    def mutate(self, request: AdmissionRequest, obj: Any, objects: Transaction) -> Any:
        if request.operation is Operation.CREATE and request.resource.namespaced:
            namespace = obj.metadata.namespace
            check_namespace(
                request.resource,
                obj.metadata.name,
                namespace,
                objects.get(Key(group_resource(Namespace), "", namespace)),
            )
        return obj


def check_namespace(resource: AnyResource, name: str, namespace_name: str, namespace: Namespace | None) -> None:
    """Raise NotFound if there is no such namespace, Forbidden if it is terminating."""
    if namespace is None:
        raise errors.not_found(NAMESPACES, namespace_name)
    if namespace.metadata.deletion_timestamp:
        reason = f"unable to create new content in namespace {namespace_name} because it is being terminated"
        cause = StatusCause(
            reason="NamespaceTerminating",
            message=f"namespace {namespace_name} is being terminated",
            field="metadata.namespace",
        )
        raise errors.forbidden(resource, name, reason, [cause])
