"""Closing a TCP connection while the peer reads slowly."""

from __future__ import annotations

import asyncio
import socket

from streams.connection import Connection


async def test_connection_is_not_closed_while_bytes_are_in_flight() -> None:
    loop = asyncio.get_running_loop()
    created: asyncio.Queue[Connection] = asyncio.Queue()

    class Accepted(Connection):
        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            super().connection_made(transport)
            created.put_nowait(self)

    slow = socket.socket()
    slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    slow.setblocking(False)
    async with (
        await loop.create_server(lambda: Accepted(half_close=False), "127.0.0.1", 0) as server,
        asyncio.timeout(20),
    ):
        await loop.sock_connect(slow, server.sockets[0].getsockname())
        connection = await created.get()
        await connection.write(b"x" * 60_000)
        ending = asyncio.create_task(connection.end())
        # A connection that had been closed would be reset by this, and what the kernel still holds be forgotten.
        for _ in range(10):
            await loop.sock_sendall(slow, b"still there?")
            await asyncio.sleep(0.01)
        left = 60_000
        while left and (data := await loop.sock_recv(slow, 1000)):
            left -= len(data)
        assert left == 0
        await ending
    slow.close()
