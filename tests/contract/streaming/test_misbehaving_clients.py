"""Slow, unresponsive, disconnected or invalid streaming clients: the responses they get, and their cost."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import aiohttp
import pytest

from node_agent.server import exec as server_exec
from node_agent.server.streaming import remotecommand, websocket
from node_agent.server.streaming.remotecommand import Exited, Failed, Outcome, RemoteCommand, StreamOptions
from reconcile.errors import Refused
from streams.spdy.session import Session
from streams.upgrade import upgraded_connection
from tests.testbed.streaming.mutations import masked
from tests.testbed.streaming.pod_server import PodServer

EXEC = "/api/v1/namespaces/default/pods/p/exec"
PORTS = "/api/v1/namespaces/default/pods/p/portforward"
ALL = "command=c&stdin=true&stdout=true&stderr=true"
BINARY, CLOSE, PING, PONG = 0x82, 0x88, 0x89, 0x8A
KEY = "Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: MDEyMzQ1Njc4OWFiY2RlZg==\r\n"


async def until(holds: Callable[[], object]) -> None:
    async with asyncio.timeout(10):
        while not holds():
            await asyncio.sleep(0.005)


class Raw:
    """A WebSocket client that is driven by the test, with a small receive buffer in the kernel."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    @classmethod
    @asynccontextmanager
    async def to(cls, url: str, query: str = ALL, protocol: str = "v5.channel.k8s.io") -> AsyncIterator[Raw]:
        actual = socket.socket()
        actual.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        actual.setblocking(False)
        host, _, port = url.removeprefix("http://").rpartition(":")
        await asyncio.get_running_loop().sock_connect(actual, (host, int(port)))
        reader, writer = await asyncio.open_connection(sock=actual, limit=1 << 12)
        head = f"GET {EXEC}?{query} HTTP/1.1\r\nHost: p\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n{KEY}"
        writer.write(f"{head}Sec-WebSocket-Protocol: {protocol}\r\n\r\n".encode())
        assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 101 ")
        try:
            yield cls(reader, writer)
        finally:
            writer.transport.abort()

    def send(self, kind: int, payload: bytes) -> None:
        self.writer.write(masked(kind, payload))

    async def frame(self) -> tuple[int, bytes]:
        async with asyncio.timeout(10):
            kind, size = await self.reader.readexactly(2)
            if size >= 126:
                size = int.from_bytes(await self.reader.readexactly(2 if size == 126 else 8))
            return kind, await self.reader.readexactly(size)

    async def message(self) -> bytes:
        """Return the payload of the next data frame."""
        while True:
            kind, payload = await self.frame()
            if kind == BINARY:
                return payload
            assert kind == PONG, (kind, payload)


@asynccontextmanager
async def spdy(
    url: str, protocol: str = "v4.channel.k8s.io", query: str = ALL, path: str = EXEC
) -> AsyncIterator[Session]:
    headers = {"Connection": "Upgrade", "Upgrade": "SPDY/3.1", "X-Stream-Protocol-Version": protocol}
    async with aiohttp.ClientSession() as http, http.post(f"{url}{path}?{query}", headers=headers) as answer:
        assert answer.status == 101
        assert answer.headers["X-Stream-Protocol-Version"] == protocol
        session = Session(upgraded_connection(answer), client=True)
        try:
            yield session
        finally:
            session.abort()


@pytest.fixture
def deaf(one_pod: PodServer) -> RemoteCommandWitness:
    """Return a program that neither reads nor writes until its client disconnects."""
    return RemoteCommandWitness(one_pod)


class RemoteCommandWitness:
    def __init__(self, pod: PodServer) -> None:
        self.commands: list[RemoteCommand] = []
        self.over = asyncio.Event()
        pod.work = self._work

    async def _work(self, _: StreamOptions, command: RemoteCommand) -> Outcome:
        self.commands.append(command)
        try:
            await command.client_gone()
        finally:
            self.over.set()
        return Exited(0)


