"""Non-resource paths: health, version, metrics, discovery and OpenAPI."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
from aiohttp import web

from master import errors
from master.registry.aggregated_apis import AggregatedVersion
from master.resources.scheme import Scheme
from master.server import discovery, openapi
from master.server.openapi import OpenAPIDocuments
from reconcile.exposition import format_families, format_labels, gauge
from reconcile.health_checks import PING, HealthCheck, report, report_of

HEALTH_PATHS = ("/healthz", "/livez", "/readyz")
ALIVE = (PING,)
"""The checks of /livez and /healthz."""


async def handle(
    http: web.Request,
    scheme: Scheme,
    documents: OpenAPIDocuments,
    ready: Sequence[HealthCheck],
    server_metrics: Callable[[], str],
    remote: Sequence[AggregatedVersion] = (),
) -> web.Response:
    """Return the response to a GET of a non-resource path. `remote` are the API versions of other servers.

    Raises StatusError.
    """
    path = http.path.rstrip("/") or "/"
    if path in ("/metrics", "/metrics/slis"):
        # The library takes 1 MB of memory, so it is imported with the first request for metrics.
        from prometheus_client import CONTENT_TYPE_LATEST, generate_latest  # noqa: PLC0415

        text = generate_latest().decode() + server_metrics() if path == "/metrics" else slis((*ALIVE, *ready))
        return web.Response(body=text.encode(), headers={"Content-Type": CONTENT_TYPE_LATEST})
    if path.startswith(HEALTH_PATHS):
        return _health(http, path, ready)
    if path.startswith("/openapi/"):
        return await _openapi(http, path, documents, remote)
    if path in ("/", "/version"):
        return json_response(discovery.VERSION if path == "/version" else {"paths": discovery.PATHS})
    return _discovery(http, scheme, path, remote)


async def _openapi(
    http: web.Request, path: str, documents: OpenAPIDocuments, remote: Sequence[AggregatedVersion]
) -> web.Response:
    if path == "/openapi/v2":
        if "protobuf" in http.headers.get("Accept", ""):
            return web.Response(body=openapi.v2(), headers={"Content-Type": openapi.V2_TYPE})
        return cached_bytes(http, await documents.v2_json(), "application/json")
    if path == "/openapi/v3":
        return with_etag(http, await documents.index(remote), "application/json")
    return cached_bytes(http, await documents.content(path.removeprefix("/openapi/v3/")), "application/json")


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


def slis(ready: Sequence[HealthCheck]) -> str:
    """Return the states of the checks of each endpoint under the name of kube-apiserver, in the text of Prometheus."""
    checks = [
        (check, endpoint) for endpoint, of in (("healthz", ALIVE), ("livez", ALIVE), ("readyz", ready)) for check in of
    ]
    states = {format_labels(name=check.name, type=endpoint): 0 if check.problem() else 1 for check, endpoint in checks}
    return format_families((gauge("kubernetes_healthcheck", "Whether a health check succeeds.", states),))


def _discovery(http: web.Request, scheme: Scheme, path: str, remote: Sequence[AggregatedVersion]) -> web.Response:
    aggregated_version = discovery.aggregated_version(http.headers.get("Accept", ""))
    if aggregated_version and path in ("/api", "/apis"):
        content_type = f"application/json;g=apidiscovery.k8s.io;v={aggregated_version};as=APIGroupDiscoveryList"
        return with_etag(http, discovery.aggregated(path == "/api", aggregated_version, scheme, remote), content_type)
    match path.split("/")[1:]:
        case ["api"]:
            document: dict[str, Any] | None = discovery.versions()
        case ["apis"]:
            document = discovery.groups(scheme, remote)
        case ["api", version]:
            document = discovery.resources("", version, scheme)
        case ["apis", group]:
            document = discovery.group(group, scheme, remote)
        case ["apis", group, version]:
            document = discovery.resources(group, version, scheme)
        case _:
            document = None
    return with_etag(http, document, "application/json")


def json_response(document: object, code: int = 200) -> web.Response:
    """Return a response with the document as JSON."""
    return web.Response(status=code, body=msgspec.json.encode(document), content_type="application/json")


def with_etag(http: web.Request, document: object | None, content_type: str) -> web.Response:
    """Return the JSON document with an ETag; 304 if the client has it."""
    return cached_bytes(http, None if document is None else msgspec.json.encode(document), content_type)


def cached_bytes(http: web.Request, body: bytes | None, content_type: str) -> web.Response:
    """Return a response with an ETag; 304 if the client has this version. Raises NotFound if there is no body."""
    if body is None:
        raise errors.path_not_found()
    tag = f'"{hashlib.sha256(body).hexdigest()[:32].upper()}"'
    headers = {"ETag": tag, "Vary": "Accept", "Cache-Control": "public, max-age=0", "Content-Type": content_type}
    if http.headers.get("If-None-Match") == tag:
        return web.Response(status=304, headers=headers)
    return web.Response(body=body, headers=headers)
