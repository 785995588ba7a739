"""Watches: each client gets the events of its selection, in order, from its revision on.

An event is encoded once for each requested form, for all watchers together. Queued bytes of a client are bounded: a
client that does not read is disconnected and comes back with its last revision. Watchers of one form share the queued
chunks; only what the connection takes next is copied and encrypted for one client.
"""

from __future__ import annotations

import asyncio
import datetime
import logging
import random
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import msgspec
from aiohttp import HttpVersion11, web

from api.meta.schema import FORBIDDEN, FieldError
from master import errors
from master.registry.registry import convert_event
from master.registry.request import Request, int_param
from master.request_info import Selection, bool_param, parse_selection
from master.resources.metadata import with_metadata
from master.serialization import negotiation, tables
from master.serialization.negotiation import View
from master.storage.interface import Compacted, Storage, WatchEvent

MAX_QUEUED_BYTES = 8 << 20
"""Bytes that may wait for one client. One that lets more wait is cut off, and comes back with its last revision."""

TRANSPORT_BUFFER = 32 << 10
"""Bytes that are encrypted for one client ahead of its reading."""


class ClientStream:
    """The response of a watch.

    `write` never waits; `flush` does. It is created when the response's head is being sent.
    """

    def __init__(self, http: web.Request, transport: asyncio.Transport, response: web.StreamResponse) -> None:
        transport.set_write_buffer_limits(high=TRANSPORT_BUFFER)
        self._protocol = http.protocol
        self._transport = transport
        self._response = response
        self._waiting: deque[bytes] = deque()
        self._unread = 0
        self._stirred = asyncio.Event()
        self._framed = response.chunked
        self.ended = False
        self.cut_off = False
        """Whether it was ended because too much waited."""

    @property
    def full(self) -> bool:
        """Return whether further writes have to wait."""
        return bool(self._waiting)

    def write(self, chunk: bytes) -> None:
        """Send a chunk of HTTP/1.1, or let it wait behind others."""
        if not self._framed:
            chunk = chunk[chunk.index(b"\n") + 1 : -2]
        if self._transport.is_closing():
            self.end()
        elif not self._waiting and not self._protocol.writing_paused:
            self._transport.write(chunk)
        else:
            self._waiting.append(chunk)
            self._stirred.set()
            self.add_queued(len(chunk))

    def add_queued(self, size: int) -> None:
        """Add a number of bytes to those queued for the client."""
        self._unread += size
        if self._unread > MAX_QUEUED_BYTES and not self.cut_off:
            self.cut_off = True
            self._waiting.clear()
            self._transport.abort()
            self.end()

    def remove_queued(self, size: int) -> None:
        """Subtract a number of bytes, added by `add_queued`, from those queued for the client."""
        self._unread -= size

    async def flush(self) -> None:
        """Wait until nothing is queued or the stream has ended. Raise ConnectionError when the client disconnects."""
        while self._waiting and not self.ended:
            await self._response.drain()
            while self._waiting and not self._protocol.writing_paused:
                chunk = self._waiting.popleft()
                self.remove_queued(len(chunk))
                self._transport.write(chunk)

    async def flow(self) -> None:
        """Send what waits, whenever something does, until it has ended."""
        while not self.ended:
            await self.flush()
            await self._stirred.wait()
            self._stirred.clear()

    def end(self) -> None:
        """End the stream: nothing more is sent."""
        self.ended = True
        self._stirred.set()


log = logging.getLogger(__name__)

Clock = Callable[[], datetime.datetime]

BOOKMARK_SECONDS = 60.0
DEFAULT_WATCH_SECONDS = (1800.0, 3600.0)
"""How long a watch lasts that does not say: anything between, so that clients do not all come back at once."""

YIELD_EVERY = 50
"""Events of a beginning that are sent before others have their turn; and before it is seen that the client has gone."""

INITIAL_EVENTS_END = "k8s.io/initial-events-end"


@dataclass(frozen=True, slots=True)
class OutputOptions:
    """The form of the events of a watch."""

    view: View
    include: str
    definitions: bool = False


@dataclass(frozen=True, slots=True)
class WatchOptions:
    """The options of a watch. It starts after `revision`, or with the initial objects, or (neither) with new events."""

    selection: Selection
    form: OutputOptions
    revision: int | None
    existing: bool
    initial_end: bool
    bookmarks: bool
    seconds: float


