"""Logins: checks of passwords at the identity providers, and the User that an account belongs to."""

from __future__ import annotations

import asyncio
import time
from typing import Any

from master.auth.identity_providers.provider import (
    IdentityProvider,
    PasswordProvider,
    ProviderError,
    ProviderIdentity,
    escape_provider_user_name,
)
from master.auth.oauth_tokens import GroupIndex
from master.errors import StatusError
from master.oauth.identity_mapper import CLAIM_ERROR, MappingError, map_login, sync_groups
from master.oauth.messages import Annotate
from master.oauth.throttle import MAX_DELAYED_LOGINS, PasswordThrottle, PendingLogins
from master.registry.creation import ObjectCreation
from master.registry.users import identity_key, user_key
from master.resources.users import User, identity_name
from master.storage.interface import Conflict, Storage, Transaction

MAX_RECORDED_NAME = 256
"""Characters of a user name in the audit log and in the throttle."""

MAPPING_ATTEMPTS = 3

USERNAME_ANNOTATION, DECISION_ANNOTATION = (
    "authentication.openshift.io/username",
    "authentication.openshift.io/decision",
)
"""Audit annotations of a request with a password or an identity of a provider."""

UNKNOWN_NAME = "(unknown)"
"""The recorded name of a failed login with a name that nobody has logged in with."""


class Busy(Exception):
    """Too many password checks are running."""


class Logins:
    """The logins of people. Checks of passwords are delayed after failures, and limited in number.

    `groups` has the groups of each user.
    """

    def __init__(self, storage: Storage, creation: ObjectCreation, groups: GroupIndex) -> None:
        self._store = storage
        self._creation = creation
        self._groups = groups
        self._throttle = PasswordThrottle()
        self._pending_logins = PendingLogins()
        self._delayed_logins = PendingLogins(MAX_DELAYED_LOGINS)

    async def check_password(
        self, providers: tuple[IdentityProvider, ...], username: str, password: str, address: str, annotate: Annotate
    ) -> User | None:
        """Return the user of a name and a password; None if they are wrong at all providers.

        The first provider that accepts them wins. Raises ProviderError if one cannot answer and none accepts them,
        MappingError and Busy.
        """
        name = username[:MAX_RECORDED_NAME]
        annotate(USERNAME_ANNOTATION, self._recorded_name(providers, name))
        annotate(DECISION_ANNOTATION, "error")
        await self._wait(self._throttle.delay(name, address, time.monotonic()), address)
        if not self._pending_logins.begin(address):
            raise Busy
        try:
            found, failure = await _first_account(providers, username, password)
        finally:
            self._pending_logins.end(address)
        if found is None:
            self._throttle.failed(name, address, time.monotonic())
            if failure is not None:
                raise failure
            annotate(DECISION_ANNOTATION, "deny")
            return None
        user = await self.map_account(*found, annotate)
        self._throttle.succeeded(name)
        return user

    async def _wait(self, seconds: float, address: str) -> None:
        """Wait before a check. Those who wait after failures hold no place of others. Raises Busy."""
        if not seconds:
            return
        if not self._delayed_logins.begin(address):
            raise Busy
        try:
            await asyncio.sleep(seconds)
        finally:
            self._delayed_logins.end(address)

    def _recorded_name(self, providers: tuple[IdentityProvider, ...], name: str) -> str:
        """Return a user name for the audit log. A name that nobody has may be a password in the wrong field."""
        escaped = escape_provider_user_name(name)
        keys = [user_key(name), *(identity_key(identity_name(provider.name, escaped)) for provider in providers)]
        return name if any(self._store.get_uncommitted(key) is not None for key in keys) else UNKNOWN_NAME

    async def map_account(self, provider: IdentityProvider, account: ProviderIdentity, annotate: Annotate) -> User:
        """Return the user of an account, and create what is missing. Raises MappingError."""
        annotate(USERNAME_ANNOTATION, account.provider_user_name[:MAX_RECORDED_NAME])
        annotate(DECISION_ANNOTATION, "error")
        for _ in range(MAPPING_ATTEMPTS):
            await self._store.write()  # Only committed groups are in the index.
            objects = Transaction(self._store)

            def create(resource: Any, obj: Any, objects: Transaction = objects) -> Any:
                return self._creation.create(resource, obj, objects)

            try:
                user = map_login(provider, account, objects, create)
                name = user.metadata.name
                deletions = sync_groups(account, name, self._groups.of(name), objects, create)
            except StatusError as error:
                raise MappingError(CLAIM_ERROR, str(error)) from error
            try:
                await self._store.write(*objects.changes, *deletions)
            except Conflict:
                continue
            record = self._store.get_uncommitted(user_key(name))
            if record is not None:
                annotate(DECISION_ANNOTATION, "allow")
                mapped: User = record.object
                return mapped
        raise MappingError(CLAIM_ERROR, f"the user of {account.provider_user_name!r} is written by others")


async def _first_account(
    providers: tuple[IdentityProvider, ...], username: str, password: str
) -> tuple[tuple[IdentityProvider, ProviderIdentity] | None, ProviderError | None]:
    """Return the first provider that accepts name and password, with the account; and the first error."""
    failure = None
    for provider in providers:
        if not isinstance(provider.authenticator, PasswordProvider):
            continue
        try:
            account = await provider.authenticator.authenticate_password(username, password)
        except ProviderError as error:
            failure = failure or error
            continue
        if account is not None:
            return (provider, account), None
    return None, failure
