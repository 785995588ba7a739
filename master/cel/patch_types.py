"""The types `Object{...}`, `Object.spec{...}` and `JSONPatch{...}` of mutating policies. Pure.

The library knows types as messages of protobuf, whose fields have types. Those of `Object` have none: Kubernetes lets
an expression name any field, and compares the result with the schema later. So an expression is used in two forms:

* `checked_text` is compiled and not evaluated. Its types are messages with all fields that the text names, of any type.
* `evaluated_text` has a map in the place of each message, in which the key `mark` holds the name of the type.

`configuration_of` and `operations_of` take the marks out of a result, after they have compared the names of types with
the fields in which they stand.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

OBJECT, JSON_PATCH = "Object", "JSONPatch"
PATCH_TEXTS, PATCH_VALUE = ("op", "from", "path"), "value"
"""The fields of a JSONPatch."""

_TOKEN = re.compile(
    r"""(?P<space>\s+|//[^\n]*)"""
    r"""|(?P<text>(?:[bB]?[rR][bB]?)(?:\"{3}.*?(?:\"{3}|\Z)|'{3}.*?(?:'{3}|\Z)|"[^"\n]*"?|'[^'\n]*'?)"""
    r"""|[bB]?(?:\"{3}(?:\\.|[^\\])*?(?:\"{3}|\Z)|'{3}(?:\\.|[^\\])*?(?:'{3}|\Z)"""
    r"""|"(?:\\.|[^"\\\n])*+"?|'(?:\\.|[^'\\\n])*+'?)"""
    r"""|`[^`\n]*`?)"""
    r"""|(?P<name>[A-Za-z_][A-Za-z0-9_]*)|(?P<other>[0-9][0-9A-Za-z.]*|.)""",
    re.DOTALL,
)
"""A string without its end is a token, too: were each of its quotes tried, a text of 16 KB would take a second."""


class _Token(NamedTuple):
    kind: str
    text: str


@dataclass(frozen=True, slots=True)
class PatchExpression:
    """An expression of a mutation in its two forms.

    `types` are the names of messages of `checked_text`, each with the name in the expression. `fields` are the names
    that the expression may select.
    """

    checked_text: str
    types: Mapping[str, str]
    fields: tuple[str, ...]
    _evaluated: tuple[str, ...]
    """The text, cut where a mark belongs."""
    _names: tuple[str, ...]
    """The type at each cut."""

    def evaluated_text(self, mark: str) -> str:
        """Return the expression with maps, which hold the names of their types under a key."""
        marked = (f'"{mark}": "{name}",{part}' for name, part in zip(self._names, self._evaluated[1:], strict=True))
        return self._evaluated[0] + "".join(marked)

    def as_written(self, message: str) -> str:
        """Return a message of the compiler with the names of types as the expression has them."""
        for name in sorted(self.types, key=len, reverse=True):
            message = re.sub(rf"\b{name}\b", self.types[name], message)
        return message


@lru_cache(maxsize=128)
def patch_expression(text: str) -> PatchExpression:
    """Return the forms of an expression. What is no CEL stays as it is; the compiler says so."""
    return _Rewriting([_Token(match.lastgroup or "", match[0]) for match in _TOKEN.finditer(text)]).result()


class _Rewriting:
    """Goes through the tokens of an expression. Each open bracket is known to begin a message, or not."""

    def __init__(self, tokens: Sequence[_Token]) -> None:
        self._tokens = tokens
        self._checked: list[str] = []
        self._evaluated: list[list[str]] = [[]]
        self._names: list[str] = []
        self._types: dict[str, str] = {OBJECT: OBJECT, JSON_PATCH: JSON_PATCH}
        self._brackets: list[bool] = []
        self._awaits_field = False

    def result(self) -> PatchExpression:
        position, previous = 0, ""
        while position < len(self._tokens):
            token = self._tokens[position]
            message = self._message(position) if token.text in (OBJECT, JSON_PATCH) and previous != "." else None
            if message is not None:
                position = self._open_message(position, *message)
                previous = "{"
                continue
            self._add(token)
            if token.kind != "space":
                previous = token.text
            position += 1
        fields = dict.fromkeys(token.text for token in self._tokens if token.kind == "name")
        return PatchExpression(
            "".join(self._checked),
            self._types,
            tuple(fields),
            tuple("".join(part) for part in self._evaluated),
            tuple(self._names),
        )

    def _add(self, token: _Token) -> None:
        self._checked.append(token.text)
        shown = token.text
        if token.text in ("(", "[", "{"):
            self._brackets.append(False)
            self._awaits_field = False
        elif token.text in (")", "]", "}"):
            if self._brackets:
                self._brackets.pop()
            self._awaits_field = False
        elif token.text == "," and self._brackets and self._brackets[-1]:
            self._awaits_field = True
        elif self._awaits_field and token.kind != "space" and token.text != "?":
            if token.kind == "name":
                shown = f'"{token.text}"'
            self._awaits_field = False
        self._evaluated[-1].append(shown)

    def _message(self, position: int) -> tuple[str, int] | None:
        """Return the type and the position of the `{` of a message that begins at a position; None for no message."""
        names = [self._tokens[position].text]
        following = self._significant(position + 1)
        while following is not None and self._tokens[following].text == "." and names[0] == OBJECT:
            field = self._significant(following + 1)
            if field is None or self._tokens[field].kind != "name":
                return None
            names.append(self._tokens[field].text)
            following = self._significant(field + 1)
        if following is None or self._tokens[following].text != "{":
            return None
        return ".".join(names), following

    def _significant(self, position: int) -> int | None:
        while position < len(self._tokens):
            if self._tokens[position].kind != "space":
                return position
            position += 1
        return None

    def _open_message(self, position: int, name: str, brace: int) -> int:
        self._types[name.replace(".", "_")] = name
        # The name keeps its length, so the compiler's messages have the right columns.
        spaces = (token.text for token in self._tokens[position:brace] if token.kind == "space")
        self._checked += (name.replace(".", "_"), *spaces, "{")
        self._evaluated[-1].append("{")
        self._evaluated.append([])
        self._names.append(name)
        self._brackets.append(True)
        self._awaits_field = True
        return brace + 1


