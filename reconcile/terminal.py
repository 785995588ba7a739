"""Tables and colors for the terminal."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

GREEN, RED, GREY, BOLD = "32", "1;41", "90", "1"


def colored(text: str, colour: str) -> str:
    """The text in a colour; plain where NO_COLOR is set or nobody looks at a terminal."""
    if "NO_COLOR" in os.environ or not sys.stdout.isatty():
        return text
    return f"\x1b[{colour}m{text}\x1b[0m"


def table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Columns as wide as their widest cell, two spaces apart."""
    widths = [max(len(row[column]) for row in [heads, *rows]) for column in range(len(heads))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in [heads, *rows]]
    return "\n".join([colored(lines[0].rstrip(), BOLD), *(line.rstrip() for line in lines[1:])])
