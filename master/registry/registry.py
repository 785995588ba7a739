"""Reading and writing objects: the storage operations of each request. It knows codes and bodies of HTTP only."""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import msgspec

from api.core.pod import Pod
from api.meta.schema import FORBIDDEN, FieldError
from api.meta.types import Object
from master import errors
from master.admission.certificate_requests import set_condition_times, set_requester
from master.admission.chain import AdmissionChain
from master.auth.attributes import User
from master.registry import decoding, managed_fields, patch, request, scale, strategy
from master.registry.decoding import random_letters
from master.registry.managed_fields import FieldManager
from master.registry.request import (
    Clock,
    ContinueToken,
    DeleteOptions,
    Request,
    Response,
    Selection,
    parse_delete_options,
)
from master.registry.scale import Scale
from master.resources.merge_schema import MergeSchema, merge_schema_of
from master.resources.metadata import format_time
from master.resources.resource import AnyResource
from master.serialization import negotiation, tables
from master.serialization.negotiation import View
from master.storage.interface import Compacted, Delete, Key, Put, Record, Storage, Transaction, WatchEvent


class Gate(Protocol):
    """Who may do what, where the path of a request does not say all. Both raise StatusError."""

    def check(self, user: User, verb: str, ask: Request) -> None:
        """Whether the user may do that with the objects of the path."""

    def guard(self, kind: AnyResource, new: Any, old: Any, user: User, part: str = "") -> None:
        """Whether the user may make (`old` is None) or change an object so, or only that part of it."""


GENERATED_NAME_TRIES = 8


