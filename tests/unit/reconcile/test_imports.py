"""Imports that cost a daemon less memory."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import pytest

from reconcile.imports import defer_package, without_system_authorities

PACKAGE = "podlane_test_greedy"


@pytest.fixture
def greedy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A package whose `__init__` imports all of its modules."""
    (tmp_path / PACKAGE).mkdir()
    (tmp_path / PACKAGE / "__init__.py").write_text("from . import large, small\nNAME = 'all of it'\n")
    (tmp_path / PACKAGE / "large.py").write_text("")
    (tmp_path / PACKAGE / "small.py").write_text(f"from {PACKAGE} import part\n")
    (tmp_path / PACKAGE / "part.py").write_text("")
    monkeypatch.syspath_prepend(str(tmp_path))
    yield PACKAGE
    for name in [name for name in sys.modules if name.partition(".")[0] == PACKAGE]:
        del sys.modules[name]


def test_deferred_package_imports_only_the_module_that_is_named(greedy: str) -> None:
    defer_package(greedy)
    import_module(f"{greedy}.small")
    assert f"{greedy}.part" in sys.modules
    assert f"{greedy}.large" not in sys.modules


def test_first_use_of_another_name_imports_the_whole_package(greedy: str) -> None:
    defer_package(greedy)
    package = import_module(greedy)
    assert package.NAME == "all of it"
    assert f"{greedy}.large" in sys.modules
    with pytest.raises(AttributeError):
        _ = package.MISSING


def test_package_that_is_imported_stays(greedy: str) -> None:
    package = import_module(greedy)
    defer_package(greedy)
    assert import_module(greedy) is package


def test_package_that_does_not_exist_is_an_import_error() -> None:
    with pytest.raises(ModuleNotFoundError, match="podlane_test_missing"):
        defer_package("podlane_test_missing")


def test_authorities_are_hidden_during_the_import_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", "/etc/authorities")
    monkeypatch.delenv("SSL_CERT_DIR", raising=False)
    with without_system_authorities():
        assert os.environ["SSL_CERT_FILE"] == os.environ["SSL_CERT_DIR"] == os.devnull
    assert os.environ["SSL_CERT_FILE"] == "/etc/authorities"
    assert "SSL_CERT_DIR" not in os.environ


def test_sdn_daemon_imports_no_library_that_it_does_not_use() -> None:
    program = "import sys, sdn.__main__, sdn.app; print(*sys.modules)"
    modules = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True).stdout.split()
    assert "pyroute2.iproute.linux" in modules
    unused = {"pyroute2.ndb", "sqlite3", "psutil", "netaddr", "docker", "requests", "master", "node_agent"}
    assert not unused & set(modules)
