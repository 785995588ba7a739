"""Matches of flows: prerequisites, ranges of values and masks."""

from __future__ import annotations

from ipaddress import IPv4Address, IPv4Network

import pytest

from sdn.model.match import IP_SRC, FieldMatch, arp, dst_port, icmp, in_port, ip


def test_match_has_one_value_of_each_field() -> None:
    with pytest.raises(ValueError, match="in_port is matched twice"):
        in_port(1) & in_port(2)
    with pytest.raises(ValueError, match="eth_type is matched twice"):
        ip() & arp()
    with pytest.raises(ValueError, match="nw_src is matched twice"):
        ip(src=IPv4Address("10.128.0.2")) & ip(src=IPv4Address("10.128.0.3"))


def test_matches_with_equal_values_of_a_field_are_combined() -> None:
    source = ip(src=IPv4Address("10.128.0.2"))
    assert str(source & icmp(5)) == "ip,nw_src=10.128.0.2,nw_proto=1,icmp_type=5"
    assert str(source & dst_port(17, 53)) == "ip,nw_src=10.128.0.2,nw_proto=17,udp_dst=53"
    assert source & source == source


def test_icmp_match_takes_source_and_destination() -> None:
    match = icmp(5, src=IPv4Network("10.128.0.0/14"), dst=IPv4Address("10.128.0.2"))
    assert str(match) == "ip,nw_src=10.128.0.0/14,nw_dst=10.128.0.2,nw_proto=1,icmp_type=5"


def test_match_value_fits_its_field_and_mask() -> None:
    with pytest.raises(ValueError, match="does not fit"):
        FieldMatch(IP_SRC, 1 << 32, IP_SRC.all_ones)
    with pytest.raises(ValueError, match="does not fit"):
        FieldMatch(IP_SRC, 0x0A000001, 0xFFFFFF00)
