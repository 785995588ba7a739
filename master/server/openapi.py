"""OpenAPI v2 (empty) and v3: paths, parameters and schemas, derived from resources and their types. Pure.

kubectl looks for the query parameter `fieldValidation` on the PATCH of a kind. If it is there, the server validates.
"""

from __future__ import annotations

import hashlib
import inspect as python
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import Any

import msgspec
from msgspec import inspect

from api.meta.types import KEYS, SET, Status
from api.meta.values import VALUE
from master.registry.request import METHOD_VERBS, DeleteOptions
from master.registry.scale import Scale
from master.resources.resource import AnyResource
from master.resources.scheme import SERVED
from master.serialization import negotiation
from master.server.discovery import VERSION

Row = dict[str, Any]

REFERENCE = "#/components/schemas/"

_PLAIN: Mapping[type[inspect.Type], Row] = {
    inspect.BoolType: {"type": "boolean"},
    inspect.IntType: {"type": "integer", "format": "int64"},
    inspect.FloatType: {"type": "number", "format": "double"},
    inspect.StrType: {"type": "string"},
    inspect.BytesType: {"type": "string", "format": "byte"},
}


_QUOTED = re.compile(r"`(\w+)`")
_SENTENCE_END = re.compile(r"(?<=[.])\s+(?=[A-Z`])")

INT_OR_STRING, QUANTITY = "IntOrString", "Quantity"

_CHOICES: Mapping[frozenset[type[inspect.Type]], str] = {
    frozenset((inspect.IntType, inspect.StrType)): INT_OR_STRING,
    frozenset((inspect.StrType, inspect.IntType, inspect.FloatType)): QUANTITY,
}
_CHOSEN: Row = {
    INT_OR_STRING: {
        "description": "A number, or a text such as the name of a port or a part in percent.",
        "format": "int-or-string",
        "oneOf": [{"type": "integer"}, {"type": "string"}],
    },
    QUANTITY: {
        "description": "An amount as a number or a text, with a suffix such as m, k, Mi or G: 100m, 64Mi, 2.",
        "oneOf": [{"type": "string"}, {"type": "number"}],
    },
}


def name_of(resource: AnyResource) -> str:
    """Return the name of a kind's schema: the group's domain reversed, the version, the kind."""
    domain = ".".join(reversed(resource.group.split("."))) if resource.group else "io.k8s.api.core"
    return f"{domain}.{resource.version}.{resource.kind}"


def identity(resource: AnyResource) -> Row:
    """Return the group, version and kind by which clients match a schema or an operation to a kind."""
    return {"group": resource.group, "version": resource.version, "kind": resource.kind}


def components(kinds: Sequence[AnyResource], others: Sequence[type[msgspec.Struct]]) -> Row:
    """Return the schemas of these kinds, their lists, the other types, and every type inside them."""
    schemas: Row = dict(_CHOSEN)
    for other in others:
        for info in (inspect.type_info(other), *parts(inspect.type_info(other))):
            schemas[info.cls.__name__] = _struct(info)  # type: ignore[attr-defined]
    for resource in kinds:
        name = name_of(resource)
        schemas[name] = _struct(inspect.type_info(resource.type)) | {
            "x-kubernetes-group-version-kind": [identity(resource)]
        }
        schemas[f"{name}List"] = _list_of(resource)
        for info in parts(inspect.type_info(resource.type)):
            schemas.setdefault(info.cls.__name__, _struct(info))
    return dict(sorted(schemas.items()))


def _list_of(resource: AnyResource) -> Row:
    identities = [identity(resource) | {"kind": f"{resource.kind}List"}]
    return {
        "type": "object",
        "description": f"Some objects of the kind {resource.kind}.",
        "required": ["items"],
        "properties": {
            "apiVersion": {"type": "string"},
            "kind": {"type": "string"},
            "metadata": {"type": "object"},
            "items": {"type": "array", "items": {"$ref": REFERENCE + name_of(resource)}},
        },
        "x-kubernetes-group-version-kind": identities,
    }


def parts(info: inspect.Type) -> Iterator[inspect.StructType]:
    """Return every struct inside a type, without the type itself."""
    for inner in _inside(info):
        if isinstance(inner, inspect.StructType):
            yield inner
        yield from parts(inner)


def _inside(info: inspect.Type) -> tuple[inspect.Type, ...]:
    if isinstance(info, inspect.StructType):
        return tuple(field.type for field in info.fields)
    if isinstance(info, inspect.Metadata):
        return (info.type,)
    if isinstance(info, inspect.VarTupleType):
        return (info.item_type,)
    if isinstance(info, inspect.DictType):
        return (info.value_type,)
    return info.types if isinstance(info, inspect.UnionType) else ()


