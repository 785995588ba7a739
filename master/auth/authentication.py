"""Authentication by client certificate, service account token, OAuth access token or bootstrap token."""

from __future__ import annotations

import base64
import datetime
import functools
import hmac
import math
import re
import ssl
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from multidict import MultiMapping

from api.core import removed_nodes
from api.core.auth import TokenReviewStatus
from api.core.config import ConfigMap, Secret
from api.core.oauth import TOKEN_PREFIX, token_name
from api.pki.pem import peer_subject
from master import errors
from master.auth import service_account_tokens
from master.auth.attributes import AUTHENTICATED, KUBELET_CLIENT_USER, SERVICE_ACCOUNT_USER_PREFIX, User
from master.auth.certificate_lifetimes import CLOCK_SKEW, MIN_BACKDATED_LIFETIME
from master.auth.oauth_tokens import OAuthTokenAuthenticator
from master.auth.reviews import user_info
from master.auth.service_account_tokens import TokenSigner
from master.resources.metadata import Clock, parse_time
from master.resources.scheme import BY_KIND, group_resource
from master.storage.interface import Key, Storage
from reconcile.errors import Refused
from reconcile.exposition import MetricFamily, counter, format_labels

BEARER = "bearer "

REMOVED_NODES = Key(group_resource(ConfigMap), removed_nodes.NAMESPACE, removed_nodes.CONFIG_MAP)

WEBSOCKET_PROTOCOL_HEADER, BEARER_PROTOCOL = "sec-websocket-protocol", "base64url.bearer.authorization.k8s.io."
"""Browsers cannot set other headers, so they send a token as a WebSocket subprotocol with this prefix."""


@dataclass(frozen=True, slots=True)
class Authentication:
    """A user, and what the credential of a request depends on. A user without a credential depends on nothing.

    The credential is valid before `end`, in seconds since 1970, while each of `objects` exists with its uid, and while
    the OAuth access token of the name `access_token` is valid. `audiences` are those of a token. `issued` is when the
    certificate of a node was issued, in seconds since 1970.
    """

    user: User
    audiences: tuple[str, ...] = ()
    end: float = math.inf
    objects: tuple[tuple[Key, str], ...] = ()
    access_token: str = ""
    issued: float = math.inf

    @property
    def can_end(self) -> bool:
        """Return whether the credential can become invalid."""
        return self.end != math.inf or bool(self.objects) or bool(self.access_token)


def user_from_certificate(certificate: Mapping[str, Any] | None) -> User:
    """Return the user that a verified client certificate names. The certificate has the form of `getpeercert`."""
    subject = peer_subject(certificate)
    return User(subject.user, frozenset((*subject.groups, "system:authenticated"))) if subject.user else User()


def user_class(user: User) -> str:
    """Return the class of a user for metrics, which must not have a series for each user.

    Source: kube-apiserver (`compressUsername`).
    """
    if user.name in ("admin", "client", "kube_proxy", "kubelet"):
        return user.name
    return "email_id" if "@" in user.name else "other"


def authorization_header(headers: MultiMapping[str]) -> str:
    """Return the Authorization header of a request. That of a WebSocket handshake may be a subprotocol.

    Source: the WebSocket authenticator of Kubernetes. The token is base64url without padding, and the client requests
    another subprotocol, too, because the server accepts none with a token. Raises Unauthorized.
    """
    authorization = headers.get("Authorization", "")
    if authorization or headers.get("Upgrade", "").lower() != "websocket":
        return authorization
    lines = headers.getall(WEBSOCKET_PROTOCOL_HEADER, [])
    protocols = [protocol.strip() for line in lines for protocol in line.split(",")]
    tokens = [protocol for protocol in protocols if protocol.startswith(BEARER_PROTOCOL)]
    if not tokens:
        return ""
    encoded = tokens[0].removeprefix(BEARER_PROTOCOL)
    try:
        token = base64.b64decode(encoded + "=" * (-len(encoded) % 4), altchars=b"-_", validate=True).decode()
    except ValueError as error:
        raise errors.status_error(401, "Unauthorized", "Unauthorized") from error
    if len(tokens) > 1 or len(protocols) == 1 or not token:
        raise errors.status_error(401, "Unauthorized", "Unauthorized")
    return f"{BEARER}{token}"


