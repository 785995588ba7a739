"""Issue and redemption of codes and tokens (RFC 6749, 4.1.2 to 4.1.4).

Raises `OAuthError`.
"""

from __future__ import annotations

import datetime
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any

from api.core.oauth import token_name
from api.meta.types import ObjectMeta
from master.auth.oauth_tokens import new_token
from master.oauth.authorize import AuthorizeRequest, Client, is_verifier, missing_scopes
from master.oauth.errors import OAuthError
from master.oauth.redirect_uris import match_redirect_uri
from master.registry.creation import ObjectCreation
from master.registry.users import user_key
from master.resources.group_resource import GroupResource
from master.resources.metadata import Clock
from master.resources.oauth import (
    GRANT_AUTO,
    MAX_SCOPES,
    OAUTH_ACCESS_TOKENS,
    OAUTH_AUTHORIZE_TOKENS,
    OAUTH_CLIENT_AUTHORIZATIONS,
    OAuthAccessToken,
    OAuthAuthorizeToken,
    OAuthClientAuthorization,
    authorization_name,
    expiration,
    is_code_challenge,
    is_expired,
)
from master.resources.resource import AnyResource
from master.resources.scheme import group_resource
from master.resources.users import User
from master.storage.interface import Conflict, Delete, Key, Put, Storage, Transaction, WatchEvent

CLIENT_UID_ANNOTATION = "podlane.io/oauth-client-uid"
"""Annotation of codes and grants: the uid of their client."""

CODE_SECONDS, ACCESS_TOKEN_SECONDS = 300, 86400
"""Lifetimes of a code, and of an access token unless its client has another one."""

MAX_CODES, MAX_ACCESS_TOKENS, MAX_AUTHORIZATIONS = 50, 1000, 200
"""Codes, access tokens and grants of one user. A new one replaces the oldest, so a user can always log in."""


@dataclass(frozen=True, slots=True)
class IssuedToken:
    """An access token in clear, for the client that it was issued to. `expires_in` is in seconds; 0 means never."""

    access_token: str
    expires_in: int
    scopes: tuple[str, ...]

    def parameters(self) -> dict[str, Any]:
        """Return the parameters of a response (RFC 6749, 5.1)."""
        parameters: dict[str, Any] = {"access_token": self.access_token, "token_type": "Bearer"}
        if self.expires_in:
            parameters["expires_in"] = self.expires_in
        return {**parameters, "scope": " ".join(self.scopes)}


class ObjectsOfUsers:
    """The names of the objects of each user, oldest first, of a kind with `userUID`. Only committed ones are in it."""

    def __init__(self, storage: Storage, resource: GroupResource, limit: int) -> None:
        self._store = storage
        self._resource = resource
        self._limit = limit
        self._names: dict[str, dict[str, None]] = {}
        objects = [record.object for record in storage.list(resource)]
        for obj in sorted(objects, key=lambda each: each.metadata.creation_timestamp or ""):
            self._put(obj)
        storage.watch(resource, self._follow)

    def excess(self, user_uid: str) -> Iterator[Delete]:
        """Yield the deletion of the user's oldest objects. With one more object, the user has as many as accepted."""
        names = self._names.get(user_uid, {})
        for name in tuple(islice(names, max(0, len(names) + 1 - self._limit))):
            key = Key(self._resource, "", name)
            record = self._store.get_uncommitted(key)
            if record is not None:
                yield Delete(key, record.object, expect=record.revision)

    def _follow(self, event: WatchEvent) -> None:
        obj = event.record.object
        if event.type != "DELETED":
            self._put(obj)
            return
        names = self._names.get(obj.user_uid, {})
        names.pop(obj.metadata.name, None)
        if not names:
            self._names.pop(obj.user_uid, None)

    def _put(self, obj: OAuthAccessToken | OAuthAuthorizeToken | OAuthClientAuthorization) -> None:
        self._names.setdefault(obj.user_uid, {})[obj.metadata.name] = None


