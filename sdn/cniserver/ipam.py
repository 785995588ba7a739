"""The next free IP address or OpenFlow port number, round robin: a freed number is assigned again last. Pure."""

from __future__ import annotations

from collections.abc import Collection
from ipaddress import IPv4Address

from sdn.topology import FIRST_POD_OFPORT, LAST_POD_OFPORT


class Exhausted(Exception):
    """A range has no free number; the message names the range."""


def next_number(first: int, last: int, taken: Collection[int], cursor: int) -> int | None:
    """Return the first free number after `cursor` in first..last, wrapping around; None if all are taken."""
    size = last - first + 1
    start = cursor + 1 - first if first <= cursor <= last else 0
    return next((n for n in (first + (start + step) % size for step in range(size)) if n not in taken), None)


def next_address(
    first: IPv4Address, last: IPv4Address, taken: Collection[int], cursor: IPv4Address | None
) -> IPv4Address:
    """Return an address for a pod. `taken` are addresses as numbers. Raises Exhausted."""
    number = next_number(int(first), int(last), taken, int(cursor) if cursor else 0)
    if number is None:
        size = int(last) - int(first) + 1
        raise Exhausted(f"no free address: all {size} from {first} to {last} are taken by pods of this node")
    return IPv4Address(number)


def next_ofport(taken: Collection[int], cursor: int) -> int:
    """Return an OpenFlow port number for a pod. Raises Exhausted.

    It is requested from the switch (ofport_request), so that a restarted switch assigns the same number.
    """
    number = next_number(FIRST_POD_OFPORT, LAST_POD_OFPORT, taken, cursor)
    if number is None:
        raise Exhausted("no free OpenFlow port number")
    return number
