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


def problem_of(what: str, shown: str) -> str:
    """Return what is wrong with a row; empty if nothing is."""
    named = NAMED.findall(shown)
    if not what or not (named or REASON.search(shown)):
        return "neither a test nor `not here: REASON`"
    for file, function in named:
        path = ROOT / "tests" / file
        if not path.exists():
            return f"there is no tests/{file}"
        if function not in functions(path):
            return f"tests/{file} has no {function}"
    if not REASON.search(shown) and not any(file.startswith(("e2e/", "contract/", "net/")) for file, _ in named):
        return "only tests that need no Docker"
    return ""


def test_conformance_row_names_existing_tests_with_a_real_docker_or_a_reason() -> None:
    problems = [f"{DOCUMENT.name}:{line}: {problem}" for line, *row in rows() if (problem := problem_of(*row))]
    assert not problems
    assert len(rows()) > 200


@pytest.mark.parametrize(
    ("what", "shown", "problem"),
    [
        ("a", "`e2e/node/test_sandboxes.py::test_none`", "tests/e2e/node/test_sandboxes.py has no test_none"),
        ("a", "`e2e/none.py::test_none`", "there is no tests/e2e/none.py"),
        ("a", "by hand", "neither a test nor `not here: REASON`"),
        ("a", "not here: no cloud", ""),
        (
            "a",
            "`unit/test_conformance.py::test_problem_of_a_row_is_found`",
            "only tests that need no Docker",
        ),
    ],
)
def test_problem_of_a_row_is_found(what: str, shown: str, problem: str) -> None:
    assert problem_of(what, shown) == problem
