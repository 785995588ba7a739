"""A storage that has APIServices only, and tells its watches what changes at once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from master.resources.api_services import APIService
from master.resources.scheme import group_resource
from master.storage.interface import Key, Record, WatchEvent


class APIServiceStore:
    """APIServices. Nothing else is found."""

    def __init__(self, *apis: APIService) -> None:
        self._apis = apis
        self.watches: list[Callable[[WatchEvent], None]] = []

    def list(self, resource: Any) -> list[Record]:
        """Return the records of the APIServices with which the store began."""
        return [_record(api) for api in self._apis]

    def watch(self, resource: Any, note: Callable[[WatchEvent], None]) -> Callable[[], None]:
        """Call `note` after each change. The returned function ends that."""
        self.watches.append(note)
        return lambda: self.watches.remove(note)

    def put(self, api: APIService) -> None:
        """Report a new or changed APIService to the first watch."""
        self.watches[0](WatchEvent("MODIFIED", _record(api), None))

    def delete(self, api: APIService) -> None:
        """Report a deleted APIService to the first watch."""
        self.watches[0](WatchEvent("DELETED", _record(api), None))


def _record(api: APIService) -> Record:
    return Record(Key.of(group_resource(APIService), api), 1, msgspec.json.encode(api), APIService, api)