class TokenIssuer:
    """Issues codes and access tokens, and remembers what users grant to clients."""

    def __init__(
        self, storage: Storage, creation: ObjectCreation, clock: Clock, service_account_of: Callable[[str], str]
    ) -> None:
        """Take the parts. `service_account_of(token)` returns the user of a service account token, empty if invalid."""
        self._store = storage
        self._creation = creation
        self._clock = clock
        self._service_account_of = service_account_of
        self._codes = ObjectsOfUsers(storage, group_resource(OAuthAuthorizeToken), MAX_CODES)
        self._access_tokens = ObjectsOfUsers(storage, group_resource(OAuthAccessToken), MAX_ACCESS_TOKENS)
        self._authorizations = ObjectsOfUsers(storage, group_resource(OAuthClientAuthorization), MAX_AUTHORIZATIONS)

    # --- grants ----------------------------------------------------------------------------------------------------

    def granted_scopes(self, user: User, client: Client) -> tuple[str, ...]:
        """Return the scopes that the user has granted to the client. A grant of an earlier user of the name is none."""
        record = self._store.get_uncommitted(_authorization_key(user, client))
        if record is None or record.object.user_uid != user.metadata.uid or not _is_of(client, record.object):
            return ()
        granted: OAuthClientAuthorization = record.object
        return granted.scopes

    async def grant(self, user: User, client: Client, scopes: tuple[str, ...]) -> None:
        """Add scopes to what the user has granted to the client. Raises Conflict.

        If there are too many, the earlier ones are dropped: the client asks for them again.
        """
        key = _authorization_key(user, client)
        granted = {*self.granted_scopes(user, client), *scopes}
        authorization = OAuthClientAuthorization(
            metadata=ObjectMeta(name=key.name, annotations=_client_annotation(client)),
            client_name=client.name,
            user_name=user.metadata.name,
            user_uid=user.metadata.uid,
            scopes=tuple(sorted(granted if len(granted) <= MAX_SCOPES else scopes)),
        )
        record = self._store.get_uncommitted(key)
        created = self._created(OAUTH_CLIENT_AUTHORIZATIONS, authorization)
        put = Put(key, created, expect=0 if record is None else record.revision)
        await self._store.write(put, *(self._authorizations.excess(user.metadata.uid) if record is None else ()))

    def is_granted(self, user: User, request: AuthorizeRequest) -> bool:
        """Return whether the client may have the scopes without a question to the user."""
        if request.client.grant_method == GRANT_AUTO:
            return True
        return not missing_scopes(self.granted_scopes(user, request.client), request.scopes)

    # --- issue -----------------------------------------------------------------------------------------------------

    async def issue_code(self, user: User, request: AuthorizeRequest) -> str:
        """Return a code for the client of a request."""
        code = new_token()
        token = OAuthAuthorizeToken(
            metadata=ObjectMeta(name=token_name(code), annotations=_client_annotation(request.client)),
            client_name=request.client.name,
            expires_in=CODE_SECONDS,
            scopes=request.scopes,
            redirect_uri=request.redirect_uri,
            state=request.state,
            user_name=user.metadata.name,
            user_uid=user.metadata.uid,
            code_challenge=request.code_challenge,
            code_challenge_method=request.code_challenge_method,
        )
        await self._store.write(self._create(OAUTH_AUTHORIZE_TOKENS, token), *self._codes.excess(user.metadata.uid))
        return code

    async def issue_token(self, user: User, request: AuthorizeRequest) -> IssuedToken:
        """Return an access token, for the implicit flow."""
        put, issued = self._access_token(
            request.client, request.scopes, request.redirect_uri, user.metadata.name, user.metadata.uid
        )
        await self._store.write(put, *self._access_tokens.excess(user.metadata.uid))
        return issued

    async def redeem(
        self, client: Client | None, secret: str, code: str, redirect_uri: str, verifier: str
    ) -> IssuedToken:
        """Exchange a code for an access token, once.

        A failed attempt with the code of this client ends the code, so a verifier cannot be guessed.
        """
        if client is None or not self._is_authenticated(client, secret):
            raise OAuthError("unauthorized_client")
        key = Key(group_resource(OAuthAuthorizeToken), "", token_name(code))
        record = self._store.get_uncommitted(key)
        if record is None:
            raise OAuthError("unauthorized_client")
        token: OAuthAuthorizeToken = record.object
        if token.client_name != client.name or not _is_of(client, token):
            raise OAuthError("invalid_grant")
        delete = Delete(key, token, expect=record.revision)
        # The parameter may be omitted if the client has only one URI (RFC 6749, 4.1.3).
        error = self._redeem_error(token, match_redirect_uri(client.redirect_uris, redirect_uri), verifier)
        if error:
            await self._write_once(delete)
            raise OAuthError(error)
        put, issued = self._access_token(
            client, token.scopes, token.redirect_uri, token.user_name, token.user_uid, key.name
        )
        await self._write_once(delete, put, *self._access_tokens.excess(token.user_uid))
        return issued

    def _redeem_error(self, token: OAuthAuthorizeToken, redirect_uri: str, verifier: str) -> str:
        """Return the error code for a redemption; empty if it is correct."""
        user = self._store.get_uncommitted(user_key(token.user_name))
        if is_expired(token, self._clock()) or user is None or user.object.metadata.uid != token.user_uid:
            return "invalid_grant"
        if redirect_uri != token.redirect_uri:
            return "invalid_grant"
        if token.code_challenge:
            if not is_code_challenge(verifier):
                return "invalid_request"
            if not is_verifier(token.code_challenge, token.code_challenge_method, verifier):
                return "invalid_grant"
        elif verifier:
            # Somebody has removed the challenge from the request (RFC 9700, 2.1.1).
            return "invalid_grant"
        return ""

    async def _write_once(self, *changes: Put | Delete) -> None:
        """Write the end of a code. Of requests that redeem it at the same time, one succeeds. Raises OAuthError."""
        try:
            await self._store.write(*changes)
        except Conflict as error:
            raise OAuthError("unauthorized_client") from error

    def _is_authenticated(self, client: Client, secret: str) -> bool:
        """Return whether the secret is one of the client's, or a token of the service account that the client is."""
        if client.is_service_account:
            return bool(secret) and self._service_account_of(secret) == client.name
        return client.has_secret(secret)

    def _access_token(
        self,
        client: Client,
        scopes: tuple[str, ...],
        redirect_uri: str,
        user_name: str,
        user_uid: str,
        code_name: str = "",
    ) -> tuple[Put, IssuedToken]:
        access_token = new_token()
        expires_in = ACCESS_TOKEN_SECONDS if client.max_age_seconds is None else client.max_age_seconds
        token = OAuthAccessToken(
            metadata=ObjectMeta(name=token_name(access_token)),
            client_name=client.name,
            expires_in=expires_in,
            scopes=scopes,
            redirect_uri=redirect_uri,
            user_name=user_name,
            user_uid=user_uid,
            authorize_token=code_name,
            inactivity_timeout_seconds=client.inactivity_seconds or 0,
        )
        return self._create(OAUTH_ACCESS_TOKENS, token), IssuedToken(access_token, expires_in, scopes)

    def _create(self, resource: AnyResource, obj: Any) -> Put:
        return Put(Key.of(resource.group_resource, obj), self._created(resource, obj), expect=0)

    def _created(self, resource: AnyResource, obj: Any) -> Any:
        return self._creation.create(resource, obj, Transaction(self._store))

    # --- information -----------------------------------------------------------------------------------------------

    def describe(self, access_token: str) -> dict[str, Any]:
        """Return what a token is: client, scopes, and the seconds that are left. Raises OAuthError."""
        record = self._store.get(Key(group_resource(OAuthAccessToken), "", token_name(access_token)))
        if record is None or is_expired(record.object, self._clock()):
            raise OAuthError("invalid_request")
        token: OAuthAccessToken = record.object
        end = expiration(token)
        described: dict[str, Any] = {
            "access_token": access_token,
            "client_id": token.client_name,
            "scope": " ".join(token.scopes),
            "token_type": "Bearer",
        }
        if end is not None:
            described["expires_in"] = int((end - self._clock()) / datetime.timedelta(seconds=1))
        return described


def _client_annotation(client: Client) -> dict[str, str]:
    return {CLIENT_UID_ANNOTATION: client.uid} if client.uid else {}


def _is_of(client: Client, obj: OAuthAuthorizeToken | OAuthClientAuthorization) -> bool:
    """Return whether a code or a grant is for this client, and not for an earlier one of its name."""
    return obj.metadata.annotations.get(CLIENT_UID_ANNOTATION, "") == client.uid


def _authorization_key(user: User, client: Client) -> Key:
    name = authorization_name(user.metadata.name, client.name)
    return Key(group_resource(OAuthClientAuthorization), "", name)
