"""Discovery: API groups, versions and resources, as unaggregated and as aggregated documents. Pure."""

from __future__ import annotations

import importlib.metadata
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

import msgspec

from master.apiextensions.definitions import storage_version_hash, version_order
from master.registry.aggregated_apis import AggregatedVersion
from master.resources.api_services import local_group_versions
from master.resources.resource import AnyResource
from master.resources.scheme import BUILTIN_SCHEME, Scheme
from master.resources.virtual import VIRTUAL_RESOURCES, VirtualResource
from master.serialization.negotiation import parse_accept

MASTER_VERSION = f"v{importlib.metadata.version('podlane')}"
"""The version of Podlane."""

VERSION = {
    "major": "1",
    "minor": "36",
    "gitVersion": "v1.36.0+podlane",
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
    "/metrics/slis",
    "/openapi/v3",
    "/openid/v1/jwks",
    "/readyz",
    "/readyz/controllers",
    "/readyz/ping",
    "/readyz/storage",
    "/version",
]

Document = dict[str, Any]


def _groups(scheme: Scheme) -> dict[str, dict[str, list[AnyResource]]]:
    """Return group → version → resources.

    The preferred version of a group is its first: that of the group's first resource, or the newest of a group of
    custom resources.
    """
    by_group: dict[str, dict[str, list[AnyResource]]] = {}
    for resource in scheme.served:
        by_group.setdefault(resource.group, {}).setdefault(resource.version, []).append(resource)
    return {
        group: {version: sorted(versions[version], key=lambda resource: resource.plural) for version in order}
        for group, versions in by_group.items()
        for order in (_version_names(versions),)
    }


def _version_names(versions: Mapping[str, list[AnyResource]]) -> list[str]:
    is_custom = all(resource.documents is not None for kinds in versions.values() for resource in kinds)
    return sorted(versions, key=version_order) if is_custom else list(versions)


def _names(scheme: Scheme, remote: Sequence[AggregatedVersion]) -> tuple[str, ...]:
    """Return the names of all groups: the core first, then the groups of OpenShift, and those of custom resources and
    of other servers (`remote`) last, by their priorities.

    kubectl resolves the name of a resource without a group to the first group that has it: `roles` are those of
    rbac.authorization.k8s.io, not of authorization.openshift.io.
    """
    known = _groups(scheme)
    is_custom = {
        group: all(resource.documents is not None for kinds in versions.values() for resource in kinds)
        for group, versions in known.items()
    }
    priorities: dict[str, int] = {}
    for version in remote:
        if is_custom.get(version.group, version.group not in VIRTUAL_RESOURCES):
            priorities[version.group] = max(priorities.get(version.group, 0), version.group_priority)

    def order(name: str) -> tuple[bool, int, bool, str]:
        is_extension = name in priorities or is_custom.get(name, False)
        priority = priorities.get(name, CUSTOM_GROUP_PRIORITY) if is_extension else 0
        return is_extension, -priority, name.endswith(".openshift.io"), name

    return tuple(sorted({*known, *VIRTUAL_RESOURCES, *priorities}, key=order))


CUSTOM_GROUP_PRIORITY, CUSTOM_VERSION_PRIORITY = 1000, 100
"""Priorities of the versions of custom resources among those of other servers."""


def _with_remote(name: str, own: Sequence[str], remote: Sequence[AggregatedVersion]) -> list[str]:
    """Return the versions of a group, the preferred one first. `own` are those of this server, in their order."""
    priorities = {version.version: version.version_priority for version in remote if version.group == name}
    if not priorities:
        return list(own)
    if any((name, version) in local_group_versions() for version in own):
        return [*own, *sorted(priorities.keys() - set(own), key=lambda version: (-priorities[version], version))]
    return sorted(
        {*own, *priorities},
        key=lambda version: (-priorities.get(version, CUSTOM_VERSION_PRIORITY), version_order(version)),
    )


WRITING_VERBS = ("create", "patch", "update")


