"""The floor of a watch in Python: an aiohttp server that hands the same bytes to all its connections, and does no more.

`python -m bench.baseline_watch_server CERTIFICATE` prints its port.
`GET /watch` does not end; `POST /event` is sent to all watchers.
"""

from __future__ import annotations

import asyncio
import ssl
import sys

from aiohttp import web

OPEN: set[asyncio.Transport] = set()


async def _watch(http: web.Request) -> web.StreamResponse:
    response = web.StreamResponse()
    response.enable_chunked_encoding()
    await response.prepare(http)
    transport = http.transport
    if transport is not None:
        OPEN.add(transport)
        try:
            await asyncio.Event().wait()
        finally:
            OPEN.discard(transport)
    return response


async def _event(http: web.Request) -> web.Response:
    body = await http.read()
    chunk = b"%x\r\n%s\r\n" % (len(body), body)
    for transport in OPEN:
        transport.write(chunk)
    return web.Response()


async def _main(certificate: str) -> None:
    app = web.Application()
    app.router.add_get("/watch", _watch)
    app.router.add_post("/event", _event)
    runner = web.AppRunner(app, access_log=None, handler_cancellation=True)
    await runner.setup()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    await web.TCPSite(runner, "127.0.0.1", 0, ssl_context=context, backlog=1024).start()
    print(runner.addresses[0][1], flush=True)
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(_main(sys.argv[1]))
