"""Label and field selectors: `a=b,c!=d,e in (f,g),!h`, `metadata.name=x,spec.nodeName!=y`, LabelSelector. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from api.meta.names import label_key_error, label_value_error
from api.meta.schema import MISSING, NOT_SUPPORTED, TOO_MANY, FieldError, quoted
from api.meta.types import Value

_TOKEN = re.compile(r"\s*(==|!=|[()=,!<>]|[^\s()=,!<>]+|$)")
_INTEGER = re.compile(r"[+-]?[0-9]{1,19}", re.ASCII)
_SYMBOLS = frozenset(("==", "!=", "(", ")", "=", ",", "!", "<", ">", ""))
_TEXT_OPERATORS = {"=": "in", "==": "in", "!=": "notin", "in": "in", "notin": "notin", ">": "gt", "<": "lt"}

OPERATORS = {"In": "in", "NotIn": "notin", "Exists": "exists", "DoesNotExist": "absent"}
"""Operator of a LabelSelectorRequirement → operator of a Requirement."""


class BadSelector(ValueError):
    """A selector that cannot be parsed. The message is that of Kubernetes."""


@dataclass(frozen=True, slots=True)
class Requirement:
    """A condition on the value of one key.

    `operator` is in, notin, exists, absent, gt or lt. The operators gt and lt compare with one value as an integer.
    """

    key: str
    operator: str
    values: frozenset[str] = frozenset()

    def matches(self, labels: Mapping[str, str]) -> bool:
        """Return whether labels fulfil the requirement. An absent key fulfils `notin`."""
        if self.operator == "exists":
            return self.key in labels
        if self.operator == "absent":
            return self.key not in labels
        if self.operator == "in":
            return labels.get(self.key) in self.values
        if self.operator in ("gt", "lt"):
            return self._matches_number(labels.get(self.key, ""))
        return labels.get(self.key) not in self.values

    def _matches_number(self, text: str) -> bool:
        if _INTEGER.fullmatch(text) is None:
            return False
        (limit,) = map(int, self.values)
        return int(text) > limit if self.operator == "gt" else int(text) < limit


@dataclass(frozen=True, slots=True)
class Selector:
    """A conjunction of requirements. Without requirements it matches everything."""

    requirements: tuple[Requirement, ...] = ()

    def matches(self, labels: Mapping[str, str]) -> bool:
        """Return whether an object with these labels (or fields) is selected."""
        return all(requirement.matches(labels) for requirement in self.requirements)

    def required_value(self, key: str) -> str | None:
        """Return the only value that a key may have, None if the selector allows several."""
        for requirement in self.requirements:
            if requirement.key == key and requirement.operator == "in" and len(requirement.values) == 1:
                return next(iter(requirement.values))
        return None


# --- parsing ----------------------------------------------------------------------------------------------------------


MAX_REQUIREMENTS, MAX_VALUES = 100, 10_000
"""Requirements of a selector, and values of one. A watch keeps them, and compares them with each object."""


def parse_label_selector(text: str) -> Selector:
    """Parse a label selector. Raises BadSelector."""
    tokens = _Tokens(text)
    requirements: list[Requirement] = []
    while tokens.next:
        if tokens.next != "!" and tokens.next in _SYMBOLS:
            raise BadSelector(f"found '{tokens.next}', expected: !, identifier, or 'end of string'")
        try:
            requirements.append(_parse_requirement(tokens))
        except BadSelector as error:
            raise BadSelector(f"unable to parse requirement: {error}") from error
        if len(requirements) > MAX_REQUIREMENTS:
            raise BadSelector(f"at most {MAX_REQUIREMENTS} requirements are accepted")
        if tokens.next not in (",", ""):
            raise BadSelector(f"found '{tokens.next}', expected: ',' or 'end of string'")
        if tokens.take() and tokens.next != "!" and tokens.next in _SYMBOLS:
            raise BadSelector(f"found '{tokens.next}', expected: identifier after ','")
    return Selector(tuple(requirements))


class _Tokens:
    """The identifiers and symbols of a selector. `next` is the first one that was not taken, empty at the end."""

    def __init__(self, text: str) -> None:
        self._matches = _TOKEN.finditer(text)
        self.next = ""
        self.take()

    def take(self) -> str:
        """Return the next token, and advance."""
        token = self.next
        match = next(self._matches, None)
        self.next = match[1] if match is not None else ""
        return token

    def take_identifier(self) -> str:
        """Return the next token, and advance. Raises BadSelector if it is a symbol."""
        if self.next in _SYMBOLS:
            raise BadSelector(f"found '{self.next}', expected: identifier")
        return self.take()


def _parse_requirement(tokens: _Tokens) -> Requirement:
    must_be_absent = tokens.next == "!"
    if must_be_absent:
        tokens.take()
    key = tokens.take_identifier()
    if error := label_key_error(key):
        raise BadSelector(f'<nil>: Invalid value: "{key}": {error}')
    if must_be_absent or tokens.next in ("", ","):
        return Requirement(key, "absent" if must_be_absent else "exists")
    operator = tokens.take()
    if operator not in _TEXT_OPERATORS:
        raise BadSelector(f"found '{operator}', expected: in, notin, =, ==, !=, gt, lt")
    if operator in ("in", "notin"):
        values = _parse_values(tokens)
    else:
        values = ["" if tokens.next in ("", ",") else tokens.take_identifier()]
    for index, value in enumerate(values):
        prefix = f'values[{index}][{key}]: Invalid value: "{value}"'
        if operator in "<>" and _INTEGER.fullmatch(value) is None:
            raise BadSelector(f"{prefix}: for 'Gt', 'Lt' operators, the value must be an integer")
        if error := label_value_error(value):
            raise BadSelector(f"{prefix}: {error}")
    return Requirement(key, _TEXT_OPERATORS[operator], frozenset(values))


def _parse_values(tokens: _Tokens) -> list[str]:
    """Parse a list in parentheses. An omitted value is the empty value."""
    if tokens.next != "(":
        raise BadSelector(f"found '{tokens.next}' expected: '('")
    tokens.take()
    values = []
    while True:
        values.append("" if tokens.next in (",", ")") else tokens.take_identifier())
        if len(values) > MAX_VALUES:
            raise BadSelector(f"at most {MAX_VALUES} values are accepted")
        if tokens.next not in (",", ")"):
            raise BadSelector(f"found '{tokens.next}', expected: ',' or ')'")
        if tokens.take() == ")":
            return values


def parse_field_selector(text: str, supported: frozenset[str]) -> Selector:
    """Parse a field selector over the `supported` field paths. Raises BadSelector."""
    requirements = []
    for part in filter(None, text.split(",")):
        key, operator, value = re.fullmatch(r"([^=!]*)(==|!=|=)?(.*)", part, re.DOTALL).groups()  # type: ignore[union-attr]
        if operator is None:
            raise BadSelector(f"invalid selector: {text!r}; can't understand {part!r}")
        if key not in supported:
            raise BadSelector(f"field label not supported: {key}")
        requirements.append(Requirement(key, "notin" if operator == "!=" else "in", frozenset({value})))
        if len(requirements) > MAX_REQUIREMENTS:
            raise BadSelector(f"at most {MAX_REQUIREMENTS} requirements are accepted")
    return Selector(tuple(requirements))


# --- LabelSelector ----------------------------------------------------------------------------------------------------


class LabelSelectorRequirement(Value, frozen=True):
    """A requirement on one label. `operator` is In, NotIn, Exists or DoesNotExist."""

    key: str
    operator: str
    values: tuple[str, ...] = ()


class LabelSelector(Value, frozen=True):
    """A selector of objects by their labels. All parts must match; an empty selector matches every object."""

    match_labels: dict[str, str] = {}
    match_expressions: tuple[LabelSelectorRequirement, ...] = ()


def compile_selector(selector: LabelSelector) -> Selector:
    """Return the Selector of a LabelSelector."""
    labels = [Requirement(key, "in", frozenset({value})) for key, value in sorted(selector.match_labels.items())]
    expressions = [
        Requirement(expression.key, OPERATORS[expression.operator], frozenset(expression.values))
        for expression in selector.match_expressions
    ]
    return Selector((*labels, *expressions))


def format_selector(selector: LabelSelector | None) -> str:
    """Return a selector as kubectl prints it: `a=b,c in (d,e),!f`."""
    if selector is None or not (selector.match_labels or selector.match_expressions):
        return "<none>"
    parts = [f"{key}={value}" for key, value in sorted(selector.match_labels.items())]
    for expression in selector.match_expressions:
        if expression.operator in ("In", "NotIn"):
            values = ",".join(sorted(expression.values))
            parts.append(f"{expression.key} {expression.operator.lower()} ({values})")
        else:
            parts.append(expression.key if expression.operator == "Exists" else f"!{expression.key}")
    return ",".join(parts)


def check_selector(path: str, selector: LabelSelector) -> Iterator[FieldError]:
    """Yield the errors of a LabelSelector. It has the limits of a selector in a request."""
    number = len(selector.match_labels) + len(selector.match_expressions)
    if number > MAX_REQUIREMENTS:
        yield FieldError(path, str(number), f"must have at most {MAX_REQUIREMENTS} items", TOO_MANY)
        return
    for key, value in selector.match_labels.items():
        if error := label_key_error(key):
            yield FieldError(f"{path}.matchLabels", quoted(key), error)
        if error := label_value_error(value):
            yield FieldError(f"{path}.matchLabels[{key}]", quoted(value), error)
    for index, expression in enumerate(selector.match_expressions):
        yield from _check_expression(f"{path}.matchExpressions[{index}]", expression)


def _check_expression(path: str, expression: LabelSelectorRequirement) -> Iterator[FieldError]:
    operator, number = expression.operator, len(expression.values)
    if number > MAX_VALUES:
        yield FieldError(f"{path}.values", str(number), f"must have at most {MAX_VALUES} items", TOO_MANY)
    if error := label_key_error(expression.key):
        yield FieldError(f"{path}.key", quoted(expression.key), error)
    if operator not in OPERATORS:
        accepted = f"{', '.join(OPERATORS)} are accepted"
        yield FieldError(f"{path}.operator", quoted(operator), accepted, NOT_SUPPORTED)
    elif operator in ("In", "NotIn") and not expression.values:
        yield FieldError(f"{path}.values", "[]", f"{operator} needs at least one value", MISSING)
    elif operator in ("Exists", "DoesNotExist") and expression.values:
        yield FieldError(f"{path}.values", quoted(expression.values), f"{operator} has no values")