async def test_unread_stdin_blocks_the_client_and_pings_continue(
    one_pod: PodServer, deaf: RemoteCommandWitness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The input is not buffered. Pings are sent to the client meanwhile, and its disconnect is noticed."""
    monkeypatch.setattr(websocket, "PONG_SECONDS", 0.05)
    async with Raw.to(one_pod.url) as client:
        piece = masked(BINARY, b"\x00" + b"x" * 65536)
        for _ in range(800):
            client.writer.write(piece)
        await until(lambda: deaf.commands and waiting(deaf.commands[0]) > websocket.BUFFER_BYTES)
        unsent = -1
        while unsent != client.writer.transport.get_write_buffer_size():
            unsent = client.writer.transport.get_write_buffer_size()
            assert await client.frame() == (PONG, b"")
            assert await client.frame() == (PONG, b"")
        assert unsent > 30 << 20
        assert waiting(deaf.commands[0]) < 2 << 20
        linger(client.writer)
    await until(deaf.over.is_set)


async def test_endless_message_is_buffered_no_more_than_short_ones(
    one_pod: PodServer, deaf: RemoteCommandWitness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """This holds for one client and for many. Pending data counts as long as it is pending."""
    monkeypatch.setattr(websocket, "SHARED_BUFFER_BYTES", 4 << 20)
    async with contextlib.AsyncExitStack() as stack:
        clients = [await stack.enter_async_context(Raw.to(one_pod.url)) for _ in range(30)]
        for client in clients:
            client.writer.write(struct.pack(">BBQ4x", BINARY, 0x80 | 127, 1 << 40) + b"\x00" + b"x" * (16 << 20))
        await until(lambda: len(deaf.commands) == 30 and all(map(waiting, deaf.commands)))
        unsent = -1
        while unsent != sum(client.writer.transport.get_write_buffer_size() for client in clients):
            unsent = sum(client.writer.transport.get_write_buffer_size() for client in clients)
            await asyncio.sleep(0.2)
        sizes = [waiting(command) for command in deaf.commands]
        assert max(sizes) < 2 << 20
        assert sum(sizes) < (4 << 20) + 30 * 3 * websocket.BUFFER_BYTES
        assert websocket.buffer_budget.total_buffered == sum(sizes)
        for command in deaf.commands:
            command.stdin.abort()  # type: ignore[union-attr]
        assert websocket.buffer_budget.total_buffered == 0


async def test_buffered_bytes_of_a_disconnected_client_are_released(
    one_pod: PodServer, deaf: RemoteCommandWitness
) -> None:
    async with Raw.to(one_pod.url) as client:
        client.send(BINARY, b"\x00" + b"x" * 1000)
        await until(lambda: deaf.commands and waiting(deaf.commands[0]))
        assert websocket.buffer_budget.total_buffered == 1000
        linger(client.writer)
    await until(deaf.over.is_set)
    await until(lambda: websocket.buffer_budget.total_buffered == 0)


def waiting(command: RemoteCommand) -> int:
    size: int = command.stdin.buffer.size  # type: ignore[union-attr]
    return size


def linger(writer: asyncio.StreamWriter) -> None:
    writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


async def test_spdy_client_with_unread_stdin_is_noticed_when_it_disconnects(
    one_pod: PodServer, deaf: RemoteCommandWitness, monkeypatch: pytest.MonkeyPatch
) -> None:
    defaults = Session.__init__.__kwdefaults__
    assert defaults is not None
    monkeypatch.setitem(defaults, "ping_seconds", 0.05)
    async with spdy(one_pod.url) as session:
        _, stdin, *_ = [await session.open({"streamtype": name}) for name in ("error", "stdin", "stdout", "stderr")]

        async def speak() -> None:
            with contextlib.suppress(ConnectionError):
                while True:
                    await stdin.write(b"x" * 65536)

        speaking = asyncio.create_task(speak())
        await until(lambda: deaf.commands)
        await asyncio.sleep(0.3)
        assert not speaking.done()
    await speaking
    await until(deaf.over.is_set)


async def test_unread_output_blocks_the_program(one_pod: PodServer) -> None:
    output = 0
    removed = asyncio.Event()

    async def talk(_: StreamOptions, command: RemoteCommand) -> Outcome:
        nonlocal output
        assert command.stdout is not None
        with contextlib.suppress(ConnectionError):
            while True:
                await command.stdout.write(b"x" * 65536)
                output += 65536
        removed.set()
        return Exited(0)

    one_pod.work = talk
    async with Raw.to(one_pod.url) as client:
        before = -1
        while before != output:
            before = output
            await asyncio.sleep(0.1)
        assert output < 16 << 20
        client.send(PING, b"there?")
        assert not removed.is_set()
    await until(removed.is_set)


async def test_late_reader_gets_the_complete_output(one_pod: PodServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """The last output is in transit for long after the program has ended, and pings arrive meanwhile."""
    monkeypatch.setattr(websocket, "LINGER_SECONDS", 0.05)
    ended = asyncio.Event()

    async def talk(_: StreamOptions, command: RemoteCommand) -> Outcome:
        assert command.stdout is not None
        await command.stdout.write(b"x" * 300_000)
        ended.set()
        return Exited(5)

    one_pod.work = talk
    async with Raw.to(one_pod.url) as client:
        await until(ended.is_set)
        for _ in range(20):
            client.send(PING, b"there?")
            await asyncio.sleep(0.02)
        output = b""
        while (message := await client.message())[0] == 1:
            output += message[1:]
        assert output == b"x" * 300_000
        assert message[:1] == b"\x03"
        assert b'"message":"5"' in message
        while (frame := await client.frame())[0] != CLOSE:
            assert frame == (PONG, b"there?")
        assert frame[1] == b"\x03\xe8"
        client.send(CLOSE, b"\x03\xe8")
        assert await client.reader.read() == b""


async def test_close_signal_of_an_unknown_channel_ends_the_session(
    one_pod: PodServer, deaf: RemoteCommandWitness
) -> None:
    for wrong in (b"\xff", b"\xff\x00\x00", b"\xff\x05"):
        deaf.over.clear()
        async with Raw.to(one_pod.url) as client:
            client.send(BINARY, wrong)
            while (frame := await client.frame())[0] != CLOSE:
                pass
            assert frame[1][:2] == b"\x03\xea"
            await until(deaf.over.is_set)


async def test_data_of_unknown_channels_is_ignored(one_pod: PodServer) -> None:
    async def talk(_: StreamOptions, command: RemoteCommand) -> Outcome:
        assert command.stdin is not None
        assert await command.stdin.read() == b"right"
        assert await command.stdin.read() == b""
        return Exited(0)

    one_pod.work = talk
    async with Raw.to(one_pod.url) as client:
        for message in (
            b"",
            b"\x01to an output",
            b"\x07to nobody",
            b"\x00",
            b"\x00right",
            b"\x04{",
            b"\xff\x04",
            b"\xff\x00",
        ):
            client.send(BINARY, message)
        assert await client.message() == b'\x03{"metadata":{},"status":"Success"}'


async def test_idle_session_ends(one_pod: PodServer, deaf: RemoteCommandWitness) -> None:
    one_pod.idle_seconds = 0.2
    async with Raw.to(one_pod.url) as client:
        await until(deaf.over.is_set)
        with contextlib.suppress(ConnectionError):
            await client.reader.read()
    deaf.over.clear()
    async with spdy(one_pod.url) as session:
        for name in ("error", "stdin", "stdout", "stderr"):
            await session.open({"streamtype": name})
        await until(deaf.over.is_set)


async def test_client_that_opens_too_few_streams_is_disconnected(
    one_pod: PodServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remotecommand, "STREAM_TIMEOUT_SECONDS", 0.1)
    async with spdy(one_pod.url) as session:
        await session.open({"streamtype": "error"})
        assert await session.accept() is None
    assert not one_pod.processes


@pytest.mark.parametrize(
    ("protocol", "query", "first"),
    [
        ("v4.channel.k8s.io", ALL, b"\x01"),
        ("v4.channel.k8s.io", "stderr=true", b"\x02"),
        ("channel.k8s.io", "stdin=true", b"\x03"),
    ],
)
async def test_first_websocket_message_is_empty_before_v5(
    one_pod: PodServer, deaf: RemoteCommandWitness, protocol: str, query: str, first: bytes
) -> None:
    async with Raw.to(one_pod.url, query, protocol) as client:
        assert await client.message() == first
    await until(deaf.over.is_set)


async def test_first_websocket_message_of_v5_is_data(one_pod: PodServer) -> None:
    """kubectl complains of an empty message that comes together with the answer to its handshake."""

    async def talk(_: StreamOptions, command: RemoteCommand) -> Outcome:
        assert command.stderr is not None
        await command.stderr.write(b"said")
        return Exited(0)

    one_pod.work = talk
    async with Raw.to(one_pod.url) as client:
        assert await client.message() == b"\x02said"
        assert (await client.message())[:1] == b"\x03"


@pytest.mark.parametrize(
    ("protocol", "failure", "success"),
    [
        (
            "v4.channel.k8s.io",
            b'{"metadata":{},"status":"Failure","message":"command',
            b'{"metadata":{},"status":"Success"}',
        ),
        ("v3.channel.k8s.io", b"command terminated with non-zero exit code: exit status 3", b""),
        ("v2.channel.k8s.io", b"command terminated with non-zero exit code: exit status 3", b""),
        ("channel.k8s.io", b"command terminated with non-zero exit code: exit status 3", b""),
    ],
)
async def test_every_spdy_protocol_version_is_served(
    one_pod: PodServer, protocol: str, failure: bytes, success: bytes
) -> None:
    for words, expected in (("exit+3", failure), ("exit+0", success)):
        query = f"command=sh&command=-c&command=cat;{words}&stdin=true&stdout=true"
        async with spdy(one_pod.url, protocol, query) as session:
            error, stdin, stdout = [await session.open({"streamtype": name}) for name in ("error", "stdin", "stdout")]
            await stdin.write(b"hello")
            await stdin.end()
            assert await stdout.read() == b"hello"
            assert await stdout.read() == b""
            assert (await error.read()).startswith(expected)
            assert await error.read() == b""


async def test_unexpected_spdy_stream_is_reset(one_pod: PodServer, deaf: RemoteCommandWitness) -> None:
    async with spdy(one_pod.url) as session:
        for name in ("nonsense", "resize"):
            with pytest.raises(ConnectionError):
                await session.open({"streamtype": name})
        for name in ("error", "stdin", "stdout", "stderr"):
            await session.open({"streamtype": name})
        with pytest.raises(ConnectionError):
            await session.open({"streamtype": "stdin"})
    await until(deaf.over.is_set)


async def test_driver_error_reaches_the_client(one_pod: PodServer) -> None:
    async def fail(_: StreamOptions, __: RemoteCommand) -> Outcome:
        raise Refused("container c does not run")

    one_pod.work = fail
    async with Raw.to(one_pod.url) as client:
        status = await client.message()
    assert b'"message":"Internal error occurred: container c does not run","reason":"InternalError"' in status
    assert b'"code":500' in status

    async def say(_: StreamOptions, __: RemoteCommand) -> Outcome:
        return Failed("no such program")

    one_pod.work = say
    async with Raw.to(one_pod.url, protocol="channel.k8s.io") as client:
        assert await client.message() == b"\x01"
        assert await client.message() == b"\x03Internal error occurred: no such program"


@pytest.mark.parametrize(
    ("path", "headers", "status", "words"),
    [
        (f"{EXEC}?command=c", {}, 400, "you must specify at least 1 of stdin, stdout, stderr\n"),
        (f"{EXEC}?command=c&tty=true&stderr=true", {}, 400, "you must specify at least 1 of stdin, stdout, stderr\n"),
        (f"{EXEC}?{ALL}", {}, 400, "Upgrade request required\n"),
        (f"{EXEC}?{ALL}", {"Connection": "Upgrade", "Upgrade": "h2c"}, 400, "unable to upgrade: "),
        (
            f"{EXEC}?{ALL}",
            {"Connection": "Upgrade", "Upgrade": "SPDY/3.1"},
            400,
            "unable to upgrade: X-Stream-Protocol",
        ),
        (
            f"{EXEC}?{ALL}",
            {"Connection": "keep-alive, Upgrade", "Upgrade": "SPDY/3.1", "X-Stream-Protocol-Version": "v9, v8"},
            403,
            "unable to upgrade: unable to negotiate protocol: client supports [v9 v8], server accepts [v4.channel",
        ),
        (
            f"{EXEC}?{ALL}",
            {"Connection": "Upgrade", "Upgrade": "websocket", "Sec-WebSocket-Protocol": "v9, v8"},
            403,
            "requested protocol(s) are not supported: [v9 v8]; supports [",
        ),
        (f"{EXEC}?{ALL}", {"Connection": "Upgrade", "Upgrade": "websocket"}, 400, "Unsupported version: "),
        (PORTS, {"Connection": "Upgrade", "Upgrade": "websocket"}, 400, 'query parameter "port" is required\n'),
    ],
)
async def test_invalid_streaming_requests_are_rejected(
    one_pod: PodServer, path: str, headers: dict[str, str], status: int, words: str
) -> None:
    async with aiohttp.ClientSession() as http, http.get(one_pod.url + path, headers=headers) as answer:
        assert answer.status == status
        assert (await answer.text()).startswith(words)
        accepted = answer.headers.getall("X-Accepted-Stream-Protocol-Versions", [])
        assert accepted == (list(remotecommand.SPDY_PROTOCOLS) if "negotiate" in words else [])


async def test_port_forward_of_the_oldest_clients_has_no_request_ids(one_pod: PodServer) -> None:
    async def greet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"hello " + await reader.readexactly(2))
        writer.close()

    async with await asyncio.start_server(greet, "127.0.0.1", 0) as server:
        port = str(server.sockets[0].getsockname()[1])
        async with spdy(one_pod.url, "portforward.k8s.io", "", PORTS) as session:
            for number in (b"01", b"02"):
                error = await session.open({"streamtype": "error", "port": port})
                data = await session.open({"streamtype": "data", "port": port})
                await data.write(number)
                assert await data.read() == b"hello " + number
                assert (await data.read(), await error.read()) == (b"", b"")
            for headers in (
                {"streamtype": "data"},
                {"streamtype": "data", "port": "0"},
                {"streamtype": "x", "port": port},
            ):
                with pytest.raises(ConnectionError):
                    await session.open(headers)


async def test_program_continues_after_an_old_client_left_and_is_ended_later(
    one_pod: PodServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server_exec, "DRAIN_SECONDS", 0.1)
    query = "command=sleep&command=1000&stdin=true&stdout=true"
    async with Raw.to(one_pod.url, query, "v4.channel.k8s.io") as client:
        await client.message()
        await until(lambda: one_pod.processes)
        client.send(CLOSE, b"\x03\xe8")
    await until(lambda: one_pod.processes[0].program.returncode is not None)
