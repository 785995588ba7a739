"""Validation of custom resources by their schema, with the words of Kubernetes, and ratcheting. Pure.

An update may keep what an earlier schema accepted: the errors of a value are dropped if the old object has an equal
value at the same place, as far as the place can be found again (properties, values of maps, items of lists with keys).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from api.meta.schema import (
    DUPLICATE,
    MAX_KEY_LENGTH,
    MISSING,
    NOT_SUPPORTED,
    TOO_LONG,
    TOO_MANY,
    TYPE_INVALID,
    FieldError,
    quoted,
)
from master.apiextensions.formats import INTEGER_BITS, MAX_FLOAT, has_format
from master.apiextensions.patterns import timed_match, work
from master.apiextensions.structural_schema import StructuralSchema, canonical

Json = Any

MAX_ERRORS = 100
"""Errors of an object after which validation ends."""

STEP_BITS = 10
"""A text counts as one more pair for each 2 to the power of this of its characters."""

MAX_STEPS = 60_000
"""Pairs of a value and a schema that one validation compares. It ends those whose junctors multiply the work."""

MAX_PATTERN_WORK = 200_000_000
"""Steps of one match of a pattern, at most (`patterns.work`). They take up to 0.3 s, and cannot be interrupted."""

MAX_PATTERN_SECONDS = 0.5
"""Processor time for all patterns of one validation. Mostly a match takes 1 ns for each character, but `(a|b){0,500}c`
takes a thousand times as long.
"""

MAX_LISTED_VALUES = 100
"""Values of an enum that a message names."""

ABSENT: Any = object()
"""The old value where there is none, or where it cannot be found again."""

MAX_SAFE_INTEGER = 2**53 - 1
TOO_LONG_TO_MATCH = "the patterns of the schema take too long for texts of this length; maxLength bounds it"
TOO_COSTLY = f"the schema compares its values more than {MAX_STEPS} times, mostly in allOf, anyOf, oneOf and not"


def validate(
    document: Mapping[str, Json], old: Mapping[str, Json] | None, schema: StructuralSchema
) -> tuple[FieldError, ...]:
    """Return the errors of an object, which is pruned and has its defaults. `old` is None for a new object."""
    return _errors(document, ABSENT if old is None else old, schema, "")


def validate_status(
    document: Mapping[str, Json], old: Mapping[str, Json] | None, schema: StructuralSchema
) -> tuple[FieldError, ...]:
    """Return the errors of the status of an object."""
    status_schema = schema.properties.get("status")
    if status_schema is None or "status" not in document:
        return ()
    return _errors(document["status"], ABSENT if old is None else old.get("status", ABSENT), status_schema, "status")


def _errors(value: Json, old: Json, schema: StructuralSchema, path: str) -> tuple[FieldError, ...]:
    walk = _Walk()
    found = walk.errors(value, old, schema, path)
    if walk.is_over:
        reason = TOO_COSTLY if walk.steps > MAX_STEPS else TOO_LONG_TO_MATCH
        return (FieldError(path or "<nil>", _type_name(value), reason, TOO_MANY),)
    embedded = _embedded_errors(value, schema, path, is_root=True)
    found += [error for error, _ in zip(embedded, range(MAX_ERRORS), strict=False)]
    if schema.is_unique:
        duplicates = list(_first_duplicates(value, schema, path))
        if duplicates and (old is ABSENT or not any(_first_duplicates(old, schema, path))):
            found += duplicates
    return tuple(found[:MAX_ERRORS])


def equal(value: Json, old: Json) -> bool:
    """Return whether two values are equal as JSON, where true is not 1."""
    return value == old and canonical(value) == canonical(old)


def _child_path(path: str, key: str) -> str:
    return f"{path}.{key[:MAX_KEY_LENGTH]}" if path else key[:MAX_KEY_LENGTH]


def _type_name(value: Json) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "boolean"
    if isinstance(value, int):
        return "integer" if -(2**63) <= value < 2**63 else "number"
    if isinstance(value, float):
        return "number"
    if isinstance(value, str):
        return "string"
    return "array" if isinstance(value, list) else "object"


def _is_integer(value: Json) -> bool:
    if isinstance(value, bool):
        return False
    if isinstance(value, int):
        return -(2**63) <= value < 2**63
    return isinstance(value, float) and value.is_integer() and abs(value) <= MAX_SAFE_INTEGER


def _is_number(value: Json) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


_TYPE_CHECKS: Mapping[str, Callable[[Json], bool]] = {
    "array": lambda value: isinstance(value, list),
    "boolean": lambda value: isinstance(value, bool),
    "integer": _is_integer,
    "number": _is_number,
    "object": lambda value: isinstance(value, dict),
    "string": lambda value: isinstance(value, str),
}


class _Walk:
    """One validation. `steps` counts the pairs of value and schema, `seconds` is the time that patterns took.

    Each alternative in a junctor sees the same values, so what is costly about a large one is computed once.
    """

    def __init__(self) -> None:
        self.steps, self.seconds = 0, 0.0
        self._equal: dict[tuple[int, int], bool] = {}
        self._canonical: dict[int, str] = {}

    @property
    def is_over(self) -> bool:
        """Return whether the validation takes too long. Errors are not looked for any more."""
        return self.steps > MAX_STEPS or self.seconds > MAX_PATTERN_SECONDS

    def errors(self, value: Json, old: Json, schema: StructuralSchema, path: str) -> list[FieldError]:
        """Return the errors of a value and below, without those that the old value excuses."""
        self.steps += 1 + (len(value) >> STEP_BITS if isinstance(value, str) else 0)
        if self.is_over:
            return []
        found = self._own_errors(value, old, schema, path)
        return [] if found and old is not ABSENT and self._is_equal(value, old) else found

    def _is_equal(self, value: Json, old: Json) -> bool:
        key = id(value), id(old)
        known = self._equal.get(key)
        if known is None:
            known = self._equal[key] = equal(value, old)
        return known

    def _canonical_of(self, value: Json) -> str:
        if not isinstance(value, dict | list):
            return canonical(value)
        known = self._canonical.get(id(value))
        if known is None:
            known = self._canonical[id(value)] = canonical(value)
        return known

    def _enum_errors(self, value: Json, schema: StructuralSchema, path: str) -> list[FieldError]:
        if schema.enum is None or self._canonical_of(value) in schema.enum_keys:
            return []
        listed = ", ".join(map(quoted, schema.enum[:MAX_LISTED_VALUES]))
        more = ", ..." if len(schema.enum) > MAX_LISTED_VALUES else ""
        return [FieldError(path or "<nil>", quoted(value), f"supported values: {listed}{more}", NOT_SUPPORTED)]

    def _matches(self, pattern: str, text: str) -> bool:
        if work(pattern, text) > MAX_PATTERN_WORK:
            self.seconds = math.inf
            return True
        found, seconds = timed_match(pattern, text)
        self.seconds += seconds
        return found

    def _own_errors(self, value: Json, old: Json, schema: StructuralSchema, path: str) -> list[FieldError]:
        if value is None and schema.nullable:
            return self._enum_errors(value, schema, path)
        if error := _type_error(value, schema, path):
            return [error]
        found = list[FieldError]()
        if schema.enum is not None:
            found += self._enum_errors(value, schema, path)
        if isinstance(value, str):
            found += self._string_errors(value, schema, path)
        elif isinstance(value, dict):
            found += self._object_errors(value, old, schema, path)
        elif isinstance(value, list):
            found += self._list_errors(value, old, schema, path)
        elif _is_number(value):
            found += _number_errors(value, schema, path)
        if schema.has_junctors:
            found += self._junctor_errors(value, old, schema, path)
        return found

    def _string_errors(self, value: str, schema: StructuralSchema, path: str) -> Iterator[FieldError]:
        if schema.max_length is not None and len(value) > schema.max_length:
            yield FieldError(path, "<value omitted>", f"may not be more than {schema.max_length} bytes", TOO_LONG)
            return
        if schema.min_length is not None and len(value) < schema.min_length:
            yield _invalid(path, value, f"should be at least {schema.min_length} chars long")
        if schema.pattern and not self._matches(schema.pattern, value):
            yield _invalid(path, value, f"should match '{schema.pattern}'")
        if schema.format and not schema.int_or_string and not has_format(value, schema.format):
            yield _invalid(path, value, f"must be of type {schema.format}: {quoted(value)}")

    def _object_errors(
        self, value: dict[str, Json], old: Json, schema: StructuralSchema, path: str
    ) -> list[FieldError]:
        properties, additional = schema.properties, schema.additional_properties
        old_members: Mapping[str, Json] = old if isinstance(old, dict) else {}
        found = [
            FieldError(_child_path(path, name), "null", "", MISSING) for name in schema.required if name not in value
        ][:MAX_ERRORS]
        if schema.max_properties is not None and len(value) > schema.max_properties:
            detail = f"must have at most {schema.max_properties} items"
            found.append(FieldError(path or "<nil>", str(len(value)), detail, TOO_MANY))
        if schema.min_properties is not None and len(value) < schema.min_properties:
            found.append(_invalid(path, value, f"should have at least {schema.min_properties} properties"))
        for key, member in value.items():
            inner = properties.get(key, additional)
            if inner is not None:
                found += self.errors(member, old_members.get(key, ABSENT), inner, _child_path(path, key))
            elif not schema.allows_additional_properties and key not in properties:
                member_path = _child_path(path, key)
                found.append(FieldError(member_path, quoted(member), f"{member_path} in body is a forbidden property"))
            if len(found) > MAX_ERRORS:
                break
        return found

    def _list_errors(self, values: list[Json], old: Json, schema: StructuralSchema, path: str) -> list[FieldError]:
        found = list[FieldError]()
        if schema.max_items is not None and len(values) > schema.max_items:
            detail = f"must have at most {schema.max_items} items"
            found.append(FieldError(path, str(len(values)), detail, TOO_MANY))
            return found
        if schema.min_items is not None and len(values) < schema.min_items:
            found.append(_invalid(path, values, f"should have at least {schema.min_items} items"))
        items = schema.items
        if items is None:
            return found
        correlated = _items_by_key(old, schema) if isinstance(old, list) and schema.list_type == "map" else {}
        for index, value in enumerate(values):
            old_item = correlated.get(item_key(value, schema), ABSENT) if correlated else ABSENT
            found += self.errors(value, old_item, items, f"{path}[{index}]")
            if len(found) > MAX_ERRORS:
                break
        return found

    # --- allOf, anyOf, oneOf, not -------------------------------------------------------------------------------------

    def _junctor_errors(self, value: Json, old: Json, schema: StructuralSchema, path: str) -> list[FieldError]:
        found = list[FieldError]()
        if schema.any_of:
            results = [self.errors(value, old, inner, path) for inner in schema.any_of]
            if all(results):
                found += _best(results)
                found.append(_composite(path, "must validate at least one schema (anyOf)"))
        if schema.one_of:
            results = [self.errors(value, old, inner, path) for inner in schema.one_of]
            valid = sum(not result for result in results)
            if valid == 0:
                found += _best(results)
                found.append(_composite(path, "must validate one and only one schema (oneOf). Found none valid"))
            elif valid > 1:
                reason = f"must validate one and only one schema (oneOf). Found {valid} valid alternatives"
                found.append(_composite(path, reason))
        if schema.all_of:
            results = [self.errors(value, old, inner, path) for inner in schema.all_of]
            if any(results):
                found += [error for result in results for error in result][:MAX_ERRORS]
                none = ". None validated" if all(results) else ""
                found.append(_composite(path, f"must validate all the schemas (allOf){none}"))
        if schema.not_ is not None and not self.errors(value, ABSENT, schema.not_, path):
            found.append(_composite(path, "must not validate the schema (not)"))
        return found


def _best(results: Sequence[list[FieldError]]) -> list[FieldError]:
    """Return the errors of the alternative with the fewest."""
    return min(results, key=len)[:MAX_ERRORS]


def _composite(path: str, reason: str) -> FieldError:
    return FieldError(path or "<nil>", '""', f'"{path}" {reason}')


def _invalid(path: str, value: Json, reason: str) -> FieldError:
    return FieldError(path or "<nil>", quoted(value), f"{path} in body {reason}")


def _type_error(value: Json, schema: StructuralSchema, path: str) -> FieldError | None:
    if schema.int_or_string:
        if isinstance(value, str) or _is_integer(value):
            return None
        expected = "integer,string"
    elif not schema.type or schema.type not in _TYPE_CHECKS or _TYPE_CHECKS[schema.type](value):
        return None
    else:
        expected = schema.type
    found = quoted(_type_name(value))
    return FieldError(path or "<nil>", found, f"{path} in body must be of type {expected}: {found}", TYPE_INVALID)


def _as_float(value: float) -> float:
    try:
        return float(value)
    except OverflowError:
        return math.inf if value > 0 else -math.inf


def _number_errors(value: float, schema: StructuralSchema, path: str) -> Iterator[FieldError]:
    number = _as_float(value)
    if schema.maximum is not None:
        limit = _as_float(schema.maximum)
        if number > limit or (schema.exclusive_maximum and number == limit):
            words = "less than" if schema.exclusive_maximum else "less than or equal to"
            yield _invalid(path, value, f"should be {words} {quoted(schema.maximum)}")
    if schema.minimum is not None:
        limit = _as_float(schema.minimum)
        if number < limit or (schema.exclusive_minimum and number == limit):
            words = "greater than" if schema.exclusive_minimum else "greater than or equal to"
            yield _invalid(path, value, f"should be {words} {quoted(schema.minimum)}")
    if schema.multiple_of and not _is_multiple(number, _as_float(schema.multiple_of)):
        yield _invalid(path, value, f"should be a multiple of {quoted(schema.multiple_of)}")
    bits = INTEGER_BITS.get(schema.format)
    if bits is not None and schema.type != "number" and not -(2 ** (bits - 1)) <= value < 2 ** (bits - 1):
        yield _invalid(path, value, f"must be of type {schema.format}: {quoted(value)}")
    if schema.format == "float" and abs(number) > MAX_FLOAT:
        yield _invalid(path, value, f"must be of type float: {quoted(value)}")


def _is_multiple(number: float, factor: float) -> bool:
    quotient = number / factor
    if not math.isfinite(quotient):
        return False
    return abs(quotient - round(quotient)) < 1e-9 * max(1.0, abs(quotient))


# --- lists with keys, and sets ----------------------------------------------------------------------------------------


def item_key(value: Json, schema: StructuralSchema) -> str:
    """Return the key of an item of a list map, as text. Missing keys have their defaults."""
    if not isinstance(value, dict):
        return canonical(value)
    return canonical({key: value[key] for key in schema.list_map_keys if key in value})


def _items_by_key(values: list[Json], schema: StructuralSchema) -> dict[str, Json]:
    return {item_key(value, schema): value for value in reversed(values)}


def _first_duplicates(value: Json, schema: StructuralSchema, path: str) -> Iterator[FieldError]:
    for error, _ in zip(_duplicates(value, schema, path), range(MAX_ERRORS), strict=False):
        yield error


def _duplicates(value: Json, schema: StructuralSchema, path: str) -> Iterator[FieldError]:
    """Yield an error for each item of a set or a list map that is there before."""
    if not schema.is_unique:
        return
    if isinstance(value, dict):
        for key, member in value.items():
            inner = schema.properties.get(key, schema.additional_properties)
            if inner is not None and inner.is_unique:
                yield from _duplicates(member, inner, _child_path(path, key))
    elif isinstance(value, list):
        if schema.list_type in ("set", "map"):
            yield from _list_duplicates(value, schema, path)
        if schema.items is not None and schema.items.is_unique:
            for index, item in enumerate(value):
                yield from _duplicates(item, schema.items, f"{path}[{index}]")


def _list_duplicates(values: list[Json], schema: StructuralSchema, path: str) -> Iterator[FieldError]:
    seen = set[str]()
    for index, value in enumerate(values):
        is_map = schema.list_type == "map"
        key = item_key(value, schema) if is_map else canonical(value)
        if key in seen:
            shown = value
            if is_map and isinstance(value, dict):
                shown = {name: value[name] for name in schema.list_map_keys if name in value}
            yield FieldError(f"{path}[{index}]", quoted(shown), "", DUPLICATE)
        seen.add(key)


# --- embedded resources -----------------------------------------------------------------------------------------------


def _embedded_errors(value: Json, schema: StructuralSchema, path: str, *, is_root: bool) -> Iterator[FieldError]:
    """Yield the errors of the fields that every resource has, in resources inside of the object."""
    if isinstance(value, dict):
        if schema.embedded_resource and not is_root:
            yield from _type_meta_errors(value, path)
        for key, member in value.items():
            inner = schema.properties.get(key, schema.additional_properties)
            if inner is not None and isinstance(member, dict | list):
                yield from _embedded_errors(member, inner, _child_path(path, key), is_root=False)
    elif isinstance(value, list) and schema.items is not None:
        for index, item in enumerate(value):
            yield from _embedded_errors(item, schema.items, f"{path}[{index}]", is_root=False)


def _type_meta_errors(value: dict[str, Json], path: str) -> Iterator[FieldError]:
    for name in ("apiVersion", "kind"):
        if not isinstance(value.get(name), str) or not value[name]:
            yield FieldError(f"{path}.{name}", "null", "must not be empty", MISSING)
    metadata = value.get("metadata")
    if metadata is not None and not isinstance(metadata, dict):
        found = quoted(_type_name(metadata))
        yield FieldError(
            f"{path}.metadata", found, f"{path}.metadata in body must be of type object: {found}", TYPE_INVALID
        )
