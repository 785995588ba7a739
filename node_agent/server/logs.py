"""/containerLogs."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Iterator

import msgspec
from aiohttp import web

from api.core import log_options
from api.core.pod import Container, ContainerState, ContainerStatus, Pod
from node_agent.docker.logs import stream_logs
from node_agent.server.pod_lister import PodLister
from node_agent.server.server import Route
from reconcile.errors import DriverError, Gone, NotReady

PREFIX = "docker://"
WAITS = {
    "ErrImagePull": "image can't be pulled",
    "ImagePullBackOff": "trying and failing to pull image",
}


class LogUnavailable(Exception):
    """There is none; `str(error)` says why, in the words of a kubelet."""


def spec_containers(pod: Pod) -> Iterator[Container]:
    """All containers of its spec."""
    yield from (*pod.spec.init_containers, *pod.spec.containers, *pod.spec.ephemeral_containers)


def find_container_spec(pod: Pod, name: str) -> Container | None:
    """The container of this name."""
    return next((one for one in spec_containers(pod) if one.name == name), None)


def log_container_id(pod: Pod, name: str, *, previous: bool) -> str:
    """The id of the container whose log is asked for: the newest that has begun, or the one before. Raises NoLog."""
    row = _row(pod, name)
    if row is None:
        raise LogUnavailable(f'container "{name}" in pod "{pod.metadata.name}" is not available')
    before = _ended(row.last_state)
    if previous:
        if not before:
            raise LogUnavailable(f'previous terminated container "{name}" in pod "{pod.metadata.name}" not found')
        return before
    found = row.container_id.removeprefix(PREFIX) if row.state.running is not None else _ended(row.state) or before
    if found:
        return found
    if row.state.terminated is not None or row.state.waiting is None:
        raise LogUnavailable(f'container "{name}" in pod "{pod.metadata.name}" is terminated')
    reason = row.state.waiting.reason
    raise LogUnavailable(
        f'container "{name}" in pod "{pod.metadata.name}" is waiting to start: {WAITS.get(reason, reason)}'
    )


def _row(pod: Pod, name: str) -> ContainerStatus | None:
    status = pod.status
    rows = (*status.init_container_statuses, *status.container_statuses, *status.ephemeral_container_statuses)
    return next((row for row in rows if row.name == name), None)


def _ended(state: ContainerState) -> str:
    return state.terminated.container_id.removeprefix(PREFIX) if state.terminated is not None else ""


log = logging.getLogger(__name__)


class LogHandler:
    """Follows a log until the container ends or the caller goes. `socket` is Docker's."""

    def __init__(self, pods: PodLister, socket: str) -> None:
        self._pods = pods
        self._socket = socket

    def routes(self) -> tuple[Route, ...]:
        """Where they are found."""
        return (Route("/containerLogs/{namespace}/{pod}/{container}", self._answer),)

    async def _answer(self, http: web.Request) -> web.StreamResponse:
        name = http.match_info["container"]
        try:
            wish = log_options.parse_log_options({key: http.query.getall(key) for key in http.query})
        except log_options.InvalidLogOptions as error:
            return web.Response(status=error.status, body=msgspec.json.encode({"message": str(error)}))
        pod = self._pods.get_pod(http.match_info["namespace"], http.match_info["pod"])
        if find_container_spec(pod, name) is None:
            raise Gone(f'container "{name}" not found in pod "{pod.metadata.name}"')
        try:
            async with stream_logs(self._socket, log_container_id(pod, name, previous=wish.previous), wish) as pieces:
                return await _stream_response(http, pieces)
        except (LogUnavailable, DriverError) as error:
            return web.Response(status=400, text=f"{error}\n")


async def _stream_response(http: web.Request, pieces: AsyncIterator[bytes]) -> web.StreamResponse:
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
