"""/containerLogs."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator

import msgspec
from aiohttp import web

from api.core.log_options import InvalidLogOptions, parse_log_options
from api.core.pod import Container, ContainerState, Pod
from api.core.resource_requests import all_containers
from node_agent.docker.logs import stream_logs
from node_agent.runtime.restarts import container_status_of
from node_agent.server.pod_lister import PodLister
from node_agent.server.server import Route
from reconcile.errors import DriverError, Gone, NotReady

log = logging.getLogger(__name__)

ID_PREFIX = "docker://"
"""Prefix of container IDs in a pod's status."""

WAITING_MESSAGES = {
    "ErrImagePull": "image can't be pulled",
    "ImagePullBackOff": "trying and failing to pull image",
}
"""Reason of a waiting container → the kubelet's message. All other reasons are shown as they are."""


class LogUnavailable(Exception):
    """A container without a log. The message is the kubelet's."""


class LogHandler:
    """Sends the log of a container, and follows it until the container exits or the client disconnects.

    `socket` is the path of Docker's socket.
    """

    def __init__(self, pods: PodLister, socket: str) -> None:
        self._pods = pods
        self._socket = socket

    def routes(self) -> tuple[Route, ...]:
        """Return the routes of the handler."""
        return (Route("/containerLogs/{namespace}/{pod}/{container}", self._get_logs),)

    async def _get_logs(self, request: web.Request) -> web.StreamResponse:
        name = request.match_info["container"]
        try:
            options = parse_log_options({key: request.query.getall(key) for key in request.query})
        except InvalidLogOptions as error:
            return web.Response(status=error.status, body=msgspec.json.encode({"message": str(error)}))
        pod = self._pods.get_pod(request.match_info["namespace"], request.match_info["pod"])
        if find_container_spec(pod, name) is None:
            raise Gone(f'container "{name}" not found in pod "{pod.metadata.name}"')
        try:
            container_id = log_container_id(pod, name, previous=options.previous)
            async with stream_logs(self._socket, container_id, options) as chunks:
                return await _stream_response(request, chunks)
        except (LogUnavailable, DriverError) as error:
            return web.Response(status=400, text=f"{error}\n")


async def _stream_response(request: web.Request, chunks: AsyncIterator[bytes]) -> web.StreamResponse:
    """Send a log. If it breaks off because Docker stops, abort the connection, so that it does not look complete."""
    response = web.StreamResponse(headers={"Content-Type": "text/plain"})
    response.enable_chunked_encoding()
    await response.prepare(request)
    try:
        async for chunk in chunks:
            await response.write(chunk)
    except ConnectionError:
        pass  # The client has disconnected.
    except NotReady as error:
        log.warning("container log interrupted", extra={"path": request.path, "error": error})
        if request.transport is not None:
            request.transport.abort()
    return response


def find_container_spec(pod: Pod, name: str) -> Container | None:
    """Return the container with a name, None if the pod has none."""
    return next((container for container in all_containers(pod) if container.name == name), None)


def log_container_id(pod: Pod, name: str, *, previous: bool) -> str:
    """Return the ID of the container whose log is requested: the newest one that started, or the one before it.

    Raises LogUnavailable.
    """
    label = f'container "{name}" in pod "{pod.metadata.name}"'
    status = container_status_of(pod, name)
    if status is None:
        raise LogUnavailable(f"{label} is not available")
    previous_id = _exited_id(status.last_state)
    if previous:
        if not previous_id:
            raise LogUnavailable(f"previous terminated {label} not found")
        return previous_id
    if status.state.running is not None:
        container_id = status.container_id.removeprefix(ID_PREFIX)
    else:
        container_id = _exited_id(status.state) or previous_id
    if container_id:
        return container_id
    if status.state.terminated is not None or status.state.waiting is None:
        raise LogUnavailable(f"{label} is terminated")
    reason = status.state.waiting.reason
    raise LogUnavailable(f"{label} is waiting to start: {WAITING_MESSAGES.get(reason, reason)}")


def _exited_id(state: ContainerState) -> str:
    return state.terminated.container_id.removeprefix(ID_PREFIX) if state.terminated is not None else ""
