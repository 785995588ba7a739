"""/exec, /attach, /run: copies between client and program."""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import replace

from aiohttp import web

from api.core.pod import Pod
from node_agent.docker.exec import ExecJournal, StreamSession, attach, start_exec
from node_agent.docker.wire_format import STDERR
from node_agent.runtime.container import RuntimeContainer
from node_agent.server.logs import find_container_spec
from node_agent.server.pod_lister import PodLister
from node_agent.server.server import Route
from node_agent.server.streaming.remotecommand import (
    Exited,
    Outcome,
    RemoteCommand,
    parse_stream_options,
    serve_remote_command,
)
from reconcile.errors import Refused
from streams.stream import Stream

FAREWELL_SECONDS = 5.0
"""So long a program may take to read what a client sent before it left, and to end, when the client has no other way to
say that its input ends."""


async def copy_streams(process: StreamSession, command: RemoteCommand) -> Outcome:
    """Let them talk, and say how the program ended; when the client goes before, the program is left.

    Raises ConnectionError when the client has gone, Gone and NotReady as the process does.
    """
    async with process:
        listening = asyncio.create_task(_copy_output(process, command))
        speaking = asyncio.create_task(_copy_stdin(process, command.stdin))
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


async def _copy_output(process: StreamSession, command: RemoteCommand) -> None:
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


async def _copy_stdin(process: StreamSession, stdin: Stream | None) -> None:
    """Pass on what the client says; a client that was lost has said all it can."""
    if stdin is None:
        return
    with contextlib.suppress(ConnectionError):
        while data := await stdin.read():
            await process.write_stdin(data)
    with contextlib.suppress(ConnectionError):
        await process.end_stdin()


async def _resize(process: StreamSession, command: RemoteCommand) -> None:
    async for size in command.resizes:
        await process.resize(size)


PLACES = ("/{namespace}/{pod}/{container}", "/{namespace}/{pod}/{uid}/{container}")
MOST_OUTPUT = 16 << 20
"""Bytes of output that `/run` answers with; what a program says beyond is lost."""

NOT_FOUND = 'container not found ("{container}")'
NOT_ATTACHED = "container {container} not found in pod {pod}_{namespace}"
"""What a kubelet says of a container that does not run, in /exec and /run, and in /attach."""


class ExecHandlers:
    """`socket` is Docker's; what runs for a caller stands in `started`."""

    def __init__(self, pods: PodLister, socket: str, started: ExecJournal) -> None:
        self._pods = pods
        self._socket = socket
        self._started = started

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
        wanted = parse_stream_options(http.query)
        _, container = await self._running(http)

        async def run(command: RemoteCommand) -> Outcome:
            process = await self._start(container, wanted.command, stdin=wanted.stdin, tty=wanted.tty)
            return await copy_streams(process, command)

        return await serve_remote_command(http, wanted, run)

    async def _attach(self, http: web.Request) -> web.StreamResponse:
        """Whether there is a terminal is a matter of the container."""
        pod, container = await self._running(http, NOT_ATTACHED)
        wish = find_container_spec(pod, container.name)
        wanted = parse_stream_options(http.query)
        tty = wish is not None and wish.tty
        wanted = replace(wanted, tty=tty, stderr=wanted.stderr and not tty)

        async def run(command: RemoteCommand) -> Outcome:
            stdin, stdout, stderr = wanted.stdin, wanted.stdout, wanted.stderr
            process = await attach(self._socket, container.id, stdin=stdin, stdout=stdout, stderr=stderr)
            return await copy_streams(process, command)

        return await serve_remote_command(http, wanted, run)

    async def _run(self, http: web.Request) -> web.StreamResponse:
        _, container = await self._running(http)
        words = tuple(http.query.get("cmd", "").split(" "))
        process = await self._start(container, words, stdin=False, tty=False)
        said = bytearray()
        async with process:
            async for _, data in process.output():
                said += data[: MOST_OUTPUT - len(said)]
            code = await process.exit_code()
        if code:
            raise Refused(f"command '{' '.join(words)}' exited with {code}: {said.decode(errors='replace')}")
        return web.Response(body=bytes(said), content_type="text/plain")

    async def _start(
        self, container: RuntimeContainer, words: tuple[str, ...], *, stdin: bool, tty: bool
    ) -> StreamSession:
        return await start_exec(self._socket, container.id, words, stdin=stdin, tty=tty, journal=self._started)

    async def _running(self, http: web.Request, otherwise: str = NOT_FOUND) -> tuple[Pod, RuntimeContainer]:
        """The container of the path. Raises Gone without the pod, Refused in these words when it does not run."""
        place, name = http.match_info, http.match_info["container"]
        pod = self._pods.get_pod(place["namespace"], place["pod"], place.get("uid", ""))
        seen = await self._pods.get_containers(pod)
        running = [one for one in seen.containers.get(name, ()) if one.running]
        if not running:
            raise Refused(otherwise.format(**place))
        return pod, running[0]
