"""A custom kind for tests of what it shares with the built-in ones."""

from __future__ import annotations

from typing import Any

from tests.testbed.apiserver.untyped_client import UntypedClient

DEFINITIONS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"


def definition(group: str, *rules: dict[str, Any]) -> dict[str, Any]:
    """Return the definition of the kind Lamp, whose `spec.color` is white by default. `rules` are those of its spec."""
    properties = {"color": {"type": "string", "default": "white"}, "replicas": {"type": "integer"}}
    spec = {"type": "object", "properties": properties, "x-kubernetes-validations": list(rules)}
    status = {"type": "object", "properties": {"replicas": {"type": "integer"}}}
    scale = {"specReplicasPath": ".spec.replicas", "statusReplicasPath": ".status.replicas"}
    version: dict[str, Any] = {
        "name": "v1",
        "served": True,
        "storage": True,
        "schema": {"openAPIV3Schema": {"type": "object", "properties": {"spec": spec, "status": status}}},
        "subresources": {"status": {}, "scale": scale},
    }
    return {
        "metadata": {"name": f"lamps.{group}"},
        "spec": {
            "group": group,
            "scope": "Namespaced",
            "names": {"plural": "lamps", "kind": "Lamp"},
            "versions": [version],
        },
    }


async def establish(client: UntypedClient, group: str, *rules: dict[str, Any]) -> str:
    """Define the kind Lamp in a group, and wait until it is established. Return the path of the group."""
    made = await client.request("POST", DEFINITIONS, definition(group, *rules))
    assert made["kind"] == "CustomResourceDefinition", made
    await client.wait_until(
        f"{DEFINITIONS}/lamps.{group}",
        lambda found: any(
            (condition["type"], condition["status"]) == ("Established", "True")
            for condition in found.get("status", {}).get("conditions", ())
        ),
    )
    return f"/apis/{group}/v1"
