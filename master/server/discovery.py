"""Discovery: API groups, versions and resources, as unaggregated and as aggregated documents. Pure."""

from __future__ import annotations

import importlib.metadata
from collections.abc import Iterable, Mapping
from typing import Any

from master.resources.resource import AnyResource
from master.resources.scheme import SERVED
from master.resources.virtual import VIRTUAL_RESOURCES, VirtualResource
from master.serialization.negotiation import parse_accept

MASTER_VERSION = f"v{importlib.metadata.version('podlane')}"
"""The version of Podlane."""

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
    "podlaneVersion": MASTER_VERSION,
}
"""The version of Kubernetes whose API is served, with which clients compare their own, and that of this master."""

PATHS = [
    "/.well-known/openid-configuration",
    "/api",
    "/api/v1",
    "/apis",
    "/healthz",
    "/healthz/ping",
    "/livez",
    "/livez/ping",
    "/metrics",
    "/openapi/v3",
    "/openid/v1/jwks",
    "/readyz",
    "/readyz/controllers",
    "/readyz/ping",
    "/readyz/storage",
    "/version",
]

Document = dict[str, Any]


def _groups() -> dict[str, dict[str, list[AnyResource]]]:
    """Return group → version → resources.

    The preferred version of a group is its first: that of the group's first resource.
    """
    by_group: dict[str, dict[str, list[AnyResource]]] = {}
    for resource in SERVED:
        by_group.setdefault(resource.group, {}).setdefault(resource.version, []).append(resource)
    return {
        group: {version: sorted(kinds, key=lambda resource: resource.plural) for version, kinds in versions.items()}
        for group, versions in by_group.items()
    }


def _names() -> tuple[str, ...]:
    """Return the names of all groups: the core first, and the groups of OpenShift last.

    kubectl resolves the name of a resource without a group to the first group that has it: `roles` are those of
    rbac.authorization.k8s.io, not of authorization.openshift.io.
    """
    return tuple(sorted({*_groups(), *VIRTUAL_RESOURCES}, key=lambda name: (name.endswith(".openshift.io"), name)))


def _subresources(resource: AnyResource) -> list[tuple[str, Document, list[str]]]:
    own = (resource.group, resource.version, resource.kind)
    with_body = (
        (subresource, dict(zip(("group", "version", "kind"), subresource.body_kind or own, strict=True)))
        for subresource in resource.all_subresources
    )
    return [(subresource.name, body, list(subresource.verbs)) for subresource, body in with_body]


# --- unaggregated discovery -------------------------------------------------------------------------------------------


def versions() -> Document:
    """Return the response to GET /api."""
    return {"kind": "APIVersions", "versions": ["v1"], "serverAddressByClientCIDRs": []}


def _group(name: str, versions: Iterable[str]) -> Document:
    known = [{"groupVersion": f"{name}/{version}", "version": version} for version in versions]
    return {"name": name, "versions": known, "preferredVersion": known[0]}


def groups() -> Document:
    """Return the response to GET /apis."""
    known = _groups()
    listed = [_group(name, known.get(name, ("v1",))) for name in _names() if name]
    return {"kind": "APIGroupList", "apiVersion": "v1", "groups": listed}


def group(name: str) -> Document | None:
    """Return the response to GET /apis/GROUP."""
    entry = next((group_entry for group_entry in groups()["groups"] if group_entry["name"] == name), None)
    return None if entry is None else {"kind": "APIGroup", "apiVersion": "v1", **entry}


def resources(group_name: str, version: str) -> Document | None:
    """Return the response to GET /api/v1 and /apis/GROUP/VERSION."""
    kinds = _groups().get(group_name, {}).get(version, [])
    virtual = [_virtual_entry(resource) for resource in VIRTUAL_RESOURCES.get(group_name, ()) if version == "v1"]
    entries = [*virtual, *(entry for resource in kinds for entry in _resource_entries(resource))]
    if not entries:
        return None
    full = f"{group_name}/{version}" if group_name else version
    return {"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": full, "resources": entries}


