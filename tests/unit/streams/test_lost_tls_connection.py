"""Writes to a TLS connection that was lost a moment ago."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
import struct
from pathlib import Path

import pytest

from streams.connection import Connection
from tests.testbed.self_signed import self_signed

WRITES = 20


@pytest.mark.parametrize("through_connection", [True, False])
async def test_writes_in_one_turn_of_the_event_loop_are_not_logged_one_by_one(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, through_connection: bool
) -> None:
    """The client resets the connection, and the server learns of it by a write. The transport alone logs the others."""
    loop = asyncio.get_running_loop()
    server_side: asyncio.Future[tuple[Connection, asyncio.Transport]] = loop.create_future()

    class Accepted(Connection):
        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            super().connection_made(transport)
            assert isinstance(transport, asyncio.Transport)
            server_side.set_result((self, transport))

    server = await loop.create_server(Accepted, "127.0.0.1", 0, ssl=self_signed(tmp_path))
    client = ssl.create_default_context()
    client.check_hostname, client.verify_mode = False, ssl.CERT_NONE
    plain = socket.create_connection(server.sockets[0].getsockname())
    async with asyncio.timeout(10):
        tls = await asyncio.to_thread(client.wrap_socket, plain)
        connection, transport = await server_side
    tls.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    tls.close()  # Sends a reset. There is no await from here to the last write.
    for _ in range(WRITES):
        if through_connection:
            with contextlib.suppress(ConnectionError, StopIteration):
                connection.write(b"x").send(None)
        else:
            transport.write(b"x")
    warnings = [record for record in caplog.records if "socket.send() raised exception" in record.message]
    assert bool(warnings) != through_connection
    server.close()
