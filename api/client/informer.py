"""Informer: a local copy of one collection, kept current by list and watch (client-go: Reflector and Store)."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from types import MappingProxyType
from typing import Generic, TypeVar

from api.client.client import ApiError, Client, ClientError, Event, Expired, NotFound, Unreachable
from api.meta.types import Object

O = TypeVar("O", bound=Object)

log = logging.getLogger(__name__)

BACKOFF_BASE_SECONDS = 0.2
BACKOFF_MAX_SECONDS = 5.0
MISSING_KIND_RETRY_SECONDS = 60.0
"""Time between two lists of an optional kind that the API server does not have."""


class Informer(Generic[O]):
    """A local copy of a collection. `items` is keyed by (namespace, name).

    `synced` becomes True with the first complete list, and stays True. `connected` is True from a successful list, or
    from the time when the API server accepts the watch, until the next failure. While the API server is unreachable,
    `items` keeps the last known content. `last_error` is the reason of the last failure, empty while connected.
    `kind_is_missing` is True if the API server does not serve the kind.

    `on_key` is called with the key of each item that was added, changed or deleted. `on_change` is called after each
    event and after each list, and after all calls of `on_key`. With `optional`, a kind that the API server does not
    serve counts as an empty collection; it is listed again every MISSING_KIND_RETRY_SECONDS. `accepts` filters items on
    the client if the API server rejects `field_selector` with status 400. `transform` reduces each object to the fields
    that are read, before it is kept (client-go: TransformFunc); it keeps name, namespace and resourceVersion.
    """

    def __init__(
        self,
        client: Client,
        kind: type[O],
        namespace: str = "",
        field_selector: str = "",
        on_change: Callable[[], None] = lambda: None,
        optional: bool = False,
        accepts: Callable[[O], bool] | None = None,
        on_key: Callable[[tuple[str, str]], None] = lambda key: None,
        transform: Callable[[O], O] = lambda obj: obj,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self.synced = False
        self.connected = False
        self.kind_is_missing = False
        self.last_error = ""
        self._client = client
        self._kind = kind
        self._namespace = namespace
        self._field_selector = field_selector
        self._on_change = on_change
        self._optional = optional
        self._accepts = accepts
        self._on_key = on_key
        self._transform = transform
        self._sleep = sleep
        self._items: dict[tuple[str, str], O] = {}
        self._resource_version = ""
        self._was_connected = False

    @property
    def items(self) -> Mapping[tuple[str, str], O]:
        """The items as last received from the API server."""
        return MappingProxyType(self._items)

    async def run(self) -> None:
        """List and watch until cancelled. Every error except 410 is retried with back-off."""
        failures = 0
        while True:
            try:
                await self._list_and_watch()
                failures = 0
            except Expired:
                self._resource_version = ""
            except ClientError as error:
                if self._accepts and self._field_selector and isinstance(error, ApiError) and error.status.code == 400:
                    self._field_selector = ""
                    continue
                failures = 1 if self.connected else failures + 1
                self._set_disconnected(error)
                if self._optional and isinstance(error, NotFound):
                    self._set_kind_missing()
                    await self._sleep(MISSING_KIND_RETRY_SECONDS)
                else:
                    await self._sleep(_backoff_delay(failures))

    def _set_kind_missing(self) -> None:
        previous = self._items
        self._items = {}
        self._resource_version = ""
        self.synced = True
        self.kind_is_missing = True
        self._notify_replaced(previous)

    async def _list_and_watch(self) -> None:
        if not self._resource_version:
            await self._list()
        watch = self._client.watch(
            self._kind,
            self._resource_version,
            namespace=self._namespace,
            field_selector=self._field_selector,
            on_open=self._set_connected,
        )
        async for event in watch:
            self._apply(event)

    async def _list(self) -> None:
        previous, items = self._items, dict[tuple[str, str], O]()

        def keep(obj: O) -> None:
            if self._is_accepted(obj):
                items[obj.metadata.namespace, obj.metadata.name] = self._transform(obj)

        self._resource_version = await self._client.list_each(
            self._kind, keep, self._namespace, field_selector=self._field_selector
        )
        self._items = items
        self.synced = True
        self.kind_is_missing = False
        self._set_connected()
        self._notify_replaced(previous)

    def _apply(self, event: Event[O]) -> None:
        obj = event.object
        self._resource_version = obj.metadata.resource_version
        if event.type == "BOOKMARK":
            return
        key = (obj.metadata.namespace, obj.metadata.name)
        if event.type == "DELETED" or not self._is_accepted(obj):
            self._items.pop(key, None)
        else:
            self._items[key] = self._transform(obj)
        self._on_key(key)
        self._on_change()

    def _notify_replaced(self, previous: Mapping[tuple[str, str], O]) -> None:
        """Call `on_key` for each item that differs from the previous content, then `on_change`."""
        for key in previous.keys() | self._items.keys():
            if previous.get(key) != self._items.get(key):
                self._on_key(key)
        self._on_change()

    def _is_accepted(self, obj: O) -> bool:
        return bool(self._field_selector) or self._accepts is None or self._accepts(obj)

    def _set_connected(self) -> None:
        if self._client.is_away:
            self._client.is_away = False
            log.info("the API server answers again")
        if not self._was_connected:
            self._was_connected = True
            log.info("watching the API server", extra={"kind": self._kind.KIND, "items": len(self._items)})
        self.connected = True
        self.last_error = ""

    def _set_disconnected(self, error: ClientError) -> None:
        """Log the reason once: for all informers of the client if the API server does not answer."""
        if isinstance(error, Unreachable):
            if not self._client.is_away:
                self._client.is_away = True
                log.warning("the API server does not answer", extra={"kind": self._kind.KIND, "error": str(error)})
        elif str(error) != self.last_error:
            fields = {"kind": self._kind.KIND, "namespace": self._namespace, "selector": self._field_selector}
            log.warning("the API server refused a watch", extra={**fields, "error": str(error)})
        self.connected = False
        self.last_error = str(error)


def _backoff_delay(failures: int) -> float:
    return min(BACKOFF_BASE_SECONDS * 2.0 ** min(failures - 1, 10), BACKOFF_MAX_SECONDS)
