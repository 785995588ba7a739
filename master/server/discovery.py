"""Discovery: API groups, versions and resources, in the old and in the aggregated form. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from master.resources.resource import AnyResource
from master.resources.scheme import SERVED
from master.resources.virtual import VIRTUAL_RESOURCES, VirtualResource
from master.serialization.negotiation import parse_accept

VERSION = {
    "major": "1",
    "minor": "32",
    "gitVersion": "v1.32.0+podlane",
    "gitCommit": "0" * 40,
    "gitTreeState": "clean",
    "buildDate": "1970-01-01T00:00:00Z",
    "goVersion": "",
    "compiler": "",
    "platform": "linux/amd64",
}
"""The release of Kubernetes whose conventions are followed; clients compare it with their own."""

PATHS = [
    "/.well-known/openid-configuration",
    "/api",
    "/api/v1",
    "/apis",
    "/healthz",
    "/livez",
    "/metrics",
    "/openapi/v3",
    "/openid/v1/jwks",
    "/readyz",
    "/version",
]

Row = dict[str, Any]


def _groups() -> dict[str, dict[str, list[AnyResource]]]:
    """Return group → version → kinds.

    The core is first; in a group, the preferred version, that of its first kind, is first.
    """
    found: dict[str, dict[str, list[AnyResource]]] = {}
    for resource in sorted(SERVED, key=lambda resource: resource.group):
        found.setdefault(resource.group, {}).setdefault(resource.version, []).append(resource)
    return {
        group: {version: sorted(kinds, key=lambda resource: resource.plural) for version, kinds in versions.items()}
        for group, versions in found.items()
    }


def _names() -> tuple[str, ...]:
    """Return the names of all groups; groups with stored resources are first."""
    known = _groups()
    return (*known, *(name for name in VIRTUAL_RESOURCES if name not in known))


def _subresources(resource: AnyResource) -> list[tuple[str, Row, list[str]]]:
    own = (resource.group, resource.version, resource.kind)
    found = (
        (subresource, dict(zip(("group", "version", "kind"), subresource.body_kind or own, strict=True)))
        for subresource in resource.all_subresources
    )
    return [(subresource.name, body, list(subresource.verbs)) for subresource, body in found]


# --- the old form -----------------------------------------------------------------------------------------------------


def versions() -> Row:
    """Return the response to GET /api."""
    return {"kind": "APIVersions", "versions": ["v1"], "serverAddressByClientCIDRs": []}


def _group(name: str, versions: Iterable[str]) -> Row:
    known = [{"groupVersion": f"{name}/{version}", "version": version} for version in versions]
    return {"name": name, "versions": known, "preferredVersion": known[0]}


def groups() -> Row:
    """Return the response to GET /apis."""
    known = _groups()
    listed = [_group(name, known.get(name, ("v1",))) for name in _names() if name]
    return {"kind": "APIGroupList", "apiVersion": "v1", "groups": listed}


def group(name: str) -> Row | None:
    """Return the response to GET /apis/GROUP."""
    found = next((row for row in groups()["groups"] if row["name"] == name), None)
    return None if found is None else {"kind": "APIGroup", "apiVersion": "v1", **found}


def resources(group_name: str, version: str) -> Row | None:
    """Return the response to GET /api/v1 and /apis/GROUP/VERSION."""
    kinds = _groups().get(group_name, {}).get(version, [])
    virtual = [_virtual_row(resource) for resource in VIRTUAL_RESOURCES.get(group_name, ()) if version == "v1"]
    rows = [*virtual, *(row for resource in kinds for row in _resource_rows(resource))]
    if not rows:
        return None
    full = f"{group_name}/{version}" if group_name else version
    return {"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": full, "resources": rows}


def _resource_rows(resource: AnyResource) -> list[Row]:
    row: Row = {
        "name": resource.plural,
        "singularName": resource.singular,
        "namespaced": resource.namespaced,
        "kind": resource.kind,
        "verbs": list(resource.verbs),
    }
    if resource.short_names:
        row["shortNames"] = list(resource.short_names)
    if resource.categories:
        row["categories"] = list(resource.categories)
    rows = [row]
    for name, answer, verbs in _subresources(resource):
        rows.append(
            {
                "name": f"{resource.plural}/{name}",
                "singularName": "",
                "namespaced": resource.namespaced,
                "kind": answer["kind"],
                "verbs": verbs,
                **(
                    {}
                    if answer["group"] == resource.group
                    else {"group": answer["group"], "version": answer["version"]}
                ),
            }
        )
    return rows


def _virtual_row(virtual: VirtualResource) -> Row:
    return {
        "name": virtual.plural,
        "singularName": virtual.kind.lower(),
        "namespaced": virtual.namespaced,
        "kind": virtual.kind,
        "verbs": list(virtual.verbs),
    }


# --- the aggregated form ----------------------------------------------------------------------------------------------


def aggregated_version(accept: str) -> str:
    """Return the aggregated form (v2, v2beta1) that the client prefers to the old form; empty if none."""
    for entry in parse_accept(accept):
        parameters = entry.parameters
        if entry.type != "application/json":
            continue
        if parameters.get("as") != "APIGroupDiscoveryList":
            return ""
        if parameters.get("g") == "apidiscovery.k8s.io" and parameters.get("v") in ("v2", "v2beta1"):
            return parameters["v"]
    return ""


def aggregated(core: bool, form: str) -> Row:
    """Return the response to GET /api (core) or GET /apis in the aggregated form."""
    items, known = [], _groups()
    for name in _names():
        if core == (name == ""):
            kinds = known.get(name, {})
            rows = {version: [_aggregated_row(resource) for resource in found] for version, found in kinds.items()}
            if name in VIRTUAL_RESOURCES:
                rows["v1"] = [
                    *(_aggregated_virtual(name, virtual) for virtual in VIRTUAL_RESOURCES[name]),
                    *rows.get("v1", []),
                ]
            items.append(_aggregated_group(name, rows))
    head = {"kind": "APIGroupDiscoveryList", "apiVersion": f"apidiscovery.k8s.io/{form}"}
    return {**head, "metadata": {}, "items": items}


def _aggregated_group(name: str, versions: Mapping[str, list[Row]]) -> Row:
    metadata = {"name": name, "creationTimestamp": None} if name else {"creationTimestamp": None}
    rows = [{"version": version, "resources": found, "freshness": "Current"} for version, found in versions.items()]
    return {"metadata": metadata, "versions": rows}


def _aggregated_row(resource: AnyResource) -> Row:
    row: Row = {
        "resource": resource.plural,
        "responseKind": {"group": resource.group, "version": resource.version, "kind": resource.kind},
        "scope": "Namespaced" if resource.namespaced else "Cluster",
        "singularResource": resource.singular,
        "verbs": list(resource.verbs),
    }
    if resource.short_names:
        row["shortNames"] = list(resource.short_names)
    if resource.categories:
        row["categories"] = list(resource.categories)
    subresources = [
        {"subresource": name, "responseKind": answer, "verbs": verbs} for name, answer, verbs in _subresources(resource)
    ]
    return row | ({"subresources": subresources} if subresources else {})


def _aggregated_virtual(group_name: str, virtual: VirtualResource) -> Row:
    return {
        "resource": virtual.plural,
        "responseKind": {"group": group_name, "version": "v1", "kind": virtual.kind},
        "scope": "Namespaced" if virtual.namespaced else "Cluster",
        "singularResource": virtual.kind.lower(),
        "verbs": list(virtual.verbs),
    }
