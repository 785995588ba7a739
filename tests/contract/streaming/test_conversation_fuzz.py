"""Recorded streaming sessions with all kinds of mutations: each ends in order and leaves nothing.

PODLANE_FUZZ_FRAMES is the number of frames (100,000 is a long run). PODLANE_FUZZ_SEED is the seed, by default random; a
failure prints it.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import random
import socket
import struct
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any, Self

import pytest
from aiohttp.http_exceptions import HttpProcessingError

from node_agent.server import portforward
from node_agent.server.exec import copy_streams
from node_agent.server.streaming.remotecommand import Exited, Outcome, RemoteCommand, StreamOptions
from reconcile.errors import Refused
from streams.stream import Stream
from tests.testbed.streaming import mutations, pod_server
from tests.testbed.streaming.local_process import LocalProcess
from tests.testbed.streaming.mutations import Conversation
from tests.testbed.streaming.pod_server import PodServer, running_pod_server

log = logging.getLogger(__name__)

FRAMES = int(os.environ.get("PODLANE_FUZZ_FRAMES", "40000"))
SEED = int(os.environ.get("PODLANE_FUZZ_SEED", "0")) or random.SystemRandom().randrange(1, 1 << 32)
AT_ONCE = 24
CONVERSATIONS = mutations.load()
REPLY = b"HTTP/1.1 101 "


@dataclass
class Pod:
    """A pod whose programs and ports are sometimes real, and checks of its remains."""

    server: PodServer
    dice: random.Random
    echo: int = 0
    talks: set[asyncio.StreamWriter] = field(default_factory=set)
    commands: int = 0
    connections: int = 0
    refuses: bool = True
    """Whether its programs and ports are not there, now and then."""

    async def run(self, wanted: StreamOptions, command: RemoteCommand) -> Outcome:
        self.commands += 1
        if self.dice.random() < 0.05:
            process = await LocalProcess.start(("cat",), stdin=wanted.stdin, tty=False)
            self.server.processes.append(process)
            return await copy_streams(process, command)
        if self.refuses and self.dice.random() < 0.05:
            raise Refused("this container does not run")
        return await self._speak(command)

    async def _speak(self, command: RemoteCommand) -> Outcome:
        """Echo the input. End when the input ends or the client disconnects."""

        async def repeat() -> None:
            while command.stdin is not None and (data := await command.stdin.read()):
                for stream in (command.stdout, command.stderr):
                    if stream is not None:
                        await stream.write(data)

        async def fit() -> None:
            async for size in command.terminal_sizes:
                assert 0 <= size.width <= 0xFFFF

        leaving, talking = asyncio.ensure_future(command.client_gone()), asyncio.create_task(repeat())
        fitting = asyncio.create_task(fit())
        await asyncio.wait({leaving, talking}, return_when=asyncio.FIRST_COMPLETED)
        for task in (leaving, talking, fitting):
            task.cancel()
        await asyncio.gather(leaving, talking, fitting, return_exceptions=True)
        return Exited(self.dice.randrange(256))

    async def dial(self, port: int) -> Stream:
        if self.refuses and self.dice.random() < 0.1:
            raise Refused("nobody listens")
        self.connections += 1
        return await pod_server.dial(self.echo)

    async def repeat(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.talks.add(writer)
        with contextlib.suppress(ConnectionError):
            while data := await reader.read(1 << 16):
                writer.write(data)
                await writer.drain()
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()
        self.talks.discard(writer)


@pytest.fixture
async def pod(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Pod]:
    monkeypatch.setattr(portforward, "DRAIN_SECONDS", 0.05)
    async with running_pod_server() as server:
        fuzzed = Pod(server, random.Random(SEED))
        server.work, server.dial = fuzzed.run, fuzzed.dial
        async with await asyncio.start_server(fuzzed.repeat, "127.0.0.1", 0) as echo:
            fuzzed.echo = echo.sockets[0].getsockname()[1]
            yield fuzzed


class Client:
    """A connection of a client that reads the output of the server."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.output = b""
        self.has_output = asyncio.Event()
        self.writer = writer
        self.listening = asyncio.create_task(self._listen(reader))

    @classmethod
    @contextlib.asynccontextmanager
    async def to(cls, url: str) -> AsyncIterator[Self]:
        host, _, port = url.removeprefix("http://").rpartition(":")
        client = cls(*await asyncio.open_connection(host, int(port)))
        try:
            yield client
        finally:
            client.writer.close()
            with contextlib.suppress(ConnectionError):
                await client.writer.wait_closed()
            client.listening.cancel()
            await asyncio.wait({client.listening})

    async def _listen(self, reader: asyncio.StreamReader) -> None:
        with contextlib.suppress(ConnectionError):
            while data := await reader.read(1 << 16):
                self.output += data
                self.has_output.set()
        self.has_output.set()

    async def answered(self) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(1):
                while mutations.HEAD_END not in self.output and not self.listening.done():
                    self.has_output.clear()
                    await self.has_output.wait()

    def reset(self) -> None:
        linger = struct.pack("ii", 1, 0)
        self.writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)


