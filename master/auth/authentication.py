"""Authentication by client certificate, service account token or bootstrap token."""

from __future__ import annotations

import datetime
import hmac
import re
from collections.abc import Mapping
from typing import Any

from api.core.auth import TokenReviewStatus
from api.core.config import Secret
from api.pki.pem import peer_subject
from master import errors
from master.auth import service_account_tokens
from master.auth.attributes import AUTHENTICATED, KUBELET_CLIENT_USER, User
from master.auth.reviews import user_info
from master.auth.service_account_tokens import TokenSigner
from master.resources.metadata import Clock, parse_time
from master.resources.scheme import BY_KIND, group_resource
from master.storage.interface import Key, Storage
from reconcile.errors import Refused

BEARER = "bearer "


def user_from_certificate(certificate: Mapping[str, Any] | None) -> User:
    """The user that a verified client certificate names, in the form of `getpeercert`."""
    shown = peer_subject(certificate)
    return User(shown.user, frozenset((*shown.groups, "system:authenticated"))) if shown.user else User()


class Authenticator:
    """Raises `errors.StatusError`."""

    def __init__(self, storage: Storage, issuer: TokenSigner, clock: Clock) -> None:
        self._store = storage
        self._issuer = issuer
        self._clock = clock

    def user(self, certificate: Mapping[str, Any] | None, authorization: str) -> User:
        """Who sends a request. A certificate counts before a token; a token that is none is refused.

        So is the certificate that the master shows to nodes: who comes with it was sent here by one of them.
        """
        known = user_from_certificate(certificate)
        if known.name == KUBELET_CLIENT_USER:
            raise errors.status_error(401, "Unauthorized", "Unauthorized")
        if known != User() or not authorization.lower().startswith(BEARER):
            return known
        try:
            user, _ = self._read(authorization[len(BEARER) :].strip(), ())
        except Refused as error:
            raise errors.status_error(401, "Unauthorized", "Unauthorized") from error
        return user

    def whose(self, token: str, audiences: tuple[str, ...]) -> TokenReviewStatus:
        """What there is to say of a token."""
        try:
            user, good = self._read(token, audiences)
        except Refused as error:
            return TokenReviewStatus(error=str(error))
        return TokenReviewStatus(authenticated=True, user=user_info(user), audiences=good)

    def _read(self, token: str, audiences: tuple[str, ...]) -> tuple[User, tuple[str, ...]]:
        """Whose a token is, and for whom of the audiences. Raises Refused.

        It is worth nothing without the objects that it was given for.
        """
        if name := bootstrap_token_secret_name(token):
            held = self._store.get_uncommitted(Key(group_resource(Secret), BOOTSTRAP_TOKEN_NAMESPACE, name))
            good = service_account_tokens.accepted_audiences({"aud": [service_account_tokens.ISSUER]}, audiences)
            return user_from_bootstrap_token(token, None if held is None else held.object, self._clock()), good
        claims = self._issuer.read(token, self._clock())
        for kind, namespace, name, uid in service_account_tokens.bound_objects(claims):
            record = self._store.get_uncommitted(Key(BY_KIND[kind].group_resource, namespace, name))
            if record is None or record.object.metadata.uid != uid:
                raise Refused(f"the {kind} {name!r} that the token was given for is gone")
        good = service_account_tokens.accepted_audiences(claims, audiences)
        if not good:
            raise Refused(f"the token is for {', '.join(map(str, claims['aud']))}")
        return service_account_tokens.user_from_claims(claims), good


BOOTSTRAP_TOKEN_TYPE = "bootstrap.kubernetes.io/token"
BOOTSTRAP_TOKEN_NAMESPACE, BOOTSTRAP_TOKEN_PREFIX = "kube-system", "bootstrap-token-"
BOOTSTRAPPERS_GROUP = "system:bootstrappers"

_BOOTSTRAP_TOKEN = re.compile(r"([a-z0-9]{6})\.([a-z0-9]{16})")
_BOOTSTRAPPERS_SUBGROUP = re.compile(r"system:bootstrappers:[a-z0-9:-]{0,255}[a-z0-9]")


def bootstrap_token_secret_name(token: str) -> str:
    """The name of the Secret in which such a token stands; empty if it has not the form of one."""
    found = _BOOTSTRAP_TOKEN.fullmatch(token)
    return f"{BOOTSTRAP_TOKEN_PREFIX}{found[1]}" if found else ""


def user_from_bootstrap_token(token: str, secret: Secret | None, now: datetime.datetime) -> User:
    """Who presents it. Raises Refused."""
    found = _BOOTSTRAP_TOKEN.fullmatch(token)
    if found is None or secret is None or secret.type != BOOTSTRAP_TOKEN_TYPE or secret.metadata.deletion_timestamp:
        raise Refused("there is no such bootstrap token")
    told = {key: value.decode(errors="replace") for key, value in secret.data.items()}
    right = hmac.compare_digest(told.get("token-secret", "").encode(), found[2].encode())
    if not right or told.get("token-id") != found[1] or secret.metadata.name != f"{BOOTSTRAP_TOKEN_PREFIX}{found[1]}":
        raise Refused("there is no such bootstrap token")
    if is_bootstrap_token_expired(secret, now):
        raise Refused("the bootstrap token has expired")
    if told.get("usage-bootstrap-authentication") != "true":
        raise Refused("the bootstrap token is not for authentication")
    more = [group.strip() for group in told.get("auth-extra-groups", "").split(",") if group.strip()]
    for group in more:
        if not _BOOTSTRAPPERS_SUBGROUP.fullmatch(group):
            raise Refused(f"the bootstrap token names the group {group!r}; {BOOTSTRAPPERS_GROUP}:... is accepted")
    return User(f"system:bootstrap:{found[1]}", frozenset((BOOTSTRAPPERS_GROUP, *more, AUTHENTICATED)))


def is_bootstrap_token_expired(secret: Secret, now: datetime.datetime) -> bool:
    """Whether its time has come; a time that is none counts as one that has."""
    text = secret.data.get("expiration", b"").decode(errors="replace")
    ends = parse_time(text)
    return bool(text) and (ends is None or ends <= now)
