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

PATHS = ("/{namespace}/{pod}/{container}", "/{namespace}/{pod}/{uid}/{container}")

MAX_RUN_OUTPUT_BYTES = 16 << 20
"""Limit of the output that /run returns. Further output is dropped."""

DRAIN_SECONDS = 5.0
"""Time that a program gets to read its input and to exit after the client has disconnected.

It applies to protocols in which a client can end its input only by disconnecting.
"""

NOT_FOUND = 'container not found ("{container}")'
NOT_ATTACHED = "container {container} not found in pod {pod}_{namespace}"
"""The kubelet's messages for a container that does not run: of /exec and /run, and of /attach."""


class ExecHandlers:
    """Handlers that run programs in containers. `socket` is the path of Docker's socket.

    `journal` records running programs.
    """

    def __init__(self, pods: PodLister, socket: str, journal: ExecJournal) -> None:
        self._pods = pods
        self._socket = socket
        self._journal = journal

    def routes(self) -> tuple[Route, ...]:
        """Return the routes of the handlers."""
        return tuple(
            route
            for path in PATHS
            for route in (
                Route(f"/exec{path}", self._exec, ("GET", "POST")),
                Route(f"/attach{path}", self._attach, ("GET", "POST")),
                Route(f"/run{path}", self._run, ("POST",)),
            )
        )

    async def _exec(self, request: web.Request) -> web.StreamResponse:
        options = parse_stream_options(request.query)
        _, container = await self._running_container(request, NOT_FOUND)

        async def run(command: RemoteCommand) -> Outcome:
            session = await self._start(container, options.command, stdin=options.stdin, tty=options.tty)
            return await copy_streams(session, command)

        return await serve_remote_command(request, options, run)

    async def _attach(self, request: web.Request) -> web.StreamResponse:
        """Attach to a container. The container's spec decides whether there is a terminal, not the client."""
        pod, container = await self._running_container(request, NOT_ATTACHED)
        spec = find_container_spec(pod, container.name)
        tty = spec is not None and spec.tty
        requested = parse_stream_options(request.query)
        options = replace(requested, tty=tty, stderr=requested.stderr and not tty)

        async def run(command: RemoteCommand) -> Outcome:
            session = await attach(
                self._socket, container.id, stdin=options.stdin, stdout=options.stdout, stderr=options.stderr
            )
            return await copy_streams(session, command)

        return await serve_remote_command(request, options, run)

    async def _run(self, request: web.Request) -> web.StreamResponse:
        _, container = await self._running_container(request, NOT_FOUND)
        arguments = tuple(request.query.get("cmd", "").split(" "))
        session = await self._start(container, arguments, stdin=False, tty=False)
        output = bytearray()
        async with session:
            async for _, data in session.output():
                output += data[: MAX_RUN_OUTPUT_BYTES - len(output)]
            exit_code = await session.exit_code()
        if exit_code:
            raise Refused(f"command '{' '.join(arguments)}' exited with {exit_code}: {output.decode(errors='replace')}")
        return web.Response(body=bytes(output), content_type="text/plain")

    async def _start(
        self, container: RuntimeContainer, command: tuple[str, ...], *, stdin: bool, tty: bool
    ) -> StreamSession:
        return await start_exec(self._socket, container.id, command, stdin=stdin, tty=tty, journal=self._journal)

    async def _running_container(self, request: web.Request, not_running: str) -> tuple[Pod, RuntimeContainer]:
        """Return pod and container of the path.

        Raises Gone if the pod does not exist, Refused with the message `not_running` if the container does not run.
        """
        path = request.match_info
        pod = self._pods.get_pod(path["namespace"], path["pod"], path.get("uid", ""))
        runtime_pod = await self._pods.get_containers(pod)
        for container in runtime_pod.containers.get(path["container"], ()):
            if container.running:
                return pod, container
        raise Refused(not_running.format(**path))


async def copy_streams(session: StreamSession, command: RemoteCommand) -> Outcome:
    """Copy between a client and a program until the program exits, and return its exit code.

    If the client disconnects first, the session is left: a program that exec started is ended, an attached container
    continues (`StreamSession.detach`). Raises ConnectionError if the client disconnects, and Gone and NotReady as the
    session does.
    """
    async with session:
        output = asyncio.create_task(_copy_output(session, command))
        stdin = asyncio.create_task(_copy_stdin(session, command.stdin))
        resize = asyncio.create_task(_resize_terminal(session, command))
        client_gone = asyncio.ensure_future(command.client_gone())
        tasks = (output, stdin, resize, client_gone)
        try:
            await asyncio.wait((output, client_gone), return_when=asyncio.FIRST_COMPLETED)
            if not output.done() and not command.can_end_stdin:
                with contextlib.suppress(TimeoutError, ConnectionError):
                    async with asyncio.timeout(DRAIN_SECONDS):
                        await stdin
                        await output
            if not output.done() or client_gone.done():
                raise ConnectionResetError("the client disconnected before the program exited")
            await output
            return Exited(await session.exit_code())
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)


async def _copy_output(session: StreamSession, command: RemoteCommand) -> None:
    """Send the program's output to the client.

    After the client has disconnected, output is read and dropped, because the program would block otherwise.
    """
    disconnected: ConnectionError | None = None
    async for source, data in session.output():
        stream = command.stderr if source == STDERR else command.stdout
        if stream is not None and disconnected is None:
            try:
                await stream.write(data)
            except ConnectionError as error:
                disconnected = error
    if disconnected is not None:
        raise disconnected


async def _copy_stdin(session: StreamSession, stdin: Stream | None) -> None:
    """Send the client's input to the program, and its end. A lost connection is the end of the input, too."""
    if stdin is None:
        return
    with contextlib.suppress(ConnectionError):
        while data := await stdin.read():
            await session.write_stdin(data)
    with contextlib.suppress(ConnectionError):
        await session.end_stdin()


async def _resize_terminal(session: StreamSession, command: RemoteCommand) -> None:
    async for size in command.terminal_sizes:
        await session.resize(size)
