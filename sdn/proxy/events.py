"""Writes a Warning Event on a Service when this node rejects one of its endpoints or addresses."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from zlib import crc32

from msgspec.structs import replace

from api.client.client import AlreadyExists, ApiError, Client, ClientError
from api.core.events import WARNING, EventSource, make_event, object_reference
from api.core.services import Service
from sdn.proxy.service_ports import Key, Rejection

log = logging.getLogger(__name__)

COMPONENT, REASON = "podlane-sdn", "LeftOut"
LOOK_SECONDS = 1.0
HOLD_SECONDS = 3.0
"""What is over sooner is not told: the address of a new pod may be heard of later than its endpoint."""

AGAIN_SECONDS = 3600.0
"""Then the API server has forgotten what was told."""

MOST_TOLD = 10
"""Of one service."""


class ServiceEvents:
    """All nodes leave out the same, and the first one tells it: the name of an event follows from what it says.

    `left_out` returns what is left out now, by service; `service` an object, if it is there.
    """

    def __init__(
        self,
        client: Client,
        node: str,
        left_out: Callable[[], Mapping[Key, tuple[Rejection, ...]]],
        service: Callable[[Key], Service | None],
    ) -> None:
        self._client = client
        self._source = EventSource(component=COMPONENT, host=node)
        self._left_out = left_out
        self._service = service
        self._due: dict[tuple[Key, Rejection], float] = {}

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            await self._look()

    async def _look(self) -> None:
        now = time.monotonic()
        current = {(key, one) for key, some in self._left_out().items() for one in some[:MOST_TOLD]}
        self._due = {about: self._due.get(about, now + HOLD_SECONDS) for about in current}
        for about in sorted(about for about, due in self._due.items() if due <= now):
            if not await self._tell(*about):
                return
            self._due[about] = now + AGAIN_SECONDS

    async def _tell(self, key: Key, left_out: Rejection) -> bool:
        """False while the API server is away."""
        service = self._service(key)
        if service is None:
            return True
        about = replace(object_reference(service), resource_version="")
        text = f"{left_out} and is left out"
        told = make_event(about, WARNING, REASON, text, self._source, datetime.now(UTC))
        number = crc32(f"{about.uid} {text}".encode())
        named = replace(told, metadata=replace(told.metadata, name=f"{about.name}.{number:08x}"))
        try:
            await self._client.create(named)
        except AlreadyExists:
            return True
        except ApiError as error:
            log.warning("the master refused an event", extra={"service": "/".join(key), "error": str(error)})
        except ClientError:
            return False
        return True
