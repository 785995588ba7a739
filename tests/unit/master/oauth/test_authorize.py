"""Requests for authorization: what is accepted of a client, and what each error says."""

from __future__ import annotations

import base64
import hashlib
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from master.oauth.authorize import (
    MAX_PARAMETERS,
    MAX_STATE_LENGTH,
    MAX_VALUE_LENGTH,
    Client,
    is_verifier,
    missing_scopes,
    parse_authorize_request,
    redirect_uri_of,
    single_parameters,
)
from master.oauth.errors import DESCRIPTIONS, OAuthError, RedirectError
from master.resources.oauth import MAX_SCOPES, ClusterRoleScopeRestriction, ScopeRestriction

BACK = "https://app.example/back"
APP = Client("app", ("s3cret",), (BACK,))
PUBLIC = Client("cli", (), (BACK,))
CHALLENGE = "c" * 43


def error_of(client: Client, **parameters: str) -> tuple[str, str]:
    """Return code and description of the error of a request."""
    with pytest.raises(RedirectError) as raised:
        parse_authorize_request(client, BACK, parameters)
    return raised.value.code, raised.value.description


# --- parameters -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "pairs",
    [
        [("a", "1"), ("a", "1")],
        [("a", "1"), ("b", "2"), ("a", "3")],
        [("a", "x" * (MAX_VALUE_LENGTH + 1))],
        [("a", "x\0")],
        [("a", "x\r")],
        [("a", "x\ny")],
        [(str(number), "") for number in range(MAX_PARAMETERS + 1)],
    ],
)
def test_ambiguous_parameters_are_refused(pairs: list[tuple[str, str]]) -> None:
    with pytest.raises(OAuthError, match="missing a required parameter"):
        single_parameters(pairs)


def test_largest_parameters_are_accepted() -> None:
    pairs = [(str(number), "x" * MAX_VALUE_LENGTH) for number in range(MAX_PARAMETERS)]
    assert single_parameters(pairs) == dict(pairs)


@pytest.mark.parametrize(
    ("client", "parameters", "code"),
    [
        (None, {}, "unauthorized_client"),
        (None, {"redirect_uri": BACK}, "unauthorized_client"),
        (replace(APP, redirect_uris=()), {"redirect_uri": BACK}, "unauthorized_client"),
        (APP, {"redirect_uri": "https://evil.example/"}, "invalid_request"),
        (replace(APP, redirect_uris=(BACK, "https://b.example/")), {}, "invalid_request"),
    ],
)
def test_nobody_is_sent_to_an_unregistered_place(client: Client | None, parameters: dict[str, str], code: str) -> None:
    with pytest.raises(OAuthError) as raised:
        redirect_uri_of(client, parameters)
    assert (raised.value.code, raised.value.description) == (code, DESCRIPTIONS[code])
    assert not isinstance(raised.value, RedirectError)


def test_redirect_uri_may_be_left_out_if_there_is_one() -> None:
    assert redirect_uri_of(APP, {}) == redirect_uri_of(APP, {"redirect_uri": BACK}) == BACK


# --- response types, state and PKCE -----------------------------------------------------------------------------------


@pytest.mark.parametrize("response_type", ["", "id_token", "code token", "token code", "CODE", "none"])
def test_other_response_types_are_refused(response_type: str) -> None:
    assert error_of(APP, response_type=response_type)[0] == "unsupported_response_type"


def test_state_is_returned_as_it_is_and_bounded() -> None:
    state = "\u2028<script>&?#" * 10
    assert parse_authorize_request(APP, BACK, {"response_type": "code", "state": state}).state == state
    assert error_of(APP, response_type="code", state="s" * (MAX_STATE_LENGTH + 1))[0] == "invalid_request"


@pytest.mark.parametrize(
    ("client", "parameters", "description"),
    [
        (PUBLIC, {}, "code_challenge (rfc7636) required for public clients"),
        (PUBLIC, {"code_challenge_method": "S256"}, "code_challenge (rfc7636) required for public clients"),
        (PUBLIC, {"code_challenge": "short"}, "code_challenge invalid (rfc7636)"),
        (APP, {"code_challenge": "c" * 42}, "code_challenge invalid (rfc7636)"),
        (APP, {"code_challenge": "c" * 129}, "code_challenge invalid (rfc7636)"),
        (APP, {"code_challenge": "ü" * 43}, "code_challenge invalid (rfc7636)"),
        (APP, {"code_challenge": f"{CHALLENGE}\n"}, "code_challenge invalid (rfc7636)"),
        (
            APP,
            {"code_challenge": CHALLENGE, "code_challenge_method": "s256"},
            "code_challenge_method transform algorithm not supported",
        ),
    ],
)
def test_code_challenge_is_checked(client: Client, parameters: dict[str, str], description: str) -> None:
    assert error_of(client, response_type="code", **parameters) == ("invalid_request", description)


@pytest.mark.parametrize(
    ("client", "parameters", "expected"),
    [
        (APP, {}, ("", "")),
        (APP, {"code_challenge_method": "S256"}, ("", "")),
        (APP, {"code_challenge": CHALLENGE}, (CHALLENGE, "plain")),
        (PUBLIC, {"code_challenge": CHALLENGE, "code_challenge_method": "S256"}, (CHALLENGE, "S256")),
    ],
)
def test_code_challenge_is_kept(client: Client, parameters: dict[str, str], expected: tuple[str, str]) -> None:
    request = parse_authorize_request(client, BACK, {"response_type": "code", **parameters})
    assert (request.code_challenge, request.code_challenge_method) == expected


