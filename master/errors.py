"""StatusError, and one constructor for each reason, with the messages and fields of Kubernetes. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import islice

import msgspec

from api.meta import schema
from api.meta.schema import FieldError
from api.meta.types import ListMeta, Status, StatusCause, StatusDetails
from master.resources.resource import AnyResource


class StatusError(Exception):
    """An error that ends a request with this Status; the warnings are sent with it."""

    def __init__(self, status: Status) -> None:
        super().__init__(status.message)
        self.status = status
        self.warnings: tuple[str, ...] = ()


@contextmanager
def with_warnings(warnings: Sequence[str]) -> Iterator[None]:
    """Set the warnings of every StatusError that is raised inside, those that are added meanwhile too."""
    try:
        yield
    except StatusError as error:
        error.warnings = tuple(warnings)
        raise


def status_error(code: int, reason: str, message: str, details: StatusDetails | None = None) -> StatusError:
    """Return an error with a Status of failure."""
    return StatusError(Status(status="Failure", code=code, reason=reason, message=message, details=details))


def success(details: StatusDetails | None = None, code: int = 0) -> Status:
    """Return a Status of success; it has a code only where kube-apiserver sends one."""
    return Status(status="Success", details=details, code=code)


def details_of(
    resource: AnyResource, name: str = "", uid: str = "", causes: Iterable[StatusCause] = ()
) -> StatusDetails:
    """Return the details of a Status about an object."""
    return StatusDetails(name=name, group=resource.group, kind=resource.plural, uid=uid, causes=tuple(causes))


def qualified_resource(resource: AnyResource) -> str:
    """Return a resource as messages name it: pods, hostsubnets.network.openshift.io."""
    return f"{resource.plural}.{resource.group}" if resource.group else resource.plural


def bad_request(message: str) -> StatusError:
    """Return 400: the request is malformed."""
    return status_error(400, "BadRequest", message)


def forbidden(resource: AnyResource, name: str, reason: str, causes: Iterable[StatusCause] = ()) -> StatusError:
    """Return 403: the request is understood and not allowed."""
    subject = f'{qualified_resource(resource)} "{name}"' if name else qualified_resource(resource)
    return status_error(
        403, "Forbidden", f"{subject} is forbidden: {reason}", details_of(resource, name, causes=causes)
    )


def forbidden_request(group: str, plural: str, name: str, reason: str) -> StatusError:
    """Return 403 for a request that is not about stored objects."""
    qualified = f"{plural}.{group}" if group else plural
    subject = f'{qualified} "{name}"' if name else qualified
    details = StatusDetails(name=name, group=group, kind=plural)
    return status_error(403, "Forbidden", f"{subject} is forbidden: {reason}", details)


def forbidden_path(reason: str) -> StatusError:
    """Return 403 for a path that names no resource."""
    return status_error(403, "Forbidden", f"forbidden: {reason}", StatusDetails())


def path_not_found() -> StatusError:
    """Return 404: the path names no resource."""
    return status_error(404, "NotFound", "the server could not find the requested resource", StatusDetails())


def not_found(resource: AnyResource, name: str) -> StatusError:
    """Return 404: the object does not exist."""
    return status_error(
        404, "NotFound", f'{qualified_resource(resource)} "{name}" not found', details_of(resource, name)
    )


def method_not_allowed(reason: str = "") -> StatusError:
    """Return 405: the resource does not have this method."""
    message = "the server does not allow this method on the requested resource" + (f": {reason}" if reason else "")
    return status_error(405, "MethodNotAllowed", message, StatusDetails())


def not_acceptable() -> StatusError:
    """Return 406: the server has none of the media types that the client accepts."""
    message = "406: Not Acceptable\n\nAvailable representations: application/json"
    return status_error(406, "NotAcceptable", message, StatusDetails())


def already_exists(resource: AnyResource, name: str) -> StatusError:
    """Return 409: an object of this name exists."""
    return status_error(
        409, "AlreadyExists", f'{qualified_resource(resource)} "{name}" already exists', details_of(resource, name)
    )


def conflict(resource: AnyResource, name: str, reason: str = "") -> StatusError:
    """Return 409: the object differs from the state that the request is based on."""
    modified = "the object has been modified; please apply your changes to the latest version and try again"
    message = f'Operation cannot be fulfilled on {qualified_resource(resource)} "{name}": {reason or modified}'
    return status_error(409, "Conflict", message, details_of(resource, name))


def uid_conflict(resource: AnyResource, name: str, expected: str, actual: str) -> StatusError:
    """Return 409: the UID of the object is not that in the body. `actual` is empty if there is no object."""
    return conflict(
        resource, name, f"Precondition failed: UID in precondition: {expected}, UID in object meta: {actual}"
    )


def precondition_failed(resource: AnyResource, name: str, reason: str) -> StatusError:
    """Return 409: a precondition of a delete does not hold. The Status names the kind, not the resource."""
    message = f'Operation cannot be fulfilled on {resource.kind} "{name}": {reason}'
    return status_error(409, "Conflict", message, StatusDetails(name=name, group=resource.group, kind=resource.kind))


def invalid_patch(reason: str) -> StatusError:
    """Return 422: the patch cannot be applied to the object."""
    message = "the server rejected our request due to an error in our request"
    cause = StatusCause(reason=schema.INVALID, message=reason, field="patch")
    return status_error(422, "Invalid", message, StatusDetails(causes=(cause,)))


def expired(message: str) -> StatusError:
    """Return 410: the requested revision is compacted; the client must list again."""
    return status_error(410, "Expired", message)


def continue_expired(token: str) -> StatusError:
    """Return 410: the rest of the list is compacted; `token` continues with the current state instead."""
    message = (
        "The provided continue parameter is too old to display a consistent list result. You can start a new list "
        "without the continue parameter, or use the continue token in this response to retrieve the remainder of the "
        "results. Continuing with the provided token results in an inconsistent list - objects that were created, "
        "modified, or deleted between the time the first chunk was returned and now may show up in the list."
    )
    status = expired(message).status
    return StatusError(msgspec.structs.replace(status, metadata=ListMeta(continue_=token)))


def unsupported_media_type(message: str) -> StatusError:
    """Return 415: the server does not read the media type of the body."""
    return status_error(415, "UnsupportedMediaType", message)


def unsupported_patch() -> StatusError:
    """Return 415: the server does not read the patch format."""
    return status_error(415, "UnsupportedMediaType", "415: Unsupported Media Type", StatusDetails())


def resource_version_too_large(requested: int, current: int) -> StatusError:
    """Return 504: the requested revision is in the future."""
    cause = StatusCause(reason="ResourceVersionTooLarge", message="Too large resource version")
    details = StatusDetails(causes=(cause,), retry_after_seconds=1)
    message = f"Timeout: Too large resource version: {requested}, current: {current}"
    return status_error(504, "Timeout", message, details)


def too_many_requests() -> StatusError:
    """Return 429: the client has more requests in progress than the server allows."""
    message = "too many requests, please try again later."
    return status_error(429, "TooManyRequests", message, StatusDetails(retry_after_seconds=1))


def service_unavailable(message: str) -> StatusError:
    """Return 503: a dependency of the server does not work; nothing was changed."""
    return status_error(503, "ServiceUnavailable", message, StatusDetails(retry_after_seconds=1))


# --- objects that are not accepted ------------------------------------------------------------------------------------


def status_cause(problem: FieldError) -> StatusCause:
    """Return the cause in a Status for a field error."""
    return StatusCause(reason=problem.reason, message=_problem_message(problem), field=problem.path)


_PROBLEMS_WITHOUT_VALUE = {schema.MISSING: "Required value", schema.FORBIDDEN: "Forbidden", schema.TOO_LONG: "Too long"}
_PROBLEMS_WITH_VALUE = {
    schema.DUPLICATE: "Duplicate value",
    schema.NOT_SUPPORTED: "Unsupported value",
    schema.TOO_MANY: "Too many",
}
"""Words of Kubernetes for the reasons of problems."""


def _problem_message(problem: FieldError) -> str:
    if problem.reason == schema.UNKNOWN:
        return f'unknown field "{problem.path}"{problem.detail}'
    if problem.reason in _PROBLEMS_WITHOUT_VALUE:
        parts: tuple[str, ...] = (_PROBLEMS_WITHOUT_VALUE[problem.reason], problem.detail)
    else:
        parts = (_PROBLEMS_WITH_VALUE.get(problem.reason, "Invalid value"), problem.bad_value, problem.detail)
    return ": ".join(filter(None, parts))


MAX_FIELD_ERRORS = 100
"""Errors of one object that a response lists. A body of 3 MB can have a million."""


def first_errors(problems: Iterable[FieldError]) -> list[FieldError]:
    """Return the errors that a response lists, and one more if there are more. The others are not computed."""
    return list(islice(problems, MAX_FIELD_ERRORS + 1))


def invalid(resource: AnyResource, name: str, problems: Sequence[FieldError]) -> StatusError:
    """Return 422 with the errors of the object, each with its path, at most MAX_FIELD_ERRORS."""
    return invalid_as(resource.group, resource.kind, name, problems)


def invalid_as(group: str, kind: str, name: str, problems: Sequence[FieldError]) -> StatusError:
    """Return 422 for an object that is not stored, such as an Eviction."""
    causes = tuple(status_cause(problem) for problem in problems[:MAX_FIELD_ERRORS])
    lines = [cause.message if cause.reason == schema.UNKNOWN else f"{cause.field}: {cause.message}" for cause in causes]
    if len(problems) > MAX_FIELD_ERRORS:
        lines.append("more errors that are not listed")
    listed = lines[0] if len(lines) == 1 else "[" + ", ".join(lines) + "]"
    details = StatusDetails(name=name, group=group, kind=kind, causes=causes)
    return status_error(422, "Invalid", f'{kind} "{name}" is invalid: {listed}', details)


def invalid_review(kind: str, problems: Sequence[FieldError]) -> StatusError:
    """Return 422: the review cannot be answered."""
    causes = tuple(status_cause(problem) for problem in problems[:MAX_FIELD_ERRORS])
    listed = ", ".join(f"{cause.field}: {cause.message}" for cause in causes)
    details = StatusDetails(kind=kind, causes=causes)
    return status_error(422, "Invalid", f'{kind} "" is invalid: {listed}', details)


def request_timeout() -> StatusError:
    """Return 504: the time that the client gave has passed while others were asked about the request."""
    message = "Timeout: request did not complete within requested timeout - context deadline exceeded"
    return status_error(504, "Timeout", message, StatusDetails())


def internal_error(text: str) -> StatusError:
    """Return 500: something that the server depends on failed."""
    details = StatusDetails(causes=(StatusCause(message=text),))
    return status_error(500, "InternalError", f"Internal error occurred: {text}", details)


def invalid_options(kind: str, problem: FieldError) -> StatusError:
    """Return 422: parameters of the request exclude each other."""
    cause, group = status_cause(problem), "meta.k8s.io"
    details = StatusDetails(group=group, kind=kind, causes=(cause,))
    return status_error(422, "Invalid", f'{kind}.{group} "" is invalid: {cause.field}: {cause.message}', details)


def strict_decoding(resource: AnyResource, sentences: Iterable[str]) -> StatusError:
    """Return 400: a request with strict validation has fields that the kind does not have, or has one twice."""
    listed = ", ".join(sentences)
    version = f"{resource.group}/{resource.version}" if resource.group else resource.version
    return bad_request(
        f'{resource.kind} in version "{version}" cannot be handled as a {resource.kind}: '
        f"strict decoding error: {listed}"
    )


def encode_status(status: Status) -> bytes:
    """Return the Status as JSON. `metadata` is always there because clients rely on it."""
    document = msgspec.to_builtins(status)
    head = {"kind": "Status", "apiVersion": "v1", "metadata": msgspec.to_builtins(ListMeta())}
    return msgspec.json.encode(head | document)
