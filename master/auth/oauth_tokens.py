"""Authentication by OAuth access token (OpenShift: tokens that begin with `sha256~`).

The name of a token's object is the hash of the token. A token belongs to one User object: if that is deleted and
another one has its name, the token is invalid. The groups of the user are looked up with each request.
"""

from __future__ import annotations

import asyncio
import dataclasses
import datetime
import logging
import secrets
from collections.abc import Iterable

from msgspec.structs import replace

from api.core.oauth import TOKEN_PREFIX, token_name
from master.auth.attributes import AUTHENTICATED, User
from master.auth.scopes import SCOPES_EXTRA
from master.resources import users
from master.resources.metadata import Clock, parse_time
from master.resources.oauth import OAuthAccessToken, OAuthClient, is_expired
from master.resources.scheme import group_resource
from master.resources.users import Group
from master.storage.interface import Conflict, Key, Put, Storage, WatchEvent
from reconcile.errors import NotReady, Refused

log = logging.getLogger(__name__)

AUTHENTICATED_OAUTH = "system:authenticated:oauth"
"""The group of users with an OAuth token."""

TOKEN_BYTES, MAX_TOKEN_LENGTH = 32, 200
MASKED_ERROR = "token lookup failed"
"""The error of every invalid token, so that it does not tell whether the token or its user exists."""

FLUSH_SECONDS = 60.0
"""Seconds between writes of inactivity timeouts: a fifth of the shortest one, so a used token never times out."""


def new_token() -> str:
    """Return a new token or code: 256 random bits. It never begins with a hyphen, which programs take for an option."""
    while True:
        random = secrets.token_urlsafe(TOKEN_BYTES)
        if not random.startswith("-"):
            return f"{TOKEN_PREFIX}{random}"


def user_of_token(token: OAuthAccessToken | None, user: users.User | None, groups: Iterable[str]) -> User:
    """Return the user of a token. `user` is the User that the token names, `groups` are its groups. Raises Refused."""
    if token is None or user is None or user.metadata.deletion_timestamp or token.metadata.deletion_timestamp:
        raise Refused(MASKED_ERROR)
    if token.user_uid != user.metadata.uid:
        raise Refused(MASKED_ERROR)
    return User(
        user.metadata.name,
        _all_groups(groups),
        user.metadata.uid,
        ((SCOPES_EXTRA, token.scopes),),
    )


def _all_groups(groups: Iterable[str]) -> frozenset[str]:
    return frozenset((*groups, AUTHENTICATED_OAUTH, AUTHENTICATED))


class GroupIndex:
    """The groups of each user. Only committed groups are in it."""

    def __init__(self, storage: Storage) -> None:
        self._groups: dict[str, set[str]] = {}
        for record in storage.list(group_resource(Group)):
            self._put(record.object)
        storage.watch(group_resource(Group), self._follow)

    def of(self, user_name: str) -> Iterable[str]:
        """Return the names of the user's groups."""
        return self._groups.get(user_name, ())

    def _follow(self, event: WatchEvent) -> None:
        if event.previous is not None:
            self._drop(event.previous.object)
        if event.type != "DELETED":
            self._put(event.record.object)

    def _put(self, group: Group) -> None:
        for name in group.users:
            self._groups.setdefault(name, set()).add(group.metadata.name)

    def _drop(self, group: Group) -> None:
        for name in set(group.users):
            remaining = self._groups[name]
            remaining.discard(group.metadata.name)
            if not remaining:
                del self._groups[name]


class OAuthTokenAuthenticator:
    """The authenticator of OAuth access tokens. It extends the inactivity timeout of those that are used."""

    def __init__(self, storage: Storage, clock: Clock) -> None:
        self._store = storage
        self._clock = clock
        self.groups = GroupIndex(storage)
        self._last_uses: dict[str, datetime.datetime] = {}
        """Name of a token with an inactivity timeout → its last use that is not written yet."""
        self._flush_due = asyncio.Event()

    def authenticate(self, token: str) -> User:
        """Return the user of a token. Raises Refused."""
        if len(token) > MAX_TOKEN_LENGTH:
            raise Refused(MASKED_ERROR)
        access_token, user = self._find(token_name(token))
        if access_token.inactivity_timeout_seconds:
            self._record_use(access_token)
        return user

    def with_current_groups(self, user: User) -> User:
        """Return the user of a token with the groups of today."""
        return dataclasses.replace(user, groups=_all_groups(self.groups.of(user.name)))

    def is_valid(self, name: str) -> bool:
        """Return whether the token whose object has this name is valid."""
        try:
            self._find(name)
        except Refused:
            return False
        return True

    def _find(self, name: str) -> tuple[OAuthAccessToken, User]:
        """Return the token whose object has this name, and its user. Raises Refused."""
        record = self._store.get_uncommitted(_key(name))
        access_token: OAuthAccessToken | None = None if record is None else record.object
        if access_token is None or is_expired(access_token, self._clock()):
            raise Refused(MASKED_ERROR)
        owner = self._store.get_uncommitted(Key(group_resource(users.User), "", access_token.user_name))
        groups = self.groups.of(access_token.user_name)
        return access_token, user_of_token(access_token, None if owner is None else owner.object, groups)

    def _record_use(self, token: OAuthAccessToken) -> None:
        now, created = self._clock(), parse_time(token.metadata.creation_timestamp)
        self._last_uses[token.metadata.name] = now
        timeout = datetime.timedelta(seconds=token.inactivity_timeout_seconds)
        if created is not None and created + timeout - now < datetime.timedelta(seconds=FLUSH_SECONDS):
            self._flush_due.set()

    async def run(self) -> None:
        """Write the inactivity timeouts of used tokens, until cancelled."""
        while True:
            try:
                async with asyncio.timeout(FLUSH_SECONDS):
                    await self._flush_due.wait()
            except TimeoutError:
                pass
            self._flush_due.clear()
            last_uses, self._last_uses = self._last_uses, {}
            for name, last_use in last_uses.items():
                await self._extend(name, last_use)

    async def _extend(self, name: str, last_use: datetime.datetime) -> None:
        record = self._store.get_uncommitted(_key(name))
        if record is None:
            return
        client = self._store.get_uncommitted(Key(group_resource(OAuthClient), "", record.object.client_name))
        extended = with_extended_timeout(record.object, None if client is None else client.object, last_use)
        if extended == record.object:
            return
        try:
            await self._store.write(Put(_key(name), extended, expect=record.revision))
        except (Conflict, NotReady) as error:
            log.warning("inactivity timeout of a token not written", extra={"error": str(error)})


def with_extended_timeout(
    token: OAuthAccessToken, client: OAuthClient | None, last_use: datetime.datetime
) -> OAuthAccessToken:
    """Return the token with the inactivity timeout that follows from its last use.

    The timeout counts from the creation. A client whose timeout is 0 now removes that of its tokens.
    """
    timeout = None if client is None else client.access_token_inactivity_timeout_seconds
    created = parse_time(token.metadata.creation_timestamp)
    if timeout is None or created is None:
        return token
    if timeout == 0:
        return replace(token, inactivity_timeout_seconds=0)
    seconds = int((last_use - created).total_seconds()) + timeout
    return replace(token, inactivity_timeout_seconds=max(seconds, token.inactivity_timeout_seconds))


def _key(name: str) -> Key:
    return Key(group_resource(OAuthAccessToken), "", name)
