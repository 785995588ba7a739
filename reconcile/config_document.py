"""Reads a configuration file: one YAML document that holds only what JSON has, and no key twice.

An error names the line and the column, and never quotes the file: it may have passwords.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

MAX_BYTES = 1 << 20
MAX_VALUES = 100_000
"""Limit of the values in a document. An alias counts at each use."""

MAX_DEPTH = 64
"""Levels of mappings and lists in a document, so that code which descends into it needs no limit of its own."""

MAX_PATH = 200

_QUOTED = re.compile(r"""\s*(["']).*\1""", re.DOTALL)


class BadDocument(Exception):
    """A document that cannot be used. The text says where, what was found and what is accepted."""


class _Loader(yaml.SafeLoader):
    """A loader that reads timestamps as texts and refuses a key that a mapping has twice."""

    yaml_implicit_resolvers = {
        first: [(tag, pattern) for tag, pattern in resolvers if tag != "tag:yaml.org,2002:timestamp"]
        for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }

    def compose_mapping_node(self, anchor: Any) -> yaml.MappingNode:
        """Compose a mapping. Raises ComposerError if a key is there twice."""
        node = super().compose_mapping_node(anchor)
        assert node is not None
        keys: set[str] = set()
        for key, _ in node.value:
            if key.tag != "tag:yaml.org,2002:merge" and isinstance(key.value, str):
                if key.value in keys:
                    raise yaml.composer.ComposerError(None, None, f"the key {key.value} is there twice", key.start_mark)
                keys.add(key.value)
        return node


def read_document(path: Path) -> Any:
    """Return the document in a file; None if it is empty. Raises BadDocument, whose text begins with the path."""
    try:
        with path.open("rb") as file:
            content = file.read(MAX_BYTES + 1)
        if len(content) > MAX_BYTES:
            raise BadDocument(f"found more than {MAX_BYTES} bytes; a smaller file is accepted")
        return parse_document(content.decode())
    except OSError as error:
        raise BadDocument(f"{path}: cannot be read: {error.strerror}; a YAML file is accepted") from None
    except UnicodeDecodeError as error:
        raise BadDocument(f"{path}: found no UTF-8 at byte {error.start}; text in UTF-8 is accepted") from None
    except BadDocument as error:
        raise BadDocument(f"{path}: {error}") from None


def parse_document(text: str) -> Any:
    """Return the document in a text; None if it is empty. Raises BadDocument."""
    try:
        document = _Loader(text).get_single_data()
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        place = f"line {mark.line + 1}, column {mark.column + 1}: " if mark else ""
        problem = _QUOTED.sub(" ...", error.problem or "found no YAML")
        raise BadDocument(f"{place}{problem}; one YAML document is accepted") from None
    except yaml.YAMLError:
        raise BadDocument("found a control character; one YAML document is accepted") from None
    except (ValueError, LookupError, AttributeError, TypeError, ArithmeticError):
        # The parser raises these on scalars that do not match their tag.
        raise BadDocument("found a value that its tag does not accept; one YAML document is accepted") from None
    except RecursionError:
        raise BadDocument("found too many levels; a simpler document is accepted") from None
    _check_values(document)
    return document


def _check_values(document: object) -> None:
    pending, count = [("", 0, document)], 0
    while pending:
        path, depth, value = pending.pop()
        count += 1
        if count > MAX_VALUES:
            raise BadDocument(f"found more than {MAX_VALUES} values; a smaller document is accepted")
        if depth > MAX_DEPTH:
            raise BadDocument(f"found more than {MAX_DEPTH} levels; fewer are accepted")
        if isinstance(value, dict):
            if not all(isinstance(key, str) for key in value):
                raise BadDocument(f"{path or 'the document'}: found a key that is no text; put it in quotes")
            pending += [(f"{path}.{key}"[-MAX_PATH:].lstrip("."), depth + 1, entry) for key, entry in value.items()]
        elif isinstance(value, list):
            pending += [(f"{path}[{index}]"[-MAX_PATH:], depth + 1, entry) for index, entry in enumerate(value)]
        elif not _is_scalar(value):
            accepted = "texts, numbers up to 64 bits, true and false are accepted"
            raise BadDocument(f"{path or 'the document'}: found a value that JSON does not have; {accepted}")


def _is_scalar(value: object) -> bool:
    if isinstance(value, float):
        return math.isfinite(value)
    return value is None or isinstance(value, str | bool) or (isinstance(value, int) and abs(value) < 2**63)


def unreadable_file(setting: str, file: Path) -> Iterator[str]:
    """Yield the problem if the file of a setting cannot be read."""
    try:
        if not file.is_file():
            yield f"{setting}: found {str(file)!r}, which is no file; the path of a file is accepted"
            return
        with file.open("rb"):
            return
    except (OSError, ValueError) as error:
        # The path may have a null byte, which is a ValueError.
        reason = error.strerror if isinstance(error, OSError) else "it is no path"
        yield f"{setting}: found {str(file)!r}: {reason}; the path of a file that can be read is accepted"
