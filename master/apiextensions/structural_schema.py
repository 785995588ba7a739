"""Structural schemas of custom resources: their parsed form, and what a CustomResourceDefinition may say. Pure.

`schema_errors` decides about a raw schema and bounds its size first. `parse_schema` makes the form that pruning,
defaulting and validation use; it ignores what it does not understand, so a schema that was once stored always parses.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

import msgspec

from api.codec.limits import value_count
from api.meta.schema import DUPLICATE, FORBIDDEN, MISSING, NOT_SUPPORTED, TOO_MANY, FieldError, quoted
from master.apiextensions.patterns import pattern_error

Json = Any

MAX_DEPTH = 64
"""Levels of schemas in one another. The deepest that is known has 18."""

MAX_NODES = 50_000
"""Schemas in the schema of a version. The largest that is known has 10,000."""

MAX_PATTERNS = 1_000
"""Different patterns in a schema. Compiling one takes some 50 us."""

MAX_ERRORS = 100
"""Errors of a schema that are reported."""

NO_DEFAULT: Any = msgspec.UNSET
"""The default of a schema that has none; `null` is a default."""

TYPES = ("array", "boolean", "integer", "number", "object", "string")
TYPE_META = frozenset(("apiVersion", "kind", "metadata"))
"""The fields that every resource has, embedded ones too."""


@dataclass(frozen=True, slots=True)
class DefaultedProperty:
    """A property that has a default, and the size of the default with its name."""

    name: str
    value: Json
    size: int
    """Bytes as JSON."""
    values: int


@dataclass(frozen=True, slots=True)
class StructuralSchema:
    """A schema, with the fields of JSONSchemaProps. Those in allOf, anyOf, oneOf and not have the same form."""

    type: str = ""
    format: str = ""
    nullable: bool = False
    int_or_string: bool = False
    preserve_unknown_fields: bool = False
    embedded_resource: bool = False
    properties: Mapping[str, StructuralSchema] = field(default_factory=dict)
    items: StructuralSchema | None = None
    has_additional_properties: bool = False
    """Whether `additionalProperties` is given, even as false."""
    allows_additional_properties: bool = True
    additional_properties: StructuralSchema | None = None
    default: Json = NO_DEFAULT
    defaulted: tuple[DefaultedProperty, ...] = ()
    """The properties with a default."""
    list_type: str = ""
    list_map_keys: tuple[str, ...] = ()
    map_type: str = ""
    required: tuple[str, ...] = ()
    enum: tuple[Json, ...] | None = None
    enum_keys: frozenset[str] = frozenset()
    """The values of `enum`, as `canonical` writes them."""
    pattern: str = ""
    maximum: float | None = None
    minimum: float | None = None
    exclusive_maximum: bool = False
    exclusive_minimum: bool = False
    multiple_of: float | None = None
    max_length: int | None = None
    min_length: int | None = None
    max_items: int | None = None
    min_items: int | None = None
    max_properties: int | None = None
    min_properties: int | None = None
    all_of: tuple[StructuralSchema, ...] = ()
    any_of: tuple[StructuralSchema, ...] = ()
    one_of: tuple[StructuralSchema, ...] = ()
    not_: StructuralSchema | None = None
    has_junctors: bool = False
    is_unique: bool = False
    """Whether a list in this schema or below is a set or a map."""


def canonical(value: Json) -> str:
    """Return JSON that is the same for equal values: fields sorted, whole numbers as integers."""
    if isinstance(value, str):
        return f'"{value}'
    if isinstance(value, float) and value.is_integer() and abs(value) < 2**53:
        value = int(value)
    return msgspec.json.encode(_whole(value), order="sorted").decode()


def _whole(value: Json) -> Json:
    if isinstance(value, dict):
        return {key: _whole(member) for key, member in value.items()}
    if isinstance(value, list):
        return [_whole(member) for member in value]
    if isinstance(value, float) and value.is_integer() and abs(value) < 2**53:
        return int(value)
    return value


_NO_FIELD_NAME = re.compile(r'["\\\x00-\x1f]')


def is_field_name(name: str) -> bool:
    """Return whether an object may have a root field of this name: JSON shows it without escapes."""
    return _NO_FIELD_NAME.search(name) is None


# --- parsing ----------------------------------------------------------------------------------------------------------


def parse_schema(document: object) -> StructuralSchema:
    """Return the parsed form of a raw schema. Raises ValueError if it is deeper or larger than accepted."""
    if error := size_error(document):
        raise ValueError(error)
    return _parse(document)


_EMPTY: Mapping[str, Any] = MappingProxyType({})


def _parse(raw: object) -> StructuralSchema:
    if not isinstance(raw, dict):
        return StructuralSchema()

    def text(key: str) -> str:
        value = raw.get(key)
        return value if isinstance(value, str) else ""

    def number(key: str) -> float | None:
        value = raw.get(key)
        return value if isinstance(value, int | float) and not isinstance(value, bool) else None

    def count(key: str) -> int | None:
        value = number(key)
        return int(value) if value is not None and math.isfinite(value) else None

    def texts(key: str) -> tuple[str, ...]:
        value = raw.get(key)
        return tuple(each for each in value if isinstance(each, str)) if isinstance(value, list) else ()

    properties = {name: _parse(inner) for name, inner in _map(raw, "properties").items()}
    items = _parse(raw["items"]) if isinstance(raw.get("items"), dict) else None
    additional = raw.get("additionalProperties")
    values = _parse(additional) if isinstance(additional, dict) else None
    enum = tuple(raw["enum"]) if isinstance(raw.get("enum"), list) else None
    junctors = {key: tuple(_parse(inner) for inner in _list(raw, key)) for key in ("allOf", "anyOf", "oneOf")}
    negated = _parse(raw["not"]) if isinstance(raw.get("not"), dict) else None
    default = raw.get("default", NO_DEFAULT)
    list_type = text("x-kubernetes-list-type")
    parts = [*properties.values(), *(part for part in (items, values) if part is not None)]
    return StructuralSchema(
        type=text("type"),
        format=text("format"),
        nullable=raw.get("nullable") is True,
        int_or_string=raw.get("x-kubernetes-int-or-string") is True,
        preserve_unknown_fields=raw.get("x-kubernetes-preserve-unknown-fields") is True,
        embedded_resource=raw.get("x-kubernetes-embedded-resource") is True,
        properties=properties,
        items=items,
        has_additional_properties=isinstance(additional, dict | bool),
        allows_additional_properties=additional is not False,
        additional_properties=values,
        default=NO_DEFAULT if default is None else default,
        defaulted=tuple(
            DefaultedProperty(
                name,
                inner.default,
                len(msgspec.json.encode(inner.default)) + len(name) + 4,
                value_count(inner.default) + 1,
            )
            for name, inner in properties.items()
            if inner.default is not NO_DEFAULT
        ),
        list_type=list_type,
        list_map_keys=texts("x-kubernetes-list-map-keys"),
        map_type=text("x-kubernetes-map-type"),
        required=texts("required"),
        enum=enum,
        enum_keys=frozenset(map(canonical, enum or ())),
        pattern=text("pattern"),
        maximum=number("maximum"),
        minimum=number("minimum"),
        exclusive_maximum=raw.get("exclusiveMaximum") is True,
        exclusive_minimum=raw.get("exclusiveMinimum") is True,
        multiple_of=number("multipleOf"),
        max_length=count("maxLength"),
        min_length=count("minLength"),
        max_items=count("maxItems"),
        min_items=count("minItems"),
        max_properties=count("maxProperties"),
        min_properties=count("minProperties"),
        all_of=junctors["allOf"],
        any_of=junctors["anyOf"],
        one_of=junctors["oneOf"],
        not_=negated,
        has_junctors=negated is not None or any(junctors.values()),
        is_unique=list_type in ("set", "map") or any(part.is_unique for part in parts),
    )


def _map(raw: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    value = raw.get(key)
    return value if isinstance(value, dict) else _EMPTY


def _list(raw: Mapping[str, Any], key: str) -> list[Any]:
    value = raw.get(key)
    return value if isinstance(value, list) else []


# --- size -------------------------------------------------------------------------------------------------------------


def _inner_schemas(raw: Mapping[str, Any]) -> Iterator[object]:
    yield from _map(raw, "properties").values()
    for key in ("items", "additionalProperties", "not"):
        yield raw.get(key)
    for key in ("allOf", "anyOf", "oneOf"):
        yield from _list(raw, key)


def size_error(document: object) -> str:
    """Return what is wrong with the depth or the number of schemas; an empty text if nothing is. Needs no recursion."""
    level = [document] if isinstance(document, dict) else []
    nodes = 0
    for _ in range(MAX_DEPTH):
        nodes += len(level)
        if nodes > MAX_NODES:
            return f"must have at most {MAX_NODES} schemas"
        level = [inner for raw in level for inner in _inner_schemas(raw) if isinstance(inner, dict)]
        if not level:
            return ""
    return f"must have at most {MAX_DEPTH} levels of schemas"


# --- acceptance -------------------------------------------------------------------------------------------------------

_SHAPES: Mapping[str, tuple[type, ...]] = {
    **dict.fromkeys(("id", "$schema", "$ref", "description", "type", "format", "title", "pattern"), (str,)),
    **dict.fromkeys(("maximum", "minimum", "multipleOf"), (int, float)),
    **dict.fromkeys(("maxLength", "minLength", "maxItems", "minItems", "maxProperties", "minProperties"), (int,)),
    **dict.fromkeys(("exclusiveMaximum", "exclusiveMinimum", "uniqueItems", "nullable"), (bool,)),
    **dict.fromkeys(("enum", "required", "allOf", "anyOf", "oneOf"), (list,)),
    **dict.fromkeys(("properties", "patternProperties", "definitions", "dependencies", "not", "externalDocs"), (dict,)),
    "items": (dict, list),
    "additionalProperties": (dict, bool),
    "additionalItems": (dict, bool),
    "x-kubernetes-preserve-unknown-fields": (bool,),
    "x-kubernetes-embedded-resource": (bool,),
    "x-kubernetes-int-or-string": (bool,),
    "x-kubernetes-list-type": (str,),
    "x-kubernetes-map-type": (str,),
    "x-kubernetes-list-map-keys": (list,),
    "x-kubernetes-validations": (list,),
}
_TYPE_NAMES: Mapping[type, str] = {
    str: "a string", int: "a whole number", float: "a number", bool: "true or false", list: "a list", dict: "an object"
}  # fmt: skip

_UNSUPPORTED = ("$ref", "additionalItems", "definitions", "dependencies", "id", "patternProperties")
_STATUS_ROOT_KEYS = frozenset(
    (
        "description", "type", "format", "title", "maximum", "exclusiveMaximum", "minimum", "exclusiveMinimum",
        "maxLength", "minLength", "pattern", "maxItems", "minItems", "uniqueItems", "multipleOf", "required", "items",
        "properties", "externalDocs", "example", "$schema", "maxProperties", "minProperties",
        "x-kubernetes-preserve-unknown-fields", "x-kubernetes-validations", "nullable", "x-kubernetes-map-type",
    )
)  # fmt: skip
"""What the root may have if there is a status: rules on the whole object would mix the two parts of it."""

_UNSTRUCTURAL: Mapping[str, str] = {
    "type": "must be empty to be structural",
    "title": "must be empty to be structural",
    "description": "must be empty to be structural",
    "default": "must be undefined to be structural",
    "nullable": "must be false to be structural",
    "additionalProperties": "must be undefined to be structural",
    "x-kubernetes-preserve-unknown-fields": "must be undefined to be structural",
    "x-kubernetes-embedded-resource": "must be false to be structural",
    "x-kubernetes-int-or-string": "must be false to be structural",
    "x-kubernetes-list-type": "must be undefined to be structural",
    "x-kubernetes-map-type": "must be undefined to be structural",
    "x-kubernetes-list-map-keys": "must be empty to be structural",
    "x-kubernetes-validations": "must be empty to be structural",
}
"""What a schema in allOf, anyOf, oneOf or not may not have, and why."""

_JUNCTORS = ("allOf", "anyOf", "oneOf")
RULE_REASONS = ("FieldValueDuplicate", "FieldValueForbidden", "FieldValueInvalid", "FieldValueRequired")
MAX_MESSAGE_LENGTH = 2048
_SCALARS = ("boolean", "integer", "number", "string")


def schema_errors(document: object, path: str, has_status_subresource: bool) -> tuple[FieldError, ...]:
    """Return the errors of a raw schema at `path`, up to MAX_ERRORS; those of its defaults are not among them."""
    if not isinstance(document, dict):
        return (FieldError(path, quoted(document), "an object is accepted"),)
    if error := size_error(document):
        return (FieldError(path, "a schema", error, TOO_MANY),)
    if shape := tuple(_first(_shape_errors(document, path), MAX_ERRORS)):
        return shape
    return tuple(_first(_all_errors(document, path, has_status_subresource), MAX_ERRORS))


def _first(errors: Iterator[FieldError], limit: int) -> Iterator[FieldError]:
    for error, _ in zip(errors, range(limit), strict=False):
        yield error


def _shape_errors(raw: Mapping[str, Any], path: str) -> Iterator[FieldError]:
    """Yield an error for each keyword with a value of another type. What follows relies on the types."""
    for key, value in raw.items():
        accepted = _SHAPES.get(key)
        if accepted is None or value is None:
            continue
        if not isinstance(value, accepted) or (isinstance(value, bool) and bool not in accepted):
            words = " or ".join(_TYPE_NAMES[each] for each in accepted if (each, accepted) != (int, (int, float)))
            yield FieldError(f"{path}.{key}", quoted(value), f"{words} is accepted")
    for key in ("required", "x-kubernetes-list-map-keys"):
        for index, value in enumerate(_list(raw, key)):
            if not isinstance(value, str):
                yield FieldError(f"{path}.{key}[{index}]", quoted(value), "a string is accepted")
    for index, rule in enumerate(_list(raw, "x-kubernetes-validations")):
        yield from _rule_shape_errors(rule, f"{path}.x-kubernetes-validations[{index}]")
    for inner, inner_path in _children(raw, path):
        if isinstance(inner, dict):
            yield from _shape_errors(inner, inner_path)
        else:
            yield FieldError(inner_path, quoted(inner), "an object is accepted")


def _rule_shape_errors(rule: object, path: str) -> Iterator[FieldError]:
    if not isinstance(rule, dict):
        yield FieldError(path, quoted(rule), "an object is accepted")
        return
    for key in ("rule", "message", "messageExpression", "reason", "fieldPath"):
        if rule.get(key) is not None and not isinstance(rule[key], str):
            yield FieldError(f"{path}.{key}", quoted(rule[key]), "a string is accepted")
    if not isinstance(rule.get("optionalOldSelf"), bool | None):
        yield FieldError(f"{path}.optionalOldSelf", quoted(rule["optionalOldSelf"]), "true or false is accepted")


def _children(raw: Mapping[str, Any], path: str) -> Iterator[tuple[Any, str]]:
    """Yield each schema directly inside another, with its path."""
    for name, inner in _map(raw, "properties").items():
        yield inner, f"{path}.properties[{name}]"
    for key in ("items", "additionalProperties", "not"):
        if isinstance(raw.get(key), dict):
            yield raw[key], f"{path}.{key}"
    for key in _JUNCTORS:
        for index, inner in enumerate(_list(raw, key)):
            yield inner, f"{path}.{key}[{index}]"


def _all_errors(raw: Mapping[str, Any], path: str, has_status_subresource: bool) -> Iterator[FieldError]:
    yield from _root_errors(raw, path, has_status_subresource)
    yield from _keyword_errors(raw, path, _Patterns())
    yield from _structural_errors(raw, path, is_resource=True)


def _root_errors(raw: Mapping[str, Any], path: str, has_status_subresource: bool) -> Iterator[FieldError]:
    if raw.get("nullable"):
        yield FieldError(f"{path}.nullable", "true", "nullable cannot be true at the root", FORBIDDEN)
    if not raw.get("type"):
        yield FieldError(f"{path}.type", '""', "must not be empty at the root", MISSING)
    elif raw["type"] != "object":
        yield FieldError(f"{path}.type", quoted(raw["type"]), "must be object at the root")
    if raw.get("additionalProperties") not in (None, False):
        yield FieldError(f"{path}.additionalProperties", "given", "must not be used at the root", FORBIDDEN)
    for name in _map(raw, "properties"):
        if not is_field_name(name):
            reason = "must not have quotation marks, backslashes and control characters at the root"
            yield FieldError(f"{path}.properties", quoted(name), reason)
    if not has_status_subresource:
        return
    for key, value in raw.items():
        if key not in _STATUS_ROOT_KEYS and value not in (None, False, [], {}) and (key in _SHAPES or key == "default"):
            accepted = "only description, type, properties, required and limits can be used at the root of a schema"
            yield FieldError(f"{path}.{key}", "given", f"{accepted} if the status subresource is enabled", FORBIDDEN)


class _Patterns:
    """The different patterns of one schema."""

    def __init__(self) -> None:
        self._seen: dict[str, str] = {}

    def error(self, pattern: str) -> str:
        """Return why a pattern is not accepted, or an empty text."""
        if pattern not in self._seen:
            if len(self._seen) >= MAX_PATTERNS:
                return f"a schema must have at most {MAX_PATTERNS} different patterns"
            found = pattern_error(pattern)
            self._seen[pattern] = found and f"must be a valid regular expression, but isn't: {found}"
        return self._seen[pattern]


def _keyword_errors(raw: Mapping[str, Any], path: str, patterns: _Patterns) -> Iterator[FieldError]:  # noqa: C901
    """Yield the errors of every schema that do not depend on where it is."""
    for key in _UNSUPPORTED:
        if raw.get(key) not in (None, "", {}, False):
            yield FieldError(f"{path}.{key}", "given", f"{key} is not supported", FORBIDDEN)
    if raw.get("uniqueItems"):
        reason = "uniqueItems cannot be set to true since the runtime complexity becomes quadratic"
        yield FieldError(f"{path}.uniqueItems", "true", reason, FORBIDDEN)
    if isinstance(raw.get("items"), list):
        yield FieldError(f"{path}.items", "a list", "items must be a schema object and not an array", FORBIDDEN)
    kind = raw.get("type") or ""
    if kind == "null":
        reason = "type cannot be set to null, use nullable as an alternative"
        yield FieldError(f"{path}.type", '"null"', reason, FORBIDDEN)
    elif kind and kind not in TYPES:
        yield _unsupported(f"{path}.type", kind, TYPES)
    if raw.get("properties") and raw.get("additionalProperties") not in (None, True):
        reason = "additionalProperties and properties are mutual exclusive"
        yield FieldError(f"{path}.additionalProperties", "given", reason, FORBIDDEN)
    if raw.get("pattern") and (error := patterns.error(raw["pattern"])):
        yield FieldError(f"{path}.pattern", quoted(raw["pattern"]), error)
    if raw.get("multipleOf") is not None and raw["multipleOf"] <= 0:
        yield FieldError(f"{path}.multipleOf", quoted(raw["multipleOf"]), "must be greater than 0")
    for key in ("maxLength", "minLength", "maxItems", "minItems", "maxProperties", "minProperties"):
        if (raw.get(key) or 0) < 0:
            yield FieldError(f"{path}.{key}", quoted(raw[key]), "must be greater than or equal to 0")
    yield from _extension_errors(raw, path)
    yield from _rule_errors(raw, path)
    for inner, inner_path in _children(raw, path):
        yield from _keyword_errors(inner, inner_path, patterns)


def _unsupported(path: str, value: object, accepted: tuple[str, ...]) -> FieldError:
    return FieldError(path, quoted(value), f"supported values: {', '.join(map(quoted, accepted))}", NOT_SUPPORTED)


def _extension_errors(raw: Mapping[str, Any], path: str) -> Iterator[FieldError]:  # noqa: C901
    kind = raw.get("type") or ""
    preserves = raw.get("x-kubernetes-preserve-unknown-fields")
    if preserves is False:
        yield FieldError(f"{path}.x-kubernetes-preserve-unknown-fields", "false", "must be true or undefined")
    if preserves and kind == "" and raw.get("x-kubernetes-embedded-resource"):
        yield FieldError(f"{path}.type", '""', "must be object if x-kubernetes-embedded-resource is true", MISSING)
    if raw.get("x-kubernetes-map-type"):
        if raw["x-kubernetes-map-type"] not in ("granular", "atomic"):
            yield _unsupported(f"{path}.x-kubernetes-map-type", raw["x-kubernetes-map-type"], ("granular", "atomic"))
        if kind != "object":
            reason = "must be object if x-kubernetes-map-type is specified"
            yield FieldError(f"{path}.type", quoted(kind), reason, INVALID_OR_MISSING[bool(kind)])
    if raw.get("x-kubernetes-embedded-resource"):
        if kind != "object" and kind:
            reason = "must be object if x-kubernetes-embedded-resource is true"
            yield FieldError(f"{path}.type", quoted(kind), reason)
        if not preserves and not raw.get("properties"):
            reason = "must not be empty if x-kubernetes-embedded-resource is true without "
            yield FieldError(f"{path}.properties", "{}", f"{reason}x-kubernetes-preserve-unknown-fields", MISSING)
    if raw.get("x-kubernetes-int-or-string"):
        for other in ("x-kubernetes-preserve-unknown-fields", "x-kubernetes-embedded-resource"):
            if raw.get(other):
                yield FieldError(f"{path}.{other}", "true", "must be false if x-kubernetes-int-or-string is true")
    yield from _list_errors(raw, path)


INVALID_OR_MISSING = {True: "FieldValueInvalid", False: MISSING}
"""The reason of an error about a type that is given, or is not."""


def _list_errors(raw: Mapping[str, Any], path: str) -> Iterator[FieldError]:
    list_type, keys = raw.get("x-kubernetes-list-type") or "", _list(raw, "x-kubernetes-list-map-keys")
    kind = raw.get("type") or ""
    if list_type and list_type not in ("atomic", "set", "map"):
        yield _unsupported(f"{path}.x-kubernetes-list-type", list_type, ("atomic", "set", "map"))
    if (list_type or keys) and kind != "array":
        reason = f"must be array if x-kubernetes-list-{'type' if list_type else 'map-keys'} is specified"
        yield FieldError(f"{path}.type", quoted(kind), reason, INVALID_OR_MISSING[bool(kind)])
    if keys and list_type != "map":
        reason = "must be map if x-kubernetes-list-map-keys is non-empty"
        yield FieldError(
            f"{path}.x-kubernetes-list-type", quoted(list_type), reason, INVALID_OR_MISSING[bool(list_type)]
        )
    items = raw.get("items")
    if not isinstance(items, dict):
        if list_type in ("set", "map"):
            reason = f"must have a schema if x-kubernetes-list-type is {list_type}"
            yield FieldError(f"{path}.items", "null", reason, MISSING)
        return
    if list_type in ("set", "map") and items.get("nullable"):
        reason = f"cannot be nullable when x-kubernetes-list-type is {list_type}"
        yield FieldError(f"{path}.items.nullable", "true", reason, FORBIDDEN)
    if list_type == "set":
        yield from _set_errors(items, path)
    elif list_type == "map":
        yield from _map_errors(items, keys, path)


def _set_errors(items: Mapping[str, Any], path: str) -> Iterator[FieldError]:
    where = "as item of a list with x-kubernetes-list-type=set"
    if items.get("type") == "object" and items.get("x-kubernetes-map-type") != "atomic":
        found = items.get("x-kubernetes-map-type") or ""
        yield FieldError(f"{path}.items.x-kubernetes-map-type", quoted(found), f"must be atomic {where}")
    if items.get("type") == "array" and items.get("x-kubernetes-list-type") not in (None, "", "atomic"):
        found = items.get("x-kubernetes-list-type")
        yield FieldError(f"{path}.items.x-kubernetes-list-type", quoted(found), f"must be atomic {where}")


def _map_errors(items: Mapping[str, Any], keys: list[Any], path: str) -> Iterator[FieldError]:
    keys_path = f"{path}.x-kubernetes-list-map-keys"
    if not keys:
        yield FieldError(keys_path, "[]", "must not be empty if x-kubernetes-list-type is map", MISSING)
    if items.get("type") != "object":
        reason = "must be object if parent array's x-kubernetes-list-type is map"
        yield FieldError(f"{path}.items.type", quoted(items.get("type") or ""), reason)
    properties, required = _map(items, "properties"), set(_list(items, "required"))
    seen = set[str]()
    for index, key in enumerate(keys):
        if key in seen:
            yield FieldError(f"{keys_path}[{index}]", quoted(key), "must be unique", DUPLICATE)
        seen.add(key)
        schema = properties.get(key)
        if schema is None:
            yield FieldError(f"{keys_path}[{index}]", quoted(key), "entries must all be names of item properties")
            continue
        key_path = f"{path}.items.properties[{key}]"
        if schema.get("type") not in _SCALARS and not schema.get("x-kubernetes-int-or-string"):
            reason = "must be a scalar type if parent array's x-kubernetes-list-type is map"
            yield FieldError(f"{key_path}.type", quoted(schema.get("type") or ""), reason)
        if schema.get("nullable"):
            reason = "must not be nullable, because it is a key of a list with x-kubernetes-list-type=map"
            yield FieldError(f"{key_path}.nullable", "true", reason, FORBIDDEN)
        if key not in required and schema.get("default") is None:
            reason = (
                "this property is in x-kubernetes-list-map-keys, so it must have a default or be a required property"
            )
            yield FieldError(f"{key_path}.default", "null", reason, MISSING)


def _rule_errors(raw: Mapping[str, Any], path: str) -> Iterator[FieldError]:
    """Yield the errors of rules that show without a compiler."""
    for index, rule in enumerate(_list(raw, "x-kubernetes-validations")):
        rule_path = f"{path}.x-kubernetes-validations[{index}]"
        text, message = rule.get("rule") or "", rule.get("message") or ""
        if not text.strip():
            yield FieldError(f"{rule_path}.rule", quoted(text), "rule is not specified", MISSING)
        if message and not message.strip():
            yield FieldError(f"{rule_path}.message", quoted(message), "message must be non-empty if specified")
        elif "\n" in message.strip():
            yield FieldError(f"{rule_path}.message", quoted(message), "message must not contain line breaks")
        elif len(message) > MAX_MESSAGE_LENGTH:
            reason = f"message must have a maximum length of {MAX_MESSAGE_LENGTH} characters"
            yield FieldError(f"{rule_path}.message", quoted(message), reason)
        elif "\n" in text.strip() and not message:
            reason = "message must be specified if rule contains line breaks"
            yield FieldError(f"{rule_path}.message", '""', reason, MISSING)
        if rule.get("messageExpression") and not rule["messageExpression"].strip():
            found = quoted(rule["messageExpression"])
            reason = "messageExpression must be non-empty if specified"
            yield FieldError(f"{rule_path}.messageExpression", found, reason, MISSING)
        if rule.get("reason") and rule["reason"] not in RULE_REASONS:
            yield _unsupported(f"{rule_path}.reason", rule["reason"], RULE_REASONS)


# --- structure --------------------------------------------------------------------------------------------------------


def _structural_errors(raw: Mapping[str, Any], path: str, *, is_resource: bool) -> Iterator[FieldError]:
    """Yield what keeps a schema outside of all junctors from being structural. Its children follow."""
    yield from _junctors_errors(raw, path)
    properties = _map(raw, "properties")
    if raw.get("type") == "array" and not isinstance(raw.get("items"), dict | list):
        yield FieldError(f"{path}.items", "null", "must be specified", MISSING)
    if is_resource:
        yield from _metadata_errors(raw, path)
        for name in ("apiVersion", "kind"):
            if isinstance(properties.get(name), dict) and properties[name].get("default") is not None:
                yield FieldError(f"{path}.properties[{name}].default", "given", "must not be set", FORBIDDEN)
    inner = [
        *((schema, f"{path}.properties[{name}]", "object fields") for name, schema in properties.items()),
        *((raw[key], f"{path}.{key}", words) for key, words in _TYPED_CHILDREN if isinstance(raw.get(key), dict)),
    ]
    for schema, inner_path, words in inner:
        # The server knows the type of metadata, and of the fields beside it.
        is_untyped = not schema.get("type") and not schema.get("x-kubernetes-int-or-string")
        if is_untyped and not schema.get("x-kubernetes-preserve-unknown-fields"):
            yield FieldError(f"{inner_path}.type", '""', f"must not be empty for specified {words}", MISSING)
        if schema.get("type") and schema.get("x-kubernetes-int-or-string"):
            reason = "must be empty if x-kubernetes-int-or-string is true"
            yield FieldError(f"{inner_path}.type", quoted(schema["type"]), reason)
        embedded = schema.get("x-kubernetes-embedded-resource") is True
        yield from _structural_errors(schema, inner_path, is_resource=embedded)


_TYPED_CHILDREN = (("items", "array items"), ("additionalProperties", "object fields"))


def _metadata_errors(raw: Mapping[str, Any], path: str) -> Iterator[FieldError]:
    metadata = _map(raw, "properties").get("metadata")
    if not isinstance(metadata, dict):
        return
    metadata_path = f"{path}.properties[metadata]"
    if metadata.get("type") not in (None, "", "object"):
        yield FieldError(f"{metadata_path}.type", quoted(metadata["type"]), "must be object")
    yield from _forbidden_defaults(metadata, metadata_path)
    is_other = any(
        value not in (None, "", [], {}, False) and key not in ("type", "properties", "description")
        for key, value in metadata.items()
        if key in _SHAPES and key != "title"
    )
    if is_other or _map(metadata, "properties").keys() - {"name", "generateName"}:
        reason = "must not specify anything other than name and generateName, but metadata is implicitly specified"
        yield FieldError(metadata_path, "given", reason, FORBIDDEN)


def _forbidden_defaults(raw: Mapping[str, Any], path: str) -> Iterator[FieldError]:
    if raw.get("default") is not None:
        yield FieldError(f"{path}.default", "given", "must not be set in metadata", FORBIDDEN)
    for inner, inner_path in _children(raw, path):
        yield from _forbidden_defaults(inner, inner_path)


def _junctors_errors(raw: Mapping[str, Any], path: str) -> Iterator[FieldError]:
    for key in _JUNCTORS:
        for index, inner in enumerate(_list(raw, key)):
            if not (raw.get("x-kubernetes-int-or-string") and _is_int_or_string(raw, key, index)):
                yield from _junctor_errors(inner, raw, path, f"{path}.{key}[{index}]")
    if isinstance(raw.get("not"), dict):
        yield from _junctor_errors(raw["not"], raw, path, f"{path}.not")


INT_OR_STRING = [{"type": "integer"}, {"type": "string"}]


def _is_int_or_string(raw: Mapping[str, Any], key: str, index: int) -> bool:
    """Return whether a schema is a part of the two alternatives that int-or-string may spell out."""
    if key == "anyOf":
        return raw.get("anyOf") == INT_OR_STRING
    return key == "allOf" and index == 0 and raw["allOf"][0] == {"anyOf": INT_OR_STRING}


def _junctor_errors(  # noqa: C901
    raw: Mapping[str, Any], outer: Any, outer_path: str, path: str
) -> Iterator[FieldError]:
    """Yield what a schema in a junctor may not have. `outer` is the schema at the same place outside of all."""
    for key, reason in _UNSTRUCTURAL.items():
        if raw.get(key) not in (None, "", [], False) or (key == "additionalProperties" and raw.get(key) is False):
            yield FieldError(f"{path}.{key}", "given", reason, FORBIDDEN)
    for name, inner in _map(raw, "properties").items():
        inner_path, outer_inner = f"{path}.properties[{name}]", f"{outer_path}.properties[{name}]"
        if name == "metadata" and outer_path.endswith("openAPIV3Schema"):
            yield FieldError(inner_path, "given", "must not be specified in a nested context", FORBIDDEN)
            continue
        counterpart = _map(outer, "properties").get(name)
        if counterpart is None:
            yield FieldError(outer_inner, "null", f"because it is defined in {inner_path}", MISSING)
        else:
            yield from _junctor_errors(inner, counterpart, outer_inner, inner_path)
    if isinstance(raw.get("items"), dict):
        if not isinstance(outer.get("items"), dict):
            yield FieldError(f"{outer_path}.items", "null", f"because it is defined in {path}.items", MISSING)
        else:
            yield from _junctor_errors(raw["items"], outer["items"], f"{outer_path}.items", f"{path}.items")
    for key in _JUNCTORS:
        for index, inner in enumerate(_list(raw, key)):
            yield from _junctor_errors(inner, outer, outer_path, f"{path}.{key}[{index}]")
    if isinstance(raw.get("not"), dict):
        yield from _junctor_errors(raw["not"], outer, outer_path, f"{path}.not")
