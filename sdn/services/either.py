"""Follows a collection that some API servers have in another form only."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Generic, TypeVar

from api.client.client import Client
from api.client.informer import Informer
from api.meta.types import Object

O = TypeVar("O", bound=Object)
P = TypeVar("P", bound=Object)


class Either(Generic[O, P]):
    """Objects of `kind`, or, where there is no such kind, those of `other`, of which `same` makes what they would be.

    `on_change` and `on_item` as of a Mirror.
    """

    def __init__(
        self,
        client: Client,
        kind: type[O],
        other: type[P],
        same: Callable[[P], O],
        on_change: Callable[[], None],
        on_item: Callable[[tuple[str, str]], None],
    ) -> None:
        self._same = same
        self._on_change = on_change
        self._is_absent = asyncio.Event()
        self._first = Informer(client, kind, on_change=self._changed, optional=True, on_item=on_item)
        self._second = Informer(client, other, on_change=on_change, on_item=on_item)

    @property
    def synced(self) -> bool:
        """Whether all that there is has come."""
        return self._second.synced if self._first.absent else self._first.synced

    def get(self, key: tuple[str, str]) -> O | None:
        """The object of this namespace and name, if there is one."""
        if not self._first.absent:
            return self._first.items.get(key)
        item = self._second.items.get(key)
        return None if item is None else self._same(item)

    async def run(self) -> None:
        """Until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._first.run())
            await self._is_absent.wait()
            tasks.create_task(self._second.run())

    def _changed(self) -> None:
        if self._first.absent:
            self._is_absent.set()
        self._on_change()
