"""What is forgotten in time: events, queries to nodes, requests for certificates, tokens to join by. Pure."""

from __future__ import annotations

import datetime
from collections.abc import Iterable, Iterator

from api.core.certificates import APPROVED, DENIED, FAILED, CertificateSigningRequest
from api.core.config import Secret
from api.core.events import Event
from api.network.queries import NodeQuery
from api.pki import keys
from api.pki.pem import BadPem
from master.access.bootstrap_tokens import NAMESPACE, TYPE, is_over
from master.kinds.kind import parse_time
from master.writing.outcomes import Drop

EVENT_LIFE = datetime.timedelta(hours=1)
QUERY_LIFE = datetime.timedelta(minutes=5)
REQUEST_LIFE, DECIDED_LIFE = datetime.timedelta(hours=24), datetime.timedelta(hours=1)


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


def old_requests(requests: Iterable[CertificateSigningRequest], wall: datetime.datetime) -> Iterator[Drop]:
    """Requests for certificates that nobody decides, an hour after they were decided, or whose certificate is over."""
    for item in requests:
        made = parse_time(item.metadata.creation_timestamp)
        rows = [row for row in item.status.conditions if row.type in (DENIED, FAILED)]
        if item.status.certificate:
            rows += [row for row in item.status.conditions if row.type == APPROVED]
        times = (parse_time(row.last_update_time) for row in rows)
        waited = not item.status.conditions and (made is None or wall - made > REQUEST_LIFE)
        if waited or any(time is not None and wall - time > DECIDED_LIFE for time in times) or _is_over(item, wall):
            yield Drop(item)


def _is_over(item: CertificateSigningRequest, wall: datetime.datetime) -> bool:
    try:
        return bool(item.status.certificate) and keys.read(item.status.certificate).ends <= wall
    except BadPem:
        return False


def old_tokens(secrets: Iterable[Secret], wall: datetime.datetime) -> Iterator[Drop]:
    """Bootstrap tokens whose time has come."""
    for secret in secrets:
        if secret.type == TYPE and secret.metadata.namespace == NAMESPACE and is_over(secret, wall):
            yield Drop(secret)
