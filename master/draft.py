"""A write that is being put together: what is decided next sees what it will leave behind."""

from __future__ import annotations

from typing import Any

from api.objects import Object
from master.records import Key, Put, key_of
from master.store import Store


class Draft:
    """The newest state of the store, and over it what is to be put into it. Nothing may wait while it is used."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._puts: dict[Key, Put] = {}

    @property
    def puts(self) -> tuple[Put, ...]:
        """What is to be written, one for each object."""
        return tuple(self._puts.values())

    def one(self, key: Key) -> Any:
        """An object; None if there is none."""
        if (ahead := self._puts.get(key)) is not None:
            return ahead.object
        record = self._store.latest(key)
        return None if record is None else record.object

    def all(self, kind: str, namespace: str = "") -> list[Any]:
        """Every object of a kind, in one namespace or in all."""
        ahead = {key: put.object for key, put in self._puts.items() if key.kind == kind}
        kept = (record for record in self._store.scan_latest(kind, namespace) if record.key not in ahead)
        return [*(record.object for record in kept), *(ahead[key] for key in ahead if namespace in ("", key.namespace))]

    def put(self, item: Object, expect: int | None = None) -> None:
        """Write that, too; another put of the same object takes the place of the first."""
        first = self._puts.get(key_of(item))
        self._puts[key_of(item)] = Put(item, first.expect if first is not None else expect)
