"""A write that is being put together: what is decided next sees what it will leave behind."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

from api.meta.types import Object
from master.store.records import Key, Put, key_of
from master.store.store import Store


class Draft:
    """The newest state of the store, and over it what is to be put into it. Nothing may wait while it is used."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._puts: defaultdict[str, dict[Key, Put]] = defaultdict(dict)

    @property
    def puts(self) -> tuple[Put, ...]:
        """What is to be written, one for each object."""
        return tuple(put for puts in self._puts.values() for put in puts.values())

    def one(self, key: Key) -> Any:
        """An object; None if there is none."""
        if (ahead := self._puts[key.kind].get(key)) is not None:
            return ahead.object
        record = self._store.latest(key)
        return None if record is None else record.object

    def all(self, kind: str, namespace: str = "") -> list[Any]:
        """Every object of a kind, in one namespace or in all."""
        ahead = self._puts[kind]
        kept = [row.object for row in self._store.scan_latest(kind, namespace) if row.key not in ahead]
        return kept + [put.object for key, put in ahead.items() if namespace in ("", key.namespace)]

    def put(self, item: Object) -> None:
        """Write that, too; another put of the same object takes the place of the first."""
        key = key_of(item)
        self._puts[key.kind][key] = Put(item)
