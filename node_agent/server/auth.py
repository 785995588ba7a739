"""Authentication and authorisation of requests by the API server."""

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

BY_PATH = (
    ("/stats", ("stats",)),
    ("/metrics", ("metrics",)),
    ("/logs", ("log",)),
    ("/checkpoint", ("checkpoint",)),
    ("/pods", ("pods", "proxy")),
    ("/runningpods", ("pods", "proxy")),
    ("/healthz", ("healthz", "proxy")),
    ("/configz", ("configz", "proxy")),
)
"""Path → subresources of `nodes` that open it, one of which is enough; `proxy` opens every other path."""


@dataclass(frozen=True, slots=True)
class Caller:
    """Who asks, by a client certificate or by a token."""

    name: str
    groups: tuple[str, ...] = ()
    uid: str = ""
    extra: tuple[tuple[str, tuple[str, ...]], ...] = ()

    @property
    def may_everything(self) -> bool:
        """Whether nobody has to be asked; so does the API server come, also while it cannot be asked."""
        return "system:masters" in self.groups


@dataclass(frozen=True, slots=True)
class RequestAttributes:
    """What a request needs: a verb on one of these subresources of the node."""

    verb: str
    subresources: tuple[str, ...]

    def asked_by(self, caller: Caller) -> str:
        """Who wants what."""
        names = " ".join(self.subresources)
        return f"user={caller.name}, verb={self.verb}, resource=nodes, subresource(s)=[{names}]"


def request_attributes(method: str, path: str) -> RequestAttributes:
    """What a request needs."""
    found = (names for prefix, names in BY_PATH if path == prefix or path.startswith(f"{prefix}/"))
    return RequestAttributes(VERBS.get(method, "get"), next(found, ("proxy",)))


def caller_from_certificate(certificate: Mapping[str, Any] | None) -> Caller | None:
    """Whom a verified certificate names, in the form of `ssl.SSLSocket.getpeercert`; None without a name."""
    shown = peer_subject(certificate)
    return Caller(shown.user, (*shown.groups, "system:authenticated")) if shown.user else None


TOKEN_SECONDS = 120.0
ALLOWED_SECONDS, REFUSED_SECONDS = 300.0, 30.0
MOST_KEPT = 1000
BEARER = "bearer "

V = TypeVar("V")


class RequestAuth:
    """`node` is the name of this node, of which the rights are."""

    def __init__(self, client: Client, node: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._client = client
        self._node = node
        self._tokens = _TtlCache[Caller](clock)
        self._answers = _TtlCache[bool](clock)

    async def who(self, certificate: Mapping[str, Any] | None, authorization: str) -> Caller:
        """Whoever sends a request. Raises Refused when that is nobody, NotReady when it cannot be known."""
        named = caller_from_certificate(certificate)
        if named is not None:
            return named
        if not authorization.lower().startswith(BEARER):
            raise Refused("a client certificate or a bearer token is needed")
        token = authorization[len(BEARER) :].strip()
        key = sha256(token.encode()).digest()
        kept = self._tokens.get(key)
        if kept is None:
            kept = await self._whose(token)
            self._tokens.keep(key, kept, TOKEN_SECONDS)
        return kept

    async def _whose(self, token: str) -> Caller:
        try:
            review = await self._client.create_review(TokenReview(spec=TokenReviewSpec(token=token)))
        except ClientError as error:
            raise NotReady(f"the token cannot be reviewed: {error}") from None
        if not review.status.authenticated:
            raise Refused(review.status.error or "the token is good for nobody")
        user = review.status.user
        extra = tuple((key, tuple(values)) for key, values in (user.extra or {}).items())
        return Caller(user.username, user.groups, user.uid, extra)

    async def may(self, caller: Caller, wish: RequestAttributes) -> bool:
        """Whether they may do that. Raises NotReady when it cannot be known."""
        if caller.may_everything:
            return True
        for subresource in wish.subresources:
            if await self._allowed(caller, wish.verb, subresource):
                return True
        return False

    async def _allowed(self, caller: Caller, verb: str, subresource: str) -> bool:
        key = (caller, verb, subresource)
        kept = self._answers.get(key)
        if kept is None:
            kept = await self._asked(caller, verb, subresource)
            self._answers.keep(key, kept, ALLOWED_SECONDS if kept else REFUSED_SECONDS)
        return kept

    async def _asked(self, caller: Caller, verb: str, subresource: str) -> bool:
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
            raise NotReady(f"rights cannot be reviewed: {error}") from None
        return bool(review.status.allowed)


class _TtlCache(Generic[V]):
    """Answers that are good for a time; the oldest go when there are too many."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._rows: OrderedDict[Hashable, tuple[V, float]] = OrderedDict()

    def get(self, key: Hashable) -> V | None:
        """The answer while it is good."""
        value, until = self._rows.get(key, (None, 0.0))
        return value if self._clock() < until else None

    def keep(self, key: Hashable, value: V, seconds: float) -> None:
        """Take it for good for so long."""
        self._rows[key] = (value, self._clock() + seconds)
        self._rows.move_to_end(key)
        if len(self._rows) > MOST_KEPT:
            self._rows.popitem(last=False)
