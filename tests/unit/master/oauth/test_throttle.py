"""Delays of password checks."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from master.oauth import throttle
from master.oauth.throttle import (
    FORGET_SECONDS,
    FREE_ADDRESS_FAILURES,
    FREE_USER_FAILURES,
    MAX_ADDRESS_DELAY_SECONDS,
    MAX_PENDING_LOGINS,
    MAX_PENDING_LOGINS_OF_CLIENT,
    MAX_USER_DELAY_SECONDS,
    PasswordThrottle,
    PendingLogins,
    client_network,
)


def failed(times: int, name: str = "alice", address: str = "192.0.2.1") -> PasswordThrottle:
    """Return a throttle after failures at the time 0, each of another address unless one is given."""
    passwords = PasswordThrottle()
    for number in range(times):
        passwords.failed(name, address or f"198.51.100.{number}", 0.0)
    return passwords


@pytest.mark.parametrize(
    ("times", "delay"),
    [(0, 0.0), (FREE_USER_FAILURES - 1, 0.0), (FREE_USER_FAILURES, 0.5), (FREE_USER_FAILURES + 1, 1.0), (50, 2.0)],
)
def test_user_waits_after_some_failures(times: int, delay: float) -> None:
    passwords = failed(times, address="")
    assert passwords.delay("alice", "203.0.113.9", 1.0) == delay
    assert passwords.delay("bob", "203.0.113.9", 1.0) == 0.0


def test_address_waits_longer_than_a_user() -> None:
    passwords = failed(FREE_ADDRESS_FAILURES + 20)
    assert passwords.delay("bob", "192.0.2.1", 1.0) == MAX_ADDRESS_DELAY_SECONDS > MAX_USER_DELAY_SECONDS
    assert passwords.delay("alice", "203.0.113.9", 1.0) == MAX_USER_DELAY_SECONDS


def test_failures_are_forgotten_with_time() -> None:
    passwords = failed(100)
    assert passwords.delay("alice", "192.0.2.1", FORGET_SECONDS) > 0
    assert passwords.delay("alice", "192.0.2.1", FORGET_SECONDS + 1) == 0
    passwords.failed("alice", "192.0.2.1", FORGET_SECONDS + 1)
    assert passwords.delay("alice", "192.0.2.1", FORGET_SECONDS + 2) == 0


def test_success_resets_the_user_and_not_the_address() -> None:
    passwords = failed(100)
    passwords.succeeded("alice")
    assert passwords.delay("alice", "203.0.113.9", 1.0) == 0
    assert passwords.delay("alice", "192.0.2.1", 1.0) == MAX_ADDRESS_DELAY_SECONDS


@pytest.mark.parametrize("spelling", ["ALICE", " alice ", "aLiCe\t", "\uff41lice"])
def test_spellings_of_a_name_count_together(spelling: str) -> None:
    """LDAP servers compare names without case, and without spaces around them."""
    assert failed(50, address="").delay(spelling, "203.0.113.9", 1.0) == MAX_USER_DELAY_SECONDS
    assert failed(50, spelling, "").delay("alice", "203.0.113.9", 1.0) == MAX_USER_DELAY_SECONDS


def test_one_client_cannot_hold_the_places_of_others() -> None:
    pending = PendingLogins()
    addresses = [f"2001:db8::{number:x}" for number in range(MAX_PENDING_LOGINS_OF_CLIENT)]
    assert all(pending.begin(address) for address in addresses)
    assert not pending.begin("2001:db8::ffff")
    others = [f"198.51.100.{number}" for number in range(MAX_PENDING_LOGINS - len(addresses))]
    assert all(pending.begin(address) for address in others)
    assert not pending.begin("203.0.113.1")
    for address in (*addresses, *others):
        pending.end(address)
    assert pending.begin("2001:db8::ffff")


@pytest.mark.parametrize(
    ("address", "network"),
    [
        ("192.0.2.1", "192.0.2.1"),
        ("2001:db8:0:1::1", "2001:db8:0:1::"),
        ("2001:db8:0:1:ffff:ffff:ffff:ffff", "2001:db8:0:1::"),
        ("2001:db8:0:2::1", "2001:db8:0:2::"),
        ("::ffff:192.0.2.1", "192.0.2.1"),
        ("fe80::1%eth0", "fe80::"),
        ("", ""),
        ("unix", "unix"),
    ],
)
def test_addresses_of_an_ipv6_network_are_one_client(address: str, network: str) -> None:
    assert client_network(address) == network


def test_remembered_failures_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(throttle, "MAX_ENTRIES", 10)
    passwords = failed(50)
    for number in range(100):
        passwords.failed(f"user-{number}", "192.0.2.1", 0.0)
    assert passwords.delay("user-99", "192.0.2.1", 1.0) == MAX_ADDRESS_DELAY_SECONDS
    assert passwords.delay("alice", "203.0.113.9", 1.0) == 0


@given(st.lists(st.tuples(st.sampled_from("ab"), st.sampled_from("xy"), st.floats(0, 2000)), max_size=60))
def test_delay_is_bounded_and_grows_with_failures(failures: list[tuple[str, str, float]]) -> None:
    passwords = PasswordThrottle()
    for name, address, now in sorted(failures, key=lambda failure: failure[2]):
        before = passwords.delay(name, address, now)
        passwords.failed(name, address, now)
        assert 0 <= before <= passwords.delay(name, address, now) <= MAX_ADDRESS_DELAY_SECONDS
