"""Bounds of expressions that are checked before they are compiled: length, nesting, and a rough cost of loops. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

MAX_EXPRESSION_LENGTH = 16 << 10
"""Characters of an expression. The longest one of popular definitions has 1,000."""

MAX_NESTING = 32
"""Brackets in brackets. The compiler accepts as many."""

MAX_RULE_COST = 10_000_000
MAX_BODY_BYTES = 3 << 20
"""The size of an object from which the number of elements of a list without maxItems is estimated."""

_TOKEN = re.compile(
    r"""[rRbB]{0,2}(?:\"{3}.*?\"{3}|'{3}.*?'{3}|"(?:\\.|[^"\\\n])*+"?|'(?:\\.|[^'\\\n])*+'?)"""
    r"""|//[^\n]*|[A-Za-z_][A-Za-z0-9_]*|[0-9][0-9A-Za-z.]*|\s+|.""",
    re.DOTALL,
)
"""A string without its end is a token, too: were each of its quotes tried, a text of 16 KB would take 4 s."""
_MACROS = frozenset(("all", "exists", "exists_one", "existsOne", "map", "filter"))
_ITEMS = frozenset(("filter", "distinct", "reverse", "sort", "slice"))
"""Functions whose result has the elements of the list that they are called on."""


def tokens(text: str) -> Iterator[str]:
    """Yield the tokens of an expression, without white space and comments. A string is one token."""
    for match in _TOKEN.finditer(text):
        token = match[0]
        if not token.isspace() and not token.startswith("//"):
            yield token


def names_variable(text: str, name: str) -> bool:
    """Return whether an expression names a variable, or a field of this name."""
    return name in text and name in tokens(text[: MAX_EXPRESSION_LENGTH + 1])


def text_error(text: str) -> str:
    """Return why an expression is not compiled at all, an empty string if it may be."""
    if len(text) > MAX_EXPRESSION_LENGTH:
        return f"the expression has {len(text)} characters; at most {MAX_EXPRESSION_LENGTH} are accepted"
    depth = 0
    for token in tokens(text):
        if token in ("(", "[", "{"):
            depth += 1
            if depth > MAX_NESTING:
                return f"compilation failed: expression recursion limit exceeded: {MAX_NESTING}"
        elif token in (")", "]", "}"):
            depth -= 1
    return ""


# --- cost of loops ----------------------------------------------------------------------------------------------------

Schema = Mapping[str, Any]
_UNKNOWN: Schema = {}


def estimated_cost_error(text: str, schema: Schema, enclosing: tuple[Schema, ...]) -> str:
    """Return the error of a rule whose estimated cost is too high, an empty string otherwise.

    The estimate is the number of steps of its loops, times the number of values that may have the rule. A list without
    maxItems has as many elements as an object of 3 MiB can hold.
    """
    cost = _occurrences(enclosing) * max(_loop_steps(list(tokens(text)), schema), 1)
    if cost <= MAX_RULE_COST:
        return ""
    factor = cost / MAX_RULE_COST
    times = "factor of more than 100x" if factor > 100 else f"factor of {factor:.1f}x"
    return (
        f"estimated rule cost exceeds budget by {times} (try simplifying the rule, or adding maxItems, maxProperties, "
        "and maxLength where arrays, maps, and strings are declared)"
    )


def _occurrences(enclosing: tuple[Schema, ...]) -> int:
    """Return how many values of one object may be at a place inside of lists and maps."""
    number = 1
    for schema in enclosing:
        if schema.get("type") == "array" or isinstance(schema.get("additionalProperties"), dict):
            number *= max_size(schema)
    # Nested lists without bounds do not hold more values than an object can.
    return min(number, MAX_BODY_BYTES // 2)


def max_size(schema: Schema) -> int:
    """Return the number of elements that a list or map may have."""
    limit = schema.get("maxItems" if schema.get("type") == "array" else "maxProperties")
    if isinstance(limit, int) and limit >= 0:
        return limit
    items = schema.get("items") or schema.get("additionalProperties")
    return MAX_BODY_BYTES // _min_bytes(items if isinstance(items, dict) else _UNKNOWN)


def _min_bytes(schema: Schema, depth: int = 4) -> int:
    """Return the least bytes that a value needs as an element of a list in JSON, with its comma."""
    if depth == 0 or schema.get("type") != "object":
        return 3 if schema.get("type") == "string" else 2
    properties = schema.get("properties")
    required = [name for name in schema.get("required") or () if isinstance(name, str)]
    parts = properties if isinstance(properties, dict) else {}
    return 3 + sum(
        len(name) + 4 + _min_bytes(parts[name], depth - 1) for name in required if isinstance(parts.get(name), dict)
    )


def _loop_steps(words: list[str], schema: Schema) -> int:
    """Return the greatest product of the sizes of lists that loops inside of one another run over.

    A list that is no property of `self` or of a loop's variable counts as one element.
    """
    return _Loops(schema).greatest_product(words)


class _Loops:
    """Follows the brackets and selections of an expression. `_part` is the part of the schema at the current token."""

    def __init__(self, schema: Schema) -> None:
        self._variables: dict[str, Schema] = {"self": schema, "oldSelf": schema}
        self._part: Schema = _UNKNOWN
        self._open: list[tuple[Schema, int, str, Schema]] = []
        """For each open bracket: the part before it, the steps outside, and what a loop's variable hides."""
        self._steps = self._greatest = 1

    def greatest_product(self, words: list[str]) -> int:
        padded = ["", "", *words, ""]
        for index in range(2, len(padded) - 1):
            before, previous, word, following = padded[index - 2 : index + 2]
            is_selection = previous == "." or (previous == "?" and before == ".")
            if word in ("(", "[", "{"):
                is_loop = word == "(" and previous in _MACROS and before == "."
                self._enter(following if is_loop else "")
            elif word in (")", "]", "}"):
                self._leave(word)
            elif word in (".", "?"):
                continue
            elif not is_selection:
                self._part = self._variables.get(word, _UNKNOWN)
            elif word not in _MACROS and word not in _ITEMS:
                self._part = _property(self._part, word)
        return self._greatest

    def _enter(self, variable: str) -> None:
        self._open.append((self._part, self._steps, variable, self._variables.get(variable, _UNKNOWN)))
        if variable:
            self._variables[variable] = _element(self._part)
            self._steps *= max(max_size(self._part) if self._part else 1, 1)
            self._greatest = max(self._greatest, self._steps)
        self._part = _UNKNOWN

    def _leave(self, word: str) -> None:
        if not self._open:
            return
        before, self._steps, variable, hidden = self._open.pop()
        if variable:
            self._variables[variable] = hidden
        self._part = {")": before, "]": _element(before)}.get(word, _UNKNOWN)


def _element(schema: Schema) -> Schema:
    inner = schema.get("items") if schema.get("type") == "array" else schema.get("additionalProperties")
    return inner if isinstance(inner, dict) else _UNKNOWN


def _property(schema: Schema, name: str) -> Schema:
    properties = schema.get("properties")
    part = properties.get(name) if isinstance(properties, dict) else None
    if part is None and isinstance(schema.get("additionalProperties"), dict):
        part = schema["additionalProperties"]
    return part if isinstance(part, dict) else _UNKNOWN
