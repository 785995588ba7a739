"""NamespaceLifecycle: objects are created only in a namespace that exists and is not terminating. Pure."""

from __future__ import annotations

from api.core.node import Namespace
from api.meta.types import StatusCause
from master.kinds.kind import AnyKind
from master.kinds.namespace import NAMESPACE
from master.wire import answers


def check_namespace(kind: AnyKind, name: str, namespace: str, found: Namespace | None) -> None:
    """Objects are made only in a namespace that exists and stays."""
    if found is None:
        raise answers.not_found(NAMESPACE, namespace)
    if found.metadata.deletion_timestamp:
        why = f"unable to create new content in namespace {namespace} because it is being terminated"
        cause = StatusCause(
            reason="NamespaceTerminating",
            message=f"namespace {namespace} is being terminated",
            field="metadata.namespace",
        )
        raise answers.forbidden(kind, name, why, [cause])
