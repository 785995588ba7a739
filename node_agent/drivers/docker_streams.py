"""Programs in containers, and containers themselves, with somebody at the other end: exec and attach."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Protocol, Self

STDOUT, STDERR = 1, 2


@dataclass(frozen=True, slots=True)
class Size:
    """Of a terminal, in characters."""

    width: int
    height: int


class Process(Protocol):
    """What runs at the other end. Use it as an async context manager: leaving the block lets go of it (`leave`)."""

    async def __aenter__(self) -> Self: ...

    async def __aexit__(self, *_: object) -> None: ...

    def output(self) -> AsyncIterator[tuple[int, bytes]]:
        """Give what it says, as it comes: STDOUT or STDERR, and bytes; with a terminal everything is STDOUT.

        To be asked for once. Who reads slowly holds it up. Raises NotReady when Docker goes away.
        """
        ...

    async def write_stdin(self, data: bytes) -> None:
        """Send input and return when there is room for more. Raises ConnectionError when nobody reads it any more."""
        ...

    async def end_stdin(self) -> None:
        """Say that no input follows. A terminal has no such end, nor a container that outlives who is attached."""
        ...

    async def resize(self, size: Size) -> None:
        """Give its terminal a size; no error where there is none, or no longer."""
        ...

    async def exit_code(self) -> int:
        """How it ended; to be asked when its output has ended. Of an attached container 0: it has not ended for us.

        Raises Gone when the container was removed, NotReady when Docker does not tell.
        """
        ...

    async def leave(self) -> None:
        """Let go, whether it has ended or not; a second time does nothing.

        A program that has not ended gets SIGHUP, with its process group, and after 5 seconds SIGKILL; this returns
        when it has gone. A container is only detached from.
        """
        ...


async def start_exec(
    socket: str, container: str, command: tuple[str, ...], *, stdin: bool, tty: bool, size: Size | None = None
) -> Process:
    """Start a program in a running container. One that cannot be run says why on STDOUT and ends with 126 or 127.

    Raises Gone without the container, Refused when it does not run, NotReady when Docker is away or hangs.
    """
    raise NotImplementedError


async def attach(socket: str, container: str, *, stdin: bool, stdout: bool, stderr: bool) -> Process:
    """Listen to a running container from now on, and talk to it if it was made for that. It knows of its terminal.

    Raises Gone, Refused when it does not run, NotReady when Docker is away or hangs.
    """
    raise NotImplementedError
