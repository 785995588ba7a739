"""What is forgotten in time: events, and queries to nodes. Pure."""

from __future__ import annotations

import datetime
from collections.abc import Iterable, Iterator

from api.events import Event
from api.queries import NodeQuery
from master.kinds.kind import parse_time
from master.writing.outcomes import Drop

EVENT_LIFE = datetime.timedelta(hours=1)
QUERY_LIFE = datetime.timedelta(minutes=5)


def old_queries(queries: Iterable[NodeQuery], wall: datetime.datetime) -> Iterator[Drop]:
    """Queries that whoever asked has forgotten."""
    for query in queries:
        made = parse_time(query.metadata.creation_timestamp)
        if made is None or wall - made > QUERY_LIFE:
            yield Drop(query)


def old_events(events: Iterable[Event], wall: datetime.datetime) -> Iterator[Drop]:
    """Events of which nothing was heard for an hour."""
    for item in events:
        heard = parse_time(item.last_timestamp) or parse_time(item.metadata.creation_timestamp)
        if heard is None or wall - heard > EVENT_LIFE:
            yield Drop(item)
