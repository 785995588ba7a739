"""Watches Services, EndpointSlices and pod addresses, and keeps the service map and the names of cluster DNS."""

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
from sdn.proxy.transforms import TRIGGER_TIME, reduced_pod_address, reduced_service, reduced_slice

P = TypeVar("P", bound=Object)
F = TypeVar("F", bound=Object)


class FallbackInformer(Generic[P, F]):
    """Informer of a preferred kind, or of a fallback kind if the API server does not serve the preferred one.

    `convert` makes an object of the preferred kind from one of the fallback kind. `on_change` and `on_key` are called
    as by an Informer.
    """

    def __init__(
        self,
        client: Client,
        *,
        preferred: type[P],
        fallback: type[F],
        convert: Callable[[F], P],
        transform: Callable[[P], P],
        on_change: Callable[[], None],
        on_key: Callable[[Key], None],
    ) -> None:
        self._convert = convert
        self._on_change = on_change
        self._preferred_is_missing = asyncio.Event()
        self._preferred = Informer(
            client, preferred, on_change=self._preferred_changed, optional=True, on_key=on_key, transform=transform
        )
        self._fallback = Informer(client, fallback, on_change=on_change, on_key=on_key)

    @property
    def synced(self) -> bool:
        """True after the first complete list of the kind that is served."""
        return self._fallback.synced if self._preferred.kind_is_missing else self._preferred.synced

    def get(self, key: Key) -> P | None:
        """Return an object by namespace and name."""
        if not self._preferred.kind_is_missing:
            return self._preferred.items.get(key)
        obj = self._fallback.items.get(key)
        return None if obj is None else self._convert(obj)

    async def run(self) -> None:
        """Watch until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._preferred.run())
            await self._preferred_is_missing.wait()
            tasks.create_task(self._fallback.run())

    def _preferred_changed(self) -> None:
        if self._preferred.kind_is_missing:
            self._preferred_is_missing.set()
        self._on_change()


class ServiceWatcher:
    """Informers of Services, EndpointSlices and pod addresses.

    If the API server has no PodAddresses, its pods are watched; if it has no EndpointSlices of discovery.k8s.io/v1
    (Kubernetes before 1.21), those of v1beta1 are.

    `service_map` changes in `apply_changes` only; `service_store` changes with every event. `on_change` is called after
    each change, `on_first_sync` when `service_store` is complete for the first time.
    """

    def __init__(self, client: Client, *, on_change: Callable[[], None], on_first_sync: Callable[[], None]) -> None:
        self.service_map = ServiceMap()
        self.service_store = ServiceStore()
        self._on_first_sync = on_first_sync
        self._on_change = on_change
        self._started_at = datetime.now(UTC)
        self._trigger_times: list[datetime] = []
        self._changed_services: set[Key] = set()
        self._changed_slices: set[Key] = set()
        self._changed_pods: set[Key] = set()
        self._services = Informer(
            client, Service, on_change=self._changed, on_key=self._service_changed, transform=reduced_service
        )
        self._slices = FallbackInformer(
            client,
            preferred=EndpointSlice,
            fallback=EndpointSliceV1beta1,
            convert=_as_endpoint_slice,
            transform=reduced_slice,
            on_change=self._changed,
            on_key=self._slice_changed,
        )
        self._pods = FallbackInformer(
            client,
            preferred=PodAddress,
            fallback=SlimPod,
            convert=pod_address,
            transform=reduced_pod_address,
            on_change=on_change,
            on_key=self._changed_pods.add,
        )

    @property
    def synced(self) -> bool:
        """True after the first complete list of each kind."""
        return self._services.synced and self._slices.synced and self._pods.synced

    async def run(self) -> None:
        """Watch until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._services.run())
            tasks.create_task(self._slices.run())
            tasks.create_task(self._pods.run())

    def apply_changes(self, config: ProxyConfig) -> ServicePortChange:
        """Apply what has changed since the last call to the service map. To be called only once `synced`."""
        self.service_map.set_config(config)
        for key in _drain(self._changed_pods):
            self.service_map.set_pod(key, self._pods.get(key))
        for key in _drain(self._changed_slices):
            self.service_map.set_slice(key, self._slices.get(key))
        for key in _drain(self._changed_services):
            self.service_map.set_service(key, self._services.items.get(key))
        return self.service_map.apply_changes()

    def take_trigger_times(self) -> list[datetime]:
        """Return the trigger times of the slices that changed since the last call.

        Times before the start of this daemon are not included, because they say nothing about its latency.
        """
        trigger_times, self._trigger_times = self._trigger_times, []
        return trigger_times

    def _changed(self) -> None:
        if not self.service_store.ready and self._services.synced and self._slices.synced:
            self.service_store.ready = True
            self._on_first_sync()
        self._on_change()

    def _service_changed(self, key: Key) -> None:
        self._changed_services.add(key)
        self.service_store.put_service(key, self._services.items.get(key))

    def _slice_changed(self, key: Key) -> None:
        self._changed_slices.add(key)
        endpoint_slice = self._slices.get(key)
        self.service_store.put_slice(key, endpoint_slice)
        trigger_time = _trigger_time(endpoint_slice) if endpoint_slice is not None else None
        if trigger_time is not None and trigger_time > self._started_at:
            self._trigger_times.append(trigger_time)


def _as_endpoint_slice(endpoint_slice: EndpointSliceV1beta1) -> EndpointSlice:
    """Return the slice itself: the type of v1beta1 is a subtype, whose fields are read as those of v1."""
    return endpoint_slice


def _trigger_time(endpoint_slice: EndpointSlice) -> datetime | None:
    """Return when the change happened, or None if the annotation is absent or not a time."""
    try:
        return times.parse_time(endpoint_slice.metadata.annotations.get(TRIGGER_TIME, ""))
    except ValueError:
        return None


def _drain(keys: set[Key]) -> list[Key]:
    """Empty a set, and return its keys, sorted."""
    drained = sorted(keys)
    keys.clear()
    return drained
