"""Authentication and authorization of requests by the API server."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass
from hashlib import sha256
from typing import Any, Generic, TypeVar

from api.client.client import Client, ClientError
from api.core.auth import ResourceAttributes, SubjectAccessReview, SubjectAccessReviewSpec, TokenReview, TokenReviewSpec
from api.pki.pem import peer_subject
from reconcile.errors import NotReady, Refused

VERBS = {"POST": "create", "PUT": "update", "PATCH": "patch", "DELETE": "delete"}
"""HTTP method → verb. All other methods are `get`."""

PATH_SUBRESOURCES = (
    ("/stats", ("stats",)),
    ("/metrics", ("metrics",)),
    ("/logs", ("log",)),
    ("/checkpoint", ("checkpoint",)),
    ("/pods", ("pods", "proxy")),
    ("/runningpods", ("pods", "proxy")),
    ("/healthz", ("healthz", "proxy")),
    ("/configz", ("configz", "proxy")),
)
"""Path → subresources of `nodes`, access to one of which is required. For all other paths it is `proxy`."""

TOKEN_TTL_SECONDS = 120.0
ALLOWED_TTL_SECONDS = 300.0
DENIED_TTL_SECONDS = 30.0
MAX_CACHED = 1000
"""Lifetime and number of cached reviews."""

BEARER = "bearer "

V = TypeVar("V")


@dataclass(frozen=True, slots=True)
class Caller:
    """An authenticated client."""

    name: str
    groups: tuple[str, ...] = ()
    uid: str = ""
    extra: tuple[tuple[str, tuple[str, ...]], ...] = ()

    @property
    def is_superuser(self) -> bool:
        """Whether access is allowed without a review. It is for the API server, so that it works if reviews fail."""
        return "system:masters" in self.groups


@dataclass(frozen=True, slots=True)
class RequestAttributes:
    """The access that a request requires: a verb on one of these subresources of the node."""

    verb: str
    subresources: tuple[str, ...]

    def describe(self, caller: Caller) -> str:
        """Return the attributes as text, for error messages."""
        names = " ".join(self.subresources)
        return f"user={caller.name}, verb={self.verb}, resource=nodes, subresource(s)=[{names}]"


def request_attributes(method: str, path: str) -> RequestAttributes:
    """Return the access that a request requires."""
    subresources: tuple[str, ...] = ("proxy",)
    for prefix, names in PATH_SUBRESOURCES:
        if path == prefix or path.startswith(f"{prefix}/"):
            subresources = names
            break
    return RequestAttributes(VERBS.get(method, "get"), subresources)


def caller_from_certificate(certificate: Mapping[str, Any] | None) -> Caller | None:
    """Return the subject of a verified certificate, given as `ssl.SSLSocket.getpeercert` returns it.

    Returns None without a certificate, or if the certificate has no common name.
    """
    subject = peer_subject(certificate)
    return Caller(subject.user, (*subject.groups, "system:authenticated")) if subject.user else None


class RequestAuth:
    """Authentication by client certificate or TokenReview, and authorization by SubjectAccessReview.

    `node` is the name of this node. Reviews are cached.
    """

    def __init__(self, client: Client, node: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._client = client
        self._node = node
        self._callers = _TtlCache[Caller](clock)
        self._decisions = _TtlCache[bool](clock)

    async def authenticate(self, certificate: Mapping[str, Any] | None, authorization: str) -> Caller:
        """Return the client. Raises Refused if it cannot be authenticated, NotReady if the review fails."""
        caller = caller_from_certificate(certificate)
        if caller is not None:
            return caller
        if not authorization.lower().startswith(BEARER):
            raise Refused("a client certificate or a bearer token is required")
        token = authorization[len(BEARER) :].strip()
        key = sha256(token.encode()).digest()
        caller = self._callers.get(key)
        if caller is None:
            caller = await self._review_token(token)
            self._callers.set(key, caller, TOKEN_TTL_SECONDS)
        return caller

    async def _review_token(self, token: str) -> Caller:
        try:
            review = await self._client.create_review(TokenReview(spec=TokenReviewSpec(token=token)))
        except ClientError as error:
            raise NotReady(f"the token cannot be reviewed: {error}") from None
        if not review.status.authenticated:
            raise Refused(review.status.error or "the token is not valid")
        user = review.status.user
        extra = tuple((key, tuple(values)) for key, values in (user.extra or {}).items())
        return Caller(user.username, user.groups, user.uid, extra)

    async def authorize(self, caller: Caller, attributes: RequestAttributes) -> bool:
        """Return whether a request is allowed. Raises NotReady if the review fails."""
        if caller.is_superuser:
            return True
        for subresource in attributes.subresources:
            if await self._is_allowed(caller, attributes.verb, subresource):
                return True
        return False

    async def _is_allowed(self, caller: Caller, verb: str, subresource: str) -> bool:
        key = (caller, verb, subresource)
        allowed = self._decisions.get(key)
        if allowed is None:
            allowed = await self._review_access(caller, verb, subresource)
            self._decisions.set(key, allowed, ALLOWED_TTL_SECONDS if allowed else DENIED_TTL_SECONDS)
        return allowed

    async def _review_access(self, caller: Caller, verb: str, subresource: str) -> bool:
        spec = SubjectAccessReviewSpec(
            user=caller.name,
            groups=caller.groups,
            uid=caller.uid,
            extra={key: list(values) for key, values in caller.extra} or None,
            resource_attributes=ResourceAttributes(
                verb=verb, version="v1", resource="nodes", subresource=subresource, name=self._node
            ),
        )
        try:
            review = await self._client.create_review(SubjectAccessReview(spec=spec))
        except ClientError as error:
            raise NotReady(f"access cannot be reviewed: {error}") from None
        return bool(review.status.allowed)


class _TtlCache(Generic[V]):
    """Values that expire. The oldest value is dropped when there are more than MAX_CACHED."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._entries: OrderedDict[Hashable, tuple[V, float]] = OrderedDict()

    def get(self, key: Hashable) -> V | None:
        """Return a value, None if there is none or if it has expired."""
        value, expires_at = self._entries.get(key, (None, 0.0))
        return value if self._clock() < expires_at else None

    def set(self, key: Hashable, value: V, ttl: float) -> None:
        """Store a value for `ttl` seconds."""
        self._entries[key] = (value, self._clock() + ttl)
        self._entries.move_to_end(key)
        if len(self._entries) > MAX_CACHED:
            self._entries.popitem(last=False)