def _struct(info: inspect.Type) -> Row:
    assert isinstance(info, inspect.StructType)
    row: Row = {
        "type": "object",
        "description": _description(info, info.cls),
        "properties": {field.encode_name: _property(info, field) for field in info.fields},
    }
    required = [field.encode_name for field in info.fields if field.required]
    return row | ({"required": required} if required else {})


def _property(info: inspect.StructType, field: inspect.Field) -> Row:
    """Return a field's schema, described by the sentences of its type's description that name it."""
    described = " ".join(_description(info, base) for base in info.cls.__mro__ if issubclass(base, msgspec.Struct))
    sentences = _SENTENCE_END.split(" ".join(described.split()))
    told = " ".join(sentence for sentence in sentences if f"`{field.encode_name}`" in sentence)
    return _schema(field.type) | ({"description": told} if told else {})


def _description(info: inspect.StructType, cls: type) -> str:
    """Return the docstring of a class, with its fields as JSON names them."""
    names = {field.name: field.encode_name for field in info.fields}
    text = python.cleandoc(vars(cls).get("__doc__") or "")
    return _QUOTED.sub(lambda found: f"`{names.get(found[1], found[1])}`", text)


def _schema(info: inspect.Type) -> Row:
    """Return the schema of a type. Optional values are not nullable, because null means the same as absent."""
    if isinstance(info, inspect.Metadata):
        return _schema(info.type) | _marks(info)
    if isinstance(info, inspect.UnionType):
        return _union(info)
    if isinstance(info, inspect.StructType):
        return {"allOf": [{"$ref": REFERENCE + info.cls.__name__}]}
    if isinstance(info, inspect.DictType):
        return {"type": "object", "additionalProperties": _schema(info.value_type)}
    if isinstance(info, inspect.VarTupleType):
        return {"type": "array", "items": _schema(info.item_type)}
    return dict(_PLAIN.get(type(info), {}))


def _union(info: inspect.UnionType) -> Row:
    options = [option for option in info.types if not isinstance(option, inspect.NoneType)]
    chosen = _CHOICES.get(frozenset(map(type, options)))
    if chosen is not None:
        return {"allOf": [{"$ref": REFERENCE + chosen}]}
    return _schema(options[0]) if len(options) == 1 else {"oneOf": [_schema(option) for option in options]}


def _marks(info: inspect.Metadata) -> Row:
    mark = info.extra or {}
    row: Row = dict(info.extra_json_schema or {})
    if VALUE in mark and mark[VALUE].format:
        row["format"] = mark[VALUE].format
    keys = mark.get(KEYS)
    if keys:
        row |= {"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": list(keys)}
        row |= {"x-kubernetes-patch-merge-key": keys[0], "x-kubernetes-patch-strategy": "merge"}
    elif mark.get(SET):
        row |= {"x-kubernetes-list-type": "set", "x-kubernetes-patch-strategy": "merge"}
    elif keys is not None:
        row["x-kubernetes-map-type"] = "atomic"
    return row


INFO = {"title": "Podlane", "version": VERSION["gitVersion"].partition("+")[0]}

V2_TYPE = "application/com.github.proto-openapi.spec.v2.v1.0+protobuf"


def v2() -> bytes:
    """Return the response to GET /openapi/v2 without any kinds, in protobuf.

    The message is gnostic's Document: 1 swagger, 2 info {1 title, 2 version}. kubectl 1.27 and 1.28 read it before v3,
    and fail without it.
    """
    info = _text(1, INFO["title"]) + _text(2, INFO["version"])
    return _text(1, "2.0") + b"\x12" + bytes([len(info)]) + info


def _text(number: int, text: str) -> bytes:
    return bytes([number << 3 | 2, len(text)]) + text.encode("ascii")


@cache
def index() -> Row:
    """Return the response to GET /openapi/v3. Each URL has a hash of its content, so that clients can cache it."""
    paths = {}
    for path in sorted({_root(resource) for resource in SERVED}):
        digest = hashlib.sha256(content(path) or b"").hexdigest()[:32].upper()
        paths[path] = {"serverRelativeURL": f"/openapi/v3/{path}?hash={digest}"}
    return {"paths": paths}


def _root(resource: AnyResource) -> str:
    return f"apis/{resource.group}/{resource.version}" if resource.group else f"api/{resource.version}"


