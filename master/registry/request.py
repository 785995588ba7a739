"""Requests for resources, their options and responses, apart from HTTP. Pure.

The path, the parameters, the options of a delete, selectors, and tokens that continue a list.
"""

from __future__ import annotations

import base64
import binascii
import datetime
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from api.meta.schema import NOT_SUPPORTED, FieldError, quoted
from api.meta.selectors import BadSelector, Selector, parse_field_selector, parse_label_selector
from master import errors
from master.auth.attributes import User
from master.resources.resource import AnyResource
from master.storage.interface import Key, Record

# --- delete -----------------------------------------------------------------------------------------------------------


class Preconditions(msgspec.Struct, frozen=True, rename="camel"):
    """What must hold of the object that is to be deleted."""

    uid: str | None = None
    resource_version: str | None = None


class DeleteOptions(msgspec.Struct, frozen=True, rename="camel"):
    """The body of a delete; `grace_period_seconds` left out means what the object says.

    `propagation_policy` says what becomes of dependents: Background, Foreground or Orphan; without it the kind decides.
    """

    grace_period_seconds: int | None = None
    propagation_policy: str = ""
    orphan_dependents: bool | None = None
    preconditions: Preconditions | None = None
    dry_run: tuple[str, ...] = ()


MAX_FIELD_MANAGER_LENGTH = 128


@dataclass(frozen=True, slots=True)
class RequestInfo:
    """A resource path: the kind, and as far as the path goes, the namespace, the name and the subresource."""

    kind: AnyResource
    namespace: str = ""
    name: str = ""
    subresource: str = ""


METHOD_VERBS = {"GET": "get", "HEAD": "get", "POST": "create", "PUT": "update", "PATCH": "patch", "DELETE": "delete"}


def request_verb(method: str, where: RequestInfo, query: Mapping[str, str]) -> str:
    """The verb of Kubernetes for a method at a path; empty if there is none."""
    name = METHOD_VERBS.get(method, "")
    if name == "get" and not where.name:
        return "watch" if bool_param(query, "watch") else "list"
    if name == "delete" and not where.name:
        return "deletecollection"
    return name


def bool_param(query: Mapping[str, str], name: str) -> bool:
    """A parameter that is on or off. Raises StatusError."""
    text = query.get(name, "")
    if text in ("1", "true", "True", "t", "T", "TRUE"):
        return True
    if text in ("", "0", "false", "False", "f", "F", "FALSE"):
        return False
    raise errors.bad_request(f"parameter {name} is {text!r}; true and false are accepted")


def int_param(query: Mapping[str, str], name: str) -> int | None:
    """A parameter that is a whole number from 0 on. Raises StatusError."""
    text = query.get(name, "")
    if not text:
        return None
    if not (text.isascii() and text.isdecimal()) or len(text) > 18:
        raise errors.bad_request(f"parameter {name} is {text!r}; a whole number from 0 on is accepted")
    return int(text)


def field_manager(query: Mapping[str, str], headers: Mapping[str, str]) -> str:
    """Return the field manager: the parameter, or the beginning of the User-Agent. Raises StatusError."""
    name = query.get("fieldManager") or headers.get("User-Agent", "").partition("/")[0] or "unknown"
    if len(name) > MAX_FIELD_MANAGER_LENGTH or not name.isprintable():
        raise errors.bad_request(
            f"parameter fieldManager is {quoted(name)}; {MAX_FIELD_MANAGER_LENGTH} printable characters are accepted"
        )
    return name


def dry_run(query: Mapping[str, str]) -> bool:
    """Whether the write is only tried. Raises StatusError."""
    text = query.get("dryRun", "")
    if text not in ("", "All"):
        raise errors.bad_request(f"parameter dryRun is {text!r}; All is accepted")
    return bool(text)


def field_validation(query: Mapping[str, str]) -> str:
    """What becomes of unknown fields: Strict, Warn or Ignore. Raises StatusError."""
    text = query.get("fieldValidation", "") or "Warn"
    if text not in ("Strict", "Warn", "Ignore"):
        raise errors.bad_request(f"parameter fieldValidation is {text!r}; Strict, Warn and Ignore are accepted")
    return text


# --- selectors and pages ----------------------------------------------------------------------------------------------


NameFilter = Callable[[str], bool]
"""Whether somebody may see the object of that name."""


