"""The operations get, list, create, update, patch, apply, scale and delete on the objects of any resource.

It knows status codes and bodies of HTTP, but not connections.
"""

from __future__ import annotations

import asyncio
import bisect
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from typing import Any

import msgspec

from api.codec.limits import MAX_VALUES, value_count
from api.core.node import Node
from api.core.pod import Pod
from api.meta.schema import FORBIDDEN, FieldError
from api.meta.types import Object
from master import errors
from master.admission.plugin import AdmissionRequest, Operation, ignore_warning
from master.auth.authorization import Authorizer
from master.registry import decoding, managed_fields, patch, scale, strategy
from master.registry.creation import ObjectCreation
from master.registry.decoding import random_letters
from master.registry.guaranteed_update import WriteDecision, guaranteed_update
from master.registry.managed_fields import FieldManager
from master.registry.request import (
    INCONSISTENT,
    ContinueToken,
    DeleteOptions,
    Request,
    Response,
    decode_continue,
    dry_run,
    encode_continue,
    field_validation,
    int_param,
    parse_delete_options,
)
from master.registry.scale import Scale
from master.request_info import Selection, bool_param, parse_selection
from master.resources.merge_schema import MergeSchema, merge_schema_of
from master.resources.metadata import format_time
from master.resources.resource import AnyResource
from master.resources.scheme import group_resource
from master.serialization import negotiation, tables
from master.serialization.negotiation import View
from master.storage.interface import Compacted, Delete, Key, Put, Record, Storage, Transaction, WatchEvent

GENERATED_NAME_TRIES = 8

MAX_TURN_BYTES = 256 << 10
"""Bytes of objects that a list decodes, converts and shows before other tasks run. 1 MiB takes up to 0.3 s."""

MAX_WHOLE_BODY_BYTES = 64 << 10
"""Bytes of the body of a list that is sent as a whole. Encrypting a list of 40 MB at once takes 50 ms, and a copy."""

MAX_OBJECT_BYTES = 4 << 20
"""Bytes of an object as JSON. A body is smaller, but each patch could make an object larger by the size of a body."""


