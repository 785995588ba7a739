"""Patterns of schemas: RE2, as in Go, so the time of a match is linear in the text. It is measured."""

from __future__ import annotations

import time
from functools import lru_cache
from typing import Any

MAX_COMPILED = 1024
MAX_PROGRAM_BYTES = 1 << 20
"""Memory of a compiled pattern, which grows up to this as it is used."""


@lru_cache(maxsize=MAX_COMPILED)
def _compiled(pattern: str) -> Any:
    """Return the compiled pattern; the text of the error if it is not one.

    The library is imported here, because a master without custom resources does not need it.
    """
    import re2  # noqa: PLC0415

    options = re2.Options()
    options.log_errors = False
    options.max_mem = MAX_PROGRAM_BYTES
    try:
        return re2.compile(pattern, options)
    except (re2.error, UnicodeError) as error:
        return _text(error)


def _text(error: Exception) -> str:
    found = error.args[0] if error.args else "not a pattern"
    return found.decode(errors="replace") if isinstance(found, bytes) else str(found)


def pattern_error(pattern: str) -> str:
    """Return why a text is not a pattern; an empty text if it is one."""
    compiled = _compiled(pattern)
    return compiled if isinstance(compiled, str) else ""


def work(pattern: str, text: str) -> int:
    """Return the steps that a match takes at most, if every instruction of the pattern is tried at every character."""
    compiled = _compiled(pattern)
    return 0 if isinstance(compiled, str) else int(compiled.programsize) * len(text)


def timed_match(pattern: str, text: str) -> tuple[bool, float]:
    """Return what `matches` returns, and the seconds of processor time that it took."""
    begin = time.thread_time()
    found = matches(pattern, text)
    return found, time.thread_time() - begin


def matches(pattern: str, text: str) -> bool:
    """Return whether a pattern matches somewhere in a text. One that is not valid matches nothing."""
    compiled = _compiled(pattern)
    if isinstance(compiled, str):
        return False
    try:
        return compiled.search(text) is not None
    except UnicodeError:
        return False
