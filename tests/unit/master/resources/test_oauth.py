"""Clients, tokens and grants: what is accepted, and what a table shows of them."""

from __future__ import annotations

import datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from api.core.oauth import token_name
from api.meta.types import Object, ObjectMeta
from api.validation.registry import check, check_update, default
from master.resources.metadata import with_metadata
from master.resources.oauth import (
    MAX_SCOPE_LENGTH,
    MAX_SCOPES,
    OAUTH_ACCESS_TOKENS,
    OAUTH_AUTHORIZE_TOKENS,
    OAUTH_CLIENT_AUTHORIZATIONS,
    OAUTH_CLIENTS,
    USER_OAUTH_ACCESS_TOKENS,
    USER_SCOPES,
    ClusterRoleScopeRestriction,
    OAuthAccessToken,
    OAuthAuthorizeToken,
    OAuthClient,
    OAuthClientAuthorization,
    RoleScope,
    ScopeRestriction,
    is_scope_allowed,
    parse_role_scope,
    redirect_uri_error,
    scope_error,
)
from master.resources.resource import AnyResource

NOW = datetime.datetime(2026, 1, 1, 1, tzinfo=datetime.UTC)
NAME = token_name("sha256~x")
CLIENT = OAuthClient(metadata=ObjectMeta(name="app"), grant_method="auto", redirect_uris=("https://a.example/",))
TOKEN = OAuthAccessToken(
    metadata=ObjectMeta(name=NAME, creation_timestamp="2026-01-01T00:00:00Z"),
    client_name="app",
    expires_in=86400,
    scopes=("user:full",),
    user_name="alice",
    user_uid="1",
    redirect_uri="https://a.example/",
    inactivity_timeout_seconds=300,
)
CODE = OAuthAuthorizeToken(
    metadata=ObjectMeta(name=NAME),
    client_name="app",
    expires_in=300,
    scopes=("user:full",),
    user_name="alice",
    user_uid="1",
)
GRANT = OAuthClientAuthorization(client_name="app", user_name="alice", user_uid="1", scopes=("user:info",))
RESOURCES: dict[type[Object], AnyResource] = {
    OAuthClient: OAUTH_CLIENTS,
    OAuthAccessToken: OAUTH_ACCESS_TOKENS,
    OAuthAuthorizeToken: OAUTH_AUTHORIZE_TOKENS,
    OAuthClientAuthorization: OAUTH_CLIENT_AUTHORIZATIONS,
}


def errors_of(obj: Object, **changes: Any) -> list[str]:
    """Return the paths of the errors of a changed object."""
    rules = RESOURCES[type(obj)].rules
    return [error.path for error in check(default(replace(obj, **changes), rules), rules)]


# --- checks -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "errors"),
    [
        ({}, []),
        ({"grant_method": "prompt", "access_token_max_age_seconds": 0}, []),
        ({"grant_method": ""}, ["grantMethod"]),
        ({"grant_method": "deny"}, []),
        ({"grant_method": "ask"}, ["grantMethod"]),
        ({"metadata": ObjectMeta(name="a:b")}, ["metadata.name"]),
        ({"metadata": ObjectMeta(name="system:serviceaccount:a:b")}, ["metadata.name"]),
        ({"redirect_uris": ("https://a/", "/b", "https://a/#c")}, ["redirectURIs[1]", "redirectURIs[2]"]),
        ({"access_token_max_age_seconds": -1}, ["accessTokenMaxAgeSeconds"]),
        ({"access_token_inactivity_timeout_seconds": 0}, []),
        ({"access_token_inactivity_timeout_seconds": 299}, ["accessTokenInactivityTimeoutSeconds"]),
        ({"access_token_inactivity_timeout_seconds": -300}, ["accessTokenInactivityTimeoutSeconds"]),
        ({"scope_restrictions": (ScopeRestriction(),)}, ["scopeRestrictions[0]"]),
        (
            {"scope_restrictions": (ScopeRestriction(("user:info",), ClusterRoleScopeRestriction()),)},
            ["scopeRestrictions[0]"],
        ),
    ],
)
def test_client_is_checked(changes: dict[str, Any], errors: list[str]) -> None:
    assert errors_of(CLIENT, **changes) == errors


@pytest.mark.parametrize("token", [TOKEN, CODE])
@pytest.mark.parametrize(
    ("changes", "errors"),
    [
        ({}, []),
        ({"user_name": "kube:admin"}, []),
        ({"client_name": "system:serviceaccount:red:a"}, []),
        ({"client_name": "system:serviceaccount:red"}, ["clientName"]),
        ({"client_name": "system:serviceaccount:red:a:b"}, ["clientName"]),
        ({"client_name": ""}, ["clientName"]),
        ({"user_name": ""}, ["userName"]),
        ({"user_name": "system:admin"}, ["userName"]),
        ({"user_uid": ""}, ["userUID"]),
        ({"scopes": ()}, ["scopes"]),
        ({"scopes": ("user:full", "nothing")}, ["scopes[1]"]),
        ({"scopes": ("user:info",) * (MAX_SCOPES + 1)}, ["scopes"]),
        ({"expires_in": -1}, ["expiresIn"]),
        ({"redirect_uri": "nowhere"}, ["redirectURI"]),
        ({"metadata": ObjectMeta(name="sha256~short")}, ["metadata.name"]),
        ({"metadata": ObjectMeta(name="x" * 50)}, ["metadata.name"]),
        ({"metadata": ObjectMeta(name=f"{NAME}/x")}, ["metadata.name"]),
    ],
)
def test_token_is_checked(token: Object, changes: dict[str, Any], errors: list[str]) -> None:
    assert errors_of(token, **changes) == errors


