"""Metadata of objects: replacing parts of it, timestamps, owner references. Pure."""

from __future__ import annotations

import datetime
from collections.abc import Callable
from typing import Any

import msgspec

from api.meta.types import O, Object, ObjectMeta, OwnerReference

Clock = Callable[[], datetime.datetime]
"""Returns the current time in UTC."""


def with_metadata(obj: O, **changes: Any) -> O:
    """Return the object with some fields of its metadata replaced."""
    metadata: ObjectMeta = msgspec.structs.replace(obj.metadata, **changes)
    return msgspec.structs.replace(obj, metadata=metadata)


def parse_time(text: str | None) -> datetime.datetime | None:
    """Return an RFC 3339 time; None if the text is empty or invalid."""
    if not text:
        return None
    try:
        parsed = datetime.datetime.fromisoformat(text)
    except ValueError:
        return None
    return parsed if parsed.tzinfo else parsed.replace(tzinfo=datetime.UTC)


MAX_DIGITS = 18


def whole_number(text: str) -> int | None:
    """Return the number that a text stands for; None if it is none from 0 on, or too long. Clients write such texts."""
    return int(text) if text.isascii() and text.isdecimal() and len(text) <= MAX_DIGITS else None


def format_time(moment: datetime.datetime) -> str:
    """Return a time in the RFC 3339 form of objects."""
    return moment.astimezone(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def controller_of(meta: ObjectMeta) -> OwnerReference | None:
    """Return the owner reference of the object's controller; None if it has none."""
    return next((owner for owner in meta.owner_references if owner.controller), None)


def controller_reference(owner: Object) -> OwnerReference:
    """Return the owner reference by which an object names its controller."""
    return OwnerReference(
        api_version=owner.API_VERSION,
        kind=owner.KIND,
        name=owner.metadata.name,
        uid=owner.metadata.uid,
        controller=True,
        block_owner_deletion=True,
    )
