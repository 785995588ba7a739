"""What a request asks for: its path, its parameters, and the form of answer it takes. Pure."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum

import msgspec

from api.meta.schema import quoted
from api.meta.selectors import BadSelector, Selector, parse_fields, parse_labels
from api.meta.types import Object
from master.kinds import BY_RESOURCE
from master.kinds.kind import AnyKind
from master.kinds.pod import POD
from master.resources.virtual import REVIEW_KINDS
from master.store.records import Record
from master.wire import answers

LONGEST_MANAGER = 128


META = "meta.k8s.io"
"""The group of the forms that show an object in another way."""


class View(Enum):
    """The form in which objects are answered: what it is called, and its version in meta.k8s.io."""

    _value_: tuple[str, str]

    OBJECT = ("", "")
    TABLE = ("Table", "v1")
    OLD_TABLE = ("Table", "v1beta1")
    METADATA = ("PartialObjectMetadata", "v1")
    OLD_METADATA = ("PartialObjectMetadata", "v1beta1")

    @property
    def is_table(self) -> bool:
        """Whether it shows objects as rows."""
        return self.value[0] == "Table"

    @property
    def is_metadata(self) -> bool:
        """Whether it leaves out all but the metadata."""
        return self.value[0] == "PartialObjectMetadata"

    @property
    def api_version(self) -> str:
        """As the answer names it."""
        return f"{META}/{self.value[1]}"


@dataclass(frozen=True, slots=True)
class Target:
    """A resource path: the kind, and as far as the path goes, the namespace, the name and the subresource."""

    kind: AnyKind
    namespace: str = ""
    name: str = ""
    subresource: str = ""


def target(path: str) -> Target | None:
    """What a path names; None if it is not the path of a resource that is kept here."""
    parts = path.strip("/").split("/")
    if parts[0] == "api" and len(parts) > 2:
        group, version, rest = "", parts[1], parts[2:]
    elif parts[0] == "apis" and len(parts) > 3:
        group, version, rest = parts[1], parts[2], parts[3:]
    else:
        return None
    if (group, version, rest[0], rest[2:]) == ("", "v1", "namespaces", ["bindings"]):
        return Target(POD, rest[1], subresource="binding")
    namespace = ""
    if rest[0] == "namespaces" and len(rest) > 2 and (group, version, rest[2]) in BY_RESOURCE:
        kind = BY_RESOURCE[(group, version, rest[2])]
        if kind.namespaced:
            namespace, rest = rest[1], rest[2:]
    found = BY_RESOURCE.get((group, version, rest[0]))
    if found is None or len(rest) > 3 or "" in parts[1:]:
        return None
    name = rest[1] if len(rest) > 1 else ""
    if found.namespaced and name and not namespace:
        return None
    return Target(found, namespace, name, rest[2] if len(rest) > 2 else "")


def review(path: str) -> tuple[type[Object], str] | None:
    """The kind of review that a path is for, and its namespace; None if it is another path."""
    match path.strip("/").split("/"):
        case ["apis", group, "v1", plural] if (group, plural) in REVIEW_KINDS and not REVIEW_KINDS[
            group, plural
        ].KIND.startswith("Local"):
            return REVIEW_KINDS[group, plural], ""
        case ["apis", group, "v1", "namespaces", name, plural] if (group, plural) in REVIEW_KINDS and name:
            return REVIEW_KINDS[group, plural], name
    return None


def resource(group: str, plural: str) -> AnyKind | None:
    """The kind of a resource, whatever its version."""
    return next((kind for kind in BY_RESOURCE.values() if (kind.group, kind.plural) == (group, plural)), None)


VERBS = {"GET": "get", "HEAD": "get", "POST": "create", "PUT": "update", "PATCH": "patch", "DELETE": "delete"}


def verb(method: str, where: Target, query: Mapping[str, str]) -> str:
    """The verb of Kubernetes for a method at a path; empty if there is none."""
    name = VERBS.get(method, "")
    if name == "get" and not where.name:
        return "watch" if flag(query, "watch") else "list"
    if name == "delete" and not where.name:
        return "deletecollection"
    return name


def path_verb(method: str) -> str:
    """The verb for a path that names no object."""
    return "get" if method == "HEAD" else method.lower()


def flag(query: Mapping[str, str], name: str) -> bool:
    """A parameter that is on or off. Raises Failure."""
    text = query.get(name, "")
    if text in ("1", "true", "True", "t", "T", "TRUE"):
        return True
    if text in ("", "0", "false", "False", "f", "F", "FALSE"):
        return False
    raise answers.bad_request(f"parameter {name} is {text!r}; true and false are accepted")


def number(query: Mapping[str, str], name: str) -> int | None:
    """A parameter that is a whole number from 0 on. Raises Failure."""
    text = query.get(name, "")
    if not text:
        return None
    if not (text.isascii() and text.isdecimal()) or len(text) > 18:
        raise answers.bad_request(f"parameter {name} is {text!r}; a whole number from 0 on is accepted")
    return int(text)


def owner(query: Mapping[str, str], headers: Mapping[str, str]) -> str:
    """Under which name a client owns what it writes: its own, or the beginning of its User-Agent. Raises Failure."""
    name = query.get("fieldManager") or headers.get("User-Agent", "").partition("/")[0] or "unknown"
    if len(name) > LONGEST_MANAGER or not name.isprintable():
        raise answers.bad_request(
            f"parameter fieldManager is {quoted(name)}; {LONGEST_MANAGER} printable characters are accepted"
        )
    return name


def dry_run(query: Mapping[str, str]) -> bool:
    """Whether the write is only tried. Raises Failure."""
    text = query.get("dryRun", "")
    if text not in ("", "All"):
        raise answers.bad_request(f"parameter dryRun is {text!r}; All is accepted")
    return bool(text)


def strictness(query: Mapping[str, str]) -> str:
    """What becomes of unknown fields: Strict, Warn or Ignore. Raises Failure."""
    text = query.get("fieldValidation", "") or "Warn"
    if text not in ("Strict", "Warn", "Ignore"):
        raise answers.bad_request(f"parameter fieldValidation is {text!r}; Strict, Warn and Ignore are accepted")
    return text


# --- the form of the answer -------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Media:
    """One entry of an Accept header."""

    type: str
    parameters: Mapping[str, str]


def accepted(header: str) -> list[Media]:
    """The entries of an Accept header, in its order; qualities are not weighed, as clients list the best first."""
    entries: list[Media] = []
    for entry in header.split(","):
        kind, *parameters = (part.strip() for part in entry.split(";"))
        if kind:
            pairs = (parameter.partition("=") for parameter in parameters)
            entries.append(Media(kind.lower(), {key.strip(): value.strip() for key, _, value in pairs}))
    return entries or [Media("*/*", {})]


def view(header: str) -> View:
    """The first form of the Accept header that there is. Raises Failure."""
    for entry in accepted(header):
        if entry.type not in ("application/json", "application/*", "*/*"):
            continue
        form, version = entry.parameters.get("as", ""), entry.parameters.get("v", "")
        if form == "":
            return View.OBJECT
        wish = (form.removesuffix("List"), version)
        found = next((one for one in View if one.value == wish), None)
        if found is not None and entry.parameters.get("g") == META:
            return found
    raise answers.not_acceptable()


# --- selectors and pages ----------------------------------------------------------------------------------------------


Visible = Callable[[str], bool]
"""Whether somebody may see the object of that name."""


@dataclass(frozen=True, slots=True)
class Selection:
    """Which objects of a kind are asked for; `visible` says which of them the asker may see, if not all."""

    kind: AnyKind
    namespace: str
    labels: Selector
    fields: Selector
    visible: Visible | None = None

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


def selection(where: Target, query: Mapping[str, str], visible: Visible | None = None) -> Selection:
    """The selectors of a request. Raises Failure."""
    try:
        labels = parse_labels(query.get("labelSelector", ""))
        fields = parse_fields(query.get("fieldSelector", ""), where.kind.selectors)
    except BadSelector as error:
        raise answers.bad_request(str(error)) from error
    return Selection(where.kind, where.namespace, labels, fields, visible)


NEWEST = -1
"""In place of a revision: of whatever there is when the page is asked for."""


class Page(msgspec.Struct, frozen=True):
    """Where the next page of a list begins: after an object, in the state of a revision (or of NEWEST)."""

    rv: int
    after: tuple[str, str]


def write_page(page: Page) -> str:
    """The token for clients, who hand it back as it is."""
    return base64.urlsafe_b64encode(msgspec.json.encode(page)).decode("ascii").rstrip("=")


def read_page(token: str) -> Page:
    """The page that a token stands for. Raises Failure."""
    try:
        padded = token + "=" * (-len(token) % 4)
        return msgspec.json.decode(base64.urlsafe_b64decode(padded.encode("ascii")), type=Page)
    except (msgspec.DecodeError, binascii.Error, UnicodeError, RecursionError) as error:
        raise answers.bad_request("continue key is not valid: it is not one that this server gave") from error
