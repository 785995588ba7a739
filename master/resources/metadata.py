"""Metadata of objects: replacing parts of it, timestamps, owner references. Pure."""

from __future__ import annotations

import datetime
from collections.abc import Callable
from typing import Any

import msgspec

from api.meta.types import O, Object, ObjectMeta, OwnerReference

Clock = Callable[[], datetime.datetime]
"""Returns the current time in UTC."""


def with_metadata(item: O, **changes: Any) -> O:
    """The object with some of its metadata replaced."""
    metadata: ObjectMeta = msgspec.structs.replace(item.metadata, **changes)
    return msgspec.structs.replace(item, metadata=metadata)


def parse_time(text: str | None) -> datetime.datetime | None:
    """An RFC 3339 time; None if there is none or it is none."""
    if not text:
        return None
    try:
        parsed = datetime.datetime.fromisoformat(text)
    except ValueError:
        return None
    return parsed if parsed.tzinfo else parsed.replace(tzinfo=datetime.UTC)


def format_time(moment: datetime.datetime) -> str:
    """A time as objects carry it."""
    return moment.astimezone(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def controller_of(meta: ObjectMeta) -> OwnerReference | None:
    """The owner that decides about an object, if it has one."""
    return next((row for row in meta.owner_references if row.controller), None)


def controller_reference(owner: Object) -> OwnerReference:
    """How an object names the owner that made it and decides about it."""
    return OwnerReference(
        api_version=owner.API_VERSION,
        kind=owner.KIND,
        name=owner.metadata.name,
        uid=owner.metadata.uid,
        controller=True,
        block_owner_deletion=True,
    )
