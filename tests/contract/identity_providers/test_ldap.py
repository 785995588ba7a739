"""The provider LDAP with Debian's slapd."""

from __future__ import annotations

import asyncio
import base64
import datetime
import logging
import re
import signal
import ssl
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from master.auth import pki
from master.auth.identity_providers import ldap_protocol
from master.auth.identity_providers.config import load_identity_providers
from master.auth.identity_providers.ldap import AttributeNames, Directory, LDAPProvider
from master.auth.identity_providers.provider import ProviderError, ProviderIdentity
from tests.testbed.identity_providers.slapd import BASE, SEARCH_DN, SEARCH_PASSWORD, Slapd, running_slapd
from tests.testbed.ports import free_port

ALICE_DN = f"uid=alice,ou=people,{BASE}"


def encoded(user_id: str) -> str:
    return base64.urlsafe_b64encode(user_id.encode()).rstrip(b"=").decode()


ALICE = ProviderIdentity("ldap", encoded(ALICE_DN), "Alice Liddell", "alice@example.org", "alice")


@pytest.fixture(scope="module")
def slapd() -> Iterator[Slapd]:
    with running_slapd() as running:
        yield running


def provider(slapd: Slapd, search: str = "?uid?sub?(objectClass=inetOrgPerson)", **changes: Any) -> LDAPProvider:
    fields = {
        "url": f"ldap://127.0.0.1:{slapd.port}/ou=people,{BASE}{search}",
        "bindDN": SEARCH_DN,
        "bindPassword": SEARCH_PASSWORD,
        "ca": str(slapd.authority),
        "attributes": {"id": ["dn"], "preferredUsername": ["uid"], "name": ["displayName", "CN"], "email": ["mail"]},
    }
    fields = {key: value for key, value in (fields | changes).items() if value is not None}
    form = {"apiVersion": "v1", "kind": "LDAPPasswordIdentityProvider", **fields}
    (loaded,) = load_identity_providers([{"name": "ldap", "login": True, "provider": form}], Path("/"))
    assert isinstance(loaded.authenticator, LDAPProvider)
    return loaded.authenticator


async def test_password_is_checked_after_start_tls(slapd: Slapd) -> None:
    ldap = provider(slapd)
    assert await ldap.authenticate_password("alice", "wonderland") == ALICE
    assert await ldap.authenticate_password("alice", "Wonderland") is None
    assert await ldap.authenticate_password("carol", "wonderland") is None


async def test_password_is_checked_with_ldaps(slapd: Slapd) -> None:
    ldap = provider(slapd, url=f"ldaps://127.0.0.1:{slapd.tls_port}/{BASE}")
    assert await ldap.authenticate_password("alice", "wonderland") == ALICE
    assert await ldap.authenticate_password("alice", "") is None


