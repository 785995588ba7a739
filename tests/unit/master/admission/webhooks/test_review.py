"""AdmissionReview: what is sent, and that no response is an exception."""

from __future__ import annotations

import base64
import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from master.admission.webhooks.calls import CallFailed, Rejection, Verdict
from master.admission.webhooks.review import decode_review, encode_review

UID = "705ab4f5-6393-11e8-b7cc-42010a800002"


def body(**response: Any) -> bytes:
    said = {"uid": UID, "allowed": True, **response}
    review = {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "response": said}
    return json.dumps(review).encode()


def test_review_has_the_uid_and_the_request() -> None:
    review = json.loads(encode_review("v1beta1", UID, b'{"operation":"CREATE"}'))
    assert review == {
        "apiVersion": "admission.k8s.io/v1beta1", "kind": "AdmissionReview",
        "request": {"uid": UID, "operation": "CREATE"},
    }  # fmt: skip


def test_verdict_has_what_the_response_says() -> None:
    patch = [{"op": "remove", "path": "/a"}]
    encoded = base64.b64encode(msgspec.json.encode(patch)).decode()
    assert decode_review("v1", UID, body(patch=encoded, patchType="JSONPatch")) == Verdict(
        patch=tuple(patch), has_patch=True
    )
    status = {"code": 403, "reason": "Forbidden", "message": "no", "metadata": {}}
    rejected = decode_review("v1", UID, body(allowed=False, status=status, warnings=["w"], auditAnnotations={"k": "v"}))
    assert rejected == Verdict(Rejection(403, "Forbidden", "no"), warnings=("w",), audit_annotations=(("k", "v"),))


@pytest.mark.parametrize(
    "data",
    [
        b"", b"null", b"[]", b"\xff", b"{}", b"[" * 100_000, b"[" + b"1," * 100_000 + b"1]",
        body(patch=base64.b64encode(b"[" * 100_000).decode(), patchType="JSONPatch"),
        body(patch=base64.b64encode(b"[" + b"1," * 100_000 + b"1]").decode(), patchType="JSONPatch"),
        body(patch=base64.b64encode(b'[{"a":' * 70 + b"1" + b"}]" * 70).decode(), patchType="JSONPatch"),
        body(patch="W10=", patchType="Merge"), body(allowed="yes"), body(warnings="w"), body(status=[]),
    ],
)  # fmt: skip
def test_hostile_response_is_a_failed_call(data: bytes) -> None:
    assert isinstance(decode_review("v1", UID, data), CallFailed)


def test_warnings_and_annotations_are_cut() -> None:
    verdict = decode_review("v1", UID, body(warnings=["w" * 10_000] * 100, auditAnnotations={"k": "v" * 99_999}))
    assert isinstance(verdict, Verdict)
    assert (len(verdict.warnings), len(verdict.warnings[0])) == (64, 4096)
    assert len(verdict.audit_annotations[0][1]) == 10_240


@given(st.binary() | st.text().map(str.encode))
def test_any_bytes_are_a_failed_call(data: bytes) -> None:
    assert isinstance(decode_review("v1", UID, data), CallFailed)
