"""Audit of requests: one `AuditRecord` per request, and its events at the stages of the policy."""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from aiohttp import web

from api.meta.types import Status
from master.audit.event import AuditRecord, encode_event, source_ips
from master.audit.log import AuditLog, Reservation
from master.audit.policy import METADATA, REQUEST_RECEIVED, RESPONSE_STARTED, Policy, evaluate
from master.auth.attributes import Attributes, Decision, PathAttributes, User
from master.auth.authorization import request_attributes
from master.resources import namespaces, virtual
from master.resources.metadata import Clock
from master.server.routes import (
    AggregatedRoute,
    NonResourceRoute,
    ProjectRequestRoute,
    ProxyRoute,
    ResourceRoute,
    ReviewRoute,
    Route,
)
from reconcile.exposition import MetricFamily, counter

AUDIT_ID_HEADER = "Audit-Id"

RECORD = web.RequestKey("audit_record", AuditRecord)
"""The key under which a request has its record."""

DECISION_ANNOTATION, REASON_ANNOTATION = "authorization.k8s.io/decision", "authorization.k8s.io/reason"


class Auditor:
    """Records requests in the audit log. Without a log, nothing is recorded."""

    def __init__(self, log: AuditLog | None, policy: Policy, clock: Clock) -> None:
        self._log = log
        self._policy = policy
        self._clock = clock
        self._reservations: dict[str, Reservation] = {}

    @contextmanager
    def request(self, http: web.Request, peer: str) -> Iterator[AuditRecord]:
        """Yield the record of a request."""
        headers = http.headers
        forwarded = (*headers.getall("X-Forwarded-For", []), *headers.getall("X-Real-Ip", []))
        record = http[RECORD] = AuditRecord(
            audit_id=str(uuid.uuid4()),
            received=self._clock(),
            method=http.method,
            path=http.path,
            query=http.rel_url.raw_query_string,
            source_ips=source_ips(forwarded, peer),
            user_agent=headers.get("User-Agent", ""),
        )
        try:
            yield record
        finally:
            if (reservation := self._reservations.pop(record.audit_id, None)) is not None:
                reservation.release()

    def decide_level(self, record: AuditRecord, user: User | None, attributes: Attributes | PathAttributes) -> None:
        """Set what is recorded of a request, and record that it was received. Raises AuditLogFull."""
        record.user, record.verb = user, attributes.verb
        record.attributes = attributes if isinstance(attributes, Attributes) else None
        if self._log is None:
            return
        record.level = evaluate(self._policy, user or User(), attributes)
        if record.level.includes(METADATA):
            self._reservations[record.audit_id] = self._log.reserve()
            self.record(record, REQUEST_RECEIVED)

    async def started(self, http: web.Request, response: web.StreamResponse) -> None:
        """Name the record in the response, and record that a stream has started."""
        record = http.get(RECORD)
        if record is None:
            return
        if response.status != 101:
            response.headers[AUDIT_ID_HEADER] = record.audit_id
        if not isinstance(response, web.Response):
            self.record(record, RESPONSE_STARTED, response.status)
            if (reservation := self._reservations.get(record.audit_id)) is not None:
                reservation.release()

    def metrics(self) -> Iterator[MetricFamily]:
        """Yield the counters of the log."""
        if self._log is not None:
            yield counter("apiserver_audit_event_total", "Audit events that were written.", {"": self._log.written})
            yield counter("apiserver_audit_dropped_total", "Audit events that were dropped.", {"": self._log.dropped})

    def record(self, record: AuditRecord, stage: str, code: int = 0, status: Status | None = None) -> None:
        """Record a request at a stage. `code` is that of the response, 0 before it."""
        reservation = self._reservations.get(record.audit_id)
        if reservation is not None and record.level.records(stage):
            reservation.record(encode_event(record, stage, code, status, self._clock()))


def annotate_decision(record: AuditRecord, decision: Decision) -> None:
    """Add the decision of the authorizer and its reason to the events."""
    record.annotate(DECISION_ANNOTATION, "allow" if decision.allowed else "forbid")
    record.annotate(REASON_ANNOTATION, decision.reason)


def attributes_of(route: Route, query: Mapping[str, str]) -> Attributes | PathAttributes:
    """Return the attributes of a request, for the policy."""
    match route:
        case ResourceRoute(verb, info) | ProxyRoute(verb, info):
            return request_attributes(verb, info, query)
        case ReviewRoute(kind, namespace):
            group, plural = virtual.REVIEW_RESOURCES[kind]
            return Attributes("create", group, plural, namespace=namespace)
        case ProjectRequestRoute():
            return Attributes("create", namespaces.PROJECT_GROUP, namespaces.PROJECT_REQUESTS)
        case AggregatedRoute(attributes=attributes):
            return attributes
        case NonResourceRoute(verb, path):
            return PathAttributes(verb, path)
