"""Keeps the scheme as the stored CustomResourceDefinitions say, and lets nobody write objects of a kind that ends.

A change of an established definition is in the scheme before its client gets the response. A new definition is
published by its controller right before the write that says that it is established
(`master/controllers/custom_resource_definitions.py`).
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from functools import partial

import msgspec

from master import errors
from master.apiextensions.conversion import Conversions
from master.apiextensions.definitions import DEFINITIONS, Definition, read_definition
from master.errors import StatusError
from master.resources.group_resource import GroupResource
from master.resources.resource import AnyResource
from master.resources.scheme import Scheme
from master.storage.interface import Key, Record, Storage, WatchEvent

log = logging.getLogger(__name__)


class CustomKinds:
    """The custom kinds of a master. `load` publishes the stored ones, and follows later changes."""

    def __init__(self, storage: Storage, scheme: Scheme) -> None:
        self.scheme = scheme
        self._store = storage
        self._read: dict[str, tuple[Record, Definition | None]] = {}
        self._published: dict[GroupResource, Definition] = {}
        self.conversions = Conversions()
        """What webhooks have converted."""

    def load(self) -> None:
        """Publish the established definitions, and those of later changes from now on."""
        for record in self._store.list(DEFINITIONS):
            self._follow(self.definition(record))
        self._store.watch(DEFINITIONS, self._note)

    # --- definitions --------------------------------------------------------------------------------------------------

    def definition(self, record: Record) -> Definition | None:
        """Return the definition of a stored record; None if it has another form."""
        known = self._read.get(record.key.name)
        if known is not None and known[0] is record:
            return known[1]
        try:
            read: Definition | None = read_definition(record.data)
        except msgspec.MsgspecError as error:
            log.error("definition not read", extra={"definition": record.key.name, "error": str(error)})
            read = None
        self._read[record.key.name] = (record, read)
        return read

    def definitions(self) -> list[Definition]:
        """Return the newest state of all definitions."""
        found = (self.definition(record) for record in self._store.list_uncommitted(DEFINITIONS))
        return [definition for definition in found if definition is not None]

    def terminating(self) -> frozenset[GroupResource]:
        """Return the kinds of which no object can be created any more, because their definitions are being deleted."""
        return frozenset(key for key, definition in self._published.items() if definition.is_terminating)

    def require_writable(self, resource: AnyResource, name: str, *, creates: bool) -> None:
        """Require that objects of a custom resource can be written at this moment.

        A request may have begun before its kind was deleted, and perhaps defined again. Raises StatusError.
        """
        if resource.documents is None:
            return
        record = self._store.get_uncommitted(Key(DEFINITIONS, "", str(resource.stored_group_resource)))
        definition = None if record is None else self.definition(record)
        if definition is None or definition.metadata.uid != resource.documents.uid:
            raise errors.path_not_found()
        if creates and definition.is_terminating:
            reason = "create not allowed while custom resource definition is terminating"
            raise errors.forbidden(resource, name, reason)

    # --- publishing ---------------------------------------------------------------------------------------------------

    def _note(self, event: WatchEvent) -> None:
        if event.type == "DELETED":
            _, definition = self._read.pop(event.record.key.name, (None, None))
            if definition is not None:
                self._withdraw(definition.group_resource)
            return
        self._follow(self.definition(event.record))

    def _follow(self, definition: Definition | None) -> None:
        if definition is not None and definition.is_established:
            self.publish((definition,))

    def publish(self, definitions: Iterable[Definition]) -> None:
        """Serve the kinds of definitions from now on."""
        # Imported with the first definition: a master without custom resources does not need it.
        from master.apiextensions.custom_resources import build_kind  # noqa: PLC0415

        for definition in definitions:
            key = definition.group_resource
            before, kind = self._published.get(key), self.scheme.custom_kind(key)
            if before is not None and kind is not None and _serves_same(before, definition):
                self._published[key] = definition
                continue
            try:
                self.scheme.publish(build_kind(definition, partial(self._load, definition.name), self.conversions))
            except (ValueError, TypeError, KeyError, StatusError) as error:
                log.error("kind not served", extra={"definition": definition.name, "error": str(error)})
                self.scheme.unpublish(key)
            self._published[key] = definition
            self._forget_decoded(key)

    def _load(self, name: str) -> bytes:
        """Return the JSON of a definition. Raises NotFound if it is gone."""
        record = self._store.get(Key(DEFINITIONS, "", name))
        if record is None:
            raise errors.path_not_found()
        return record.data

    def _withdraw(self, key: GroupResource) -> None:
        if self._published.pop(key, None) is not None:
            self.scheme.unpublish(key)
            self._forget_decoded(key)

    def _forget_decoded(self, key: GroupResource) -> None:
        """Release what was decoded and converted for the former state of a kind."""
        for record in self._store.list(key):
            record.drop_decoded()


def _serves_same(before: Definition, after: Definition) -> bool:
    """Return whether two states of a definition are served in the same way."""
    return _served_state(before) == _served_state(after)


def _served_state(definition: Definition) -> tuple[object, ...]:
    metadata = definition.metadata
    return metadata.uid, metadata.generation, definition.is_terminating, definition.served_names
