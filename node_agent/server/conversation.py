"""A program and the client who started it: joins what one says to what the other hears, until either has gone."""

from __future__ import annotations

import asyncio
import contextlib

from node_agent.drivers.docker_streams import STDERR, Process
from node_agent.server.outcomes import Exited, Outcome
from node_agent.server.remote_command import RemoteCommand
from streams.stream import Stream

FAREWELL_SECONDS = 5.0
"""So long a program may take to read what a client sent before it left, and to end, when the client has no other way to
say that its input ends."""


async def converse(process: Process, command: RemoteCommand) -> Outcome:
    """Let them talk, and say how the program ended; when the client goes before, the program is left.

    Raises ConnectionError when the client has gone, Gone and NotReady as the process does.
    """
    async with process:
        listening = asyncio.create_task(_tell(process, command))
        speaking = asyncio.create_task(_ask(process, command.stdin))
        resizing = asyncio.create_task(_resize(process, command))
        leaving = asyncio.ensure_future(command.left())
        tasks = (listening, speaking, resizing, leaving)
        try:
            await asyncio.wait((listening, leaving), return_when=asyncio.FIRST_COMPLETED)
            if not listening.done() and not command.ends_input:
                with contextlib.suppress(TimeoutError, ConnectionError):
                    async with asyncio.timeout(FAREWELL_SECONDS):
                        await speaking
                        await listening
            if not listening.done() or leaving.done():
                raise ConnectionResetError("the client has gone before the program had ended")
            await listening
            return Exited(await process.exit_code())
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)


async def _tell(process: Process, command: RemoteCommand) -> None:
    """Pass on what the program says. When the client has gone it is dropped: the program must not wait for nobody."""
    gone: ConnectionError | None = None
    async for source, data in process.output():
        to = command.stderr if source == STDERR else command.stdout
        if to is not None and gone is None:
            try:
                await to.write(data)
            except ConnectionError as error:
                gone = error
    if gone is not None:
        raise gone


async def _ask(process: Process, stdin: Stream | None) -> None:
    """Pass on what the client says; a client that was lost has said all it can."""
    if stdin is None:
        return
    with contextlib.suppress(ConnectionError):
        while data := await stdin.read():
            await process.write_stdin(data)
    with contextlib.suppress(ConnectionError):
        await process.end_stdin()


async def _resize(process: Process, command: RemoteCommand) -> None:
    async for size in command.resizes:
        await process.resize(size)
