"""User, Identity, UserIdentityMapping and Group of OpenShift's user.openshift.io. Pure.

A user logs in with an identity, which is an account at an identity provider. Source: the API and the validation of
OpenShift.
"""

from __future__ import annotations

from collections.abc import Iterator

from msgspec.structs import replace

from api.meta import names
from api.meta.schema import MISSING, FieldError, quoted
from api.meta.types import Object, Value
from api.validation.registry import KindRules
from master.resources.metadata import with_metadata
from master.resources.printing import NAME
from master.resources.resource import Column, Resource

USER_GROUP = "user.openshift.io"
CURRENT_USER = "~"
"""The name under which a client gets the user that it is authenticated as."""

ENCODED_NAME_PREFIX = "b64:"
"""The prefix of a name that is the base64 form of one with a colon or a slash."""

MAX_IDENTITIES, MAX_GROUP_USERS = 100, 20_000
"""Identities of a user, and users of a group."""


class User(Object, frozen=True):
    """A person or a program that logs in. `identities` are the names of Identity objects.

    `groups` is filled in for the user `~` only.
    """

    API_VERSION = f"{USER_GROUP}/v1"
    KIND = "User"
    PLURAL = "users"
    NAMESPACED = False

    full_name: str = ""
    identities: tuple[str, ...] = ()
    groups: tuple[str, ...] = ()


class UserReference(Value, frozen=True):
    """The user of an identity, by name and uid."""

    name: str = ""
    uid: str = ""


class IdentityReference(Value, frozen=True):
    """The identity of a mapping, by name and uid."""

    name: str = ""
    uid: str = ""


class Identity(Object, frozen=True):
    """An account at an identity provider. Its name is `providerName:providerUserName`."""

    API_VERSION = f"{USER_GROUP}/v1"
    KIND = "Identity"
    PLURAL = "identities"
    NAMESPACED = False

    provider_name: str = ""
    provider_user_name: str = ""
    user: UserReference = UserReference()
    extra: dict[str, str] = {}


class UserIdentityMapping(Object, frozen=True):
    """The mapping of an identity to a user. It is computed of the two, which name each other, and not stored."""

    API_VERSION = f"{USER_GROUP}/v1"
    KIND = "UserIdentityMapping"
    PLURAL = "useridentitymappings"
    NAMESPACED = False

    identity: IdentityReference = IdentityReference()
    user: UserReference = UserReference()


class Group(Object, frozen=True):
    """A group of users, by name. The users need not exist."""

    API_VERSION = f"{USER_GROUP}/v1"
    KIND = "Group"
    PLURAL = "groups"
    NAMESPACED = False

    users: tuple[str, ...] = ()


def user_name_error(name: str) -> str:
    """Check the name of a user. Return what is wrong with it, an empty string if it is valid."""
    if name == CURRENT_USER:
        return 'may not equal "~"'
    if ":" in name and not name.startswith(ENCODED_NAME_PREFIX):
        return 'usernames that contain ":" must begin with "b64:"'
    return names.path_segment_error(name)


def group_name_error(name: str) -> str:
    """Check the name of a group. Groups with a colon, such as `system:masters`, are virtual and never stored."""
    if name == CURRENT_USER:
        return 'may not equal "~"'
    return 'may not contain ":"' if ":" in name else names.path_segment_error(name)


def identity_name(provider_name: str, provider_user_name: str) -> str:
    """Return the name of the Identity of an account."""
    return f"{provider_name}:{provider_user_name}"


def _identity_name_error(name: str) -> str:
    if names.path_segment_error(name):
        return names.path_segment_error(name)
    provider_name, colon, provider_user_name = name.partition(":")
    is_plain = ":" not in provider_user_name or provider_user_name.startswith(ENCODED_NAME_PREFIX)
    if colon and provider_name and provider_user_name and is_plain:
        return ""
    return "must be in the format <providerName>:<providerUserName> or <providerName>:b64:<base64 of the user name>"


def _validate_user(user: User) -> Iterator[FieldError]:
    if len(user.identities) > MAX_IDENTITIES:
        yield FieldError("identities", f"{len(user.identities)} items", f"at most {MAX_IDENTITIES} are accepted")
        return
    for number, name in enumerate(user.identities):
        if error := _identity_name_error(name):
            yield FieldError(f"identities[{number}]", quoted(name), error)


