"""Clients that write Secrets at random, and clients that watch them. `watch_checker` checks the recorded history."""

from __future__ import annotations

import asyncio
import random
from collections import deque
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Any

import aiohttp
import msgspec

from api.client.client import AlreadyExists, Client, Conflict, NotFound, Unreachable
from api.client.kubeconfig import Kubeconfig
from tests.testbed.apiserver.watch_checker import (
    BOOKMARK,
    AcknowledgedWrite,
    Item,
    Seen,
    Selection,
    Session,
    Snapshot,
    State,
)
from tests.testbed.tls_connector import tls_connector

NAMESPACES, COLORS, NAMES = ("one", "two"), ("red", "blue"), 12
FINALIZER = "podlane.test/held"
PAUSE_SECONDS = 0.01
"""Before a client comes back whose connection was refused."""

WATCH_SECONDS = 1
"""Watches last at most so long, so that many end with a bookmark."""


class _Meta(msgspec.Struct, rename="camel"):
    resource_version: str = ""
    name: str = ""
    namespace: str = ""
    uid: str = ""
    labels: dict[str, str] = {}
    annotations: dict[str, str] = {}
    finalizers: list[str] = []
    deletion_timestamp: str = ""
    continue_: str = msgspec.field(default="", name="continue")


class _Object(msgspec.Struct):
    """A Secret, a bookmark or a Status."""

    metadata: _Meta
    code: int = 0

    @property
    def name(self) -> str:
        return f"{self.metadata.namespace}/{self.metadata.name}"

    @property
    def revision(self) -> int:
        return int(self.metadata.resource_version)

    @property
    def state(self) -> State:
        meta = self.metadata
        labels = meta.labels
        return State(meta.uid, int(labels["step"]), labels["by"], labels["color"], bool(meta.deletion_timestamp))


class _List(msgspec.Struct):
    metadata: _Meta
    items: list[_Object]


class _Line(msgspec.Struct):
    type: str
    object: _Object


class Writer:
    """Creates, replaces, patches and deletes a few objects that others write, too."""

    def __init__(self, client: Client, name: str, dice: random.Random) -> None:
        self._client = client
        self._name = name
        self._dice = dice
        self._count = 0
        self.acknowledged: list[AcknowledgedWrite] = []

    async def write(self, end: Callable[[], bool]) -> None:
        """Write until `end` returns True. A rejected write is retried from the current state of the object."""
        while not end():
            try:
                await self._write_once()
            except (NotFound, AlreadyExists, Conflict):
                continue
            except Unreachable:
                await asyncio.sleep(PAUSE_SECONDS)

    async def _write_once(self) -> None:
        dice = self._dice
        self._count += 1
        by = f"{self._name}.{self._count}"
        path = f"/api/v1/namespaces/{dice.choice(NAMESPACES)}/secrets"
        name = f"c{dice.randrange(NAMES)}"
        try:
            old = await self._request("GET", f"{path}/{name}")
        except NotFound:
            await self._create(path, name, by)
            return
        if old.state.ending:
            await self._release(path, old)
        elif dice.random() < 0.2:
            await self._delete(path, old)
        else:
            await self._update(path, old, by)

    async def _create(self, path: str, name: str, by: str) -> None:
        held = [FINALIZER] if self._dice.random() < 0.3 else []
        meta = {"name": name, "labels": self._labels(0, by), "finalizers": held}
        self._note("ADDED", await self._request("POST", path, {"metadata": meta}))

    async def _update(self, path: str, old: _Object, by: str) -> None:
        name, labels = old.metadata.name, self._labels(old.state.step + 1, by)
        meta = {"name": name, "resourceVersion": old.metadata.resource_version, "labels": labels}
        if self._dice.random() < 0.5:
            changed = await self._request("PATCH", f"{path}/{name}", {"metadata": meta})
        else:
            whole = {"metadata": meta | {"finalizers": old.metadata.finalizers}}
            changed = await self._request("PUT", f"{path}/{name}", whole)
        self._note("MODIFIED", changed)

    def _labels(self, step: int, by: str) -> dict[str, str]:
        return {"step": str(step), "by": by, "color": self._dice.choice(COLORS)}

    async def _delete(self, path: str, old: _Object) -> None:
        conditions = {"uid": old.metadata.uid, "resourceVersion": old.metadata.resource_version}
        options = {"preconditions": conditions}
        answer = await self._client.request("DELETE", f"{path}/{old.metadata.name}", msgspec.json.encode(options))
        if old.metadata.finalizers:
            self._note("MODIFIED", msgspec.json.decode(answer, type=_Object))
        else:
            self.acknowledged.append(AcknowledgedWrite("DELETED", 0, old.name, old.state))

    async def _release(self, path: str, old: _Object) -> None:
        meta = {"resourceVersion": old.metadata.resource_version, "finalizers": None}
        self._note("DELETED", await self._request("PATCH", f"{path}/{old.metadata.name}", {"metadata": meta}))

    async def _request(self, method: str, path: str, document: Any = None) -> _Object:
        body = None if document is None else msgspec.json.encode(document)
        content_type = "application/merge-patch+json" if method == "PATCH" else "application/json"
        return msgspec.json.decode(await self._client.request(method, path, body, content_type), type=_Object)

    def _note(self, what: str, obj: _Object) -> None:
        self.acknowledged.append(AcknowledgedWrite(what, obj.revision, obj.name, obj.state))