def _resource_entries(resource: AnyResource) -> list[Document]:
    entry: Document = {
        "name": resource.plural,
        "singularName": resource.singular,
        "namespaced": resource.namespaced,
        "kind": resource.kind,
        "verbs": list(resource.verbs),
    }
    if resource.short_names:
        entry["shortNames"] = list(resource.short_names)
    if resource.categories:
        entry["categories"] = list(resource.categories)
    entries = [entry]
    for name, body, verbs in _subresources(resource):
        entries.append(
            {
                "name": f"{resource.plural}/{name}",
                "singularName": "",
                "namespaced": resource.namespaced,
                "kind": body["kind"],
                "verbs": verbs,
                **({} if body["group"] == resource.group else {"group": body["group"], "version": body["version"]}),
            }
        )
    return entries


def _virtual_entry(virtual: VirtualResource) -> Document:
    return {
        "name": virtual.plural,
        "singularName": virtual.kind.lower(),
        "namespaced": virtual.namespaced,
        "kind": virtual.kind,
        "verbs": list(virtual.verbs),
    }


# --- aggregated discovery ---------------------------------------------------------------------------------------------


def aggregated_version(accept: str) -> str:
    """Return the version of aggregated discovery (v2, v2beta1) that the client prefers; empty if none."""
    for entry in parse_accept(accept):
        parameters = entry.parameters
        if entry.type != "application/json":
            continue
        if parameters.get("as") != "APIGroupDiscoveryList":
            return ""
        if parameters.get("g") == "apidiscovery.k8s.io" and parameters.get("v") in ("v2", "v2beta1"):
            return parameters["v"]
    return ""


def aggregated(core: bool, discovery_version: str) -> Document:
    """Return the aggregated response to GET /api (`core`) or GET /apis."""
    items, known = [], _groups()
    for name in _names():
        if core == (name == ""):
            by_version = known.get(name, {}).items()
            entries = {
                version: [_aggregated_entry(resource) for resource in resources] for version, resources in by_version
            }
            if name in VIRTUAL_RESOURCES:
                entries["v1"] = [
                    *(_aggregated_virtual(name, virtual) for virtual in VIRTUAL_RESOURCES[name]),
                    *entries.get("v1", []),
                ]
            items.append(_aggregated_group(name, entries))
    head = {"kind": "APIGroupDiscoveryList", "apiVersion": f"apidiscovery.k8s.io/{discovery_version}"}
    return {**head, "metadata": {}, "items": items}


def _aggregated_group(name: str, versions: Mapping[str, list[Document]]) -> Document:
    metadata = {"name": name, "creationTimestamp": None} if name else {"creationTimestamp": None}
    entries = [
        {"version": version, "resources": resources, "freshness": "Current"} for version, resources in versions.items()
    ]
    return {"metadata": metadata, "versions": entries}


def _aggregated_entry(resource: AnyResource) -> Document:
    entry: Document = {
        "resource": resource.plural,
        "responseKind": {"group": resource.group, "version": resource.version, "kind": resource.kind},
        "scope": "Namespaced" if resource.namespaced else "Cluster",
        "singularResource": resource.singular,
        "verbs": list(resource.verbs),
    }
    if resource.short_names:
        entry["shortNames"] = list(resource.short_names)
    if resource.categories:
        entry["categories"] = list(resource.categories)
    subresources = [
        {"subresource": name, "responseKind": body, "verbs": verbs} for name, body, verbs in _subresources(resource)
    ]
    return entry | ({"subresources": subresources} if subresources else {})


def _aggregated_virtual(group_name: str, virtual: VirtualResource) -> Document:
    return {
        "resource": virtual.plural,
        "responseKind": {"group": group_name, "version": "v1", "kind": virtual.kind},
        "scope": "Namespaced" if virtual.namespaced else "Cluster",
        "singularResource": virtual.kind.lower(),
        "verbs": list(virtual.verbs),
    }
