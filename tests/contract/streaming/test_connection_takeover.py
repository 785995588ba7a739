"""The raw connection behind a request and behind a response, over real TLS."""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import hashlib
import os
import socket
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import aiohttp
import pytest
from aiohttp import web

from master.auth import pki
from streams.connection import MAX_UNREAD_BYTES, Connection
from streams.upgrade import UpgradeResponse, upgraded_connection

Use = Callable[[Connection], Awaitable[None]]
SENT_AHEAD = 1 << 15
"""What the kernel may hold for a narrow client."""

BELOW_TLS = SENT_AHEAD + (48 << 10)
HEADS = {
    "SPDY/3.1": b"POST /x HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: SPDY/3.1\r\n\r\n",
    "websocket": b"GET /x HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n",
}


@pytest.fixture(scope="module")
def contexts(tmp_path_factory: pytest.TempPathFactory) -> tuple[ssl.SSLContext, ssl.SSLContext]:
    """Return the TLS contexts of a server and of its clients."""
    directory = tmp_path_factory.mktemp("pki")
    now = datetime.datetime.now(datetime.UTC)
    ca = pki.authority(directory, now)
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(pki.server_certificate(ca, directory, ("127.0.0.1",), now))
    return server, ssl.create_default_context(cadata=ca.pem.decode())


