"""Deletion of expired objects: Events, NodeQueries, CertificateSigningRequests and bootstrap tokens. Pure."""

from __future__ import annotations

import datetime
from collections.abc import Iterable, Iterator

from api.core.certificates import APPROVED, DENIED, FAILED, CertificateSigningRequest
from api.core.config import Secret
from api.core.events import Event
from api.network.queries import NodeQuery
from api.pki import keys
from api.pki.pem import BadPem
from master.auth import authentication
from master.auth.authentication import BOOTSTRAP_TOKEN_NAMESPACE, BOOTSTRAP_TOKEN_TYPE, is_bootstrap_token_expired
from master.controllers.actions import Action, ForceDelete
from master.controllers.context import Lister
from master.controllers.nodes import pod_gc
from master.resources.metadata import parse_time

EVENT_TTL = datetime.timedelta(hours=1)
QUERY_TTL = datetime.timedelta(minutes=5)
PENDING_CSR_TTL, DECIDED_CSR_TTL = datetime.timedelta(hours=24), datetime.timedelta(hours=1)


def expired_queries(queries: Iterable[NodeQuery], wall: datetime.datetime) -> Iterator[ForceDelete]:
    """Queries that whoever asked has forgotten."""
    for query in queries:
        made = parse_time(query.metadata.creation_timestamp)
        if made is None or wall - made > QUERY_TTL:
            yield ForceDelete(query)


def expired_events(events: Iterable[Event], wall: datetime.datetime) -> Iterator[ForceDelete]:
    """Events of which nothing was heard for an hour."""
    for item in events:
        heard = parse_time(item.last_timestamp) or parse_time(item.metadata.creation_timestamp)
        if heard is None or wall - heard > EVENT_TTL:
            yield ForceDelete(item)


def expired_csrs(requests: Iterable[CertificateSigningRequest], wall: datetime.datetime) -> Iterator[ForceDelete]:
    """Requests for certificates that nobody decides, an hour after they were decided, or whose certificate is over."""
    for item in requests:
        made = parse_time(item.metadata.creation_timestamp)
        rows = [row for row in item.status.conditions if row.type in (DENIED, FAILED)]
        if item.status.certificate:
            rows += [row for row in item.status.conditions if row.type == APPROVED]
        times = (parse_time(row.last_update_time) for row in rows)
        waited = not item.status.conditions and (made is None or wall - made > PENDING_CSR_TTL)
        if (
            waited
            or any(time is not None and wall - time > DECIDED_CSR_TTL for time in times)
            or _is_expired(item, wall)
        ):
            yield ForceDelete(item)


def _is_expired(item: CertificateSigningRequest, wall: datetime.datetime) -> bool:
    try:
        return bool(item.status.certificate) and keys.read(item.status.certificate).ends <= wall
    except BadPem:
        return False


def expired_bootstrap_tokens(secrets: Iterable[Secret], wall: datetime.datetime) -> Iterator[ForceDelete]:
    """Bootstrap tokens whose time has come."""
    for secret in secrets:
        if (
            secret.type == BOOTSTRAP_TOKEN_TYPE
            and secret.metadata.namespace == BOOTSTRAP_TOKEN_NAMESPACE
            and is_bootstrap_token_expired(secret, wall)
        ):
            yield ForceDelete(secret)


def sync_expiration(lister: Lister) -> Iterator[Action]:
    """Nothing waits for it: a look now and then is enough."""
    yield from expired_queries(lister.list("NodeQuery"), lister.now)
    yield from expired_events(lister.list("Event"), lister.now)
    yield from expired_csrs(lister.list("CertificateSigningRequest"), lister.now)
    yield from expired_bootstrap_tokens(lister.list("Secret", authentication.BOOTSTRAP_TOKEN_NAMESPACE), lister.now)
    yield from pod_gc.terminated_pods(lister.list("Pod"), lister.context.max_terminated_pods)
