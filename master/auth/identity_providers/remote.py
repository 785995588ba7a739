"""Requests to identity providers over HTTPS. Driver.

A provider gets passwords and secrets, so redirects are not followed. Its answers are limited in size and time, and so
are the requests that unauthenticated clients can start at the same time. Answers are not compressed, so that their size
is known before they take memory.
"""

from __future__ import annotations

import socket
import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

import aiohttp
import msgspec
from aiohttp.abc import AbstractResolver, ResolveResult

from master.auth.identity_providers.bounded_threads import resolve
from master.auth.identity_providers.provider import ProviderError

T = TypeVar("T")

MAX_ANSWER_BYTES = 64 * 1024
MAX_REQUESTS = 32
TIMEOUT = 10.0


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer of a provider."""

    url: str
    status: int
    body: bytes

    def decode(self, kind: type[T]) -> T:
        """Return the JSON of the body. Raises ProviderError."""
        try:
            return msgspec.json.decode(self.body, type=kind)
        except (msgspec.DecodeError, RecursionError) as error:
            raise ProviderError(f"{self.url}: found no such JSON: {error}") from None


class _Resolver(AbstractResolver):
    """Looks up host names in the threads for that."""

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_UNSPEC
    ) -> list[ResolveResult]:
        return [
            ResolveResult(hostname=host, host=address, port=port, family=found, proto=0, flags=socket.AI_NUMERICHOST)
            for found, address in await resolve(host, port)
            if family in {socket.AF_UNSPEC, found}
        ]

    async def close(self) -> None:
        pass


class RemoteClient:
    """Sends requests to one provider. `timeout` is in seconds and is for a whole request."""

    def __init__(self, tls: ssl.SSLContext, timeout: float = TIMEOUT) -> None:
        self._tls = tls
        self._timeout = aiohttp.ClientTimeout(total=timeout)
        self._running = 0

    async def request(
        self,
        method: str,
        url: str,
        *,
        headers: Mapping[str, str],
        data: Mapping[str, str] | None = None,
        json: Any = None,
    ) -> Answer:
        """Return the answer to a request. `data` is sent as a form. Raises ProviderError."""
        if self._running >= MAX_REQUESTS:
            raise ProviderError(f"{url}: {self._running} requests are running; try again later")
        self._running += 1
        try:
            return await self._request(method, url, headers=headers, data=data, json=json)
        except TimeoutError:
            raise ProviderError(f"{url}: no answer within {self._timeout.total:g} s") from None
        except (aiohttp.ClientError, OSError, ValueError) as error:
            raise ProviderError(f"{url}: {error}") from None
        finally:
            self._running -= 1

    async def _request(self, method: str, url: str, **content: Any) -> Answer:
        async with (
            aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(ssl=self._tls, resolver=_Resolver(), force_close=True),
                timeout=self._timeout,
                headers={"Accept-Encoding": "identity"},
                cookie_jar=aiohttp.DummyCookieJar(),
                auto_decompress=False,
            ) as session,
            session.request(method, url, allow_redirects=False, **content) as response,
        ):
            if 300 <= response.status < 400:
                raise ProviderError(f"{url}: found a redirect ({response.status}); redirects are not followed")
            body = bytearray()
            async for chunk in response.content.iter_any():
                body += chunk
                if len(body) > MAX_ANSWER_BYTES:
                    raise ProviderError(f"{url}: the answer is larger than {MAX_ANSWER_BYTES} bytes")
            return Answer(url, response.status, bytes(body))
