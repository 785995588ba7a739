"""Conversion of stored records to the version of a request, also by the webhook of a definition."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable

import msgspec

from master import errors
from master.admission.external_calls import MAX_ROUNDS, CallsPending, ExternalCall, ExternalResults
from master.registry.external_caller import ExternalCaller
from master.resources.resource import AnyResource
from master.storage.interface import Record, WatchEvent

MAX_TURN_BYTES = 256 << 10
"""Bytes of objects that a list decodes, converts and shows before other tasks run. 1 MiB takes up to 0.3 s."""

MAX_TURN_RECORDS = 500
"""Records that are converted together: so many objects are sent to a conversion webhook at most."""


def convert_record(resource: AnyResource, record: Record) -> Record:
    """Convert a stored record to another version or a projection. The record of a stored resource stays as it is.

    A custom resource is mostly stored as it is shown. This is found out once for each revision. Raises CallsPending.
    """
    if resource.stored_as is None:
        return record
    if resource.stored_as.from_bytes is not None:
        if record.converted is None or record.converted[0] is not resource:
            obj = resource.stored_as.from_bytes(record.data)
            data = msgspec.json.encode(obj)
            shown = Record(record.key, record.revision, data, resource.stored_as.from_bytes, obj)
            if data == record.data:
                # The stored bytes are the answer. Only readers of single fields decode them again.
                shown = Record(record.key, record.revision, record.data, resource.stored_as.from_bytes)
            record.converted = (resource, shown)
        return record.converted[1] or record
    obj = resource.from_stored(record.object)
    return Record(record.key, record.revision, msgspec.json.encode(obj), resource.type, obj)


def convert_event(resource: AnyResource, event: WatchEvent) -> WatchEvent:
    """Convert a watch event to another version or a projection. Raises CallsPending."""
    if resource.stored_as is None:
        return event
    previous = None if event.previous is None else convert_record(resource, event.previous)
    return WatchEvent(event.type, convert_record(resource, event.record), previous)


async def converted(resource: AnyResource, records: Iterable[Record], caller: ExternalCaller) -> AsyncIterator[Record]:
    """Yield converted records. Other tasks run after each MAX_TURN_BYTES of them. Raises StatusError.

    What a webhook converts is sent to it together, for the records of a turn.
    """
    async for turn in in_turns(records):
        await _request_conversions(resource, turn, caller)
        for record in turn:
            yield convert_record(resource, record)


async def request_conversions(resource: AnyResource, events: Iterable[WatchEvent], caller: ExternalCaller) -> None:
    """Let the webhook convert what `convert_event` needs of it. Raises StatusError."""
    states = [state for event in events for state in (event.record, event.previous) if state is not None]
    async for turn in in_turns(states):
        await _request_conversions(resource, turn, caller)


async def _request_conversions(resource: AnyResource, records: list[Record], caller: ExternalCaller) -> None:
    """Let the webhook convert records. The results stay with them."""
    if resource.stored_as is None or resource.stored_as.from_bytes is None:
        return
    remaining = records
    for _ in range(MAX_ROUNDS):
        calls: list[ExternalCall] = []
        waiting = []
        for record in remaining:
            try:
                convert_record(resource, record)
            except CallsPending as pending:
                calls += pending.calls
                waiting.append(record)
        if not waiting:
            return
        remaining = waiting
        await caller.resolve(calls, ExternalResults())
    raise errors.internal_error(f"{resource.kind} needs more than {MAX_ROUNDS} rounds of conversion")


async def in_turns(records: Iterable[Record]) -> AsyncIterator[list[Record]]:
    """Yield the records of each turn, and let other tasks run between them."""
    turn: list[Record] = []
    size = 0
    for record in records:
        if size + record.size > MAX_TURN_BYTES or len(turn) == MAX_TURN_RECORDS:
            yield turn
            turn, size = [], 0
            await asyncio.sleep(0)
        turn.append(record)
        size += record.size
    if turn:
        yield turn
