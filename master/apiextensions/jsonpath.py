"""JSONPath as in kubectl, for columns, selectable fields and scale paths. Pure.

Fields, indices, slices, `*`, `..`, unions and filters. Braces around the path are optional. A missing field has no
result and is no error.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

Json = Any

MAX_PATH_LENGTH = 1024
MAX_STEPS = 64
"""Steps of a path."""


class JsonPathError(ValueError):
    """A text that is not a path. `str(error)` says why."""


@dataclass(frozen=True, slots=True)
class Field:
    """A member of an object."""

    name: str


@dataclass(frozen=True, slots=True)
class Slice:
    """Items of a list; an index is a slice of one item."""

    start: int | None
    stop: int | None
    step: int = 1


@dataclass(frozen=True, slots=True)
class Wildcard:
    """All items of a list or members of an object."""


@dataclass(frozen=True, slots=True)
class Recursive:
    """The value, and all values in it."""


@dataclass(frozen=True, slots=True)
class Union:
    """The results of several steps, in this order."""

    steps: tuple[Step, ...]


@dataclass(frozen=True, slots=True)
class Filter:
    """The items for which a comparison holds. Without an operator: those that have a value at `left`."""

    left: JsonPath | str | float | bool | None
    operator: str = ""
    right: JsonPath | str | float | bool | None = None


Step = Field | Slice | Wildcard | Recursive | Union | Filter


class _WorkDone(Exception):
    """More values were looked at than allowed."""


class _Work:
    def __init__(self, limit: int) -> None:
        self.remaining = limit

    def spend(self, values: int = 1) -> None:
        self.remaining -= values
        if self.remaining < 0:
            raise _WorkDone


@dataclass(frozen=True, slots=True)
class JsonPath:
    """A parsed path."""

    steps: tuple[Step, ...]

    def find(self, document: Json, limit: int) -> tuple[Json, ...]:
        """Return the values at the path; none if more than `limit` values would be looked at."""
        try:
            return tuple(_find(self.steps, [document], _Work(limit)))
        except _WorkDone:
            return ()

    @property
    def names(self) -> tuple[str, ...] | None:
        """Return the names of the fields; None if the path has other steps."""
        fields = tuple(step.name for step in self.steps if isinstance(step, Field))
        return fields if len(fields) == len(self.steps) else None


def _find(steps: Iterable[Step], values: list[Json], work: _Work) -> list[Json]:
    for step in steps:
        values = [found for value in values for found in _step(step, value, work)]
    return values


def _step(step: Step, value: Json, work: _Work) -> Iterator[Json]:  # noqa: C901
    work.spend()
    if isinstance(step, Field):
        if isinstance(value, dict) and step.name in value:
            yield value[step.name]
    elif isinstance(step, Slice):
        if isinstance(value, list):
            yield from value[step.start : step.stop : step.step]
    elif isinstance(step, Wildcard):
        yield from _members(value, work)
    elif isinstance(step, Recursive):
        yield value
        for member in _members(value, work):
            yield from _step(step, member, work)
    elif isinstance(step, Union):
        for inner in step.steps:
            yield from _step(inner, value, work)
    elif isinstance(value, list | dict):
        for item in _members(value, work):
            if _holds(step, item, work):
                yield item


def _members(value: Json, work: _Work) -> Iterable[Json]:
    if not isinstance(value, dict | list):
        return ()
    work.spend(len(value))
    return value.values() if isinstance(value, dict) else value


_COMPARISONS: Mapping[str, Callable[[Any, Any], bool]] = {
    "==": lambda left, right: left == right,
    "!=": lambda left, right: left != right,
    "<": lambda left, right: left < right,
    "<=": lambda left, right: left <= right,
    ">": lambda left, right: left > right,
    ">=": lambda left, right: left >= right,
}


def _holds(condition: Filter, item: Json, work: _Work) -> bool:
    work.spend()
    left = _operand(condition.left, item, work)
    if not condition.operator:
        return bool(left)
    right = _operand(condition.right, item, work)
    if len(left) != 1 or len(right) != 1 or not _are_comparable(left[0], right[0]):
        return False
    return _COMPARISONS[condition.operator](left[0], right[0])


def _are_comparable(left: Json, right: Json) -> bool:
    if isinstance(left, bool) or isinstance(right, bool):
        return isinstance(left, bool) and isinstance(right, bool)
    return (isinstance(left, str) and isinstance(right, str)) or (
        isinstance(left, int | float) and isinstance(right, int | float)
    )


def _operand(operand: JsonPath | Json, item: Json, work: _Work) -> list[Json]:
    return _find(operand.steps, [item], work) if isinstance(operand, JsonPath) else [operand]


# --- parsing ----------------------------------------------------------------------------------------------------------

_NAME = re.compile(r"(?:\\.|[^\s.\[\]{}\\()'\"@,])+")
_NAME_IN_FILTER = re.compile(r"(?:\\.|[^\s.\[\]{}\\()'\"@,!<>=])+")
_QUOTED = re.compile(r"'((?:[^'\\]|\\.)*)'|\"((?:[^\"\\]|\\.)*)\"")
_SLICE = re.compile(r"(-?\d{1,9})?(?::(-?\d{1,9})?)?(?::(\d{1,9}))?", re.ASCII)
_NUMBER = re.compile(r"-?\d{1,18}(\.\d{1,18})?", re.ASCII)
_OPERATOR = re.compile(r"==|!=|<=|>=|<|>")


def parse_jsonpath(text: str) -> JsonPath:
    """Return the parsed path. Raises JsonPathError."""
    if len(text) > MAX_PATH_LENGTH:
        raise JsonPathError(f"the path has {len(text)} characters; {MAX_PATH_LENGTH} are accepted")
    stripped = text.strip()
    if stripped.startswith("{"):
        if not stripped.endswith("}") or "{" in stripped[1:]:
            raise JsonPathError("one path in braces is accepted")
        stripped = stripped[1:-1].strip()
    parser = _Parser(stripped)
    steps = parser.path()
    if parser.position != len(stripped):
        raise JsonPathError(f"unexpected text at {parser.rest()!r}")
    return JsonPath(steps)


class _Parser:
    """A parser of one text. Filters may have paths with filters, so the nesting is limited."""

    def __init__(self, text: str) -> None:
        self.text, self.position, self.depth = text, 0, 0

    def rest(self) -> str:
        """Return the beginning of the text that is not parsed."""
        return self.text[self.position : self.position + 20]

    def _take(self, token: str) -> bool:
        if self.text.startswith(token, self.position):
            self.position += len(token)
            return True
        return False

    def _match(self, pattern: re.Pattern[str]) -> re.Match[str] | None:
        found = pattern.match(self.text, self.position)
        if found is not None:
            self.position = found.end()
        return found

    def _skip_spaces(self) -> None:
        while self._take(" "):
            pass

    def path(self) -> tuple[Step, ...]:
        """Parse steps as far as there are some."""
        steps = list[Step]()
        self._take("$")
        self._take("@")
        while self.position < len(self.text):
            if self._take(".."):
                steps.append(Recursive())
                if not self.text.startswith(("[", "*"), self.position):
                    steps.append(self._field())
                elif self._take("*"):
                    steps.append(Wildcard())
            elif self._take("."):
                if self.text.startswith("[", self.position) or self.position == len(self.text):
                    continue
                steps.append(Wildcard() if self._take("*") else self._field())
            elif self._take("["):
                steps.append(self._bracket())
            elif not steps and _NAME.match(self.text, self.position) and self.depth == 0:
                steps.append(self._field())
            else:
                break
            if len(steps) > MAX_STEPS:
                raise JsonPathError(f"a path has at most {MAX_STEPS} steps")
        return tuple(steps)

    def _field(self) -> Field:
        found = self._match(_NAME_IN_FILTER if self.depth else _NAME)
        if found is None:
            raise JsonPathError(f"a field is expected at {self.rest()!r}")
        return Field(re.sub(r"\\(.)", r"\1", found[0]))

    def _bracket(self) -> Step:
        self._skip_spaces()
        if self._take("?("):
            return self._filter()
        steps = [self._bracket_step()]
        while self._take(","):
            steps.append(self._bracket_step())
        if not self._take("]"):
            raise JsonPathError(f"] is expected at {self.rest()!r}")
        return steps[0] if len(steps) == 1 else Union(tuple(steps))

    def _bracket_step(self) -> Step:
        self._skip_spaces()
        step = self._bracket_value()
        self._skip_spaces()
        return step

    def _bracket_value(self) -> Step:
        if self._take("*"):
            return Wildcard()
        if found := self._match(_QUOTED):
            return Field(re.sub(r"\\(.)", r"\1", found[1] if found[1] is not None else found[2]))
        found = self._match(_SLICE)
        if found is not None and found[0]:
            return _slice(found)
        raise JsonPathError(f"an index, a quoted name or * is expected at {self.rest()!r}")

    def _filter(self) -> Filter:
        self.depth += 1
        if self.depth > 4:
            raise JsonPathError("filters are nested too deep")
        left = self._filter_operand()
        self._skip_spaces()
        operator = self._match(_OPERATOR)
        right = self._filter_operand() if operator else None
        self._skip_spaces()
        if not self._take(")]"):
            raise JsonPathError(f")] is expected at {self.rest()!r}")
        self.depth -= 1
        return Filter(left, operator[0] if operator else "", right)

    def _filter_operand(self) -> JsonPath | str | float | bool:
        self._skip_spaces()
        if self.text.startswith(("@", "$", "."), self.position):
            return JsonPath(self.path())
        if found := self._match(_QUOTED):
            return re.sub(r"\\(.)", r"\1", found[1] if found[1] is not None else found[2])
        if found := self._match(_NUMBER):
            return float(found[0]) if found[1] else int(found[0])
        for word, value in (("true", True), ("false", False)):
            if self._take(word):
                return value
        raise JsonPathError(f"a path or a value is expected at {self.rest()!r}")


def _slice(found: re.Match[str]) -> Slice:
    start = int(found[1]) if found[1] else None
    if ":" not in found[0]:
        assert start is not None
        return Slice(start, start + 1 if start != -1 else None)
    if found[3] == "0":
        raise JsonPathError("the step of a slice is 0; a number from 1 on is accepted")
    return Slice(start, int(found[2]) if found[2] else None, int(found[3]) if found[3] else 1)
