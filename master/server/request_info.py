"""The path of a URL, resolved: resource, review, or subresource that a node or pod answers. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from urllib.parse import unquote

from api.meta.types import Object
from master.registry.request import RequestInfo
from master.resources.pods import PODS
from master.resources.scheme import BY_PATH
from master.resources.virtual import REVIEW_KINDS


def resolve_path(path: str) -> RequestInfo | None:
    """What a path names; None if it is not the path of a resource that is kept here."""
    parts = path.strip("/").split("/")
    if parts[0] == "api" and len(parts) > 2:
        group, version, rest = "", parts[1], parts[2:]
    elif parts[0] == "apis" and len(parts) > 3:
        group, version, rest = parts[1], parts[2], parts[3:]
    else:
        return None
    if (group, version, rest[0], rest[2:]) == ("", "v1", "namespaces", ["bindings"]):
        return RequestInfo(PODS, rest[1], subresource="binding")
    namespace = ""
    if rest[0] == "namespaces" and len(rest) > 2 and (group, version, rest[2]) in BY_PATH:
        resource = BY_PATH[(group, version, rest[2])]
        if resource.namespaced:
            namespace, rest = rest[1], rest[2:]
    found = BY_PATH.get((group, version, rest[0]))
    if found is None or len(rest) > 3 or "" in parts[1:]:
        return None
    name = rest[1] if len(rest) > 1 else ""
    if found.namespaced and name and not namespace:
        return None
    return RequestInfo(found, namespace, name, rest[2] if len(rest) > 2 else "")


def resolve_review(path: str) -> tuple[type[Object], str] | None:
    """The kind of review that a path is for, and its namespace; None if it is another path."""
    match path.strip("/").split("/"):
        case ["apis", group, "v1", plural] if (group, plural) in REVIEW_KINDS and not REVIEW_KINDS[
            group, plural
        ].KIND.startswith("Local"):
            return REVIEW_KINDS[group, plural], ""
        case ["apis", group, "v1", "namespaces", name, plural] if (group, plural) in REVIEW_KINDS and name:
            return REVIEW_KINDS[group, plural], name
    return None


def path_verb(method: str) -> str:
    """The verb for a path that names no object."""
    return "get" if method == "HEAD" else method.lower()


PROXY = "proxy"


@dataclass(frozen=True, slots=True)
class ProxyTarget:
    """What leads through: the object that is asked, and of a proxy the rest of the path, raw, from its slash on."""

    info: RequestInfo
    path: str = ""


def resolve_proxy(raw_path: str) -> ProxyTarget | None:
    """What a path as it came leads through to; None if it is another path."""
    match raw_path.split("/"):
        case ["", "api", "v1", "namespaces", namespace, plural, name, subresource, *rest] if namespace and name:
            found = BY_PATH.get(("", "v1", plural))
            scope = unquote(namespace)
        case ["", "api", "v1", plural, name, subresource, *rest] if name:
            found, scope = BY_PATH.get(("", "v1", plural)), ""
        case _:
            return None
    if found is None or found.namespaced != bool(scope):
        return None
    part = found.subresource(subresource)
    if part is None or not part.proxied or (rest not in ([], [""]) and subresource != PROXY):
        return None
    return ProxyTarget(RequestInfo(found, scope, unquote(name), subresource), "/" + "/".join(rest) if rest else "")
