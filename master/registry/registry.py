"""The operations get, list, create, update, patch, apply, scale and delete on the objects of any resource.

It knows status codes and bodies of HTTP, but not connections.
"""

from __future__ import annotations

import bisect
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

import msgspec

from api.codec.limits import MAX_VALUES, value_count
from api.core.node import Namespace, Node
from api.core.pod import Pod
from api.core.storage import PersistentVolume
from api.meta.schema import FORBIDDEN, FieldError
from api.meta.types import Object
from master import errors
from master.admission.external_calls import CallsPending, PendingWrite
from master.admission.mutated_objects import MAX_OBJECT_BYTES
from master.admission.plugin import AdmissionRequest, Operation, ignore_warning
from master.auth.authorization import Authorizer
from master.registry import decoding, managed_fields, patch, scale, strategy
from master.registry.client_side_apply import managers_by_annotation
from master.registry.conversion import convert_record, converted, in_turns
from master.registry.creation import ObjectCreation
from master.registry.custom_kinds import CustomKinds
from master.registry.guaranteed_update import WriteDecision, decided, guaranteed_update
from master.registry.managed_fields import FieldManager
from master.registry.request import (
    INCONSISTENT,
    MAX_PAGE_AGE_SECONDS,
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
from master.resources.scheme import BUILTIN_SCHEME, group_resource
from master.serialization import negotiation, tables
from master.serialization.json_patch import InvalidPatch, json_patch
from master.serialization.negotiation import View
from master.storage.interface import Compacted, Delete, Key, Put, Record, Storage, Transaction

T = TypeVar("T")

GENERATED_NAME_TRIES = 8

META_VERSION = "meta.k8s.io/v1"


MAX_WHOLE_BODY_BYTES = 64 << 10
"""Bytes of the body of a list that is sent as a whole. Encrypting a list of 40 MB at once takes 50 ms, and a copy."""


class Registry:
    """All operations on objects. Raises `errors.StatusError`, and NotReady if the storage rejects a write."""

    def __init__(
        self,
        storage: Storage,
        creation: ObjectCreation,
        authorizer: Authorizer,
        custom_kinds: CustomKinds | None = None,
    ) -> None:
        self._store = storage
        self._custom_kinds = CustomKinds(storage, BUILTIN_SCHEME) if custom_kinds is None else custom_kinds
        self._clock = creation.clock
        self._creation = creation
        self._chain = creation.chain
        self._authorizer = authorizer

    # --- reading ---------------------------------------------------------------------------------------------------

    async def get(self, request: Request) -> Response:
        """Return an object."""
        return await decided(lambda: self._get(request), request.write, self._creation.caller)

    def _get(self, request: Request) -> Response:
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
        now = int(self._clock().timestamp())
        page = decode_continue(token) if token else None
        if page is not None and page.rv != INCONSISTENT and now - page.start > MAX_PAGE_AGE_SECONDS:
            raise _page_expired(page)
        revision = requested_revision if page is None or page.rv == INCONSISTENT else page.rv
        records = self._scan(selection, revision, page)
        if page is not None:
            records = records[bisect.bisect_right(records, tuple(page.after), key=_sort_key) :]
        page_size = limit if limit and request.query.get("resourceVersion") != "0" else len(records)
        selected: list[Record] = []
        async for record in converted(selection.resource, records, self._creation.caller):
            if selection.matches(record):
                selected.append(record)
                if len(selected) > page_size:
                    break
        metadata: dict[str, Any] = {"resourceVersion": str(revision)}
        if len(selected) > page_size:
            selected.pop()
            start = now if page is None or page.rv == INCONSISTENT else page.start
            metadata["continue"] = encode_continue(ContinueToken(revision, _sort_key(selected[-1]), start))
            if selection.selects_all:
                metadata["remainingItemCount"] = len(records) - page_size
        return await self._listed(request, selected, metadata, view)

    def _scan(self, selection: Selection, revision: int, page: ContinueToken | None) -> list[Record]:
        try:
            return self._store.list_at(selection.resource.stored_group_resource, selection.namespace, revision)
        except Compacted as error:
            if page is None:
                raise errors.expired("The resourceVersion for the provided list is too old.") from error
            raise _page_expired(page) from error

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
            items: list[bytes | memoryview] = [
                msgspec.json.encode(tables.table_row(resource, record.object, view, now, include))[1:]
                async for turn in in_turns(records)
                for record in turn
            ]
            return _list_response(head, "rows", items)
        if view.is_metadata:
            head = {"kind": "PartialObjectMetadataList", "apiVersion": view.api_version}
            items = [
                msgspec.json.encode(tables.metadata_only(record.object, view.api_version))[1:]
                async for turn in in_turns(records)
                for record in turn
            ]
        else:
            head = {"kind": resource.list_kind, "apiVersion": resource.type.API_VERSION}
            items = [_without_type(record.data, resource) for record in records]
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
        check_patch_type(request)
        return await self._commit(request, lambda: decide(request))

    async def _commit(self, request: Request, decide: Callable[[], WriteDecision[Response]]) -> Response:
        return await guaranteed_update(
            self._store, request.info.resource, request.info.name, decide, request.write, self._creation.caller
        )

    def _decide_create(
        self, request: Request, document: Any, managers: Sequence[FieldManager]
    ) -> WriteDecision[Response]:
        info = request.info
        # An apply or update of an object that does not exist is a create, too.
        if "create" not in info.resource.verbs:
            raise errors.method_not_allowed(info.resource.create_denial)
        if info.resource.namespaced and not info.namespace:
            raise errors.bad_request(f"{info.resource.plural} are made in a namespace: none is given in the path")
        self._custom_kinds.require_writable(info.resource, "", creates=True)
        strictness = field_validation(request.query)
        for _ in range(GENERATED_NAME_TRIES):
            body = decoding.decode_object(info, document, strictness, request.next_letters, request.duplicate_fields)
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
                options=write_options(request, "CreateOptions"),
                is_dry_run=dry_run(request.query),
                write=request.write,
            )
            new = managed_fields.with_creators(created, managers)
            check_size(new)

        def respond(stored: tuple[Any, ...]) -> Response:
            obj = self._from_stored(info.resource, stored[0], new) if stored else new
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
        return self._decide_replace(request, request.body, self._old(request), is_patch=False)

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
        if resource.documents is not None and (field := resource.documents.undeclared_field(applied)) is not None:
            raise managed_fields.undeclared_field(request.info, field)
        live = {} if record is None else msgspec.json.decode(record.data)
        manager = self._field_manager(request, managed_fields.APPLY)
        first: tuple[FieldManager, ...] = ()
        if live and not live["metadata"].get("managedFields"):
            first = managers_by_annotation(request.info, live, manager)
        result = managed_fields.bounded_apply(live, applied, resource.merge_schema, manager, first)
        is_forced = bool_param(request.query, "force")
        if result.conflicts and not is_forced:
            completed = decoding.decode_object(request.info, result.document, "Ignore").object
            defaulted = msgspec.json.decode(msgspec.json.encode(completed))
            result = managed_fields.without_defaulted(result, live, defaulted, resource.merge_schema)
        if result.conflicts and not is_forced:
            raise managed_fields.apply_conflict(result.conflicts)
        if record is None:
            self._authorizer.require(request.user, "create", request.info, request.query)
            return self._decide_create(request, result.document, result.managers)
        _check_values(result.document, record.data)
        return self._decide_replace(request, result.document, record, result.managers)

    def _field_manager(self, request: Request, operation: str) -> FieldManager:
        version, now = request.info.resource.type.API_VERSION, format_time(request.write.now(self._clock))
        return FieldManager(request.field_manager, operation, request.info.subresource, version, now, frozenset())

    def _decide_replace(
        self,
        request: Request,
        document: Any,
        old: Record,
        managers: Sequence[FieldManager] | None = None,
        *,
        is_patch: bool = True,
    ) -> WriteDecision[Response]:
        """Replace the object by the document. `managers` are the field managers after an apply."""
        self._custom_kinds.require_writable(request.info.resource, old.key.name, creates=False)
        resource, is_dry_run = request.info.resource, dry_run(request.query)
        subresource, transaction = request.info.subresource, Transaction(self._store)
        document_to_decode = document if subresource else resource.normalize_update(document, old.object)
        body = self._decode_replacement(request, document_to_decode, old)
        check_size(body.object, old.size)
        if not is_patch:
            strategy.require_revision(resource, body.object)
        warnings = list(body.warnings)
        with errors.with_warnings(warnings):
            options = write_options(request, "UpdateOptions")
            admission = self._admission(Operation.UPDATE, request, old.object, warn=warnings.append, options=options)
            obj = self._chain.mutate(admission, body.object, transaction)
            part = resource.subresource(subresource) if subresource else None
            changes_usage = not subresource or (part is not None and part.changes_usage)
            if subresource:
                # Fields outside the subresource are not stored, but a node must not try to write them.
                self._chain.validate(admission, obj, transaction)
                new = strategy.prepare_subresource_update(resource, subresource, obj, old.object)
                strategy.validate(resource, new, old.object, subresource)
            else:
                new = strategy.prepare_update(resource, obj, old.object)
                self._chain.validate(admission, new, transaction)
            if managers is None:
                managers = managed_fields.managers_after_update(
                    resource, old.object, new, document, self._field_manager(request, managed_fields.UPDATE)
                )
            if changes_usage:
                new = self._chain.reserve(admission, new, transaction)
            new = managed_fields.with_managed_fields(new, managers)
            check_size(new, old.size)

        def respond(stored: tuple[Any, ...]) -> Response:
            obj = self._object_after(resource, stored, new, old, is_dry_run=is_dry_run)
            return self._answer(200, request, obj, tuple(warnings))

        return WriteDecision(respond, self._changes(resource, new, old, transaction.changes), is_dry_run)

    def _decode_replacement(self, request: Request, document: Any, old: Record) -> decoding.DecodedObject:
        """Return the object of an update.

        That of a status need not be valid outside of it: clients in Go send zero values for what they do not set. The
        stored fields are then in their place.
        """
        strictness, duplicates = field_validation(request.query), request.duplicate_fields
        try:
            return decoding.decode_object(request.info, document, strictness, duplicates=duplicates)
        except errors.StatusError as error:
            if error.status.code == 413 and old.object.metadata.deletion_timestamp:
                return _released(request, document, old)
            if request.info.subresource != "status" or error.status.code != 422 or not isinstance(document, dict):
                raise
        own = {key: document[key] for key in ("apiVersion", "kind", "metadata", "status") if key in document}
        document = {**msgspec.json.decode(old.data), "status": None, **own}
        return decoding.decode_object(request.info, document, strictness, duplicates=duplicates)

    def _admission(
        self,
        operation: Operation,
        request: Request,
        old: Any,
        grace_period_seconds: int | None = None,
        warn: Callable[[str], None] = ignore_warning,
        options: Mapping[str, Any] | None = None,
        body: Any = None,
        *,
        is_dry_run: bool = False,
    ) -> AdmissionRequest:
        return AdmissionRequest(
            operation=operation,
            resource=request.info.resource,
            now=request.write.now(self._clock),
            random_suffix=request.next_letters,
            subresource=request.info.subresource,
            old=old,
            requester=self._authorizer.requester(request.user),
            client_address=request.client_address,
            grace_period_seconds=grace_period_seconds,
            warn=warn,
            annotate=request.annotate,
            is_dry_run=is_dry_run or dry_run(request.query),
            options=options,
            body=body,
            external=request.write.external,
            scheme=self._custom_kinds.scheme,
        )

    async def scale(self, verb: str, request: Request) -> Response:
        """Serve GET, PUT and PATCH of the subresource scale."""
        resource = request.info.resource
        assert resource.scale is not None
        if verb == "get":
            old = await decided(lambda: self._old(request), request.write, self._creation.caller)
            return Response(200, msgspec.json.encode(scale.scale_of(resource.scale, old.object)))
        return await self._commit(request, lambda: self._decide_scale(verb, request))

    def _decide_scale(self, verb: str, request: Request) -> WriteDecision[Response]:
        resource, old, is_dry_run = request.info.resource, self._old(request), dry_run(request.query)
        subresource = resource.scale
        assert subresource is not None
        if request.content_type == negotiation.APPLY_PATCH:
            raise errors.unsupported_patch()
        document = request.body
        self._custom_kinds.require_writable(resource, old.key.name, creates=False)
        if verb == "patch":
            before = msgspec.to_builtins(scale.scale_of(subresource, old.object))
            document = _patched(request, before, merge_schema_of(Scale))
        desired = scale.decode_scale(resource, request.info.name, document)
        admission = self._admission(
            Operation.UPDATE,
            request,
            old.object,
            options=write_options(request, "UpdateOptions"),
            body=desired,
        )
        self._chain.validate_action(admission, old.object, Transaction(self._store))
        new = strategy.prepare_update(resource, scale.with_scale(subresource, old.object, desired), old.object)
        managers = managed_fields.managers_after_update(
            resource, old.object, new, {}, self._field_manager(request, managed_fields.UPDATE)
        )
        new = managed_fields.with_managed_fields(new, managers)

        def respond(stored: tuple[Any, ...]) -> Response:
            obj = self._object_after(resource, stored, new, old, is_dry_run=is_dry_run)
            return Response(200, msgspec.json.encode(scale.scale_of(subresource, obj)))

        return WriteDecision(respond, self._changes(resource, new, old), is_dry_run)

    # --- actions ---------------------------------------------------------------------------------------------------

    def admit_action(self, request: Request, obj: Any, *, is_dry_run: bool = False) -> None:
        """Let webhooks decide about a subresource with an action on an object. Raises StatusError and CallsPending."""
        admission = self._admission(
            Operation.CREATE,
            request,
            None,
            options=write_options(request, "CreateOptions"),
            body=request.body,
            is_dry_run=is_dry_run,
        )
        self._chain.validate_action(admission, obj, Transaction(self._store))

    async def decide_action(self, request: Request, decide: Callable[[], WriteDecision[T]]) -> T:
        """Write what `decide` returns, which may raise CallsPending. Return the response. See `guaranteed_update`."""
        return await guaranteed_update(
            self._store, request.info.resource, request.info.name, decide, request.write, self._creation.caller
        )

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

        obj, is_gone = await guaranteed_update(
            self._store, resource, request.info.name, decide, request.write, self._creation.caller
        )
        if is_gone and resource.type not in (Pod, Namespace, PersistentVolume):
            details = errors.details_of(resource, obj.metadata.name, obj.metadata.uid)
            return Response(200, errors.encode_status(errors.success(details)))
        return self._answer(200, request, obj)

    async def delete_all(self, request: Request) -> Response:
        """Delete all selected objects in turn. Raises the first error; the objects before it are deleted."""
        selection = parse_selection(request.info, request.query, request.name_filter, request.record_filter)
        options = parse_delete_options(request)
        resource, is_dry_run = request.info.resource, dry_run(request.query) or bool(options.dry_run)
        stored = self._store.list_uncommitted(resource.stored_group_resource, request.info.namespace)
        selected = [
            record async for record in converted(resource, stored, self._creation.caller) if selection.matches(record)
        ]
        items = []
        for record in selected:
            own = replace(request, write=PendingWrite())

            def decide(key: Key = record.key, own: Request = own) -> WriteDecision[Record | None]:
                old = self._latest(resource, key)
                if old is None:
                    return WriteDecision(lambda _: None, is_dry_run=True)
                self._validate_delete(own, old, options)
                decision = self._decide_delete(resource, old, options, is_dry_run=is_dry_run)

                def respond(stored: tuple[Any, ...]) -> Record:
                    obj, _ = decision.respond(stored)
                    return Record(key, old.revision, msgspec.json.encode(obj), resource.type, obj)

                return WriteDecision(respond, decision.changes, is_dry_run)

            deleted = await guaranteed_update(
                self._store, resource, record.key.name, decide, own.write, self._creation.caller
            )
            if deleted is not None:
                items.append(deleted)
        metadata = {"resourceVersion": str(self._store.revision)}
        return await self._listed(request, items, metadata, negotiation.negotiate(request.accept))

    def _validate_delete(self, request: Request, old: Record, options: DeleteOptions) -> None:
        """Let the admission plugins validate a deletion. Raises the error of the plugin that rejects it."""
        admission = self._admission(
            Operation.DELETE,
            request,
            old.object,
            options.grace_period_seconds,
            options=delete_options(options),
            is_dry_run=bool(options.dry_run),
        )
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
                return self._from_stored(resource, stored[0], obj) if stored else obj, True

            return WriteDecision(
                respond_gone, (Delete(old.key, resource.to_stored(obj), expect=old.revision),), is_dry_run
            )
        new = resource.from_stored(remaining)

        def respond_marked(stored: tuple[Any, ...]) -> tuple[Any, bool]:
            return self._object_after(resource, stored, new, old, is_dry_run=is_dry_run), False

        return WriteDecision(respond_marked, self._changes(resource, new, old), is_dry_run)

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

    def _changes(
        self, resource: AnyResource, new: Any, old: Record, others: Sequence[Put] = ()
    ) -> tuple[Put | Delete, ...]:
        """Return the changes that replace an object and write others with it; none if the object stays as it is.

        An object that waited for the removal of its last finalizer is deleted. A custom resource is also written if it
        is stored in another version.
        """
        is_same = bool(new == old.object)
        if is_same and resource.documents is None:
            return ()
        stored = resource.to_stored(new)
        if is_same and (before := self._store.get_uncommitted(old.key)) is not None and before.object == stored:
            return ()
        if strategy.is_deletable(resource.stored_resource, stored):
            return (Delete(old.key, stored, expect=old.revision),)
        return (Put(old.key, stored, expect=old.revision), *others)

    def _object_after(
        self, resource: AnyResource, stored: tuple[Any, ...], new: Any, old: Record, *, is_dry_run: bool
    ) -> Any:
        """Return the object after its `_changes`."""
        if stored:
            return self._from_stored(resource, stored[0], new)
        return new if is_dry_run else old.object

    def _from_stored(self, resource: AnyResource, stored: Any, written: Any) -> Any:
        """Return a stored object in the version of the request, in which it was `written`.

        What is found out about a custom resource stays with its record, for lists and watches. The write is done, so no
        webhook can be asked: its result is mostly known from the decision.
        """
        try:
            if resource.documents is None:
                return resource.from_stored(stored)
            record = self._store.get(Key.of(resource.stored_group_resource, stored))
            if record is None or str(record.revision) != stored.metadata.resource_version:
                return resource.from_stored(stored)
            return convert_record(resource, record).object
        except CallsPending:
            return msgspec.structs.replace(written, metadata=stored.metadata)

    def _answer(self, code: int, request: Request, obj: Object, warnings: tuple[str, ...] = ()) -> Response:
        view, include = negotiation.negotiate(request.accept), request.query.get("includeObject", "Metadata")
        return Response(code, tables.encode_object(request.info.resource, obj, view, self._clock(), include), warnings)


