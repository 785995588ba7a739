"""Decodes YAML or JSON text into plain documents that JSON can represent. Pure.

The text is not trusted. It may be too deep for the parser, have anchors that expand to billions of values, or hold
dates, sets and numbers beyond 64 bits. A decoded document holds only JSON values, has at most MAX_DEPTH levels and at
most MAX_VALUES values, so that further processing is safe.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import msgspec
import yaml

from api.codec.limits import MAX_DEPTH
from api.meta.schema import FieldError, quoted

MAX_VALUES = 1_000_000
"""Limit of the values in a document. A string counts once more for every 64 characters, an alias at each use."""

MAX_PATH_LENGTH = 200
MAX_MESSAGE_LENGTH = 300


_STRING_TAG = "tag:yaml.org,2002:str"
_TIMESTAMP_TAG, _VALUE_TAG = "tag:yaml.org,2002:timestamp", "tag:yaml.org,2002:value"
_BASE_60 = re.compile(r"[-+]?[0-9][0-9_]*(:[0-5]?[0-9])+(\.[0-9_]*)?\Z")

MAX_DUPLICATE_KEYS = 100
"""Duplicate keys of a document that are reported."""


class _Loader(yaml.SafeLoader):
    """A loader that reads a text as the YAML library of Kubernetes does.

    A timestamp, a plain `=` and a number to the base of 60 (`22:22`) are strings. Tabs separate tokens.
    """

    yaml_implicit_resolvers = {
        first: [
            *([(_STRING_TAG, _BASE_60)] if first in "+-0123456789" and first else []),
            *((tag, pattern) for tag, pattern in resolvers if tag not in (_TIMESTAMP_TAG, _VALUE_TAG)),
        ]
        for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }

    def __init__(self, text: str, line: int, max_nodes: int) -> None:
        super().__init__(text)
        self.line = line
        self._nodes = 0
        self._max_nodes = max_nodes
        self._merged = 0
        self._depth = 0
        self.duplicate_keys: list[str] = []

    def scan_to_next_token(self) -> None:
        """Skip what separates two tokens. A tab does not, where it could be indentation."""
        super().scan_to_next_token()
        while self.peek() == "\t" and (self.flow_level or not self.allow_simple_key):
            self.forward()
            super().scan_to_next_token()

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        """Compose a node. The parser descends recursively, so the depth is limited before it does."""
        if self._depth > MAX_DEPTH:
            raise yaml.composer.ComposerError(None, None, f"more than {MAX_DEPTH} levels")
        self._nodes += 1
        if self._nodes > self._max_nodes:
            raise yaml.composer.ComposerError(None, None, f"more than {self._max_nodes} keys and values")
        self._depth += 1
        try:
            return super().compose_node(parent, index)
        finally:
            self._depth -= 1

    def flatten_mapping(self, node: yaml.MappingNode) -> None:
        """Resolve the merge keys of a map. They expand like aliases, but before `_checked` can count the values."""
        self._find_duplicate_keys(node)
        super().flatten_mapping(node)
        self._merged += 1 + len(node.value)
        if self._merged > MAX_VALUES:
            raise yaml.constructor.ConstructorError(None, None, f"merges add more than {MAX_VALUES} values")

    def _find_duplicate_keys(self, node: yaml.MappingNode) -> None:
        """Record the keys that the text sets twice in a map, in the words of Kubernetes."""
        earlier: set[str] = set()
        for key, _ in node.value:
            name = key.value
            if isinstance(name, str) and name in earlier and len(self.duplicate_keys) < MAX_DUPLICATE_KEYS:
                line = key.start_mark.line + 1
                self.duplicate_keys.append(f'line {line}: key "{name[:MAX_PATH_LENGTH]}" already set in map')
            elif isinstance(name, str):
                earlier.add(name)


_DOCUMENT_MARKER = re.compile(r"^---(?=\s|$)", re.MULTILINE)
_PARSER_ERRORS = (
    yaml.YAMLError, ValueError, LookupError, AttributeError, TypeError, ArithmeticError, RecursionError,
)  # fmt: skip
"""Exceptions of the YAML parser. Besides its own, it raises these on scalars that do not match their tag."""


@dataclass(frozen=True, slots=True)
class PlainDocument:
    """A document: its value, or its errors. `duplicate_keys` are the keys that a map of YAML has twice."""

    value: object
    errors: tuple[FieldError, ...] = ()
    duplicate_keys: tuple[str, ...] = ()


def parse(text: str, max_nodes: int = MAX_VALUES) -> tuple[PlainDocument, ...]:
    """Return every document of a text that is not empty. A document with errors does not affect the others.

    A document of YAML may have `max_nodes` keys and values; each takes about 40 us.
    """
    if text.lstrip()[:1] in ("{", "["):
        try:
            return (_checked(msgspec.json.decode(text)),)
        except (msgspec.DecodeError, RecursionError, UnicodeEncodeError):
            pass  # A YAML flow collection begins like JSON.
    return tuple(
        document for document in _yaml_documents(text, max_nodes) if document.value is not None or document.errors
    )


def parse_one(text: str) -> PlainDocument:
    """Return the only document of a text. Another number of documents is an error of it."""
    documents = parse(text)
    if len(documents) == 1:
        return documents[0]
    return PlainDocument(None, (FieldError("the text", f"{len(documents)} documents", "one document is accepted"),))


def _yaml_documents(text: str, max_nodes: int) -> Iterator[PlainDocument]:
    boundaries = [0, *(marker.start() for marker in _DOCUMENT_MARKER.finditer(text)), len(text)]
    line = 0
    for start, end in pairwise(boundaries):
        try:
            loader = _Loader(text[start:end], line, max_nodes)
            value = loader.get_single_data()
        except _PARSER_ERRORS as error:
            message = " ".join(str(error).split()) or type(error).__name__
            yield PlainDocument(None, (FieldError("the document", "not YAML", message[:MAX_MESSAGE_LENGTH]),))
        else:
            yield replace(_checked(value), duplicate_keys=tuple(loader.duplicate_keys))
        line += text.count("\n", start, end)


def _checked(value: object) -> PlainDocument:
    errors = tuple(_json_errors(value))
    return PlainDocument(None if errors else value, errors)


def _json_errors(document: object) -> Iterator[FieldError]:
    """Yield an error for each value that JSON cannot represent, and if the document is too deep or too large."""
    values = 0
    pending = [("", 0, document)]
    while pending:
        path, depth, value = pending.pop()
        values += 1 + (len(value) // 64 if isinstance(value, str) else 0)
        if values > MAX_VALUES:
            yield FieldError("the document", f"more than {MAX_VALUES} values", "a smaller document is accepted")
            return
        if depth > MAX_DEPTH:
            yield FieldError(_shortened(path), "too deep", f"{MAX_DEPTH} levels are accepted")
            return
        if isinstance(value, dict):
            keys = [key for key in value if isinstance(key, str) and _is_encodable(key)]
            for key in value.keys() - set(keys):
                yield FieldError(_shortened(path), f"a key {_described(key)}", "keys are strings; put it in quotes")
            pending += [(f"{path}.{key}" if path else key, depth + 1, value[key]) for key in reversed(keys)]
        elif isinstance(value, list):
            pending += [(f"{path}[{index}]", depth + 1, value[index]) for index in reversed(range(len(value)))]
        elif not _is_scalar(value):
            accepted = "text, numbers up to 64 bits, true and false are accepted"
            yield FieldError(_shortened(path), _described(value), accepted)


def _is_scalar(value: object) -> bool:
    if isinstance(value, str):
        return _is_encodable(value)
    if isinstance(value, float):
        return math.isfinite(value)
    return value is None or isinstance(value, bool) or (isinstance(value, int) and abs(value) < 2**63)


def _is_encodable(text: str) -> bool:
    """Return whether a text can be encoded as UTF-8. A lone half of a surrogate pair cannot."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _described(value: object) -> str:
    if isinstance(value, int) and abs(value) >= 2**63:
        return f"beyond 64 bits ({value.bit_length()})"
    return quoted(value)


def _shortened(path: str) -> str:
    return path[:MAX_PATH_LENGTH] or "the document"
