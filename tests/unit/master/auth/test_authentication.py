"""Bearer tokens in the header and in the subprotocols of WebSocket handshakes."""

from __future__ import annotations

import base64

import pytest
from multidict import CIMultiDict

from master.auth.authentication import authorization_header
from master.errors import StatusError

PROTOCOL = "base64url.bearer.authorization.k8s.io."


def encoded(token: bytes) -> str:
    return PROTOCOL + base64.urlsafe_b64encode(token).decode().rstrip("=")


def handshake(*protocols: str, **headers: str) -> CIMultiDict[str]:
    lines = [("Sec-WebSocket-Protocol", protocol) for protocol in protocols]
    return CIMultiDict([("Upgrade", "websocket"), *lines, *headers.items()])


@pytest.mark.parametrize("token", [b"a", b"ab", b"abc", b"ey.J-_", "é?>".encode()])
def test_token_of_a_handshake_is_a_bearer_token(token: bytes) -> None:
    expected = f"bearer {token.decode()}"
    assert authorization_header(handshake(f"v5.channel.k8s.io, {encoded(token)}")) == expected
    assert authorization_header(handshake(encoded(token), "v5.channel.k8s.io")) == expected


def test_header_has_precedence() -> None:
    assert authorization_header(handshake(encoded(b"a"), "x", Authorization="Bearer b")) == "Bearer b"
    assert authorization_header(CIMultiDict(Authorization="Bearer b")) == "Bearer b"


def test_other_requests_have_no_token() -> None:
    assert authorization_header(CIMultiDict()) == ""
    assert authorization_header(handshake("v5.channel.k8s.io")) == ""
    assert authorization_header(CIMultiDict({"Sec-WebSocket-Protocol": f"x, {encoded(b'a')}"})) == ""


@pytest.mark.parametrize(
    "protocols",
    [
        (encoded(b"a"),),
        (encoded(b"a"), encoded(b"b"), "x"),
        (PROTOCOL, "x"),
        (f"{PROTOCOL}a", "x"),
        (f"{PROTOCOL}%41", "x"),
        (encoded(b"\xff"), "x"),
        (f"{PROTOCOL}é", "x"),
    ],
)
def test_invalid_token_of_a_handshake_is_rejected(protocols: tuple[str, ...]) -> None:
    with pytest.raises(StatusError) as rejected:
        authorization_header(handshake(*protocols))
    assert rejected.value.status.code == 401
