"""An HTTPS server of a test, with a certificate of an authority of its own."""

from __future__ import annotations

import datetime
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from aiohttp import web

from master.auth import pki

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


@dataclass(frozen=True, slots=True)
class ServerFiles:
    """The certificate of a server with its key, and the file of the authority."""

    certificate: Path
    authority: Path


def server_files(directory: Path) -> ServerFiles:
    """Write the files of a server at loopback."""
    now = datetime.datetime.now(datetime.UTC)
    return ServerFiles(pki.server_certificate(pki.authority(directory, now), directory, (), now), directory / "ca.crt")


@asynccontextmanager
async def https_server(
    files: ServerFiles, handler: Handler, client_authority: Path | None = None, address: str = "127.0.0.1"
) -> AsyncIterator[str]:
    """Serve every request with the handler, until the end of the block. Yield the URL of the server.

    With `client_authority`, clients need a certificate of that authority. The server's is for 127.0.0.1.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(files.certificate)
    if client_authority is not None:
        context.load_verify_locations(client_authority)
        context.verify_mode = ssl.CERT_REQUIRED
    application = web.Application()
    application.router.add_route("*", "/{path:.*}", handler)
    runner = web.AppRunner(application, shutdown_timeout=0)
    await runner.setup()
    try:
        await web.TCPSite(runner, address, 0, ssl_context=context).start()
        yield f"https://{address}:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()
