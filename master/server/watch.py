"""Watches: each client gets the events of its selection, in order, from its revision on.

An event is encoded once for each output form and shared by all watchers of that form. The queue of a client is bounded:
a client that does not read is disconnected, and continues from its last revision when it connects again. A queued chunk
is copied and encrypted for one client only when its connection can take it.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import random
from collections import Counter, deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import msgspec
from aiohttp import HttpVersion11, web
from multidict import CIMultiDict

from api.meta.schema import FORBIDDEN, FieldError
from api.meta.types import ObjectMeta
from master import errors
from master.admission.external_calls import CallsPending
from master.registry.conversion import convert_event, request_conversions
from master.registry.external_caller import ExternalCaller
from master.registry.request import Request, int_param
from master.request_info import NameFilter, Selection, bool_param, parse_selection
from master.resources.group_resource import GroupResource
from master.resources.metadata import Clock, with_metadata
from master.resources.rbac import ClusterRole, ClusterRoleBinding, Role, RoleBinding
from master.resources.resource import AnyResource
from master.resources.scheme import Scheme, group_resource
from master.resources.users import Group
from master.serialization import negotiation, tables
from master.serialization.negotiation import View
from master.storage.interface import Compacted, Key, Record, Storage, WatchEvent
from reconcile.exposition import MetricFamily, counter, format_labels, gauge
from reconcile.listener import release_read_buffer
from streams.connection import is_closing

MAX_QUEUED_BYTES = 8 << 20
"""Maximum size of the queue of one client, in bytes. A client with a longer queue is disconnected."""

TRANSPORT_BUFFER = 32 << 10
"""Maximum number of bytes that are encrypted for one client before it reads them."""


MAX_TURNS = 16
"""Number of clients whose queues are written before other tasks run, such as requests."""


class ClientStream:
    """The response stream of a watch. `write` never waits, `flush` does.

    `response` is prepared already. `turns` is a semaphore that all clients share: at most MAX_TURNS of them write their
    queues before other tasks run.
    """

    def __init__(
        self, http: web.Request, transport: asyncio.Transport, response: web.StreamResponse, turns: asyncio.Semaphore
    ) -> None:
        transport.set_write_buffer_limits(high=TRANSPORT_BUFFER)
        self._protocol = http.protocol
        self._transport = transport
        self._response = response
        self._turns = turns
        self._queue: deque[memoryview] = deque()
        self._queued_bytes = 0
        self._in_chunk = False
        self._wakeup = asyncio.Event()
        self._chunked = response.chunked
        self.ended = False
        self.overflowed = False
        """Whether the stream was ended because its queue was full."""

    @property
    def full(self) -> bool:
        """Return whether further writes are queued."""
        return bool(self._queue)

    def write(self, chunk: bytes) -> None:
        """Send a chunk of HTTP/1.1, or queue it."""
        if not self._chunked:
            chunk = chunk[chunk.index(b"\n") + 1 : -2]  # HTTP/1.0 has no chunks: the frame of `_framed` is removed.
        if is_closing(self._transport):
            self.end()
        elif not self._queue and not self._protocol.writing_paused and len(chunk) <= TRANSPORT_BUFFER:
            self._transport.write(chunk)
        else:
            self._queue.append(memoryview(chunk))
            self._wakeup.set()
            self.add_queued(len(chunk))

    def add_queued(self, size: int) -> None:
        """Count further queued bytes. Disconnect the client if MAX_QUEUED_BYTES are exceeded."""
        self._queued_bytes += size
        if self._queued_bytes > MAX_QUEUED_BYTES and not self.overflowed:
            self.overflowed = True
            self._queue.clear()
            self._transport.abort()
            self.end()

    def remove_queued(self, size: int) -> None:
        """Count bytes, added by `add_queued`, as no longer queued."""
        self._queued_bytes -= size

    async def flush(self) -> None:
        """Wait until nothing is queued or the stream has ended. Raises ConnectionError when the client disconnects."""
        while self._queue and not self.ended:
            await self._response.drain()
            async with self._turns:
                self._write_queued()
                await asyncio.sleep(0)

    def _write_queued(self) -> None:
        """Write about TRANSPORT_BUFFER bytes of the queue.

        Large chunks are sliced, because the transport encrypts at once what it gets: 10,000 clients would have 10,000
        copies of an object of 1 MB.
        """
        written = 0
        while self._queue and not self._protocol.writing_paused and written < TRANSPORT_BUFFER:
            if is_closing(self._transport):
                self._queue.clear()
                self.end()
                return
            chunk = self._queue.popleft()
            self._in_chunk = len(chunk) > TRANSPORT_BUFFER
            if self._in_chunk:
                self._queue.appendleft(chunk[TRANSPORT_BUFFER:])
                chunk = chunk[:TRANSPORT_BUFFER]
            self.remove_queued(len(chunk))
            self._transport.write(chunk)
            written += len(chunk)

    async def run(self) -> None:
        """Send queued chunks until the stream has ended."""
        while not self.ended:
            await self.flush()
            await self._wakeup.wait()
            self._wakeup.clear()

    def end(self) -> None:
        """End the stream: nothing more is sent."""
        self.ended = True
        self._wakeup.set()

    def abort(self) -> None:
        """Disconnect the client at once, so that it does not take what was sent for all there is."""
        self._transport.abort()
        self.end()

    def close(self) -> None:
        """Disconnect the client if a chunk was sent in part only, because it would take the end for the rest of it."""
        if self._in_chunk:
            self._transport.abort()


log = logging.getLogger(__name__)


BOOKMARK_SECONDS = 60.0
DEFAULT_WATCH_SECONDS = (1800.0, 3600.0)
"""Range of the random timeout, in seconds, of a watch without timeoutSeconds: clients do not reconnect all at once."""

YIELD_EVERY = 50
"""Number of backlog events after which other tasks run, and after which a disconnected client is noticed."""

INITIAL_EVENTS_END = "k8s.io/initial-events-end"


@dataclass(frozen=True, slots=True)
class OutputForm:
    """The output form of the events of a watch. `definitions` is true if a table is to have its column definitions."""

    view: View
    include: str
    definitions: bool = False


@dataclass(frozen=True, slots=True)
class WatchOptions:
    """The options of a watch.

    The watch starts after `revision`, or with the stored objects (`starts_with_existing`), or with new events if
    neither is given. `user_name` is the name of its user.
    """

    selection: Selection
    form: OutputForm
    revision: int | None
    starts_with_existing: bool
    sends_initial_events_end: bool
    bookmarks: bool
    seconds: float
    user_name: str = ""
    warning: str = ""
    """The text of a Warning header; empty for none."""


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
        selection=parse_selection(request.info, query, request.name_filter, request.record_filter),
        form=OutputForm(negotiation.negotiate(request.accept), query.get("includeObject", "Metadata")),
        revision=revision or None,
        starts_with_existing=initial or (not revision and "sendInitialEvents" not in query),
        sends_initial_events_end=initial,
        bookmarks=bool_param(query, "allowWatchBookmarks"),
        seconds=float(seconds) if seconds else random.uniform(*DEFAULT_WATCH_SECONDS),
        user_name=request.user.name,
        warning=request.info.resource.deprecation_warning,
    )


def _forbidden_match(reason: str) -> errors.StatusError:
    return errors.invalid_options("ListOptions", FieldError("resourceVersionMatch", "given", reason, FORBIDDEN))


def event_type(selection: Selection, event: WatchEvent) -> str:
    """Return the event type for a selection, which an object may enter or leave; empty if no event is sent."""
    before = selection.matches(event.previous)
    after = event.type != "DELETED" and selection.matches(event.record)
    if after:
        return "MODIFIED" if before else "ADDED"
    return "DELETED" if before else ""


class WatchedKind(NamedTuple):
    """A kind as the labels of metrics name it."""

    group: str
    version: str
    kind: str


class VisibleObjects:
    """The objects that a watch with a name filter has shown to its client, and what the client gets after changes.

    The client gets an object as ADDED when its user may read it, and as DELETED, with only its name, when the user no
    longer may.
    """

    def __init__(self, selection: Selection, is_readable: NameFilter) -> None:
        self.selection = replace(selection, name_filter=None)
        self._is_readable = is_readable
        self._names: set[str] = set()

    def add_readable(self, record: Record) -> None:
        """Record an object that the client has from its list."""
        if self._is_readable(record.key.name):
            self._names.add(record.key.name)

    def add(self, name: str) -> None:
        """Record an object that the client knows by its name."""
        self._names.add(name)

    def translate(self, event: WatchEvent) -> WatchEvent | None:
        """Return the event that the client gets for a change of an object; None for no event."""
        name = event.record.key.name
        was_visible = name in self._names
        if event.type == "DELETED":
            self._names.discard(name)
            return event if was_visible else None
        if not self._is_readable(name):
            return self._removal(event.record, event.record.revision) if was_visible else None
        self._names.add(name)
        return event if was_visible or event.type == "ADDED" else WatchEvent("ADDED", event.record, None)

    def review(self, record: Record, revision: int) -> WatchEvent | None:
        """Return the event that the client gets for an object after a change of rights; None for no event."""
        name = record.key.name
        is_visible = self._is_readable(name)
        if is_visible == (name in self._names):
            return None
        if is_visible:
            self._names.add(name)
            return WatchEvent("ADDED", record, None)
        return self._removal(record, revision)

    def _removal(self, record: Record, revision: int) -> WatchEvent:
        self._names.discard(record.key.name)
        kind = type(record.object)
        removed = kind(
            api_version=kind.API_VERSION,
            kind=kind.KIND,
            metadata=ObjectMeta(name=record.key.name, resource_version=str(revision)),
        )
        data = msgspec.json.encode(removed)
        return WatchEvent("DELETED", Record(record.key, revision, data, kind, removed), record)


RIGHTS = tuple(group_resource(kind) for kind in (Role, RoleBinding, ClusterRole, ClusterRoleBinding))
"""Resources whose changes may change which objects a watch with a name filter shows."""

REVIEW_SECONDS = 1.0
"""Pause between two reviews of all objects of a watch."""


class WatchHandler:
    """All watches of the server."""

    def __init__(self, storage: Storage, clock: Clock, scheme: Scheme, caller: ExternalCaller) -> None:
        self._store = storage
        self._scheme = scheme
        self._caller = caller
        self._clock = clock
        self._encoded_event: WatchEvent | None = None
        self._chunks: dict[tuple[str, str, OutputForm], bytes] = {}
        self._converted: dict[str, WatchEvent] = {}
        self._open: set[Watcher] = set()
        self._turns = asyncio.Semaphore(MAX_TURNS)
        self._sent_events: Counter[WatchedKind] = Counter()
        """Events that ended watches have sent, by kind."""
        self._slow_watchers = 0
        storage.watch(group_resource(Group), self._note_members)
        scheme.subscribe(self._end_of_kind)

    def _note_members(self, event: WatchEvent) -> None:
        """Let the watches of users who join or leave a group review what they show."""
        before = set(event.previous.object.users) if event.previous is not None else set()
        after = set(event.record.object.users) if event.type != "DELETED" else set()
        if changed := before ^ after:
            for watcher in self._open:
                if watcher.user_name in changed:
                    watcher.note_changed_groups()

    @property
    def count(self) -> int:
        """Return the number of open watches."""
        return len(self._open)

    def _end_of_kind(self, resource: GroupResource) -> None:
        """End the watches of a custom kind whose definition has changed. Their clients list again."""
        for watcher in tuple(self._open):
            if watcher.resource.stored_group_resource == resource:
                watcher.end()

    def end_all(self) -> None:
        """End every watch cleanly, as if its timeout had expired."""
        for watcher in tuple(self._open):
            watcher.end()

    async def serve(self, http: web.Request, options: WatchOptions) -> web.StreamResponse:
        """Stream events until the watch ends."""
        if options.starts_with_existing and (options.revision or 0) > self._store.revision:
            raise errors.resource_version_too_large(options.revision or 0, self._store.revision)
        resource = options.selection.resource
        response = web.StreamResponse(
            headers=CIMultiDict(
                [
                    ("Content-Type", "application/json"),
                    ("Cache-Control", "no-cache, private"),
                    *((("Warning", f'299 - "{options.warning}"'),) if options.warning else ()),
                ]
            )
        )
        if http.version >= HttpVersion11:
            response.enable_chunked_encoding()
        await response.prepare(http)
        transport = http.transport
        if transport is None or not (resource.documents is None or self._scheme.is_current(resource)):
            return response
        release_read_buffer(transport)
        watcher = Watcher(self, options, ClientStream(http, transport, response, self._turns))
        self._open.add(watcher)
        try:
            await watcher.run(self._store)
        finally:
            self._open.discard(watcher)
            self._sent_events[watcher.kind] += watcher.sent_events
            self._slow_watchers += watcher.is_slow
        return response

    def metrics(self) -> Iterator[MetricFamily]:
        """Yield the metrics of watches."""
        open_watches, sent_events = Counter[WatchedKind](), self._sent_events.copy()
        for watcher in self._open:
            open_watches[watcher.kind] += 1
            sent_events[watcher.kind] += watcher.sent_events
        yield gauge("apiserver_registered_watchers", "Open watches by kind.", _by_labels(open_watches))
        yield counter(
            "apiserver_watch_events_total", "Events that were sent to watches, by kind.", _by_labels(sent_events)
        )
        yield counter(
            "podlane_slow_watchers_total",
            "Watches that were ended because their client did not read.",
            {"": self._slow_watchers},
        )

    def initial_events(self, options: WatchOptions) -> Iterator[WatchEvent]:
        """Return the initial events of a watch. Raises Compacted."""
        selection = options.selection
        if options.starts_with_existing:
            records = self._store.list(selection.resource.stored_group_resource, selection.namespace)
            return (WatchEvent("ADDED", record, None) for record in records)
        return iter(
            self._store.events_since(selection.resource.stored_group_resource, options.revision)
            if options.revision
            else ()
        )

    async def request_conversions(self, selection: Selection, events: Iterable[WatchEvent]) -> None:
        """Let webhooks convert what `encode` needs for the events. Raises StatusError."""
        await request_conversions(selection.resource, events, self._caller)

    def encode(self, selection: Selection, form: OutputForm, event: WatchEvent) -> bytes:
        """Return the event as an HTTP chunk for a selection and form; empty if no event is sent for this selection.

        Raises CallsPending.
        """
        if self._encoded_event is not event:
            self._encoded_event, self._chunks, self._converted = event, {}, {}
        version = selection.resource.type.API_VERSION
        if version not in self._converted:
            self._converted[version] = convert_event(selection.resource, event)
        converted = self._converted[version]
        type_ = event_type(selection, converted)
        if not type_:
            return b""
        left_selection = type_ == "DELETED" and event.type != "DELETED"
        key = ("LEFT" if left_selection else type_, version, form)
        chunk = self._chunks.get(key)
        if chunk is None:
            chunk = _framed(type_, self._body(selection, form, converted, left_selection=left_selection))
            self._chunks[key] = chunk
        return chunk

    def _body(self, selection: Selection, form: OutputForm, event: WatchEvent, *, left_selection: bool) -> bytes:
        if form.view is View.OBJECT and not left_selection:
            return event.record.data
        obj: Any = event.record.object
        if left_selection and event.previous is not None:
            obj = with_metadata(event.previous.object, resource_version=str(event.record.revision))
        if not form.view.is_table:
            return tables.encode_object(selection.resource, obj, form.view, self._clock())
        table_row = tables.table_row(selection.resource, obj, form.view, self._clock(), form.include)
        definitions = tables.columns(selection.resource) if form.definitions else None
        return tables.encode_table(form.view, [table_row], {"resourceVersion": str(event.record.revision)}, definitions)

    def bookmark(self, options: WatchOptions, revision: int, annotations: dict[str, str] | None = None) -> bytes:
        """Return the event that reports the current revision to the client."""
        resource, view = options.selection.resource, options.form.view
        metadata: dict[str, Any] = {"resourceVersion": str(revision)}
        if annotations:
            metadata["annotations"] = annotations
        head = {"kind": resource.kind, "apiVersion": resource.type.API_VERSION}
        if view.is_metadata or (view.is_table and options.form.include != "Object"):
            head = {"kind": "PartialObjectMetadata", "apiVersion": view.api_version}
        shown = {**head, "metadata": metadata}
        if not view.is_table:
            return _framed("BOOKMARK", msgspec.json.encode(shown))
        # Clients find the annotations of a bookmark at the object of its only row.
        row: dict[str, object] = {"cells": [None] * len(resource.columns), "object": shown}
        return _framed("BOOKMARK", tables.encode_table(view, [row], {"resourceVersion": str(revision)}, None))


class Watcher:
    """The watch of one client.

    It ends when its timeout expires, when the server stops, and when a live event cannot be encoded. A client with a
    full queue is disconnected, and so is one that was sent only a part of a chunk. The client gets an ERROR event when
    the revision is compacted, and when an object cannot be converted or shown.
    """

    def __init__(self, watches: WatchHandler, options: WatchOptions, stream: ClientStream) -> None:
        self._watches = watches
        self._options = options
        self._selection = options.selection
        self._visible: VisibleObjects | None = None
        if options.selection.name_filter is not None:
            self._visible = VisibleObjects(options.selection, options.selection.name_filter)
            self._selection = self._visible.selection
        self._changed_rights: set[str] = set()
        """Namespaces in which rights have changed; empty for the whole cluster."""
        self._has_changed_rights = asyncio.Event()
        self._form = OutputForm(options.form.view, options.form.include, definitions=options.form.view.is_table)
        self._stream = stream
        self.sent_events = 0
        """Events that were sent or queued, without bookmarks."""
        self._backlog: list[WatchEvent] | None = []
        self._catching_up: asyncio.Task[None] | None = None

    async def run(self, storage: Storage) -> None:
        """Send events until the watch ends."""
        options = self._options
        try:
            # There is no await up to the registration, so no event is lost between the initial events and later ones.
            initial_events: Iterable[WatchEvent] = self._watches.initial_events(options)
        except Compacted as error:
            self._write_error(errors.expired(str(error)))
            return
        revision = storage.revision
        subscriptions = contextlib.ExitStack()
        subscriptions.callback(storage.watch(options.selection.resource.stored_group_resource, self._take))
        try:
            async with asyncio.timeout(options.seconds):
                await self._send_until_end(initial_events, revision, storage, subscriptions)
        except errors.StatusError as error:
            # The response has begun: another one behind it would leave the client waiting for the end of this one.
            self._write_error(error)
        except TimeoutError:
            if options.bookmarks and self._backlog is None:
                self._stream.write(self._watches.bookmark(options, storage.revision))
        except Exception:
            self._stream.abort()
            raise
        finally:
            subscriptions.close()
            if self._catching_up is not None:
                self._catching_up.cancel()
            self._stream.close()
            if self._stream.overflowed:
                log.warning("slow watcher disconnected", extra={"kind": options.selection.resource.kind})

    async def _send_until_end(
        self,
        initial_events: Iterable[WatchEvent],
        revision: int,
        storage: Storage,
        subscriptions: contextlib.ExitStack,
    ) -> None:
        """Send the initial events, which are those up to a revision, and all that follow."""
        options = self._options
        if self._visible is not None:
            await self._follow_rights(self._visible, storage, subscriptions)
            if not options.starts_with_existing:
                initial_events = list(initial_events)
                self._report_lost_object(self._visible, storage, initial_events)
        await self._send_all(initial_events)
        if options.sends_initial_events_end:
            self._stream.write(self._watches.bookmark(options, revision, {INITIAL_EVENTS_END: "true"}))
        await self._drain_backlog()
        await self._run_stream(storage)

    @property
    def user_name(self) -> str:
        """Return the name of the user."""
        return self._options.user_name

    @property
    def resource(self) -> AnyResource:
        """Return the watched resource, in the version of the request."""
        return self._options.selection.resource

    @property
    def kind(self) -> WatchedKind:
        """Return the watched kind."""
        return WatchedKind(self.resource.group, self.resource.version, self.resource.kind)

    @property
    def is_slow(self) -> bool:
        """Return whether the watch was ended because its client did not read."""
        return self._stream.overflowed

    def note_changed_groups(self) -> None:
        """Review what a watch with a name filter shows, because its user is in other groups."""
        self._note_changed_rights("")

    def end(self) -> None:
        """End the watch as if its timeout had expired."""
        self._stream.end()

    def _take(self, event: WatchEvent) -> None:
        """Receive an event from the store. It is added to the backlog while the initial events are being sent."""
        if self._backlog is not None:
            self._backlog.append(event)
            self._stream.add_queued(event.record.size)
            return
        try:
            self._send(event)
        except CallsPending:
            self._backlog = [event]
            self._stream.add_queued(event.record.size)
            self._catching_up = asyncio.create_task(self._catch_up())
        except Exception:
            # The client must not continue as if it had seen the event. It connects again, and lists.
            self._stream.end()
            raise

    async def _catch_up(self) -> None:
        """Send the events that wait for a webhook, and those behind them."""
        try:
            await self._drain_backlog()
        except errors.StatusError as error:
            self._write_error(error)
            self._stream.end()
        except BaseException:
            self._stream.end()
            raise

    def _write_error(self, error: errors.StatusError) -> None:
        self._stream.write(_framed("ERROR", errors.encode_status(error.status)))

    def _send(self, event: WatchEvent) -> None:
        translated = event if self._visible is None else self._visible.translate(event)
        if translated is not None:
            self._write(translated)

    async def _follow_rights(
        self, visible: VisibleObjects, storage: Storage, subscriptions: contextlib.ExitStack
    ) -> None:
        """Review rights from now on. Record what the client has from the list that this watch continues."""
        for resource in RIGHTS:
            subscriptions.callback(storage.watch(resource, self._note_rights))
        subscriptions.callback(asyncio.create_task(self._review_rights(visible, storage)).cancel)
        if self._options.starts_with_existing:
            return
        for number, record in enumerate(storage.list(self._selection.resource.stored_group_resource), 1):
            visible.add_readable(record)
            if number % YIELD_EVERY == 0:
                await asyncio.sleep(0)

    def _report_lost_object(
        self, visible: VisibleObjects, storage: Storage, initial_events: Iterable[WatchEvent]
    ) -> None:
        """Report that the object which the watch names is lost, if the right was lost between its list and the watch.

        `kubectl delete project` waits for it: the role binding goes before the project.
        """
        name = self._selection.fields.required_value("metadata.name")
        if name is None:
            return
        exists = storage.get(Key(self._selection.resource.stored_group_resource, "", name)) is not None
        if exists or any(event.record.key.name == name for event in initial_events):
            visible.add(name)
            self._changed_rights.add(name)
            self._has_changed_rights.set()

    def _note_rights(self, event: WatchEvent) -> None:
        self._note_changed_rights(event.record.key.namespace)

    def _note_changed_rights(self, namespace: str) -> None:
        self._changed_rights.add(namespace)
        if self._backlog is None:
            self._has_changed_rights.set()

    async def _review_rights(self, visible: VisibleObjects, storage: Storage) -> None:
        """Send what the client gains and loses by changes of rights, until cancelled.

        A change in one namespace concerns that one; a change for the whole cluster concerns all of them.
        """
        resource = self._selection.resource.stored_group_resource
        try:
            while True:
                await self._has_changed_rights.wait()
                self._has_changed_rights.clear()
                names, self._changed_rights = self._changed_rights, set()
                concerns_all = "" in names
                if concerns_all:
                    names = {record.key.name for record in storage.list(resource)}
                for number, name in enumerate(sorted(names), 1):
                    record = storage.get(Key(resource, "", name))
                    event = None if record is None else visible.review(record, storage.revision)
                    if event is not None:
                        self._write(event)
                    if number % YIELD_EVERY == 0:
                        await asyncio.sleep(0)
                if concerns_all:
                    await asyncio.sleep(REVIEW_SECONDS)
        except Exception:
            # The client must not continue with rights that it no longer has. It connects again, and lists.
            self._stream.end()
            raise

    def _write(self, event: WatchEvent) -> None:
        chunk = self._watches.encode(self._selection, self._form, event)
        if chunk:
            self._stream.write(chunk)
            self.sent_events += 1
            self._form = self._options.form  # Only the first event of a table has the column definitions.

    async def _send_all(self, events: Iterable[WatchEvent]) -> None:
        """Send events. Raises StatusError if a webhook cannot convert one."""
        if self.resource.documents is None or not self.resource.documents.is_converted_by_webhook:
            await self._send_known(events)
            return
        remaining = iter(events)
        while batch := list(itertools.islice(remaining, YIELD_EVERY)):
            await self._watches.request_conversions(self._selection, batch)
            await self._send_known(batch)

    async def _send_known(self, events: Iterable[WatchEvent]) -> None:
        for number, event in enumerate(events, 1):
            self._send(event)
            if self._stream.full:
                await self._stream.flush()
            elif number % YIELD_EVERY == 0:
                await asyncio.sleep(0)
            if self._stream.ended:
                return

    async def _drain_backlog(self) -> None:
        """Send the backlog until it is empty; from then on, events are sent as they arrive."""
        while self._backlog and not self._stream.ended:
            waiting, self._backlog = self._backlog, []
            self._stream.remove_queued(sum(event.record.size for event in waiting))
            await self._send_all(waiting)
        self._backlog = None
        if self._changed_rights:
            self._has_changed_rights.set()

    async def _run_stream(self, storage: Storage) -> None:
        """Send queued events, and bookmarks every BOOKMARK_SECONDS, until the watch ends."""
        while not self._stream.ended:
            try:
                async with asyncio.timeout(BOOKMARK_SECONDS):
                    await self._stream.run()
            except TimeoutError:
                if self._options.bookmarks:
                    self._stream.write(self._watches.bookmark(self._options, storage.revision))


def _by_labels(numbers: Counter[WatchedKind]) -> dict[str, int]:
    return {format_labels(**kind._asdict()): number for kind, number in numbers.items()}


def _framed(type_: str, body: bytes) -> bytes:
    """Return an event with its newline as one HTTP chunk."""
    line = b'{"type":"%s","object":%s}\n' % (type_.encode("ascii"), body)
    return b"%x\r\n%s\r\n" % (len(line), line)
