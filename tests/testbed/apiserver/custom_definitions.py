"""Definitions of custom kinds in the group example.com."""

from __future__ import annotations

from typing import Any

from tests.testbed.apiserver.untyped_client import UntypedClient

DEFINITIONS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"

SCHEMA = {
    "type": "object",
    "properties": {
        "spec": {
            "type": "object",
            "description": "What is wanted.",
            "required": ["color"],
            "properties": {
                "color": {"type": "string", "description": "The color."},
                "size": {"type": "integer", "default": 3},
                "replicas": {"type": "integer", "default": 1},
                "note": {"type": "string", "nullable": True},
            },
        },
        "status": {"type": "object", "properties": {"phase": {"type": "string"}, "replicas": {"type": "integer"}}},
    },
}


def version(name: str = "v1", *, storage: bool = True, schema: Any = None, **more: Any) -> dict[str, Any]:
    """Return a served version."""
    return {
        "name": name,
        "served": True,
        "storage": storage,
        "schema": {"openAPIV3Schema": SCHEMA if schema is None else schema},
        **more,
    }


def definition(plural: str, *versions: dict[str, Any], scope: str = "Namespaced", **names: Any) -> dict[str, Any]:
    """Return the definition of the kind of a plural name in the group example.com."""
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{plural}.example.com"},
        "spec": {
            "group": "example.com",
            "scope": scope,
            "names": {"plural": plural, "singular": plural[:-1], "kind": plural[:-1].capitalize(), **names},
            "versions": list(versions) or [version(subresources={"status": {}})],
        },
    }


def is_true(condition: str) -> Any:
    """Return whether an object has a condition, as a function of it."""

    def check(obj: Any) -> bool:
        conditions = obj.get("status", {}).get("conditions", ())
        return any((each["type"], each["status"]) == (condition, "True") for each in conditions)

    return check


async def define(client: UntypedClient, plural: str, *versions: dict[str, Any], **more: Any) -> str:
    """Create a definition and wait until it is established. Return the path of its objects in the namespace default."""
    body = definition(plural, *versions, **more)
    await client.create(DEFINITIONS, **body)
    await client.wait_until(f"{DEFINITIONS}/{plural}.example.com", is_true("Established"))
    return f"/apis/example.com/v1/namespaces/default/{plural}"
