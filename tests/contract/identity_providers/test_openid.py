"""The provider OpenID with a provider that is written from the specification."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from master.auth.identity_providers.config import load_identity_providers
from master.auth.identity_providers.openid import OpenIDProvider, is_https_url
from master.auth.identity_providers.provider import AuthorizationError, ProviderError, ProviderIdentity
from tests.testbed.identity_providers.https_server import ServerFiles
from tests.testbed.identity_providers.openid_provider import (
    CALLBACK_URL,
    CLIENT_ID,
    CLIENT_SECRET,
    Changes,
    OpenIDServer,
    openid_server,
)

STATE = "csrf=1&then=/oauth/authorize"
CLAIMS = {"sub": "1001", "name": "Alice", "preferred_username": "alice", "email": "alice@example.org"}
ALICE = ProviderIdentity("openid", "1001", "Alice", "alice@example.org", "alice")


def load(files: ServerFiles, **fields: Any) -> OpenIDProvider:
    form = {"apiVersion": "v1", "kind": "OpenIDIdentityProvider", "clientID": CLIENT_ID, "clientSecret": CLIENT_SECRET}
    provider = form | {"ca": str(files.authority)} | fields
    (loaded,) = load_identity_providers([{"name": "openid", "login": True, "provider": provider}], Path("/"))
    assert isinstance(loaded.authenticator, OpenIDProvider)
    return loaded.authenticator


async def log_in(server: OpenIDServer, provider: OpenIDProvider) -> ProviderIdentity:
    query = server.authorize(await provider.authorization_url(CALLBACK_URL, STATE))
    return await provider.redeem(query, CALLBACK_URL)


async def log_in_with(files: ServerFiles, changes: Changes, **fields: Any) -> ProviderIdentity:
    """Log in at a provider that differs from the specification."""
    async with openid_server(files, **CLAIMS) as server:
        server.changes = changes
        return await log_in(server, load(files, issuer=server.issuer, **fields))


async def test_login_with_discovery(files: ServerFiles) -> None:
    async with openid_server(files, **CLAIMS) as server:
        provider = load(files, issuer=server.issuer)
        assert await log_in(server, provider) == ALICE
        assert server.requests == ["/.well-known/openid-configuration", "/token", "/userinfo"]
        assert await log_in(server, provider) == ALICE
        assert server.requests[3:] == ["/token", "/userinfo"]


async def test_login_with_urls(files: ServerFiles) -> None:
    async with openid_server(files, **CLAIMS) as server:
        server.changes.metadata = {"token_endpoint_auth_methods_supported": ["client_secret_post"]}
        urls = {"authorize": f"{server.issuer}/authorize", "token": f"{server.issuer}/token"}
        without_user_info = load(files, urls=urls)
        assert await log_in(server, without_user_info) == ProviderIdentity("openid", "1001")
        with_user_info = load(files, urls=urls | {"userInfo": f"{server.issuer}/userinfo"})
        assert await log_in(server, with_user_info) == ALICE
        assert server.requests == ["/token", "/token", "/userinfo"]


@pytest.mark.parametrize("methods", [None, ["client_secret_basic"], ["client_secret_post", "client_secret_basic"]])
async def test_secret_is_sent_as_the_provider_supports(files: ServerFiles, methods: list[str] | None) -> None:
    changes = Changes(metadata={"token_endpoint_auth_methods_supported": methods} if methods else {})
    assert await log_in_with(files, changes) == ALICE


async def test_authorization_url_has_the_parameters_of_the_configuration(files: ServerFiles) -> None:
    urls = {"authorize": "https://login.example/authorize?tenant=1", "token": "https://login.example/token"}
    fields = {"extraScopes": ["email", "openid", "profile"], "extraAuthorizeParameters": {"prompt": "login consent"}}
    url = await load(files, urls=urls, **fields).authorization_url(CALLBACK_URL, STATE)
    query = parse_qs(urlsplit(url).query, strict_parsing=True)
    assert url.startswith("https://login.example/authorize?tenant=1&")
    nonces = query.pop("nonce")
    assert query == {
        "tenant": ["1"],
        "prompt": ["login consent"],
        "response_type": ["code"],
        "client_id": [CLIENT_ID],
        "redirect_uri": [CALLBACK_URL],
        "scope": ["openid email profile"],
        "state": [STATE],
    }
    other = await load(files, urls=urls).authorization_url(CALLBACK_URL, STATE + "x")
    assert parse_qs(urlsplit(other).query)["nonce"] != nonces


@pytest.mark.parametrize(
    ("claims", "found"),
    [
        ({"id": ["upn", "sub"], "preferredUsername": ["nickname"], "name": [], "email": ["mail", "email"]}, "1001"),
        ({"id": ["email"]}, "alice@example.org"),
    ],
)
async def test_claims_of_the_configuration(files: ServerFiles, claims: dict[str, Any], found: str) -> None:
    identity = await log_in_with(files, Changes(user_info={"nickname": "al"}), claims=claims)
    assert identity.provider_user_name == found
    assert identity.email == "alice@example.org"
    assert (identity.preferred_username, identity.name) == (("al", "") if found == "1001" else ("alice", "Alice"))


@pytest.mark.parametrize(
    ("claim", "groups"),
    [
        (["staff", "dev", "staff"], ("staff", "dev")),
        ("staff", ("staff",)),
        ([], ()),
        (None, ()),
        ([""], ()),
    ],
)
async def test_groups_of_a_claim(files: ServerFiles, claim: object, groups: tuple[str, ...]) -> None:
    changes = Changes(user_info={"groups": claim})
    assert (await log_in_with(files, changes, claims={"groups": ["roles", "groups"]})).groups == groups
    assert (await log_in_with(files, changes)).groups is None


@pytest.mark.parametrize("claim", [[1], {"a": "b"}, 7, ["a", None], [f"g{number}" for number in range(1001)], ["a\n"]])
async def test_other_groups_are_an_error(files: ServerFiles, claim: object) -> None:
    with pytest.raises(ProviderError, match="groups"):
        await log_in_with(files, Changes(user_info={"groups": claim}), claims={"groups": ["groups"]})


@pytest.mark.parametrize(
    "changes",
    [
        {"aud": [CLIENT_ID, "other"], "azp": CLIENT_ID},
        {"nonce": None},
        {"iat": None},
    ],
)
async def test_id_tokens_that_are_accepted(files: ServerFiles, changes: dict[str, Any]) -> None:
    assert await log_in_with(files, Changes(id_token=changes)) == ALICE


async def test_clocks_may_differ_by_half_a_minute(files: ServerFiles) -> None:
    assert await log_in_with(files, Changes(id_token={"exp": int(time.time()) - 30})) == ALICE


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"iss": "https://evil.example"}, "Invalid issuer"),
        ({"iss": None}, 'missing the "iss" claim'),
        ({"aud": "other"}, "Audience doesn't match"),
        ({"aud": None}, 'missing the "aud" claim'),
        ({"aud": [CLIENT_ID, "other"], "azp": "other"}, "for the client 'other'"),
        ({"exp": 1}, "expired"),
        ({"exp": None}, 'missing the "exp" claim'),
        ({"exp": "soon"}, "must be an integer"),
        ({"exp": float("inf")}, "must be an integer"),
        ({"nbf": float("inf")}, "must be an integer"),
        ({"nbf": 2**40}, "not yet valid"),
        ({"nonce": "other"}, "another login"),
        ({"sub": None}, 'missing the "sub" claim'),
        ({"sub": ""}, "without a sub"),
        ({"sub": 1001}, "Subject must be a string"),
        ({"sub": "1002"}, "the id_token has '1002'"),
    ],
)
async def test_other_id_tokens_are_errors(files: ServerFiles, changes: dict[str, Any], text: str) -> None:
    with pytest.raises(ProviderError, match=text):
        await log_in_with(files, Changes(id_token=changes))


@pytest.mark.parametrize("id_token", ["", "a", "a.b.c", "....", "e30.e30.", "\n", None, "eyJhbGciOiJub25lIn0.WzFd."])
async def test_unreadable_id_tokens_are_errors(files: ServerFiles, id_token: str | None) -> None:
    with pytest.raises(ProviderError, match="id_token"):
        await log_in_with(files, Changes(tokens={"id_token": id_token}))


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        (Changes(user_info={"sub": "1002"}), "found the sub '1002'"),
        (Changes(user_info={"sub": None}), "found the sub None"),
        (Changes(tokens={"access_token": "other"}), "/userinfo: found the status 401"),
        (Changes(tokens={"access_token": "a\r\nb"}), "no bearer token"),
        (Changes(tokens={"token_type": "mac"}), "no bearer token"),
        (Changes(tokens={"error": "invalid_grant"}), "'invalid_grant'"),
        (Changes(metadata={"issuer": "https://evil.example"}), "found the issuer 'https://evil.example'"),
        (Changes(metadata={"token_endpoint": "http://127.0.0.1/"}), "found the endpoint 'http://127.0.0.1/'"),
        (Changes(metadata={"authorization_endpoint": "javascript:alert(1)"}), "found the endpoint 'javascript"),
        (Changes(metadata={"token_endpoint": None}), "no such JSON"),
    ],
)
async def test_contradictory_providers_are_errors(files: ServerFiles, changes: Changes, text: str) -> None:
    with pytest.raises(ProviderError, match=text):
        await log_in_with(files, changes)


async def test_provider_without_userinfo_has_its_claims_in_the_id_token(files: ServerFiles) -> None:
    changes = Changes(metadata={"userinfo_endpoint": None}, id_token=CLAIMS)
    assert await log_in_with(files, changes) == ALICE


async def test_code_is_redeemed_once_by_its_client_and_login(files: ServerFiles) -> None:
    async with openid_server(files, **CLAIMS) as server:
        provider = load(files, issuer=server.issuer)
        query = server.authorize(await provider.authorization_url(CALLBACK_URL, STATE))
        assert await provider.redeem(query, CALLBACK_URL) == ALICE
        with pytest.raises(ProviderError, match="'invalid_grant' 'unknown code'"):
            await provider.redeem(query, CALLBACK_URL)
        query = server.authorize(await provider.authorization_url(CALLBACK_URL, STATE))
        with pytest.raises(ProviderError, match="another login"):
            await provider.redeem(query | {"state": "of the thief"}, CALLBACK_URL)
        query = server.authorize(await provider.authorization_url(CALLBACK_URL, STATE))
        with pytest.raises(ProviderError, match="'invalid_grant'"):
            await provider.redeem(query, CALLBACK_URL + "x")
        wrong_secret = load(files, issuer=server.issuer, clientSecret="wrong")
        with pytest.raises(ProviderError, match="'invalid_client'"):
            await log_in(server, wrong_secret)


@pytest.mark.parametrize(
    ("query", "text"),
    [
        ({}, "without a code"),
        ({"code": ""}, "without a code"),
        ({"code": "a\0b"}, "without a code"),
        ({"code": "x" * 4097}, "without a code"),
        ({"code": "x", "iss": "https://evil.example"}, "another issuer"),
        ({"error": "x" * 1025}, "too long"),
        ({"error": "x", "error_description": "a\r\nb"}, "too long or no text"),
    ],
)
async def test_unusable_redirects_are_errors(files: ServerFiles, query: dict[str, str], text: str) -> None:
    async with openid_server(files, **CLAIMS) as server:
        with pytest.raises(ProviderError, match=text):
            await load(files, issuer=server.issuer).redeem(query, CALLBACK_URL)
        assert "/token" not in server.requests


async def test_error_of_the_provider_is_passed_on(files: ServerFiles) -> None:
    provider = load(files, issuer="https://login.example")
    with pytest.raises(AuthorizationError) as raised:
        await provider.redeem({"error": "access_denied", "error_description": "Not today."}, CALLBACK_URL)
    assert (raised.value.error, raised.value.description) == ("access_denied", "Not today.")


@pytest.mark.parametrize(
    ("url", "is_accepted"),
    [
        ("https://h", True),
        ("https://h:8443/a?b=c", True),
        ("HTTPS://h", True),
        ("http://h", False),
        ("https://", False),
        ("https:///a", False),
        ("https://u@h", False),
        ("https://h#a", False),
        ("https://h\\@evil", False),
        ("https://h\n", False),
        ("https://h:99999", False),
        ("https://[::1", False),
        ("//h", False),
        ("", False),
    ],
)
def test_https_urls(url: str, is_accepted: bool) -> None:
    assert is_https_url(url) == is_accepted
