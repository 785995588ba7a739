"""Resolves the path of a URL: resource, review, project request, proxy target, or no resource. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from urllib.parse import unquote

from api.meta.selectors import BadSelector, parse_field_selector
from api.meta.types import Object
from master.auth.attributes import Attributes, PathAttributes
from master.registry.aggregated_apis import Backend
from master.registry.request import METHOD_VERBS, request_verb
from master.request_info import RequestInfo
from master.resources.namespaces import PROJECT_REQUESTS_PATH
from master.resources.pods import PODS
from master.resources.scheme import BUILTIN_SCHEME, BY_PATH, Scheme
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


@dataclass(frozen=True, slots=True)
class AggregatedRoute:
    """A path of an API version that another server serves."""

    backend: Backend
    attributes: Attributes | PathAttributes


Route = ResourceRoute | ProxyRoute | AggregatedRoute | ReviewRoute | ProjectRequestRoute | NonResourceRoute


def resolve(
    method: str,
    path: str,
    raw_path: str,
    query: Mapping[str, str],
    scheme: Scheme = BUILTIN_SCHEME,
    backend_at: Callable[[str, str], Backend | None] | None = None,
) -> Route:
    """Return the route of a request. `raw_path` is the percent-encoded path, `path` the decoded one. `scheme` has the
    resources of this moment, `backend_at` returns the other server for a group and version.

    Raises BadRequest if the parameter `watch` is invalid.
    """
    if backend_at is not None and (aggregated := resolve_aggregated(method, path, query, backend_at)) is not None:
        return aggregated
    proxy = resolve_proxy(raw_path)
    if proxy is not None:
        info, rest = proxy
        return ProxyRoute(METHOD_VERBS.get(method, ""), info, rest)
    info_of_path = resolve_path(path, scheme)
    if info_of_path is not None:
        return ResourceRoute(request_verb(method, info_of_path, query), info_of_path)
    review = resolve_review(path)
    if review is not None:
        return ReviewRoute(*review)
    if path == PROJECT_REQUESTS_PATH:
        return ProjectRequestRoute()
    return NonResourceRoute("get" if method == "HEAD" else method.lower(), path)


def resolve_path(path: str, scheme: Scheme = BUILTIN_SCHEME) -> RequestInfo | None:
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
    if rest[0] == "namespaces" and len(rest) > 2:
        namespaced_resource = scheme.at_path(group, version, rest[2])
        if namespaced_resource is not None and namespaced_resource.namespaced:
            namespace, rest = rest[1], rest[2:]
    resource = scheme.at_path(group, version, rest[0])
    if resource is None or len(rest) > 3 or "" in parts[1:]:
        return None
    name = rest[1] if len(rest) > 1 else ""
    if resource.namespaced and name and not namespace:
        return None
    return RequestInfo(resource, namespace, name, rest[2] if len(rest) > 2 else "")


SPECIAL_VERBS = ("proxy", "watch")
"""Verbs that old clients write in front of the resource in the path."""

NAMESPACE_SUBRESOURCES = ("finalize", "status")


def resolve_aggregated(
    method: str, path: str, query: Mapping[str, str], backend_at: Callable[[str, str], Backend | None]
) -> AggregatedRoute | None:
    """Return the route of a path of an aggregated API; None for other paths."""
    match path.strip("/").split("/"):
        case ["apis", group, version, *rest]:
            backend = backend_at(group, version)
        case _:
            return None
    return (
        None if backend is None else AggregatedRoute(backend, aggregated_attributes(method, path, rest, query, group))
    )


def aggregated_attributes(
    method: str, path: str, parts: list[str], query: Mapping[str, str], group: str
) -> Attributes | PathAttributes:
    """Return what a request for an aggregated API is authorized for, by the path below the version.

    Nothing is known of its resources, so the path is read as kube-apiserver reads those of unknown groups.
    """
    verb = METHOD_VERBS.get(method, method.lower())
    if parts and parts[0] in SPECIAL_VERBS:
        verb, parts = parts[0], parts[1:]
    if not parts:
        return PathAttributes("get" if method == "HEAD" else method.lower(), path)
    namespace = ""
    if parts[0] == "namespaces" and len(parts) > 1:
        namespace = parts[1]
        if len(parts) > 2 and parts[2] not in NAMESPACE_SUBRESOURCES:
            parts = parts[2:]
    resource, name, subresource, *_ = (*parts, "", "")
    if verb == "proxy":
        subresource = ""
    if not name and verb == "get":
        is_watch = query.get("watch", "false").lower() not in ("0", "false")
        verb, name = ("watch" if is_watch else "list"), _selected_name(query)
    elif not name and verb == "delete":
        verb, name = "deletecollection", _selected_name(query)
    elif not name and verb == "watch":
        name = _selected_name(query)
    return Attributes(verb, group, resource, subresource, namespace, name)


def _selected_name(query: Mapping[str, str]) -> str:
    """Return the only name that a field selector selects; empty if it may select others."""
    try:
        selector = parse_field_selector(query.get("fieldSelector", ""), frozenset(("metadata.name",)))
    except BadSelector:
        return ""
    return selector.required_value("metadata.name") or ""


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