def parse_watch_options(request: Request) -> WatchOptions:
    """Read the parameters of a watch. Raises StatusError."""
    query = request.query
    revision, seconds = int_param(query, "resourceVersion"), int_param(query, "timeoutSeconds")
    initial, match = bool_param(query, "sendInitialEvents"), query.get("resourceVersionMatch", "")
    if "sendInitialEvents" in query and match != "NotOlderThan":
        raise _forbidden_match("sendInitialEvents requires setting resourceVersionMatch to NotOlderThan")
    if match and "sendInitialEvents" not in query:
        raise _forbidden_match("resourceVersionMatch is forbidden for watch unless sendInitialEvents is provided")
    return WatchOptions(
        selection=parse_selection(request.info, query, request.name_filter),
        form=OutputOptions(negotiation.negotiate(request.accept), query.get("includeObject", "Metadata")),
        revision=revision or None,
        existing=initial or (not revision and "sendInitialEvents" not in query),
        initial_end=initial,
        bookmarks=bool_param(query, "allowWatchBookmarks"),
        seconds=float(seconds) if seconds else random.uniform(*DEFAULT_WATCH_SECONDS),
    )


def _forbidden_match(reason: str) -> errors.StatusError:
    return errors.invalid_options("ListOptions", FieldError("resourceVersionMatch", "given", reason, FORBIDDEN))


def event_type(selection: Selection, event: WatchEvent) -> str:
    """Return the type of an event for a selection, which an object may enter or leave; empty if it sees nothing."""
    before = selection.matches(event.previous)
    after = event.type != "DELETED" and selection.matches(event.record)
    if after:
        return "MODIFIED" if before else "ADDED"
    return "DELETED" if before else ""


class WatchHandler:
    """All watches of the server."""

    def __init__(self, storage: Storage, clock: Clock) -> None:
        self._store = storage
        self._clock = clock
        self._worded: WatchEvent | None = None
        self._words: dict[tuple[str, str, OutputOptions], bytes] = {}
        self._seen: dict[str, WatchEvent] = {}
        self._open: set[Watcher] = set()

    @property
    def count(self) -> int:
        """Return the number of open watches."""
        return len(self._open)

    def end_all(self) -> None:
        """End every watch cleanly, as if its timeout had expired."""
        for follower in tuple(self._open):
            follower.end()

    async def serve(self, http: web.Request, wanted: WatchOptions) -> web.StreamResponse:
        """Answer a watch until its time is up or the client goes."""
        if wanted.existing and (wanted.revision or 0) > self._store.revision:
            raise errors.resource_version_too_large(wanted.revision or 0, self._store.revision)
        response = web.StreamResponse(
            headers={"Content-Type": "application/json", "Cache-Control": "no-cache, private"}
        )
        if http.version >= HttpVersion11:
            response.enable_chunked_encoding()
        await response.prepare(http)
        transport = http.transport
        if transport is None:
            return response
        follower = Watcher(self, wanted, ClientStream(http, transport, response))
        self._open.add(follower)
        try:
            await follower.run(self._store)
        finally:
            self._open.discard(follower)
        return response

    def initial_events(self, wanted: WatchOptions) -> Iterator[WatchEvent]:
        """Return the initial events of a watch. Raise Expired."""
        selection = wanted.selection
        if wanted.existing:
            records = self._store.list(selection.resource.stored_group_resource, selection.namespace)
            return (WatchEvent("ADDED", record, None) for record in records)
        return iter(
            self._store.events_since(selection.resource.stored_group_resource, wanted.revision)
            if wanted.revision
            else ()
        )

    def encode(self, selection: Selection, form: OutputOptions, event: WatchEvent) -> bytes:
        """Return the event as an HTTP chunk for a selection and form; empty if the selection does not see it."""
        if self._worded is not event:
            self._worded, self._words, self._seen = event, {}, {}
        version = selection.resource.type.API_VERSION
        if version not in self._seen:
            self._seen[version] = convert_event(selection.resource, event)
        told = self._seen[version]
        what = event_type(selection, told)
        if not what:
            return b""
        left = what == "DELETED" and event.type != "DELETED"
        key = ("LEFT" if left else what, version, form)
        if key not in self._words:
            self._words[key] = _framed(what, self._shown(selection, form, told, left=left))
        return self._words[key]

    def _shown(self, selection: Selection, form: OutputOptions, event: WatchEvent, *, left: bool) -> bytes:
        if form.view is View.OBJECT and not left:
            return event.record.data
        item: Any = event.record.object
        if left and event.previous is not None:
            item = with_metadata(event.previous.object, resource_version=str(event.record.revision))
        if not form.view.is_table:
            return tables.encode_object(selection.resource, item, form.view, self._clock())
        row = tables.table_row(selection.resource, item, form.view, self._clock(), form.include)
        definitions = tables.columns(selection.resource) if form.definitions else None
        return tables.encode_table(form.view, [row], {"resourceVersion": str(event.record.revision)}, definitions)

    def bookmark(self, wanted: WatchOptions, revision: int, annotations: dict[str, str] | None = None) -> bytes:
        """Return the event that reports the current revision to the client."""
        resource, view = wanted.selection.resource, wanted.form.view
        metadata: dict[str, Any] = {"resourceVersion": str(revision)}
        if annotations:
            metadata["annotations"] = annotations
        if view.is_table:
            return _framed("BOOKMARK", tables.encode_table(view, [], metadata, None))
        head = {"kind": resource.kind, "apiVersion": resource.type.API_VERSION}
        if view.is_metadata:
            head = {"kind": "PartialObjectMetadata", "apiVersion": view.api_version}
        return _framed("BOOKMARK", msgspec.json.encode({**head, "metadata": metadata}))


