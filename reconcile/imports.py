"""Imports that cost a daemon less memory: a package without all of its modules, aiohttp without the system's CAs."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import sys
from collections.abc import Callable, Iterator
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

_AUTHORITY_VARIABLES = ("SSL_CERT_FILE", "SSL_CERT_DIR")


def defer_package(name: str) -> None:
    """Register a package without running its `__init__`, so that an import of one module does not import all others.

    The first use of a name that is not a module of the package runs `__init__`. Does nothing for a package that is
    imported already.
    """
    if name in sys.modules:
        return
    spec = importlib.util.find_spec(name)
    if spec is None:
        raise ModuleNotFoundError(f"No module named {name!r}", name=name)
    package = importlib.util.module_from_spec(spec)
    package.__dict__["__getattr__"] = _attribute_of(package, spec)
    sys.modules[name] = package


def _attribute_of(package: ModuleType, spec: ModuleSpec) -> Callable[[str], Any]:
    """Return the `__getattr__` of a package: it runs `__init__` once, and then returns the attribute."""

    def attribute(name: str) -> Any:
        loader = spec.loader
        if loader is None or name.startswith("__") or importlib.util.find_spec(f"{spec.name}.{name}") is not None:
            raise AttributeError(f"module {spec.name!r} has no attribute {name!r}", name=name, obj=package)
        del package.__dict__["__getattr__"]
        loader.exec_module(package)
        return getattr(package, name)

    return attribute


@contextlib.contextmanager
def without_system_authorities() -> Iterator[None]:
    """Import modules while OpenSSL finds no certificates of the system's authorities.

    aiohttp reads them when it is imported, which takes 2 MB, for the connections that are opened without a TLS context
    of their own. Such connections are refused then. For daemons that trust the cluster's authority only.
    """
    found = {name: os.environ.get(name) for name in _AUTHORITY_VARIABLES}
    os.environ.update(dict.fromkeys(_AUTHORITY_VARIABLES, os.devnull))
    try:
        yield
    finally:
        for name, value in found.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
