"""Programs in containers with a caller at the other end: /exec, /attach and /run."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import replace

from aiohttp import web

from api.objects import Pod
from node_agent.drivers.docker_streams import STDERR, Process, attach, start_exec
from node_agent.known_pods import KnownPods
from node_agent.observed import Container
from node_agent.server.log_source import spec_of
from node_agent.server.outcomes import Exited, Outcome
from node_agent.server.remote_command import RemoteCommand, asked, serve_remote_command
from node_agent.server.server import Route
from reconcile.errors import DriverError, Refused

log = logging.getLogger(__name__)

PLACES = ("/{namespace}/{pod}/{container}", "/{namespace}/{pod}/{uid}/{container}")
MOST_OUTPUT = 16 << 20
"""Bytes of output that `/run` answers with; what a program says beyond is lost."""


class Commands:
    """`socket` is Docker's."""

    def __init__(self, pods: KnownPods, socket: str) -> None:
        self._pods = pods
        self._socket = socket

    def routes(self) -> tuple[Route, ...]:
        """Where they are found."""
        both = ("GET", "POST")
        return tuple(
            route
            for place in PLACES
            for route in (
                Route(f"/exec{place}", self._exec, both),
                Route(f"/attach{place}", self._attach, both),
                Route(f"/run{place}", self._run, ("POST",)),
            )
        )

    async def _exec(self, http: web.Request) -> web.StreamResponse:
        wanted = asked(http.query)
        _, container = await self._running(http)

        async def run(command: RemoteCommand) -> Outcome:
            words, stdin, tty = wanted.command, wanted.stdin, wanted.tty
            return await relay(await start_exec(self._socket, container.id, words, stdin=stdin, tty=tty), command)

        return await serve_remote_command(http, wanted, run)

    async def _attach(self, http: web.Request) -> web.StreamResponse:
        """Whether there is a terminal is a matter of the container."""
        pod, container = await self._running(http)
        wish = spec_of(pod, container.name)
        wanted = asked(http.query)
        if wish is not None and wish.tty:
            wanted = replace(wanted, tty=True, stderr=False)
        else:
            wanted = replace(wanted, tty=False)

        async def run(command: RemoteCommand) -> Outcome:
            stdin, stdout, stderr = wanted.stdin, wanted.stdout, wanted.stderr
            process = await attach(self._socket, container.id, stdin=stdin, stdout=stdout, stderr=stderr)
            return await relay(process, command)

        return await serve_remote_command(http, wanted, run)

    async def _run(self, http: web.Request) -> web.StreamResponse:
        _, container = await self._running(http)
        words = tuple(http.query.get("cmd", "").split(" "))
        process = await start_exec(self._socket, container.id, words, stdin=False, tty=False)
        said = bytearray()
        async with process:
            async for _, data in process.output():
                said += data[: MOST_OUTPUT - len(said)]
            code = await process.exit_code()
        if code:
            raise Refused(f"command '{' '.join(words)}' exited with {code}: {said.decode(errors='replace')}")
        return web.Response(body=bytes(said), content_type="text/plain")

    async def _running(self, http: web.Request) -> tuple[Pod, Container]:
        """The container of the path. Raises Gone without the pod, Refused when it does not run."""
        place, name = http.match_info, http.match_info["container"]
        pod = self._pods.one(place["namespace"], place["pod"], place.get("uid", ""))
        seen = await self._pods.containers(pod)
        running = [one for one in seen.containers.get(name, ()) if one.running]
        if not running:
            raise Refused(f'container not found ("{name}")')
        return pod, running[0]


async def relay(process: Process, command: RemoteCommand) -> Outcome:
    """Carry everything between a program and a caller until it ends. Raises ConnectionError when the caller goes.

    A program that a caller leaves behind is ended.
    """
    async with process:
        carrying = [asyncio.ensure_future(one) for one in (_feed(process, command), _fit(process, command))]
        ending = asyncio.ensure_future(_listen(process, command))
        leaving = asyncio.ensure_future(command.left())
        tasks = {*carrying, ending, leaving}
        try:
            await asyncio.wait({ending, leaving}, return_when=asyncio.FIRST_COMPLETED)
            if not ending.done():
                raise ConnectionResetError("the caller has gone")
            return Exited(ending.result())
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)
            for task in carrying:
                _note(task)


def _note(task: asyncio.Future[None]) -> None:
    """Input and sizes matter no more when the output has ended; what is wrong in here does."""
    error = None if task.cancelled() else task.exception()
    if isinstance(error, (ConnectionError, DriverError)):
        log.debug("input ends", extra={"error": error})
    elif error is not None:
        raise error


async def _feed(process: Process, command: RemoteCommand) -> None:
    """What the caller says, until one of the two has heard enough."""
    if command.stdin is None:
        return
    while data := await command.stdin.read():
        await process.write_stdin(data)
    await process.end_stdin()


async def _fit(process: Process, command: RemoteCommand) -> None:
    async for size in command.resizes:
        await process.resize(size)


async def _listen(process: Process, command: RemoteCommand) -> int:
    """What the program says, to its end; how it ended."""
    async for number, data in process.output():
        stream = command.stderr if number == STDERR else command.stdout
        if stream is not None:
            await stream.write(data)
    return await process.exit_code()
