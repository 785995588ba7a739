"""OpenAPI v2 (empty) and v3: paths, parameters and schemas, derived from resources and their types.

kubectl looks for the query parameter `fieldValidation` on the PATCH of a kind. If it is there, the server validates.
"""

from __future__ import annotations

import asyncio
import hashlib
import inspect as python
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache, partial
from typing import Any

import msgspec
from msgspec import inspect

from api.meta.types import KEYS, SET, Object, Status
from api.meta.values import VALUE
from master.errors import StatusError
from master.registry.aggregated_apis import AggregatedVersion
from master.registry.request import METHOD_VERBS, DeleteOptions
from master.registry.scale import Scale
from master.resources.resource import AnyResource
from master.resources.scheme import SERVED, Scheme
from master.serialization import negotiation
from master.server.discovery import VERSION

Document = dict[str, Any]

REFERENCE = "#/components/schemas/"

_PLAIN: Mapping[type[inspect.Type], Document] = {
    inspect.BoolType: {"type": "boolean"},
    inspect.IntType: {"type": "integer", "format": "int64"},
    inspect.FloatType: {"type": "number", "format": "double"},
    inspect.StrType: {"type": "string"},
    inspect.BytesType: {"type": "string", "format": "byte"},
    inspect.AnyType: {"x-kubernetes-preserve-unknown-fields": True},
}
"""`kubectl explain` fails at an empty schema, so any value has one that says nothing."""

_LISTS = (inspect.VarTupleType, inspect.ListType)


_QUOTED = re.compile(r"`(\w+)`")
_SENTENCE_END = re.compile(r"(?<=[.])\s+(?=[A-Z`])")

INT_OR_STRING, QUANTITY = "IntOrString", "Quantity"

_CHOICES: Mapping[frozenset[type[inspect.Type]], str] = {
    frozenset((inspect.IntType, inspect.StrType)): INT_OR_STRING,
    frozenset((inspect.StrType, inspect.IntType, inspect.FloatType)): QUANTITY,
}
_CHOSEN: Document = {
    INT_OR_STRING: {
        "description": "An integer or a string, such as the name of a port or a percentage.",
        "format": "int-or-string",
        "oneOf": [{"type": "integer"}, {"type": "string"}],
    },
    QUANTITY: {
        "description": "A quantity: a number or a string with a suffix such as m, k, Mi or G: 100m, 64Mi, 2.",
        "oneOf": [{"type": "string"}, {"type": "number"}],
    },
}


def name_of(resource: AnyResource) -> str:
    """Return the name of a kind's schema: the group's domain reversed, the version, the kind."""
    domain = ".".join(reversed(resource.group.split("."))) if resource.group else "io.k8s.api.core"
    return f"{domain}.{resource.version}.{resource.kind}"


def identity(resource: AnyResource) -> Document:
    """Return the group, version and kind by which clients match a schema or an operation to a kind."""
    return {"group": resource.group, "version": resource.version, "kind": resource.kind}


def components(kinds: Sequence[AnyResource], others: Sequence[type[msgspec.Struct]]) -> Document:
    """Return the schemas of these kinds, their lists, the other types, and every type inside them."""
    schemas: Document = dict(_CHOSEN)
    for other in others:
        for info in (inspect.type_info(other), *parts(inspect.type_info(other))):
            schemas[info.cls.__name__] = _struct(info)  # type: ignore[attr-defined]
    for resource in kinds:
        name = name_of(resource)
        schemas[name] = _kind(resource) | {"x-kubernetes-group-version-kind": [identity(resource)]}
        schemas[f"{name}List"] = _list_of(resource)
        for info in parts(inspect.type_info(resource.type)):
            if info.cls.__name__ not in schemas:
                schemas[info.cls.__name__] = _struct(info)
    return dict(sorted(schemas.items()))


def _kind(resource: AnyResource) -> Document:
    """Return the schema of a kind: that of its type, or the one that a client has published for a custom kind."""
    info = inspect.type_info(resource.type)
    if resource.documents is None:
        return _struct(info)
    published = resource.documents.published_schema()
    head = _head_properties()
    properties = published.get("properties")
    schema = {"type": "object", **published}
    schema["properties"] = {**(properties if isinstance(properties, dict) else {}), **head}
    selectable = sorted(resource.selectable_field_names - {"metadata.name", "metadata.namespace"})
    return schema | (
        {"x-kubernetes-selectable-fields": [{"fieldPath": name} for name in selectable]} if selectable else {}
    )


