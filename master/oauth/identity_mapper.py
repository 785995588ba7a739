"""Mapping of an identity of a provider to a user, at a login. Pure.

Source: the mapping methods of OpenShift: claim, lookup, generate and add.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from msgspec.structs import replace

from api.meta.types import ObjectMeta
from master.auth.identity_providers.provider import (
    IdentityProvider,
    ProviderIdentity,
    escape_provider_user_name,
)
from master.registry.users import identity_key, map_identity, mapped_user, user_key
from master.resources.metadata import with_metadata
from master.resources.resource import AnyResource
from master.resources.scheme import group_resource
from master.resources.users import (
    GROUPS,
    IDENTITIES,
    MAX_GROUP_USERS,
    USERS,
    Group,
    Identity,
    User,
    group_name_error,
    identity_name,
    user_name_error,
)
from master.storage.interface import Delete, Key, Transaction

MAX_GENERATED_NAMES = 100
"""Names that the method generate tries."""

GENERATED_ANNOTATION = "oauth.openshift.io/generated"
SYNCED_ANNOTATION_PREFIX, SYNCED = "oauth.openshift.io/idp.", "synced"
"""Annotations of a group that was created from a provider's, and of one whose members a provider names."""

MAX_SYNCED_GROUPS = 500

Create = Callable[[AnyResource, Any], Any]
"""Return a new object with the fields that the server sets. Raises StatusError."""


class MappingError(Exception):
    """An identity that cannot be mapped to a user. `reason` is a code for the login page."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


CLAIM_ERROR, LOOKUP_ERROR = "mapping_claim_error", "mapping_lookup_error"
AUTHENTICATION_ERROR = "authentication_error"


def map_login(provider: IdentityProvider, account: ProviderIdentity, objects: Transaction, create: Create) -> User:
    """Return the user of an account, and add the writes to the objects. Raises MappingError and StatusError."""
    provider_user_name = escape_provider_user_name(account.provider_user_name)
    name = identity_name(account.provider_name, provider_user_name)
    identity: Identity | None = objects.get(identity_key(name))
    if identity is not None and identity.user.name:
        user = mapped_user(identity, objects.get(user_key(identity.user.name)))
        if user is None:
            message = f"identity {name} names the user {identity.user.name}, which does not exist or does not name it"
            raise MappingError(AUTHENTICATION_ERROR, message)
        return user
    if provider.mapping_method == "lookup":
        raise MappingError(LOOKUP_ERROR, f"identity {name} is not mapped to a user")
    if identity is None:
        extra = (("name", account.name), ("email", account.email), ("preferred_username", account.preferred_username))
        identity = create(
            IDENTITIES,
            Identity(
                metadata=ObjectMeta(name=name),
                provider_name=account.provider_name,
                provider_user_name=provider_user_name,
                extra={key: value for key, value in extra if value},
            ),
        )
        objects.put(group_resource(Identity), identity)
    preferred_name = account.preferred_username or provider_user_name
    user = _user_for(provider.mapping_method, preferred_name, name, account, objects, create)
    map_identity(identity, user, objects)
    mapped: User = objects.get(user_key(user.metadata.name))
    return mapped


def _user_for(
    method: str, name: str, identity: str, account: ProviderIdentity, objects: Transaction, create: Create
) -> User:
    """Return the user whom a new identity belongs to, and create it if need be. Raises MappingError."""
    for candidate in _candidates(method, name):
        if error := _login_name_error(candidate):
            raise MappingError(CLAIM_ERROR, f"the user name {candidate!r}: {error}")
        user: User | None = objects.get(user_key(candidate))
        if user is None:
            user = create(USERS, User(metadata=ObjectMeta(name=candidate), full_name=account.name))
            objects.put(group_resource(User), user)
            return user
        if method == "add" or not user.identities or identity in user.identities:
            if not user.full_name and account.name:
                user = replace(user, full_name=account.name)
                objects.put(group_resource(User), user)
            return user
    raise MappingError(CLAIM_ERROR, f"the user {name} has another identity")


def _login_name_error(name: str) -> str:
    """Check the name of a user whom a login creates. Invisible characters would make it look like another one."""
    if name != name.strip() or not name.isprintable():
        return "may not begin or end with a space, or contain characters that cannot be seen"
    return user_name_error(name)


def _candidates(method: str, name: str) -> Iterator[str]:
    yield name
    if method == "generate":
        yield from (f"{name}{number}" for number in range(2, MAX_GENERATED_NAMES + 1))


def sync_groups(
    account: ProviderIdentity, user_name: str, member_of: Iterable[str], objects: Transaction, create: Create
) -> list[Delete]:
    """Make the user a member of the groups that the provider names, and of no other group that this provider named.

    `member_of` are the names of the user's groups; others are not read, because there may be many. An existing group of
    a named name gets the user and the provider's annotation, so the user leaves it when the provider no longer names
    it. Names that no Group can have, such as those of virtual groups, are skipped. Return the deletions of groups that
    a login has created and whose last member leaves: people who choose their groups at the provider could fill the
    store with them.
    """
    deletions: list[Delete] = []
    if account.groups is None:
        return deletions
    named = {name for name in account.groups[:MAX_SYNCED_GROUPS] if not group_name_error(name)}
    mark = f"{SYNCED_ANNOTATION_PREFIX}{account.provider_name}"
    resource = group_resource(Group)
    for group_name in sorted(named.union(member_of)):
        group: Group | None = objects.get(Key(resource, "", group_name))
        if group is None:
            continue
        is_member = user_name in group.users
        if group_name in named:
            named.discard(group_name)
            synced = with_metadata(group, annotations={**group.metadata.annotations, mark: SYNCED})
            if not is_member and len(group.users) < MAX_GROUP_USERS:
                synced = replace(synced, users=(*group.users, user_name))
            if synced != group:
                objects.put(resource, synced)
        elif is_member and group.metadata.annotations.get(mark) == SYNCED:
            if group.users == (user_name,) and _is_generated(group):
                revision = int(group.metadata.resource_version)
                deletions.append(Delete(Key.of(resource, group), group, expect=revision))
                continue
            objects.put(resource, replace(group, users=tuple(name for name in group.users if name != user_name)))
    for name in sorted(named):
        annotations = {GENERATED_ANNOTATION: "true", mark: SYNCED}
        group = Group(metadata=ObjectMeta(name=name, annotations=annotations), users=(user_name,))
        objects.put(resource, create(GROUPS, group))
    return deletions


def _is_generated(group: Group) -> bool:
    """Return whether a login has created a group. One with a finalizer belongs to somebody else, too."""
    return group.metadata.annotations.get(GENERATED_ANNOTATION) == "true" and not group.metadata.finalizers
