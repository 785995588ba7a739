"""TCP connections that send nothing, as an attacker of a server opens them from addresses of 127.0.0.0/8."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from contextlib import AsyncExitStack, asynccontextmanager

DEADLINE_SECONDS = 30.0


class SilentConnections:
    """Open connections to a server. The server may have closed some of them."""

    def __init__(self, readers: list[asyncio.StreamReader]) -> None:
        self._readers = readers

    async def wait_until_open(self, count: int) -> None:
        """Wait until the server has closed all but this number of connections."""
        async with asyncio.timeout(DEADLINE_SECONDS):
            while sum(not (reader.at_eof() or reader.exception()) for reader in self._readers) != count:
                await asyncio.sleep(0)


@asynccontextmanager
async def silent_connections(url: str, sources: Iterable[str]) -> AsyncIterator[SilentConnections]:
    """Open one connection to the server of a URL from each address, in this order."""
    host, _, port = url.partition("://")[2].partition(":")
    async with AsyncExitStack() as stack:
        readers = []
        for source in sources:
            reader, writer = await asyncio.open_connection(host, int(port), local_addr=(source, 0))
            stack.callback(lambda writer: writer.transport.abort(), writer)  # Without a reference, it closes itself.
            readers.append(reader)
        yield SilentConnections(readers)