@cache
def _head_properties() -> Document:
    """Return the schemas of the fields that every object has."""
    properties: Document = _struct(inspect.type_info(Object))["properties"]
    return properties


def _list_of(resource: AnyResource) -> Document:
    identities = [identity(resource) | {"kind": resource.list_kind}]
    return {
        "type": "object",
        "description": f"A list of {resource.kind} objects.",
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
    for inner in _nested_types(info):
        if isinstance(inner, inspect.StructType):
            yield inner
        yield from parts(inner)


def _nested_types(info: inspect.Type) -> tuple[inspect.Type, ...]:
    if isinstance(info, inspect.StructType):
        return tuple(field.type for field in info.fields)
    if isinstance(info, inspect.Metadata):
        return (info.type,)
    if isinstance(info, _LISTS):
        return (info.item_type,)
    if isinstance(info, inspect.DictType):
        return (info.value_type,)
    return info.types if isinstance(info, inspect.UnionType) else ()


def _struct(info: inspect.Type) -> Document:
    assert isinstance(info, inspect.StructType)
    sentences = _sentences(info)
    schema: Document = {
        "type": "object",
        "description": _description(info, info.cls),
    }
    # Clients in Go compare a document with what they encode again, which has no empty lists and maps.
    if info.fields:
        schema["properties"] = {field.encode_name: _property(field, sentences) for field in info.fields}
    required = [field.encode_name for field in info.fields if field.required]
    return schema | ({"required": required} if required else {})


def _sentences(info: inspect.StructType) -> list[str]:
    """Return the sentences of a type's description and of those of its bases."""
    descriptions = (_description(info, base) for base in info.cls.__mro__ if issubclass(base, msgspec.Struct))
    return _SENTENCE_END.split(" ".join(" ".join(descriptions).split()))


def _property(field: inspect.Field, sentences: Sequence[str]) -> Document:
    """Return a field's schema, described by those of the sentences that name it, else as its type is."""
    description = " ".join(sentence for sentence in sentences if f"`{field.encode_name}`" in sentence)
    description = description or _summary(field.type)
    return _schema(field.type) | ({"description": description} if description else {})


def _summary(info: inspect.Type) -> str:
    """Return the first sentence of the description of the type of a field, or of its elements; empty without one."""
    if isinstance(info, inspect.StructType):
        return _SENTENCE_END.split(" ".join(_description(info, info.cls).split()))[0]
    inner = [option for option in _nested_types(info) if not isinstance(option, inspect.NoneType)]
    return _summary(inner[0]) if len(inner) == 1 else ""


def _description(info: inspect.StructType, cls: type) -> str:
    """Return the docstring of a class, with its fields as JSON names them."""
    names = {field.name: field.encode_name for field in info.fields}
    text = python.cleandoc(vars(cls).get("__doc__") or "")
    return _QUOTED.sub(lambda match: f"`{names.get(match[1], match[1])}`", text)


def _schema(info: inspect.Type) -> Document:
    """Return the schema of a type. Optional values are not nullable, because null means the same as absent."""
    if isinstance(info, inspect.Metadata):
        return _schema(info.type) | _marks(info)
    if isinstance(info, inspect.UnionType):
        return _union(info)
    if isinstance(info, inspect.StructType):
        return {"allOf": [{"$ref": REFERENCE + info.cls.__name__}]}
    if isinstance(info, inspect.DictType):
        return {"type": "object", "additionalProperties": _schema(info.value_type)}
    if isinstance(info, _LISTS):
        return {"type": "array", "items": _schema(info.item_type)}
    return dict(_PLAIN[type(info)])


def _union(info: inspect.UnionType) -> Document:
    options = [option for option in info.types if not isinstance(option, inspect.NoneType)]
    chosen = _CHOICES.get(frozenset(map(type, options)))
    if chosen is not None:
        return {"allOf": [{"$ref": REFERENCE + chosen}]}
    return _schema(options[0]) if len(options) == 1 else {"oneOf": [_schema(option) for option in options]}


def _marks(metadata: inspect.Metadata) -> Document:
    extra = metadata.extra or {}
    schema: Document = dict(metadata.extra_json_schema or {})
    if VALUE in extra and extra[VALUE].format:
        schema["format"] = extra[VALUE].format
    keys = extra.get(KEYS)
    if keys:
        schema |= {"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": list(keys)}
        schema |= {"x-kubernetes-patch-merge-key": keys[0], "x-kubernetes-patch-strategy": "merge"}
    elif extra.get(SET):
        schema |= {"x-kubernetes-list-type": "set", "x-kubernetes-patch-strategy": "merge"}
    elif keys is not None:
        schema["x-kubernetes-map-type"] = "atomic"
    return schema


INFO = {"title": "Podlane", "version": VERSION["gitVersion"].partition("+")[0]}

V2_TYPE = "application/com.github.proto-openapi.spec.v2.v1.0+protobuf"


def v2() -> bytes:
    """Return the response to GET /openapi/v2 in protobuf: a document without any kinds.

    The message is gnostic's Document: 1 swagger, 2 info {1 title, 2 version}. kubectl 1.27 and 1.28 read this document
    before v3 and fail if there is none.
    """
    info = _text(1, INFO["title"]) + _text(2, INFO["version"])
    return _text(1, "2.0") + b"\x12" + bytes([len(info)]) + info


def _text(number: int, text: str) -> bytes:
    return bytes([number << 3 | 2, len(text)]) + text.encode("ascii")


def _encoded(build: Callable[[], Document]) -> bytes:
    return msgspec.json.encode(build())


class OpenAPIDocuments:
    """The documents of the resources that are served at this moment. They are built when a client asks for them.

    Those of custom kinds are kept until a definition changes. They are built in a thread, one at a time: 60 definitions
    of 100 KB would hold the event loop for 0.6 s.
    """

    def __init__(self, scheme: Scheme) -> None:
        self._scheme = scheme
        self._generation = -1
        self._contents: dict[str, bytes] = {}
        self._building = asyncio.Lock()

    async def index(self, remote: Iterable[AggregatedVersion] = ()) -> Document:
        """Return the response to GET /openapi/v3. Each URL has a hash, so that clients can cache its content.

        The hash of a document with custom kinds is that of their definitions, because building it takes long. `remote`
        are the versions of other servers, whose documents are read when a client asks for them.
        """
        digests = dict(await asyncio.to_thread(_builtin_digests))
        fingerprints: dict[str, list[str]] = {}
        for kind in self._scheme.custom_kinds:
            for resource in kind.versions:
                fingerprints.setdefault(_root(resource), []).append(kind.fingerprint)
        for path, parts_of_hash in fingerprints.items():
            text = " ".join((digests.get(path, ""), *parts_of_hash))
            digests[path] = hashlib.sha256(text.encode()).hexdigest()[:32].upper()
        for version in remote:
            if version.openapi_hash:
                digests[f"apis/{version.group}/{version.version}"] = version.openapi_hash
        return {
            "paths": {
                path: {"serverRelativeURL": f"/openapi/v3/{path}?hash={digest}"}
                for path, digest in sorted(digests.items())
            }
        }

    async def content(self, path: str) -> bytes | None:
        """Return the response to GET /openapi/v3/PATH, as JSON; None if the group and version have no kinds."""

        def custom() -> list[AnyResource]:
            return [resource for resource in self._custom_resources() if _root(resource) == path]

        if not custom():
            return content(path)
        builtin = [resource for resource in SERVED if _root(resource) == path]
        return await self._built(path, lambda: partial(_document, path, [*builtin, *custom()]))

    async def v2_json(self) -> bytes:
        """Return the response to GET /openapi/v2 as JSON: the definitions of custom kinds.

        Only tests and old tools read it. kubectl reads v3, and v2 only in protobuf.
        """
        return await self._built("", lambda: partial(_v2_document, self._custom_resources()))

    async def _built(self, path: str, prepare: Callable[[], Callable[[], Document]]) -> bytes:
        """Return a document as JSON: the one that is kept, or a new one. `prepare` returns what builds it in a thread.

        A definition may go meanwhile, whose schema cannot be read then.
        """
        async with self._building:
            while True:
                generation = self._scheme.generation
                if self._generation != generation:
                    self._generation, self._contents = generation, {}
                if path in self._contents:
                    return self._contents[path]
                try:
                    made = await asyncio.to_thread(_encoded, prepare())
                except StatusError:
                    if self._scheme.generation == generation:
                        raise
                    continue
                if self._scheme.generation == generation:
                    self._contents[path] = made
                return made

    def _custom_resources(self) -> list[AnyResource]:
        return [resource for kind in self._scheme.custom_kinds for resource in kind.versions]


@cache
def _builtin_paths() -> tuple[str, ...]:
    return tuple(sorted({_root(resource) for resource in SERVED}))


@cache
def _builtin_digests() -> Mapping[str, str]:
    """Return the hash of each document with built-in kinds. It takes 0.5 s the first time."""
    return {path: hashlib.sha256(content(path) or b"").hexdigest()[:32].upper() for path in _builtin_paths()}


V2_REFERENCE = "#/definitions/"
_NOT_IN_V2 = ("nullable", "default", "oneOf", "anyOf", "allOf", "not", "x-kubernetes-validations")


def _v2_document(kinds: Sequence[AnyResource]) -> Document:
    definitions = components(kinds, (DeleteOptions, Status)) if kinds else {}
    return {
        "swagger": "2.0",
        "info": INFO,
        "paths": {},
        "definitions": {name: _v2_schema(schema) for name, schema in definitions.items()},
    }


def _v2_schema(schema: Any) -> Any:
    """Return a schema as OpenAPI v2 has it: without what that version lacks. Such a part may have any content there."""
    if not isinstance(schema, dict):
        return schema
    if "$ref" in schema:
        return {"$ref": schema["$ref"].replace(REFERENCE, V2_REFERENCE)}
    if "allOf" in schema and len(schema["allOf"]) == 1 and "$ref" in schema["allOf"][0]:
        return _v2_schema(schema["allOf"][0]) | {key: schema[key] for key in ("description",) if key in schema}
    left_out = list(_NOT_IN_V2)
    if schema.get("nullable") is True:
        left_out += ["type", "items", "properties"]
    if schema.get("x-kubernetes-preserve-unknown-fields") is True:
        left_out += ["items", "properties"]
    if schema.get("x-kubernetes-int-or-string") is True:
        left_out += ["type"]
    plain = {key: value for key, value in schema.items() if key not in left_out}
    for key in ("items", "additionalProperties"):
        if key in plain:
            plain[key] = _v2_schema(plain[key])
    if isinstance(plain.get("properties"), dict):
        plain["properties"] = {name: _v2_schema(each) for name, each in plain["properties"].items()}
    return plain


def _root(resource: AnyResource) -> str:
    return f"apis/{resource.group}/{resource.version}" if resource.group else f"api/{resource.version}"


@cache
def content(path: str) -> bytes | None:
    """Return the document of the built-in kinds of a group and version as JSON; None if there are none."""
    openapi_document = document(path)
    return None if openapi_document is None else msgspec.json.encode(openapi_document)


def document(path: str) -> Document | None:
    """Return the OpenAPI document of the built-in kinds of a group and version, before it is encoded."""
    kinds = [resource for resource in SERVED if _root(resource) == path]
    return _document(path, kinds) if kinds else None


def _document(path: str, kinds: Sequence[AnyResource]) -> Document:
    return {
        "openapi": "3.0.0",
        "info": INFO,
        "paths": {
            f"/{path}/{subpath}": _named(subpath, operations)
            for resource in kinds
            for subpath, operations in _supported_paths(resource)
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


def _supported_paths(resource: AnyResource) -> Iterator[tuple[str, Document]]:
    """Yield (path below the group's path, operations that the resource supports)."""
    for subpath, operations in _paths_below_group(resource):
        actions = {
            key: operation.get("x-kubernetes-action", "")
            for key, operation in operations.items()
            if key != "parameters"
        }
        missing = {key for key, action in actions.items() if _VERBS.get(action, action) not in resource.verbs}
        yield subpath, {key: operation for key, operation in operations.items() if key not in missing}


def _paths_below_group(resource: AnyResource) -> Iterator[tuple[str, Document]]:
    """Yield (path below the group's path, operations of any resource with such a path)."""
    collection = f"namespaces/{{namespace}}/{resource.plural}" if resource.namespaced else resource.plural
    namespace_parameter = ("namespace",) if resource.namespaced else ()
    schema = name_of(resource)
    read, writes = _operation(resource, "list", _READING + _WATCHING, f"{schema}List"), _writes(resource)
    yield (
        collection,
        {
            **_in_path(*namespace_parameter),
            "get": read,
            "post": writes["post"],
            "delete": _operation(
                resource, "deletecollection", _READING[:2] + _DELETING, "Status", DeleteOptions.__name__
            ),
        },
    )
    if resource.namespaced:
        yield resource.plural, {"get": read}
    path_parameters = _in_path(*namespace_parameter, "name")
    methods_of_object = {
        "get": _operation(resource, "get", (), schema),
        "put": writes["put"],
        "patch": writes["patch"],
    }
    delete = _operation(resource, "delete", _DELETING, "Status", DeleteOptions.__name__)
    yield f"{collection}/{{name}}", {**path_parameters, **methods_of_object, "delete": delete}
    if resource.scale is not None:
        yield f"{collection}/{{name}}/scale", {**path_parameters, **_scale(resource)}
    for subresource in resource.all_subresources:
        if subresource.replace is not None:
            methods = {
                method: operation
                for method, operation in methods_of_object.items()
                if METHOD_VERBS[method.upper()] in subresource.verbs
            }
            yield f"{collection}/{{name}}/{subresource.name}", {**path_parameters, **methods}


def _scale(resource: AnyResource) -> Document:
    schema = Scale.__name__
    return {
        "get": _operation(resource, "get", (), schema),
        "put": _operation(resource, "put", _WRITING, schema, schema),
        "patch": _patch(resource, schema),
    }


def _named(subpath: str, operations: Document) -> Document:
    """Return the operations of a path, each with a unique operationId."""
    suffix = "".join(part.strip("{}").capitalize() for part in subpath.split("/"))
    return {
        key: operation
        if key == "parameters"
        else {**operation, "operationId": operation["x-kubernetes-action"] + suffix}
        for key, operation in operations.items()
    }


def _writes(resource: AnyResource) -> Document:
    schema = name_of(resource)
    return {
        "post": _operation(resource, "post", _WRITING, schema, schema),
        "put": _operation(resource, "put", _WRITING, schema, schema),
        "patch": _patch(resource, schema),
    }


def _patch(resource: AnyResource, response_schema: str) -> Document:
    types: tuple[str, ...] = (
        negotiation.JSON_PATCH,
        negotiation.MERGE_PATCH,
        negotiation.STRATEGIC_PATCH,
        negotiation.APPLY_PATCH,
    )
    if resource.documents is not None:
        types = tuple(each for each in types if each != negotiation.STRATEGIC_PATCH)
    body = {"required": True, "content": {media_type: {"schema": {}} for media_type in types}}
    return _operation(resource, "patch", (*_WRITING, ("force", "boolean")), response_schema) | {"requestBody": body}


def _operation(
    resource: AnyResource, action: str, parameters: Parameters, response_schema: str, body_schema: str = ""
) -> Document:
    content = {"application/json": {"schema": {"$ref": REFERENCE + response_schema}}}
    error_content = {"application/json": {"schema": {"$ref": REFERENCE + Status.__name__}}}
    success = {code: {"description": "done", "content": content} for code in _CODES.get(action, ("200",))}
    operation: Document = {
        **({"parameters": [_parameter(name, kind_of) for name, kind_of in parameters]} if parameters else {}),
        "responses": {**success, "default": {"description": "refused", "content": error_content}},
        "x-kubernetes-action": action,
        "x-kubernetes-group-version-kind": identity(resource),
    }
    if body_schema:
        content = {"application/json": {"schema": {"$ref": REFERENCE + body_schema}}}
        operation["requestBody"] = {"required": body_schema != DeleteOptions.__name__, "content": content}
    return operation


_CODES = {"post": ("201",), "patch": ("200", "201")}


def _parameter(name: str, kind_of: str) -> Document:
    schema: Document = {"type": kind_of, "uniqueItems": True}
    if name in _ENUMS:
        schema["enum"] = _ENUMS[name]
    if kind_of == "integer":
        schema["minimum"] = 0
    return {"name": name, "in": "query", "schema": schema}


def _in_path(*names: str) -> Document:
    parameters = [{"name": name, "in": "path", "required": True, "schema": {"type": "string"}} for name in names]
    return {"parameters": parameters} if parameters else {}
