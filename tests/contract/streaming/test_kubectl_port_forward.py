"""`kubectl port-forward` of every version, in each protocol that it speaks."""

from __future__ import annotations

import asyncio
import hashlib
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from tests.testbed.kubectl import Kubectl, few, kinds
from tests.testbed.streaming.pod_server import PodServer

KINDS = kinds(first_with_websockets="1.31")
END = b"quit"

Talk = tuple[asyncio.StreamReader, asyncio.StreamWriter]


@pytest.fixture(params=KINDS, ids=str)
def kubectl(request: pytest.FixtureRequest, one_pod: PodServer, tmp_path: Path) -> Kubectl:
    return Kubectl(request.param, one_pod.url, tmp_path)


@asynccontextmanager
async def listening(kind: str) -> AsyncIterator[int]:
    """Run a program of the pod: `echo` until the client ends, `digest` of all input, `greet` and close, or `reset`."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            match kind:
                case "echo":
                    while data := await reader.read(1 << 16):
                        writer.write(data)
                        await writer.drain()
                case "digest":
                    actual = hashlib.sha256()
                    while data := await reader.read(1 << 16):
                        actual.update(data)
                    writer.write(actual.hexdigest().encode())
                case "greet":
                    writer.write(b"hello" * 100_000)
                case "reset":
                    writer.transport.abort()
            await writer.drain()
        except ConnectionError:
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        yield server.sockets[0].getsockname()[1]


@asynccontextmanager
async def forwarded(kubectl: Kubectl, *ports: int) -> AsyncIterator[tuple[asyncio.subprocess.Process, list[int]]]:
    """Forward ports with kubectl. Yield its process and the local ports."""
    client = await kubectl.start("port-forward", "--address=127.0.0.1", "pod/p", *(f":{port}" for port in ports))
    assert client.stdout is not None
    actual = []
    try:
        async with asyncio.timeout(60):
            for _ in ports:
                line = await client.stdout.readline()
                assert line.startswith(b"Forwarding from 127.0.0.1:"), (line, client.stderr)
                actual.append(int(line.split()[2].rpartition(b":")[2]))
            yield client, actual
    finally:
        if client.returncode is None:
            client.terminate()
        await client.communicate()


async def test_kubectl_port_forward_carries_many_ports_and_connections(kubectl: Kubectl) -> None:
    async with listening("echo") as first, listening("echo") as other, forwarded(kubectl, first, other) as (_, ports):
        talks = [await asyncio.open_connection("127.0.0.1", port) for port in ports * 10]
        for number, (_, writer) in enumerate(talks):
            writer.write(f"to {number}".encode())
        for number, (reader, writer) in reversed([*enumerate(talks)]):
            expected = f"to {number}".encode()
            assert await reader.readexactly(len(expected)) == expected
            writer.close()


async def test_port_forward_session_continues_when_the_program_closes_first(kubectl: Kubectl) -> None:
    async with listening("greet") as port, forwarded(kubectl, port) as (_, [local]):
        for _ in range(3):
            reader, writer = await asyncio.open_connection("127.0.0.1", local)
            assert await reader.read() == b"hello" * 100_000
            writer.close()


async def test_port_forward_session_continues_when_the_client_closes_first(kubectl: Kubectl) -> None:
    async with listening("echo") as port, forwarded(kubectl, port) as (_, [local]):
        for _ in range(3):
            reader, writer = await asyncio.open_connection("127.0.0.1", local)
            writer.write(b"x")
            assert await reader.readexactly(1) == b"x"
            writer.close()
            await writer.wait_closed()


async def test_port_forward_delivers_an_answer_after_the_clients_half_close(kubectl: Kubectl) -> None:
    data = os.urandom(1 << 20)
    async with listening("digest") as port, forwarded(kubectl, port) as (_, [local]):
        reader, writer = await asyncio.open_connection("127.0.0.1", local)
        writer.write(data)
        writer.write_eof()
        assert await reader.read() == hashlib.sha256(data).hexdigest().encode()
        writer.close()


async def test_port_forward_reset_by_the_program_ends_one_connection_only(kubectl: Kubectl) -> None:
    async with listening("reset") as bad, listening("echo") as good, forwarded(kubectl, bad, good) as (_, ports):
        reader, writer = await asyncio.open_connection("127.0.0.1", ports[0])
        assert await reader.read() == b""
        writer.close()
        reader, writer = await asyncio.open_connection("127.0.0.1", ports[1])
        writer.write(b"still here")
        assert await reader.readexactly(10) == b"still here"
        writer.close()


async def test_kubectl_reports_why_a_port_is_not_forwarded(kubectl: Kubectl) -> None:
    async with listening("echo") as port:
        pass
    async with forwarded(kubectl, port) as (client, [local]):
        reader, writer = await asyncio.open_connection("127.0.0.1", local)
        assert await reader.read() == b""
        writer.close()
        assert client.stderr is not None
        while b"error forwarding port" not in (line := await client.stderr.readline()):
            assert line, "kubectl ended without a word"
    assert f"error forwarding port {port} to pod p, uid u: ".encode() in line
    assert b"Connect call failed" in line


@pytest.mark.parametrize("kubectl", few(KINDS), indirect=True, ids=str)
async def test_kubectl_port_forward_copies_64_megabytes_both_ways(kubectl: Kubectl) -> None:
    data = os.urandom(1 << 20) * 64
    async with listening("echo") as port, forwarded(kubectl, port) as (_, [local]):
        reader, writer = await asyncio.open_connection("127.0.0.1", local)
        writer.write(data)
        assert hashlib.sha256(await reader.readexactly(len(data))).digest() == hashlib.sha256(data).digest()
        writer.close()


async def test_killed_kubectl_port_forward_leaves_no_connection(kubectl: Kubectl) -> None:
    removed = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"x")
        await reader.read()
        removed.set()
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        async with forwarded(kubectl, port) as (client, [local]):
            reader, writer = await asyncio.open_connection("127.0.0.1", local)
            assert await reader.readexactly(1) == b"x"
            client.kill()
            await removed.wait()
            writer.close()
