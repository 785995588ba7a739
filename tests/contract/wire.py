"""Requests to a master as they go over the wire: any method, any header, any parameter."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from pathlib import Path
from typing import Any, NamedTuple

import aiohttp

from api.kubeconfig import Kubeconfig

SECONDS = 30.0


class Got(NamedTuple):
    """An answer; what is no JSON stands there as text."""

    code: int
    headers: dict[str, str]
    document: Any


class Wire:
    """Use as `async with Wire(kubeconfig) as wire`."""

    def __init__(self, kubeconfig: Path, **headers: str) -> None:
        config = Kubeconfig.load(kubeconfig)
        self._server = config.server
        self._ssl = config.ssl_context()
        self._headers = headers
        self._http: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Wire:
        connector = aiohttp.TCPConnector(ssl=self._ssl, limit=0)
        timeout = aiohttp.ClientTimeout(total=SECONDS)
        self._http = aiohttp.ClientSession(connector=connector, headers=self._headers, timeout=timeout)
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._http is not None:
            await self._http.close()

    async def ask(self, method: str, path: str, body: Any = None, **query: str) -> Got:
        """`body`: bytes as they are, anything else as JSON. The parameter `headers` cannot be asked for."""
        assert self._http is not None
        data = body if isinstance(body, bytes) or body is None else json.dumps(body).encode()
        kind = "application/merge-patch+json" if method == "PATCH" else "application/json"
        headers = {} if data is None or "Content-Type" in self._headers else {"Content-Type": kind}
        async with self._http.request(method, self._server + path, data=data, headers=headers, params=query) as answer:
            text = await answer.text()
            is_json = answer.content_type == "application/json"
            return Got(answer.status, dict(answer.headers), json.loads(text) if is_json else text)

    async def watch(self, path: str, enough: Callable[[list[Any]], bool], **query: str) -> list[Any]:
        """The events of a watch, each as it stands on its line, until they are enough."""
        found: list[Any] = []
        async with asyncio.timeout(SECONDS), aclosing(self._events(path, {"watch": "true", **query})) as events:
            async for event in events:
                found.append(event)
                if enough(found):
                    return found
        raise AssertionError(f"the watch of {path} ended with {found}")

    async def _events(self, path: str, query: dict[str, str]) -> AsyncGenerator[Any, None]:
        assert self._http is not None
        async with self._http.get(self._server + path, params=query) as answer:
            assert answer.status == 200, (path, await answer.text())
            rest = b""
            async for chunk in answer.content.iter_any():
                *lines, rest = (rest + chunk).split(b"\n")
                for line in lines:
                    yield json.loads(line)
