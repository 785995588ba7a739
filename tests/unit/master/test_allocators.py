"""Allocators of subnets and numbers."""

from __future__ import annotations

from ipaddress import IPv4Network

from hypothesis import given
from hypothesis import strategies as st

from master.allocators import LAST_VNID, allocate_vnids, next_numbers
from tests.unit.master.action_lines import pools

DEFAULT = pools(("10.128.0.0/14", 9))


def networks(*texts: str) -> list[IPv4Network]:
    return [IPv4Network(text) for text in texts]


def test_subnets_are_allocated_in_address_order() -> None:
    assert DEFAULT.allocate(3, [], 0) == (networks("10.128.0.0/23", "10.128.2.0/23", "10.128.4.0/23"), 3)
    assert DEFAULT.size == 512


def test_freed_subnet_is_reused_last() -> None:
    pool = pools(("10.1.0.0/24", 6))
    given_first, cursor = pool.allocate(2, [], 0)
    still_used = given_first[1:]
    seen: list[IPv4Network] = []
    for _ in range(3):
        (subnet,), cursor = pool.allocate(1, still_used + seen, cursor)
        seen.append(subnet)
    assert seen == networks("10.1.0.128/26", "10.1.0.192/26", "10.1.0.0/26")
    assert pool.allocate(1, still_used + seen, cursor) == ([], cursor)


def test_subnet_of_another_size_blocks_all_it_overlaps() -> None:
    assert DEFAULT.allocate(1, networks("10.128.0.0/22", "10.128.4.128/25", "192.168.0.0/16"), 0)[0] == networks(
        "10.128.6.0/23"
    )


def test_whole_network_may_be_one_subnet() -> None:
    pool = pools(("10.1.0.0/24", 8))
    assert pool.allocate(2, [], 0) == (networks("10.1.0.0/24"), 1)


def test_second_pool_is_used_when_the_first_is_full() -> None:
    subnet_pools, both = pools(("10.1.0.0/24", 7)), pools(("10.1.0.0/24", 7), ("10.9.0.0/23", 8))
    assert both.size == 4
    first, cursor = subnet_pools.allocate(2, [], 0)
    assert first == networks("10.1.0.0/25", "10.1.0.128/25")
    more, cursor = both.allocate(2, first, cursor)
    assert more == networks("10.9.0.0/24", "10.9.1.0/24")
    assert both.allocate(1, [*first, *more], cursor) == ([], cursor)
    assert both.allocate(1, more, cursor)[0] == networks("10.1.0.0/25")


def test_vnids_start_at_ten_and_wrap_around() -> None:
    assert allocate_vnids(3, [0, 1, 11], 0) == ([10, 12, 13], 4)
    assert allocate_vnids(2, [10], LAST_VNID - 10) == ([LAST_VNID, 11], LAST_VNID - 10 + 3)


@given(st.integers(1, 40), st.sets(st.integers(0, 39)), st.integers(0, 60), st.integers(0, 50))
def test_allocated_numbers_are_free_distinct_and_exhaustive(size: int, used: set[int], cursor: int, count: int) -> None:
    used = {number for number in used if number < size}
    actual, after = next_numbers(count, size, used, cursor)
    assert len(actual) == min(count, size - len(used))
    assert len(set(actual)) == len(actual)
    assert not used & set(actual)
    assert all(0 <= number < size for number in actual)
    assert after % size == (actual[-1] + 1) % size if actual else after == cursor


@given(st.integers(1, 12), st.sets(st.integers(0, 11)), st.integers(0, 23), st.integers(0, 15))
def test_cursor_changes_whenever_a_number_is_given(size: int, used: set[int], cursor: int, count: int) -> None:
    """Also if the only free number is the one before the cursor: another master must get Conflict."""
    used = {number for number in used if number < size}
    numbers, after = next_numbers(count, size, used, cursor % (2 * size))
    assert (after != cursor % (2 * size)) == bool(numbers)


@given(st.data())
def test_number_is_reused_only_after_a_full_round(data: st.DataObject) -> None:
    size, cursor, travelled = 12, 0, 0
    used: set[int] = set()
    given_at: dict[int, int] = {}
    for _ in range(data.draw(st.integers(1, 40))):
        freed = data.draw(st.none() | st.sampled_from(sorted(used))) if used else None
        if freed is not None:
            used.discard(freed)
            continue
        actual, after = next_numbers(1, size, used, cursor)
        assert bool(actual) == (len(used) < size)
        for number in actual:
            travelled += (after - cursor) % size or size
            assert number not in used
            assert travelled - given_at.get(number, -size) >= size
            given_at[number] = travelled
            used.add(number)
        cursor = after