def _page_expired(page: ContinueToken) -> errors.StatusError:
    """Return 410 with the token that continues with the present state."""
    return errors.continue_expired(encode_continue(ContinueToken(INCONSISTENT, page.after)))


def _without_type(data: bytes, resource: AnyResource) -> memoryview:
    """Return the JSON of an item of a list behind its opening brace.

    The item does not repeat apiVersion and kind, unless it is a custom resource: kube-apiserver does the same.
    """
    if resource.documents is not None:
        return memoryview(data)[1:]
    head = f'{{"apiVersion":"{resource.type.API_VERSION}","kind":"{resource.kind}",'.encode()
    return memoryview(data)[len(head) if data.startswith(head) else 1 :]


def _list_response(head: Mapping[str, Any], field: str, items: Iterable[bytes | memoryview]) -> Response:
    """Return the response with the fields of `head`, and then `field` with the items, each behind its opening brace.
    Large bodies are not copied.
    """
    opening = msgspec.json.encode(head)[:-1] + b',"%s":[' % field.encode("ascii")
    parts: list[bytes | memoryview] = [opening]
    for item in items:
        parts += (b"{", item, b",")
    parts[-1] = b"]}" if len(parts) > 1 else opening + b"]}"
    if sum(map(len, parts)) <= MAX_WHOLE_BODY_BYTES:
        return Response(200, b"".join(parts))
    return Response(200, b"", parts=parts)


