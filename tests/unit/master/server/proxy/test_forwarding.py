"""Proxied paths, headers and links."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from master.errors import StatusError
from master.server import routes
from master.server.proxy import forwarding, proxy
from master.server.proxy.forwarding import MAX_PAGE_BYTES, rewrite_links
from master.server.proxy.proxy import Backend

IN_PROJECT = "/api/v1/namespaces/red"


@pytest.mark.parametrize(
    ("path", "target"),
    [
        (f"{IN_PROJECT}/pods/web/log", ("Pod", "red", "web", "log", "")),
        (f"{IN_PROJECT}/pods/web/exec/", ("Pod", "red", "web", "exec", "/")),
        (f"{IN_PROJECT}/pods/web/proxy", ("Pod", "red", "web", "proxy", "")),
        (f"{IN_PROJECT}/pods/https:web:443/proxy/", ("Pod", "red", "https:web:443", "proxy", "/")),
        (
            f"{IN_PROJECT}/pods/https%3Aweb%3A443/proxy/a%2Fb//c/",
            ("Pod", "red", "https:web:443", "proxy", "/a%2Fb//c/"),
        ),
        (f"{IN_PROJECT}/services/web:http/proxy/x", ("Service", "red", "web:http", "proxy", "/x")),
        ("/api/v1/nodes/n1/proxy/stats/summary", ("Node", "", "n1", "proxy", "/stats/summary")),
        ("/api/v1/nodes/n1", None),
        ("/api/v1/nodes/n1/status", None),
        ("/api/v1/nodes/n1/exec", None),
        ("/api/v1/namespaces/red/nodes/n1/proxy", None),
        ("/api/v1/pods/web/log", None),
        (f"{IN_PROJECT}/pods/web/log/more", None),
        (f"{IN_PROJECT}/pods//log", None),
        ("/api/v1/namespaces//pods/web/log", None),
        (f"{IN_PROJECT}/pods/web/eviction", None),
        (f"{IN_PROJECT}/nothings/web/proxy", None),
        ("/apis/apps/v1/namespaces/red/deployments/web/proxy", None),
        (f"//{IN_PROJECT}/pods/web/log", None),
        ("", None),
    ],
)
def test_proxy_path_is_resolved(path: str, target: tuple[str, str, str, str, str] | None) -> None:
    resolved = routes.resolve_proxy(path)
    if resolved is None:
        assert target is None
        return
    info, rest = resolved
    assert (info.resource.kind, info.namespace, info.name, info.subresource, rest) == target


@given(st.text(alphabet="/%ab1:.", max_size=30))
def test_proxy_path_rest_is_unchanged(rest: str) -> None:
    resolved = routes.resolve_proxy(f"{IN_PROJECT}/pods/web/proxy/{rest}")
    assert resolved is not None
    assert resolved[1] == f"/{rest}"


@given(st.text(alphabet="/%ab1:.nodesp", max_size=60))
def test_any_proxy_path_is_resolved_or_rejected(path: str) -> None:
    actual = routes.resolve_proxy(path)
    assert actual is None or actual[0].name


@pytest.mark.parametrize(
    ("name", "backend"),
    [
        ("web", Backend("http", "web", "")),
        ("web:80", Backend("http", "web", "80")),
        (":web:80", Backend("http", "web", "80")),
        ("https:web:", Backend("https", "web", "")),
        ("ftp:web:21", None),
        (":80", None),
        ("", None),
        ("a:b:c:d", None),
    ],
)
def test_proxy_backend_name_is_parsed(name: str, backend: Backend | None) -> None:
    assert proxy.parse_backend(name) == backend


def test_request_headers_are_forwarded() -> None:
    given_ = [
        ("Host", "h"), ("Connection", "keep-alive, X-Hop, Upgrade"), ("Upgrade", "websocket"), ("X-Hop", "1"),
        ("Keep-Alive", "5"), ("TE", "trailers"), ("Transfer-Encoding", "chunked"), ("authorization", "Bearer x"),
        ("Impersonate-User", "u"), ("Impersonate-Extra-a", "b"), ("Cookie", "c"), ("Accept", "a"), ("Accept", "b"),
    ]  # fmt: skip
    remaining = [("Host", "h"), ("Cookie", "c"), ("Accept", "a"), ("Accept", "b")]
    assert forwarding.request_headers(given_) == remaining
    asking = [remaining[0], ("Connection", "keep-alive, X-Hop, Upgrade"), ("Upgrade", "websocket"), *remaining[1:]]
    assert forwarding.request_headers(given_, upgrade=True) == asking


def test_authentication_headers_are_not_forwarded() -> None:
    token = "base64url.bearer.authorization.k8s.io.YWJj"
    given_ = [
        ("X-Remote-User", "u"), ("x-remote-group", "g"), ("X-Remote-Uid", "1"), ("X-Remote-Extra-a", "b"),
        ("X-Remote-Control", "1"), ("Sec-WebSocket-Protocol", f"chat, {token} ,v4.channel.k8s.io"),
        ("sec-websocket-protocol", token), ("Sec-WebSocket-Protocol", "a,b"),
    ]  # fmt: skip
    assert forwarding.request_headers(given_) == [
        ("X-Remote-Control", "1"),
        ("Sec-WebSocket-Protocol", "chat, v4.channel.k8s.io"),
        ("Sec-WebSocket-Protocol", "a,b"),
    ]


def test_pod_neither_gets_nor_sets_the_cookies_of_a_login() -> None:
    sent = [
        ("Cookie", "a=1; __Host-ssn=s;b=2; __Host-csrf=c"), ("cookie", "__Host-ssn=s"), ("Cookie", "c=3;  d"),
    ]  # fmt: skip
    assert forwarding.request_headers(sent) == [("Cookie", "a=1;b=2"), ("Cookie", "c=3;  d")]
    back = [
        ("Set-Cookie", "__Host-ssn=evil; Path=/; Secure"), ("set-cookie", " __Host-csrf =evil"),
        ("Set-Cookie", "=__Host-csrf=evil"), ("Set-Cookie", "session=__Host-ssn"),
    ]  # fmt: skip
    assert forwarding.response_headers(back, PREFIX) == [
        ("Set-Cookie", f"session=__Host-ssn; Path={PREFIX}/"),
        SANDBOXED,
    ]


PREFIX = "/api/v1/namespaces/red/pods/web/proxy"
SANDBOXED = ("Content-Security-Policy", "sandbox allow-downloads allow-forms allow-popups allow-scripts")


@pytest.mark.parametrize(
    ("sent", "received"),
    [
        ("a=b", f"a=b; Path={PREFIX}/"),
        ("a=b; Path=/", f"a=b; Path={PREFIX}/"),
        ("a=b; path = /oauth ;Secure", f"a=b;Secure; Path={PREFIX}/oauth"),
        ("a=b; Path=/login; Path=/oauth/token", f"a=b; Path={PREFIX}/oauth/token"),
        ("a=b; Path=", f"a=b; Path={PREFIX}/"),
        ("a=b; Path=x", f"a=b; Path={PREFIX}/"),
        (f"a=b; Path={PREFIX}/app", f"a=b; Path={PREFIX}/app"),
        (f"a=b; Path={PREFIX}", f"a=b; Path={PREFIX}"),
        (f"a=b; Path={PREFIX}er", f"a=b; Path={PREFIX}{PREFIX}er"),
        ("a=b; Domain=example.com; HttpOnly; SameSite=None", f"a=b; HttpOnly; SameSite=None; Path={PREFIX}/"),
        ("a=b; Max-Age=0", f"a=b; Max-Age=0; Path={PREFIX}/"),
        ("", f"; Path={PREFIX}/"),
    ],
)
def test_cookie_of_a_pod_comes_back_to_the_pod_only(sent: str, received: str) -> None:
    for upgrade in (False, True):
        assert forwarding.response_headers([("Set-Cookie", sent)], PREFIX, upgrade=upgrade) == [
            ("Set-Cookie", received),
            SANDBOXED,
        ]
    assert forwarding.response_headers([("Set-Cookie", sent)]) == [SANDBOXED]


@given(st.text(alphabet=st.sampled_from("pathPATH=/; \tdomain%.,"), max_size=40))
def test_any_cookie_of_a_pod_has_one_path_below_its_prefix(text: str) -> None:
    (_, value), _ = forwarding.response_headers([("Set-Cookie", f"a=b;{text}")], PREFIX)
    attributes = [part.partition("=") for part in value.split(";")[1:]]
    paths = [content.strip() for name, _, content in attributes if name.strip().lower() == "path"]
    assert len(paths) == 1
    assert paths[0] == PREFIX or paths[0].startswith(f"{PREFIX}/")
    assert "domain" not in [name.strip().lower() for name, _, _ in attributes]


OF_THE_ORIGIN = (
    *("Accept-CH", "Activate-Storage-Access", "Alt-Svc", "Authentication-Info", "Clear-Site-Data", "Critical-CH"),
    *("Expect-CT", "NEL", "Observe-Browsing-Topics", "Origin-Agent-Cluster", "Origin-Trial", "Public-Key-Pins"),
    *("Public-Key-Pins-Report-Only", "Report-To", "Reporting-Endpoints", "Service-Worker-Allowed", "Set-Login"),
    *("Speculation-Rules", "Strict-Transport-Security", "Supports-Loading-Mode", "Timing-Allow-Origin"),
    *("Use-As-Dictionary", "WWW-Authenticate", "X-Permitted-Cross-Domain-Policies", "Access-Control-Allow-Origin"),
    *("Access-Control-Allow-Private-Network", "Access-Control-Expose-Headers", "Access-Control-Max-Age"),
    *("Attribution-Reporting-Register-Source", "Secure-Session-Registration", "Sec-Session-Registration"),
)
OF_THE_PAGE = (
    *("Cache-Control", "Content-Disposition", "Content-Encoding", "Content-Language", "Content-Type", "ETag", "Link"),
    *("Location", "Refresh", "Retry-After", "Vary", "Warning", "X-Content-Type-Options", "X-Frame-Options", "X-Pod"),
    *("Cross-Origin-Opener-Policy", "Permissions-Policy", "Referrer-Policy", "Sec-WebSocket-Accept"),
    *("Sec-WebSocket-Protocol", "Server-Timing", "X-Stream-Protocol-Version"),
)


@pytest.mark.parametrize("upgrade", [False, True])
def test_headers_of_a_pod_concern_its_page_and_not_the_origin(upgrade: bool) -> None:
    for name in OF_THE_ORIGIN:
        for spelled in (name, name.lower(), name.upper()):
            assert forwarding.response_headers([(spelled, "*")], PREFIX, upgrade=upgrade) == [SANDBOXED], spelled
    for name in OF_THE_PAGE:
        assert forwarding.response_headers([(name, "*")], PREFIX, upgrade=upgrade) == [(name, "*"), SANDBOXED]


def test_policy_of_a_page_remains_beside_the_sandbox() -> None:
    own = ("Content-Security-Policy", "sandbox allow-same-origin; default-src 'self'")
    assert forwarding.response_headers([own], PREFIX) == [own, SANDBOXED]


def test_non_text_headers_are_rejected() -> None:
    output, lost = "gr\u00fc\u00df \U0001f600", b"gr\xfc\xdf".decode("utf-8", "surrogateescape")
    assert (
        forwarding.request_headers([("X-A", output)])
        == forwarding.response_headers([("X-A", output)])[:-1]
        == [("X-A", output)]
    )
    with pytest.raises(StatusError, match="the value of the header X-A is not UTF-8") as refused:
        forwarding.request_headers([("X-A", lost)])
    assert refused.value.status.code == 400
    with pytest.raises(StatusError, match="the value of the header X-A of its response is not UTF-8") as refused:
        forwarding.response_headers([("X-A", lost)])
    assert refused.value.status.code == 503


def test_response_headers_are_forwarded() -> None:
    given_ = [("Access-Control-Allow-Origin", "*"), ("Set-Cookie", "a"), ("Set-Cookie", "b"), ("Connection", "close")]
    cookies = [("Set-Cookie", f"a; Path={PREFIX}/"), ("Set-Cookie", f"b; Path={PREFIX}/")]
    assert forwarding.response_headers(given_, PREFIX) == [*cookies, SANDBOXED]


def moved(url: str) -> str:
    return f"/p{url}" if url.startswith("/") else url


@pytest.mark.parametrize(
    ("page", "seen"),
    [
        ('<a href="/rewriteme">test</a>', '<a href="/p/rewriteme">test</a>'),
        ("<A class=x HREF = '/x'>", "<A class=x HREF = '/p/x'>"),
        ('<img alt="/x" src="/x" /><img srcset="/x">', '<img alt="/x" src="/p/x" /><img srcset="/x">'),
        ('<a href="there"><a href="?a=1">', '<a href="there"><a href="?a=1">'),
        ('<div href="/x">/x</div> <p>href="/x"', '<div href="/x">/x</div> <p>href="/x"'),
        ('<a href="/x?a=1&amp;b=2">', '<a href="/p/x?a=1&amp;b=2">'),
        ('<a title="> href=" href="/x">', '<a title="> href=" href="/p/x">'),
        ('<!-- <a href="/x"> --><a href="/x">', '<!-- <a href="/x"> --><a href="/p/x">'),
        ('<script src="/s">\'<a href="/x">\'</script>', '<script src="/p/s">\'<a href="/x">\'</script>'),
        ("<a href=/x", "<a href=/x"),
    ],
)
def test_html_links_are_rewritten(page: str, seen: str) -> None:
    assert rewrite_links(page.encode(), moved).decode() == seen


@pytest.mark.parametrize(
    "part", ["<!--", "<script", "<script>", "<a '", "<a \"'", "<a ", "<a href='/x", "</script ", '<a""\'']
)
def test_pathological_pages_are_rewritten_in_time(part: str) -> None:
    page = part.encode() * (MAX_PAGE_BYTES // len(part))
    assert rewrite_links(page, lambda url: url) == page


@given(st.binary(max_size=200))
def test_page_without_links_is_unchanged(page: bytes) -> None:
    assert rewrite_links(page, lambda url: url) == page


@given(st.text(alphabet="<a href='/x\">!-script/", max_size=80))
def test_any_page_is_rewritten(page: str) -> None:
    assert rewrite_links(page.encode(), lambda url: url).decode() == page
