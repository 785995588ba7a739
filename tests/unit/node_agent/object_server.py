"""An HTTP server of single objects by name, as the API server serves them to a node."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import msgspec
from aiohttp import web
from msgspec.structs import replace

from api.client.client import Client
from api.client.kubeconfig import Kubeconfig
from api.meta.types import Object


class ObjectServer:
    """`put` and `delete` change the objects; `watched` are the paths of current watches; `refusal` is a status code."""

    def __init__(self) -> None:
        self.refusal = 0
        self.watched: list[str] = []
        self._objects: dict[tuple[str, str], Object] = {}
        self._revision = 1
        self._watches: list[tuple[str, asyncio.Queue[bytes]]] = []

    @asynccontextmanager
    async def client(self) -> AsyncIterator[Client]:
        """Serve until the end of the block."""
        app = web.Application()
        app.router.add_get("/{path:.*}", self._serve)
        runner = web.AppRunner(app, shutdown_timeout=0.1, handler_cancellation=True)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        try:
            async with Client(Kubeconfig(f"http://127.0.0.1:{runner.addresses[0][1]}", b"")) as client:
                yield client
        finally:
            await runner.cleanup()

    def put(self, obj: Object) -> None:
        """Create an object, or replace the one of the same name."""
        self._revision += 1
        obj = replace(obj, metadata=replace(obj.metadata, resource_version=str(self._revision)))
        self._objects[self._path_and_name(obj)] = obj
        self._notify_watches("MODIFIED", obj)

    def delete(self, obj: Object) -> None:
        """Delete an object."""
        self._revision += 1
        deleted = self._objects.pop(self._path_and_name(obj))
        self._notify_watches(
            "DELETED", replace(deleted, metadata=replace(deleted.metadata, resource_version=str(self._revision)))
        )

    def _path_and_name(self, obj: Object) -> tuple[str, str]:
        meta, plural = obj.metadata, f"{obj.KIND.lower()}s"
        return f"/api/v1/namespaces/{meta.namespace}/{plural}" if meta.namespace else f"/api/v1/{plural}", meta.name

    def _notify_watches(self, event_type: str, obj: Object) -> None:
        path, name = self._path_and_name(obj)
        for selector, queue in self._watches:
            if selector == f"{path}?metadata.name={name}":
                queue.put_nowait(msgspec.json.encode({"type": event_type, "object": obj}) + b"\n")

    async def _serve(self, request: web.Request) -> web.StreamResponse:
        if self.refusal:
            status = {"kind": "Status", "code": self.refusal, "message": "not for you"}
            return web.json_response(status, status=self.refusal)
        selector = request.query.get("fieldSelector", "")
        if "watch" in request.query:
            return await self._watch(request, f"{request.path}?{selector}")
        obj = self._objects.get((request.path, selector.removeprefix("metadata.name=")))
        items = [] if obj is None else [msgspec.to_builtins(obj)]
        head = {"kind": "List", "apiVersion": "v1", "metadata": {"resourceVersion": str(self._revision)}}
        return web.json_response(head | {"items": items})

    async def _watch(self, request: web.Request, selector: str) -> web.StreamResponse:
        stream = web.StreamResponse()
        queue: asyncio.Queue[bytes] = asyncio.Queue()
        self._watches.append((selector, queue))
        await stream.prepare(request)
        self.watched.append(selector)
        try:
            while True:
                await stream.write(await queue.get())
        finally:
            self.watched.remove(selector)
            self._watches.remove((selector, queue))
