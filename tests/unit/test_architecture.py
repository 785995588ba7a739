"""The architecture as tests: import directions between packages, and the layers that modules declare.

The first paragraph of a module's docstring ends with `Pure.` if the module decides and never acts, and with `Driver.`
if it acts and never decides. The docstring is the declaration; the tests below hold the module to it.
"""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("api", "cli", "lab", "master", "nameserver", "node_agent", "reconcile", "sdn", "streams")
MAY_IMPORT = {
    "api": set(),
    "reconcile": set(),
    "streams": set(),
    "master": {"api", "nameserver", "reconcile", "streams"},
    "nameserver": {"api", "reconcile"},
    "node_agent": {"api", "reconcile", "streams"},
    "sdn": {"api", "nameserver", "reconcile"},
    "cli": {"api", "lab", "reconcile"},
    "lab": {"api", "reconcile"},
}
ACTING = {"asyncio", "logging", "os", "random", "select", "socket", "subprocess", "threading", "time", "uuid"}
"""Modules of Python's library that act, wait, or read what is not an argument."""
LAYER = re.compile(r"\b(Pure|Driver)\.$")


def sources() -> Iterator[Path]:
    for package in PACKAGES:
        yield from sorted((ROOT / package).rglob("*.py"))


def relative_name(path: Path) -> str:
    return str(path.relative_to(ROOT))


@functools.cache
def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


@functools.cache
def layer(path: Path) -> str:
    """Return `Pure`, `Driver`, or an empty string."""
    first_paragraph = (ast.get_docstring(parsed(path)) or "").split("\n\n")[0].rstrip()
    declared = LAYER.search(first_paragraph)
    return declared[1] if declared else ""


def imports(path: Path) -> Iterator[str]:
    """Yield the full names of imported modules, and of names imported from them: `a.b` and `a.b.name`."""
    for node in ast.walk(parsed(path)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


@functools.cache
def modules_of_ours(path: Path) -> frozenset[Path]:
    """Return the files of this repository that a module imports directly."""
    candidates = (ROOT / (name.replace(".", "/") + ".py") for name in imports(path) if name.split(".")[0] in PACKAGES)
    return frozenset(candidate for candidate in candidates if candidate.exists())


@pytest.fixture(params=sources(), ids=relative_name)
def source(request: pytest.FixtureRequest) -> Path:
    path: Path = request.param
    return path


def test_a_package_imports_only_what_it_may(source: Path) -> None:
    package = relative_name(source).split("/")[0]
    ours = {name.split(".")[0] for name in imports(source)} & set(PACKAGES)
    assert ours <= MAY_IMPORT[package] | {package}


def test_a_module_has_a_docstring(source: Path) -> None:
    assert ast.get_docstring(parsed(source))


def test_a_pure_module_imports_nothing_that_acts(source: Path) -> None:
    if layer(source) != "Pure":
        return
    assert not {name.split(".")[0] for name in imports(source)} & ACTING
    assert not [relative_name(module) for module in modules_of_ours(source) if layer(module) == "Driver"]


def test_no_broad_except_swallows_an_error(source: Path) -> None:
    for node in ast.walk(parsed(source)):
        if isinstance(node, ast.ExceptHandler):
            caught = ast.unparse(node.type) if node.type else ""
            is_broad = caught in {"", "Exception", "BaseException"}
            is_reported = any(
                isinstance(inner, ast.Raise) or ".exception(" in ast.unparse(inner) for inner in node.body
            )
            assert not is_broad or is_reported, f"line {node.lineno}"
