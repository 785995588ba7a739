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


@functools.cache
def sources(package: str) -> tuple[Path, ...]:
    return tuple(sorted((ROOT / package).rglob("*.py")))


def mentioning(package: str, *words: str) -> list[Path]:
    """Return the files that have one of the words in the text of an import. Only these need to be parsed."""
    imported = re.compile(rf"^[ \t]*(?:from|import)\b[^\n(]*(?:\([^)]*)?(?:{'|'.join(words)})", re.MULTILINE)
    return [path for path in sources(package) if imported.search(path.read_text())]


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


@functools.cache
def imports(path: Path) -> tuple[str, ...]:
    """Return the full names of imported modules, and of names imported from them: `a.b` and `a.b.name`."""
    return tuple(_imports(path))


def _statements(statement: ast.AST) -> Iterator[ast.AST]:
    """Yield a statement and all statements in it, but no expressions, which are most of a module."""
    yield statement
    for blocks in ("body", "orelse", "handlers", "finalbody", "cases"):
        block = getattr(statement, blocks, ())
        for inner in block if isinstance(block, list) else ():
            yield from _statements(inner)


def _imports(path: Path) -> Iterator[str]:
    for node in _statements(parsed(path)):
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


@pytest.mark.parametrize("package", PACKAGES)
def test_a_package_imports_only_the_packages_that_it_may(package: str) -> None:
    allowed = MAY_IMPORT[package] | {package}
    forbidden = {
        relative_name(path): names
        for path in sources(package)
        if (names := {name.split(".")[0] for name in imports(path)} & set(PACKAGES) - allowed)
    }
    assert not forbidden


@pytest.mark.parametrize("package", PACKAGES)
def test_every_module_has_a_docstring(package: str) -> None:
    assert [relative_name(path) for path in sources(package) if not ast.get_docstring(parsed(path))] == []


@pytest.mark.parametrize("package", PACKAGES)
def test_a_pure_module_imports_nothing_that_acts(package: str) -> None:
    forbidden: dict[str, set[str]] = {}
    for path in sources(package):
        if layer(path) == "Pure":
            acting = {name.split(".")[0] for name in imports(path)} & ACTING
            drivers = {relative_name(module) for module in modules_of_ours(path) if layer(module) == "Driver"}
            if acting | drivers:
                forbidden[relative_name(path)] = acting | drivers
    assert not forbidden


@pytest.mark.parametrize("package", PACKAGES)
def test_no_broad_except_swallows_an_error(package: str) -> None:
    swallowing = [
        f"{relative_name(path)}:{handler.lineno}"
        for path in sources(package)
        for handler in ast.walk(parsed(path))
        if isinstance(handler, ast.ExceptHandler) and is_broad(handler) and not is_reported(handler)
    ]
    assert not swallowing


def test_no_test_module_is_imported() -> None:
    test_module = re.compile(r"^tests\..*\b(test_\w+|conftest)\b")
    imported = {
        relative_name(path): names
        for path in (*mentioning("tests", "test_", "conftest"), *sources("bench"))
        if (names := {name for name in imports(path) if test_module.match(name) and is_module(name)})
    }
    assert not imported


def test_only_tests_of_the_benchmark_import_it() -> None:
    importing = {
        str(path.parent.relative_to(ROOT))
        for path in mentioning("tests", "bench")
        if any(is_below("bench", name) for name in imports(path))
    }
    assert importing - {"tests/e2e/bench", "tests/unit/bench"} == set()


def test_benchmarks_import_only_the_testbed_of_the_tests() -> None:
    imported = {
        relative_name(path): names
        for path in sources("bench")
        if (
            names := {name for name in imports(path) if is_below("tests", name) and not is_below("tests.testbed", name)}
        )
    }
    assert not imported


def is_module(name: str) -> bool:
    return (ROOT / (name.replace(".", "/") + ".py")).exists()


def is_below(package: str, name: str) -> bool:
    """Return True if the name is that of the package or of something in it."""
    return f"{name}.".startswith(f"{package}.")


def is_broad(handler: ast.ExceptHandler) -> bool:
    """Return True if the handler catches every exception."""
    return handler.type is None or ast.unparse(handler.type) in {"Exception", "BaseException"}


def is_reported(handler: ast.ExceptHandler) -> bool:
    """Return True if the handler raises again, logs the traceback, or passes the exception on in a `Failed`.

    The runtime of the controllers logs the traceback of each `Failed` (test_poisoned_objects.py).
    """
    return any(
        isinstance(statement, ast.Raise)
        or ".exception(" in ast.unparse(statement)
        or re.search(rf"\bFailed\([\w.]+, {handler.name}\)", ast.unparse(statement)) is not None
        for statement in handler.body
    )
