"""Messages, filters and URLs of LDAP."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from master.auth.identity_providers import ldap_protocol
from master.auth.identity_providers.ldap_protocol import (
    LDAPURL,
    LDAPProtocolError,
    encode,
    equality_filter,
    message,
    message_length,
    parse_entry,
    parse_filter,
    parse_response,
    parse_result,
    parse_url,
)

MAX = 65536


def octets(text: str) -> bytes:
    return encode(0x04, text.encode())


@pytest.mark.parametrize(
    ("text", "encoded"),
    [
        ("(cn=Babs Jensen)", encode(0xA3, octets("cn"), octets("Babs Jensen"))),
        ("(!(cn=Tim Howes))", encode(0xA2, encode(0xA3, octets("cn"), octets("Tim Howes")))),
        ("(o=univ*of*mich*)", encode(0xA4, octets("o"), encode(0x30, b"\x80\x04univ\x81\x02of\x81\x04mich"))),
        ("(cn=*)", b"\x87\x02cn"),
        ("(cn=*a)", encode(0xA4, octets("cn"), encode(0x30, b"\x82\x01a"))),
        ("(seeAlso=)", encode(0xA3, octets("seeAlso"), octets(""))),
        ("(age>=5)", encode(0xA5, octets("age"), octets("5"))),
        ("(age<=5)", encode(0xA6, octets("age"), octets("5"))),
        ("(cn~=x)", encode(0xA8, octets("cn"), octets("x"))),
        (r"(o=Parens R Us \28for all\29)", encode(0xA3, octets("o"), octets("Parens R Us (for all)"))),
        (r"(cn=*\2A*)", encode(0xA4, octets("cn"), encode(0x30, b"\x81\x01*"))),
        (r"(bin=\00\ff)", encode(0xA3, octets("bin"), encode(0x04, b"\x00\xff"))),
        ("(cn;lang-de:=Müller)", encode(0xA9, b"\x82\x0acn;lang-de\x83\x07", "Müller".encode())),
        ("(sn:dn:2.4.6.8.10:=x)", encode(0xA9, b"\x81\x0a2.4.6.8.10\x82\x02sn\x83\x01x\x84\x01\xff")),
        ("(:caseExactMatch:=x)", encode(0xA9, b"\x81\x0ecaseExactMatch\x83\x01x")),
        ("(&)", b"\xa0\x00"),
        ("(|(a=1)(b=2))", encode(0xA1, encode(0xA3, octets("a"), octets("1")), encode(0xA3, octets("b"), octets("2")))),
    ],
)
def test_filters_of_rfc_4515(text: str, encoded: bytes) -> None:
    assert parse_filter(text) == encoded


@pytest.mark.parametrize(
    "text",
    [
        *("", "cn=x", "(cn=x", "(cn=x))", "(=x)", "(cn)", "(!(a=1)(b=2))", "(!)", "(&a=1)", r"(a=\2)", r"(a=\zz)"),
        *(
            "(a b=1)",
            "(a=1)(b=2)",
            "(:=x)",
            "(a:b:c:=x)",
            "(a=(b))",
            "(!" * 99 + "(a=1)" + ")" * 99,
            "(a=\0)",
            "()",
        ),
    ],
)
def test_other_filters_are_rejected(text: str) -> None:
    with pytest.raises(ValueError, match=r"found|nested"):
        parse_filter(text)


@given(st.text(st.one_of(st.sampled_from("()&|!=*\\<>~:a1"), st.characters()), max_size=40))
def test_filters_raise_nothing_but_value_error(text: str) -> None:
    with contextlib.suppress(ValueError):
        parse_filter(text)


def test_a_user_name_in_a_filter_is_a_value() -> None:
    for name in (b"*", b"x)(uid=*", b"\\2a", b"\0"):
        assert (
            equality_filter("uid", name)
            == b"\xa3" + bytes((len(name) + 7,)) + b"\x04\x03uid\x04" + bytes((len(name),)) + name
        )


def test_requests_are_encoded_as_in_rfc_4511() -> None:
    bind = message(1, ldap_protocol.bind_request(b"cn=a", b"pw"))
    assert bind == b"\x30\x12\x02\x01\x01\x60\x0d\x02\x01\x03\x04\x04cn=a\x80\x02pw"
    assert message(5, ldap_protocol.unbind_request()) == b"\x30\x05\x02\x01\x05\x42\x00"
    start_tls = message(130, ldap_protocol.start_tls_request())
    assert start_tls == b"\x30\x1e\x02\x02\x00\x82\x77\x18\x80\x161.3.6.1.4.1.1466.20037"


@given(st.binary(max_size=400), st.integers(0, 2**31 - 1))
def test_messages_round_trip(content: bytes, message_id: int) -> None:
    encoded = message(message_id, encode(0x61, content))
    assert message_length(encoded + b"more", MAX) == len(encoded)
    response = parse_response(encoded)
    assert (response.message_id, response.tag, response.content) == (message_id, 0x61, content)
    for length in range(min(len(encoded), 6)):
        assert message_length(encoded[:length], MAX) in {None, len(encoded)}


def test_messages_beyond_the_limit_are_rejected() -> None:
    for received in (b"\x30\x84\x7f\xff\xff\xff", b"\x30\x83\x01\x00\x00", b"\x30\x85\x00", b"\x30\x80", b"GET / "):
        with pytest.raises(LDAPProtocolError):
            message_length(received, MAX)


@given(st.one_of(st.binary(max_size=60), st.binary(max_size=60).map(lambda content: encode(0x30, content))))
def test_hostile_messages_raise_nothing_but_protocol_errors(received: bytes) -> None:
    for parse in (parse_response, parse_result, parse_entry):
        with contextlib.suppress(LDAPProtocolError):
            parse(received)


@pytest.mark.parametrize(
    ("text", "url"),
    [
        ("ldap://", LDAPURL(False, "localhost", 389, b"", "uid", 2, parse_filter("(objectClass=*)"))),
        (
            "ldaps://ldap.example/ou=people%2c%20dc=x?mail?one?(a=%5c28b)",
            LDAPURL(True, "ldap.example", 636, b"ou=people, dc=x", "mail", 1, parse_filter(r"(a=\28b)")),
        ),
        ("ldap://[::1]:1389/dc=x", LDAPURL(False, "::1", 1389, b"dc=x", "uid", 2, parse_filter("(objectClass=*)"))),
        ("ldap://h/dc=x??base", LDAPURL(False, "h", 389, b"dc=x", "uid", 0, parse_filter("(objectClass=*)"))),
    ],
)
def test_urls_are_parsed(text: str, url: LDAPURL) -> None:
    assert parse_url(text) == url


@pytest.mark.parametrize(
    "text",
    [
        *("http://h", "ldapi:///", "h", "ldap://u:p@h/", "ldap://h/dc=x?a,b", "ldap://h/?uid?tree", "ldap://h:99999/"),
        *("ldap://h/?uid?sub?x", "ldap://h/?uid?sub?(a=b)?!bindname=x", "ldap://h/%ff", "ldap://h/é", "ldap://h/#x"),
    ],
)
def test_other_urls_are_rejected(text: str) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 - some are those of Python's library
        parse_url(text)


@given(st.text(st.one_of(st.sampled_from("ldaps:/?%#@[]()=*09a"), st.characters()), max_size=30))
def test_urls_raise_nothing_but_value_error(text: str) -> None:
    for url in (text, f"ldap://{text}", f"ldap://h/dc=x?uid?sub?{text}"):
        with contextlib.suppress(ValueError):
            parse_url(url)
