"""AdmissionReview: the JSON that a webhook is sent, and the verdict in the JSON that it returns. Pure.

A response is hostile input. Its bytes are bounded where they are read; here its values and levels are.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping
from typing import Any

import msgspec

from api.codec.limits import has_too_many_parts, is_too_deep
from api.meta.schema import quoted
from api.meta.types import Value
from master.admission.webhooks.calls import CallFailed, Rejection, Verdict, WebhookResult

GROUP = "admission.k8s.io"
MAX_WARNINGS, MAX_WARNING_LENGTH = 64, 4096
MAX_ANNOTATIONS, MAX_ANNOTATION_LENGTH = 32, 10_240


def encode_review(version: str, uid: str, request: bytes) -> bytes:
    """Return an AdmissionReview with a request, whose JSON has no uid and at least one other field."""
    head = f'{{"kind":"AdmissionReview","apiVersion":"{GROUP}/{version}","request":{{"uid":"{uid}",'
    return b"".join((head.encode("ascii"), request[1:], b"}"))


class _Status(Value, frozen=True):
    code: int = 0
    reason: str = ""
    message: str = ""


class _Response(Value, frozen=True):
    uid: str = ""
    allowed: bool = False
    status: _Status | None = None
    patch: str | None = None
    patch_type: str | None = None
    audit_annotations: dict[str, str] | None = None
    warnings: tuple[str, ...] | None = None


class _Review(Value, frozen=True):
    kind: str = ""
    api_version: str = ""
    response: _Response | None = None


def decode_review(version: str, uid: str, body: bytes) -> WebhookResult:
    """Return the verdict in the body of a response with status 200."""
    if has_too_many_parts(body):
        return CallFailed("received invalid webhook response: it has too many values")
    try:
        review = msgspec.json.decode(body, type=_Review)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as error:
        return CallFailed(f"couldn't get version/kind; json parse error: {str(error)[:200]}")
    expected = f"{GROUP}/{version}, Kind=AdmissionReview"
    if (review.api_version, review.kind) != (f"{GROUP}/{version}", "AdmissionReview"):
        found = f"{review.api_version[:100]}, Kind={review.kind[:100]}"
        return CallFailed(f"received invalid webhook response: expected webhook response of {expected}, got {found}")
    response = review.response
    if response is None:
        return CallFailed("webhook response was absent")
    if response.uid != uid:
        text = f'expected response.uid="{uid}", got {quoted(response.uid)}'
        return CallFailed(f"received invalid webhook response: {text}")
    return _verdict(response)


def _verdict(response: _Response) -> WebhookResult:
    patch: list[object] = []
    if response.patch is not None and not response.patch_type:
        return CallFailed(
            "received invalid webhook response: webhook returned response.patch but not response.patchType"
        )
    if response.patch_type and not response.patch:
        return CallFailed(
            "received invalid webhook response: webhook returned response.patchType but not response.patch"
        )
    if response.patch_type not in (None, "", "JSONPatch"):
        found = quoted(response.patch_type)
        return CallFailed(
            f"received invalid webhook response: unsupported response.patchType {found}; JSONPatch is accepted"
        )
    if response.patch:
        decoded = _decode_patch(response.patch)
        if isinstance(decoded, CallFailed):
            return decoded
        patch = decoded
    status = response.status or _Status()
    return Verdict(
        None if response.allowed else Rejection(status.code, status.reason, status.message),
        tuple(patch),
        bool(response.patch),
        tuple(text[:MAX_WARNING_LENGTH] for text in (response.warnings or ())[:MAX_WARNINGS]),
        tuple(
            (key, value[:MAX_ANNOTATION_LENGTH])
            for key, value in list((response.audit_annotations or {}).items())[:MAX_ANNOTATIONS]
        ),
    )


def _decode_patch(text: str) -> list[object] | CallFailed:
    """Return the operations of a patch in base64."""
    failed = "received undecodable patch in webhook response"
    try:
        data = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError) as error:
        return CallFailed(f"{failed}: {error}")
    if has_too_many_parts(data):
        return CallFailed(f"{failed}: it has too many values")
    try:
        operations = msgspec.json.decode(data)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as error:
        return CallFailed(f"{failed}: {str(error)[:200]}")
    if not isinstance(operations, list):
        return CallFailed(f"{failed}: it is not a list")
    if is_too_deep(operations):
        return CallFailed(f"{failed}: it has too many levels")
    return operations


def group_version_kind(resource: Any) -> Mapping[str, str]:
    """Return the kind of a resource as a review names it."""
    return {"group": resource.group, "version": resource.version, "kind": resource.kind}


def group_version_resource(resource: Any) -> Mapping[str, str]:
    """Return a resource as a review names it."""
    return {"group": resource.group, "version": resource.version, "resource": resource.plural}
