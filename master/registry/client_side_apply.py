"""Field managers of an object that was made by client-side apply, at its first server-side apply. Pure.

kubectl keeps what it has sent in an annotation. These fields, and those that defaults have completed, belong to the
manager that kube-apiserver has recorded for it; kubectl finds it by the annotation and takes its fields over. Fields
that others have set, such as the replicas of a scaled Deployment, do not, or the takeover would remove them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import msgspec

from master.errors import StatusError
from master.registry.decoding import decode_object
from master.registry.managed_fields import BEFORE_FIRST_APPLY, UPDATE, FieldManager, leaves
from master.request_info import RequestInfo
from master.serialization.negotiation import decode_body

LAST_APPLIED = "kubectl.kubernetes.io/last-applied-configuration"
CLIENT_SIDE_APPLY = "kubectl-client-side-apply"

_ANNOTATION = ("f:metadata", "f:annotations", f"f:{LAST_APPLIED}")


def managers_by_annotation(
    info: RequestInfo, live: Mapping[str, Any], manager: FieldManager
) -> tuple[FieldManager, ...]:
    """Return the managers of an object without a record; none if the annotation is missing or not of this version.

    Version and time are those of `manager`.
    """
    annotations = live["metadata"].get("annotations") or {}
    text = annotations.get(LAST_APPLIED)
    if not text:
        return ()
    try:
        sent = decode_body(patches=False, content_type="application/json", body=text.encode()).document
        completed = decode_object(replace(info, subresource=""), sent, "Ignore").object
    except StatusError:
        return ()
    shape = info.resource.merge_schema
    before, applied = leaves(live, shape), leaves(msgspec.json.decode(msgspec.json.encode(completed)), shape)
    own = frozenset(path for path, value in applied.items() if path in before and before[path] == value) | {_ANNOTATION}
    others = frozenset(before) - own
    first = replace(manager, operation=UPDATE, subresource="", fields=own, manager=CLIENT_SIDE_APPLY)
    return (first, replace(first, fields=others, manager=BEFORE_FIRST_APPLY)) if others else (first,)
