"""Follows Services, EndpointSlices and pod addresses of the API server."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Generic, TypeVar

from api.client.client import Client
from api.client.informer import Informer
from api.core.endpoints import EndpointSlice, EndpointSliceV1beta1
from api.core.services import Service
from api.meta import times
from api.meta.types import Object
from api.network.types import PodAddress, SlimPod, pod_address
from nameserver.service_store import ServiceStore
from sdn.model.service_port import ServicePortChange
from sdn.proxy.service_map import ServiceMap
from sdn.proxy.service_ports import Key, ProxyConfig

O = TypeVar("O", bound=Object)
P = TypeVar("P", bound=Object)


class FallbackMirror(Generic[O, P]):
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
        self._first = Informer(client, kind, on_change=self._changed, optional=True, on_key=on_item)
        self._second = Informer(client, other, on_change=on_change, on_key=on_item)

    @property
    def synced(self) -> bool:
        """Whether all that there is has come."""
        return self._second.synced if self._first.kind_is_missing else self._first.synced

    def get(self, key: tuple[str, str]) -> O | None:
        """The object of this namespace and name, if there is one."""
        if not self._first.kind_is_missing:
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
        if self._first.kind_is_missing:
            self._is_absent.set()
        self._on_change()


LAST_CHANGE = "endpoints.kubernetes.io/last-change-trigger-time"
"""Annotation of a slice: when that happened because of which it was written."""


class ServiceWatcher:
    """`on_change` is called whenever something has changed.

    Addresses of pods come as PodAddresses; an API server that has none of these is asked for its pods, and an older one
    for slices of v1beta1 (Kubernetes before 1.21). `directory` is up with every event, whatever becomes of the
    catalogue; `on_first_sync` is called when it is whole for the first time.
    """

    def __init__(self, client: Client, *, on_change: Callable[[], None], on_first_sync: Callable[[], None]) -> None:
        self.catalogue = ServiceMap()
        self.directory = ServiceStore()
        self._on_first_sync = on_first_sync
        self._on_change = on_change
        self._begun = datetime.now(UTC)
        self._due: list[datetime] = []
        self._services: set[Key] = set()
        self._slices: set[Key] = set()
        self._pods: set[Key] = set()
        self.services = Informer(client, Service, on_change=self._changed, on_key=self._service_changed)
        self._all_slices = FallbackMirror[EndpointSlice, EndpointSliceV1beta1](
            client, EndpointSlice, EndpointSliceV1beta1, lambda one: one, self._changed, self._slice_changed
        )
        self._all_pods = FallbackMirror(client, PodAddress, SlimPod, pod_address, on_change, self._pods.add)

    @property
    def synced(self) -> bool:
        """Whether all that there is has come."""
        return self.services.synced and self._all_slices.synced and self._all_pods.synced

    async def run(self) -> None:
        """Until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            for one in (self.services, self._all_slices, self._all_pods):
                tasks.create_task(one.run())

    def settle(self, vantage: ProxyConfig) -> ServicePortChange:
        """What became of the ports since the last time. Only once `synced`."""
        catalogue = self.catalogue
        catalogue.set_vantage(vantage)
        for key in _trigger_time(self._pods):
            catalogue.set_pod(key, self._all_pods.get(key))
        for key in _trigger_time(self._slices):
            catalogue.set_slice(key, self._all_slices.get(key))
        for key in _trigger_time(self._services):
            catalogue.set_service(key, self.services.items.get(key))
        return catalogue.settle()

    def take_due(self) -> list[datetime]:
        """When that happened of which slices have told since the last time; not what was before we began."""
        due, self._due = self._due, []
        return due

    def _changed(self) -> None:
        if not self.directory.ready and self.services.synced and self._all_slices.synced:
            self.directory.ready = True
            self._on_first_sync()
        self._on_change()

    def _service_changed(self, key: Key) -> None:
        self._services.add(key)
        self.directory.put_service(key, self.services.items.get(key))

    def _slice_changed(self, key: Key) -> None:
        self._slices.add(key)
        one = self._all_slices.get(key)
        self.directory.put_slice(key, one)
        moment = _moment(one.metadata.annotations.get(LAST_CHANGE, "")) if one is not None else None
        if moment is not None and moment > self._begun:
            self._due.append(moment)


def _moment(text: str) -> datetime | None:
    """None for what is no time: anybody may write anything there."""
    try:
        return times.parse_time(text)
    except ValueError:
        return None


def _trigger_time(keys: set[Key]) -> list[Key]:
    """What was in it, in order; it is empty then."""
    found = sorted(keys)
    keys.clear()
    return found
