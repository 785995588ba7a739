"""Requests to a master with any method, header and parameter."""

from __future__ import annotations

import asyncio
import http.client
import json
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple, TypeVar
from urllib.parse import urlencode, urlsplit

from api.client.kubeconfig import Kubeconfig

SECONDS = 30.0
MOST_AT_ONCE = 100

T = TypeVar("T")


class RawResponse(NamedTuple):
    """A response. A body that is not JSON is text."""

    code: int
    document: Any


class RawClient:
    """Use as `async with Wire(kubeconfig, **headers) as wire`. Each request has its own thread and connection."""

    def __init__(self, kubeconfig: Path, **headers: str) -> None:
        config = Kubeconfig.load(kubeconfig)
        self._address = urlsplit(config.server).netloc
        self._ssl = config.ssl_context()
        self._headers = headers
        self._threads = ThreadPoolExecutor(MOST_AT_ONCE, thread_name_prefix="wire")

    async def __aenter__(self) -> RawClient:
        return self

    async def __aexit__(self, *_: object) -> None:
        await asyncio.to_thread(self._threads.shutdown)

    async def request(self, method: str, path: str, body: Any = None, kind: str = "", **query: str) -> RawResponse:
        """`body`: bytes as they are, anything else as JSON; `kind` is its media type, if it is not the usual one."""
        usual = "application/merge-patch+json" if method == "PATCH" else "application/json"
        data = body if isinstance(body, bytes) or body is None else json.dumps(body).encode()
        headers = {} if data is None else {"Content-Type": kind or usual}
        return await self._in_thread(self._request, method, path, query, data, headers)

    async def watch(self, path: str, enough: Callable[[list[Any]], bool], **query: str) -> list[Any]:
        """Return the events of a watch, each as the JSON of its line. Stop when `enough` returns True."""
        return await self._in_thread(self._watch, path, {"watch": "true", **query}, enough)

    async def _in_thread(self, work: Callable[..., T], *values: Any) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._threads, work, *values)

    def _request(
        self, method: str, path: str, query: dict[str, str], body: bytes | None, headers: dict[str, str]
    ) -> RawResponse:
        with closing(http.client.HTTPSConnection(self._address, context=self._ssl, timeout=SECONDS)) as connection:
            target = f"{path}?{urlencode(query)}" if query else path
            connection.request(method, target, body, self._headers | headers)
            answer = connection.getresponse()
            text = answer.read().decode()
            is_json = answer.headers.get_content_type() == "application/json"
            return RawResponse(answer.status, json.loads(text) if is_json else text)

    def _watch(self, path: str, query: dict[str, str], enough: Callable[[list[Any]], bool]) -> list[Any]:
        actual: list[Any] = []
        deadline = time.monotonic() + SECONDS
        with closing(http.client.HTTPSConnection(self._address, context=self._ssl, timeout=SECONDS)) as connection:
            connection.request("GET", f"{path}?{urlencode(query)}", headers=self._headers)
            answer = connection.getresponse()
            assert answer.status == 200, (path, answer.read())
            while line := answer.readline():
                actual.append(json.loads(line))
                if enough(actual):
                    return actual
                assert time.monotonic() < deadline, (path, actual)
        raise AssertionError(f"the watch of {path} ended with {actual}")
