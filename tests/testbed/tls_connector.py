"""TLS connections of tests that close together with their session."""

from __future__ import annotations

import ssl

import aiohttp

from api.client.connections import CLEANUP_CLOSED


def tls_connector(context: ssl.SSLContext) -> aiohttp.TCPConnector:
    """Return a connector whose TLS connections are all closed when its session is closed.

    Without it, a connection that the session closed earlier waits for the server's close_notify. If the test ends
    before, the connection stays open, and a later test fails with the warning about it.
    """
    return aiohttp.TCPConnector(ssl=context, limit=0, enable_cleanup_closed=CLEANUP_CLOSED)
