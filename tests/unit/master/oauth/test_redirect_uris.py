"""Where users are sent back: every program that reads an accepted URI goes to the place that the client registered."""

from __future__ import annotations

from collections.abc import Sequence
from urllib.parse import parse_qsl, unquote, urljoin, urlsplit

import pytest
from hypothesis import given
from hypothesis import strategies as st
from yarl import URL

from master.oauth.redirect_uris import (
    MAX_URI_LENGTH,
    match_redirect_uri,
    origin,
    server_relative,
    with_fragment,
    with_query,
)

REGISTERED = (
    "https://app.example/back",
    "https://app.example:8443/a/b",
    "http://127.0.0.1/callback",
    "http://[::1]/callback",
)

PIECES = st.sampled_from(
    [
        *(
            "http:",
            "https:",
            "HTTPS:",
            "javascript:",
            "/",
            "//",
            "\\",
            "\\\\",
            "@",
            ":",
            "?",
            "#",
            ";",
            "&",
            "=",
            ".",
            "..",
        ),
        *("app.example", "APP.example", "app.example.", "app.example:443", "evil.example", "127.0.0.1", "[::1]", "::1"),
        *("[::1%25lo]", "localhost", "127.1", "0x7f000001", "[::ffff:127.0.0.1]", ":8443", ":1", ":99999", ":", ":+1"),
        *("/back", "/a/b", "/callback", "/x", "/.", "/..", "/..;x", "/%2e%2e", "/%252e", "%2f", "%5c", "%00", "%0d%0a"),
        *("\t", "\n", "\r", "\0", " ", "\u2028", "\u3002", "\uff0f", "\u0435", "\xa0", "code=x", "state=x", "x=y"),
        *REGISTERED,
    ]
)
URIS = st.one_of(
    st.builds(lambda base, rest: base + "".join(rest), st.sampled_from(REGISTERED), st.lists(PIECES, max_size=4)),
    st.lists(PIECES, max_size=8).map("".join),
    st.builds(
        lambda base, at, piece: base[:at] + piece + base[at:], st.sampled_from(REGISTERED), st.integers(0, 40), PIECES
    ),
    st.text(max_size=30),
)


def browser_origin(uri: str, base: str = "") -> str:
    """Return scheme, host and port as the URL standard of browsers reads them; `!` if it reads no host.

    Without a scheme, the URI is relative to `base`.
    """
    text = "".join(character for character in uri.strip("".join(map(chr, range(33)))) if character not in "\t\n\r")
    scheme, colon, rest = text.partition(":")
    text = text.replace("\\", "/")
    if not colon or not scheme[:1].isalpha() or not scheme.replace("+", "").replace(".", "").isalnum():
        return browser_origin(urlsplit(base).scheme + ":" + text) if text.startswith("//") else browser_origin(base)
    if scheme.lower() not in ("http", "https"):
        return f"{scheme.lower()}:!"
    authority = rest.replace("\\", "/").lstrip("/").partition("/")[0].partition("?")[0].partition("#")[0]
    host = authority.rpartition("@")[2].lower()
    if host.startswith("["):
        address, bracket, port = host.partition("]")
        if not bracket or (port and not port.startswith(":")):
            return "!"
        host = f"{address}]"
        port = port.removeprefix(":")
    else:
        host, _, port = unquote(host).partition(":")
    standard = {"http": "80", "https": "443"}[scheme.lower()]
    return f"{scheme.lower()}://{host}:{port or standard}"


def path_of(uri: str) -> str:
    """Return the path after programs have decoded it twice and resolved it."""
    parts = urlsplit(urljoin(uri, urlsplit(unquote(unquote(uri))).path.replace("\\", "/")))
    return "/".join(segment.partition(";")[0] for segment in parts.path.split("/"))


@given(URIS)
def test_all_parsers_read_a_registered_place_in_an_accepted_uri(requested: str) -> None:
    accepted = match_redirect_uri(REGISTERED, requested)
    if not accepted:
        return
    assert accepted == requested
    parts, url = urlsplit(requested), URL(requested)
    assert (parts.scheme, parts.hostname, parts.fragment, parts.username) == (url.scheme, url.host, "", None)
    bases = [base for base in REGISTERED if urlsplit(base).scheme == parts.scheme]
    is_loopback = parts.scheme == "http"
    assert is_loopback or parts.netloc in [urlsplit(base).netloc for base in bases]
    assert not is_loopback or parts.hostname in ("127.0.0.1", "::1") or str(parts.hostname).startswith("127.")
    host = f"[{parts.hostname}]" if ":" in str(parts.hostname) else parts.hostname
    assert browser_origin(requested) == f"{parts.scheme}://{host}:{parts.port or (80 if is_loopback else 443)}"
    assert any(f"{path_of(requested)}/".startswith(f"{urlsplit(base).path}/") for base in bases)
    assert not {"code", "state", "error", "access_token"} & {name for name, _ in parse_qsl(parts.query)}