@pytest.mark.parametrize(
    ("changes", "errors"),
    [
        ({"expires_in": 0}, ["expiresIn"]),
        ({"code_challenge": "c" * 43}, ["codeChallenge"]),
        ({"code_challenge_method": "S256"}, ["codeChallenge"]),
        ({"code_challenge": "c" * 43, "code_challenge_method": "S256"}, []),
        ({"code_challenge": "c" * 42, "code_challenge_method": "S256"}, ["codeChallenge"]),
        ({"code_challenge": "c" * 43, "code_challenge_method": "none"}, ["codeChallengeMethod"]),
    ],
)
def test_code_is_checked(changes: dict[str, Any], errors: list[str]) -> None:
    assert errors_of(CODE, **changes) == errors


def test_grant_has_the_name_of_user_and_client() -> None:
    assert errors_of(GRANT) == []
    assert default(GRANT, OAUTH_CLIENT_AUTHORIZATIONS.rules).metadata.name == "alice:app"
    assert errors_of(GRANT, metadata=ObjectMeta(name="bob:app")) == ["metadata.name"]


@pytest.mark.parametrize(
    ("changes", "is_accepted"),
    [
        ({}, True),
        ({"metadata": ObjectMeta(name=NAME, labels={"a": "b"}, creation_timestamp="2026-01-01T00:00:00Z")}, True),
        ({"inactivity_timeout_seconds": 301}, True),
        ({"inactivity_timeout_seconds": 299}, False),
        ({"scopes": ("user:info",)}, False),
        ({"user_name": "bob"}, False),
        ({"user_uid": "2"}, False),
        ({"client_name": "other"}, False),
        ({"expires_in": 0}, False),
        ({"redirect_uri": ""}, False),
    ],
)
def test_token_cannot_become_another_one(changes: dict[str, Any], is_accepted: bool) -> None:
    assert (not list(check_update(TOKEN, replace(TOKEN, **changes), OAUTH_ACCESS_TOKENS.rules))) == is_accepted


def test_unlimited_token_gets_no_timeout() -> None:
    unlimited = replace(TOKEN, inactivity_timeout_seconds=0)
    assert list(check_update(unlimited, TOKEN, OAUTH_ACCESS_TOKENS.rules))


@pytest.mark.parametrize("field", ["scopes", "user_name", "code_challenge", "expires_in", "redirect_uri"])
def test_code_cannot_become_another_one(field: str) -> None:
    changed = replace(CODE, **{field: {"scopes": ("user:info",), "expires_in": 1}.get(field, "x")})
    assert list(check_update(CODE, changed, OAUTH_AUTHORIZE_TOKENS.rules))


@pytest.mark.parametrize("field", ["user_name", "user_uid", "client_name"])
def test_grant_stays_with_its_user_and_client(field: str) -> None:
    grant = default(GRANT, OAUTH_CLIENT_AUTHORIZATIONS.rules)
    assert list(check_update(grant, replace(grant, **{field: "other"}), OAUTH_CLIENT_AUTHORIZATIONS.rules))


@pytest.mark.parametrize(
    ("uri", "is_accepted"),
    [
        ("https://a.example/back?x=1", True),
        ("http://127.0.0.1/callback", True),
        ("http://[::1]/callback", True),
        ("com.example.app:/back", True),
        ("https://a.example/b#c", False),
        ("https://a.example/b#", False),
        ("https://a.example/../b", False),
        ("https://a.example/%2e%2E/b", False),
        ("https://a.example/%2e", False),
        ("https://bank.example@evil.example/", False),
        ("https://a.example:port/", False),
        ("https://[::1", False),
        ("https://a.example/ b", False),
        ("https://a.example\\b", False),
        ("https://ü.example/", False),
        ("/b", False),
        ("", False),
        ("javascript:alert(1)", False),
        ("DATA:text/html,x", False),
    ],
)
def test_redirect_uri_is_checked(uri: str, is_accepted: bool) -> None:
    assert (redirect_uri_error(uri) == "") == is_accepted