async def test_password_is_checked_without_tls_only_if_insecure(slapd: Slapd, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        ldap = provider(slapd, insecure=True, ca=None)
    assert [record.message for record in caplog.records] == ["identity provider sends passwords without TLS"]
    assert await ldap.authenticate_password("alice", "wonderland") == ALICE


async def test_attributes_of_an_entry(slapd: Slapd) -> None:
    attributes = {"id": ["employeeNumber", "uid"], "name": ["cn"], "preferredUsername": ["dn"], "email": ["mail"]}
    bob = await provider(slapd, attributes=attributes).authenticate_password("bob", "can we fix it")
    assert bob == ProviderIdentity("ldap", encoded("bob"), "Böb", "", f"uid=bob,ou=people,{BASE}")
    with pytest.raises(ProviderError, match="none of the attributes employeeNumber"):
        await provider(slapd, attributes={"id": ["employeeNumber"]}).authenticate_password("alice", "wonderland")


async def test_characters_of_a_name_have_no_meaning_in_the_filter(slapd: Slapd) -> None:
    ldap = provider(slapd)
    special = await ldap.authenticate_password("a*(b)\\", "special")
    assert special is not None
    assert special.preferred_username == "a*(b)\\"
    for name in ("*", "ali*", "alice)", "alice)(uid=*", ")", "(", r"\2a", r"alic\65", "alice,", " ", "*)(|(uid=*"):
        assert await ldap.authenticate_password(name, "wonderland") is None


@pytest.mark.parametrize("password", ["", "\0", "wonderland\0", "\udcff", "x" * 1025])
async def test_unusable_passwords_are_wrong(slapd: Slapd, password: str) -> None:
    ldap = provider(slapd)
    for name in ("alice", "locked"):
        assert await ldap.authenticate_password(name, password) is None
    for name in ("", "\0", "alice\0", "\udcff", "x" * 1025):
        assert await ldap.authenticate_password(name, "wonderland") is None


async def test_slapd_accepts_a_bind_with_an_empty_password(slapd: Slapd) -> None:
    """Why an empty password is never sent."""
    reader, writer = await asyncio.open_connection("127.0.0.1", slapd.port)
    writer.write(ldap_protocol.message(1, ldap_protocol.bind_request(b"", b"")))
    response = ldap_protocol.parse_response(await reader.read(100))
    assert ldap_protocol.parse_result(response.content).code == ldap_protocol.SUCCESS
    writer.close()
    await writer.wait_closed()


async def test_a_name_that_does_not_exist_takes_as_many_operations(slapd: Slapd) -> None:
    ldap = provider(slapd)
    operations = []
    for name in ("alice", "carol"):
        before = len(slapd.log.read_text())
        assert await ldap.authenticate_password(name, "wrong") is None
        operations.append(re.findall(r"op=\d+ (STARTTLS|BIND|SRCH)\b", slapd.log.read_text()[before:]))
    assert operations[0] == operations[1]
    assert operations[0].count("BIND") >= 2


async def test_entry_without_a_password_is_nobody(slapd: Slapd) -> None:
    assert await provider(slapd).authenticate_password("locked", "x") is None


async def test_several_entries_are_an_error(slapd: Slapd) -> None:
    ldap = provider(slapd, "?departmentNumber")
    with pytest.raises(ProviderError, match="multiple entries found matching '7'"):
        await ldap.authenticate_password("7", "wonderland")
    only_alice = provider(slapd, "?departmentNumber??(uid=alice)")
    assert await only_alice.authenticate_password("7", "wonderland") == ALICE


async def test_scope_and_filter_limit_who_is_found(slapd: Slapd) -> None:
    for search in ("?uid?base", "?uid?sub?(uid=bob)", "?uid?one?(!(uid=alice))"):
        assert await provider(slapd, search).authenticate_password("alice", "wonderland") is None
    for search in ("?uid?one", "", "??one?(|(uid=bob)(mail=*@example.org)(sn>=Z))", "???(cn:caseIgnoreMatch:=ALICE)"):
        assert await provider(slapd, search).authenticate_password("alice", "wonderland") == ALICE


async def test_referrals_are_not_followed(slapd: Slapd) -> None:
    assert await provider(slapd, "?ou??").authenticate_password("elsewhere", "x") is None
    in_referral = provider(slapd, url=f"ldap://127.0.0.1:{slapd.port}/ou=elsewhere,ou=people,{BASE}")
    with pytest.raises(ProviderError, match="search: result 10"):
        await in_referral.authenticate_password("alice", "wonderland")


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"bindPassword": "wrong"}, "bind as bindDN: result 49"),
        ({"bindDN": None, "bindPassword": None}, "search: result 32"),
        ({"bindDN": ALICE_DN, "bindPassword": "wonderland"}, "search: result 32"),
    ],
)
async def test_wrong_configuration_is_an_error(slapd: Slapd, changes: dict[str, Any], text: str) -> None:
    with pytest.raises(ProviderError, match=text):
        await provider(slapd, **changes).authenticate_password("alice", "wonderland")


@pytest.mark.parametrize("scheme", ["ldap", "ldaps"])
async def test_certificate_of_another_authority_is_an_error(slapd: Slapd, scheme: str, tmp_path: Path) -> None:
    pki.authority(tmp_path, datetime.datetime.now(datetime.UTC))
    port = slapd.port if scheme == "ldap" else slapd.tls_port
    for ca in (str(tmp_path / "ca.crt"), None):
        ldap = provider(slapd, url=f"{scheme}://127.0.0.1:{port}/{BASE}", ca=ca)
        with pytest.raises(ProviderError, match="certificate verify failed"):
            await ldap.authenticate_password("alice", "wonderland")


@pytest.mark.parametrize("scheme", ["ldap", "ldaps"])
async def test_certificate_of_another_host_is_an_error(slapd: Slapd, scheme: str) -> None:
    port = slapd.port if scheme == "ldap" else slapd.tls_port
    ldap = provider(slapd, url=f"{scheme}://127.1:{port}/{BASE}")
    with pytest.raises(ProviderError, match=r"not valid for '127\.1'"):
        await ldap.authenticate_password("alice", "wonderland")


