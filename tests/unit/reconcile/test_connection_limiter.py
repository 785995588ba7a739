"""Limits of the connections of a server."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reconcile.connection_limiter import RIPE_SECONDS, ConnectionLimiter, Limits, Rejection, source

LIMITS = Limits(authenticated=6, per_user=3, unauthenticated=4, per_source=2)


def limiter_with(*sources: str) -> ConnectionLimiter:
    """Return a limiter with one connection of each source, numbered from 1, opened at the time 0."""
    limiter = ConnectionLimiter(LIMITS)
    for number, name in enumerate(sources, 1):
        assert limiter.add(number, name, 0.0) is None
    return limiter


def authenticated(*users: str, exempt: str = "") -> ConnectionLimiter:
    """Return a limiter with one authenticated connection of each user, numbered from 1."""
    limiter = ConnectionLimiter(LIMITS)
    for number, user in enumerate(users, 1):
        limiter.add(number, "here", 0.0)
        assert limiter.authenticate(number, user, 0.0, is_exempt=user == exempt) is None
    return limiter


@pytest.mark.parametrize(
    ("address", "expected"),
    [
        ("192.0.2.1", "192.0.2.1"),
        ("::ffff:192.0.2.1", "192.0.2.1"),
        ("2001:db8:0:1::5", "2001:db8:0:1::"),
        ("2001:db8:0:1:ffff::6", "2001:db8:0:1::"),
        ("2001:db8:0:2::5", "2001:db8:0:2::"),
        ("fe80::1%eth0", "fe80::"),
    ],
)
def test_source_is_an_ipv4_address_or_an_ipv6_network(address: str, expected: str) -> None:
    assert source(address) == expected


def test_a_source_has_at_most_its_number_of_connections() -> None:
    limiter = limiter_with("a", "a")
    assert limiter.add(3, "a", 0.0) == Rejection(3, "per_source")
    assert limiter.add(3, "b", 0.0) is None


def test_a_new_connection_replaces_the_oldest_of_its_source_after_a_while() -> None:
    limiter = limiter_with("a", "a")
    assert limiter.add(3, "a", RIPE_SECONDS - 0.1) == Rejection(3, "per_source")
    assert limiter.add(3, "a", RIPE_SECONDS) == Rejection(1, "per_source")
    assert limiter.add(4, "a", RIPE_SECONDS) == Rejection(2, "per_source")
    assert limiter.add(5, "a", RIPE_SECONDS) == Rejection(5, "per_source")


def test_a_source_with_fewer_connections_takes_a_place_of_the_one_with_the_most() -> None:
    limiter = limiter_with("a", "a", "b", "b")
    assert limiter.add(5, "c", 0.0) == Rejection(1, "unauthenticated")
    assert limiter.add(6, "d", 0.0) == Rejection(3, "unauthenticated")
    assert limiter.add(7, "e", 0.0) == Rejection(7, "unauthenticated")


def test_many_sources_with_one_connection_each_are_replaced_in_turn() -> None:
    limiter = limiter_with("a", "b", "c", "d")
    assert limiter.add(5, "e", RIPE_SECONDS) == Rejection(1, "unauthenticated")
    assert limiter.add(6, "f", RIPE_SECONDS) == Rejection(2, "unauthenticated")


def test_connections_of_unknown_sources_leave_room_for_known_ones() -> None:
    limiter = ConnectionLimiter(LIMITS)
    limiter.add(1, "known", 0.0)
    limiter.authenticate(1, "alice", 0.0, is_exempt=False)
    limiter.remove(1)
    for number, name in enumerate("abcd", 2):
        assert limiter.add(number, name, 0.0) is None
    assert limiter.add(6, "e", 0.0) == Rejection(6, "unauthenticated")
    for number in range(7, 11):
        assert limiter.add(number, "known", 0.0) is None
    assert limiter.add(11, "known", 0.0) == Rejection(11, "per_source")


def test_an_authenticated_connection_no_longer_counts_for_its_source() -> None:
    limiter = limiter_with("a", "a")
    assert limiter.authenticate(1, "alice", 0.0, is_exempt=False) is None
    assert limiter.authenticate(2, "bob", 0.0, is_exempt=False) is None
    for number in range(3, 7):
        assert limiter.add(number, "a", 0.0) is None


def test_a_user_has_at_most_their_number_of_connections() -> None:
    limiter = authenticated("alice", "alice", "alice")
    limiter.add(4, "here", 0.0)
    assert limiter.authenticate(4, "alice", 1e6, is_exempt=False) == Rejection(4, "per_user")
    assert limiter.authenticate(4, "bob", 0.0, is_exempt=False) is None
    limiter.remove(1)
    limiter.add(5, "here", 0.0)
    assert limiter.authenticate(5, "alice", 0.0, is_exempt=False) is None


def test_the_first_user_of_a_connection_counts() -> None:
    limiter = authenticated("alice", "alice", "alice", "bob")
    assert limiter.authenticate(4, "alice", 0.0, is_exempt=False) is None


def test_a_user_with_fewer_connections_takes_a_place_of_the_one_with_the_most() -> None:
    limiter = authenticated("alice", "alice", "alice", "bob", "bob", "carol")
    limiter.add(7, "here", 0.0)
    assert limiter.authenticate(7, "dave", 0.0, is_exempt=False) == Rejection(1, "authenticated")
    limiter.add(8, "here", 0.0)
    assert limiter.authenticate(8, "carol", 1e6, is_exempt=False) == Rejection(8, "authenticated")


def test_an_exempt_user_is_limited_by_the_number_of_all_connections_only() -> None:
    limiter = authenticated("node", "node", "node", "node", "node", "alice", exempt="node")
    limiter.add(7, "here", 0.0)
    assert limiter.authenticate(7, "alice", 0.0, is_exempt=False) == Rejection(7, "authenticated")
    assert limiter.authenticate(7, "node", 0.0, is_exempt=True) == Rejection(6, "authenticated")
    limiter.add(8, "here", 0.0)
    assert limiter.authenticate(8, "node", 0.0, is_exempt=True) == Rejection(8, "authenticated")
    assert limiter.authenticate(8, "alice", 0.0, is_exempt=False) == Rejection(8, "authenticated")
    limiter.remove(1)
    assert limiter.authenticate(8, "alice", 0.0, is_exempt=False) is None


def test_limits_of_a_process_with_few_files_are_smaller() -> None:
    limits = Limits(authenticated=16_000, unauthenticated=2_000)
    assert limits.within(20_000) == limits
    small = limits.within(1_000)
    assert (small.authenticated, small.unauthenticated, small.connections) == (800, 100, 1_000)
    assert limits.within(2).authenticated == limits.within(2).unauthenticated == 1


@given(
    st.lists(
        st.tuples(
            st.sampled_from(("add", "login", "remove")), st.integers(0, 30), st.sampled_from("abcde"), st.booleans()
        )
    )
)
def test_limits_hold_after_any_operations(operations: list[tuple[str, int, str, bool]]) -> None:
    limiter, unauthenticated, users = ConnectionLimiter(LIMITS), dict[int, str](), dict[int, str]()
    for now, (operation, number, name, is_exempt) in enumerate(operations):
        is_open = number in unauthenticated or number in users
        rejected = None
        if operation == "add" and not is_open:
            unauthenticated[number] = name
            rejected = limiter.add(number, name, float(now))
        elif operation == "login" and number in unauthenticated:
            rejected = limiter.authenticate(number, name, float(now), is_exempt=is_exempt)
            if rejected is None or rejected.connection != number:
                del unauthenticated[number]
                users[number] = "" if is_exempt else name
        elif operation == "remove":
            limiter.remove(number)
            unauthenticated.pop(number, None)
            users.pop(number, None)
        if rejected is not None and (operation == "add" or rejected.connection != number):
            assert unauthenticated.pop(rejected.connection, None) or users.pop(rejected.connection, None)
        assert len(unauthenticated) <= 2 * LIMITS.unauthenticated
        assert len(users) <= LIMITS.authenticated
        owners = [user for user in users.values() if user]
        assert all(owners.count(user) <= LIMITS.per_user for user in owners)