# --- scopes -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("scope", "expected"),
    [
        ("role:view:red", RoleScope(role="view", namespace="red")),
        ("role:view:red:!", RoleScope(role="view", namespace="red", is_escalating=True)),
        ("role:system:node:*", RoleScope(role="system:node", namespace="*")),
        ("role:view:*:!", RoleScope(role="view", namespace="*", is_escalating=True)),
        ("role:view:!:!", RoleScope(role="view", namespace="!", is_escalating=True)),
        ("role:view", None),
        ("role::red", None),
        ("role:view:", None),
        ("role:view:!", None),
        ("Role:view:red", None),
        ("user:full", None),
        ("", None),
    ],
)
def test_role_scope_is_parsed(scope: str, expected: RoleScope | None) -> None:
    assert parse_role_scope(scope) == expected


@given(st.text("abc:!*-", min_size=1), st.text("abc*-", min_size=1), st.booleans())
def test_role_scope_is_read_back(role: str, namespace: str, is_escalating: bool) -> None:
    scope = f"role:{role}:{namespace}{':!' if is_escalating else ''}"
    assert parse_role_scope(scope) == RoleScope(role=role, namespace=namespace, is_escalating=is_escalating)
    assert scope_error(scope) == ""


@given(st.text(max_size=30))
def test_scope_is_known_or_refused(text: str) -> None:
    for scope in (text, f"user:{text}", f"role:{text}:red"):
        if not scope_error(scope):
            assert scope in USER_SCOPES or parse_role_scope(scope) is not None
            assert scope.isascii()
            assert not set(scope) & set(' "\\\n')


def test_long_scope_is_refused() -> None:
    assert scope_error(f"role:{'x' * MAX_SCOPE_LENGTH}:red") == "must be no more than 512 characters"


@pytest.mark.parametrize(
    ("restriction", "allowed"),
    [
        (ScopeRestriction(literals=("user:info",)), ["user:info"]),
        (ScopeRestriction(literals=("*",)), []),
        (
            ScopeRestriction(cluster_role=ClusterRoleScopeRestriction(role_names=("view",), namespaces=("red",))),
            ["role:view:red"],
        ),
        (
            ScopeRestriction(cluster_role=ClusterRoleScopeRestriction(role_names=("*",), namespaces=("red",))),
            ["role:view:red", "role:a:b:red"],
        ),
        (
            ScopeRestriction(cluster_role=ClusterRoleScopeRestriction(("*",), ("*",), allow_escalation=True)),
            ["role:view:red", "role:view:red:!", "role:view:blue", "role:view:*", "role:a:b:red"],
        ),
        (ScopeRestriction(cluster_role=ClusterRoleScopeRestriction()), []),
    ],
)
def test_client_requests_scopes_within_its_restrictions(restriction: ScopeRestriction, allowed: list[str]) -> None:
    scopes = [
        "user:info",
        "user:full",
        "role:view:red",
        "role:view:red:!",
        "role:view:blue",
        "role:view:*",
        "role:a:b:red",
    ]
    assert sorted(scope for scope in scopes if is_scope_allowed((restriction,), scope)) == sorted(allowed)
    assert all(is_scope_allowed((), scope) for scope in scopes)


# --- tables -----------------------------------------------------------------------------------------------------------


def row(resource: AnyResource, obj: Object) -> dict[str, Any]:
    return {column.name: column.cell(obj, NOW) for column in resource.columns}


def test_table_of_clients_has_no_secret() -> None:
    client = replace(CLIENT, secret="s3cret", additional_secrets=("m0re",), access_token_max_age_seconds=3600)
    shown = row(OAUTH_CLIENTS, client)
    assert "Secret" not in shown
    assert "s3cret" not in str(shown)
    assert "m0re" not in str(shown)
    assert shown["Redirect URIs"] == "https://a.example/"


@pytest.mark.parametrize(("seconds", "text"), [(None, "default"), (0, "unexpiring")])
def test_lifetime_of_tokens_is_shown(seconds: int | None, text: str) -> None:
    assert row(OAUTH_CLIENTS, replace(CLIENT, access_token_max_age_seconds=seconds))["Token-Max-Age"] == text


@pytest.mark.parametrize("resource", [OAUTH_ACCESS_TOKENS, USER_OAUTH_ACCESS_TOKENS])
def test_table_of_tokens_shows_when_they_expire(resource: AnyResource) -> None:
    shown = row(resource, TOKEN)
    assert (shown["Expires"], shown["User Name"], shown["Scopes"]) == ("2026-01-02T00:00:00Z", "alice", "user:full")
    assert row(resource, replace(TOKEN, expires_in=0))["Expires"] == "never"
    assert row(resource, with_metadata(TOKEN, creation_timestamp=""))["Expires"] != "never"


def test_own_token_is_the_stored_one() -> None:
    version = USER_OAUTH_ACCESS_TOKENS.stored_as
    assert version is not None
    own = version.from_stored(TOKEN)
    assert version.to_stored(own) == TOKEN
    assert USER_OAUTH_ACCESS_TOKENS.owner is not None
    assert USER_OAUTH_ACCESS_TOKENS.owner(own) == ("alice", "1")
    assert set(USER_OAUTH_ACCESS_TOKENS.verbs) == {"get", "list", "watch", "delete"}
