"""Writes a Warning Event on a Service when this node rejects one of its endpoints or addresses."""

from __future__ import annotations

import asyncio
import logging
import time

from msgspec.structs import replace

from api.client.client import Client
from api.client.warning_events import write_warning_once
from api.core.events import EventSource, object_reference
from sdn.proxy.service_map import ServiceMap
from sdn.proxy.service_ports import Key, Rejection

log = logging.getLogger(__name__)

COMPONENT, REASON = "podlane-sdn", "EndpointRejected"

CHECK_INTERVAL_SECONDS = 1.0

DELAY_SECONDS = 3.0
"""A rejection that ends sooner gets no event: the address of a new pod may arrive later than its endpoint."""

REPEAT_SECONDS = 3600.0
"""After this time the API server has deleted the event, so it is written again."""

MAX_EVENTS_PER_SERVICE = 10


class ServiceEvents:
    """Writes events about the rejections in a service map.

    All nodes reject the same, and the first one writes the event: the name of an event follows from its text, so the
    API server refuses the events of the other nodes.
    """

    def __init__(self, client: Client, node_name: str, service_map: ServiceMap) -> None:
        self._client = client
        self._source = EventSource(component=COMPONENT, host=node_name)
        self._service_map = service_map
        self._due: dict[tuple[Key, Rejection], float] = {}

    async def run(self) -> None:
        """Write events until cancelled."""
        while True:
            await asyncio.sleep(CHECK_INTERVAL_SECONDS)
            await self._check()

    async def _check(self) -> None:
        now = time.monotonic()
        current = {
            (key, rejection)
            for key, rejections in self._service_map.rejected.items()
            for rejection in rejections[:MAX_EVENTS_PER_SERVICE]
        }
        self._due = {rejected: self._due.get(rejected, now + DELAY_SECONDS) for rejected in current}
        for key, rejection in sorted(rejected for rejected, due in self._due.items() if due <= now):
            if not await self._write(key, rejection):
                return
            self._due[key, rejection] = now + REPEAT_SECONDS

    async def _write(self, key: Key, rejection: Rejection) -> bool:
        """Return False if the API server could not be reached."""
        service = self._service_map.service(key)
        if service is None:
            return True
        subject = replace(object_reference(service), resource_version="")
        return await write_warning_once(self._client, subject, REASON, f"rejected: {rejection}", self._source)
