"""What a container has written, as it was written: GET /containerLogs/NAMESPACE/POD/CONTAINER."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator

import msgspec
from aiohttp import web

from node_agent import log_wish
from node_agent.drivers.docker_logs import logs
from node_agent.known_pods import KnownPods
from node_agent.server.log_source import NoLog, log_source, spec_of
from node_agent.server.server import Route
from reconcile.errors import DriverError, Gone, NotReady

log = logging.getLogger(__name__)


class Logs:
    """Follows a log until the container ends or the caller goes. `socket` is Docker's."""

    def __init__(self, pods: KnownPods, socket: str) -> None:
        self._pods = pods
        self._socket = socket

    def routes(self) -> tuple[Route, ...]:
        """Where they are found."""
        return (Route("/containerLogs/{namespace}/{pod}/{container}", self._answer),)

    async def _answer(self, http: web.Request) -> web.StreamResponse:
        name = http.match_info["container"]
        try:
            wish = log_wish.read({key: http.query.getall(key) for key in http.query})
        except log_wish.UnwelcomeWish as error:
            return web.Response(status=error.status, body=msgspec.json.encode({"message": str(error)}))
        pod = self._pods.one(http.match_info["namespace"], http.match_info["pod"])
        if spec_of(pod, name) is None:
            raise Gone(f'container "{name}" not found in pod "{pod.metadata.name}"')
        try:
            async with logs(self._socket, log_source(pod, name, previous=wish.previous), wish) as pieces:
                return await _told(http, pieces)
        except (NoLog, DriverError) as error:
            return web.Response(status=400, text=f"{error}\n")


async def _told(http: web.Request, pieces: AsyncIterator[bytes]) -> web.StreamResponse:
    """A log that breaks off, because Docker goes, breaks the connection: it must not look like the end."""
    answer = web.StreamResponse(headers={"Content-Type": "text/plain"})
    answer.enable_chunked_encoding()
    await answer.prepare(http)
    try:
        async for piece in pieces:
            await answer.write(piece)
    except ConnectionError:
        pass  # The caller has gone.
    except NotReady as error:
        log.warning("a log breaks off", extra={"path": http.path, "error": error})
        if http.transport is not None:
            http.transport.abort()
    return answer