async def talk(dice: random.Random, url: str, head: bytes, pieces: list[bytes]) -> bool:
    """Send the pieces and end in one of the ways in which clients end; whether there was a conversation."""
    async with Client.to(url) as client:
        with contextlib.suppress(OSError):
            client.writer.write(head)
            if dice.random() < 0.95:
                await client.answered()
            for piece in pieces:
                client.writer.write(piece)
                if dice.random() < 0.2:
                    await client.writer.drain()
                    await asyncio.sleep(0)
            match dice.choice(("wait", "wait", "half", "reset", "close")):
                case "half":
                    client.writer.write_eof()
                    await asyncio.wait({client.listening}, timeout=0.2)
                case "wait":
                    await asyncio.wait({client.listening}, timeout=0.05)
                case "reset":
                    client.reset()
    return client.output.startswith(REPLY)


async def settled(pod: Pod, tasks: set[asyncio.Task[Any]], files: int) -> None:
    """Wait until nothing of a session is left. A remainder is a leak."""

    def left() -> list[object]:
        running = asyncio.all_tasks() - tasks - {asyncio.current_task()}
        programs = [process.program for process in pod.server.processes if process.program.returncode is None]
        return [
            *running,
            *pod.talks,
            *programs,
            *([f"{open_files()} open files, before {files}"] if open_files() > files else []),
        ]

    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(20):
            while left():
                await asyncio.sleep(0.02)
    assert not left()


def of_a_bad_head(record: logging.LogRecord) -> bool:
    """Return whether a record is of aiohttp about invalid HTTP, or about a body that is shorter than announced."""
    error = record.exc_info[1] if record.exc_info else None
    return isinstance(error, HttpProcessingError) or str(error) == "Connection closed."


def open_files() -> int:
    return len(os.listdir("/proc/self/fd"))


@pytest.mark.parametrize("conversation", CONVERSATIONS, ids=lambda conversation: conversation.name)
async def test_recorded_conversation_is_understood(pod: Pod, conversation: Conversation) -> None:
    """Without this the fuzzer might send nothing that anybody understands."""
    pod.refuses = False
    async with Client.to(pod.server.url) as client, asyncio.timeout(10):
        client.writer.write(conversation.head)
        await client.answered()
        client.writer.write(b"".join(conversation.encoded(conversation.without_goodbye())))
        while not (pod.connections if "ports" in conversation.name else pod.commands):
            await asyncio.sleep(0.01)
    assert client.output.startswith(REPLY)


async def test_mutated_conversation_ends_and_leaves_nothing(pod: Pod, caplog: pytest.LogCaptureFixture) -> None:
    log.setLevel(logging.INFO)
    try:
        await everything_mutated(pod)
        assert not [
            record for record in caplog.records if record.levelno >= logging.ERROR and not of_a_bad_head(record)
        ]
    except BaseException as error:
        error.add_note(f"PODLANE_FUZZ_SEED={SEED}")
        raise


async def everything_mutated(pod: Pod) -> None:
    dice = random.Random(SEED)
    tasks, files = asyncio.all_tasks(), open_files()
    sent = begun = 0
    running: set[asyncio.Task[bool]] = set()
    while sent < FRAMES:
        conversation, other = dice.choice(CONVERSATIONS), dice.choice(CONVERSATIONS)
        head, pieces, frames = mutations.mutated(dice, conversation, other)
        sent += frames
        running.add(asyncio.create_task(talk(random.Random(dice.random()), pod.server.url, head, pieces)))
        if len(running) >= AT_ONCE:
            done, running = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
            begun += sum(task.result() for task in done)
    if running:
        done, _ = await asyncio.wait(running)
        begun += sum(task.result() for task in done)
    await settled(pod, tasks, files)
    log.info("%d frames, %d conversations, %d commands, %d connections", sent, begun, pod.commands, pod.connections)
    assert begun > 0
    assert pod.commands > 0
    assert pod.connections > 0
