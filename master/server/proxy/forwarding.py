"""Forwarding between a client and a node or pod: response bodies and upgraded connections. Driver."""

from __future__ import annotations

import asyncio
import base64
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import aiohttp
from aiohttp import web
from multidict import CIMultiDict

from master.server.proxy.kubelet_client import IDLE_SECONDS
from master.wire import passing
from master.wire.links import LARGEST_PAGE
from streams.splice import splice
from streams.takeover import Upgraded, taken

MAX_UNSENT_BYTES = 64 << 10
"""Bytes that wait for one client; the other side waits, too, when there are more."""

BINARY, BASE64 = "binary.k8s.io", "base64.binary.k8s.io"
"""Protocols of WebSocket in which a log can be read."""

log = logging.getLogger(__name__)


class Forwarder:
    """Everything that goes through at the moment."""

    def __init__(self) -> None:
        self._open: set[Callable[[], None]] = set()

    def end_all(self) -> None:
        """Cut off everything that goes through."""
        for cut in tuple(self._open):
            cut()

    @contextmanager
    def _through(self, *cuts: Callable[[], None]) -> Iterator[None]:
        self._open.update(cuts)
        try:
            yield
        finally:
            self._open.difference_update(cuts)

    async def upgrade(self, http: web.Request, response: aiohttp.ClientResponse) -> web.StreamResponse:
        """Join the client to another side that has answered 101, until one of them has gone."""
        try:
            answer = Upgraded(passing.passed_back(_pairs(response), upgrade=True))
            ours = await answer.take(http)
        except BaseException:
            response.close()
            raise
        theirs = taken(response)
        with self._through(ours.abort, theirs.abort):
            await splice(ours, theirs, IDLE_SECONDS, gone=ours.gone)
        return answer

    async def copy(
        self,
        http: web.Request,
        response: aiohttp.ClientResponse,
        headers: CIMultiDict[str],
        change: Callable[[bytes], bytes] | None = None,
    ) -> web.StreamResponse:
        """Give the client the answer of another side, each part of its body as it comes.

        When the other side breaks off, the client is broken off, too: it must not take a part for the whole.
        A body is kept back for `change`, unless it is larger than a page may be.
        """
        if change is not None:
            headers.popall("Content-Length", None)
        answer = web.StreamResponse(status=response.status, reason=response.reason, headers=headers)
        with self._through(response.close):
            try:
                if http.transport is not None:
                    http.transport.set_write_buffer_limits(high=MAX_UNSENT_BYTES)
                await answer.prepare(http)
                kept = bytearray()
                async for part in response.content.iter_any():
                    if change is None:
                        await answer.write(part)
                        continue
                    kept += part
                    if len(kept) > LARGEST_PAGE:
                        await answer.write(bytes(kept))
                        kept.clear()
                        change = None
                if change is not None:
                    await answer.write(change(bytes(kept)))
                await answer.write_eof()
            except (aiohttp.ClientError, TimeoutError) as error:
                log.debug("an answer broke off", extra={"path": http.path, "why": str(error)})
                if http.transport is not None:
                    http.transport.abort()
            finally:
                response.close()
        return answer

    async def messages(self, http: web.Request, response: aiohttp.ClientResponse) -> web.StreamResponse:
        """Give the client the body as messages of WebSocket. The first one is empty."""
        channel = web.WebSocketResponse(protocols=(BINARY, BASE64))
        with self._through(response.close):
            try:
                await channel.prepare(http)
                await _until_first(_send(channel, response), _discard_input(channel))
                await channel.close()
            finally:
                response.close()
        return channel


async def _until_first(*works: asyncio.Future[None] | asyncio.Task[None]) -> None:
    """Until one of the works is done; the others are given up."""
    try:
        done, _ = await asyncio.wait(works, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for work in works:
            work.cancel()
    for work in done:
        work.result()


def _send(channel: web.WebSocketResponse, response: aiohttp.ClientResponse) -> asyncio.Task[None]:
    async def say() -> None:
        encoded = channel.ws_protocol == BASE64
        try:
            await (channel.send_str("") if encoded else channel.send_bytes(b""))
            async for part in response.content.iter_any():
                if encoded:
                    await channel.send_str(base64.b64encode(part).decode("ascii"))
                else:
                    await channel.send_bytes(part)
        except (aiohttp.ClientError, TimeoutError, ConnectionError) as error:
            log.debug("a log broke off", extra={"why": str(error)})

    return asyncio.ensure_future(say())


def _discard_input(channel: web.WebSocketResponse) -> asyncio.Task[None]:
    async def listen() -> None:
        async for _ in channel:
            pass

    return asyncio.ensure_future(listen())


def _pairs(response: aiohttp.ClientResponse) -> list[tuple[str, str]]:
    return list(response.headers.items())
