"""The clients of the OAuth server: OAuthClients, service accounts, and the three that always exist."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec.structs import replace

from api.meta.types import ObjectMeta
from master.oauth.authorize import Client
from master.oauth.clients import (
    BROWSER_CLIENT,
    CHALLENGING_CLIENT,
    CLI_CLIENT,
    MAX_REDIRECT_URIS,
    SECRET_LENGTH,
    ClientRegistry,
    bootstrap_clients,
    client_of,
    service_account_client,
)
from master.resources.configuration import ServiceAccount
from master.resources.oauth import OAuthClient, ScopeRestriction, is_scope_allowed
from master.resources.scheme import STORED_TYPES
from master.storage.sqlite import SQLiteStorage
from tests.testbed.apiserver.changes import put

URL = "https://master.example:8443"
URI_ANNOTATION = "serviceaccounts.openshift.io/oauth-redirecturi."


def secrets() -> Iterator[str]:
    number = 0
    while True:
        number += 1
        yield f"{number}" * SECRET_LENGTH


def bootstrap(existing: dict[str, OAuthClient], url: str = URL) -> dict[str, OAuthClient]:
    """Return the default clients after a pass, and check that the next pass changes none."""
    source = secrets()
    after = {
        **existing,
        **{new.metadata.name: new for new, _ in bootstrap_clients(url, existing, lambda: next(source))},
    }
    assert list(bootstrap_clients(url, after, lambda: next(source))) == []
    return after


def account(**annotations: str) -> ServiceAccount:
    return ServiceAccount(metadata=ObjectMeta(name="a", namespace="red", annotations=annotations))


# --- default clients --------------------------------------------------------------------------------------------------


def test_default_clients_are_those_of_oc() -> None:
    clients = {name: client_of(client) for name, client in bootstrap({}).items()}
    assert set(clients) == {BROWSER_CLIENT, CHALLENGING_CLIENT, CLI_CLIENT}
    browser, challenging, cli = (clients[name] for name in (BROWSER_CLIENT, CHALLENGING_CLIENT, CLI_CLIENT))
    assert [client.is_public for client in (browser, challenging, cli)] == [False, True, True]
    assert [client.responds_with_challenges for client in (browser, challenging, cli)] == [False, True, False]
    assert {client.grant_method for client in clients.values()} == {"auto"}
    assert browser.redirect_uris == (f"{URL}/oauth/token/display",)
    assert challenging.redirect_uris == (f"{URL}/oauth/token/implicit",)
    assert cli.redirect_uris == ("http://127.0.0.1/callback", "http://[::1]/callback")
    assert len(browser.secrets[0]) == SECRET_LENGTH


def test_secret_of_the_browser_client_is_kept() -> None:
    first = bootstrap({})
    extra = {**first, BROWSER_CLIENT: replace(first[BROWSER_CLIENT], additional_secrets=("more",))}
    assert bootstrap(extra)[BROWSER_CLIENT] == extra[BROWSER_CLIENT]
    short = {**first, BROWSER_CLIENT: replace(extra[BROWSER_CLIENT], secret="short")}
    repaired = bootstrap(short)[BROWSER_CLIENT]
    assert len(repaired.secret) == SECRET_LENGTH
    assert repaired.additional_secrets == ("more",)


def test_changed_default_client_is_repaired() -> None:
    """The lifetime of its tokens is the administrator's decision."""
    first = bootstrap({})
    hostile = replace(
        first[CLI_CLIENT], redirect_uris=("https://evil.example",), secret="x", access_token_max_age_seconds=60
    )
    repaired = bootstrap({**first, CLI_CLIENT: hostile})[CLI_CLIENT]
    assert repaired == replace(first[CLI_CLIENT], access_token_max_age_seconds=60)


def test_default_clients_follow_the_url() -> None:
    moved = bootstrap(bootstrap({}), "https://other.example")
    assert moved[BROWSER_CLIENT].redirect_uris == ("https://other.example/oauth/token/display",)


# --- OAuthClients -----------------------------------------------------------------------------------------------------


