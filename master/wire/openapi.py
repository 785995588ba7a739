"""OpenAPI v3 of this server, from the kinds and their types: paths, parameters, bodies and answers. Pure.

kubectl looks for the query parameter `fieldValidation` on the PATCH of a kind; where it is, it leaves validation to the
server.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from functools import cache
from typing import Any

import msgspec

from api.meta.types import Status
from master.kinds import SERVED
from master.kinds.kind import AnyKind
from master.registry.request import DeleteOptions
from master.registry.scale import Scale
from master.wire import bodies, request, schemas
from master.wire.discovery import VERSION
from master.wire.schemas import REFERENCE

Row = dict[str, Any]

INFO = {"title": "Podlane", "version": VERSION["gitVersion"].partition("+")[0]}

V2_TYPE = "application/com.github.proto-openapi.spec.v2.v1.0+protobuf"


def v2() -> bytes:
    """GET /openapi/v2, in protobuf (gnostic's Document: 1 swagger, 2 info {1 title, 2 version}), with no kinds in it.

    kubectl 1.27 and 1.28 read it before they look at v3, and give up without it.
    """
    info = _text(1, INFO["title"]) + _text(2, INFO["version"])
    return _text(1, "2.0") + b"\x12" + bytes([len(info)]) + info


def _text(number: int, text: str) -> bytes:
    return bytes([number << 3 | 2, len(text)]) + text.encode("ascii")


@cache
def index() -> Row:
    """GET /openapi/v3: the hash in an address changes with what is found there, so that clients can keep it."""
    paths = {}
    for path in sorted({_root(kind) for kind in SERVED}):
        digest = hashlib.sha256(content(path) or b"").hexdigest()[:32].upper()
        paths[path] = {"serverRelativeURL": f"/openapi/v3/{path}?hash={digest}"}
    return {"paths": paths}


def _root(kind: AnyKind) -> str:
    return f"apis/{kind.group}/{kind.version}" if kind.group else f"api/{kind.version}"


@cache
def content(path: str) -> bytes | None:
    """GET /openapi/v3/PATH, as JSON: the kinds of one group and version; None if there are none."""
    found = document(path)
    return None if found is None else msgspec.json.encode(found)


def document(path: str) -> Row | None:
    """The same before it is JSON."""
    kinds = [kind for kind in SERVED if _root(kind) == path]
    if not kinds:
        return None
    return {
        "openapi": "3.0.0",
        "info": INFO,
        "paths": {f"/{path}/{place}": _named(place, row) for kind in kinds for place, row in _allowed_places(kind)},
        "components": {"schemas": schemas.components(kinds, (DeleteOptions, Status, Scale))},
    }


# --- paths ------------------------------------------------------------------------------------------------------------

_READING = (
    ("labelSelector", "string"), ("fieldSelector", "string"), ("limit", "integer"), ("continue", "string"),
    ("resourceVersion", "string"), ("resourceVersionMatch", "string"),
)  # fmt: skip
_WATCHING = (
    ("watch", "boolean"), ("allowWatchBookmarks", "boolean"), ("sendInitialEvents", "boolean"),
    ("timeoutSeconds", "integer"),
)  # fmt: skip
_WRITING = (("dryRun", "string"), ("fieldManager", "string"), ("fieldValidation", "string"))
_DELETING = (("dryRun", "string"), ("gracePeriodSeconds", "integer"))

_ENUMS = {
    "dryRun": ["All"],
    "fieldValidation": ["Strict", "Warn", "Ignore"],
    "resourceVersionMatch": ["Exact", "NotOlderThan"],
}

Parameters = tuple[tuple[str, str], ...]


_VERBS = {"post": "create", "put": "update"}


def _allowed_places(kind: AnyKind) -> Iterator[tuple[str, Row]]:
    """The same without what is not for clients."""
    for place, row in _places(kind):
        actions = {key: found.get("x-kubernetes-action", "") for key, found in row.items() if key != "parameters"}
        refused = {key for key, action in actions.items() if _VERBS.get(action, action) not in kind.verbs}
        yield place, {key: found for key, found in row.items() if key not in refused}


def _places(kind: AnyKind) -> Iterator[tuple[str, Row]]:
    """(path below the group's, its operations)"""
    within = f"namespaces/{{namespace}}/{kind.plural}" if kind.namespaced else kind.plural
    in_path = ("namespace",) if kind.namespaced else ()
    whole = schemas.name_of(kind)
    read, written = _operation(kind, "list", _READING + _WATCHING, f"{whole}List"), _writes(kind)
    yield (
        within,
        {
            "parameters": _in_path(*in_path),
            "get": read,
            "post": written["post"],
            "delete": _operation(kind, "deletecollection", _READING[:2] + _DELETING, "Status", DeleteOptions.__name__),
        },
    )
    if kind.namespaced:
        yield kind.plural, {"get": read}
    named = _in_path(*in_path, "name")
    one = {"get": _operation(kind, "get", (), whole), "put": written["put"], "patch": written["patch"]}
    erased = _operation(kind, "delete", _DELETING, "Status", DeleteOptions.__name__)
    yield f"{within}/{{name}}", {"parameters": named, **one, "delete": erased}
    if kind.scaling is not None:
        yield f"{within}/{{name}}/scale", {"parameters": named, **_scale(kind)}
    for subresource in kind.subresources:
        if subresource.part is not None:
            methods = {method: row for method, row in one.items() if request.VERBS[method.upper()] in subresource.verbs}
            yield f"{within}/{{name}}/{subresource.name}", {"parameters": named, **methods}


def _scale(kind: AnyKind) -> Row:
    whole = Scale.__name__
    return {
        "get": _operation(kind, "get", (), whole),
        "put": _operation(kind, "put", _WRITING, whole, whole),
        "patch": _patch(kind, whole),
    }


def _named(place: str, row: Row) -> Row:
    """The operations of a path, each with an identity of its own."""
    words = "".join(part.strip("{}").capitalize() for part in place.split("/"))
    return {
        key: found if key == "parameters" else {**found, "operationId": found["x-kubernetes-action"] + words}
        for key, found in row.items()
    }


def _writes(kind: AnyKind) -> Row:
    whole = schemas.name_of(kind)
    return {
        "post": _operation(kind, "post", _WRITING, whole, whole),
        "put": _operation(kind, "put", _WRITING, whole, whole),
        "patch": _patch(kind, whole),
    }


def _patch(kind: AnyKind, answer: str) -> Row:
    types = (bodies.JSON_PATCH, bodies.MERGE_PATCH, bodies.STRATEGIC_PATCH, bodies.APPLY_PATCH)
    body = {"required": True, "content": {one: {"schema": {}} for one in types}}
    return _operation(kind, "patch", (*_WRITING, ("force", "boolean")), answer) | {"requestBody": body}


def _operation(kind: AnyKind, action: str, parameters: Parameters, answer: str, body: str = "") -> Row:
    content = {"application/json": {"schema": {"$ref": REFERENCE + answer}}}
    refused = {"application/json": {"schema": {"$ref": REFERENCE + Status.__name__}}}
    good = {code: {"description": "done", "content": content} for code in _CODES.get(action, ("200",))}
    row: Row = {
        "parameters": [_parameter(name, kind_of) for name, kind_of in parameters],
        "responses": {**good, "default": {"description": "refused", "content": refused}},
        "x-kubernetes-action": action,
        "x-kubernetes-group-version-kind": schemas.identity(kind),
    }
    if body:
        content = {"application/json": {"schema": {"$ref": REFERENCE + body}}}
        row["requestBody"] = {"required": body != DeleteOptions.__name__, "content": content}
    return row


_CODES = {"post": ("201",), "patch": ("200", "201")}


def _parameter(name: str, kind_of: str) -> Row:
    schema: Row = {"type": kind_of, "uniqueItems": True}
    if name in _ENUMS:
        schema["enum"] = _ENUMS[name]
    if kind_of == "integer":
        schema["minimum"] = 0
    return {"name": name, "in": "query", "schema": schema}


def _in_path(*names: str) -> list[Row]:
    return [{"name": name, "in": "path", "required": True, "schema": {"type": "string"}} for name in names]
