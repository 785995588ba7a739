"""Paths that lead through the master to a node or into a pod. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from urllib.parse import unquote, urlsplit, urlunsplit

from master.kinds import BY_RESOURCE
from master.wire import answers
from master.wire.request import Target

PROXY = "proxy"

METHODS = frozenset(("GET", "POST", "PUT", "PATCH", "DELETE", "HEAD", "OPTIONS"))
"""What a proxy passes on."""

HOP_BY_HOP = frozenset(
    ("connection", "keep-alive", "proxy-authenticate", "proxy-authorization", "proxy-connection", "te", "trailer")
) | {"transfer-encoding", "upgrade"}
"""Headers that are between two neighbours (RFC 9110, 7.6.1)."""

FOR_THE_MASTER = (
    "authorization",
    "impersonate-",
    *(f"x-remote-{what}" for what in ("user", "uid", "group", "extra-")),
)
"""Beginnings of headers that say who asks the master, and are nobody else's affair."""

WEBSOCKET, TOKEN = "sec-websocket-protocol", "base64url.bearer.authorization.k8s.io."
"""Browsers, which set no other header, say who they are in a protocol of this beginning."""

OF_OTHER_SITES = frozenset(f"access-control-allow-{what}" for what in ("credentials", "headers", "methods", "origin"))
"""Headers by which a pod would open the master's own address to pages of others."""


@dataclass(frozen=True, slots=True)
class Passage:
    """What leads through: the object that is asked, and of a proxy the rest of the path, raw, from its slash on."""

    where: Target
    path: str = ""


def passage(raw_path: str) -> Passage | None:
    """What a path as it came leads through to; None if it is another path."""
    match raw_path.split("/"):
        case ["", "api", "v1", "namespaces", namespace, plural, name, subresource, *rest] if namespace and name:
            found = BY_RESOURCE.get(("", "v1", plural))
            scope = unquote(namespace)
        case ["", "api", "v1", plural, name, subresource, *rest] if name:
            found, scope = BY_RESOURCE.get(("", "v1", plural)), ""
        case _:
            return None
    if found is None or found.namespaced != bool(scope):
        return None
    part = found.subresource(subresource)
    if part is None or not part.through or (rest not in ([], [""]) and subresource != PROXY):
        return None
    return Passage(Target(found, scope, unquote(name), subresource), "/" + "/".join(rest) if rest else "")


@dataclass(frozen=True, slots=True)
class Backend:
    """The name in the path of a proxy: NAME, NAME:PORT or SCHEME:NAME:PORT."""

    scheme: str
    name: str
    port: str


def backend(name: str) -> Backend | None:
    """What a name in the path of a proxy means; None if it means nothing."""
    match name.split(":"):
        case [plain]:
            found = Backend("http", plain, "")
        case [plain, port]:
            found = Backend("http", plain, port)
        case [scheme, plain, port] if scheme in ("", "http", "https"):
            found = Backend(scheme or "http", plain, port)
        case _:
            return None
    return found if found.name else None


def passed_on(headers: list[tuple[str, str]], *, upgrade: bool = False) -> list[tuple[str, str]]:
    """Headers of a request that the other side gets, too; with those that ask for another protocol. Raises Failure."""
    if name := _unsayable(headers):
        raise answers.bad_request(f"the value of the header {name} is not UTF-8")
    return list(_without_tokens(_without(headers, FOR_THE_MASTER, upgrade=upgrade)))


def passed_back(headers: list[tuple[str, str]], *, upgrade: bool = False) -> list[tuple[str, str]]:
    """Headers of an answer that the client gets, too. Raises Failure."""
    if name := _unsayable(headers):
        text = f"error trying to reach service: the value of the header {name} of its answer is not UTF-8"
        raise answers.failure(503, "ServiceUnavailable", text)
    return [pair for pair in _without(headers, (), upgrade=upgrade) if pair[0].lower() not in OF_OTHER_SITES]


def _without(headers: list[tuple[str, str]], others: tuple[str, ...], *, upgrade: bool) -> list[tuple[str, str]]:
    named = {token for key, value in headers if key.lower() == "connection" for token in _tokens(value)}
    dropped = HOP_BY_HOP | named
    kept = {"connection", "upgrade"} if upgrade else set()
    return [
        (key, value)
        for key, value in headers
        if (key.lower() in kept or key.lower() not in dropped) and not key.lower().startswith(others or ("\0",))
    ]


def _unsayable(headers: list[tuple[str, str]]) -> str:
    """The name of a header whose value would not arrive as it came: bytes that are no text stand as lone surrogates."""
    return next((key for key, value in headers if any("\ud800" <= letter <= "\udfff" for letter in value)), "")


def _without_tokens(headers: list[tuple[str, str]]) -> Iterator[tuple[str, str]]:
    for key, value in headers:
        if key.lower() != WEBSOCKET or TOKEN not in value:
            yield key, value
            continue
        kept = [one.strip() for one in value.split(",") if not one.strip().startswith(TOKEN)]
        if kept:
            yield key, ", ".join(kept)


def wants_upgrade(connection: list[str]) -> bool:
    """Whether a client asks for another protocol, by its headers Connection."""
    return any("upgrade" in value.lower() for value in connection)


def _tokens(value: str) -> list[str]:
    return [token.strip().lower() for token in value.split(",")]


def location(target: str, prefix: str, hosts: tuple[str, ...]) -> str:
    """Where a redirect of a backend leads, seen from outside: below `prefix`, if it stays at one of the hosts."""
    try:
        parts = urlsplit(target)
    except ValueError:
        return target
    if (parts.netloc and parts.netloc not in hosts) or not parts.path.startswith("/"):
        return target
    path = parts.path if parts.path.startswith(prefix) else prefix + parts.path
    return urlunsplit(("", "", path, parts.query, parts.fragment))