class Authenticator:
    """The authenticator of requests: client certificate, or a token of a service account, OAuth or a bootstrap."""

    def __init__(
        self, storage: Storage, tokens: TokenSigner, oauth_tokens: OAuthTokenAuthenticator, clock: Clock
    ) -> None:
        self._store = storage
        self._tokens = tokens
        self._oauth_tokens = oauth_tokens
        self._clock = clock
        self._results: Counter[str] = Counter()
        self._user_classes: Counter[str] = Counter()

    def metrics(self) -> Iterator[MetricFamily]:
        """Yield the counters of requests by result and by class of users, under the names of kube-apiserver."""
        yield counter(
            "authentication_attempts",
            "Requests by the result of authentication: success (also without a credential) or failure.",
            {format_labels(result=result): number for result, number in self._results.items()},
        )
        yield counter(
            "authenticated_user_requests",
            "Authenticated requests by class of users.",
            {format_labels(username=name): number for name, number in self._user_classes.items()},
        )

    def authenticate(self, certificate: Mapping[str, Any] | None, authorization: str) -> Authentication:
        """Return the user of a request, and count it. Raises Unauthorized."""
        try:
            authentication = self._authenticate(certificate, authorization)
        except errors.StatusError:
            self._results["failure"] += 1
            raise
        self._results["success"] += 1
        self._user_classes[user_class(authentication.user)] += 1
        return authentication

    def _authenticate(self, certificate: Mapping[str, Any] | None, authorization: str) -> Authentication:
        """Return the user of a request. A certificate takes precedence over a token. Raises Unauthorized.

        The certificate that the master shows to kubelets is rejected: a client that uses it has it through a node. So
        is one that has expired since the connection began, and one of a node that was removed after it was issued.
        """
        user = user_from_certificate(certificate)
        if user.name == KUBELET_CLIENT_USER:
            raise errors.status_error(401, "Unauthorized", "Unauthorized")
        if user != User():
            authentication = Authentication(
                user, end=_certificate_end(certificate), issued=_certificate_issued(certificate)
            )
            if not self.is_valid(authentication):
                raise errors.status_error(401, "Unauthorized", "Unauthorized")
            return authentication
        if not authorization.lower().startswith(BEARER):
            return Authentication(user)
        try:
            return self._authenticate_token(authorization[len(BEARER) :].strip(), ())
        except Refused as error:
            raise errors.status_error(401, "Unauthorized", "Unauthorized") from error

    def is_valid(self, authentication: Authentication) -> bool:
        """Return whether the credential of an earlier request is still valid. This is no use of an access token."""
        if authentication.end <= self._clock().timestamp():
            return False
        if authentication.user.node and authentication.issued <= self._removal_time(authentication.user.node):
            return False
        if authentication.access_token and not self._oauth_tokens.is_valid(authentication.access_token):
            return False
        return all(self._exists(key, uid) for key, uid in authentication.objects)

    def _removal_time(self, node: str) -> float:
        """Return when a node was removed, in seconds since 1970; -inf if it was not. An invalid time is the future."""
        record = self._store.get_uncommitted(REMOVED_NODES)
        text = None if record is None else record.object.data.get(node)
        if text is None:
            return -math.inf
        time = parse_time(text)
        return math.inf if time is None else time.timestamp()

    def current_user(self, authentication: Authentication) -> User:
        """Return the user of an earlier request with the groups of today."""
        user = authentication.user
        return self._oauth_tokens.with_current_groups(user) if authentication.access_token else user

    def _exists(self, key: Key, uid: str) -> bool:
        record = self._store.get_uncommitted(key)
        return record is not None and record.object.metadata.uid == uid

    def service_account_of(self, token: str) -> str:
        """Return the user name of a service account token; empty if it is invalid, or the token of another user."""
        try:
            name = self._authenticate_token(token, ()).user.name
        except Refused:
            return ""
        return name if name.startswith(SERVICE_ACCOUNT_USER_PREFIX) else ""

    def review_token(self, token: str, audiences: tuple[str, ...]) -> TokenReviewStatus:
        """Return the status of a TokenReview of the token."""
        try:
            authentication = self._authenticate_token(token, audiences)
        except Refused as error:
            return TokenReviewStatus(error=str(error))
        return TokenReviewStatus(
            authenticated=True, user=user_info(authentication.user), audiences=authentication.audiences
        )

    def _authenticate_token(self, token: str, audiences: tuple[str, ...]) -> Authentication:
        """Return the user of a token, with those of the audiences that it is for. Raises Refused.

        A token is invalid when an object that it is bound to no longer exists.
        """
        if name := bootstrap_token_secret_name(token):
            key = Key(group_resource(Secret), BOOTSTRAP_TOKEN_NAMESPACE, name)
            record = self._store.get_uncommitted(key)
            secret: Secret | None = None if record is None else record.object
            user = user_from_bootstrap_token(token, secret, self._clock())
            assert secret is not None
            objects = ((key, secret.metadata.uid),)
            return Authentication(user, _own_audience(audiences), _bootstrap_token_end(secret), objects)
        if token.startswith(TOKEN_PREFIX):
            accepted = _own_audience(audiences)
            return Authentication(self._oauth_tokens.authenticate(token), accepted, access_token=token_name(token))
        claims = self._tokens.verify(token, self._clock())
        bound: list[tuple[Key, str]] = []
        for kind, namespace, name, uid in service_account_tokens.bound_objects(claims):
            bound.append((Key(BY_KIND[kind].group_resource, namespace, name), uid))
            if not self._exists(*bound[-1]):
                raise Refused(f"the {kind} {name!r} that the token is bound to does not exist")
        accepted = service_account_tokens.accepted_audiences(claims, audiences)
        if not accepted:
            raise Refused(f"the token is for {', '.join(map(str, claims['aud']))}")
        user = service_account_tokens.user_from_claims(claims)
        return Authentication(user, accepted, claims.get("exp", math.inf), tuple(bound))


