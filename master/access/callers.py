"""Who calls: by client certificate, by the token of a service account or one to join by; and the giving of tokens."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from api.core.auth import TokenRequest, TokenRequestStatus, TokenReviewStatus
from api.core.config import Secret
from api.meta.schema import without_nulls
from api.pki.pem import peer_subject
from master.access import accounts, bootstrap_tokens
from master.access.authorize import TO_NODES, User
from master.access.reviews import info
from master.access.service_tokens import Issuer
from master.kinds.kind import show_time
from master.kinds.service_account import ServiceAccount
from master.store.records import Key
from master.store.store import Store
from master.wire import answers
from master.wire.ask import Answer, Ask, Clock
from master.writing import writes
from reconcile.errors import Refused

BEARER = "bearer "


def user_of(certificate: Mapping[str, Any] | None) -> User:
    """The user that a verified client certificate names, in the form of `getpeercert`."""
    shown = peer_subject(certificate)
    return User(shown.user, frozenset((*shown.groups, "system:authenticated"))) if shown.user else User()


class Callers:
    """Raises `answers.Failure`."""

    def __init__(self, store: Store, issuer: Issuer, clock: Clock) -> None:
        self._store = store
        self._issuer = issuer
        self._clock = clock

    def user(self, certificate: Mapping[str, Any] | None, authorization: str) -> User:
        """Who sends a request. A certificate counts before a token; a token that is none is refused.

        So is the certificate that the master shows to nodes: who comes with it was sent here by one of them.
        """
        known = user_of(certificate)
        if known.name == TO_NODES:
            raise answers.failure(401, "Unauthorized", "Unauthorized")
        if known != User() or not authorization.lower().startswith(BEARER):
            return known
        try:
            user, _ = self._read(authorization[len(BEARER) :].strip(), ())
        except Refused as error:
            raise answers.failure(401, "Unauthorized", "Unauthorized") from error
        return user

    def whose(self, token: str, audiences: tuple[str, ...]) -> TokenReviewStatus:
        """What there is to say of a token."""
        try:
            user, good = self._read(token, audiences)
        except Refused as error:
            return TokenReviewStatus(error=str(error))
        return TokenReviewStatus(authenticated=True, user=info(user), audiences=good)

    def _read(self, token: str, audiences: tuple[str, ...]) -> tuple[User, tuple[str, ...]]:
        """Whose a token is, and for whom of the audiences. Raises Refused.

        It is worth nothing without the objects that it was given for.
        """
        if name := bootstrap_tokens.name(token):
            held = self._store.latest(Key(Secret.KIND, bootstrap_tokens.NAMESPACE, name))
            good = accounts.audiences({"aud": [accounts.ISSUER]}, audiences)
            return bootstrap_tokens.user(token, None if held is None else held.object, self._clock()), good
        claims = self._issuer.read(token, self._clock())
        for kind, namespace, name, uid in accounts.needed(claims):
            record = self._store.latest(Key(kind, namespace, name))
            if record is None or record.object.metadata.uid != uid:
                raise Refused(f"the {kind} {name!r} that the token was given for is gone")
        good = accounts.audiences(claims, audiences)
        if not good:
            raise Refused(f"the token is for {', '.join(map(str, claims['aud']))}")
        return accounts.user(claims), good

    async def give(self, ask: Ask) -> Answer:
        """POST serviceaccounts/NAME/token."""
        record = self._store.latest(ask.key)
        if record is None:
            raise answers.not_found(ask.where.kind, ask.where.name)
        account: ServiceAccount = record.object
        asked = self.asked(ask)
        reference = asked.spec.bound_object_ref
        bound = None
        if reference is not None:
            namespace = "" if reference.kind == "Node" else ask.where.namespace
            bound = self._store.latest(Key(reference.kind, namespace, reference.name))
        claims = accounts.claims(account, asked, None if bound is None else bound.object, self._clock())
        spec = msgspec.structs.replace(
            asked.spec, audiences=tuple(claims["aud"]), expiration_seconds=claims["exp"] - claims["iat"]
        )
        moment = self._clock().fromtimestamp(claims["exp"], self._clock().tzinfo)
        status = TokenRequestStatus(token=self._issuer.sign(claims), expiration_timestamp=show_time(moment))
        answer = TokenRequest(
            api_version=TokenRequest.API_VERSION,
            kind=TokenRequest.KIND,
            metadata=msgspec.structs.replace(
                account.metadata,
                labels={},
                annotations={},
                managed_fields=None,
                creation_timestamp=show_time(self._clock()),
            ),
            spec=spec,
            status=status,
        )
        return Answer(201, msgspec.json.encode(answer))

    @staticmethod
    def asked(ask: Ask) -> TokenRequest:
        """The TokenRequest in a body."""
        try:
            found = msgspec.convert(without_nulls(ask.document), TokenRequest)
        except msgspec.ValidationError as error:
            raise answers.bad_request(f"the body is not a TokenRequest: {error}") from error
        writes.check_namespace(found.metadata.namespace, ask.where.namespace)
        return found
