"""Programs in containers with a caller at the other end: /exec, /attach and /run."""

from __future__ import annotations

from dataclasses import replace

from aiohttp import web

from api.objects import Pod
from node_agent.drivers.docker_streams import Process, attach, start_exec
from node_agent.drivers.started import Started
from node_agent.known_pods import KnownPods
from node_agent.observed import Container
from node_agent.server.conversation import converse
from node_agent.server.log_source import spec_of
from node_agent.server.outcomes import Outcome
from node_agent.server.remote_command import RemoteCommand, asked, serve_remote_command
from node_agent.server.server import Route
from reconcile.errors import Refused

PLACES = ("/{namespace}/{pod}/{container}", "/{namespace}/{pod}/{uid}/{container}")
MOST_OUTPUT = 16 << 20
"""Bytes of output that `/run` answers with; what a program says beyond is lost."""

NOT_FOUND = 'container not found ("{container}")'
NOT_ATTACHED = "container {container} not found in pod {pod}_{namespace}"
"""What a kubelet says of a container that does not run, in /exec and /run, and in /attach."""


class Commands:
    """`socket` is Docker's; what runs for a caller stands in `started`."""

    def __init__(self, pods: KnownPods, socket: str, started: Started) -> None:
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
        wanted = asked(http.query)
        _, container = await self._running(http)

        async def run(command: RemoteCommand) -> Outcome:
            process = await self._start(container, wanted.command, stdin=wanted.stdin, tty=wanted.tty)
            return await converse(process, command)

        return await serve_remote_command(http, wanted, run)

    async def _attach(self, http: web.Request) -> web.StreamResponse:
        """Whether there is a terminal is a matter of the container."""
        pod, container = await self._running(http, NOT_ATTACHED)
        wish = spec_of(pod, container.name)
        wanted = asked(http.query)
        tty = wish is not None and wish.tty
        wanted = replace(wanted, tty=tty, stderr=wanted.stderr and not tty)

        async def run(command: RemoteCommand) -> Outcome:
            stdin, stdout, stderr = wanted.stdin, wanted.stdout, wanted.stderr
            process = await attach(self._socket, container.id, stdin=stdin, stdout=stdout, stderr=stderr)
            return await converse(process, command)

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

    async def _start(self, container: Container, words: tuple[str, ...], *, stdin: bool, tty: bool) -> Process:
        return await start_exec(self._socket, container.id, words, stdin=stdin, tty=tty, started=self._started)

    async def _running(self, http: web.Request, otherwise: str = NOT_FOUND) -> tuple[Pod, Container]:
        """The container of the path. Raises Gone without the pod, Refused in these words when it does not run."""
        place, name = http.match_info, http.match_info["container"]
        pod = self._pods.one(place["namespace"], place["pod"], place.get("uid", ""))
        seen = await self._pods.containers(pod)
        running = [one for one in seen.containers.get(name, ()) if one.running]
        if not running:
            raise Refused(otherwise.format(**place))
        return pod, running[0]
