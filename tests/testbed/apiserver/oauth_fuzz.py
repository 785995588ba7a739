"""Hostile requests to an OAuth server, made at random, and what must hold for every response."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import random
import re
import ssl
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from urllib.parse import urlencode, urlsplit

METHODS = ("GET", "POST", "HEAD", "PUT", "OPTIONS", "DELETE", "PATCH", "TRACE", "BREW")
PATHS = (
    *("/oauth/authorize", "/oauth/token", "/login", "/oauth/authorize/approve", "/oauth/token/display"),
    *("/oauth/token/request", "/oauth/token/implicit", "/oauth/info", "/logout", "/oauth2callback/local"),
    *("/oauth2callback/proxy", "/login/local", "/login/none"),
    *("/.well-known/oauth-authorization-server", "/oauth/style.css", "/oauth/", "/oauth/authorize/", "/oauth/./token"),
    *("//oauth/authorize", "/OAuth/authorize", "/oauth%2fauthorize", "/%6fauth/authorize", "/oauth/../oauth/authorize"),
    *(
        "/login/../oauth/token",
        "/login//evil.example",
        "/login/%2f%2fevil.example",
        "/oauth/authorize;x",
        "/login/\\evil",
    ),
    *("/oauth/authorize%00", "/oauth/authorize%0d%0aX:y", "/login/%ff", "/oauth/\u00e9", "/\u2028login"),
)
NAMES = (
    *("client_id", "redirect_uri", "response_type", "scope", "state", "code_challenge", "code_challenge_method", "idp"),
    *("then", "csrf", "username", "password", "reason", "code", "code_verifier", "grant_type", "client_secret"),
    *("error", "error_description", "approve", "deny", "user_name", "access_token", "prompt", "\u00e9", "", "scope[]"),
)
PLAIN = (
    *("code", "token", "openshift-challenging-client", "openshift-browser-client", "openshift-cli-client", "strict"),
    *("system:serviceaccount:default:default", "system:serviceaccount::", "user:full", "user:info role:admin:x:!"),
    *("authorization_code", "password", "refresh_token", "S256", "plain", "local", "proxy", "access_denied", "alice"),
    *("sha256~" + "x" * 43, "c" * 43, "https://app.example/back", "https://app.example/back/../x", "//evil.example/"),
    *("https://evil.example/", "http://127.0.0.1:1/callback", "http://evil.example[::1]/callback", "/\\evil.example"),
    *("/oauth/authorize?client_id=strict&response_type=code", "/oauth/authorize", "javascript:alert(1)", "/x", "/"),
    *("https://app.example@evil.example/back", "https://app.example\\@evil.example/back", "<script>alert(1)</script>"),
    *("https://app.example/back?code=x", "https://app.example/back%0d%0aLocation:x", "data:text/html,x", "role:a:*:!"),
)
PIECES = (
    *("", " ", "\0", "\r\n", "\t", "\u2028", "\u202e", "\ufeff", "\ud800", "\u00e9", "\U0001f600", "%", "%zz", "%00"),
    *("%0d%0a", '"', "'", "<", ">", "&", "=", ";", "#", "?", "/", "\\", "@", ":", ".", "..", "x" * 300, "9" * 40, "~"),
)
HEADERS = (
    *("Authorization", "Authorization", "Cookie", "Cookie", "X-CSRF-Token", "X-CSRF-Token", "Content-Type"),
    *("X-Remote-User", "Host", "Origin", "Referer", "X-Forwarded-For", "X-Forwarded-Host", "X-HTTP-Method-Override"),
    *("Accept", "Accept-Language", "Impersonate-User", "Upgrade", "Sec-WebSocket-Protocol", "Range", "If-None-Match"),
)
FORM = "application/x-www-form-urlencoded"
TYPES = (FORM, FORM, FORM, FORM, f"{FORM}; charset=utf-7", "application/json", "multipart/form-data; boundary=x", "")


@dataclass(frozen=True, slots=True)
class Secrets:
    """What an attacker has: values of `__Host-ssn` and `__Host-csrf`, codes, and the secret of the client `strict`."""

    sessions: tuple[str, ...] = ("x" * 100,)
    csrf: str = "c" * 43
    codes: tuple[str, ...] = ("sha256~x",)
    client_secret: str = "s"


def hostile_request(chance: random.Random, secrets: Secrets) -> bytes:
    """Return a random request. Most of it is near to a valid one, because other requests end at the first check."""
    method, path, start = chance.choice(_valid_requests(chance, secrets))
    if chance.random() < 0.15:
        method = chance.choice(METHODS)
    if chance.random() < 0.15:
        path = chance.choice(PATHS)
    parameters, body, headers = _parameters(chance, start), b"", [("Host", "127.0.0.1")]
    if method in ("POST", "PUT", "PATCH"):
        parameters, body = (_parameters(chance, ()) if chance.random() < 0.1 else b""), parameters
        if chance.random() < 0.02:
            body = body * (1 + (70 << 10) // max(1, len(body)))
        headers += [("Content-Type", chance.choice(TYPES))] if chance.random() < 0.97 else []
    if chance.random() < 0.8:
        headers.append(("Cookie", f"__Host-csrf={secrets.csrf}; __Host-ssn={chance.choice(secrets.sessions)}"))
    headers += [_header(chance, secrets) for _ in range(chance.choice((0, 0, 0, 1, 2)))]
    target = path.encode("utf-8", "surrogatepass") + (b"?" + parameters if parameters else b"")
    if chance.random() < 0.02:
        target = b"https://evil.example" + target
    lines = [method.encode() + b" " + target.replace(b" ", b"%20") + b" HTTP/1.1"]
    lines += [name.encode() + b": " + value.encode("utf-8", "surrogatepass") for name, value in headers]
    lines += [b"Content-Length: " + str(len(body)).encode()] if body or method == "POST" else []
    return b"\r\n".join((*lines, b"", body))


Parameters = Sequence[tuple[str, str]]


def _valid_requests(chance: random.Random, secrets: Secrets) -> Sequence[tuple[str, str, Parameters]]:
    """Return requests that succeed, or that fail at the last check: method, path and parameters."""
    code, csrf = chance.choice(secrets.codes), ("csrf", secrets.csrf)
    # Each failed login is one of another person, because the next one of the same person would have to wait.
    name = f"user-{chance.randrange(1 << 32)}"
    strict, back = ("client_id", "strict"), ("redirect_uri", "https://app.example/back")
    cli, challenge = ("client_id", "openshift-cli-client"), ("code_challenge", "c" * 43)
    redemption = (("grant_type", "authorization_code"), ("code", code), ("client_secret", secrets.client_secret))
    return (
        ("GET", "/oauth/authorize", (strict, back, ("response_type", "code"), ("state", "s"))),
        ("POST", "/oauth/authorize", (strict, back, ("response_type", "token"), ("scope", "user:info"))),
        (
            "GET",
            "/oauth/authorize",
            (cli, challenge, ("response_type", "code"), ("redirect_uri", "http://[::1]:1/callback")),
        ),
        ("GET", "/oauth/authorize", (("client_id", "openshift-browser-client"), ("response_type", "code"))),
        ("GET", "/oauth/authorize/approve", (strict, back, ("scope", "user:info"), ("then", "/oauth/authorize?x"))),
        (
            *("POST", "/oauth/authorize/approve"),
            (
                strict,
                back,
                csrf,
                ("then", "/oauth/authorize?client_id=strict"),
                ("user_name", "alice"),
                ("approve", "y"),
            ),
        ),
        ("POST", "/oauth/token", (*redemption, strict, back)),
        ("POST", "/oauth/token", (*redemption, cli, ("code_verifier", "c" * 43), back)),
        ("POST", "/oauth/token/display", (csrf, ("code", code))),
        ("GET", "/oauth/token/display", (("code", code),)),
        ("GET", "/login", (("then", "/oauth/authorize?client_id=strict"), ("reason", "busy"))),
        ("POST", "/login", (csrf, ("then", "/oauth/authorize"), ("username", name), ("password", "wrong"))),
        ("POST", "/logout", (("then", "/x"),)),
        ("GET", "/oauth2callback/local", (("code", code), ("state", "Y3NyZj0"))),
        ("GET", "/oauth/info", (("code", code),)),
        ("GET", chance.choice(PATHS), ()),
    )


def _value(chance: random.Random) -> str:
    value = chance.choice(PLAIN)
    if chance.random() < 0.35:
        at = chance.randrange(len(value) + 1)
        value = value[:at] + chance.choice(PIECES) + value[at:]
    return "".join(chance.choices(PIECES, k=4)) if chance.random() < 0.05 else value


def _parameters(chance: random.Random, start: Parameters) -> bytes:
    """Return a query or a form: the parameters, with some left out, doubled, changed or added."""
    kept = [pair for pair in start if chance.random() < 0.95]
    pairs = [(name, _value(chance) if chance.random() < 0.1 else value) for name, value in kept]
    pairs += [(chance.choice(NAMES), _value(chance)) for _ in range(chance.choice((0, 0, 0, 1, 2)))]
    if chance.random() < 0.01:
        pairs *= 60
    if chance.random() < 0.9:
        return urlencode(pairs, errors="replace").encode()
    text = "&".join(f"{name}={value}" for name, value in pairs)
    return text.encode("utf-16" if chance.random() < 0.1 else "utf-8", "surrogatepass").replace(b"\r\n", b"%0D%0A")


def _header(chance: random.Random, secrets: Secrets) -> tuple[str, str]:
    name = chance.choice(HEADERS)
    value = _value(chance)
    if name == "Authorization":
        credentials = f"{chance.choice((str(chance.random()), value))}:{chance.choice(('', 'wrong', value))}"
        encoded = base64.b64encode(credentials.encode("utf-8", "surrogatepass")).decode()
        value = chance.choice((f"Basic {encoded}", f"Bearer {value}", f"basic {encoded[:-1]}", "Basic", value))
    if name == "Cookie":
        random_session = base64.urlsafe_b64encode(chance.randbytes(60)).decode()
        session = chance.choice((*secrets.sessions, *secrets.sessions, random_session, value))
        value = f"__Host-csrf={chance.choice((secrets.csrf, secrets.csrf, value))}; __Host-ssn={session}"
    return name, value.replace("\r", "").replace("\n", "").replace("\0", "")


def fault(response: bytes, origins: Iterable[str]) -> str:
    """Return what is wrong with a response; empty if nothing is. `origins` are those to which it may redirect."""
    head, _, body = response.partition(b"\r\n\r\n")
    lines = head.split(b"\r\n")
    status = int(lines[0].split()[1])
    if status >= 500:
        return f"status {status}"
    names = [line.partition(b":")[0].strip().lower() for line in lines[1:]]
    doubled = [name for name in (b"location", b"content-type", b"content-length") if names.count(name) > 1]
    if doubled or b"x" in names:
        return f"the response has the headers {names}"
    if b"text/html" in head and b"<script" in body.lower():
        return "the page has a script"
    location = location_of(response)
    is_here = location.startswith("/") and not location.startswith(("//", "/\\"))
    is_registered = "{0.scheme}://{0.netloc}".format(urlsplit(location)) in origins
    is_text = location.isascii() and location.isprintable()
    return "" if not location or (is_text and (is_here or is_registered)) else f"redirects to {location!r}"


def location_of(response: bytes) -> str:
    """Return where a response redirects; empty if it does not."""
    lines = response.partition(b"\r\n\r\n")[0].split(b"\r\n")
    return next((line[9:].strip().decode() for line in lines if line.lower().startswith(b"location:")), "")


class RawConnection:
    """A TLS connection that sends requests as bytes. It connects again when the server closes it.

    Each connection has another source, so the failed logins of one do not delay those of another.
    """

    def __init__(self, address: str, port: int, context: ssl.SSLContext) -> None:
        self._address, self._port, self._context = address, port, context
        self._sources = (f"127.{a}.{b}.{c}" for a in range(1, 255) for b in range(255) for c in range(1, 255))
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def send(self, request: bytes) -> bytes:
        """Return the response: head and body; nothing if the server closes the connection instead."""
        is_reused = self._streams is not None
        return await self._exchange(request) or (await self._exchange(request) if is_reused else b"")

    async def _exchange(self, request: bytes) -> bytes:
        if self._streams is None:
            source = (next(self._sources), 0)
            self._streams = await asyncio.open_connection(
                self._address, self._port, ssl=self._context, local_addr=source
            )
        reader, writer = self._streams
        try:
            writer.write(request)
            head = await reader.readuntil(b"\r\n\r\n")
            match = re.search(rb"(?i)\r\ncontent-length: *([0-9]+)", head)
            has_body = match is not None and not request.startswith(b"HEAD ")
            body = await reader.readexactly(int(match[1])) if match is not None and has_body else b""
        except (asyncio.IncompleteReadError, ConnectionError):
            await self.close()
            return b""
        if re.search(rb"(?i)\r\nconnection: *close", head) or match is None:
            await self.close()
        return head + body

    async def close(self) -> None:
        """Close the connection."""
        if self._streams is not None:
            writer, self._streams = self._streams[1], None
            writer.close()
            with contextlib.suppress(ConnectionError, ssl.SSLError):
                await writer.wait_closed()
