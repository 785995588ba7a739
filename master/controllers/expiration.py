"""Deletion of expired objects: Events, NodeQueries, CertificateSigningRequests and tokens. Pure."""

from __future__ import annotations

import datetime
from collections.abc import Iterable, Iterator

from api.core.certificates import APPROVED, DENIED, FAILED, CertificateSigningRequest
from api.core.config import Secret
from api.core.events import Event
from api.core.pod import Pod
from api.network.queries import NodeQuery
from api.pki import keys
from api.pki.pem import BadPem
from master.auth import authentication
from master.auth.authentication import BOOTSTRAP_TOKEN_NAMESPACE, BOOTSTRAP_TOKEN_TYPE, is_bootstrap_token_expired
from master.controllers import oauth
from master.controllers.actions import Action, Failed, ForceDelete, isolate_errors
from master.controllers.context import Lister
from master.controllers.nodes import pod_gc
from master.resources.metadata import parse_time
from master.resources.oauth import OAuthAccessToken, OAuthAuthorizeToken

EVENT_TTL = datetime.timedelta(hours=1)
QUERY_TTL = datetime.timedelta(minutes=5)
PENDING_CSR_TTL, DECIDED_CSR_TTL = datetime.timedelta(hours=24), datetime.timedelta(hours=1)


def expired_queries(queries: Iterable[NodeQuery], now: datetime.datetime) -> Iterator[ForceDelete | Failed]:
    """Yield the deletion of old queries."""

    def expire(query: NodeQuery) -> Iterator[ForceDelete]:
        created = parse_time(query.metadata.creation_timestamp)
        if created is None or now - created > QUERY_TTL:
            yield ForceDelete(query)

    return isolate_errors(queries, expire)


def expired_events(events: Iterable[Event], now: datetime.datetime) -> Iterator[ForceDelete | Failed]:
    """Yield the deletion of events that did not recur within EVENT_TTL."""

    def expire(event: Event) -> Iterator[ForceDelete]:
        last_seen = parse_time(event.last_timestamp) or parse_time(event.metadata.creation_timestamp)
        if last_seen is None or now - last_seen > EVENT_TTL:
            yield ForceDelete(event)

    return isolate_errors(events, expire)


def expired_csrs(
    requests: Iterable[CertificateSigningRequest], now: datetime.datetime
) -> Iterator[ForceDelete | Failed]:
    """Yield the deletion of requests: undecided ones, decided ones after DECIDED_CSR_TTL, and those whose certificate
    has expired.
    """

    def expire(csr: CertificateSigningRequest) -> Iterator[ForceDelete]:
        created = parse_time(csr.metadata.creation_timestamp)
        final_conditions = [condition for condition in csr.status.conditions if condition.type in (DENIED, FAILED)]
        if csr.status.certificate:
            final_conditions += [condition for condition in csr.status.conditions if condition.type == APPROVED]
        times = (parse_time(condition.last_update_time) for condition in final_conditions)
        is_abandoned = not csr.status.conditions and (created is None or now - created > PENDING_CSR_TTL)
        if (
            is_abandoned
            or any(time is not None and now - time > DECIDED_CSR_TTL for time in times)
            or _is_expired(csr, now)
        ):
            yield ForceDelete(csr)

    return isolate_errors(requests, expire)


def _is_expired(csr: CertificateSigningRequest, now: datetime.datetime) -> bool:
    try:
        return bool(csr.status.certificate) and keys.parse_certificate(csr.status.certificate).not_after <= now
    except BadPem:
        return False


def expired_bootstrap_tokens(secrets: Iterable[Secret], now: datetime.datetime) -> Iterator[ForceDelete | Failed]:
    """Yield the deletion of expired bootstrap tokens."""

    def expire(secret: Secret) -> Iterator[ForceDelete]:
        if (
            secret.type == BOOTSTRAP_TOKEN_TYPE
            and secret.metadata.namespace == BOOTSTRAP_TOKEN_NAMESPACE
            and is_bootstrap_token_expired(secret, now)
        ):
            yield ForceDelete(secret)

    return isolate_errors(secrets, expire)


def sync_expiration(lister: Lister) -> Iterator[Action]:
    """Delete expired objects and terminated pods beyond the limit. Runs by its resync only."""
    yield from expired_queries(lister.list(NodeQuery), lister.now)
    yield from expired_events(lister.list(Event), lister.now)
    yield from expired_csrs(lister.list(CertificateSigningRequest), lister.now)
    yield from expired_bootstrap_tokens(lister.list(Secret, authentication.BOOTSTRAP_TOKEN_NAMESPACE), lister.now)
    yield from oauth.expired_tokens(lister.list(OAuthAccessToken), lister.now)
    yield from oauth.expired_tokens(lister.list(OAuthAuthorizeToken), lister.now)
    yield from pod_gc.terminated_pods(lister.list(Pod), lister.context.max_terminated_pods)
