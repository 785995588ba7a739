"""Matches of flows: prerequisites, ranges of values and masks."""

from __future__ import annotations

import pytest

from sdn.model.match import IP_SRC, FieldMatch, arp, in_port, ip


def test_match_has_each_field_once() -> None:
    with pytest.raises(ValueError, match="in_port is matched twice"):
        in_port(1) & in_port(2)
    with pytest.raises(ValueError, match="eth_type is matched twice"):
        ip() & arp()


def test_match_value_fits_its_field_and_mask() -> None:
    with pytest.raises(ValueError, match="does not fit"):
        FieldMatch(IP_SRC, 1 << 32, IP_SRC.all_ones)
    with pytest.raises(ValueError, match="does not fit"):
        FieldMatch(IP_SRC, 0x0A000001, 0xFFFFFF00)
