"""Non-resource paths: health, version, metrics, discovery and OpenAPI."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
from aiohttp import web

from master import errors
from master.server import discovery, openapi
from reconcile.health_checks import PING, HealthCheck, report, report_of

HEALTH_PATHS = ("/healthz", "/livez", "/readyz")
ALIVE = (PING,)
"""The checks of /livez and /healthz."""


def handle(http: web.Request, ready: Sequence[HealthCheck], server_metrics: Callable[[], str]) -> web.Response:
    """Return the response to a GET of a non-resource path. Raises StatusError."""
    path = http.path.rstrip("/") or "/"
    if path == "/metrics":
        # The library takes 1 MB of memory, so it is imported with the first request for metrics.
        from prometheus_client import CONTENT_TYPE_LATEST, generate_latest  # noqa: PLC0415

        counters = generate_latest() + server_metrics().encode()
        return web.Response(body=counters, headers={"Content-Type": CONTENT_TYPE_LATEST})
    if path.startswith(HEALTH_PATHS):
        return _health(http, path, ready)
    if path.startswith("/openapi/v3"):
        index = path == "/openapi/v3"
        body = msgspec.json.encode(openapi.index()) if index else openapi.content(path.removeprefix("/openapi/v3/"))
        return _cached_bytes(http, body, "application/json")
    if path == "/openapi/v2":
        return web.Response(body=openapi.v2(), headers={"Content-Type": openapi.V2_TYPE})
    if path in ("/", "/version"):
        return json_response(discovery.VERSION if path == "/version" else {"paths": discovery.PATHS})
    return _discovery(http, path)


def _health(http: web.Request, path: str, ready: Sequence[HealthCheck]) -> web.Response:
    """Return the report of all checks, or of the one that the path names, whose reader may also know the reason."""
    endpoint, _, name = path[1:].partition("/")
    if f"/{endpoint}" not in HEALTH_PATHS:
        raise errors.path_not_found()
    checks = (*ALIVE, *ready) if endpoint == "readyz" else ALIVE
    if name:
        check = next((check for check in checks if check.name == name), None)
        if check is None:
            raise errors.path_not_found()
        made = report_of(check)
    else:
        verbose, exclude = "verbose" in http.query, http.query.getall("exclude", [])
        made = report(endpoint, checks, verbose=verbose, exclude=exclude, with_reasons=False)
    headers = {"X-Content-Type-Options": "nosniff"}
    return web.Response(text=made.text, status=500 if made.problems else 200, headers=headers)


def _discovery(http: web.Request, path: str) -> web.Response:
    aggregated_version = discovery.aggregated_version(http.headers.get("Accept", ""))
    if aggregated_version and path in ("/api", "/apis"):
        content_type = f"application/json;g=apidiscovery.k8s.io;v={aggregated_version};as=APIGroupDiscoveryList"
        return with_etag(http, discovery.aggregated(path == "/api", aggregated_version), content_type)
    match path.split("/")[1:]:
        case ["api"]:
            document: dict[str, Any] | None = discovery.versions()
        case ["apis"]:
            document = discovery.groups()
        case ["api", version]:
            document = discovery.resources("", version)
        case ["apis", group]:
            document = discovery.group(group)
        case ["apis", group, version]:
            document = discovery.resources(group, version)
        case _:
            document = None
    return with_etag(http, document, "application/json")


def json_response(document: object, code: int = 200) -> web.Response:
    """Return a response with the document as JSON."""
    return web.Response(status=code, body=msgspec.json.encode(document), content_type="application/json")


def with_etag(http: web.Request, document: object | None, content_type: str) -> web.Response:
    """Return the JSON document with an ETag; 304 if the client has it."""
    return _cached_bytes(http, None if document is None else msgspec.json.encode(document), content_type)


def _cached_bytes(http: web.Request, body: bytes | None, content_type: str) -> web.Response:
    """Return a response with an ETag; 304 if the client has this version. Raises NotFound if there is no body."""
    if body is None:
        raise errors.path_not_found()
    tag = f'"{hashlib.sha256(body).hexdigest()[:32].upper()}"'
    headers = {"ETag": tag, "Vary": "Accept", "Cache-Control": "public, max-age=0", "Content-Type": content_type}
    if http.headers.get("If-None-Match") == tag:
        return web.Response(status=304, headers=headers)
    return web.Response(body=body, headers=headers)
