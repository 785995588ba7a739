"""The audit event of a request at one stage, as a line of JSON. Pure.

Source: `Event` of audit.k8s.io/v1 of Kubernetes. What clients choose freely is cut, and what looks like one of our
tokens is redacted, wherever it stands.
"""

from __future__ import annotations

import datetime
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import islice
from typing import Any
from urllib.parse import parse_qsl, quote, urlencode

import msgspec

from api.meta.redaction import REDACTED, SECRET_PARAMETERS, cut, redact
from api.meta.types import Status
from master.audit.policy import REQUEST, REQUEST_RESPONSE, AuditLevel
from master.auth.attributes import Attributes, User
from master.auth.reviews import user_info
from master.request_info import RequestInfo

MAX_URI, MAX_USER_AGENT, MAX_SOURCES, MAX_SOURCE = 2048, 512, 8, 64
"""Characters of the URI and of the user agent, forwarded addresses, and the characters of each."""

MAX_ANNOTATION, MAX_MESSAGE, MAX_NAME = 1024, 1024, 512


@dataclass(slots=True)
class AuditRecord:
    """What is known about a request so far. `user` is None until the request is authenticated."""

    audit_id: str
    received: datetime.datetime
    method: str
    path: str
    query: str
    source_ips: tuple[str, ...]
    user_agent: str
    verb: str = ""
    user: User | None = None
    impersonated: User | None = None
    info: RequestInfo | None = None
    attributes: Attributes | None = None
    aggregated: tuple[str, str] | None = None
    """Group and version of an API of another server."""
    level: AuditLevel = field(default_factory=AuditLevel)
    annotations: dict[str, str] = field(default_factory=dict)
    request_object: Any = None
    response_object: bytes = b""
    token_name: str = ""
    """The name of an existing token object in the path. It is a hash, so it is recorded."""

    def annotate(self, key: str, value: str) -> None:
        """Add an annotation to the events that follow."""
        self.annotations[key] = cut(value, MAX_ANNOTATION)


def loggable_uri(path: str, query: str) -> str:
    """Return the URI of a request without secret parameters, at most MAX_URI characters."""
    if not query:
        return cut(path, MAX_URI)
    pairs = parse_qsl(query[: 4 * MAX_URI], keep_blank_values=True)
    shown = [(key, REDACTED.decode() if key.lower() in SECRET_PARAMETERS else value) for key, value in pairs]
    return cut(f"{path}?{urlencode(shown, quote_via=quote, errors='replace')}", MAX_URI)


def source_ips(forwarded: Iterable[str], peer: str) -> tuple[str, ...]:
    """Return the addresses of a request: those that proxies report, then that of the connection."""
    reported = [
        cut(part.strip(), MAX_SOURCE)
        for line in islice(forwarded, MAX_SOURCES)
        for part in line.split(",", MAX_SOURCES)
    ]
    return tuple(dict.fromkeys((*filter(None, reported[:MAX_SOURCES]), peer)))


def encode_event(record: AuditRecord, stage: str, code: int, status: Status | None, now: datetime.datetime) -> bytes:
    """Return the event of a request at a stage, with a newline. `code` is that of the response, 0 before it."""
    event: dict[str, Any] = {
        "kind": "Event",
        "apiVersion": "audit.k8s.io/v1",
        "level": record.level.level,
        "auditID": record.audit_id,
        "stage": stage,
        "requestURI": loggable_uri(record.path, record.query),
        "verb": record.verb or record.method.lower(),
        "user": user_info(record.user or User()),
        "sourceIPs": record.source_ips,
        "userAgent": cut(record.user_agent, MAX_USER_AGENT),
    }
    if record.impersonated is not None:
        event["impersonatedUser"] = user_info(record.impersonated)
    if record.attributes is not None:
        # Resources that are not stored, such as reviews, have no `info`; all of them have the version v1.
        version = "v1" if record.aggregated is None else record.aggregated[1]
        if record.info is not None:
            version = record.info.resource.version
        event["objectRef"] = _object_reference(record.attributes, version, record.request_object)
    if code:
        event["responseStatus"] = _response_status(code, status)
    # The body of a rejected request may be of another kind than its path says, such as a Secret.
    if record.request_object is not None and code < 400 and record.level.includes(REQUEST):
        event["requestObject"] = record.request_object
    if record.response_object and record.level.includes(REQUEST_RESPONSE):
        event["responseObject"] = msgspec.Raw(record.response_object)
    event |= {"requestReceivedTimestamp": _micro_time(record.received), "stageTimestamp": _micro_time(now)}
    if record.annotations:
        event["annotations"] = record.annotations
    return redact(_encode(event), record.token_name.encode()) + b"\n"


def _encode(event: dict[str, Any]) -> bytes:
    try:
        return msgspec.json.encode(event)
    except UnicodeEncodeError:
        # Paths and headers may have bytes that are no UTF-8. They are escaped, and the response is left out.
        event.pop("responseObject", None)
        return json.dumps(msgspec.to_builtins(event)).encode()


def _object_reference(attributes: Attributes, version: str, body: object) -> Mapping[str, str]:
    """Return what a request is about. The name of a new object is that of the body; without one the master gives it."""
    reference = {
        "resource": attributes.resource,
        "namespace": attributes.namespace,
        "name": attributes.name or _name_in(body),
        "apiGroup": attributes.group,
        "apiVersion": version,
        "subresource": attributes.subresource,
    }
    return {key: cut(value, MAX_NAME) for key, value in reference.items() if value}


def _name_in(body: object) -> str:
    metadata = body.get("metadata") if isinstance(body, dict) else None
    name = metadata.get("name") if isinstance(metadata, dict) else None
    return name if isinstance(name, str) else ""


def _response_status(code: int, status: Status | None) -> Mapping[str, Any]:
    if status is None:
        return {"metadata": {}, "code": code}
    shown = {
        "metadata": {},
        "status": status.status,
        "message": cut(status.message, MAX_MESSAGE),
        "reason": status.reason,
    }
    return {**{key: value for key, value in shown.items() if value or key == "metadata"}, "code": code}


def _micro_time(moment: datetime.datetime) -> str:
    return moment.astimezone(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