_TYPE_NAMES = {
    "NULL": "null_type",
    "google.protobuf.Timestamp": "timestamp",
    "google.protobuf.Duration": "duration",
}


def type_name(name: str) -> str:
    """Return the name of a type as Kubernetes writes it: that of the library is such as LIST<STRING>."""
    shown = re.sub(r"\b[A-Z]+\b(?!\.)", lambda match: _TYPE_NAMES.get(match[0], match[0].lower()), name)
    for long, short in _TYPE_NAMES.items():
        shown = shown.replace(long, short)
    return shown.replace("<", "(").replace(">", ")")


# --- results ----------------------------------------------------------------------------------------------------------


class PatchTypeError(ValueError):
    """A result that is no patch. The message is Kubernetes'."""


def configuration_of(result: Any, mark: str) -> dict[str, Any]:
    """Return the document of an apply configuration. Raises PatchTypeError."""
    if not isinstance(result, dict) or mark not in result:
        raise PatchTypeError("unsupported return type from ApplyConfiguration expression")
    if problems := list(_misplaced(result, mark, OBJECT)):
        raise PatchTypeError("type mismatch: " + "\n".join(problems))
    document: dict[str, Any] = _without_marks(result, mark)
    return document


def operations_of(result: Any, mark: str) -> list[dict[str, Any]]:
    """Return the operations of a JSON patch. Raises PatchTypeError."""
    if not isinstance(result, list):
        raise PatchTypeError("type mismatch: JSONPatchType.expression should evaluate to array")
    return [_operation(each, mark) for each in result]


def _operation(value: Any, mark: str) -> dict[str, Any]:
    if not isinstance(value, dict) or value.get(mark) != JSON_PATCH:
        raise PatchTypeError("type mismatch: JSONPatchType.expression should evaluate to array of JSONPatch")
    operation: dict[str, Any] = {"op": "", "path": ""}
    for name, member in value.items():
        if name in PATCH_TEXTS:
            if not isinstance(member, str):
                raise PatchTypeError(f"unexpected type {_go_type(member)} for JSONPatchType '{name}' field")
            if member or name != "from":
                operation[name] = member
        elif name == PATCH_VALUE:
            if isinstance(member, dict) and isinstance(of := member.get(mark), str):
                problems = list(_misplaced(member, mark, of))
                if problems:
                    raise PatchTypeError("type mismatch: " + "\n".join(problems))
            operation[name] = _without_marks(member, mark)
        elif name != mark:
            raise PatchTypeError(f"unexpected JSONPatchType field: {name}")
    return operation


def _go_type(value: Any) -> str:
    return {bool: "bool", int: "int64", float: "float64", type(None): "structpb.NullValue"}.get(type(value), "map")


def _misplaced(value: Any, mark: str, path: str) -> Iterator[str]:
    """Yield an error for each message whose type is not named after the fields around it."""
    if isinstance(value, list):
        for each in value:
            yield from _misplaced(each, mark, path)
    elif isinstance(value, dict):
        name = value.get(mark)
        if name is not None and name != path:
            yield (
                f'unexpected type name "{name}", expected "{path}", which matches field name path from root Object type'
            )
        for key, member in value.items():
            if key != mark:
                yield from _misplaced(member, mark, path if name is None else f"{path}.{key}")


def _without_marks(value: Any, mark: str) -> Any:
    if isinstance(value, dict):
        return {key: _without_marks(member, mark) for key, member in value.items() if key != mark}
    if isinstance(value, list):
        return [_without_marks(each, mark) for each in value]
    return value
