"""Resolves the path of a URL: resource, review, project request, proxy target, or no resource. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import unquote

from api.meta.types import Object
from master.registry.request import METHOD_VERBS, request_verb
from master.request_info import RequestInfo
from master.resources.namespaces import PROJECT_REQUESTS_PATH
from master.resources.pods import PODS
from master.resources.scheme import BY_PATH
from master.resources.virtual import REVIEW_KINDS


@dataclass(frozen=True, slots=True)
class ResourceRoute:
    """Objects of a resource. `verb` is empty for a method that has none."""

    verb: str
    info: RequestInfo


@dataclass(frozen=True, slots=True)
class ProxyRoute:
    """A subresource that is proxied to a node or a pod.

    `path` is the part of the request path behind `proxy`, with its leading slash, percent-encoded as received.
    """

    verb: str
    info: RequestInfo
    path: str = ""


@dataclass(frozen=True, slots=True)
class ReviewRoute:
    """A review, which gets a response and is not stored."""

    kind: type[Object]
    namespace: str


@dataclass(frozen=True, slots=True)
class ProjectRequestRoute:
    """The resource projectrequests, which creates projects and stores nothing of its own."""


@dataclass(frozen=True, slots=True)
class NonResourceRoute:
    """A path that names no resource: health, version, metrics, discovery, OpenAPI, signing keys of tokens."""

    verb: str
    path: str


Route = ResourceRoute | ProxyRoute | ReviewRoute | ProjectRequestRoute | NonResourceRoute


def resolve(method: str, path: str, raw_path: str, query: Mapping[str, str]) -> Route:
    """Return the route of a request. `raw_path` is the percent-encoded path, `path` the decoded one.

    Raises BadRequest if the parameter `watch` is invalid.
    """
    proxy = resolve_proxy(raw_path)
    if proxy is not None:
        info, rest = proxy
        return ProxyRoute(METHOD_VERBS.get(method, ""), info, rest)
    info_of_path = resolve_path(path)
    if info_of_path is not None:
        return ResourceRoute(request_verb(method, info_of_path, query), info_of_path)
    review = resolve_review(path)
    if review is not None:
        return ReviewRoute(*review)
    if path == PROJECT_REQUESTS_PATH:
        return ProjectRequestRoute()
    return NonResourceRoute("get" if method == "HEAD" else method.lower(), path)


def resolve_path(path: str) -> RequestInfo | None:
    """Return the resource of a path; None if it is not the path of a stored resource."""
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
        namespaced_resource = BY_PATH[(group, version, rest[2])]
        if namespaced_resource.namespaced:
            namespace, rest = rest[1], rest[2:]
    resource = BY_PATH.get((group, version, rest[0]))
    if resource is None or len(rest) > 3 or "" in parts[1:]:
        return None
    name = rest[1] if len(rest) > 1 else ""
    if resource.namespaced and name and not namespace:
        return None
    return RequestInfo(resource, namespace, name, rest[2] if len(rest) > 2 else "")


def resolve_review(path: str) -> tuple[type[Object], str] | None:
    """Return the kind of review of a path and its namespace; None for other paths."""
    match path.strip("/").split("/"):
        case ["apis", group, "v1", plural]:
            namespace = ""
        case ["apis", group, "v1", "namespaces", namespace, plural] if namespace:
            pass
        case _:
            return None
    kind = REVIEW_KINDS.get((group, plural))
    return (kind, namespace) if kind is not None and bool(namespace) == kind.NAMESPACED else None


PROXY = "proxy"


def resolve_proxy(raw_path: str) -> tuple[RequestInfo, str] | None:
    """Return a proxied subresource and the rest of the path; None for other paths."""
    match raw_path.split("/"):
        case ["", "api", "v1", "namespaces", namespace, plural, name, subresource, *rest] if namespace and name:
            resource = BY_PATH.get(("", "v1", plural))
            scope = unquote(namespace)
        case ["", "api", "v1", plural, name, subresource, *rest] if name:
            resource, scope = BY_PATH.get(("", "v1", plural)), ""
        case _:
            return None
    if resource is None or resource.namespaced != bool(scope):
        return None
    known_subresource = resource.subresource(subresource)
    if known_subresource is None or not known_subresource.proxied or (rest not in ([], [""]) and subresource != PROXY):
        return None
    return RequestInfo(resource, scope, unquote(name), subresource), "/" + "/".join(rest) if rest else ""
