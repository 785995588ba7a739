"""Deletes what namespaces that are being deleted have on aggregated API servers. Driver.

Each namespace has a task of its own, so a server that does not answer delays no namespace but those that may have
objects there, and says so in their conditions.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Mapping
from urllib.parse import quote

import msgspec

from api.core.node import Namespace
from api.meta.types import ObjectMeta
from master.errors import StatusError
from master.registry.aggregated_apis import NO_CONTENTS, AggregatedAPIs, Backend, FoundResource, RemoteContents
from master.resources.scheme import group_resource
from master.server.proxy.extension_api_reader import ExtensionAPIReader
from master.storage.interface import Key, Storage
from reconcile.errors import NotReady

REQUEST_SECONDS = 10.0
FIRST_PAUSE_SECONDS, MAX_PAUSE_SECONDS = 0.5, 30.0
MAX_PARALLEL_REQUESTS = 4
"""Requests to one server at the same time."""

PAGE = 500

log = logging.getLogger(__name__)


class _Object(msgspec.Struct, frozen=True):
    metadata: ObjectMeta = ObjectMeta()


class _ListMeta(msgspec.Struct, frozen=True, rename="camel"):
    remaining_item_count: int | None = None


class _List(msgspec.Struct, frozen=True):
    items: tuple[_Object, ...] | None = None
    metadata: _ListMeta = _ListMeta()


class NamespaceContents:
    """The contents of namespaces on other servers. `report` is called when more is known of one."""

    def __init__(
        self, storage: Storage, apis: AggregatedAPIs, reader: ExtensionAPIReader, report: Callable[[], None]
    ) -> None:
        self._store = storage
        self._apis = apis
        self._reader = reader
        self._report = report
        self._known: dict[str, RemoteContents] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._slots: dict[str, asyncio.Semaphore] = {}

    def __call__(self, namespace: Namespace) -> RemoteContents | None:
        """Return what a terminating namespace has on other servers, whose deletion begins with the first call.

        None if nothing is known yet.
        """
        uid = namespace.metadata.uid
        if not self._apis.backends and uid not in self._tasks:
            return NO_CONTENTS
        if uid not in self._tasks:
            self._tasks[uid] = asyncio.create_task(self._delete_until_gone(namespace.metadata.name, uid))
        return self._known.get(uid)

    async def close(self) -> None:
        """End all work."""
        tasks = tuple(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _delete_until_gone(self, name: str, uid: str) -> None:
        """Delete the contents of a namespace until it is gone."""
        pause = FIRST_PAUSE_SECONDS
        try:
            while self._exists(name, uid):
                found = await self._delete_everywhere(name)
                if found != self._known.get(uid):
                    self._known[uid] = found
                    self._report()
                await asyncio.sleep(pause)
                pause = min(2 * pause, MAX_PAUSE_SECONDS)
        finally:
            self._known.pop(uid, None)
            del self._tasks[uid]

    def _exists(self, name: str, uid: str) -> bool:
        record = self._store.get_uncommitted(Key(group_resource(Namespace), "", name))
        return record is not None and record.object.metadata.uid == uid

    async def _delete_everywhere(self, namespace: str) -> RemoteContents:
        """Delete what there is, and return what remains."""
        parts = await asyncio.gather(*(self._delete_at(namespace, backend) for backend in self._apis.holders()))
        finalizers = Counter[str]()
        for part in parts:
            finalizers.update(dict(part.finalizers))
        return RemoteContents(
            tuple(sorted(pair for part in parts for pair in part.remaining)),
            tuple(sorted(finalizers.items())),
            tuple(sorted(text for part in parts for text in part.discovery_failures)),
            tuple(sorted(text for part in parts for text in part.failures)),
        )

    async def _delete_at(self, namespace: str, backend: Backend) -> RemoteContents:
        """Delete what there is on one server, and return what remains."""
        if not self._apis.is_available(backend) or not self._apis.discovered(backend.name).digest:
            version = f"{backend.group}/{backend.version}"
            return RemoteContents(discovery_failures=(f"{version}: stale GroupVersion discovery: {version}",))
        remaining, finalizers, failures = Counter[str](), Counter[str](), []
        for resource in self._apis.discovered(backend.name).deletable:
            name = f"{resource.plural}.{backend.group}"
            path = f"{backend.path}/namespaces/{quote(namespace, safe='')}/{quote(resource.plural, safe='')}"
            try:
                listed = await self._delete_all(backend, resource, path)
            except (NotReady, StatusError, TimeoutError, msgspec.MsgspecError) as error:
                failures.append(f"{name}: {str(error) or 'context deadline exceeded'}")
                continue
            except Exception as error:
                log.exception("contents of a namespace not deleted", extra={"project": namespace, "resource": name})
                failures.append(f"{name}: {type(error).__name__}")
                continue
            number = len(listed.items or ()) + (listed.metadata.remaining_item_count or 0)
            if number:
                remaining[name] = number
            for item in listed.items or ():
                finalizers.update(item.metadata.finalizers)
        return RemoteContents(tuple(remaining.items()), tuple(finalizers.items()), (), tuple(failures))

    async def _delete_all(self, backend: Backend, resource: FoundResource, path: str) -> _List:
        """Delete the objects of a resource, and return those that are still there."""
        listed = await self._list(backend, path)
        if not listed.items:
            return listed
        if "deletecollection" in resource.verbs:
            await self._request(backend, "DELETE", path)
        else:
            for item in listed.items:
                if item.metadata.deletion_timestamp is None:
                    await self._request(backend, "DELETE", f"{path}/{quote(item.metadata.name, safe='')}")
        return await self._list(backend, path)

    async def _list(self, backend: Backend, path: str) -> _List:
        return msgspec.json.decode(await self._request(backend, "GET", path, {"limit": str(PAGE)}), type=_List)

    async def _request(self, backend: Backend, method: str, path: str, parameters: Mapping[str, str] = {}) -> bytes:
        slots = self._slots.setdefault(backend.name, asyncio.Semaphore(MAX_PARALLEL_REQUESTS))
        async with slots, asyncio.timeout(REQUEST_SECONDS):
            try:
                return await self._reader.request(method, path, parameters)
            except StatusError as error:
                if method == "DELETE" and error.status.code == 404:
                    return b""
                raise
