"""A client of a master for tests that do not wait for several things at once."""

from __future__ import annotations

import http.client
import json
import ssl
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import yaml

from api.client.kubeconfig import Kubeconfig
from master.resources.scheme import SERVED

SECONDS = 30.0

RESOURCES = {(resource.type.API_VERSION, resource.kind): resource for resource in SERVED}
APPLY_QUERY = "fieldManager=test&force=true&fieldValidation=Strict"


class SyncClient:
    """Sends requests with the credentials of a kubeconfig.

    Tests read a state again and again, and create what they test with: a request takes some milliseconds of processor
    time, a kubectl 100.
    """

    def __init__(self, kubeconfig: Path) -> None:
        self._path = kubeconfig
        self._version = 0
        self._server = ""
        self._context: ssl.SSLContext | None = None

    def get(self, path: str) -> dict[str, Any]:
        """Return the document at a path of the API, empty if there is none. Raises AssertionError for other errors."""
        return self._request("GET", path)

    def apply(self, manifest: str) -> None:
        """Apply the objects of a manifest on the server. Raises AssertionError if one is not accepted."""
        for document in yaml.safe_load_all(manifest):
            if document is not None:
                self._request("PATCH", f"{object_path(document)}?{APPLY_QUERY}", document)

    def delete(self, path: str) -> None:
        """Delete an object, or all of a collection, without waiting for its end; nothing if there is none."""
        self._request("DELETE", path)

    def _request(self, method: str, path: str, document: Any = None) -> dict[str, Any]:
        body = None if document is None else json.dumps(document)
        headers = {} if document is None else {"Content-Type": "application/apply-patch+yaml"}
        try:
            self._load()
            address = urlsplit(self._server)
            connection = http.client.HTTPSConnection(
                address.hostname or "", address.port, timeout=SECONDS, context=self._context
            )
            try:
                connection.request(method, path, body, headers)
                response = connection.getresponse()
                answer: dict[str, Any] = json.loads(response.read())
            finally:
                connection.close()
        except (OSError, http.client.HTTPException) as error:
            raise AssertionError(f"{method} {path}: {error!r}") from error
        if response.status == http.client.NOT_FOUND and method != "PATCH":
            return {}
        assert response.status < http.client.MULTIPLE_CHOICES, f"{method} {path}: {answer}"
        return answer

    def _load(self) -> None:
        """Read the kubeconfig, unless it is the file that was read last."""
        version = self._path.stat().st_mtime_ns
        if version != self._version:
            kubeconfig = Kubeconfig.load(self._path)
            self._server, self._context, self._version = kubeconfig.server, kubeconfig.ssl_context(), version


def object_path(document: dict[str, Any]) -> str:
    """Return the path of an object, by default in the namespace `default`."""
    version, metadata = document["apiVersion"], document["metadata"]
    resource = RESOURCES[version, document["kind"]]
    prefix = f"/apis/{version}" if "/" in version else f"/api/{version}"
    namespace = f"namespaces/{metadata.get('namespace', 'default')}/" if resource.namespaced else ""
    return f"{prefix}/{namespace}{resource.plural}/{metadata['name']}"