def delete_options(options: DeleteOptions) -> dict[str, Any]:
    """Return the options of a delete as webhooks see them."""
    given = {key: value for key, value in msgspec.to_builtins(options).items() if value not in (None, "", [], ())}
    return {"kind": "DeleteOptions", "apiVersion": META_VERSION, **given}


PATCH_TYPES = frozenset(
    (negotiation.APPLY_PATCH, negotiation.JSON_PATCH, negotiation.MERGE_PATCH, negotiation.STRATEGIC_PATCH)
)


def write_options(request: Request, kind: str) -> dict[str, Any]:
    """Return the options of a request as webhooks see them; those of every PATCH are PatchOptions."""
    query, is_patch = request.query, request.content_type in PATCH_TYPES
    options: dict[str, Any] = {"kind": "PatchOptions" if is_patch else kind, "apiVersion": META_VERSION}
    if dry_run(query):
        options["dryRun"] = [query["dryRun"]]
    if is_patch and "force" in query:
        options["force"] = bool_param(query, "force")
    for name in ("fieldManager", "fieldValidation"):
        if query.get(name):
            options[name] = query[name]
    return options


def _released(request: Request, document: Any, old: Record) -> decoding.DecodedObject:
    """Return a custom resource that is being deleted, and that its defaults make too large, after an update.

    Only its metadata is updated: the removal of a finalizer must let it go.
    """
    head = {key: document[key] for key in ("apiVersion", "kind", "metadata") if key in document}
    body = decoding.decode_object(request.info, head, "Ignore")
    return decoding.DecodedObject(msgspec.structs.replace(old.object, metadata=body.object.metadata), body.warnings)


def _check_owner(request: Request, record: Record) -> None:
    """Raise NotFound for an object that only another user sees."""
    resource = request.info.resource
    if resource.owner is not None and request.record_filter is not None and not request.record_filter(record):
        raise errors.not_found(resource, request.info.name)


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


def check_patch_type(request: Request) -> None:
    """Require a patch that the kind has: a custom resource has no strategic merge. Raises UnsupportedMediaType."""
    if request.info.resource.documents is not None and request.content_type == negotiation.STRATEGIC_PATCH:
        raise errors.unsupported_media_type(
            "the body of the request was in an unknown format - accepted media types include: "
            f"{negotiation.JSON_PATCH}, {negotiation.MERGE_PATCH}, {negotiation.APPLY_PATCH}"
        )


def _patched(request: Request, before: Any, schema: MergeSchema) -> Any:
    """Return a document after the patch of a request. Raises StatusError."""
    try:
        if request.content_type == negotiation.MERGE_PATCH:
            return patch.merge_patch(before, request.body)
        if request.content_type == negotiation.STRATEGIC_PATCH:
            return patch.strategic_merge_patch(before, request.body, schema)
        return json_patch(before, request.body)
    except InvalidPatch as error:
        raise errors.invalid_patch(str(error)) from error
