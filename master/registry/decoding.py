"""Decoding of request bodies: names, types, unknown fields and defaults."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from api.codec.limits import copied
from api.meta.schema import MAX_UNKNOWN_FIELDS, UNKNOWN, FieldError, shape_errors, without_nulls
from api.meta.types import ObjectMeta
from api.validation.registry import check, default
from master import errors
from master.request_info import RequestInfo
from master.resources.metadata import with_metadata
from master.resources.pod_template import check_pod_numbers
from master.resources.resource import AnyResource, DocumentRules
from master.serialization.readable import unreadable, unreadable_metadata


def random_letters() -> str:
    """Return five random letters for a generated name."""
    return "".join(random.choices(NAME_LETTERS, k=5))


NAME_LETTERS = "bcdfghjklmnpqrstvwxz2456789"
"""Letters of generated names: no vowels, so that they make no words."""

MAX_GENERATED_NAME_LENGTH = 63


@dataclass(frozen=True, slots=True)
class DecodedObject:
    """An object from a client, with its defaults and not validated yet. The warnings are sent with the response."""

    object: Any
    warnings: tuple[str, ...]


def decode_object(
    info: RequestInfo,
    document: object,
    strictness: str,
    random_letters: Callable[[], str] | None = None,
    duplicates: Sequence[str] = (),
) -> DecodedObject:
    """Return the object in a request's body. `random_letters` (five of NAME_LETTERS) completes a generateName.

    `duplicates` are sentences about fields that the body sets twice. They are treated as unknown fields are.

    Raises Invalid for values of other types than the fields have, also for quantities and times that cannot be parsed.
    The numbers of items in lists are checked here, too, because they bound the time of all that follows. All other
    values are validated after admission has completed the object (`strategy.validate`).
    """
    resource = info.resource
    if not isinstance(document, dict):
        raise errors.bad_request(f"the body is not a {resource.kind}: a JSON object is accepted")
    document = _fill_name(info, check_type_meta(resource, document), random_letters)
    if resource.documents is not None:
        return _decode_custom(resource, resource.documents, document, strictness, duplicates)
    without_null_fields = without_nulls(document)
    problems = _first_shape_errors(shape_errors(resource.type, without_null_fields))
    type_problems = errors.first_errors(unreadable(resource.type.API_VERSION, resource.kind, document))
    obj = None
    if all(problem.reason == UNKNOWN for problem in problems):
        obj = msgspec.convert(without_null_fields, resource.type)
        if too_many := [*resource.rules.check_numbers(obj), *check_pod_numbers(obj)]:
            raise errors.invalid(resource, obj.metadata.name, too_many)
        # The messages of the validation are those of Kubernetes, so they take precedence for the same field.
        problems += errors.first_errors(check(obj, resource.rules)) if type_problems else ()
    reported = {problem.path for problem in problems}
    problems += (problem for problem in type_problems if problem.path not in reported)
    ignored = [f'unknown field "{problem.path}"' for problem in problems if problem.reason == UNKNOWN]
    ignored += duplicates
    if ignored and strictness == "Strict":
        raise errors.strict_decoding(resource, ignored)
    unknown_warnings = tuple(ignored) if strictness == "Warn" else ()
    rejected = [problem for problem in problems if problem.reason != UNKNOWN]
    if rejected or obj is None:
        name = document["metadata"].get("name") if isinstance(document["metadata"], dict) else ""
        with errors.with_warnings(unknown_warnings):
            raise errors.invalid(resource, name if isinstance(name, str) else "", rejected)
    completed = with_metadata(default(obj, resource.rules), managed_fields=None, self_link="")
    return DecodedObject(completed, (*unknown_warnings, *resource.rules.warnings(obj)))


def _decode_custom(
    resource: AnyResource,
    rules: DocumentRules[Any],
    document: dict[str, Any],
    strictness: str,
    duplicates: Sequence[str],
) -> DecodedObject:
    """Return a custom resource. Its schema says which fields it has; their types are validated after admission."""
    given = without_nulls(document.get("metadata") or {})
    problems = _first_shape_errors(shape_errors(ObjectMeta, given))
    unknown = [f"metadata.{problem.path}" for problem in problems if problem.reason == UNKNOWN]
    rejected = [problem._replace(path=f"metadata.{problem.path}") for problem in problems if problem.reason != UNKNOWN]
    rejected += errors.first_errors(unreadable_metadata(given))
    if rejected:
        raise errors.bad_request(f"{resource.kind} cannot be handled: {rejected[0]}")
    metadata = msgspec.structs.replace(msgspec.convert(given, ObjectMeta), managed_fields=None, self_link="")
    fields: dict[str, Any] = copied({key: value for key, value in document.items() if key != "metadata"})
    unknown += rules.admit(fields)
    ignored = [*(f'unknown field "{path}"' for path in unknown[:MAX_UNKNOWN_FIELDS]), *duplicates]
    if ignored and strictness == "Strict":
        raise errors.strict_decoding(resource, ignored)
    warnings = ignored if strictness == "Warn" else []
    obj = rules.build(fields, metadata)
    return DecodedObject(obj, (*warnings, *resource.rules.warnings(obj)))


def _first_shape_errors(problems: Iterable[FieldError]) -> list[FieldError]:
    """Return the unknown fields, then the other errors, up to one more than a response names."""
    unknown_fields, others = list[FieldError](), list[FieldError]()
    for problem in problems:
        (unknown_fields if problem.reason == UNKNOWN else others).append(problem)
        if len(others) > errors.MAX_FIELD_ERRORS:
            break
    return [*unknown_fields, *others]


def check_type_meta(resource: AnyResource, document: Mapping[str, Any]) -> dict[str, Any]:
    """Return the document with apiVersion and kind. Raise if it names others than the request's resource."""
    version = resource.type.API_VERSION
    if document.get("apiVersion") not in (None, "", version):
        raise errors.bad_request(
            f"the API version in the data ({document['apiVersion']}) does not match the expected API version "
            f"({version})"
        )
    if document.get("kind") not in (None, "", resource.kind):
        raise errors.bad_request(f'{document["kind"]} in version "{version}" cannot be handled as a {resource.kind}')
    return {**document, "apiVersion": version, "kind": resource.kind}


def _fill_name(info: RequestInfo, document: dict[str, Any], random_letters: Callable[[], str] | None) -> dict[str, Any]:
    """Return the document with the namespace and name of the path. The body may omit but not contradict them."""
    given = document.get("metadata")
    if given is not None and not isinstance(given, dict):
        return document
    metadata = dict(given or {})
    if info.resource.namespaced:
        check_namespace(metadata.get("namespace"), info.namespace)
        metadata["namespace"] = info.namespace
    if info.name:
        if metadata.get("name") not in (None, "", info.name):
            raise errors.bad_request(
                f"the name of the object ({metadata['name']}) does not match the name on the URL ({info.name})"
            )
        metadata["name"] = info.name
    prefix = metadata.get("generateName")
    if not metadata.get("name") and prefix and isinstance(prefix, str) and random_letters is not None:
        metadata["name"] = generate_name(prefix, random_letters())
    return {**document, "metadata": metadata}


def check_namespace(given: object, wanted: str) -> None:
    """Raise BadRequest if the body names another namespace than the path. It may omit the namespace."""
    if given not in (None, "", wanted):
        raise errors.bad_request(
            f"the namespace of the provided object ({given}) does not match the namespace sent on the request "
            f"({wanted})"
        )


def generate_name(prefix: str, letters: str) -> str:
    """Return a generated name."""
    return prefix[: MAX_GENERATED_NAME_LENGTH - len(letters)] + letters
