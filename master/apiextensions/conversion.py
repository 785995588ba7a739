"""Conversion of custom resources between versions by a webhook. Pure.

Code that needs an object in another version does not wait: `Conversions.of` raises CallsPending if the webhook was not
asked yet. A driver asks it (`master/server/proxy/conversion_client.py`), and the code runs again. A result depends only
on the object, so it serves every reader of the same state. The metadata that each write changes is not part of the
question: resourceVersion and managedFields.

A response is hostile input. Its bytes are bounded where they are read; here its values and levels are.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from api.codec.limits import has_too_many_parts, is_too_deep
from api.meta.schema import quoted
from api.meta.types import Value
from master.admission.external_calls import CallsPending, ExternalCall
from master.admission.webhooks.calls import WebhookTarget
from master.apiextensions.definitions import MAX_ROOT_FIELDS

REVIEW_KIND = "ConversionReview"
REVIEW_GROUP = "apiextensions.k8s.io"

MAX_KEPT_BYTES = 16 << 20
"""Bytes of the converted objects that a master keeps for further readers. A reader needs them right after the call."""


@dataclass(frozen=True, slots=True)
class ConversionWebhook:
    """The webhook of a definition. `definition` distinguishes its states: uid and generation."""

    definition: tuple[str, int]
    target: WebhookTarget
    review_version: str


@dataclass(frozen=True, slots=True)
class ConversionCall(ExternalCall):
    """The question how an object is in another version. `data` is its JSON."""

    webhook: ConversionWebhook
    kind: str
    api_version: str
    """The version of the object that is wanted."""
    data: bytes


class ConversionFailed(Exception):
    """A response that is no conversion of the objects. The text says why."""


class Conversions:
    """The results of conversions, up to MAX_KEPT_BYTES. Those that were not used for long are dropped first."""

    def __init__(self) -> None:
        self._results: OrderedDict[ConversionCall, bytes] = OrderedDict()
        self._size = 0

    def of(self, call: ConversionCall) -> bytes:
        """Return the JSON of the converted object. Raises CallsPending if the webhook was not asked."""
        result = self._results.get(call)
        if result is None:
            raise CallsPending((call,))
        self._results.move_to_end(call)
        return result

    def put(self, call: ConversionCall, result: bytes) -> None:
        """Keep a result."""
        before = self._results.pop(call, None)
        self._size += _size(call, result) - (0 if before is None else _size(call, before))
        self._results[call] = result
        while self._size > MAX_KEPT_BYTES and len(self._results) > 1:
            self._size -= _size(*self._results.popitem(last=False))


def _size(call: ConversionCall, result: bytes) -> int:
    return len(call.data) + len(result)


# --- objects ----------------------------------------------------------------------------------------------------------


def convert(
    document: dict[str, Any], webhook: ConversionWebhook, kind: str, api_version: str, known: Conversions
) -> dict[str, Any]:
    """Return an object as a document of another version. Raises CallsPending.

    Of the metadata, the webhook decides about labels and annotations.
    """
    if document["apiVersion"] == api_version:
        return document
    metadata = document["metadata"]
    asked = {name: value for name, value in metadata.items() if name not in ("resourceVersion", "managedFields")}
    data = msgspec.json.encode({**document, "metadata": asked})
    converted: dict[str, Any] = msgspec.json.decode(known.of(ConversionCall(webhook, kind, api_version, data)))
    given = converted["metadata"]
    for name in ("labels", "annotations"):
        if given.get(name):
            metadata[name] = given[name]
        else:
            metadata.pop(name, None)
    return {**converted, "metadata": metadata}


# --- ConversionReview -------------------------------------------------------------------------------------------------


def encode_review(uid: str, calls: Sequence[ConversionCall]) -> bytes:
    """Return the ConversionReview that asks for the same version of all objects."""
    first = calls[0]
    return msgspec.json.encode(
        {
            "kind": REVIEW_KIND,
            "apiVersion": f"{REVIEW_GROUP}/{first.webhook.review_version}",
            "request": {
                "uid": uid,
                "desiredAPIVersion": first.api_version,
                "objects": [msgspec.Raw(call.data) for call in calls],
            },
        }
    )


class _Result(Value, frozen=True):
    status: str = ""
    message: str = ""
    reason: str = ""


class _Response(Value, frozen=True):
    uid: str = ""
    result: _Result = _Result()
    converted_objects: tuple[msgspec.Raw, ...] = ()


class _Review(Value, frozen=True):
    kind: str = ""
    api_version: str = ""
    response: _Response | None = None


class _Metadata(Value, frozen=True):
    name: str = ""
    namespace: str = ""
    uid: str = ""
    labels: dict[str, str] | None = None
    annotations: dict[str, str] | None = None


class _Head(Value, frozen=True):
    """What every object has."""

    metadata: _Metadata
    api_version: str = ""
    kind: str = ""


def decode_review(uid: str, calls: Sequence[ConversionCall], body: bytes) -> list[bytes]:
    """Return the converted objects, in the order of the calls. Raises ConversionFailed."""
    if has_too_many_parts(body):
        raise ConversionFailed("the response has too many values")
    try:
        review = msgspec.json.decode(body, type=_Review)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as error:
        raise ConversionFailed(f"the response is no {REVIEW_KIND}: {str(error)[:200]}") from error
    expected = f"{REVIEW_GROUP}/{calls[0].webhook.review_version}, Kind={REVIEW_KIND}"
    found = f"{review.api_version[:100]}, Kind={review.kind[:100]}"
    if found != expected:
        raise ConversionFailed(f"expected webhook response of {expected}, got {found}")
    response = review.response
    if response is None:
        raise ConversionFailed("no response provided")
    if response.uid != uid:
        raise ConversionFailed(f'expected response.uid="{uid}", got {quoted(response.uid)}')
    if response.result.status != "Success":
        said = response.result.message[:1_000]
        raise ConversionFailed(said or f"response.result.status was '{response.result.status[:100]}', not 'Success'")
    if len(response.converted_objects) != len(calls):
        raise ConversionFailed(f"returned {len(response.converted_objects)} objects, expected {len(calls)}")
    return [
        _checked(call, bytes(given), index)
        for index, (call, given) in enumerate(zip(calls, response.converted_objects, strict=True))
    ]


def _checked(call: ConversionCall, given: bytes, index: int) -> bytes:
    """Return a converted object that is still the object that was asked about. Raises ConversionFailed."""
    try:
        before, after = (msgspec.json.decode(data, type=_Head) for data in (call.data, given))
        document = msgspec.json.decode(given)
        if is_too_deep(document):
            raise ConversionFailed(f"returned invalid converted object at index {index}: it has too many levels")
        if len(document) > MAX_ROOT_FIELDS:
            text = f"it has {len(document)} root fields; {MAX_ROOT_FIELDS} are accepted"
            raise ConversionFailed(f"returned invalid converted object at index {index}: {text}")
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as error:
        raise ConversionFailed(f"returned invalid converted object at index {index}: {str(error)[:200]}") from error
    expected, found = _identity(before, call.api_version), _identity(after, after.api_version)
    for name, value in expected.items():
        if found[name] != value:
            text = f"invalid {name}: {quoted(found[name])} is returned, {quoted(value)} is expected"
            raise ConversionFailed(f"returned invalid converted object at index {index}: {text}")
    return given


def _identity(head: _Head, api_version: str) -> Mapping[str, str]:
    """Return what a conversion must not change, and the version."""
    metadata = head.metadata
    return {
        "apiVersion": api_version,
        "kind": head.kind,
        "metadata.name": metadata.name,
        "metadata.namespace": metadata.namespace,
        "metadata.uid": metadata.uid,
    }
