"""Requests for resources, their options and responses, apart from HTTP. Pure.

Parameters, the options of a delete, and tokens that continue a list.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from api.meta.schema import NOT_SUPPORTED, FieldError, quoted
from master import errors
from master.admission.external_calls import PendingWrite
from master.admission.plugin import ignore_annotation
from master.auth.attributes import User
from master.registry.decoding import random_letters
from master.request_info import NameFilter, RecordFilter, RequestInfo, bool_param
from master.storage.interface import Key

# --- delete -----------------------------------------------------------------------------------------------------------


class Preconditions(msgspec.Struct, frozen=True, rename="camel"):
    """Conditions of a delete."""

    uid: str | None = None
    resource_version: str | None = None


class DeleteOptions(msgspec.Struct, frozen=True, rename="camel"):
    """The body of a delete. Without `grace_period_seconds` the grace period of the object applies.

    `propagation_policy` is Background, Foreground or Orphan; without it the default of the resource applies.
    """

    grace_period_seconds: int | None = None
    propagation_policy: str = ""
    orphan_dependents: bool | None = None
    preconditions: Preconditions | None = None
    dry_run: tuple[str, ...] = ()


MAX_FIELD_MANAGER_LENGTH, MAX_DURATION_LENGTH = 128, 64


METHOD_VERBS = {"GET": "get", "HEAD": "get", "POST": "create", "PUT": "update", "PATCH": "patch", "DELETE": "delete"}


def request_verb(method: str, info: RequestInfo, query: Mapping[str, str]) -> str:
    """Return the verb of Kubernetes for a method at a path; empty if there is none."""
    name = METHOD_VERBS.get(method, "")
    if name == "get" and not info.name:
        return "watch" if bool_param(query, "watch") else "list"
    if name == "delete" and not info.name:
        return "deletecollection"
    return name


def check_verb(verb: str, info: RequestInfo) -> None:
    """Raise MethodNotAllowed if clients cannot use a verb on the objects of a path. The verbs of its resource decide.

    Writes of a named object of a resource that is listed empty pass, because 404 is the response to them.
    """
    resource = info.resource
    may_answer_not_found = resource.listed_empty and verb in ("update", "patch", "delete")
    if verb not in resource.verbs and not may_answer_not_found:
        raise errors.method_not_allowed(resource.create_denial if verb == "create" else "")
    if verb in ("update", "patch") and not info.name:
        raise errors.method_not_allowed()
    if verb == "deletecollection" and resource.namespaced and not info.namespace:
        raise errors.method_not_allowed()


def int_param(query: Mapping[str, str], name: str) -> int | None:
    """Return a parameter that is a whole number, 0 or greater; None if it is missing. Raises StatusError."""
    text = query.get(name, "")
    if not text:
        return None
    if not (text.isascii() and text.isdecimal()) or len(text) > 18:
        raise errors.bad_request(f"parameter {name} is {text!r}; a whole number from 0 on is accepted")
    return int(text)


MAX_REQUEST_SECONDS = 60.0
_DURATION = re.compile(r"[-+]?(0|((\d+\.?\d*|\.\d+)(ns|us|µs|μs|ms|s|m|h))+)", re.ASCII)
_DURATION_PART = re.compile(r"(\d+\.?\d*|\.\d+)(ns|us|µs|μs|ms|s|m|h)", re.ASCII)
_UNIT_SECONDS = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "μs": 1e-6, "ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}


def request_seconds(query: Mapping[str, str]) -> float:
    """Return how long a write may take: the parameter timeout, such as `34s`, at most a minute.

    Raises BadRequest if it is not a duration as Go writes them.
    """
    text = query.get("timeout", "")
    if text and (len(text) > MAX_DURATION_LENGTH or not _DURATION.fullmatch(text)):
        reason = f"time: invalid duration {quoted(text)}"
        raise errors.bad_request(f"invalid timeout specified in the request URL - {reason}")
    seconds = sum(float(number) * _UNIT_SECONDS[unit] for number, unit in _DURATION_PART.findall(text))
    return min(seconds, MAX_REQUEST_SECONDS) if seconds > 0 and not text.startswith("-") else MAX_REQUEST_SECONDS


def field_manager(query: Mapping[str, str], headers: Mapping[str, str]) -> str:
    """Return the field manager: the parameter, or the beginning of the User-Agent. Raises StatusError."""
    name = query.get("fieldManager") or headers.get("User-Agent", "").partition("/")[0] or "unknown"
    if len(name) > MAX_FIELD_MANAGER_LENGTH or not name.isprintable():
        raise errors.bad_request(
            f"parameter fieldManager is {quoted(name)}; {MAX_FIELD_MANAGER_LENGTH} printable characters are accepted"
        )
    return name


def dry_run(query: Mapping[str, str]) -> bool:
    """Return whether the write is a dry run. Raises StatusError."""
    text = query.get("dryRun", "")
    if text not in ("", "All"):
        raise errors.bad_request(f"parameter dryRun is {text!r}; All is accepted")
    return bool(text)


def field_validation(query: Mapping[str, str]) -> str:
    """Return how to treat unknown fields: Strict, Warn or Ignore. Raises StatusError."""
    text = query.get("fieldValidation", "") or "Warn"
    if text not in ("Strict", "Warn", "Ignore"):
        raise errors.bad_request(f"parameter fieldValidation is {text!r}; Strict, Warn and Ignore are accepted")
    return text


# --- pages ----------------------------------------------------------------------------------------------


INCONSISTENT = -1
"""In place of a revision: the page shows the state at the time of its request."""


MAX_PAGE_AGE_SECONDS = 300
"""How long the revision of a list is kept for its next pages, as by kube-apiserver. A later one is inconsistent."""


class ContinueToken(msgspec.Struct, frozen=True):
    """Where the next page of a list begins: after an object (namespace, name), at a revision or INCONSISTENT.

    `start` is when the first page was read, in seconds since 1970.
    """

    rv: int
    after: tuple[str, str]
    start: int = 0


def encode_continue(token: ContinueToken) -> str:
    """Return the token as clients get it."""
    return base64.urlsafe_b64encode(msgspec.json.encode(token)).decode("ascii").rstrip("=")


def decode_continue(text: str) -> ContinueToken:
    """Return the token that a client sent. Raises StatusError."""
    try:
        padded = text + "=" * (-len(text) % 4)
        return msgspec.json.decode(base64.urlsafe_b64decode(padded.encode("ascii")), type=ContinueToken)
    except (msgspec.DecodeError, binascii.Error, UnicodeError, RecursionError) as error:
        raise errors.bad_request("continue key is not valid: it is not one that this server gave") from error


@dataclass(frozen=True, slots=True)
class Request:
    """A request for a resource, with its body decoded to a document."""

    info: RequestInfo
    query: Mapping[str, str]
    accept: str = ""
    content_type: str = ""
    field_manager: str = ""
    """The name under which the client owns fields."""
    user: User = User()  # noqa: RUF009
    """The user, after impersonation."""
    name_filter: NameFilter | None = None
    record_filter: RecordFilter | None = None
    """The objects that the user may get; None means all."""
    body: Any = None
    duplicate_fields: tuple[str, ...] = ()
    """A sentence for each field that the body sets twice."""
    client_address: str = ""
    """Where the connection came from; empty if the user is impersonated."""
    annotate: Callable[[str, str], None] = ignore_annotation
    """Adds an annotation to the audit events of the request."""
    write: PendingWrite = field(default_factory=PendingWrite)
    """What stays the same while the request is decided again."""

    def next_letters(self) -> str:
        """Return the next letters for a generated name."""
        return self.write.letters(random_letters)

    @property
    def key(self) -> Key:
        """Return the key of the requested object."""
        return Key(self.info.resource.stored_group_resource, self.info.namespace, self.info.name)


@dataclass(frozen=True, slots=True)
class Response:
    """An HTTP status, a JSON body, and warnings for the client. A large body is in `parts`, and `body` is empty."""

    status: int
    body: bytes
    warnings: tuple[str, ...] = ()
    parts: Sequence[bytes | memoryview] = ()


def parse_delete_options(request: Request) -> DeleteOptions:
    """Return the options of a delete: its body, overridden by its parameters. Raises StatusError."""
    try:
        options = msgspec.convert({} if request.body is None else request.body, DeleteOptions)
    except msgspec.ValidationError as error:
        raise errors.bad_request(f"the body is not a DeleteOptions: {error}") from error
    seconds, policy = int_param(request.query, "gracePeriodSeconds"), request.query.get("propagationPolicy", "")
    options = msgspec.structs.replace(
        options,
        grace_period_seconds=options.grace_period_seconds if seconds is None else seconds,
        propagation_policy=policy or options.propagation_policy,
    )
    if options.dry_run not in ((), ("All",)):
        wrong = FieldError("dryRun", quoted(options.dry_run), 'supported values: "All"', NOT_SUPPORTED)
        raise errors.invalid_options("DeleteOptions", wrong)
    if options.orphan_dependents is not None and options.propagation_policy:
        why = "orphanDependents and deletionPropagation cannot be both set"
        wrong = FieldError("propagationPolicy", quoted(options.propagation_policy), why)
        raise errors.invalid_options("DeleteOptions", wrong)
    return options
