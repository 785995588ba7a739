"""Names and fields of users, identities and groups."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from api.meta.types import ObjectMeta
from api.validation.registry import check, check_update, default
from master.auth.identity_providers.provider import escape_provider_user_name, unescape_provider_user_name
from master.resources.resource import AnyResource
from master.resources.users import (
    GROUPS,
    IDENTITIES,
    MAX_IDENTITIES,
    USERS,
    Group,
    Identity,
    User,
    UserReference,
    group_name_error,
    identity_name,
    user_name_error,
)


@pytest.mark.parametrize("name", ["alice", "Alice A", "a@b.c", "ü", "b64:YTpi", "b64:", "a~", "~a"])
def test_user_may_have_a_name(name: str) -> None:
    assert user_name_error(name) == ""


@pytest.mark.parametrize(
    ("name", "error"),
    [
        ("~", 'may not equal "~"'),
        ("system:admin", 'usernames that contain ":" must begin with "b64:"'),
        ("kube:admin", 'usernames that contain ":" must begin with "b64:"'),
        ("B64:YTpi", 'usernames that contain ":" must begin with "b64:"'),
        ("a/b", 'may not contain "/" or "%"'),
        ("a%2fb", 'may not contain "/" or "%"'),
        ("b64:a/b", 'may not contain "/" or "%"'),
        (".", 'may not contain "/" or "%"'),
        ("..", 'may not contain "/" or "%"'),
        ("", 'may not contain "/" or "%"'),
    ],
)
def test_user_may_not_have_a_name(name: str, error: str) -> None:
    assert user_name_error(name) == error


@pytest.mark.parametrize(
    "name", ["system:masters", "system:authenticated", "b64:YTpi", ":", "~", "a/b", "a%b", "..", ""]
)
def test_group_may_not_have_a_name(name: str) -> None:
    assert group_name_error(name)


def test_group_may_have_a_name() -> None:
    assert [group_name_error(name) for name in ("team", "Team A", "cluster-admins", "ü")] == ["", "", "", ""]


@given(st.text(min_size=1, max_size=30))
def test_escaped_name_is_read_back_and_has_no_separator(name: str) -> None:
    escaped = escape_provider_user_name(name)
    assert "/" not in escaped
    assert ":" not in escaped.removeprefix("b64:")
    if not name.startswith("b64:") or ":" in name:
        assert unescape_provider_user_name(escaped) == name


@given(st.text(max_size=10), st.text(max_size=10))
def test_accounts_of_one_provider_have_different_names(first: str, second: str) -> None:
    names = [identity_name("idp", escape_provider_user_name(name)) for name in (first, second)]
    assert (names[0] == names[1]) == (first == second)


def errors_of(obj: Identity | User | Group) -> list[str]:
    """Return the paths of the errors of an object with its defaults."""
    resources: dict[str, AnyResource] = {"Identity": IDENTITIES, "User": USERS, "Group": GROUPS}
    rules = resources[obj.KIND].rules
    return [error.path for error in check(default(obj, rules), rules)]


def identity(provider: str, user_name: str, name: str = "") -> Identity:
    return Identity(metadata=ObjectMeta(name=name), provider_name=provider, provider_user_name=user_name)


@pytest.mark.parametrize(
    ("obj", "errors"),
    [
        (identity("idp", "alice"), []),
        (Identity(provider_name="i", provider_user_name="a", user=UserReference(name="alice", uid="1")), []),
        (identity("idp", "b64:YTpi"), []),
        (identity("idp", "alice", "idp:bob"), ["metadata.name"]),
        (identity("idp", ""), ["metadata.name", "providerUserName"]),
        (identity("", "alice"), ["metadata.name", "providerName"]),
        (identity("a:b", "alice"), ["metadata.name", "providerName"]),
        (identity("idp", "a:b"), ["metadata.name"]),
        (Identity(provider_name="i", provider_user_name="a", user=UserReference(name="a")), ["user"]),
        (Identity(provider_name="i", provider_user_name="a", user=UserReference(uid="1")), ["user"]),
        (
            Identity(provider_name="i", provider_user_name="a", user=UserReference(name="system:admin", uid="1")),
            ["user.name"],
        ),
        (User(metadata=ObjectMeta(name="alice"), identities=("idp:a", "idp:b64:YTpi")), []),
        (User(metadata=ObjectMeta(name="alice"), identities=("idp", "a:b:c")), ["identities[0]", "identities[1]"]),
        (User(metadata=ObjectMeta(name="alice"), identities=("idp:a",) * (MAX_IDENTITIES + 1)), ["identities"]),
        (Group(metadata=ObjectMeta(name="team"), users=("nobody", "system:admin")), []),
        (Group(metadata=ObjectMeta(name="team"), users=("a", "")), ["users[1]"]),
        (Group(metadata=ObjectMeta(name="system:masters")), ["metadata.name"]),
    ],
)
def test_fields_are_checked(obj: Identity | User | Group, errors: list[str]) -> None:
    assert errors_of(obj) == errors


def test_account_of_an_identity_cannot_change() -> None:
    old = identity("idp", "alice", "idp:alice")
    paths = [error.path for error in check_update(old, identity("other", "bob", "idp:alice"), IDENTITIES.rules)]
    assert {"providerName", "providerUserName"} <= set(paths)
    assert list(check_update(old, old, IDENTITIES.rules)) == []


def test_groups_of_a_user_are_not_stored() -> None:
    user = User(metadata=ObjectMeta(name="alice"), groups=("system:masters",))
    assert USERS.prepare_for_create(user).groups == ()
    assert USERS.prepare_for_update(user, user).groups == ()
