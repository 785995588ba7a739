"""A program on this machine with the interface of one in a container."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import pty
import signal
import struct
import termios
from collections.abc import AsyncIterator
from typing import Self

from node_agent.docker.exec import StreamSession, TerminalSize
from node_agent.docker.wire_format import STDERR, STDOUT


class LocalProcess(StreamSession):
    """A process as a stream session. At the end of the block, the process and its group are killed."""

    def __init__(self, program: asyncio.subprocess.Process, terminal: int | None) -> None:
        self.program = program
        self.left = False
        self._terminal = terminal

    @classmethod
    async def start(cls, command: tuple[str, ...], *, stdin: bool, tty: bool) -> Self:
        """Run it, with a terminal of its own if it is to have one."""
        if not tty:
            wanted = asyncio.subprocess.PIPE if stdin else asyncio.subprocess.DEVNULL
            pipe = asyncio.subprocess.PIPE
            program = await asyncio.create_subprocess_exec(
                *command, stdin=wanted, stdout=pipe, stderr=pipe, start_new_session=True, limit=1 << 15
            )
            return cls(program, None)
        ours, theirs = pty.openpty()
        program = await asyncio.create_subprocess_exec(
            "setsid", "--ctty", "--wait", *command, stdin=theirs, stdout=theirs, stderr=theirs, start_new_session=True
        )
        os.close(theirs)
        os.set_blocking(ours, False)
        return cls(program, ours)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.detach()

    async def output(self) -> AsyncIterator[tuple[int, bytes]]:
        if self._terminal is not None:
            while data := await self._from_terminal():
                yield STDOUT, data
            return
        pieces: asyncio.Queue[tuple[int, bytes]] = asyncio.Queue(maxsize=1)

        async def listen(source: int, pipe: asyncio.StreamReader | None) -> None:
            assert pipe is not None
            while data := await pipe.read(1 << 16):
                await pieces.put((source, data))
            await pieces.put((source, b""))

        listeners = [
            asyncio.create_task(listen(STDOUT, self.program.stdout)),
            asyncio.create_task(listen(STDERR, self.program.stderr)),
        ]
        try:
            for _ in listeners:
                while (piece := await pieces.get())[1]:
                    yield piece
        finally:
            for listener in listeners:
                listener.cancel()
            await asyncio.wait(listeners)

    async def write_stdin(self, data: bytes) -> None:
        if self._terminal is not None:
            while data:
                with contextlib.suppress(BlockingIOError):
                    data = data[os.write(self._terminal, data) :]
                await asyncio.sleep(0)
            return
        assert self.program.stdin is not None
        self.program.stdin.write(data)
        await self.program.stdin.drain()

    async def end_stdin(self) -> None:
        if self.program.stdin is not None:
            self.program.stdin.close()

    async def resize(self, size: TerminalSize) -> None:
        if self._terminal is not None:
            fcntl.ioctl(self._terminal, termios.TIOCSWINSZ, struct.pack("HHHH", size.height, size.width, 0, 0))

    async def exit_code(self) -> int:
        return await self.program.wait()

    async def detach(self) -> None:
        self.left = True
        if self.program.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.program.pid, signal.SIGKILL)
            await self.program.wait()
        if self.program.stdin is not None:
            self.program.stdin.close()
        if self._terminal is not None:
            os.close(self._terminal)
            self._terminal = None

    async def _from_terminal(self) -> bytes:
        """Return the next bytes of the terminal. A terminal whose other end is closed raises an error."""
        assert self._terminal is not None
        loop = asyncio.get_running_loop()
        ready = asyncio.Event()
        loop.add_reader(self._terminal, ready.set)
        try:
            await ready.wait()
            return os.read(self._terminal, 1 << 16)
        except OSError:
            return b""
        finally:
            loop.remove_reader(self._terminal)
