"""Static pods submitted over the agent's unix socket.

`POST /pods` creates the pod of the manifest in the body (409 if its name exists), `PUT /pods/NAMESPACE/NAME` creates or
replaces it, `DELETE` removes it, `GET` returns it, and `GET /pods` returns all pods. Request bodies are YAML or JSON,
responses are JSON. An error is a Status of Kubernetes that lists every problem by path. NAME is the name in the
manifest, without the node's name.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Awaitable, Callable, Iterator
from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path

import msgspec
from aiohttp import web

from api.codec import manifest
from api.core.pod import Pod
from api.meta.schema import FieldError, quoted
from api.meta.types import Status, StatusCause, StatusDetails
from node_agent.event_recorder import EventRecorder
from node_agent.sources.file import FileSource
from node_agent.sources.static_pods import MAX_MANIFEST_BYTES, ManifestOrigin, SourcePods, static_pod
from reconcile import atomic_file

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class RequestError(Exception):
    """An invalid request. It changes nothing. `body` is the response."""

    def __init__(self, code: int, reason: str, message: str, problems: tuple[FieldError, ...] = ()) -> None:
        super().__init__(message)
        causes = tuple(map(_cause, problems))
        details = StatusDetails(kind="Pod", causes=causes) if causes else None
        self.code = code
        self.body = _failure(code, reason, message, details)


def _failure(code: int, reason: str, message: str, details: StatusDetails | None = None) -> dict[str, object]:
    status = Status(status="Failure", message=message, reason=reason, details=details, code=code)
    return {"kind": "Status", "apiVersion": "v1", **msgspec.to_builtins(status)}


def _cause(problem: FieldError) -> StatusCause:
    message = str(problem).removeprefix(f"{problem.path}: ")
    return StatusCause(reason=problem.reason, message=message, field=problem.path)


class LocalApiSource:
    """Static pods submitted over a unix socket. Each pod is a file in `folder`, named by a hash of the pod's name.

    A pod whose request had a response with status 200 or 201 survives a restart.
    """

    def __init__(
        self, socket: Path, directory: Path, node: str, on_change: Callable[[], None], events: EventRecorder
    ) -> None:
        self._socket = socket
        self._directory = directory
        self._node = node
        self._files = FileSource(directory, node, "http", on_change, events)
        self._write_lock = asyncio.Lock()

    @property
    def synced(self) -> bool:
        """Whether the pods that were submitted earlier have been read."""
        return self._files.synced

    @property
    def source_pods(self) -> tuple[SourcePods, ...]:
        """The pods, each in a file of its own."""
        return self._files.source_pods

    async def run(self) -> None:
        """Serve until cancelled. Raises OSError if the socket cannot be created."""
        self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        for unfinished in self._directory.glob(".*"):
            unfinished.unlink()  # The file of an interrupted write.
        await self._files.read()
        app = web.Application(middlewares=[_errors], client_max_size=MAX_MANIFEST_BYTES)
        app.router.add_get("/pods", self._list)
        app.router.add_post("/pods", self._post)
        app.router.add_get("/pods/{namespace}/{name}", self._get)
        app.router.add_put("/pods/{namespace}/{name}", self._put)
        app.router.add_delete("/pods/{namespace}/{name}", self._delete)
        runner = web.AppRunner(app, access_log=None)
        await runner.setup()
        try:
            await self._listen(runner)
            await asyncio.Event().wait()
        finally:
            await runner.cleanup()

    async def _listen(self, runner: web.AppRunner) -> None:
        self._socket.parent.mkdir(parents=True, exist_ok=True)
        self._socket.unlink(missing_ok=True)
        before = os.umask(0o177)
        start = asyncio.create_task(web.UnixSite(runner, str(self._socket)).start())
        try:
            # A start that is cancelled half-way would leave a socket that nothing closes.
            await asyncio.shield(start)
        except asyncio.CancelledError:
            await start
            raise
        finally:
            os.umask(before)

    # --- requests ----------------------------------------------------------------------------------------------------

    async def _list(self, _: web.Request) -> web.Response:
        pods = [pod for source in self.source_pods for pod in source.pods]
        return _response({"apiVersion": "v1", "kind": "PodList", "metadata": {}, "items": pods})

    async def _get(self, request: web.Request) -> web.Response:
        return _response(self._find_pod(self._path(*_requested_name(request)), *_requested_name(request)))

    async def _post(self, request: web.Request) -> web.Response:
        pod = await self._decode_pod(request)
        namespace = pod.metadata.namespace or "default"
        name = pod.metadata.name
        path = self._path(namespace, name)
        async with self._write_lock:
            if path.exists():
                raise RequestError(409, "AlreadyExists", f'pods "{name}" already exists in the namespace "{namespace}"')
            return await self._store(path, pod, 201)

    async def _put(self, request: web.Request) -> web.Response:
        pod = await self._decode_pod(request)
        in_path = _requested_name(request)
        in_manifest = (pod.metadata.namespace or "default", pod.metadata.name)
        if in_path != in_manifest:
            message = f"the manifest is of {'/'.join(in_manifest)}; the path says {'/'.join(in_path)}"
            raise RequestError(400, "BadRequest", message)
        path = self._path(*in_path)
        async with self._write_lock:
            return await self._store(path, pod, 200 if path.exists() else 201)

    async def _delete(self, request: web.Request) -> web.Response:
        path = self._path(*_requested_name(request))
        async with self._write_lock:
            pod = self._find_pod(path, *_requested_name(request))
            with _storage_errors():
                await asyncio.to_thread(path.unlink)
                await asyncio.to_thread(atomic_file.sync_directory, self._directory)
            await self._files.read()
        return _response(pod)

    async def _store(self, path: Path, pod: Pod, code: int) -> web.Response:
        with _storage_errors():
            await asyncio.to_thread(atomic_file.write, path, msgspec.json.encode(pod))
        await self._files.read()
        return _response(self._find_pod(path, pod.metadata.namespace or "default", pod.metadata.name), code)

    async def _decode_pod(self, request: web.Request) -> Pod:
        try:
            text = (await request.read()).decode()
        except UnicodeDecodeError as error:
            raise RequestError(400, "BadRequest", f"the body is not UTF-8: {error}") from None
        documents = await asyncio.to_thread(manifest.parse_manifest, text)
        if len(documents) != 1:
            raise RequestError(400, "BadRequest", f"the body has {len(documents)} documents; one Pod is accepted")
        _, problems = static_pod(documents[0], ManifestOrigin(self._node, "http", "body"), datetime.now(UTC))
        pod = documents[0].obj
        if problems or not isinstance(pod, Pod):
            raise RequestError(422, "Invalid", manifest.format_errors("the Pod", problems), problems)
        return pod

    def _path(self, namespace: str, name: str) -> Path:
        return self._directory / f"{sha256(f'{namespace}/{name}'.encode()).hexdigest()[:32]}.json"

    def _find_pod(self, path: Path, namespace: str, name: str) -> Pod:
        pod = next((pod for source in self.source_pods if source.location == str(path) for pod in source.pods), None)
        if pod is None:
            raise RequestError(
                404, "NotFound", f"pods {quoted(name)} was not submitted to the namespace {quoted(namespace)}"
            )
        return pod


def _requested_name(request: web.Request) -> tuple[str, str]:
    return request.match_info["namespace"], request.match_info["name"]


@contextlib.contextmanager
def _storage_errors() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise RequestError(507, "InternalError", f"nothing was changed: {error.strerror or error}") from None


@web.middleware
async def _errors(request: web.Request, handler: Handler) -> web.StreamResponse:
    try:
        return await handler(request)
    except RequestError as error:
        return _response(error.body, error.code)
    except web.HTTPException as error:
        return _response(_failure(error.status, error.reason.replace(" ", ""), error.reason), error.status)


def _response(body: object, code: int = 200) -> web.Response:
    return web.Response(body=msgspec.json.encode(body), status=code, content_type="application/json")
