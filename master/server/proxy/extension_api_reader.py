"""Reads aggregated APIs for controllers of the master: metrics of autoscalers, contents of namespaces. Driver."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from api.meta.types import Status
from master import errors
from master.auth.attributes import AUTHENTICATED, SYSTEM_MASTERS, User, service_account_groups
from master.registry.aggregated_apis import AggregatedAPIs
from master.server.proxy.backend_requests import request_backend
from master.server.proxy.extension_client import ExtensionClient
from master.server.proxy.kubelet_client import Unreachable
from reconcile.errors import NotReady

MAX_RESPONSE_BYTES = 8 << 20

AUTOSCALER = User(
    "system:serviceaccount:kube-system:horizontal-pod-autoscaler",
    frozenset((AUTHENTICATED, *service_account_groups("kube-system"))),
)
"""Who reads metrics: the user to whom charts of metrics servers give the permission."""

NAMESPACE_CONTROLLER = User(
    "system:serviceaccount:kube-system:namespace-controller",
    frozenset((AUTHENTICATED, SYSTEM_MASTERS, *service_account_groups("kube-system"))),
)
"""Who deletes the contents of namespaces: a user to whom every server allows it."""


class ExtensionAPIReader:
    """A client of aggregated APIs that are available. It has the name of a user, and its own certificate."""

    def __init__(self, apis: AggregatedAPIs, extensions: ExtensionClient, client_certificate: Path, user: User) -> None:
        self._apis = apis
        self._extensions = extensions
        self._certificate = client_certificate
        self._user = user

    def served_version(self, group: str, versions: Sequence[str]) -> str:
        """Return the first of these versions of a group that another server serves; empty if none is."""
        found = ((version, self._apis.at(group, version)) for version in versions)
        return next((version for version, backend in found if backend is not None), "")

    async def get(self, path: str, parameters: Mapping[str, str]) -> bytes:
        """Return the body of the response to a GET. Raises StatusError for an error status, NotReady without one.

        `path` begins with /apis/ and is quoted; `parameters` are not. The caller limits the time.
        """
        return await self.request("GET", path, parameters)

    async def request(self, method: str, path: str, parameters: Mapping[str, str]) -> bytes:
        """Return the body of the response to a request without a body, as `get`."""
        _, _, group, version, *_ = (*path.split("/"), "", "")
        backend = self._apis.at(group, version)
        if backend is None:
            raise NotReady(f"{path}: no other server serves it")
        if not self._apis.is_available(backend):
            raise errors.service_unavailable("the server is currently unable to handle the request")
        try:
            response = await request_backend(
                self._extensions,
                self._certificate,
                backend,
                self._user,
                method,
                path,
                parameters,
                max_bytes=MAX_RESPONSE_BYTES,
            )
        except Unreachable as error:
            raise NotReady(f"error trying to reach service: {error}") from error
        if not 200 <= response.status < 300:
            raise errors.status_error(response.status, *_reason(response.body))
        return response.body


def _reason(body: bytes) -> tuple[str, str]:
    """Return reason and message of an error response."""
    try:
        status = msgspec.json.decode(body, type=Status)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return "", body[:200].decode(errors="replace").strip() or "the server responded with an error"
    return status.reason[:200], status.message[:1000] or "the server responded with an error"
