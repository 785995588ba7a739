"""Bodies of requests: bytes of any accepted media type → a plain document. Pure. Raises `answers.Failure`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from api.codec import yaml
from master.wire import answers

JSON_PATCH = "application/json-patch+json"
MERGE_PATCH = "application/merge-patch+json"
STRATEGIC_PATCH = "application/strategic-merge-patch+json"
APPLY_PATCH = "application/apply-patch+yaml"
YAML = "application/yaml"

LARGEST_YAML = 256 << 10
"""Bytes. The parser of YAML is a hundred times slower than that of JSON; JSON is YAML, too, and not limited by this."""


def read(patches: bool, content_type: str, body: bytes) -> Any:
    """The document of a body; `patches` says that the request is a PATCH."""
    readers = _PATCHES if patches else _OBJECTS
    if content_type not in readers:
        if patches:
            raise answers.unsupported_patch()
        raise answers.unsupported_media_type(
            "the body of the request was in an unknown format - accepted media types include: "
            + ", ".join(filter(None, _OBJECTS))
        )
    return readers[content_type](body)


def _json(body: bytes) -> Any:
    try:
        return msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise answers.bad_request(f"the body is not JSON: {error}") from error


def _yaml(body: bytes) -> Any:
    try:
        return msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        pass  # it may still be YAML
    if len(body) > LARGEST_YAML:
        message = f"the body is YAML of {len(body)} bytes; {LARGEST_YAML} are accepted, or JSON of any length"
        raise answers.failure(413, "RequestEntityTooLarge", message)
    try:
        found = yaml.parse(body.decode())
    except UnicodeDecodeError as error:
        raise answers.bad_request(f"the body is not UTF-8: {error}") from error
    problems = [problem for document in found for problem in document.problems]
    if problems:
        raise answers.bad_request(f"the body is not YAML as objects are written in: {problems[0]}")
    if len(found) != 1:
        raise answers.bad_request(f"the body holds {len(found)} documents; one is accepted")
    return found[0].value


def _protobuf(body: bytes) -> Any:
    # The runtime takes 5 MB, which a master need not have before somebody sends such a body.
    from master.wire import protobuf  # noqa: PLC0415

    try:
        return protobuf.document(body)
    except protobuf.Unreadable as error:
        raise answers.unsupported_media_type(f"the protobuf body cannot be read: {error}") from error


_Readers = Mapping[str, Callable[[bytes], Any]]
_OBJECTS: _Readers = {
    "application/json": _json,
    "": _json,
    YAML: _yaml,
    "application/vnd.kubernetes.protobuf": _protobuf,
}
_PATCHES: _Readers = {JSON_PATCH: _json, MERGE_PATCH: _json, STRATEGIC_PATCH: _json, APPLY_PATCH: _yaml}
