"""Connections to ports inside pods: /portForward."""

from __future__ import annotations

from aiohttp import web

from node_agent.drivers.pod_dial import dial
from node_agent.known_pods import KnownPods
from node_agent.server.port_forward import serve_port_forward
from node_agent.server.server import Route
from reconcile.errors import Refused
from streams.stream import Stream

PLACES = ("/{namespace}/{pod}", "/{namespace}/{pod}/{uid}")


class Forwards:
    """Into the network of the pod's sandbox; a pod of the host's network has the host's."""

    def __init__(self, pods: KnownPods) -> None:
        self._pods = pods

    def routes(self) -> tuple[Route, ...]:
        """Where they are found."""
        return tuple(Route(f"/portForward{place}", self._answer, ("GET", "POST")) for place in PLACES)

    async def _answer(self, http: web.Request) -> web.StreamResponse:
        place = http.match_info
        pod = self._pods.one(place["namespace"], place["pod"], place.get("uid", ""))

        async def connection(port: int) -> Stream:
            """A sandbox that was replaced in the meantime is found anew."""
            sandbox = (await self._pods.containers(pod)).sandbox
            if sandbox is None or not sandbox.running:
                raise Refused(f'pod "{pod.metadata.name}" has no network: its sandbox does not run')
            return await dial(sandbox.pid, port)

        if (box := (await self._pods.containers(pod)).sandbox) is None or not box.running:
            raise Refused(f'pod not found ("{pod.metadata.name}_{pod.metadata.namespace}")')
        return await serve_port_forward(http, connection, f"pod {pod.metadata.namespace}/{pod.metadata.name}")