@dataclass(frozen=True, slots=True)
class Selection:
    """Which objects of a kind are asked for; `visible` says which of them the asker may see, if not all."""

    kind: AnyResource
    namespace: str
    labels: Selector
    fields: Selector
    visible: NameFilter | None = None

    def takes(self, record: Record | None) -> bool:
        """Whether that revision of an object is one of them."""
        if record is None or (self.namespace and record.key.namespace != self.namespace):
            return False
        if self.visible is not None and not self.visible(record.key.name):
            return False
        if self.labels.requirements and not self.labels.matches(record.object.metadata.labels):
            return False
        return not self.fields.requirements or self.fields.matches(self.kind.selectable(record.object))

    @property
    def everything(self) -> bool:
        """Whether there are no selectors, and the asker may see all."""
        return self.visible is None and not self.labels.requirements and not self.fields.requirements


def parse_selection(where: RequestInfo, query: Mapping[str, str], visible: NameFilter | None = None) -> Selection:
    """The selectors of a request. Raises StatusError."""
    try:
        labels = parse_label_selector(query.get("labelSelector", ""))
        fields = parse_field_selector(query.get("fieldSelector", ""), where.kind.selectors)
    except BadSelector as error:
        raise errors.bad_request(str(error)) from error
    return Selection(where.kind, where.namespace, labels, fields, visible)


INCONSISTENT = -1
"""In place of a revision: of whatever there is when the page is asked for."""


class ContinueToken(msgspec.Struct, frozen=True):
    """Where the next page of a list begins: after an object, in the state of a revision (or of NEWEST)."""

    rv: int
    after: tuple[str, str]


def encode_continue(page: ContinueToken) -> str:
    """The token for clients, who hand it back as it is."""
    return base64.urlsafe_b64encode(msgspec.json.encode(page)).decode("ascii").rstrip("=")


def decode_continue(token: str) -> ContinueToken:
    """The page that a token stands for. Raises StatusError."""
    try:
        padded = token + "=" * (-len(token) % 4)
        return msgspec.json.decode(base64.urlsafe_b64decode(padded.encode("ascii")), type=ContinueToken)
    except (msgspec.DecodeError, binascii.Error, UnicodeError, RecursionError) as error:
        raise errors.bad_request("continue key is not valid: it is not one that this server gave") from error


Clock = Callable[[], datetime.datetime]


@dataclass(frozen=True, slots=True)
class Request:
    """A request for objects, with its body read.

    `user` is who sent it, and sees those objects that are `visible` to him, or all; `manager` is the name under which
    the client owns fields. `address` is where the connection of that user came from; empty if it is another's, who acts
    as him.
    """

    where: RequestInfo
    query: Mapping[str, str]
    accept: str = ""
    content_type: str = ""
    manager: str = ""
    user: User = User()  # noqa: RUF009
    visible: NameFilter | None = None
    document: Any = None
    address: str = ""

    @property
    def key(self) -> Key:
        """The object that is asked for."""
        return Key(self.where.kind.stored, self.where.namespace, self.where.name)


@dataclass(frozen=True, slots=True)
class Response:
    """A JSON body with its code; warnings are for the person who sent the request."""

    code: int
    body: bytes
    warnings: tuple[str, ...] = ()


def parse_delete_options(ask: Request) -> DeleteOptions:
    """The body of a delete, and what its parameters say instead. Raises StatusError."""
    try:
        options = msgspec.convert({} if ask.document is None else ask.document, DeleteOptions)
    except msgspec.ValidationError as error:
        raise errors.bad_request(f"the body is not a DeleteOptions: {error}") from error
    seconds, policy = int_param(ask.query, "gracePeriodSeconds"), ask.query.get("propagationPolicy", "")
    options = msgspec.structs.replace(
        options,
        grace_period_seconds=options.grace_period_seconds if seconds is None else seconds,
        propagation_policy=policy or options.propagation_policy,
    )
    if options.dry_run not in ((), ("All",)):
        problem = FieldError("dryRun", quoted(options.dry_run), 'supported values: "All"', NOT_SUPPORTED)
        raise errors.invalid_options("DeleteOptions", problem)
    if options.orphan_dependents is not None and options.propagation_policy:
        why = "orphanDependents and deletionPropagation cannot be both set"
        problem = FieldError("propagationPolicy", quoted(options.propagation_policy), why)
        raise errors.invalid_options("DeleteOptions", problem)
    return options
