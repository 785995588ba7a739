"""Files of the repository that a program generates, such as docs/pipeline.md. Driver."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path


def write_or_check(path: Path, text: str, arguments: Sequence[str]) -> int:
    """Write the file, or with the argument `--check` return 1 and report it if its content differs."""
    if "--check" not in arguments:
        path.write_text(text)
        return 0
    if path.exists() and path.read_text() == text:
        return 0
    sys.stderr.write(f"{path}: stale; run `make docs`\n")
    return 1