class Registry:
    """All operations on objects. Raises `errors.StatusError`, and NotReady if the storage rejects a write."""

    def __init__(self, storage: Storage, creation: ObjectCreation, authorizer: Authorizer) -> None:
        self._store = storage
        self._clock = creation.clock
        self._creation = creation
        self._chain = creation.chain
        self._authorizer = authorizer

    # --- reading ---------------------------------------------------------------------------------------------------

    def get(self, request: Request) -> Response:
        """Return an object."""
        view = negotiation.negotiate(request.accept)
        record = self._store.get(request.key)
        if record is None:
            raise errors.not_found(request.info.resource, request.info.name)
        record = convert_record(request.info.resource, record)
        _check_owner(request, record)
        if view is View.OBJECT:
            return Response(200, record.data)
        return self._answer(200, request, record.object)

    async def list_all(self, request: Request) -> Response:
        """Return the selected objects of one revision, or a page of them."""
        selection = parse_selection(request.info, request.query, request.name_filter, request.record_filter)
        view = negotiation.negotiate(request.accept)
        limit, token = int_param(request.query, "limit"), request.query.get("continue", "")
        requested_revision = self._revision(request.query, paged=bool(token))
        page = decode_continue(token) if token else None
        revision = requested_revision if page is None or page.rv == INCONSISTENT else page.rv
        records = self._scan(selection, revision, page)
        if page is not None:
            records = records[bisect.bisect_right(records, tuple(page.after), key=_sort_key) :]
        page_size = limit if limit and request.query.get("resourceVersion") != "0" else len(records)
        selected: list[Record] = []
        async for record in _in_turns(records):
            converted = convert_record(selection.resource, record)
            if selection.matches(converted):
                selected.append(converted)
                if len(selected) > page_size:
                    break
        metadata: dict[str, Any] = {"resourceVersion": str(revision)}
        if len(selected) > page_size:
            selected.pop()
            metadata["continue"] = encode_continue(ContinueToken(revision, _sort_key(selected[-1])))
            if selection.selects_all:
                metadata["remainingItemCount"] = len(records) - page_size
        return await self._listed(request, selected, metadata, view)

    def _scan(self, selection: Selection, revision: int, page: ContinueToken | None) -> list[Record]:
        try:
            return self._store.list_at(selection.resource.stored_group_resource, selection.namespace, revision)
        except Compacted as error:
            if page is None:
                raise errors.expired("The resourceVersion for the provided list is too old.") from error
            raise errors.continue_expired(encode_continue(ContinueToken(INCONSISTENT, page.after))) from error

    def _revision(self, query: Mapping[str, str], *, paged: bool) -> int:
        """Return the revision of a list. Raises StatusError."""
        match, requested = query.get("resourceVersionMatch", ""), int_param(query, "resourceVersion")
        if match not in ("", "Exact", "NotOlderThan"):
            raise errors.bad_request(f"resourceVersionMatch is {match!r}; Exact and NotOlderThan are accepted")
        if match and requested is None:
            why = "resourceVersionMatch is forbidden unless resourceVersion is provided"
            problem = FieldError("resourceVersionMatch", "given", why, FORBIDDEN)
            raise errors.invalid_options("ListOptions", problem)
        if match == "Exact" and requested == 0:
            why = 'resourceVersionMatch "exact" is forbidden for resourceVersion "0"'
            raise errors.invalid_options("ListOptions", FieldError("resourceVersionMatch", "given", why, FORBIDDEN))
        if "sendInitialEvents" in query:
            why = "sendInitialEvents is forbidden for list"
            raise errors.invalid_options("ListOptions", FieldError("sendInitialEvents", "given", why, FORBIDDEN))
        if paged and requested:
            raise errors.bad_request("resourceVersion is not accepted together with continue")
        if requested is not None and requested > self._store.revision:
            raise errors.resource_version_too_large(requested, self._store.revision)
        return requested if match == "Exact" and requested else self._store.revision

    async def _listed(
        self, request: Request, records: list[Record], metadata: Mapping[str, Any], view: View
    ) -> Response:
        resource = request.info.resource
        if view.is_table:
            include, now = request.query.get("includeObject", "Metadata"), self._clock()
            head = tables.table_head(view, metadata, tables.columns(resource))
            items = [
                msgspec.json.encode(tables.table_row(resource, record.object, view, now, include))
                async for record in _in_turns(records)
            ]
            return _list_response(head, "rows", items)
        if view.is_metadata:
            head = {"kind": "PartialObjectMetadataList", "apiVersion": view.api_version}
            items = [
                msgspec.json.encode(tables.metadata_only(record.object, view.api_version))
                async for record in _in_turns(records)
            ]
        else:
            head = {"kind": f"{resource.kind}List", "apiVersion": resource.type.API_VERSION}
            items = [record.data for record in records]
        return _list_response({**head, "metadata": metadata}, "items", items)

    # --- writing ---------------------------------------------------------------------------------------------------

    async def create(self, request: Request) -> Response:
        """Create an object."""
        if request.info.name:
            raise errors.method_not_allowed()
        return await self._commit(request, lambda: self._decide_create(request, request.body, ()))

    async def update(self, request: Request) -> Response:
        """Replace an object, or the part that the subresource covers. Some resources create a missing object."""
        return await self._commit(request, lambda: self._decide_update(request))

    async def patch(self, request: Request) -> Response:
        """Change parts of an object by a patch or a server-side apply."""
        decide = self._decide_apply if request.content_type == negotiation.APPLY_PATCH else self._decide_patch
        return await self._commit(request, lambda: decide(request))

    async def _commit(self, request: Request, decide: Callable[[], WriteDecision[Response]]) -> Response:
        return await guaranteed_update(self._store, request.info.resource, request.info.name, decide)

    def _decide_create(
        self, request: Request, document: Any, managers: Sequence[FieldManager]
    ) -> WriteDecision[Response]:
        info = request.info
        # An apply or update of an object that does not exist is a create, too.
        if "create" not in info.resource.verbs:
            raise errors.method_not_allowed(info.resource.create_denial)
        if info.resource.namespaced and not info.namespace:
            raise errors.bad_request(f"{info.resource.plural} are made in a namespace: none is given in the path")
        strictness = field_validation(request.query)
        for _ in range(GENERATED_NAME_TRIES):
            body = decoding.decode_object(info, document, strictness, random_letters)
            name = body.object.metadata.name
            key = Key(info.resource.stored_group_resource, info.namespace, name)
            is_generated = body.object.metadata.generate_name and not document["metadata"].get("name")
            if not is_generated or self._store.get_uncommitted(key) is None:
                break
        else:
            raise errors.already_exists(info.resource, name)
        check_size(body.object)  # Defaults may have made it large; admission would take seconds.
        transaction, warnings = Transaction(self._store), list(body.warnings)
        with errors.with_warnings(warnings):
            requester = self._authorizer.requester(request.user)
            created = self._creation.create(
                info.resource,
                body.object,
                transaction,
                requester,
                request.client_address,
                warn=warnings.append,
                annotate=request.annotate,
            )
            new = managed_fields.with_creators(created, managers)
            check_size(new)

        def respond(stored: tuple[Any, ...]) -> Response:
            obj = info.resource.from_stored(stored[0]) if stored else new
            return self._answer(201, request, obj, tuple(warnings))

        changes = (Put(key, info.resource.to_stored(new), expect=0), *transaction.changes)
        return WriteDecision(respond, changes, dry_run(request.query))

    def _decide_update(self, request: Request) -> WriteDecision[Response]:
        resource = request.info.resource
        if (
            resource.allow_create_on_update
            and not request.info.subresource
            and self._store.get_uncommitted(request.key) is None
        ):
            self._authorizer.require(request.user, "create", request.info, request.query)
            body = decoding.decode_object(request.info, request.body, field_validation(request.query))
            if body.object.metadata.uid:
                raise errors.uid_conflict(resource, request.info.name, body.object.metadata.uid, "")
            return self._decide_create(request, request.body, ())
        return self._decide_replace(request, request.body, self._old(request))

    def _decide_patch(self, request: Request) -> WriteDecision[Response]:
        old = self._old(request)
        before = msgspec.json.decode(old.data)
        # An object without an apply has no record of field managers, but kubectl replaces the record in its patch.
        before["metadata"].setdefault("managedFields", [])
        document = _patched(request, before, request.info.resource.merge_schema)
        _check_values(document, old.data)
        return self._decide_replace(request, document, old)

    def _decide_apply(self, request: Request) -> WriteDecision[Response]:
        """Set the fields of the body and make the client their manager. Create the object if there is none."""
        resource, record = request.info.resource, self._latest(request.info.resource, request.key)
        if record is None and request.info.subresource:
            raise errors.not_found(resource, request.info.name)
        applied = managed_fields.applied_fields(request.info, request.body, request.query.get("fieldManager", ""))
        live = {} if record is None else msgspec.json.decode(record.data)
        manager = self._field_manager(request, managed_fields.APPLY)
        result = managed_fields.bounded_apply(live, applied, resource.merge_schema, manager)
        if result.conflicts and not bool_param(request.query, "force"):
            raise managed_fields.apply_conflict(result.conflicts)
        if record is None:
            self._authorizer.require(request.user, "create", request.info, request.query)
            return self._decide_create(request, result.document, result.managers)
        _check_values(result.document, record.data)
        return self._decide_replace(request, result.document, record, result.managers)

    def _field_manager(self, request: Request, operation: str) -> FieldManager:
        version, now = request.info.resource.type.API_VERSION, format_time(self._clock())
        return FieldManager(request.field_manager, operation, request.info.subresource, version, now, frozenset())

    def _decide_replace(
        self, request: Request, document: Any, old: Record, managers: Sequence[FieldManager] | None = None
    ) -> WriteDecision[Response]:
        """Replace the object by the document. `managers` are the field managers after an apply."""
        resource, is_dry_run = request.info.resource, dry_run(request.query)
        subresource, transaction = request.info.subresource, Transaction(self._store)
        document_to_decode = document if subresource else resource.normalize_update(document, old.object)
        body = decoding.decode_object(request.info, document_to_decode, field_validation(request.query))
        check_size(body.object, len(old.data))
        warnings = list(body.warnings)
        with errors.with_warnings(warnings):
            admission = self._admission(Operation.UPDATE, request, old.object, warn=warnings.append)
            obj = self._chain.mutate(admission, body.object, transaction)
            if subresource:
                # Fields outside the subresource are not stored, but a node must not try to write them.
                self._chain.validate(admission, obj, transaction)
                new = strategy.prepare_subresource_update(resource, subresource, obj, old.object)
                strategy.validate(resource, new)
            else:
                new = strategy.prepare_update(resource, obj, old.object)
                self._chain.validate(admission, new, transaction)
            if managers is None:
                managers = managed_fields.managers_after_update(
                    resource, old.object, new, document, self._field_manager(request, managed_fields.UPDATE)
                )
            if not subresource:
                new = self._chain.reserve(admission, new, transaction)
            new = managed_fields.with_managed_fields(new, managers)
            check_size(new, len(old.data))

        def respond(stored: tuple[Any, ...]) -> Response:
            obj = _object_after(resource, stored, new, old, is_dry_run=is_dry_run)
            return self._answer(200, request, obj, tuple(warnings))

        return WriteDecision(respond, _changes(resource, new, old, transaction.changes), is_dry_run)

    def _admission(
        self,
        operation: Operation,
        request: Request,
        old: Any,
        grace_period_seconds: int | None = None,
        warn: Callable[[str], None] = ignore_warning,
    ) -> AdmissionRequest:
        return AdmissionRequest(
            operation=operation,
            resource=request.info.resource,
            now=self._clock(),
            random_suffix=random_letters,
            subresource=request.info.subresource,
            old=old,
            requester=self._authorizer.requester(request.user),
            client_address=request.client_address,
            grace_period_seconds=grace_period_seconds,
            warn=warn,
            annotate=request.annotate,
        )

    async def scale(self, verb: str, request: Request) -> Response:
        """Serve GET, PUT and PATCH of the subresource scale."""
        resource = request.info.resource
        assert resource.scale is not None
        if verb == "get":
            return Response(200, msgspec.json.encode(scale.scale_of(resource.scale, self._old(request).object)))
        return await self._commit(request, lambda: self._decide_scale(verb, request))

    def _decide_scale(self, verb: str, request: Request) -> WriteDecision[Response]:
        resource, old, is_dry_run = request.info.resource, self._old(request), dry_run(request.query)
        subresource = resource.scale
        assert subresource is not None
        if request.content_type == negotiation.APPLY_PATCH:
            raise errors.unsupported_patch()
        document = request.body
        if verb == "patch":
            before = msgspec.to_builtins(scale.scale_of(subresource, old.object))
            document = _patched(request, before, merge_schema_of(Scale))
        desired = scale.decode_scale(resource, request.info.name, document)
        new = strategy.prepare_update(resource, scale.with_scale(subresource, old.object, desired), old.object)
        managers = managed_fields.managers_after_update(
            resource, old.object, new, {}, self._field_manager(request, managed_fields.UPDATE)
        )
        new = managed_fields.with_managed_fields(new, managers)

        def respond(stored: tuple[Any, ...]) -> Response:
            obj = _object_after(resource, stored, new, old, is_dry_run=is_dry_run)
            return Response(200, msgspec.json.encode(scale.scale_of(subresource, obj)))

        return WriteDecision(respond, _changes(resource, new, old), is_dry_run)

    # --- deleting --------------------------------------------------------------------------------------------------

    async def delete(self, request: Request) -> Response:
        """Delete an object: at once, or mark it for deletion."""
        options, resource = parse_delete_options(request), request.info.resource
        is_dry_run = dry_run(request.query) or bool(options.dry_run)

        def decide() -> WriteDecision[tuple[Any, bool]]:
            old = self._old(request)
            self._validate_delete(request, old, options)
            strategy.check_preconditions(resource, old.object, options)
            return self._decide_delete(resource, old, options, is_dry_run=is_dry_run)

        obj, is_gone = await guaranteed_update(self._store, resource, request.info.name, decide)
        if is_gone and resource.kind not in ("Pod", "Namespace", "PersistentVolume"):
            details = errors.details_of(resource, obj.metadata.name, obj.metadata.uid)
            return Response(200, errors.encode_status(errors.success(details)))
        return self._answer(200, request, obj)

    async def delete_all(self, request: Request) -> Response:
        """Delete all selected objects in turn. Raises the first error; the objects before it are deleted."""
        selection = parse_selection(request.info, request.query, request.name_filter, request.record_filter)
        options = parse_delete_options(request)
        resource, is_dry_run = request.info.resource, dry_run(request.query) or bool(options.dry_run)
        stored = self._store.list_uncommitted(resource.stored_group_resource, request.info.namespace)
        selected = [record async for record in _in_turns(stored) if selection.matches(convert_record(resource, record))]
        items = []
        for record in selected:

            def decide(key: Key = record.key) -> WriteDecision[Record | None]:
                old = self._latest(resource, key)
                if old is None:
                    return WriteDecision(lambda _: None, is_dry_run=True)
                self._validate_delete(request, old, options)
                decision = self._decide_delete(resource, old, options, is_dry_run=is_dry_run)

                def respond(stored: tuple[Any, ...]) -> Record:
                    obj, _ = decision.respond(stored)
                    return Record(key, old.revision, msgspec.json.encode(obj), resource.type, obj)

                return WriteDecision(respond, decision.changes, is_dry_run)

            deleted = await guaranteed_update(self._store, resource, record.key.name, decide)
            if deleted is not None:
                items.append(deleted)
        metadata = {"resourceVersion": str(self._store.revision)}
        return await self._listed(request, items, metadata, negotiation.negotiate(request.accept))

    def _validate_delete(self, request: Request, old: Record, options: DeleteOptions) -> None:
        """Let the admission plugins validate a deletion. Raises the error of the plugin that rejects it."""
        admission = self._admission(Operation.DELETE, request, old.object, options.grace_period_seconds)
        self._chain.validate(admission, old.object, Transaction(self._store))

    def _decide_delete(
        self, resource: AnyResource, old: Record, options: DeleteOptions, *, is_dry_run: bool
    ) -> WriteDecision[tuple[Any, bool]]:
        """Decide a deletion. The response is the object in its last state, and whether it is gone."""
        obj = old.object
        node_name = obj.spec.node_name if isinstance(obj, Pod) else ""
        node = self._latest_object(Key(group_resource(Node), "", node_name)) if node_name else None
        remaining = strategy.prepare_delete(
            resource.stored_resource, resource.to_stored(obj), options, self._clock(), node
        )
        if remaining is None:

            def respond_gone(stored: tuple[Any, ...]) -> tuple[Any, bool]:
                return resource.from_stored(stored[0]) if stored else obj, True

            return WriteDecision(
                respond_gone, (Delete(old.key, resource.to_stored(obj), expect=old.revision),), is_dry_run
            )
        new = resource.from_stored(remaining)

        def respond_marked(stored: tuple[Any, ...]) -> tuple[Any, bool]:
            return _object_after(resource, stored, new, old, is_dry_run=is_dry_run), False

        return WriteDecision(respond_marked, _changes(resource, new, old), is_dry_run)

    # --- helpers ---------------------------------------------------------------------------------------------------

    def _old(self, request: Request) -> Record:
        record = self._latest(request.info.resource, request.key)
        if record is None:
            raise errors.not_found(request.info.resource, request.info.name)
        _check_owner(request, record)
        return record

    def _latest(self, resource: AnyResource, key: Key) -> Record | None:
        """Return the newest revision of an object, converted to a resource; None if there is none."""
        record = self._store.get_uncommitted(key)
        return None if record is None else convert_record(resource, record)

    def _latest_object(self, key: Key) -> Any:
        record = self._store.get_uncommitted(key)
        return None if record is None else record.object

    def _answer(self, code: int, request: Request, obj: Object, warnings: tuple[str, ...] = ()) -> Response:
        view, include = negotiation.negotiate(request.accept), request.query.get("includeObject", "Metadata")
        return Response(code, tables.encode_object(request.info.resource, obj, view, self._clock(), include), warnings)