@cache
def content(path: str) -> bytes | None:
    """Return the response to GET /openapi/v3/PATH, as JSON; None if the group and version have no kinds."""
    found = document(path)
    return None if found is None else msgspec.json.encode(found)


def document(path: str) -> Row | None:
    """Return the OpenAPI document of a group and version, before it is encoded."""
    kinds = [resource for resource in SERVED if _root(resource) == path]
    if not kinds:
        return None
    return {
        "openapi": "3.0.0",
        "info": INFO,
        "paths": {
            f"/{path}/{place}": _named(place, row) for resource in kinds for place, row in _allowed_places(resource)
        },
        "components": {"schemas": components(kinds, (DeleteOptions, Status, Scale))},
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


def _allowed_places(resource: AnyResource) -> Iterator[tuple[str, Row]]:
    """Yield the paths with the operations that the resource has."""
    for place, row in _places(resource):
        actions = {key: found.get("x-kubernetes-action", "") for key, found in row.items() if key != "parameters"}
        refused = {key for key, action in actions.items() if _VERBS.get(action, action) not in resource.verbs}
        yield place, {key: found for key, found in row.items() if key not in refused}


def _places(resource: AnyResource) -> Iterator[tuple[str, Row]]:
    """Yield (path below the group's path, its operations)."""
    within = f"namespaces/{{namespace}}/{resource.plural}" if resource.namespaced else resource.plural
    in_path = ("namespace",) if resource.namespaced else ()
    whole = name_of(resource)
    read, written = _operation(resource, "list", _READING + _WATCHING, f"{whole}List"), _writes(resource)
    yield (
        within,
        {
            "parameters": _in_path(*in_path),
            "get": read,
            "post": written["post"],
            "delete": _operation(
                resource, "deletecollection", _READING[:2] + _DELETING, "Status", DeleteOptions.__name__
            ),
        },
    )
    if resource.namespaced:
        yield resource.plural, {"get": read}
    named = _in_path(*in_path, "name")
    methods_of_object = {
        "get": _operation(resource, "get", (), whole),
        "put": written["put"],
        "patch": written["patch"],
    }
    erased = _operation(resource, "delete", _DELETING, "Status", DeleteOptions.__name__)
    yield f"{within}/{{name}}", {"parameters": named, **methods_of_object, "delete": erased}
    if resource.scale is not None:
        yield f"{within}/{{name}}/scale", {"parameters": named, **_scale(resource)}
    for subresource in resource.all_subresources:
        if subresource.replace is not None:
            methods = {
                method: row
                for method, row in methods_of_object.items()
                if METHOD_VERBS[method.upper()] in subresource.verbs
            }
            yield f"{within}/{{name}}/{subresource.name}", {"parameters": named, **methods}


def _scale(resource: AnyResource) -> Row:
    whole = Scale.__name__
    return {
        "get": _operation(resource, "get", (), whole),
        "put": _operation(resource, "put", _WRITING, whole, whole),
        "patch": _patch(resource, whole),
    }


def _named(place: str, row: Row) -> Row:
    """Return the operations of a path, each with a unique operationId."""
    words = "".join(part.strip("{}").capitalize() for part in place.split("/"))
    return {
        key: found if key == "parameters" else {**found, "operationId": found["x-kubernetes-action"] + words}
        for key, found in row.items()
    }


def _writes(resource: AnyResource) -> Row:
    whole = name_of(resource)
    return {
        "post": _operation(resource, "post", _WRITING, whole, whole),
        "put": _operation(resource, "put", _WRITING, whole, whole),
        "patch": _patch(resource, whole),
    }


def _patch(resource: AnyResource, answer: str) -> Row:
    types = (negotiation.JSON_PATCH, negotiation.MERGE_PATCH, negotiation.STRATEGIC_PATCH, negotiation.APPLY_PATCH)
    body = {"required": True, "content": {media_type: {"schema": {}} for media_type in types}}
    return _operation(resource, "patch", (*_WRITING, ("force", "boolean")), answer) | {"requestBody": body}


def _operation(resource: AnyResource, action: str, parameters: Parameters, answer: str, body: str = "") -> Row:
    content = {"application/json": {"schema": {"$ref": REFERENCE + answer}}}
    refused = {"application/json": {"schema": {"$ref": REFERENCE + Status.__name__}}}
    good = {code: {"description": "done", "content": content} for code in _CODES.get(action, ("200",))}
    row: Row = {
        "parameters": [_parameter(name, kind_of) for name, kind_of in parameters],
        "responses": {**good, "default": {"description": "refused", "content": refused}},
        "x-kubernetes-action": action,
        "x-kubernetes-group-version-kind": identity(resource),
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
