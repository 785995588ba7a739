"""Addresses of pods and numbers of ports."""

from __future__ import annotations

from dataclasses import replace
from ipaddress import IPv4Address, IPv4Network

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sdn.cniserver.ipam import Exhausted, next_address, next_number, next_ofport
from sdn.topology import FIRST_POD_OFPORT, LAST_POD_OFPORT, docker_subnet
from tests.unit.sdn.examples import NODE, SMALL


def test_first_pod_address_follows_the_gateway() -> None:
    first, last = SMALL.first_pod, SMALL.last_pod
    assert next_address(first, last, set(), None) == IPv4Address("10.128.0.2")
    taken = {IPv4Address("10.128.0.2") + n for n in range(5)}
    with pytest.raises(Exhausted, match=r"all 5 from 10\.128\.0\.2 to 10\.128\.0\.6 are taken"):
        next_address(first, last, set(map(int, taken)), None)


def test_pods_get_no_address_of_dockers_range() -> None:
    node = replace(NODE, docker_subnet=docker_subnet(NODE.subnet))
    assert node.docker_subnet == IPv4Network("10.128.1.128/25")
    assert (node.first_pod, node.last_pod) == (IPv4Address("10.128.0.2"), IPv4Address("10.128.1.127"))
    assert next_address(node.first_pod, node.last_pod, set(), node.last_pod) == node.first_pod


@given(st.integers(0, 20), st.integers(0, 20), st.sets(st.integers(0, 40)), st.integers(-5, 50))
def test_next_number_is_the_first_free_one_after_the_cursor(
    first: int, size: int, taken: set[int], cursor: int
) -> None:
    last = first + size
    number = next_number(first, last, taken, cursor)
    free = [n for n in range(first, last + 1) if n not in taken]
    if number is None:
        assert not free
        return
    assert number in free
    later = [n for n in free if n > cursor] if first <= cursor <= last else []
    assert number == (later or free)[0]


def test_port_numbers_wrap_around() -> None:
    assert next_ofport(set(), 0) == FIRST_POD_OFPORT
    assert next_ofport({FIRST_POD_OFPORT}, LAST_POD_OFPORT) == FIRST_POD_OFPORT + 1
