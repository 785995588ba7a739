"""docs/conformance.md: every row names existing tests, or states why there is none."""

from __future__ import annotations

import ast
import functools
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
DOCUMENT = ROOT / "docs" / "conformance.md"
HEADINGS = ("What a node agent does", "Shown by")
NAMED = re.compile(r"`([a-z_0-9/]+\.py)::(test_\w+)`")
REASON = re.compile(r"not here: \S+")


def rows() -> list[tuple[int, str, str]]:
    """Return (line number, subject, evidence) of each row of the document."""
    lines = enumerate(DOCUMENT.read_text().splitlines(), 1)
    cells = [
        (number, [cell.strip() for cell in line.strip("|").split("|")]) for number, line in lines if line[:1] == "|"
    ]
    assert all(len(columns) == 2 for _, columns in cells), "a row has two cells"
    return [(number, *columns) for number, columns in cells if tuple(columns) != HEADINGS and set(columns[0]) != {"-"}]  # type: ignore[misc]


@functools.cache
def functions(path: Path) -> set[str]:
    tree = ast.parse(path.read_text())
    return {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}


@pytest.mark.parametrize("entry", rows(), ids=lambda entry: f"line {entry[0]}")
def test_conformance_row_names_existing_tests_or_a_reason(entry: tuple[int, str, str]) -> None:
    line, what, shown = entry
    named = NAMED.findall(shown)
    assert what
    assert named or REASON.search(shown), f"docs/conformance.md:{line}: neither a test nor `not here: REASON`"
    for file, function in named:
        path = ROOT / "tests" / file
        assert path.exists(), f"docs/conformance.md:{line}: there is no tests/{file}"
        assert function in functions(path), f"docs/conformance.md:{line}: tests/{file} has no {function}"


@pytest.mark.parametrize("entry", rows(), ids=lambda entry: f"line {entry[0]}")
def test_conformance_row_names_a_test_with_a_real_docker(entry: tuple[int, str, str]) -> None:
    line, _, shown = entry
    real = [file for file, _ in NAMED.findall(shown) if file.startswith(("e2e/", "contract/", "net/"))]
    assert real or REASON.search(shown), f"docs/conformance.md:{line}: only tests that need no Docker"