class Served:
    """A server that hands each connection to `use` after 101."""

    def __init__(self, port: int, runner: web.AppRunner, client: ssl.SSLContext) -> None:
        self.port = port
        self.client = client
        self._runner = runner

    @property
    def connections(self) -> int:
        assert self._runner.server is not None
        return len(self._runner.server.connections)

    async def idle(self) -> None:
        """Wait until no connection and no task is left."""
        me = asyncio.current_task()
        async with asyncio.timeout(20):
            while self.connections or any(task is not me for task in asyncio.all_tasks()):
                await asyncio.sleep(0.005)

    async def raw(self, *, narrow: bool = False) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Connect a client. A narrow one has small receive buffers."""
        sock = socket.socket()
        if narrow:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        sock.setblocking(False)
        await asyncio.get_running_loop().sock_connect(sock, ("127.0.0.1", self.port))
        limit = 1024 if narrow else 1 << 16
        reader, writer = await asyncio.open_connection(
            sock=sock, ssl=self.client, server_hostname="127.0.0.1", limit=limit
        )
        if narrow:
            writer.transport.set_read_buffer_limits(high=1024)  # type: ignore[attr-defined]
        return reader, writer


@asynccontextmanager
async def served(
    contexts: tuple[ssl.SSLContext, ssl.SSLContext],
    use: Use,
    goodbye: float = 5.0,
    ending: list[str] | None = None,
    *,
    narrow: bool = False,
) -> AsyncIterator[Served]:
    async def handle(request: web.Request) -> web.StreamResponse:
        answer = UpgradeResponse([("Upgrade", request.headers["Upgrade"])])
        stream = await answer.upgrade(request)
        try:
            await use(stream)
        except asyncio.CancelledError:
            if ending is not None:
                ending.append("cancelled")
            raise
        return answer

    app = web.Application()
    app.router.add_route("*", "/{path:.*}", handle)
    runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0.1, access_log=None)
    await runner.setup()
    assert runner.server is not None
    listening = socket.create_server(("127.0.0.1", 0))
    if narrow:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SENT_AHEAD // 2)
    server = await asyncio.get_running_loop().create_server(
        runner.server, sock=listening, ssl=contexts[0], ssl_shutdown_timeout=goodbye
    )
    try:
        yield Served(server.sockets[0].getsockname()[1], runner, contexts[1])
    finally:
        server.close()
        await runner.cleanup()


async def echo(stream: Connection) -> None:
    while data := await stream.read():
        await stream.write(data)
    await stream.end()


@pytest.mark.parametrize("upgrade", HEADS)
async def test_taken_over_connection_passes_bytes_both_ways_and_leaves_nothing(
    contexts: tuple[ssl.SSLContext, ssl.SSLContext], upgrade: str
) -> None:
    sent = os.urandom(8 << 20)
    async with served(contexts, echo) as server:
        async with aiohttp.ClientSession() as session:
            response = await session.post(
                f"https://127.0.0.1:{server.port}/x",
                headers={"Connection": "Upgrade", "Upgrade": upgrade},
                ssl=contexts[1],
            )
            assert response.status == 101
            assert response.headers["Upgrade"] == upgrade
            assert "Transfer-Encoding" not in response.headers
            held = response.connection
            assert held is not None
            assert held.transport is not None
            kernel = held.transport.get_extra_info("socket")
            stream = upgraded_connection(response)
            assert kernel.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
            assert kernel.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE) == 60

            async def receive() -> bytes:
                got = bytearray()
                while len(got) < len(sent) and (data := await stream.read()):
                    got += data
                return bytes(got)

            receiving = asyncio.create_task(receive())
            for start in range(0, len(sent), 100_000):
                await stream.write(sent[start : start + 100_000])
            got = await receiving
            assert hashlib.sha256(got).digest() == hashlib.sha256(sent).digest()
            await stream.end()
            assert await stream.read() == b""
            await server.idle()
        await server.idle()


@pytest.mark.parametrize("upgrade", ["websocket"])
async def test_bytes_received_with_the_head_belong_to_the_stream(
    contexts: tuple[ssl.SSLContext, ssl.SSLContext], upgrade: str
) -> None:
    async with served(contexts, echo) as server:
        reader, writer = await server.raw()
        writer.write(HEADS[upgrade] + b"early bytes")
        head = await reader.readuntil(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 101 Switching Protocols\r\n")
        assert await reader.readexactly(11) == b"early bytes"
        writer.close()
        await writer.wait_closed()
        await server.idle()


@pytest.mark.parametrize("upgrade", HEADS)
async def test_client_disconnect_ends_the_stream_and_cancels_no_handler(
    contexts: tuple[ssl.SSLContext, ssl.SSLContext], upgrade: str
) -> None:
    seen: list[str] = []

    async def use(stream: Connection) -> None:
        try:
            while await stream.read():
                pass
            seen.append("end")
        except ConnectionError:
            seen.append("lost")
        await asyncio.sleep(0)
        seen.append("cleaned up")

    async with served(contexts, use, ending=seen) as server:
        reader, writer = await server.raw()
        writer.write(HEADS[upgrade])
        await reader.readuntil(b"\r\n\r\n")
        writer.transport.abort()
        await server.idle()
    assert seen in (["end", "cleaned up"], ["lost", "cleaned up"])


@pytest.mark.parametrize("upgrade", HEADS)
async def test_failed_handler_writes_nothing_more_and_leaves_nothing(
    contexts: tuple[ssl.SSLContext, ssl.SSLContext], upgrade: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def use(stream: Connection) -> None:
        await stream.write(b"hello")
        raise RuntimeError("a bug")

    async with served(contexts, use) as server:
        reader, writer = await server.raw()
        writer.write(HEADS[upgrade])
        await reader.readuntil(b"\r\n\r\n")
        try:
            rest = await reader.read()
        except ConnectionError:
            rest = b""
        assert rest in (b"", b"hello")
        writer.close()
        await server.idle()


async def reluctant(event: asyncio.Event) -> None:
    """Passes when it does not happen, while the time for saying goodbye has passed many times."""
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.3):
            await event.wait()


@pytest.mark.parametrize("upgrade", HEADS)
async def test_slow_reader_gets_every_byte(contexts: tuple[ssl.SSLContext, ssl.SSLContext], upgrade: str) -> None:
    sent = os.urandom(1 << 20)
    ending, ended = asyncio.Event(), asyncio.Event()

    async def use(stream: Connection) -> None:
        for start in range(0, len(sent), 50_000):
            await stream.write(sent[start : start + 50_000])
        ending.set()
        await stream.end()
        ended.set()

    async with served(contexts, use, goodbye=0.05, narrow=True) as server:
        reader, writer = await server.raw(narrow=True)
        writer.write(HEADS[upgrade])
        await reader.readuntil(b"\r\n\r\n")
        got = bytearray()
        while not ending.is_set():
            got += await reader.read(1024)
        await reluctant(ended)
        # What waits below TLS, in the transport of TCP, is the last that is sent.
        while len(sent) - len(got) > BELOW_TLS:
            got += await reader.read(1024)
        await reluctant(ended)
        while data := await reader.read(65536):
            got += data
        assert hashlib.sha256(got).digest() == hashlib.sha256(sent).digest()
        writer.close()
        await server.idle()


@pytest.mark.parametrize("upgrade", HEADS)
async def test_unread_data_blocks_the_writer(contexts: tuple[ssl.SSLContext, ssl.SSLContext], upgrade: str) -> None:
    streams: list[Connection] = []
    sent: list[int] = []
    go, written = asyncio.Event(), asyncio.Event()

    async def use(stream: Connection) -> None:
        streams.append(stream)
        await go.wait()

    async def write(stream: Connection) -> None:
        while True:
            await stream.write(bytes(1 << 16))
            sent.append(1 << 16)
            written.set()

    async with served(contexts, use) as server, aiohttp.ClientSession() as session:
        response = await session.post(
            f"https://127.0.0.1:{server.port}/x",
            headers={"Connection": "Upgrade", "Upgrade": upgrade},
            ssl=contexts[1],
        )
        connection = upgraded_connection(response)
        writing = asyncio.create_task(write(connection))
        with contextlib.suppress(TimeoutError):
            while True:
                written.clear()
                async with asyncio.timeout(0.3):
                    await written.wait()
        assert sum(sent) < 64 << 20
        waiting = len(await streams[0].read())
        assert MAX_UNREAD_BYTES < waiting < 2 * MAX_UNREAD_BYTES + (256 << 10)
        writing.cancel()
        connection.abort()
        go.set()
        await asyncio.wait([writing])
        await server.idle()


async def test_tcp_connection_is_half_closed() -> None:
    got: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        got.append(await reader.read())
        writer.write(b"answer")
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    _, stream = await asyncio.get_running_loop().create_connection(
        Connection, "127.0.0.1", server.sockets[0].getsockname()[1]
    )
    await stream.write(b"question")
    await stream.end()
    assert await stream.read() == b"answer"
    assert await stream.read() == b""
    assert got == [b"question"]
    stream.abort()
    server.close()
    await server.wait_closed()