def _verbs(resource: AnyResource) -> list[str]:
    """Return the verbs that clients see. Those of a kind that is being deleted create nothing."""
    is_ending = resource.documents is not None and resource.documents.is_terminating
    return [verb for verb in resource.verbs if not (is_ending and verb in WRITING_VERBS)]


def _storage_version_hash(resource: AnyResource) -> Document:
    if resource.documents is None:
        return {}
    stored = resource.stored_resource
    return {"storageVersionHash": storage_version_hash(stored.group, stored.version, stored.kind)}


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


def groups(scheme: Scheme = BUILTIN_SCHEME, remote: Sequence[AggregatedVersion] = ()) -> Document:
    """Return the response to GET /apis. `remote` are the versions of other servers."""
    known = _groups(scheme)
    listed = [
        _group(name, _with_remote(name, _own_versions(name, known), remote)) for name in _names(scheme, remote) if name
    ]
    return {"kind": "APIGroupList", "apiVersion": "v1", "groups": listed}


def _own_versions(name: str, known: Mapping[str, Mapping[str, object]]) -> Sequence[str]:
    return tuple(known.get(name, ("v1",) if name in VIRTUAL_RESOURCES else ()))


def group(name: str, scheme: Scheme = BUILTIN_SCHEME, remote: Sequence[AggregatedVersion] = ()) -> Document | None:
    """Return the response to GET /apis/GROUP."""
    listed = groups(scheme, remote)["groups"]
    entry = next((group_entry for group_entry in listed if group_entry["name"] == name), None)
    return None if entry is None else {"kind": "APIGroup", "apiVersion": "v1", **entry}


def resources(group_name: str, version: str, scheme: Scheme = BUILTIN_SCHEME) -> Document | None:
    """Return the response to GET /api/v1 and /apis/GROUP/VERSION."""
    kinds = _groups(scheme).get(group_name, {}).get(version, [])
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
        "verbs": _verbs(resource),
        **_storage_version_hash(resource),
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


def aggregated(
    core: bool,
    discovery_version: str,
    scheme: Scheme = BUILTIN_SCHEME,
    remote: Sequence[AggregatedVersion] = (),
) -> Document:
    """Return the aggregated response to GET /api (`core`) or GET /apis."""
    items, known = [], _groups(scheme)
    for name in _names(scheme, remote):
        if core == (name == ""):
            by_version = known.get(name, {}).items()
            entries: dict[str, object] = {
                version: [_aggregated_entry(resource) for resource in resources] for version, resources in by_version
            }
            if name in VIRTUAL_RESOURCES:
                entries["v1"] = [
                    *(_aggregated_virtual(name, virtual) for virtual in VIRTUAL_RESOURCES[name]),
                    *(_aggregated_entry(resource) for resource in known.get(name, {}).get("v1", ())),
                ]
            order = _with_remote(name, tuple(entries), remote)
            others = {version.version: version for version in remote if version.group == name}
            entries |= {version: msgspec.Raw(other.resources) for version, other in others.items()}
            stale = {version for version, other in others.items() if not other.is_current}
            items.append(_aggregated_group(name, {version: entries[version] for version in order}, stale))
    head = {"kind": "APIGroupDiscoveryList", "apiVersion": f"apidiscovery.k8s.io/{discovery_version}"}
    return {**head, "metadata": {}, "items": items}


def _aggregated_group(name: str, versions: Mapping[str, object], stale: Collection[str]) -> Document:
    metadata = {"name": name, "creationTimestamp": None} if name else {"creationTimestamp": None}
    entries = [
        {"version": version, "resources": resources, "freshness": "Stale" if version in stale else "Current"}
        for version, resources in versions.items()
    ]
    return {"metadata": metadata, "versions": entries}


def _aggregated_entry(resource: AnyResource) -> Document:
    entry: Document = {
        "resource": resource.plural,
        "responseKind": {"group": resource.group, "version": resource.version, "kind": resource.kind},
        "scope": "Namespaced" if resource.namespaced else "Cluster",
        "singularResource": resource.singular,
        "verbs": _verbs(resource),
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
