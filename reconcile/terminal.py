"""Tables and colors for the terminal."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

GREEN, RED, GREY, BOLD = "32", "1;41", "90", "1"


def colored(text: str, color: str) -> str:
    """Return a text with color codes; without them if NO_COLOR is set or the output is not a terminal."""
    if "NO_COLOR" in os.environ or not sys.stdout.isatty():
        return text
    return f"\x1b[{color}m{text}\x1b[0m"


def table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a table. Columns are as wide as their widest cell, with two spaces between them."""
    lines_of_cells = [headings, *rows]
    widths = [max(len(cells[column]) for cells in lines_of_cells) for column in range(len(headings))]
    lines = [
        "  ".join(cell.ljust(width) for cell, width in zip(cells, widths, strict=True)) for cells in lines_of_cells
    ]
    return "\n".join([colored(lines[0].rstrip(), BOLD), *(line.rstrip() for line in lines[1:])])