async def _in_turns(records: Iterable[Record]) -> AsyncIterator[Record]:
    """Yield records, and let other tasks run after each MAX_TURN_BYTES of them."""
    size = 0
    for record in records:
        size += len(record.data)
        if size > MAX_TURN_BYTES:
            size = 0
            await asyncio.sleep(0)
        yield record


def _list_response(head: Mapping[str, Any], field: str, items: Sequence[bytes]) -> Response:
    """Return the response with the fields of `head`, and then `field` with the items. Large bodies are not copied."""
    opening = msgspec.json.encode(head)[:-1] + b',"%s":[' % field.encode("ascii")
    if sum(map(len, items)) <= MAX_WHOLE_BODY_BYTES:
        return Response(200, b"".join((opening, b",".join(items), b"]}")))
    parts = [opening]
    for item in items:
        parts += (item, b",")
    parts[-1] = b"]}"
    return Response(200, b"", parts=parts)


def _check_owner(request: Request, record: Record) -> None:
    """Raise NotFound for an object that only another user sees."""
    resource = request.info.resource
    if resource.owner is not None and request.record_filter is not None and not request.record_filter(record):
        raise errors.not_found(resource, request.info.name)


def _changes(resource: AnyResource, new: Any, old: Record, others: Sequence[Put] = ()) -> tuple[Put | Delete, ...]:
    """Return the changes that replace an object and write others with it; none if the object stays as it is.

    An object that waited for the removal of its last finalizer is deleted.
    """
    if new == old.object:
        return ()
    stored = resource.to_stored(new)
    if strategy.is_deletable(resource.stored_resource, stored):
        return (Delete(old.key, stored, expect=old.revision),)
    return (Put(old.key, stored, expect=old.revision), *others)


