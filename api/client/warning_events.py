"""Warning Events of a daemon whose names follow from their texts."""

from __future__ import annotations

import logging
from datetime import UTC, datetime
from zlib import crc32

from msgspec.structs import replace

from api.client.client import AlreadyExists, ApiError, Client, ClientError
from api.core.events import WARNING, EventSource, event_name, make_event
from api.meta.types import ObjectReference

log = logging.getLogger(__name__)


async def write_warning_once(
    client: Client, about: ObjectReference, reason: str, message: str, source: EventSource
) -> bool:
    """Create a Warning Event, unless there is one with this text: of another node, or of this daemon before a restart.

    Returns False if the API server could not be reached. An event that it refuses is logged.
    """
    name = event_name(about.name, f"{crc32(f'{about.uid} {message}'.encode()):08x}")
    event = make_event(about, WARNING, reason, message, source, datetime.now(UTC))
    try:
        await client.create(replace(event, metadata=replace(event.metadata, name=name)))
    except AlreadyExists:
        return True
    except ApiError as error:
        subject = f"{about.kind} {about.namespace}/{about.name}"
        log.warning("event refused by the API server", extra={"subject": subject, "error": str(error)})
    except ClientError:
        return False
    return True