def test_client_has_the_fields_of_its_object() -> None:
    restriction = ScopeRestriction(literals=("user:info",))
    found = client_of(
        OAuthClient(
            metadata=ObjectMeta(name="app"),
            secret="s",
            additional_secrets=("", "t"),
            redirect_uris=("https://a/",),
            grant_method="prompt",
            scope_restrictions=(restriction,),
            access_token_max_age_seconds=0,
            access_token_inactivity_timeout_seconds=300,
        )
    )
    assert found == Client("app", ("s", "t"), ("https://a/",), False, "prompt", (restriction,), 0, 300)
    assert not found.has_secret("")


@pytest.mark.parametrize("grant_method", ["auto", "prompt", "deny"])
def test_client_has_the_grant_method_of_its_object(grant_method: str) -> None:
    assert client_of(OAuthClient(metadata=ObjectMeta(name="a"), grant_method=grant_method)).grant_method == grant_method


# --- service accounts -------------------------------------------------------------------------------------------------


def test_service_account_is_a_client_of_its_namespace() -> None:
    client = service_account_client(account(**{f"{URI_ANNOTATION}x": "https://a.example/back"}), "prompt")
    assert (client.name, client.grant_method, client.is_public) == ("system:serviceaccount:red:a", "prompt", False)
    assert client.redirect_uris == ("https://a.example/back",)
    allowed = ("user:info", "user:check-access", "user:list-projects", "role:view:red", "role:admin:red:!")
    denied = ("user:full", "role:view:blue", "role:view:*", "role:cluster-admin:*:!")
    assert all(is_scope_allowed(client.scope_restrictions, scope) for scope in allowed)
    assert not any(is_scope_allowed(client.scope_restrictions, scope) for scope in denied)


@pytest.mark.parametrize(("text", "expected"), [("true", True), ("True", False), ("", False), ("1", False)])
def test_service_account_asks_for_challenges(text: str, expected: bool) -> None:
    client = service_account_client(account(**{"serviceaccounts.openshift.io/oauth-want-challenges": text}), "prompt")
    assert client.responds_with_challenges == expected


@pytest.mark.parametrize(
    "uri",
    [
        *("", "/back", "back", "https:", "https:///back", "ftp://a/b", "javascript:alert(1)", "data:text/html,x"),
        *("https://a/b#c", "https://a/../b", "https://a/%2e%2e/b", "https://a:99999/", "https://[::1", "https://a b/"),
        *("https://a\\b/", "https://a/\r\nX: y", "https://ü/", "https://bank.example@evil.example/", "https://@a/"),
    ],
)
def test_unusable_redirect_uri_of_a_service_account_is_left_out(uri: str) -> None:
    annotations = {f"{URI_ANNOTATION}bad": uri, f"{URI_ANNOTATION}good": "https://a.example/back"}
    assert service_account_client(account(**annotations), "prompt").redirect_uris == ("https://a.example/back",)


def test_redirect_uris_of_a_service_account_are_bounded() -> None:
    annotations = {f"{URI_ANNOTATION}{number:03}": f"https://a.example/{number}" for number in range(100)}
    assert len(service_account_client(account(**annotations), "prompt").redirect_uris) == MAX_REDIRECT_URIS


# --- registry ---------------------------------------------------------------------------------------------------------


async def test_clients_are_found_by_exact_names(tmp_path: Path) -> None:
    storage = await SQLiteStorage.open(tmp_path / "store.db", STORED_TYPES)
    await storage.write(put(OAuthClient(metadata=ObjectMeta(name="app"))), put(account()))
    registry = ClientRegistry(storage, "deny")
    for name in ("app", "system:serviceaccount:red:a"):
        found = registry.find(name)
        assert found is not None
        assert found.name == name
    prefix = "system:serviceaccount:"
    for name in (
        "",
        "APP",
        "app ",
        "a",
        "red:a",
        prefix,
        f"{prefix}red",
        f"{prefix}red:",
        f"{prefix}:a",
        f"{prefix}blue:a",
    ):
        assert registry.find(name) is None
    await storage.close()
