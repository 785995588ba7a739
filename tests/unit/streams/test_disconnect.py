"""A client that disconnects while its data is unread."""

from __future__ import annotations

import asyncio
import socket

import pytest

from streams import connection
from streams.connection import Connection

DEADLINE_SECONDS = 20.0


async def joined(*, guest: bool) -> tuple[socket.socket, Connection]:
    """Return a client's socket, and the server's connection, which reads nothing."""
    loop = asyncio.get_running_loop()
    created: asyncio.Future[Connection] = loop.create_future()

    def accept() -> Connection:
        created.set_result(Connection(half_close=False, watch_client=guest))
        return created.result()

    server = await loop.create_server(accept, "127.0.0.1", 0)
    client = socket.create_connection(server.sockets[0].getsockname())
    client.setblocking(False)
    ours = await created
    server.close()
    return client, ours


async def fill(client: socket.socket) -> None:
    """Send until nothing more goes out."""
    while True:
        try:
            client.send(b"x" * (1 << 20))
        except BlockingIOError:
            return
        await asyncio.sleep(0)


@pytest.mark.parametrize("way", ["in order", "with a reset"])
async def test_disconnected_client_with_unread_data_is_noticed(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "CLIENT_CHECK_SECONDS", 0.01)
    client, ours = await joined(guest=True)
    client.setblocking(True)
    client.sendall(b"x" * 150_000)
    if way == "with a reset":
        client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
    client.close()
    async with asyncio.timeout(DEADLINE_SECONDS):
        await ours.client_gone.wait()
    with pytest.raises(ConnectionResetError, match="the client has gone"):
        await ours.read()


async def test_connected_client_with_unread_data_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "CLIENT_CHECK_SECONDS", 0.001)
    client, ours = await joined(guest=True)
    await fill(client)
    await asyncio.sleep(0.05)
    assert not ours.client_gone.is_set()
    assert await ours.read()
    client.close()
    ours.abort()


async def test_data_sent_before_closing_waits_for_its_reader(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "CLIENT_CHECK_SECONDS", 0.001)
    client, ours = await joined(guest=False)
    client.setblocking(True)
    sending = asyncio.to_thread(client.sendall, b"x" * 300_000)
    sent = asyncio.ensure_future(sending)
    await asyncio.sleep(0.05)
    total = len(await ours.read())
    await sent
    client.close()
    while data := await ours.read():
        total += len(data)
    assert total == 300_000
    ours.abort()
