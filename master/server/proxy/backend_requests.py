"""Requests of the master itself to aggregated API servers, in the name of one of its users. Driver."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from urllib.parse import urlencode

from multidict import CIMultiDict

from master.auth.attributes import User
from master.registry.aggregated_apis import Backend
from master.server.proxy.extension_client import ExtensionClient, ServerResponse, TLSConfig
from master.server.proxy.identity_headers import identity_headers


async def request_backend(
    extensions: ExtensionClient,
    client_certificate: Path,
    backend: Backend,
    user: User,
    method: str,
    path: str,
    parameters: Mapping[str, str] = {},
    *,
    max_bytes: int,
) -> ServerResponse:
    """Send a request without a body, and return the response in JSON. Raises Unreachable.

    `path` is quoted, `parameters` are not. The caller limits the time.
    """
    query = f"?{urlencode(parameters)}" if parameters else ""
    return await extensions.request(
        backend.service,
        backend.url(path) + query,
        method,
        CIMultiDict([*identity_headers(user), ("Accept", "application/json")]),
        None,
        TLSConfig(backend.ca_bundle, backend.is_verified, client_certificate),
        max_bytes=max_bytes,
    )