@pytest.mark.parametrize(
    ("requested", "is_accepted"),
    [
        ("https://app.example/back", True),
        ("https://app.example/back/", True),
        ("https://app.example/back/deep/er?x=1", True),
        ("https://app.example/back?next=%2F..%2F", True),
        ("http://127.0.0.1:50000/callback", True),
        ("http://[::1]:50000/callback", True),
        ("http://127.9.9.9:1/callback", True),
        ("https://app.example/", False),
        ("https://app.example/backdoor", False),
        ("https://app.example/back/../x", False),
        ("https://app.example/back/..", False),
        ("https://app.example/back/..;/x", False),
        ("https://app.example/back/..;a=b/x", False),
        ("https://app.example/back//evil.example", False),
        ("https://app.example/back/%2E%2e/x", False),
        ("https://app.example/back/%252e%252e/x", False),
        ("https://app.example/back/..%3b/x", False),
        ("https://app.example/back/%5c..", False),
        ("https://app.example/back?code=stolen", False),
        ("https://app.example/back?a=b&STATE=x", False),
        ("https://app.example/back?a=b;error=x", False),
        ("https://app.example:8443/back", False),
        ("https://app.example:443/back", False),
        ("https://u@app.example/back", False),
        ("https://@app.example/back", False),
        ("https://evil.example\\@app.example/back", False),
        ("http://evil.example[::1]/callback", False),
        ("http://[::1]evil.example/callback", False),
        ("http://[::1%25lo]/callback", False),
        ("http://[::1%lo]/callback", False),
        ("http://127.0.0.1.evil.example/callback", False),
        ("http://127.1/callback", False),
        ("http://2130706433/callback", False),
        ("http://localhost/callback", False),
        ("http://127.0.0.1:99999/callback", False),
        ("https:/app.example/back", False),
        ("https:app.example/back", False),
        (f"https://app.example/back/{'x' * MAX_URI_LENGTH}", False),
    ],
)
def test_requested_uri_is_at_or_below_a_registered_one(requested: str, is_accepted: bool) -> None:
    assert match_redirect_uri(REGISTERED, requested) == (requested if is_accepted else "")


@pytest.mark.parametrize(
    ("registered", "expected"), [((), ""), (("https://a/x",), "https://a/x"), (("https://a", "https://b"), "")]
)
def test_only_registered_uri_is_the_default(registered: Sequence[str], expected: str) -> None:
    assert match_redirect_uri(registered, "") == expected


def test_parameter_of_a_response_is_accepted_if_it_is_registered() -> None:
    uri = "https://a.example/?state=fixed"
    assert match_redirect_uri((uri,), uri) == uri
    assert match_redirect_uri((uri,), "https://a.example/?state=other") == ""


def test_application_scheme_matches_its_own_paths() -> None:
    registered = ("com.example.app:/back",)
    assert match_redirect_uri(registered, "com.example.app:/back") == "com.example.app:/back"
    for other in ("com.example.other:/back", "com.example.app:/other", "com.example.app://evil.example/back"):
        assert match_redirect_uri(registered, other) == ""


# --- paths of this server ---------------------------------------------------------------------------------------------

SERVER = "https://master.example:8443"


@given(st.one_of(URIS, URIS.map(lambda uri: f"/{uri}"), URIS.map(lambda uri: f"/login?then={uri}")))
def test_server_relative_uri_leads_browsers_to_this_server(uri: str) -> None:
    accepted = server_relative(uri)
    assert accepted in (uri, "")
    if accepted:
        assert browser_origin(accepted, SERVER) == SERVER
        assert URL(SERVER).join(URL(accepted, encoded=True)).origin() == URL(SERVER)
        assert urlsplit(urljoin(SERVER, accepted)).netloc == "master.example:8443"
        assert accepted.isascii()
        assert accepted.isprintable()


@pytest.mark.parametrize("uri", ["/", "/a", "/oauth/authorize?x=%2F%2Fevil", "/.//evil.example", "/..//evil.example"])
def test_path_of_this_server_is_accepted(uri: str) -> None:
    assert server_relative(uri) == uri


@pytest.mark.parametrize(
    "uri",
    [
        "",
        "a",
        "//evil",
        "///evil",
        "/\\evil",
        "\\/evil",
        "/\t/evil",
        "/\n/evil",
        "/a\r\nX: y",
        "https:/x",
        "/a b",
        "/ü",
        "/\0",
    ],
)
def test_path_that_may_lead_elsewhere_is_refused(uri: str) -> None:
    assert server_relative(uri) == ""


# --- parameters -------------------------------------------------------------------------------------------------------


@given(st.dictionaries(st.text(), st.text(), max_size=4))
def test_added_parameters_are_read_back(parameters: dict[str, str]) -> None:
    for uri in ("https://a.example/x", "https://a.example/x?y=1"):
        query = with_query(uri, parameters)
        assert query.isascii()
        assert query.isprintable()
        read = parse_qsl(urlsplit(query).query, keep_blank_values=True)
        assert [pair for pair in read if pair != ("y", "1")] == [
            pair for pair in parameters.items() if pair != ("y", "1")
        ]
        fragment = urlsplit(with_fragment(uri, parameters)).fragment
        assert dict(parse_qsl(fragment, keep_blank_values=True)) == parameters


@given(URIS)
def test_origin_adds_no_directive_to_a_policy(uri: str) -> None:
    text = origin(uri)
    assert not set(text) & set(" ;,'\"*\\\r\n")
    is_scheme = text.endswith(":") and text.removesuffix(":") == urlsplit(uri).scheme
    assert text == "" or is_scheme or match_redirect_uri((f"{text}/",), f"{text}/") == f"{text}/"
