"""Follows services, their endpoints and the addresses of pods, and keeps the catalogue up with them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import UTC, datetime

from api import times
from api.client import Client
from api.endpoints import EndpointSlice
from api.mirror import Mirror
from api.pod_addresses import PodAddress, SlimPod, address_of
from api.services import Service
from nameserver.directory import Directory
from sdn.services.catalogue import Catalogue
from sdn.services.served_port import PortChange
from sdn.services.serving import Key, Vantage

LAST_CHANGE = "endpoints.kubernetes.io/last-change-trigger-time"
"""Annotation of a slice: when that happened because of which it was written."""


class Followed:
    """`wake` is called whenever something has changed.

    Addresses of pods come as PodAddresses; an API server that has none of these is asked for its pods. `directory` is
    up with every event, whatever becomes of the catalogue; `on_complete` is called when it is whole for the first time.
    """

    def __init__(self, client: Client, wake: Callable[[], None]) -> None:
        self.catalogue = Catalogue()
        self.directory = Directory()
        self.on_complete: Callable[[], None] = lambda: None
        self._wake = wake
        self._begun = datetime.now(UTC)
        self._due: list[datetime] = []
        self._services: set[Key] = set()
        self._slices: set[Key] = set()
        self._pods: set[Key] = set()
        self._is_absent = asyncio.Event()
        self.services = Mirror(client, Service, on_change=self._changed, on_item=self._service_changed)
        self.slices = Mirror(client, EndpointSlice, on_change=self._changed, on_item=self._slice_changed)
        self._addresses = Mirror(
            client, PodAddress, on_change=self._addresses_changed, optional=True, on_item=self._pods.add
        )
        self._whole_pods = Mirror(client, SlimPod, on_change=wake, on_item=self._pods.add)

    @property
    def synced(self) -> bool:
        """Whether all that there is has come."""
        pods = self._whole_pods if self._addresses.absent else self._addresses
        return self.services.synced and self.slices.synced and pods.synced

    async def run(self) -> None:
        """Until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            for mirror in (self.services, self.slices, self._addresses):
                tasks.create_task(mirror.run())
            await self._is_absent.wait()
            tasks.create_task(self._whole_pods.run())

    def settle(self, vantage: Vantage) -> PortChange:
        """What became of the ports since the last time. Only once `synced`."""
        catalogue = self.catalogue
        catalogue.set_vantage(vantage)
        for key in _taken(self._pods):
            catalogue.set_pod(key, self._pod(key))
        for key in _taken(self._slices):
            catalogue.set_slice(key, self.slices.items.get(key))
        for key in _taken(self._services):
            catalogue.set_service(key, self.services.items.get(key))
        return catalogue.settle()

    def take_due(self) -> list[datetime]:
        """When that happened of which slices have told since the last time; not what was before we began."""
        due, self._due = self._due, []
        return due

    def _pod(self, key: Key) -> PodAddress | None:
        if not self._addresses.absent:
            return self._addresses.items.get(key)
        pod = self._whole_pods.items.get(key)
        return address_of(pod) if pod is not None else None

    def _addresses_changed(self) -> None:
        if self._addresses.absent:
            self._is_absent.set()
        self._wake()

    def _changed(self) -> None:
        if not self.directory.ready and self.services.synced and self.slices.synced:
            self.directory.ready = True
            self.on_complete()
        self._wake()

    def _service_changed(self, key: Key) -> None:
        self._services.add(key)
        self.directory.put_service(key, self.services.items.get(key))

    def _slice_changed(self, key: Key) -> None:
        self._slices.add(key)
        one = self.slices.items.get(key)
        self.directory.put_slice(key, one)
        moment = _moment(one.metadata.annotations.get(LAST_CHANGE, "")) if one is not None else None
        if moment is not None and moment > self._begun:
            self._due.append(moment)


def _moment(text: str) -> datetime | None:
    """None for what is no time: anybody may write anything there."""
    try:
        return times.parse(text)
    except ValueError:
        return None


def _taken(keys: set[Key]) -> list[Key]:
    """What was in it, in order; it is empty then."""
    found = sorted(keys)
    keys.clear()
    return found
