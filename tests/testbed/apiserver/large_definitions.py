"""Definitions like those of Gateway API: on average 73 KB of JSON, 900 values, 110 properties and 30 rules."""

from __future__ import annotations

from typing import Any

VERSIONS, PARTS, PROPERTIES = 2, 5, 10
PROSE = "What this field is for, which values it may have, and what an implementation must do with each of them. " * 5
RULES = (
    {"message": "type and value go together", "rule": "self.kind != 'None' || !has(self.port)"},
    {"message": "names are unique", "rule": "self.names.all(a, self.names.exists_one(b, a == b))"},
    {"message": "the port stays", "rule": "!has(oldSelf.port) || has(self.port)"},
)


def _part() -> dict[str, Any]:
    """Return the schema of an object with a list, a map, an enumeration, a pattern, defaults and rules."""
    texts = {
        f"text{number}": {
            "type": "string",
            "description": PROSE,
            "maxLength": 253,
            "pattern": "^[a-z0-9]([-a-z0-9]*)?$",
        }
        for number in range(PROPERTIES - 4)
    }
    return {
        "type": "object",
        "description": PROSE,
        "properties": {
            **texts,
            "kind": {"type": "string", "description": PROSE, "enum": ["None", "Service"], "default": "Service"},
            "port": {"type": "integer", "description": PROSE, "format": "int32", "minimum": 1, "maximum": 65535},
            "names": {
                "type": "array", "description": PROSE, "maxItems": 16, "x-kubernetes-list-type": "atomic",
                "items": {"type": "string", "maxLength": 63, "minLength": 1}, "default": [],
            },
            "labels": {
                "type": "object", "description": PROSE, "maxProperties": 16,
                "additionalProperties": {"type": "string", "maxLength": 63},
            },
        },
        "required": ["names"],
        "x-kubernetes-validations": list(RULES),
    }  # fmt: skip


def large_definition(group: str, number: int) -> dict[str, Any]:
    """Return the definition of the kind `Large<number>`, with as many rules and properties as one of Gateway API."""
    conditions = {
        "type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["type"], "maxItems": 8,
        "items": {
            "type": "object", "required": ["type", "status"],
            "properties": {"type": {"type": "string"}, "status": {"type": "string"}},
        },
    }  # fmt: skip
    spec = {"type": "object", "description": PROSE, "properties": {f"part{index}": _part() for index in range(PARTS)}}
    status = {"type": "object", "properties": {"conditions": conditions}}
    schema = {"type": "object", "description": PROSE, "properties": {"spec": spec, "status": status}}
    columns = [
        {"name": "Ready", "type": "string", "jsonPath": '.status.conditions[?(@.type=="Ready")].status'},
        {"name": "Age", "type": "date", "jsonPath": ".metadata.creationTimestamp"},
    ]
    versions = [
        {
            "name": "v1" if index == 0 else f"v1beta{index}", "served": True, "storage": index == 0,
            "schema": {"openAPIV3Schema": schema}, "subresources": {"status": {}}, "additionalPrinterColumns": columns,
        }
        for index in range(VERSIONS)
    ]  # fmt: skip
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"large{number}s.{group}"},
        "spec": {
            "group": group, "scope": "Namespaced", "versions": versions,
            "names": {"plural": f"large{number}s", "singular": f"large{number}", "kind": f"Large{number}"},
        },
    }  # fmt: skip