def test_implicit_flow_keeps_no_challenge() -> None:
    request = parse_authorize_request(PUBLIC, BACK, {"response_type": "token", "code_challenge": CHALLENGE})
    assert (request.code_challenge, request.code_challenge_method) == ("", "")


VERIFIERS = st.text("abcXYZ019-._~", min_size=43, max_size=128)


@settings(max_examples=30)
@given(VERIFIERS, VERIFIERS)
def test_only_the_verifier_of_a_challenge_fits(verifier: str, other: str) -> None:
    hashed = base64.urlsafe_b64encode(hashlib.sha256(verifier.encode()).digest()).decode().rstrip("=")
    assert is_verifier(hashed, "S256", verifier)
    assert is_verifier(verifier, "plain", verifier)
    assert not is_verifier(hashed, "S256", hashed)
    assert is_verifier(hashed, "S256", other) == is_verifier(verifier, "plain", other) == (verifier == other)


# --- scopes -----------------------------------------------------------------------------------------------------------


def scopes_of(scope: str, client: Client = APP) -> tuple[str, ...]:
    return parse_authorize_request(client, BACK, {"response_type": "code", "scope": scope}).scopes


@pytest.mark.parametrize(
    ("scope", "expected"),
    [
        ("", ("user:full",)),
        ("   ", ("user:full",)),
        ("user:info", ("user:info",)),
        ("user:info  user:check-access user:info", ("user:info", "user:check-access")),
        ("role:view:red role:system:discovery:*:!", ("role:view:red", "role:system:discovery:*:!")),
    ],
)
def test_scopes_are_read(scope: str, expected: tuple[str, ...]) -> None:
    assert scopes_of(scope) == expected


@pytest.mark.parametrize(
    ("scope", "description"),
    [
        ("foo", '[0]: Invalid value: "foo": no scope handler found'),
        ("user:info user:FULL", '[1]: Invalid value: "user:FULL": no scope handler found'),
        ("role:view", '[0]: Invalid value: "role:view": no scope handler found'),
        ("role::red", '[0]: Invalid value: "role::red": no scope handler found'),
        ("role:view:", '[0]: Invalid value: "role:view:": no scope handler found'),
        ("role:view:!", '[0]: Invalid value: "role:view:!": no scope handler found'),
        ('role:"view":red', "contains a character"),
        ("role:\u202eview:red", "contains a character"),
        (" ".join(f"role:r{number}:red" for number in range(MAX_SCOPES + 1)), f"{MAX_SCOPES + 1} scopes are requested"),
        (f"role:{'x' * 600}:red", "no more than 512 characters"),
    ],
)
def test_unknown_scopes_are_refused(scope: str, description: str) -> None:
    code, text = error_of(APP, response_type="code", scope=scope)
    assert code == "invalid_scope"
    assert description in text
    assert text.isascii()


def test_scopes_beyond_the_restrictions_of_a_client_are_denied() -> None:
    limited = replace(
        APP,
        scope_restrictions=(
            ScopeRestriction(literals=("user:info",)),
            ScopeRestriction(cluster_role=ClusterRoleScopeRestriction(role_names=("view",), namespaces=("red",))),
        ),
    )
    assert scopes_of("user:info role:view:red", limited) == ("user:info", "role:view:red")
    for denied in (
        "user:full",
        "user:check-access",
        "role:view:blue",
        "role:view:*",
        "role:edit:red",
        "role:view:red:!",
    ):
        error = error_of(limited, response_type="code", scope=f"user:info {denied}")
        assert error == ("access_denied", f"scope denied: {denied}")
    assert error_of(limited, response_type="code") == ("access_denied", "scope denied: user:full")


@pytest.mark.parametrize(
    ("granted", "requested", "missing"),
    [
        ((), ("user:info",), ("user:info",)),
        (("user:info",), ("user:info",), ()),
        (("user:full",), ("role:admin:red:!", "user:info"), ()),
        (("user:info", "role:view:*"), ("role:view:red", "user:full"), ("role:view:red", "user:full")),
        (("role:admin:red:!",), ("role:admin:red",), ("role:admin:red",)),
    ],
)
def test_user_is_asked_for_what_is_not_granted(
    granted: tuple[str, ...], requested: tuple[str, ...], missing: tuple[str, ...]
) -> None:
    assert missing_scopes(granted, requested) == missing


# --- secrets ----------------------------------------------------------------------------------------------------------


@given(st.text(max_size=20))
def test_only_a_secret_of_the_client_is_accepted(secret: str) -> None:
    two = replace(APP, secrets=("s3cret", "other"))
    assert two.has_secret("s3cret")
    assert two.has_secret("other")
    assert two.has_secret(secret) == (secret in ("s3cret", "other"))
    assert PUBLIC.has_secret(secret) == (secret == "")


def test_service_account_is_no_public_client() -> None:
    account = Client("system:serviceaccount:red:a", (), (BACK,))
    assert not account.is_public
    assert not account.has_secret("")
    assert not account.has_secret("x")