async def test_server_that_is_gone_is_an_error(slapd: Slapd) -> None:
    ldap = provider(slapd, url=f"ldap://127.0.0.1:{free_port()}/{BASE}")
    with pytest.raises(ProviderError, match=r"127\.0\.0\.1.*Connect call failed"):
        await ldap.authenticate_password("alice", "wonderland")


async def test_host_names_are_looked_up_in_threads_of_their_own(slapd: Slapd, monkeypatch: pytest.MonkeyPatch) -> None:
    """The loop's own look-ups use the threads in which the master decodes bodies and writes its audit log."""
    monkeypatch.setattr(asyncio.BaseEventLoop, "getaddrinfo", None)
    for scheme, port in (("ldap", slapd.port), ("ldaps", slapd.tls_port)):
        ldap = provider(slapd, url=f"{scheme}://localhost:{port}/{BASE}")
        assert await ldap.authenticate_password("alice", "wonderland") == ALICE
    with pytest.raises(ProviderError, match="too long"):
        await provider(slapd, url=f"ldap://{'a' * 64}.example/{BASE}").authenticate_password("alice", "x")


async def test_server_that_does_not_answer_is_an_error(slapd: Slapd) -> None:
    url = ldap_protocol.parse_url(f"ldap://127.0.0.1:{slapd.port}/{BASE}")
    context = ssl.create_default_context(cafile=slapd.authority)
    ldap = LDAPProvider("ldap", Directory(url, context), AttributeNames(id=("dn",)), timeout=0.05)
    slapd.process.send_signal(signal.SIGSTOP)
    try:
        with pytest.raises(ProviderError, match=r"no answer within 0\.05 s"):
            await ldap.authenticate_password("alice", "wonderland")
    finally:
        slapd.process.send_signal(signal.SIGCONT)


def answer(message_id: int, tag: int, code: int = 0) -> bytes:
    return ldap_protocol.message(
        message_id, ldap_protocol.encode(tag, b"\x0a\x01" + bytes((code,)), b"\x04\x00", b"\x04\x00")
    )


TLS_ACCEPTED = answer(1, ldap_protocol.EXTENDED_RESPONSE)


@pytest.mark.parametrize(
    ("sent", "text"),
    [
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", "first byte"),
        (b"\x30\x84\x7f\xff\xff\xff", "at most 65536"),
        (b"", "closed the connection"),
        (TLS_ACCEPTED[:5], "closed the connection"),
        (answer(2, ldap_protocol.EXTENDED_RESPONSE), "no answer"),
        (answer(0, ldap_protocol.EXTENDED_RESPONSE, 52), "no answer"),
        (answer(1, ldap_protocol.BIND_RESPONSE), "no answer"),
        (answer(1, ldap_protocol.EXTENDED_RESPONSE, 2), "StartTLS: result 2"),
        (TLS_ACCEPTED + answer(2, ldap_protocol.BIND_RESPONSE), "between the answer to StartTLS and TLS"),
        (TLS_ACCEPTED, "."),
        (ldap_protocol.message(1, b"\x78\x84\xff\xff\xff\xff"), "cut off"),
        (b"\x30" * 200_000, "."),
    ],
)
async def test_hostile_server_is_an_error(sent: bytes, text: str) -> None:
    requests = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        requests.append(await reader.read(1000))
        writer.write(sent)
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        url = ldap_protocol.parse_url(f"ldap://127.0.0.1:{server.sockets[0].getsockname()[1]}/{BASE}")
        directory = Directory(url, ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT), SEARCH_DN, SEARCH_PASSWORD)
        ldap = LDAPProvider("ldap", directory, AttributeNames(id=("dn",)), timeout=10)
        with pytest.raises(ProviderError, match=text):
            await ldap.authenticate_password("alice", "wonderland")
    assert len(requests) == 1
    assert SEARCH_PASSWORD.encode() not in requests[0]
    assert b"wonderland" not in requests[0]


async def test_logins_beyond_the_limit_are_rejected(slapd: Slapd, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("master.auth.identity_providers.ldap.MAX_LOGINS", 2)
    ldap = provider(slapd)
    logins = [ldap.authenticate_password("alice", "wonderland") for _ in range(3)]
    results = await asyncio.gather(*logins, return_exceptions=True)
    assert results[:2] == [ALICE, ALICE]
    assert isinstance(results[2], ProviderError)
    assert await ldap.authenticate_password("alice", "wonderland") == ALICE
