"""Label and field selectors: `a=b,c!=d,e in (f,g),!h`, `metadata.name=x,spec.nodeName!=y`, LabelSelector. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from api.meta import names
from api.meta.names import label_key, label_value
from api.meta.schema import MISSING, NOT_SUPPORTED, FieldError, quoted
from api.meta.types import Value

_TOKEN = re.compile(r"\s*(==|!=|[()=,!<>]|[^\s()=,!<>]+|$)")
_WHOLE = re.compile(r"[+-]?[0-9]{1,19}", re.ASCII)
_SYMBOLS = frozenset(("==", "!=", "(", ")", "=", ",", "!", "<", ">", ""))
_OPERATORS = {"=": "in", "==": "in", "!=": "notin", "in": "in", "notin": "notin", ">": "gt", "<": "lt"}


class BadSelector(ValueError):
    """`str(error)` is the sentence that clients of the reference know."""


@dataclass(frozen=True, slots=True)
class Requirement:
    """`operator` is one of in, notin, exists, absent, gt, lt; the last two compare with the one value as a number."""

    key: str
    operator: str
    values: frozenset[str] = frozenset()

    def matches(self, labels: Mapping[str, str]) -> bool:
        """Whether labels fulfil it; an absent key fulfils `notin`."""
        if self.operator == "exists":
            return self.key in labels
        if self.operator == "absent":
            return self.key not in labels
        if self.operator == "in":
            return labels.get(self.key) in self.values
        if self.operator in ("gt", "lt"):
            return self._compares(labels.get(self.key, ""))
        return labels.get(self.key) not in self.values

    def _compares(self, text: str) -> bool:
        if _WHOLE.fullmatch(text) is None:
            return False
        (limit,) = map(int, self.values)
        return int(text) > limit if self.operator == "gt" else int(text) < limit


@dataclass(frozen=True, slots=True)
class Selector:
    """All requirements hold; none at all matches everything."""

    requirements: tuple[Requirement, ...] = ()

    def matches(self, labels: Mapping[str, str]) -> bool:
        """Whether an object with these labels (or fields) is selected."""
        return all(requirement.matches(labels) for requirement in self.requirements)

    def asks_exactly(self, key: str) -> str | None:
        """The single value that `key` must have, if the selector demands one."""
        for requirement in self.requirements:
            if requirement.key == key and requirement.operator == "in" and len(requirement.values) == 1:
                return next(iter(requirement.values))
        return None


def parse_labels(text: str) -> Selector:
    """Read a label selector. Raises BadSelector."""
    tokens = _Tokens(text)
    requirements: list[Requirement] = []
    while tokens.next:
        if tokens.next != "!" and tokens.next in _SYMBOLS:
            raise BadSelector(f"found '{tokens.next}', expected: !, identifier, or 'end of string'")
        try:
            requirements.append(_requirement(tokens))
        except BadSelector as error:
            raise BadSelector(f"unable to parse requirement: {error}") from error
        if tokens.next not in (",", ""):
            raise BadSelector(f"found '{tokens.next}', expected: ',' or 'end of string'")
        if tokens.take() and tokens.next != "!" and tokens.next in _SYMBOLS:
            raise BadSelector(f"found '{tokens.next}', expected: identifier after ','")
    return Selector(tuple(requirements))


class _Tokens:
    """The words and symbols of a selector, one after the other; `next` is empty at the end."""

    def __init__(self, text: str) -> None:
        self._found = _TOKEN.finditer(text)
        self.next = ""
        self.take()

    def take(self) -> str:
        """The next one, which is then behind."""
        taken, found = self.next, next(self._found, None)
        self.next = found[1] if found is not None else ""
        return taken

    def take_word(self) -> str:
        """The next one, which must not be a symbol. Raises BadSelector."""
        if self.next in _SYMBOLS:
            raise BadSelector(f"found '{self.next}', expected: identifier")
        return self.take()


def _requirement(tokens: _Tokens) -> Requirement:
    absent = tokens.next == "!"
    if absent:
        tokens.take()
    key = tokens.take_word()
    if label_key(key):
        raise BadSelector(f'<nil>: Invalid value: "{key}": {label_key(key)}')
    if absent or tokens.next in ("", ","):
        return Requirement(key, "absent" if absent else "exists")
    sign = tokens.take()
    if sign not in _OPERATORS:
        raise BadSelector(f"found '{sign}', expected: in, notin, =, ==, !=, gt, lt")
    values = _values(tokens) if sign in ("in", "notin") else ["" if tokens.next in ("", ",") else tokens.take_word()]
    for number, value in enumerate(values):
        place = f'values[{number}][{key}]: Invalid value: "{value}"'
        if sign in "<>" and _WHOLE.fullmatch(value) is None:
            raise BadSelector(f"{place}: for 'Gt', 'Lt' operators, the value must be an integer")
        if label_value(value):
            raise BadSelector(f"{place}: {label_value(value)}")
    return Requirement(key, _OPERATORS[sign], frozenset(values))


def _values(tokens: _Tokens) -> list[str]:
    """A list in brackets; nothing between two commas is the empty value."""
    if tokens.next != "(":
        raise BadSelector(f"found '{tokens.next}' expected: '('")
    tokens.take()
    values = []
    while True:
        values.append("" if tokens.next in (",", ")") else tokens.take_word())
        if tokens.next not in (",", ")"):
            raise BadSelector(f"found '{tokens.next}', expected: ',' or ')'")
        if tokens.take() == ")":
            return values


def parse_fields(text: str, known: frozenset[str]) -> Selector:
    """Read a field selector over the `known` field paths. Raises BadSelector."""
    requirements = []
    for part in filter(None, text.split(",")):
        key, operator, value = re.fullmatch(r"([^=!]*)(==|!=|=)?(.*)", part, re.DOTALL).groups()  # type: ignore[union-attr]
        if operator is None:
            raise BadSelector(f"invalid selector: {text!r}; can't understand {part!r}")
        if key not in known:
            raise BadSelector(f"field label not supported: {key}")
        requirements.append(Requirement(key, "notin" if operator == "!=" else "in", frozenset({value})))
    return Selector(tuple(requirements))


OPERATORS = {"In": "in", "NotIn": "notin", "Exists": "exists", "DoesNotExist": "absent"}


class LabelSelectorRequirement(Value, frozen=True):
    """`operator` is In, NotIn, Exists or DoesNotExist."""

    key: str
    operator: str
    values: tuple[str, ...] = ()


class LabelSelector(Value, frozen=True):
    """All of it must hold; an empty one selects everything."""

    match_labels: dict[str, str] = {}
    match_expressions: tuple[LabelSelectorRequirement, ...] = ()


def selector(wish: LabelSelector) -> Selector:
    """The same, ready to be asked."""
    labels = [Requirement(key, "in", frozenset({value})) for key, value in sorted(wish.match_labels.items())]
    rows = [Requirement(row.key, OPERATORS[row.operator], frozenset(row.values)) for row in wish.match_expressions]
    return Selector((*labels, *rows))


def shown_selector(wish: LabelSelector | None) -> str:
    """For people, as the reference writes it: a=b,c in (d,e),!f"""
    if wish is None or not (wish.match_labels or wish.match_expressions):
        return "<none>"
    parts = [f"{key}={value}" for key, value in sorted(wish.match_labels.items())]
    for row in wish.match_expressions:
        if row.operator in ("In", "NotIn"):
            parts.append(f"{row.key} {row.operator.lower()} ({','.join(sorted(row.values))})")
        else:
            parts.append(row.key if row.operator == "Exists" else f"!{row.key}")
    return ",".join(parts)


def check_selector(path: str, wish: LabelSelector) -> Iterator[FieldError]:
    """Every problem, by path."""
    for key, value in wish.match_labels.items():
        if names.label_key(key):
            yield FieldError(f"{path}.matchLabels", quoted(key), names.label_key(key))
        if names.label_value(value):
            yield FieldError(f"{path}.matchLabels[{key}]", quoted(value), names.label_value(value))
    for number, row in enumerate(wish.match_expressions):
        place = f"{path}.matchExpressions[{number}]"
        if names.label_key(row.key):
            yield FieldError(f"{place}.key", quoted(row.key), names.label_key(row.key))
        if row.operator not in OPERATORS:
            yield FieldError(
                f"{place}.operator", quoted(row.operator), f"{', '.join(OPERATORS)} are accepted", NOT_SUPPORTED
            )
        elif row.operator in ("In", "NotIn") and not row.values:
            yield FieldError(f"{place}.values", "[]", f"{row.operator} needs at least one value", MISSING)
        elif row.operator in ("Exists", "DoesNotExist") and row.values:
            yield FieldError(f"{place}.values", quoted(row.values), f"{row.operator} has no values")