def _object_after(resource: AnyResource, stored: tuple[Any, ...], new: Any, old: Record, *, is_dry_run: bool) -> Any:
    """Return the object after its `_changes`."""
    if stored:
        return resource.from_stored(stored[0])
    return new if is_dry_run else old.object


def _sort_key(record: Record) -> tuple[str, str]:
    """Return the namespace and name by which lists are sorted."""
    return record.key.namespace, record.key.name


def check_size(obj: Object, old_size: int = 0) -> None:
    """Require that an object has at most MAX_OBJECT_BYTES, or is smaller than before. Raises StatusError."""
    size = len(msgspec.json.encode(obj))
    if size > max(MAX_OBJECT_BYTES, old_size):
        message = f"the object has {size} bytes; {MAX_OBJECT_BYTES} are accepted"
        raise errors.status_error(413, "RequestEntityTooLarge", message)


def _check_values(document: Any, old_data: bytes) -> None:
    """Require that a patched document has at most MAX_VALUES values, or no more than before. Raises StatusError.

    A body has no more values, but each patch could add as many.
    """
    count = value_count(document)
    if count > MAX_VALUES and count > value_count(msgspec.json.decode(old_data)):
        message = f"the object has {count} values; {MAX_VALUES} are accepted"
        raise errors.status_error(413, "RequestEntityTooLarge", message)


def _patched(request: Request, before: Any, schema: MergeSchema) -> Any:
    """Return a document after the patch of a request. Raises StatusError."""
    try:
        if request.content_type == negotiation.MERGE_PATCH:
            return patch.merge_patch(before, request.body)
        if request.content_type == negotiation.STRATEGIC_PATCH:
            return patch.strategic_merge_patch(before, request.body, schema)
        return patch.json_patch(before, request.body)
    except patch.InvalidPatch as error:
        raise errors.invalid_patch(str(error)) from error


def convert_record(resource: AnyResource, record: Record) -> Record:
    """Convert a stored record to another version or a projection. The record of a stored resource stays as it is."""
    if resource.stored_as is None:
        return record
    obj = resource.from_stored(record.object)
    return Record(record.key, record.revision, msgspec.json.encode(obj), resource.type, obj)


def convert_event(resource: AnyResource, event: WatchEvent) -> WatchEvent:
    """Convert a watch event to another version or a projection."""
    if resource.stored_as is None:
        return event
    previous = None if event.previous is None else convert_record(resource, event.previous)
    return WatchEvent(event.type, convert_record(resource, event.record), previous)
