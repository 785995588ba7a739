"""Informer: a local copy of one collection, kept current by list and watch (client-go: Reflector and Store)."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Generic, TypeVar

from api.client.client import ApiError, Client, ClientError, Event, Expired, NotFound
from api.meta.types import Object

O = TypeVar("O", bound=Object)

log = logging.getLogger(__name__)

FIRST_RETRY_SECONDS = 0.2
LAST_RETRY_SECONDS = 5.0
ABSENT_SECONDS = 60.0


class Informer(Generic[O]):
    """Keyed by (namespace, name).

    `synced` is False until the first list has come whole; afterwards the last known content stays while the master is
    away. `trouble` is what keeps us from following, in words; `absent` tells that there is no such kind. `on_change` is
    called after every change and once after each list. `optional`: an API server that does not have this kind at all
    holds none of it, and is asked again later.
    `keep` is for one that cannot select by `field_selector`: it sends all, and those are kept for which it is True.
    `on_item` is called before `on_change`, with the key of each item that has come, changed or gone.
    """

    def __init__(
        self,
        client: Client,
        kind: type[O],
        namespace: str = "",
        field_selector: str = "",
        on_change: Callable[[], None] = lambda: None,
        optional: bool = False,
        keep: Callable[[O], bool] | None = None,
        on_item: Callable[[tuple[str, str]], None] = lambda key: None,
    ) -> None:
        self.synced = False
        self.connected = False
        self.absent = False
        self.trouble = ""
        self._client = client
        self._kind = kind
        self._namespace = namespace
        self._field_selector = field_selector
        self._on_change = on_change
        self._optional = optional
        self._keep = keep
        self._on_item = on_item
        self._items: dict[tuple[str, str], O] = {}
        self._revision = ""

    @property
    def items(self) -> Mapping[tuple[str, str], O]:
        """What the master was last known to hold."""
        return MappingProxyType(self._items)

    async def run(self) -> None:
        """Follow until cancelled. A refusal other than 410 is logged and tried again, like a master that is away."""
        failures = 0
        while True:
            try:
                await self._follow()
                failures = 0
            except Expired:
                self._revision = ""
            except ClientError as error:
                if self._keep and self._field_selector and isinstance(error, ApiError) and error.status.code == 400:
                    self._field_selector = ""
                    continue
                failures = 1 if self.connected else failures + 1
                self._say_away(error)
                is_absent = self._optional and isinstance(error, NotFound)
                await asyncio.sleep(self._absent() if is_absent else _pause(failures))

    def _absent(self) -> float:
        """There is no such collection: time until it is asked for again."""
        before, self._items, self._revision = self._items, {}, ""
        self.synced = self.absent = True
        self._say_changed(before)
        return ABSENT_SECONDS

    async def _follow(self) -> None:
        if not self._revision:
            await self._list()
        watch = self._client.watch(
            self._kind, self._revision, namespace=self._namespace, field_selector=self._field_selector
        )
        self._say_connected()
        async for event in watch:
            self._take(event)

    async def _list(self) -> None:
        answer = await self._client.list(self._kind, self._namespace, field_selector=self._field_selector)
        before, self._items = (
            self._items,
            {(item.metadata.namespace, item.metadata.name): item for item in answer.items if self._is_kept(item)},
        )
        self._revision = answer.metadata.resource_version
        self.synced, self.absent = True, False
        self._say_connected()
        self._say_changed(before)

    def _take(self, event: Event[O]) -> None:
        item = event.object
        self._revision = item.metadata.resource_version
        if event.type == "BOOKMARK":
            return
        key = (item.metadata.namespace, item.metadata.name)
        if event.type == "DELETED" or not self._is_kept(item):
            self._items.pop(key, None)
        else:
            self._items[key] = item
        self._on_item(key)
        self._on_change()

    def _say_changed(self, before: Mapping[tuple[str, str], O]) -> None:
        """After a list: which items are others than before, then that there was one."""
        for key in before.keys() | self._items.keys():
            if before.get(key) != self._items.get(key):
                self._on_item(key)
        self._on_change()

    def _is_kept(self, item: O) -> bool:
        return bool(self._field_selector) or self._keep is None or self._keep(item)

    def _say_connected(self) -> None:
        if not self.connected:
            log.info("following the master", extra={"kind": self._kind.KIND, "items": len(self._items)})
        self.connected = True
        self.trouble = ""

    def _say_away(self, error: Exception) -> None:
        if self.connected:
            log.warning("the master is away", extra={"kind": self._kind.KIND, "error": str(error)})
        self.connected = False
        self.trouble = str(error)


def _pause(failures: int) -> float:
    return min(FIRST_RETRY_SECONDS * 2.0 ** min(failures - 1, 10), LAST_RETRY_SECONDS)
