"""Objects that a webhook or a policy has changed: from a patched document to an object of the same identity. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from api.codec.limits import MAX_VALUES, has_too_many_values
from api.meta.schema import UNKNOWN, FieldError, quoted, shape_errors, without_nulls
from api.meta.types import ObjectMeta
from api.validation.registry import default
from master import errors
from master.admission.plugin import AdmissionRequest
from master.resources.metadata import with_metadata
from master.resources.resource import AnyResource, DocumentRules
from master.serialization.readable import unreadable

MAX_OBJECT_BYTES = 4 << 20
"""Bytes of an object as JSON. A body is smaller, but each patch could make an object larger by the size of a body."""


class Undecodable(ValueError):
    """A document is not an object of its kind. `unknown` are the paths of fields that it does not have."""

    def __init__(self, message: str, unknown: tuple[str, ...] = ()) -> None:
        super().__init__(message)
        self.unknown = unknown


def document_of(obj: Any) -> Any:
    """Return an object as decoded JSON."""
    return msgspec.json.decode(msgspec.json.encode(obj))


def require_size(document: Any) -> None:
    """Raise Undecodable for a document that is too large to be an object."""
    if has_too_many_values(document):
        raise Undecodable(f"has more than {MAX_VALUES} values")
    if len(msgspec.json.encode(document)) > MAX_OBJECT_BYTES:
        raise Undecodable(f"has more than {MAX_OBJECT_BYTES} bytes")


def decoded_object(resource: AnyResource, document: Any, *, is_strict: bool = False) -> Any:
    """Return the object of a document, with defaults. Unknown fields are dropped, unless it is strict.

    Those of a custom resource are always dropped. Raises Undecodable, and Invalid for more parts than a kind may have.
    """
    if not isinstance(document, dict):
        raise Undecodable(f"is {quoted(document)}; an object is accepted")
    version, kind = resource.type.API_VERSION, resource.kind
    if (document.get("apiVersion"), document.get("kind")) != (version, kind):
        raise Undecodable(f"has another apiVersion or kind than {kind} of {version}")
    if resource.documents is not None:
        return _decoded_custom(resource.documents, document)
    document = without_nulls(document)
    problems = list(shape_errors(resource.type, document))
    unknown = tuple(problem.path for problem in problems if problem.reason == UNKNOWN)
    if is_strict and unknown:
        raise Undecodable(f"has the unknown field {unknown[0]}", unknown)
    problems = [problem for problem in problems if problem.reason != UNKNOWN]
    problems += unreadable(version, kind, document)
    if problems:
        raise Undecodable(f"cannot be decoded: {problems[0]}")
    decoded = msgspec.convert(document, resource.type)
    if too_many := list(resource.rules.check_numbers(decoded)):
        raise errors.invalid(resource, decoded.metadata.name, too_many)
    return default(decoded, resource.rules)


def _decoded_custom(rules: DocumentRules[Any], document: dict[str, Any]) -> Any:
    """Return the custom resource of a document: without unknown fields, with defaults."""
    given = without_nulls(document.get("metadata") or {})
    if problems := [problem for problem in shape_errors(ObjectMeta, given) if problem.reason != UNKNOWN]:
        raise Undecodable(f"cannot be decoded: metadata.{problems[0]}")
    fields = {key: value for key, value in document.items() if key != "metadata"}
    rules.admit(fields)
    return rules.build(fields, msgspec.convert(given, ObjectMeta))


def with_identity(changer: str, request: AdmissionRequest, new: Any, old: Any) -> Any:
    """Return the new object with the metadata that only the server sets. Raises Invalid if it is another object."""
    before, after = old.metadata, new.metadata
    if problems := list(_identity_changes(changer, before, after)):
        raise errors.invalid(request.resource, before.name, problems)
    return with_metadata(
        new,
        resource_version=before.resource_version,
        generation=before.generation,
        creation_timestamp=before.creation_timestamp,
        deletion_timestamp=before.deletion_timestamp,
        deletion_grace_period_seconds=before.deletion_grace_period_seconds,
        managed_fields=before.managed_fields,
        self_link=before.self_link,
    )


def _identity_changes(changer: str, before: Any, after: Any) -> Iterator[FieldError]:
    for key in ("name", "namespace", "uid"):
        if getattr(before, key) != getattr(after, key):
            yield FieldError(f"metadata.{key}", quoted(getattr(after, key)), f"{changer} may not change it")