class Watcher:
    """The watch of one client."""

    def __init__(self, watches: WatchHandler, wanted: WatchOptions, stream: ClientStream) -> None:
        self._watches = watches
        self._wanted = wanted
        self._form = OutputOptions(wanted.form.view, wanted.form.include, definitions=wanted.form.view.is_table)
        self._stream = stream
        self._backlog: list[WatchEvent] | None = []

    async def run(self, storage: Storage) -> None:
        """Send events until the timeout expires, the client disconnects, or its queue is full."""
        wanted = self._wanted
        try:
            # From here to the registration nothing waits, so no event falls between the beginning and what follows.
            beginning = self._watches.initial_events(wanted)
        except Compacted as error:
            self._stream.write(_framed("ERROR", errors.encode_status(errors.expired(str(error)).status)))
            return
        revision = storage.revision
        unfollow = storage.watch(wanted.selection.resource.stored_group_resource, self._take)
        try:
            async with asyncio.timeout(wanted.seconds):
                await self._send_all(beginning)
                if wanted.initial_end:
                    self._stream.write(self._watches.bookmark(wanted, revision, {INITIAL_EVENTS_END: "true"}))
                await self._catch_up()
                await self._keep_up(storage)
        except TimeoutError:
            if wanted.bookmarks and self._backlog is None:
                self._stream.write(self._watches.bookmark(wanted, storage.revision))
        finally:
            unfollow()
            if self._stream.cut_off:
                log.warning("client does not read its watch", extra={"kind": wanted.selection.resource.kind})

    def end(self) -> None:
        """End the watch as if its timeout had expired."""
        self._stream.end()

    def _take(self, event: WatchEvent) -> None:
        """Receive an event from the store; it is held back while the initial events are being sent."""
        if self._backlog is not None:
            self._backlog.append(event)
            self._stream.add_queued(len(event.record.data))
        else:
            self._send(event)

    def _send(self, event: WatchEvent) -> None:
        chunk = self._watches.encode(self._wanted.selection, self._form, event)
        if chunk:
            self._stream.write(chunk)
            self._form = self._wanted.form

    async def _send_all(self, events: Iterable[WatchEvent]) -> None:
        for number, event in enumerate(events, 1):
            self._send(event)
            if self._stream.full:
                await self._stream.flush()
            elif number % YIELD_EVERY == 0:
                await asyncio.sleep(0)
            if self._stream.ended:
                return

    async def _catch_up(self) -> None:
        """Send what came meanwhile, and from then on everything as it comes."""
        while self._backlog and not self._stream.ended:
            waiting, self._backlog = self._backlog, []
            self._stream.remove_queued(sum(len(event.record.data) for event in waiting))
            await self._send_all(waiting)
        self._backlog = None

    async def _keep_up(self, storage: Storage) -> None:
        """Send bookmarks until the watch ends."""
        while not self._stream.ended:
            try:
                async with asyncio.timeout(BOOKMARK_SECONDS):
                    await self._stream.flow()
            except TimeoutError:
                if self._wanted.bookmarks:
                    self._stream.write(self._watches.bookmark(self._wanted, storage.revision))


def _framed(what: str, item: bytes) -> bytes:
    """Return an event with its newline as one HTTP chunk."""
    line = b'{"type":"%s","object":%s}\n' % (what.encode("ascii"), item)
    return b"%x\r\n%s\r\n" % (len(line), line)
