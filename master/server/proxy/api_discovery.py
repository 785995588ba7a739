"""What an aggregated API server says about its resources, as the master keeps it. Pure. Responses are hostile input."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from master.registry.aggregated_apis import Backend, Discovered, FoundResource

MAX_RESOURCES = 20_000
MAX_NAME = 512
"""Characters of a name in discovery."""


class InvalidDiscovery(Exception):
    """A response that says nothing usable."""


class APIResource(msgspec.Struct, rename="camel", frozen=True, gc=False):
    """A resource in a response to GET /apis/GROUP/VERSION. `name` may be that of a subresource, as pods/log."""

    name: str
    kind: str
    namespaced: bool = False
    singular_name: str = ""
    verbs: tuple[str, ...] = ()
    short_names: tuple[str, ...] | None = None
    categories: tuple[str, ...] | None = None
    group: str = ""
    version: str = ""


class APIResourceList(msgspec.Struct, rename="camel", frozen=True, gc=False):
    """The response to GET /apis/GROUP/VERSION."""

    resources: tuple[APIResource, ...] | None
    group_version: str = ""


class _OpenAPIPath(msgspec.Struct, frozen=True):
    server_relative_url: str = msgspec.field(name="serverRelativeURL", default="")


class _OpenAPIIndex(msgspec.Struct, frozen=True):
    paths: Mapping[str, _OpenAPIPath] = {}


def digest(body: bytes) -> str:
    """Return a text that is the same for the same bytes."""
    return hashlib.sha256(body).hexdigest()[:32].upper()


def discovered(backend: Backend, body: bytes, openapi_hash: str = "") -> Discovered:
    """Return what the response to GET /apis/GROUP/VERSION says. Raises InvalidDiscovery."""
    try:
        found = msgspec.json.decode(body, type=APIResourceList)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidDiscovery(f"not an APIResourceList: {error}") from error
    if found.group_version not in ("", f"{backend.group}/{backend.version}"):
        raise InvalidDiscovery(f"the list is of {found.group_version[:MAX_NAME]!r}")
    resources = found.resources or ()
    if len(resources) > MAX_RESOURCES:
        raise InvalidDiscovery(f"more than {MAX_RESOURCES} resources")
    usable = [resource for resource in resources if 0 < len(resource.name) <= MAX_NAME]
    deletable = tuple(
        FoundResource(resource.name, resource.kind, resource.verbs)
        for resource in usable
        if resource.namespaced and "/" not in resource.name and {"delete", "list"} <= set(resource.verbs)
    )
    return Discovered(digest(body), msgspec.json.encode(aggregated_entries(backend, usable)), deletable, openapi_hash)


def aggregated_entries(backend: Backend, resources: Iterable[APIResource]) -> list[dict[str, Any]]:
    """Return the entries of aggregated discovery. A subresource without its resource gets an entry that names it."""
    entries: dict[str, dict[str, Any]] = {}
    parts: list[tuple[APIResource, str, str]] = []
    for resource in resources:
        plural, slash, subresource = resource.name.partition("/")
        if slash:
            parts.append((resource, plural, subresource))
            continue
        entry: dict[str, Any] = {
            "resource": plural,
            "responseKind": _kind(backend, resource),
            "scope": _scope(resource),
            "singularResource": resource.singular_name,
            "verbs": resource.verbs,
        }
        if resource.short_names:
            entry["shortNames"] = resource.short_names
        if resource.categories:
            entry["categories"] = resource.categories
        entries[plural] = entry
    for resource, plural, subresource in parts:
        entry = entries.setdefault(
            plural, {"resource": plural, "scope": _scope(resource), "singularResource": "", "verbs": ()}
        )
        entry.setdefault("subresources", []).append(
            {"subresource": subresource, "responseKind": _kind(backend, resource), "verbs": resource.verbs}
        )
    return list(entries.values())


def _scope(resource: APIResource) -> str:
    return "Namespaced" if resource.namespaced else "Cluster"


def _kind(backend: Backend, resource: APIResource) -> dict[str, str]:
    own = resource.group or resource.version
    return {
        "group": resource.group if own else backend.group,
        "version": resource.version if own else backend.version,
        "kind": resource.kind,
    }


def openapi_hash(backend: Backend, index: bytes) -> str:
    """Return the hash of the document of a version in the response to GET /openapi/v3; empty without one."""
    try:
        paths = msgspec.json.decode(index, type=_OpenAPIIndex).paths
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return ""
    found = paths.get(backend.path.lstrip("/"))
    # The URL of a server is not taken over: it could be that of another document.
    return "" if found is None else digest(found.server_relative_url.encode("utf-8", "replace"))