def _validate_identity(identity: Identity) -> Iterator[FieldError]:
    for path, value in (
        ("providerName", identity.provider_name),
        ("providerUserName", identity.provider_user_name),
    ):
        if not value:
            yield FieldError(path, '""', "a name is required", MISSING)
    if ":" in identity.provider_name:
        yield FieldError("providerName", quoted(identity.provider_name), 'may not contain ":"')
    expected = identity_name(identity.provider_name, identity.provider_user_name)
    if identity.metadata.name != expected:
        yield FieldError("metadata.name", quoted(identity.metadata.name), f"must be {expected}")
    if bool(identity.user.name) != bool(identity.user.uid):
        yield FieldError("user", quoted(identity.user.name), "name and uid are accepted together, or neither")
    if identity.user.name and (error := user_name_error(identity.user.name)):
        yield FieldError("user.name", quoted(identity.user.name), error)


def _validate_identity_update(old: Identity, new: Identity) -> Iterator[FieldError]:
    for path, before, after in (
        ("providerName", old.provider_name, new.provider_name),
        ("providerUserName", old.provider_user_name, new.provider_user_name),
    ):
        if before != after:
            yield FieldError(path, quoted(after), "field is immutable")


def _validate_group(group: Group) -> Iterator[FieldError]:
    if len(group.users) > MAX_GROUP_USERS:
        yield FieldError("users", f"{len(group.users)} items", f"at most {MAX_GROUP_USERS} are accepted")
        return
    for number, name in enumerate(group.users):
        if not name:
            yield FieldError(f"users[{number}]", '""', "a name is required", MISSING)


def _default_identity(identity: Identity) -> Identity:
    """Set the name, which follows from the provider and the name there."""
    name = identity_name(identity.provider_name, identity.provider_user_name)
    return with_metadata(identity, name=name, generate_name="") if not identity.metadata.name else identity


def _without_groups(user: User, _: User | None = None) -> User:
    return replace(user, groups=())


USERS = Resource(
    type=User,
    columns=(
        NAME,
        Column("UID", "The uid, which tokens name.", lambda user, _: user.metadata.uid),
        Column("Full Name", "The name of the person.", lambda user, _: user.full_name),
        Column("Identities", "The accounts at identity providers.", lambda user, _: ", ".join(user.identities)),
    ),
    rules=KindRules(validate=_validate_user, validate_name=user_name_error),
    prepare_for_create=_without_groups,
    prepare_for_update=_without_groups,
    acted_on_by="the OAuth server of the master, which creates users at their first login",
)

IDENTITIES = Resource(
    type=Identity,
    columns=(
        NAME,
        Column("IDP Name", "The identity provider.", lambda identity, _: identity.provider_name),
        Column("IDP User Name", "The name at the provider.", lambda identity, _: identity.provider_user_name),
        Column("User Name", "The user who logs in with it.", lambda identity, _: identity.user.name),
        Column("User UID", "The uid of this user.", lambda identity, _: identity.user.uid),
    ),
    rules=KindRules(
        _default_identity, _validate_identity, _validate_identity_update, validate_name=_identity_name_error
    ),
    acted_on_by="the OAuth server of the master, which creates identities at their first login",
)

USER_IDENTITY_MAPPINGS = Resource(
    type=UserIdentityMapping,
    columns=(
        NAME,
        Column("Identity", "The identity.", lambda mapping, _: mapping.identity.name),
        Column("User Name", "The user who logs in with it.", lambda mapping, _: mapping.user.name),
        Column("User UID", "The uid of this user.", lambda mapping, _: mapping.user.uid),
    ),
    rules=KindRules(validate_name=_identity_name_error),
    verbs=("create", "delete", "get", "patch", "update"),
    acted_on_by="the master, which computes it of an Identity and a User",
)

GROUPS = Resource(
    type=Group,
    columns=(NAME, Column("Users", "The members.", lambda group, _: ", ".join(group.users))),
    rules=KindRules(validate=_validate_group, validate_name=group_name_error),
    acted_on_by="the master, which adds the groups of a user to each of its requests",
)