def _certificate_end(certificate: Mapping[str, Any] | None) -> float:
    """Return when a certificate in the form of `getpeercert` expires."""
    text = "" if certificate is None else certificate.get("notAfter", "")
    return _seconds(text) if text else math.inf


def _certificate_issued(certificate: Mapping[str, Any] | None) -> float:
    """Return when a certificate in the form of `getpeercert` was issued. `pki.sign_request` backdates long ones."""
    text = "" if certificate is None else certificate.get("notBefore", "")
    if not text:
        return math.inf
    begin = _seconds(text)
    skew = CLOCK_SKEW.total_seconds()
    is_backdated = _certificate_end(certificate) - begin >= MIN_BACKDATED_LIFETIME.total_seconds() + skew
    return begin + skew if is_backdated else begin


@functools.lru_cache(4096)
def _seconds(text: str) -> float:
    """Return a time of a certificate in seconds since 1970. A certificate authenticates many requests."""
    return ssl.cert_time_to_seconds(text)


def _own_audience(requested: tuple[str, ...]) -> tuple[str, ...]:
    """Return the audiences of a token that is for this server only. Raises Refused if others are requested."""
    accepted = service_account_tokens.accepted_audiences({"aud": [service_account_tokens.ISSUER]}, requested)
    if not accepted:
        raise Refused(f"the token is for {service_account_tokens.ISSUER}")
    return accepted


BOOTSTRAP_TOKEN_TYPE = "bootstrap.kubernetes.io/token"
BOOTSTRAP_TOKEN_NAMESPACE, BOOTSTRAP_TOKEN_PREFIX = "kube-system", "bootstrap-token-"
BOOTSTRAPPERS_GROUP = "system:bootstrappers"

_BOOTSTRAP_TOKEN = re.compile(r"([a-z0-9]{6})\.([a-z0-9]{16})")
_BOOTSTRAPPERS_SUBGROUP = re.compile(r"system:bootstrappers:[a-z0-9:-]{0,255}[a-z0-9]")


def bootstrap_token_secret_name(token: str) -> str:
    """Return the name of the Secret of a bootstrap token; empty if the token does not have the form of one."""
    match = _BOOTSTRAP_TOKEN.fullmatch(token)
    return f"{BOOTSTRAP_TOKEN_PREFIX}{match[1]}" if match else ""


def user_from_bootstrap_token(token: str, secret: Secret | None, now: datetime.datetime) -> User:
    """Return the user of a bootstrap token. Raises Refused."""
    match = _BOOTSTRAP_TOKEN.fullmatch(token)
    if match is None or secret is None or secret.type != BOOTSTRAP_TOKEN_TYPE or secret.metadata.deletion_timestamp:
        raise Refused("the bootstrap token does not exist")
    data = {key: value.decode(errors="replace") for key, value in secret.data.items()}
    is_correct = hmac.compare_digest(data.get("token-secret", "").encode(), match[2].encode())
    if (
        not is_correct
        or data.get("token-id") != match[1]
        or secret.metadata.name != f"{BOOTSTRAP_TOKEN_PREFIX}{match[1]}"
    ):
        raise Refused("the bootstrap token does not exist")
    if is_bootstrap_token_expired(secret, now):
        raise Refused("the bootstrap token has expired")
    if data.get("usage-bootstrap-authentication") != "true":
        raise Refused("the bootstrap token is not for authentication")
    groups = [group.strip() for group in data.get("auth-extra-groups", "").split(",") if group.strip()]
    for group in groups:
        if not _BOOTSTRAPPERS_SUBGROUP.fullmatch(group):
            raise Refused(f"the bootstrap token names the group {group!r}; {BOOTSTRAPPERS_GROUP}:... is accepted")
    return User(f"system:bootstrap:{match[1]}", frozenset((BOOTSTRAPPERS_GROUP, *groups, AUTHENTICATED)))


def is_bootstrap_token_expired(secret: Secret, now: datetime.datetime) -> bool:
    """Return whether the bootstrap token has expired. An invalid time counts as expired."""
    return _bootstrap_token_end(secret) <= now.timestamp()


def _bootstrap_token_end(secret: Secret) -> float:
    text = secret.data.get("expiration", b"").decode(errors="replace")
    expiration = parse_time(text)
    if expiration is None:
        return -math.inf if text else math.inf
    return expiration.timestamp()
