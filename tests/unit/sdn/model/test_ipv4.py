"""Text of IPv4 addresses, against the standard library's."""

from __future__ import annotations

from ipaddress import IPv4Address

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sdn.model.ipv4 import ipv4_text, parse_ipv4


@given(st.ip_addresses(v=4))
def test_text_of_an_address_is_that_of_the_ipaddress_library(address: IPv4Address) -> None:
    assert ipv4_text(address) == str(address)
    assert parse_ipv4(str(address)) == address


@pytest.mark.parametrize(
    ("text", "address"),
    [("192.0.2.1", "192.0.2.1"), ("0.0.0.0", "0.0.0.0"), ("192.0.2.256", ""), ("192.0.2.01", ""), ("192.0.2", "")]
    + [
        (text, "")
        for text in (
            "",
            "192.0.2.1 ",
            "192.0.2.+1",
            "192.0.2.1_0",
            "192.0.2.\u0661",
            "a.b.c.d",
            "::1",
            "192.0.2.1\0",
            "\ud800",
        )
    ],
)
def test_parse_ipv4_agrees_with_the_ipaddress_library(text: str, address: str) -> None:
    assert str(parse_ipv4(text) or "") == address
