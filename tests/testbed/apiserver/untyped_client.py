"""A client of the master without types: documents in, documents out."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable
from typing import Any

from api.client.client import ApiError, Client

SECONDS = 20.0


class UntypedClient:
    """Requests of one client; refusals are answers like others."""

    def __init__(self, client: Client) -> None:
        self._client = client

    async def request(self, method: str, path: str, document: Any = None, **query: str) -> Any:
        """Send a request and return the response, which may be an error."""
        kind = "application/merge-patch+json" if method == "PATCH" else "application/json"
        return await self._send(method, path, document, kind, query)

    async def apply(self, path: str, document: Any) -> Any:
        """Return the response to a server-side apply, also if it is an error."""
        return await self._send("PATCH", path, document, "application/apply-patch+yaml", {"fieldManager": "test"})

    async def _send(self, method: str, path: str, document: Any, content_type: str, query: dict[str, str]) -> Any:
        body = None if document is None else json.dumps(document).encode()
        try:
            return json.loads(await self._client.request(method, path, body, content_type, query))
        except ApiError as refused:
            status = refused.status
            return {
                "kind": "Status", "code": status.code, "reason": status.reason, "message": status.message,
                "causes": [cause.message for cause in (status.details.causes if status.details else ())],
            }  # fmt: skip

    async def create(self, path: str, **document: Any) -> Any:
        """Create an object, which must be accepted. Its name may be given alone, as `name`."""
        if "name" in document:
            document["metadata"] = {"name": document.pop("name"), **document.get("metadata", {})}
        answer = await self.request("POST", path, document)
        assert answer["kind"] != "Status" or answer.get("status") == "Success", answer
        return answer

    async def watch(self, path: str, since: str) -> list[Any]:
        """Return all events since a revision."""
        query = {"watch": "true", "resourceVersion": since, "timeoutSeconds": "1"}
        lines = (await self._client.request("GET", path, query=query)).splitlines()
        return [json.loads(line) for line in lines]

    async def wait_until(self, path: str, good: Callable[[Any], bool]) -> Any:
        """Wait until the object at a path is as required, and return it."""
        deadline = time.monotonic() + SECONDS
        while not good(actual := await self.request("GET", path)):
            assert time.monotonic() < deadline, actual
            await asyncio.sleep(0.02)
        return actual
