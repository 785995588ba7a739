"""Decodes YAML or JSON text into plain documents that JSON can hold, or says why it cannot. Pure.

A text from anybody may be anything: too deep for the parser, a few anchors that stand for billions of values, dates,
sets, numbers beyond 64 bits. What comes out of here holds only what JSON holds, is not deeper than DEEPEST and not
larger than LARGEST, so that whoever reads it further need not fear it.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

import msgspec
import yaml

from api.meta.schema import FieldError, quoted

DEEPEST = 64
LARGEST = 1_000_000
"""Values in a document; a string counts once more for every 64 characters, an alias as often as it stands."""


class _Loader(yaml.SafeLoader):
    """A time that stands without quotes is a text, as it is in JSON."""

    yaml_implicit_resolvers = {
        first: [(tag, words) for tag, words in rows if tag != "tag:yaml.org,2002:timestamp"]
        for first, rows in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }


_MARKER = re.compile(r"^---(?=\s|$)", re.MULTILINE)
_UNREADABLE = (
    yaml.YAMLError, ValueError, LookupError, AttributeError, TypeError, ArithmeticError, RecursionError,
)  # fmt: skip
"""What the YAML parser raises, besides its own errors, on scalars that are not what their tag says."""


@dataclass(frozen=True, slots=True)
class PlainDocument:
    """One document: its value, or its problems."""

    value: object
    problems: tuple[FieldError, ...] = ()


def parse(text: str) -> tuple[PlainDocument, ...]:
    """Every document of a text that is not empty; one that cannot be read does not stop the others."""
    if text.lstrip()[:1] in ("{", "["):
        try:
            return (_examined(msgspec.json.decode(text)),)
        except (msgspec.DecodeError, RecursionError, UnicodeEncodeError):
            pass  # YAML has flow collections that begin as JSON does.
    return tuple(document for document in _yaml(text) if document.value is not None or document.problems)


def _yaml(text: str) -> Iterator[PlainDocument]:
    begins = [0, *(found.start() for found in _MARKER.finditer(text)), len(text)]
    for begin, end in pairwise(begins):
        # Lines before the document stay as empty ones, so that an error names the line of the file.
        part = "\n" * text.count("\n", 0, begin) + text[begin:end]
        try:
            value = yaml.load(part, _Loader)
        except _UNREADABLE as error:
            words = " ".join(str(error).split()) or type(error).__name__
            yield PlainDocument(None, (FieldError("the document", "not YAML", words[:300]),))
        else:
            yield _examined(value)


def _examined(value: object) -> PlainDocument:
    problems = tuple(_foreign(value))
    return PlainDocument(None if problems else value, problems)


def _foreign(document: object) -> Iterator[FieldError]:
    """What no JSON document holds, and what is too deep or too large."""
    size, waiting = 0, [("", 0, document)]
    while waiting:
        path, depth, value = waiting.pop()
        size += 1 + (len(value) // 64 if isinstance(value, str) else 0)
        if size > LARGEST:
            yield FieldError("the document", f"more than {LARGEST} values", "a smaller document is accepted")
            return
        if depth > DEEPEST:
            yield FieldError(_short(path), "too deep", f"{DEEPEST} levels are accepted")
            return
        if isinstance(value, dict):
            good = [key for key in value if isinstance(key, str) and _is_text(key)]
            for key in value.keys() - set(good):
                yield FieldError(_short(path), f"a key {_words(key)}", "keys are strings; put it in quotes")
            waiting += [(f"{path}.{key}" if path else key, depth + 1, value[key]) for key in reversed(good)]
        elif isinstance(value, list):
            waiting += [(f"{path}[{n}]", depth + 1, value[n]) for n in reversed(range(len(value)))]
        elif not _is_scalar(value):
            yield FieldError(_short(path), _words(value), "text, numbers up to 64 bits, true and false are accepted")


def _is_scalar(value: object) -> bool:
    if isinstance(value, str):
        return _is_text(value)
    if isinstance(value, float):
        return math.isfinite(value)
    return value is None or isinstance(value, bool) or (isinstance(value, int) and abs(value) < 2**63)


def _is_text(text: str) -> bool:
    """Whether it can be written as UTF-8 (a lone half of a surrogate pair cannot)."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _words(value: object) -> str:
    return f"beyond 64 bits ({value.bit_length()})" if isinstance(value, int) and abs(value) >= 2**63 else quoted(value)


def _short(path: str) -> str:
    return path[:200] or "the document"
