"""Reads objects of a master for tests that poll them."""

from __future__ import annotations

import http.client
import json
import ssl
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from api.client.kubeconfig import Kubeconfig

SECONDS = 30.0


class ApiReader:
    """Reads documents with the credentials of a kubeconfig.

    Tests that wait for a state read it again and again: a request takes some milliseconds of processor time, a kubectl
    100.
    """

    def __init__(self, kubeconfig: Path) -> None:
        self._path = kubeconfig
        self._version = 0
        self._server = ""
        self._context: ssl.SSLContext | None = None

    def get(self, path: str) -> dict[str, Any]:
        """Return the document at a path of the API, empty if there is none. Raises AssertionError for other errors."""
        try:
            self._load()
            address = urlsplit(self._server)
            connection = http.client.HTTPSConnection(
                address.hostname or "", address.port, timeout=SECONDS, context=self._context
            )
            try:
                connection.request("GET", path)
                response = connection.getresponse()
                document: dict[str, Any] = json.loads(response.read())
            finally:
                connection.close()
        except (OSError, http.client.HTTPException) as error:
            raise AssertionError(f"GET {path}: {error!r}") from error
        if response.status == http.client.NOT_FOUND:
            return {}
        assert response.status == http.client.OK, f"GET {path}: {document}"
        return document

    def _load(self) -> None:
        """Read the kubeconfig, unless it is the file that was read last."""
        version = self._path.stat().st_mtime_ns
        if version != self._version:
            kubeconfig = Kubeconfig.load(self._path)
            self._server, self._context, self._version = kubeconfig.server, kubeconfig.ssl_context(), version