@dataclass(slots=True)
class Marks:
    """The progress of the run. `last` is its last revision, once there is one. Revisions before `forgotten` may be
    compacted.
    """

    last: int | None = None
    forgotten: float = 0


class Watcher:
    """Follows a selection through disconnects, restarts and forgotten history. A steady one never goes by itself."""

    def __init__(self, kubeconfig: Kubeconfig, selection: Selection, dice: random.Random, *, steady: bool) -> None:
        self._selection = selection
        self._server = kubeconfig.server
        self._tls = kubeconfig.ssl_context()
        self._dice = dice
        self._steady = steady
        namespace_path = f"/namespaces/{selection.namespace}" if selection.namespace else ""
        self._path = f"{self._server}/api/v1{namespace_path}/secrets"
        self._query = {"labelSelector": f"color={selection.color}"} if selection.color else {}
        self._known: deque[int] = deque(maxlen=2000)
        self.sessions: list[Session] = []
        self.snapshots: list[Snapshot] = []
        self.expired = 0
        self.wrongly_expired: list[int] = []
        self.look_back = False
        """Whether its next watch is to begin at the oldest revision that it knows."""

    @property
    def reached(self) -> int:
        """The revision up to which it knows everything."""
        return self._known[-1] if self._known else 0

    async def follow(self, marks: Marks) -> None:
        """Watch until all events up to the last revision have arrived."""
        while marks.last is None or self.reached < marks.last or self.look_back:
            connector = tls_connector(self._tls)
            try:
                async with aiohttp.ClientSession(connector=connector) as http:
                    await (self._watch(http, marks) if self._known else self._begin(http, marks))
            except (aiohttp.ClientError, OSError):
                await asyncio.sleep(PAUSE_SECONDS)

    async def _begin(self, http: aiohttp.ClientSession, marks: Marks) -> None:
        if self._dice.random() < 0.5:
            await self._list(http)
        else:
            await self._list_by_watch(http, marks)

    async def _list(self, http: aiohttp.ClientSession) -> None:
        items: list[_Object] = []
        query = self._query | {"limit": str(self._dice.choice((0, 3, 5)))}
        while True:
            async with http.get(self._path, params=query) as answer:
                if answer.status == 410:
                    return
                assert answer.status == 200, await answer.text()
                page = msgspec.json.decode(await answer.read(), type=_List)
            items += page.items
            if not page.metadata.continue_:
                self._start(int(page.metadata.resource_version), items)
                return
            query["continue"] = page.metadata.continue_

    async def _list_by_watch(self, http: aiohttp.ClientSession, marks: Marks) -> None:
        items: list[_Object] = []
        lines = self._lines(http, {"sendInitialEvents": "true", "resourceVersionMatch": "NotOlderThan"})
        async for line in lines:
            if line.object.metadata.annotations.get("k8s.io/initial-events-end") == "true":
                assert line.type == BOOKMARK
                self._start(line.object.revision, items)
                await self._take(lines, line.object.revision, marks)
                return
            assert line.type == "ADDED"
            items.append(line.object)

    def _start(self, revision: int, items: list[_Object]) -> None:
        shown = [Item(obj.name, obj.revision, obj.state) for obj in items]
        assert len(set(shown)) == len(shown), "an object is listed twice"
        self.snapshots.append(Snapshot(self._selection, revision, frozenset(shown)))
        self._known.append(revision)

    async def _watch(self, http: aiohttp.ClientSession, marks: Marks) -> None:
        """Watch from the last known revision, or sometimes from an earlier one."""
        back = not self._steady and self._dice.random() < 0.1
        after = self._dice.choice(self._known) if back else self.reached
        if self.look_back:
            after, self.look_back = self._known[0], False
        await self._take(self._lines(http, {"resourceVersion": str(after)}), after, marks)

    async def _take(self, lines: AsyncIterator[_Line], after: int, marks: Marks) -> None:
        """Record the events after a revision, until the stream ends or a random number of them has arrived."""
        enough = None if self._steady else self._dice.randrange(1, 300)
        seen: list[Seen] = []
        try:
            async for line in lines:
                if line.type == "ERROR":
                    assert line.object.code == 410
                    self._known.clear()
                    self.expired += 1
                    if after >= marks.forgotten:
                        self.wrongly_expired.append(after)
                    return
                what = (line.object.name, line.object.state) if line.type != BOOKMARK else ()
                seen.append(Seen(line.type, line.object.revision, *what))
                if len(seen) == enough:
                    return
        finally:
            session = Session(self._selection, after, tuple(seen))
            self.sessions.append(session)
            if self._known and session.until >= self.reached:
                self._known.extend(entry.revision for entry in seen)

    async def _lines(self, http: aiohttp.ClientSession, query: dict[str, str]) -> AsyncIterator[_Line]:
        """Yield complete lines only: a broken connection may end within a line."""
        desired = {"watch": "1", "allowWatchBookmarks": "true", "timeoutSeconds": str(WATCH_SECONDS)}
        timeout = aiohttp.ClientTimeout(total=None)
        async with http.get(self._path, params=self._query | desired | query, timeout=timeout) as answer:
            assert answer.status == 200, await answer.text()
            rest = b""
            async for chunk in answer.content.iter_any():
                *lines, rest = (rest + chunk).split(b"\n")
                for line in lines:
                    yield msgspec.json.decode(line, type=_Line)


BALLAST, BALLAST_SIZE = 36, 500_000
"""Objects of another kind: more bytes than the master keeps as history."""
