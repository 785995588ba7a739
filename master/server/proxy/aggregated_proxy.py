"""Requests for API versions that other servers serve: sent to them with the name of the user. Driver.

The server believes the user that headers name, because the master shows a certificate of the front-proxy authority. So
what a client has written into such headers is removed, and its credentials are not sent.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from urllib.parse import quote

from aiohttp import web
from multidict import CIMultiDict

from master import errors
from master.auth.attributes import User
from master.registry.aggregated_apis import AggregatedAPIs, Backend
from master.server.auditing import AUDIT_ID_HEADER, RECORD
from master.server.nonresource import cached_bytes
from master.server.proxy import forwarding
from master.server.proxy.api_checks import CHECKER
from master.server.proxy.backend_requests import request_backend
from master.server.proxy.extension_client import ExtensionClient, TLSConfig
from master.server.proxy.forwarding import Forwarder
from master.server.proxy.identity_headers import identity_headers, without_identity
from master.server.proxy.kubelet_client import Unreachable
from master.server.proxy.proxy import PROXY_METHODS

HEADER_SECONDS = 60.0
"""Seconds within which a server must begin to answer."""

OPENAPI_SECONDS, MAX_OPENAPI_BYTES = 10.0, 4 << 20

REDIRECTED = "the backend attempted to redirect this request, which is not permitted"

_UNQUOTED = "/$&+,:;=@-._~"


class AggregatedProxy:
    """The handler of requests for aggregated APIs: `serve` handles one, `end_all` ends all."""

    def __init__(self, apis: AggregatedAPIs, extensions: ExtensionClient, client_certificate: Path) -> None:
        self._apis = apis
        self._extensions = extensions
        self._certificate = client_certificate
        self._forwarder = Forwarder()
        self._documents: dict[str, tuple[tuple[str, str], bytes]] = {}

    def end_all(self) -> None:
        """Close everything that is being forwarded."""
        self._forwarder.end_all()

    async def serve(self, http: web.Request, user: User, backend: Backend) -> web.StreamResponse:
        """Forward an authorized request, and send the response to the client."""
        if http.method not in PROXY_METHODS:
            raise errors.method_not_allowed()
        if not self._apis.is_available(backend):
            return unavailable("service unavailable")
        path = _forwarded_path(http.path)
        upgrade = forwarding.wants_upgrade(http.headers.getall("Connection", []))
        tls = TLSConfig(backend.ca_bundle, backend.is_verified, self._certificate, is_for_users=True)
        query = http.rel_url.raw_query_string
        try:
            async with self._extensions.open(
                backend.service,
                backend.url(path) + (f"?{query}" if query else ""),
                http.method,
                _request_headers(http, user, upgrade=upgrade),
                http.content if http.body_exists else None,
                tls,
                HEADER_SECONDS,
            ) as response:
                if response.status == 101:
                    if not upgrade:
                        return unavailable("error trying to reach service: unexpected upgrade")
                    return await self._forwarder.upgrade(http, response)
                if 300 <= response.status <= 399 and "Location" in response.headers:
                    return web.Response(status=502, text=REDIRECTED)
                back = CIMultiDict(forwarding.response_headers(list(response.headers.items())))
                return await self._forwarder.copy_response(http, response, back)
        except Unreachable as error:
            return unavailable(f"error trying to reach service: {error}")
        except TimeoutError:
            text = "request did not complete within requested timeout - context deadline exceeded"
            raise errors.status_error(504, "Timeout", text) from None

    async def openapi(self, http: web.Request, group_version: str) -> web.Response | None:
        """Respond to a GET of the OpenAPI document of GROUP/VERSION; None if this server has it.

        The document is the same for all users, so the master asks for it in its own name. Documents are kept as long
        as the server names them by the same hash.
        """
        backend = self._apis.at(*group_version.split("/")) if group_version.count("/") == 1 else None
        if backend is None:
            return None
        if http.method not in ("GET", "HEAD"):
            raise errors.method_not_allowed()
        known = self._apis.discovered(backend.name).openapi_hash
        if not known and backend.is_local:
            return None
        if not known or not self._apis.is_available(backend):
            raise errors.path_not_found()
        document = self._documents.get(backend.name)
        if document is None or document[0] != (backend.uid, known):
            body = await self._read_openapi(backend)
            document = self._documents[backend.name] = ((backend.uid, known), body)
            for name in self._documents.keys() - self._apis.backends.keys():
                del self._documents[name]
        return cached_bytes(http, document[1], "application/json")

    async def _read_openapi(self, backend: Backend) -> bytes:
        path = f"/openapi/v3{backend.path}"
        try:
            async with asyncio.timeout(OPENAPI_SECONDS):
                response = await request_backend(
                    self._extensions, self._certificate, backend, CHECKER, "GET", path, max_bytes=MAX_OPENAPI_BYTES
                )
        except (Unreachable, TimeoutError) as error:
            raise errors.service_unavailable(f"OpenAPI of {backend.name}: {error or 'no response'}") from error
        if response.status != 200:
            raise errors.path_not_found()
        return response.body


def unavailable(text: str) -> web.Response:
    """Return the response of kube-apiserver for a server that cannot be reached, which clients know."""
    return web.Response(status=503, text=f"{text}\n", headers={"X-Content-Type-Options": "nosniff"})


def _forwarded_path(path: str) -> str:
    """Return the path as the server gets it: the one that was authorized. Raises BadRequest."""
    parts = path.strip("/").split("/")
    if "." in parts or ".." in parts:
        raise errors.bad_request("the path has the segment '.' or '..'")
    return quote(f"/{path.lstrip('/')}", safe=_UNQUOTED, errors="surrogateescape")


def _request_headers(http: web.Request, user: User, *, upgrade: bool) -> CIMultiDict[str]:
    kept = forwarding.request_headers(list(http.headers.items()), upgrade=upgrade)
    headers = CIMultiDict(without_identity(kept))
    headers.popall("Expect", None)
    forwarded = headers.popall("X-Forwarded-For", [])
    headers["X-Forwarded-For"] = ", ".join([*forwarded, http.remote or "unknown"])
    headers[AUDIT_ID_HEADER] = http[RECORD].audit_id
    headers.extend(identity_headers(user))
    return headers
