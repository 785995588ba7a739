"""Hooks for schemathesis: facts of our paths and schemas that OpenAPI cannot express."""

from __future__ import annotations

import random
from typing import Any

import schemathesis
from schemathesis.core.parameters import ParameterLocation
from schemathesis.generation.modes import GenerationMode

NAMES = ("one", "two", "default")
"""Few, so that requests meet what others made."""

STREAMED = frozenset(("watch", "allowWatchBookmarks", "sendInitialEvents", "timeoutSeconds"))
"""Parameters of an answer that does not end; watches have tests of their own."""


@schemathesis.hook
def before_load_schema(context: Any, raw_schema: dict[str, Any]) -> None:
    """Change the schema: no request opens a stream, and null is accepted for optional values and whole options."""
    del context
    for path_item in raw_schema["paths"].values():
        for operation in path_item.values():
            if isinstance(operation, dict) and "parameters" in operation:
                operation["parameters"] = [
                    parameter for parameter in operation["parameters"] if parameter["name"] not in STREAMED
                ]
    for schema in raw_schema["components"]["schemas"].values():
        for name, part in schema.get("properties", {}).items():
            if name not in schema.get("required", ()):
                part["nullable"] = True
            if isinstance(part.get("additionalProperties"), dict):
                part["additionalProperties"]["nullable"] = True
    raw_schema["components"]["schemas"]["DeleteOptions"]["nullable"] = True


@schemathesis.hook
def filter_query(context: Any, query: dict[str, Any] | None) -> bool:
    """Return False for queries with empty or repeated parameters: an empty one counts as absent, and only the first one
    is used.
    """
    del context
    return not any(value == "" or isinstance(value, list | dict) for value in (query or {}).values())


@schemathesis.hook
def before_call(context: Any, case: Any, kwargs: Any) -> None:
    """Requests go to a project that there is."""
    del context, kwargs
    components = case.meta.components if case.meta is not None else {}
    info = components.get(ParameterLocation.PATH)
    if info is None or info.mode is not GenerationMode.NEGATIVE:
        places = case.path_parameters or {}
        if "namespace" in places:
            places["namespace"] = "default"
        if "name" in places:
            places["name"] = random.choice(NAMES)