class Registry:
    """All operations on objects. Raises `errors.StatusError`, and NotReady when the store refuses."""

    def __init__(self, store: Storage, clock: Clock, chain: AdmissionChain, gate: Gate) -> None:
        self._store = store
        self._clock = clock
        self._gate = gate
        self._chain = chain

    # --- reading ---------------------------------------------------------------------------------------------------

    def get(self, ask: Request) -> Response:
        """One object."""
        view = negotiation.negotiate(ask.accept)
        record = self._store.get(ask.key)
        if record is None:
            raise errors.not_found(ask.info.resource, ask.info.name)
        record = convert_record(ask.info.resource, record)
        if view is View.OBJECT:
            return Response(200, record.data)
        return self._answer(200, ask, record.object)

    def list_all(self, ask: Request) -> Response:
        """All that are selected, or a page of them, in one revision."""
        selection, view = (
            request.parse_selection(ask.info, ask.query, ask.name_filter),
            negotiation.negotiate(ask.accept),
        )
        limit, token = request.int_param(ask.query, "limit"), ask.query.get("continue", "")
        asked = self._revision(ask.query, paged=bool(token))
        page = request.decode_continue(token) if token else None
        revision = asked if page is None or page.rv == request.INCONSISTENT else page.rv
        records = self._scan(selection, revision, page)
        if page is not None:
            records = records[bisect.bisect_right(records, tuple(page.after), key=_place) :]
        most = limit if limit and ask.query.get("resourceVersion") != "0" else len(records)
        views = (convert_record(selection.resource, record) for record in records)
        shown = list(itertools.islice((record for record in views if selection.matches(record)), most + 1))
        metadata: dict[str, Any] = {"resourceVersion": str(revision)}
        if len(shown) > most:
            shown.pop()
            metadata["continue"] = request.encode_continue(ContinueToken(revision, _place(shown[-1])))
            if selection.selects_all:
                metadata["remainingItemCount"] = len(records) - most
        return Response(200, self._listed(ask, shown, metadata, view))

    def _scan(self, selection: Selection, revision: int, page: ContinueToken | None) -> list[Record]:
        try:
            return self._store.list_at(selection.resource.stored_kind, selection.namespace, revision)
        except Compacted as error:
            if page is None:
                raise errors.expired("The resourceVersion for the provided list is too old.") from error
            raise errors.continue_expired(
                request.encode_continue(ContinueToken(request.INCONSISTENT, page.after))
            ) from error

    def _revision(self, query: Mapping[str, str], *, paged: bool) -> int:
        """The revision that a list shows. Raises StatusError."""
        match, asked = query.get("resourceVersionMatch", ""), request.int_param(query, "resourceVersion")
        if match not in ("", "Exact", "NotOlderThan"):
            raise errors.bad_request(f"resourceVersionMatch is {match!r}; Exact and NotOlderThan are accepted")
        if match and asked is None:
            why = "resourceVersionMatch is forbidden unless resourceVersion is provided"
            problem = FieldError("resourceVersionMatch", "given", why, FORBIDDEN)
            raise errors.invalid_options("ListOptions", problem)
        if match == "Exact" and asked == 0:
            why = 'resourceVersionMatch "exact" is forbidden for resourceVersion "0"'
            raise errors.invalid_options("ListOptions", FieldError("resourceVersionMatch", "given", why, FORBIDDEN))
        if "sendInitialEvents" in query:
            why = "sendInitialEvents is forbidden for list"
            raise errors.invalid_options("ListOptions", FieldError("sendInitialEvents", "given", why, FORBIDDEN))
        if paged and asked:
            raise errors.bad_request("resourceVersion is not accepted together with continue")
        if asked is not None and asked > self._store.revision:
            raise errors.resource_version_too_large(asked, self._store.revision)
        return asked if match == "Exact" and asked else self._store.revision

    def _listed(self, ask: Request, records: list[Record], metadata: Mapping[str, Any], view: View) -> bytes:
        kind = ask.info.resource
        if view.is_table:
            include, now = ask.query.get("includeObject", "Metadata"), self._clock()
            rows = [tables.table_row(kind, record.object, view, now, include) for record in records]
            return tables.encode_table(view, rows, metadata, tables.columns(kind))
        if view.is_metadata:
            head = {"kind": "PartialObjectMetadataList", "apiVersion": view.api_version}
            items = [msgspec.json.encode(tables.metadata_only(record.object, view.api_version)) for record in records]
        else:
            head = {"kind": f"{kind.name}List", "apiVersion": kind.type.API_VERSION}
            items = [record.data for record in records]
        opening = msgspec.json.encode({**head, "metadata": metadata})[:-1]
        return b"".join((opening, b',"items":[', b",".join(items), b"]}"))

    # --- writing ---------------------------------------------------------------------------------------------------

    async def create(self, ask: Request) -> Response:
        """A new object."""
        if ask.info.name:
            raise errors.method_not_allowed()
        return await self._create(ask, ask.body, ())

    async def _create(self, ask: Request, document: Any, owners: Sequence[FieldManager]) -> Response:
        where, dry = ask.info, request.dry_run(ask.query)
        if where.resource.unsupported:
            raise errors.method_not_allowed(where.resource.unsupported)
        if where.resource.namespaced and not where.namespace:
            raise errors.bad_request(f"{where.resource.plural} are made in a namespace: none is given in the path")
        strictness = request.field_validation(ask.query)
        for _ in range(GENERATED_NAME_TRIES):
            body = decoding.decode_object(where, document, strictness, random_letters)
            name = body.item.metadata.name
            if self._store.get_uncommitted(Key(where.resource.stored_kind, where.namespace, name)) is None:
                break
            if not body.item.metadata.generate_name or document["metadata"].get("name"):
                raise errors.already_exists(where.resource, name)
        else:
            raise errors.already_exists(where.resource, name)
        transaction = Transaction(self._store)
        with errors.with_warnings(body.warnings):
            self._gate.guard(where.resource, body.item, None, ask.user)
            begun = self._chain.created(
                where.resource, set_requester(body.item, ask.user, ask.client_address), transaction
            )
            item = managed_fields.with_managed_fields(begun, owners)
        if not dry:
            kept, *_ = await self._store.write(Put(where.resource.to_stored(item), expect=0), *transaction.changes)
            item = where.resource.from_stored(kept)
        return self._answer(201, ask, item, body.warnings)

    async def update(self, ask: Request) -> Response:
        """Another object in place of the one there is, or another status; of some kinds a new one."""
        kind = ask.info.resource
        if kind.allow_create_on_update and not ask.info.subresource and self._store.get_uncommitted(ask.key) is None:
            self._gate.check(ask.user, "create", ask)
            body = decoding.decode_object(ask.info, ask.body, request.field_validation(ask.query))
            if body.item.metadata.uid:
                raise errors.uid_conflict(kind, ask.info.name, body.item.metadata.uid, "")
            return await self._create(ask, ask.body, ())
        return await self._replace(ask, ask.body, self._old(ask))

    async def patch(self, ask: Request) -> Response:
        """A part of the object changed."""
        if ask.content_type == negotiation.APPLY_PATCH:
            return await self._apply(ask)
        old = self._old(ask)
        before = msgspec.json.decode(old.data)
        # Where nobody applied there is no record of owners; kubectl replaces it all the same when it takes over.
        before["metadata"].setdefault("managedFields", [])
        return await self._replace(ask, _patched(ask, before, ask.info.resource.merge_schema), old)

    async def _apply(self, ask: Request) -> Response:
        """The fields of the body are as it says, and belong to who applies it; the object is made if there is none."""
        kind, record = ask.info.resource, self._latest(ask.info.resource, ask.key)
        if record is None and ask.info.subresource:
            raise errors.not_found(kind, ask.info.name)
        wish = managed_fields.applied_fields(ask.info, ask.body, ask.query.get("fieldManager", ""))
        live = {} if record is None else msgspec.json.decode(record.data)
        me = self._owner(ask, managed_fields.APPLY)
        result = managed_fields.apply(live, wish, kind.merge_schema, managed_fields.managers_in(live), me)
        if result.conflicts and not request.bool_param(ask.query, "force"):
            raise managed_fields.apply_conflict(result.conflicts)
        if record is None:
            self._gate.check(ask.user, "create", ask)
            return await self._create(ask, result.document, result.owners)
        return await self._replace(ask, result.document, record, result.owners)

    def _owner(self, ask: Request, operation: str) -> FieldManager:
        version, now = ask.info.resource.type.API_VERSION, format_time(self._clock())
        return FieldManager(ask.field_manager, operation, ask.info.subresource, version, now, frozenset())

    async def _replace(
        self, ask: Request, document: Any, old: Record, owners: Sequence[FieldManager] | None = None
    ) -> Response:
        """`owners` are those after an apply."""
        kind, dry = ask.info.resource, request.dry_run(ask.query)
        part, transaction = ask.info.subresource, Transaction(self._store)
        wish = document if part else kind.normalize_update(document, old.object)
        body = decoding.decode_object(ask.info, wish, request.field_validation(ask.query))
        with errors.with_warnings(body.warnings):
            if part:
                self._gate.guard(kind, body.item, old.object, ask.user, part)
                new = set_condition_times(
                    strategy.prepare_subresource_update(kind, part, body.item, old.object), old.object, self._clock()
                )
            else:
                new = strategy.prepare_update(kind, body.item, old.object)
                self._gate.guard(kind, new, old.object, ask.user)
            if owners is None:
                owners = managed_fields.managers_after_update(
                    kind, old.object, new, document, self._owner(ask, managed_fields.UPDATE)
                )
            new = managed_fields.with_managed_fields(
                new if part else self._chain.changed(kind, new, old.object, transaction), owners
            )
        item = new if dry else await self._put(kind, new, old, transaction.changes)
        return self._answer(200, ask, item, body.warnings)

    async def _put(self, kind: AnyResource, new: Any, old: Record, beside: Sequence[Put] = ()) -> Any:
        if new == old.object:
            await self._store.write()
            return old.object
        if strategy.is_deletable(kind.stored_resource, kind.to_stored(new)):
            (kept,) = await self._store.write(Delete(kind.to_stored(new), expect=old.revision))
        else:
            kept, *_ = await self._store.write(Put(kind.to_stored(new), expect=old.revision), *beside)
        return kind.from_stored(kept)

    async def scale(self, verb: str, ask: Request) -> Response:
        """GET, PUT and PATCH of the subresource scale."""
        kind, old = ask.info.resource, self._old(ask)
        assert kind.scale is not None
        before = scale.scale_of(kind.scale, old.object)
        if verb == "get":
            return Response(200, msgspec.json.encode(before))
        if ask.content_type == negotiation.APPLY_PATCH:
            raise errors.unsupported_patch()
        document = ask.body
        if verb == "patch":
            document = _patched(ask, msgspec.to_builtins(before), merge_schema_of(Scale))
        wish = scale.with_scale(kind.scale, old.object, scale.decode_scale(kind, ask.info.name, document))
        new = strategy.prepare_update(kind, wish, old.object)
        owners = managed_fields.managers_after_update(
            kind, old.object, new, {}, self._owner(ask, managed_fields.UPDATE)
        )
        new = managed_fields.with_managed_fields(new, owners)
        item = new if request.dry_run(ask.query) else await self._put(kind, new, old)
        return Response(200, msgspec.json.encode(scale.scale_of(kind.scale, item)))

    # --- deleting --------------------------------------------------------------------------------------------------

    async def delete(self, ask: Request) -> Response:
        """The object goes, at once or in its time."""
        options, dry = parse_delete_options(ask), request.dry_run(ask.query)
        old, kind = self._old(ask), ask.info.resource
        strategy.check_preconditions(kind, old.object, options)
        item, gone = await self._delete(kind, old, options, dry=dry or bool(options.dry_run))
        if gone and kind.name not in ("Pod", "Namespace", "PersistentVolume"):
            details = errors.details_of(kind, item.metadata.name, item.metadata.uid)
            return Response(200, errors.encode_status(errors.success(details)))
        return self._answer(200, ask, item)

    async def delete_all(self, ask: Request) -> Response:
        """All objects that are selected go."""
        selection, options = request.parse_selection(ask.info, ask.query, ask.name_filter), parse_delete_options(ask)
        kind, dry = ask.info.resource, request.dry_run(ask.query) or bool(options.dry_run)
        found = (
            convert_record(kind, record)
            for record in self._store.list_uncommitted(kind.stored_kind, ask.info.namespace)
        )
        records = [record for record in found if selection.matches(record)]
        items = []
        for record in records:
            newest = self._latest(kind, record.key)
            if newest is not None:
                item, _ = await self._delete(kind, newest, options, dry=dry)
                items.append(Record(record.key, newest.revision, msgspec.json.encode(item), kind.type, item))
        metadata = {"resourceVersion": str(self._store.revision)}
        return Response(200, self._listed(ask, items, metadata, negotiation.negotiate(ask.accept)))

    async def _delete(self, kind: AnyResource, old: Record, options: DeleteOptions, *, dry: bool) -> tuple[Any, bool]:
        """The object as it is left, and whether it is gone."""
        item = old.object
        node_name = item.spec.node_name if isinstance(item, Pod) else ""
        node = self._latest_object(Key("Node", "", node_name)) if node_name else None
        kept = strategy.prepare_delete(kind.stored_resource, kind.to_stored(item), options, self._clock(), node)
        left = item if kept is None else kind.from_stored(kept)
        if dry:
            return left, kept is None
        if kept is None:
            (last,) = await self._store.write(Delete(kind.to_stored(item), expect=old.revision))
            return kind.from_stored(last), True
        return await self._put(kind, left, old), False

    # --- parts -----------------------------------------------------------------------------------------------------

    def _old(self, ask: Request) -> Record:
        record = self._latest(ask.info.resource, ask.key)
        if record is None:
            raise errors.not_found(ask.info.resource, ask.info.name)
        return record

    def _latest(self, kind: AnyResource, key: Key) -> Record | None:
        """The newest revision in the form of that kind."""
        record = self._store.get_uncommitted(key)
        return None if record is None else convert_record(kind, record)

    def _latest_object(self, key: Key) -> Any:
        record = self._store.get_uncommitted(key)
        return None if record is None else record.object

    def _answer(self, code: int, ask: Request, item: Object, warnings: tuple[str, ...] = ()) -> Response:
        view, include = negotiation.negotiate(ask.accept), ask.query.get("includeObject", "Metadata")
        return Response(code, tables.encode_object(ask.info.resource, item, view, self._clock(), include), warnings)


def _place(record: Record) -> tuple[str, str]:
    """By which lists are sorted."""
    return record.key.namespace, record.key.name


def _patched(ask: Request, before: Any, shape: MergeSchema) -> Any:
    try:
        if ask.content_type == negotiation.MERGE_PATCH:
            return patch.merge_patch(before, ask.body)
        if ask.content_type == negotiation.STRATEGIC_PATCH:
            return patch.strategic_merge_patch(before, ask.body, shape)
        return patch.json_patch(before, ask.body)
    except patch.InvalidPatch as error:
        raise errors.invalid_patch(str(error)) from error


def convert_record(kind: AnyResource, record: Record) -> Record:
    """A revision as objects of this kind look; that of a kind which is stored is as it is."""
    if kind.stored_as is None:
        return record
    item = kind.from_stored(record.object)
    return Record(record.key, record.revision, msgspec.json.encode(item), kind.type, item)


def convert_event(kind: AnyResource, event: WatchEvent) -> WatchEvent:
    """The same for what happens to it."""
    if kind.stored_as is None:
        return event
    previous = None if event.previous is None else convert_record(kind, event.previous)
    return WatchEvent(event.type, convert_record(kind, event.record), previous)
