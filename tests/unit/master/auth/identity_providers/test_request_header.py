"""The provider RequestHeader: headers count only with a certificate of the proxy."""

from __future__ import annotations

import datetime
from dataclasses import replace
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding
from multidict import CIMultiDict

from master.auth import pki
from master.auth.identity_providers.provider import ProviderError, ProviderIdentity
from master.auth.identity_providers.request_header import HeaderNames, RequestHeaderProvider
from tests.unit.master.signing import NOW

HEADERS = CIMultiDict({"x-remote-user": "1001", "X-Remote-Login": "alice", "X-Name": "Alice", "X-Mail": "a@b.example"})
ALICE = ProviderIdentity("proxy", "1001", "Alice", "a@b.example", "alice")


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> pki.Authority:
    return pki.authority(tmp_path_factory.mktemp("ca"), NOW)


@pytest.fixture(scope="module")
def other_authority(tmp_path_factory: pytest.TempPathFactory) -> pki.Authority:
    """Return an authority with the name of the first and another key."""
    return pki.authority(tmp_path_factory.mktemp("ca"), NOW)


def certificate(authority: pki.Authority, common_name: str = "proxy") -> bytes:
    return der(pki.client_identity(authority, common_name, (), NOW).certificate)


def der(pem: bytes) -> bytes:
    return x509.load_pem_x509_certificate(pem).public_bytes(Encoding.DER)


@pytest.fixture
def provider(authority: pki.Authority) -> RequestHeaderProvider:
    names = HeaderNames(("X-SSO-User", "X-Remote-User"), ("X-Remote-Login",), ("X-Name",), ("X-Mail",))
    return RequestHeaderProvider("proxy", "", "", (authority.certificate,), frozenset(("proxy",)), names, lambda: NOW)


def test_headers_with_the_certificate_of_the_proxy_name_the_user(
    provider: RequestHeaderProvider, authority: pki.Authority
) -> None:
    assert provider.authenticate_headers(HEADERS, certificate(authority)) == ALICE
    first = CIMultiDict({**HEADERS, "X-SSO-User": "2", "X-Name": " "})
    assert provider.authenticate_headers(first, certificate(authority)) == replace(
        ALICE, provider_user_name="2", name=""
    )


def test_headers_without_a_certificate_are_ignored(provider: RequestHeaderProvider) -> None:
    assert provider.authenticate_headers(HEADERS, None) is None
    assert provider.authenticate_headers(CIMultiDict([*HEADERS.items(), *HEADERS.items()]), None) is None


def test_a_certificate_without_headers_is_ignored(provider: RequestHeaderProvider, authority: pki.Authority) -> None:
    for headers in (CIMultiDict[str](), CIMultiDict({"X-Remote-User": "  "}), CIMultiDict({"X-Name": "Alice"})):
        assert provider.authenticate_headers(headers, certificate(authority)) is None


def test_other_certificates_are_errors(
    provider: RequestHeaderProvider, authority: pki.Authority, other_authority: pki.Authority, tmp_path: Path
) -> None:
    server = x509.load_pem_x509_certificates(pki.server_certificate(authority, tmp_path, ("proxy",), NOW).read_bytes())[
        0
    ]
    wrong = {
        "of another authority": (certificate(other_authority), "no authority"),
        "of a server": (server.public_bytes(Encoding.DER), "no authority"),
        "of another name": (certificate(authority, "Proxy"), "not listed"),
        "unreadable": (b"x", "not readable"),
    }
    for what, (shown, text) in wrong.items():
        with pytest.raises(ProviderError, match=text):
            pytest.fail(f"{what}: {provider.authenticate_headers(HEADERS, shown)}")
    anybody = replace(provider, common_names=frozenset())
    assert anybody.authenticate_headers(HEADERS, certificate(authority, "Proxy")) == ALICE
    with pytest.raises(ProviderError, match="no authority"):
        anybody.authenticate_headers(HEADERS, certificate(other_authority))


@pytest.mark.parametrize("days", [-1, 3651])
def test_a_certificate_that_is_not_valid_now_is_an_error(
    provider: RequestHeaderProvider, authority: pki.Authority, days: int
) -> None:
    then = NOW + datetime.timedelta(days=days)
    with pytest.raises(ProviderError, match="for now"):
        replace(provider, clock=lambda: then).authenticate_headers(HEADERS, certificate(authority))


@pytest.mark.parametrize("header", ["X-Remote-User", "X-Name"])
def test_a_header_that_is_there_twice_is_an_error(
    provider: RequestHeaderProvider, authority: pki.Authority, header: str
) -> None:
    headers = CIMultiDict([*HEADERS.items(), (header, "admin")])
    with pytest.raises(ProviderError, match="2 headers"):
        provider.authenticate_headers(headers, certificate(authority))
