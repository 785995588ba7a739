"""NamespaceLifecycle: objects are created only in a namespace that exists and is not terminating. Pure."""

from __future__ import annotations

from api.core.node import Namespace
from api.meta.types import StatusCause
from master import errors
from master.resources.namespaces import NAMESPACES
from master.resources.resource import AnyResource


def check_namespace(resource: AnyResource, name: str, namespace: str, found: Namespace | None) -> None:
    """Objects are made only in a namespace that exists and stays."""
    if found is None:
        raise errors.not_found(NAMESPACES, namespace)
    if found.metadata.deletion_timestamp:
        why = f"unable to create new content in namespace {namespace} because it is being terminated"
        cause = StatusCause(
            reason="NamespaceTerminating",
            message=f"namespace {namespace} is being terminated",
            field="metadata.namespace",
        )
        raise errors.forbidden(resource, name, why, [cause])
