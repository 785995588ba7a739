"""SPDY with every kubectl of this machine, WebSockets disabled."""

from __future__ import annotations

import asyncio
import hashlib
import os
import random
import re
import shutil
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from tests.testbed.streaming.spdy_apiserver import BANNER, SpdyApiServer, one_pod

PROGRAMS = sorted(str(path) for path in Path(shutil.which("kubectl") or "/").resolve().parent.glob("kubectl*"))
BY_SPDY = {"KUBECTL_REMOTE_COMMAND_WEBSOCKETS": "false", "KUBECTL_PORT_FORWARD_WEBSOCKETS": "false"}
BIG = random.Random(7).randbytes(4 * 1024 * 1024)

pytestmark = pytest.mark.parametrize("program", PROGRAMS, ids=[Path(program).name for program in PROGRAMS])


@asynccontextmanager
async def kubectl(program: str, server: SpdyApiServer, *words: str) -> AsyncIterator[Process]:
    environment = {**os.environ, **BY_SPDY, "KUBECONFIG": "/dev/null", "KUBECACHEDIR": "/dev/null"}
    arguments = (f"--server=http://127.0.0.1:{server.port}", *words)
    process = await asyncio.create_subprocess_exec(
        program, *arguments, stdin=PIPE, stdout=PIPE, stderr=PIPE, env=environment
    )
    try:
        async with asyncio.timeout(60):
            yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()


async def ended(server: SpdyApiServer) -> None:
    while not server.reasons:
        await asyncio.sleep(0.01)


def write_records(server: SpdyApiServer, name: str) -> None:
    """Record the bytes of the client for the tests that replay them, if PODLANE_RECORD is set."""
    if folder := os.environ.get("PODLANE_RECORD"):
        for number, record in enumerate(server.records):
            Path(folder, f"{name}-{number}.client").write_bytes(record)


@pytest.mark.parametrize("data", [b"hello\n", BIG], ids=["little", "much"])
async def test_spdy_exec_echoes_stdin(program: str, data: bytes) -> None:
    async with one_pod() as server, kubectl(program, server, "exec", "-i", "p", "--", "cat") as process:
        stdout, stderr = await process.communicate(data)
        assert (process.returncode, stderr) == (0, b"")
        assert hashlib.sha256(stdout).digest() == hashlib.sha256(data).digest()
        await ended(server)
        assert server.reasons == ["the session was closed here"]
        if len(data) < 1000:
            write_records(server, f"exec-{Path(program).name}")


async def test_spdy_exec_without_stdin_ends(program: str) -> None:
    async with one_pod() as server, kubectl(program, server, "exec", "p", "--", "true") as process:
        assert await process.communicate() == (b"", b"")
        assert process.returncode == 0


async def test_spdy_output_is_complete_after_the_program_ended(program: str) -> None:
    async with one_pod() as server, kubectl(program, server, "exec", "p", "--", "say") as process:
        while not (server.sessions and server.sessions[0].reason):
            await asyncio.sleep(0.01)
        assert server.sessions[0].reason == "the session was closed here"
        assert await process.communicate() == (BANNER, b"")
        assert process.returncode == 0


async def test_spdy_port_forward_carries_many_connections(program: str) -> None:
    async with one_pod() as server, kubectl(program, server, "port-forward", "p", ":80") as process:
        assert process.stdout
        reported = re.search(rb":(\d+) -> 80", await process.stdout.readline())
        assert reported
        port = int(reported[1])
        assert await asyncio.gather(*[through(port, bytes([number]) * 100) for number in range(3)]) == [
            bytes([number]) * 100 for number in range(3)
        ]
        record = len(server.records[0])
        sent = [BIG[number * 1000 :] for number in range(20)]
        came = await asyncio.gather(*[through(port, data) for data in sent])
        assert [hashlib.sha256(data).digest() for data in came] == [hashlib.sha256(data).digest() for data in sent]
        del server.records[0][record:]
        write_records(server, f"port-forward-{Path(program).name}")


async def through(port: int, data: bytes) -> bytes:
    """Send all data, end the output, and return the response."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)

    async def send() -> None:
        writer.write(data)
        await writer.drain()
        writer.write_eof()

    sending = asyncio.create_task(send())
    came = await reader.read(-1)
    await sending
    writer.close()
    await writer.wait_closed()
    return came


async def test_killed_kubectl_ends_the_spdy_session(program: str) -> None:
    async with one_pod() as server, kubectl(program, server, "exec", "-i", "p", "--", "cat") as process:
        assert process.stdin
        assert process.stdout
        process.stdin.write(b"first\n")
        assert await process.stdout.readline() == b"first\n"
        process.kill()
        await ended(server)
        assert server.reasons == ["the other side closed the connection"]
