"""An HTTP server of single objects by name, as the master serves them to a node."""

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
    """`put` and `drop` change what there is; `watched` are the paths that are being watched; `refusal` is a code."""

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
        app.router.add_get("/{path:.*}", self._answer)
        runner = web.AppRunner(app, shutdown_timeout=0.1, handler_cancellation=True)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        try:
            async with Client(Kubeconfig(f"http://127.0.0.1:{runner.addresses[0][1]}", b"")) as client:
                yield client
        finally:
            await runner.cleanup()

    def put(self, item: Object) -> None:
        """Make an object, or another of the same name in its place."""
        self._revision += 1
        item = replace(item, metadata=replace(item.metadata, resource_version=str(self._revision)))
        self._objects[self._place(item)] = item
        self._tell("MODIFIED", item)

    def drop(self, item: Object) -> None:
        """Delete an object."""
        self._revision += 1
        gone = self._objects.pop(self._place(item))
        self._tell("DELETED", replace(gone, metadata=replace(gone.metadata, resource_version=str(self._revision))))

    def _place(self, item: Object) -> tuple[str, str]:
        meta, plural = item.metadata, f"{item.KIND.lower()}s"
        return f"/api/v1/namespaces/{meta.namespace}/{plural}" if meta.namespace else f"/api/v1/{plural}", meta.name

    def _tell(self, what: str, item: Object) -> None:
        path, name = self._place(item)
        for selector, queue in self._watches:
            if selector == f"{path}?metadata.name={name}":
                queue.put_nowait(msgspec.json.encode({"type": what, "object": item}) + b"\n")

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        if self.refusal:
            status = {"kind": "Status", "code": self.refusal, "message": "not for you"}
            return web.json_response(status, status=self.refusal)
        selector = request.query.get("fieldSelector", "")
        if "watch" in request.query:
            return await self._watch(request, f"{request.path}?{selector}")
        found = self._objects.get((request.path, selector.removeprefix("metadata.name=")))
        items = [] if found is None else [msgspec.to_builtins(found)]
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
