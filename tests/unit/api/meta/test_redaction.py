"""Redaction of texts of all kinds. That of tokens in audit events is in the tests of the audit log."""

from __future__ import annotations

import base64
import json
from urllib.parse import quote, quote_plus

import pytest
from hypothesis import given
from hypothesis import strategies as st

from api.meta.redaction import MIN_KNOWN, KnownValues, redact_document, redact_text

SECRET = "hunter2hunter2"
TEXTS = [
    f"password={SECRET}",
    f"db_password: {SECRET}",
    f"PGPASSWORD='{SECRET}'",
    f'"clientSecret": "{SECRET}"',
    f"--token {SECRET}",
    f"--bind-password={SECRET}",
    f"GET http://alice:{SECRET}@registry.example/v2/",
    f"Authorization: Bearer {SECRET}",
    f'authorization="Basic {SECRET}"',
    f"curl -H 'X: bearer {SECRET}'",
    f"Set-Cookie: ssn={SECRET}; path=/",
    f"client-key-data: {SECRET}",
    f"alice:$2y$10${SECRET}",
    f"alice:{{SHA}}{SECRET}=",
    f"root:$6$salt${SECRET}",
    f"-----BEGIN EC PRIVATE KEY-----\n{SECRET}\n-----END EC PRIVATE KEY-----",
    f"-----BEGIN PRIVATE KEY-----\n{SECRET}",
    f"{SECRET}\n-----END RSA PRIVATE KEY-----",
    f"login with sha256~{SECRET}",
    f"ghp_{SECRET}{SECRET}",
    f"glpat-{SECRET}{SECRET}",
    f"AWS_SECRET_ACCESS_KEY={SECRET}",
    f"encryptionKey: {SECRET}",
    f"DB_PASS={SECRET}",
    f'"password": "two words, {SECRET}"',
    f'"password": "a\\"{SECRET}"',
    f"password: two words {SECRET}",
    json.dumps(json.dumps({"password": f"two words {SECRET}"})),
    f"['--password', '{SECRET}']",
    f"password%3D{SECRET}",
    f"password=b'{SECRET}'",
    f"password            :              {SECRET}",
    f"<password>{SECRET}</password>",
    f"https://alice:p@{SECRET}@registry.example/v2/",
    f"-----BEGIN PGP PRIVATE KEY BLOCK-----\n\n{SECRET}\n-----END PGP PRIVATE KEY BLOCK-----",
]
HARMLESS = [
    'level=info msg="flows changed" added=3 total=120',
    " cookie=0x1f2e, table=3, n_packets=12, priority=100,ip actions=goto_table:5",
    "secretName: web-tls",
    "tokenExpirationSeconds: 3600",
    'apiserver_request_total{resource="secrets",verb="GET"} 3',
    "automountServiceAccountToken: false",
    "the token has expired",
    "https://master.example:8443/readyz",
    "Basic authentication is off",
    "10.128.0.0/23 dev tun0 scope link",
    "aGFybWxlc3MgdGV4dCBpbiBiYXNlNjQ=",
    "GET https://registry.example:5000/v2/: mail to bob@example.com",
    "the public key: of the node",
    '{"resource": "secrets", "verbs": ["get"]}',
    "bypass the proxy",
]


@pytest.mark.parametrize("text", TEXTS)
def test_secret_is_replaced_and_what_stands_around_it_stays(text: str) -> None:
    shown = redact_text(f"before\n{text}\nafter 5\n".encode() if not text.startswith(SECRET) else text.encode())
    assert SECRET.encode() not in shown
    assert b"REDACTED" in shown
    if not text.startswith(SECRET):
        assert shown.startswith(b"before\n")
    if text.endswith(("KEY-----", "BLOCK-----")) and text.startswith("-----BEGIN"):
        assert shown.endswith(b"\nafter 5\n")


@pytest.mark.parametrize("text", TEXTS)
def test_secret_in_base64_is_replaced(text: str) -> None:
    for encode in (base64.b64encode, base64.urlsafe_b64encode):
        shown = redact_text(b"data: " + encode(text.encode()) + b" more")
        assert shown == b"data: REDACTED more"


@pytest.mark.parametrize("text", HARMLESS)
def test_harmless_text_stays(text: str) -> None:
    assert redact_text(text.encode()).decode() == text


@given(st.binary(min_size=MIN_KNOWN, max_size=40), st.binary(max_size=5), st.binary(max_size=5))
def test_known_value_is_replaced_also_within_base64(value: bytes, before: bytes, after: bytes) -> None:
    value = b"k" + value.hex().encode()
    shown = redact_text(base64.b64encode(before + value + after), KnownValues([value]))
    left = shown.replace(b"REDACTED", b"")
    assert left != shown
    assert len(left) <= 4 * (-(-len(before) // 3) + -(-len(after) // 3) + 1)
    assert redact_text(b"x " + value + b" y", KnownValues([value])) == b"x REDACTED y"


@pytest.mark.parametrize("value", ['a"b\\c/d+e \u00e9', "first line\nsecond line", "tab\tand more", "plain-value"])
def test_known_value_is_replaced_in_all_forms(value: str) -> None:
    once = json.dumps(value)
    forms = [
        value, once[1:-1], json.dumps(value, ensure_ascii=False)[1:-1], json.dumps(once)[3:-3], quote(value, safe=""),
        quote_plus(value), value.encode().hex(), value.encode().hex().upper(), repr(value)[1:-1],
        repr(value.encode())[2:-1],
    ]  # fmt: skip
    for form in forms:
        assert redact_text(f"x {form} y".encode(), KnownValues([value.encode()])) == b"x REDACTED y"


def test_longest_known_value_is_replaced() -> None:
    known = KnownValues([b"password-1", b"password-1-and-more", b"and-more"])
    assert redact_text(b"x password-1-and-more y password-1 z", known) == b"x REDACTED y REDACTED z"


def test_short_values_are_not_looked_for() -> None:
    assert redact_text(b"a web server", KnownValues([b"web", b""])) == b"a web server"


def test_values_of_keys_that_name_secrets_are_replaced() -> None:
    document = {
        "provider": {"clientSecret": {"value": SECRET}, "clientID": "podlane"},
        "items": [{"password": SECRET, "name": "x"}],
        "automountServiceAccountToken": True,
        "token": "",
        "secretName": "web",
    }
    assert redact_document(document) == {
        "provider": {"clientSecret": "REDACTED", "clientID": "podlane"},
        "items": [{"password": "REDACTED", "name": "x"}],
        "automountServiceAccountToken": True,
        "token": "",
        "secretName": "web",
    }


@pytest.mark.parametrize(
    "part", ["--", "://", "token", "token=      ", "a.", "eyJ", "$2$", "-----BEGIN PRIVATE KEY-----"]
)
def test_time_grows_with_the_length_only(part: str) -> None:
    """A form whose time grows with the square of the length would take minutes here."""
    redact_text(part.encode() * ((1 << 20) // len(part)))
