"""Round-robin allocation of subnets, VNIDs, addresses and ports. Pure.

Allocation continues after the last number given, so a released number is assigned again last.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from ipaddress import IPv4Network
from typing import ClassVar

from api.meta.types import Object
from master.resources.group_resource import GroupResource

FIRST_VNID = 10
"""0 is global, 1 to 9 are reserved."""

LAST_VNID = (1 << 24) - 1

GLOBAL_VNID = 0


def next_numbers(count: int, size: int, used: Collection[int], cursor: int) -> tuple[list[int], int]:
    """Return `count` free numbers of 0 ... size-1, searched from the cursor on with wrap-around, and the next cursor.

    There are fewer if fewer are free. `used` has numbers within 0 ... size-1, each once.

    A cursor counts two rounds, 0 ... 2*size-1. So it changes whenever a number is given, even if a whole round passed
    until a free one was found. Who gives a number always writes the cursor, and another master that has read the same
    cursor gets Conflict.
    """
    available = min(count, size - len(used))
    numbers: list[int] = []
    position = cursor
    while len(numbers) < available:
        if (number := position % size) not in used:
            numbers.append(number)
        position += 1
    return numbers, position % (2 * size) if numbers else cursor


@dataclass(frozen=True, slots=True)
class SubnetPool:
    """A cluster network divided into subnets of `host_bits` host bits, numbered from 0 in the order of addresses."""

    network: IPv4Network
    host_bits: int

    @property
    def size(self) -> int:
        """Return the number of subnets."""
        bits = 32 - self.network.prefixlen - self.host_bits
        return 1 << bits if bits >= 0 else 0

    def subnet(self, number: int) -> IPv4Network:
        """Return the subnet with this number."""
        address = int(self.network.network_address) + (number << self.host_bits)
        return IPv4Network((address, 32 - self.host_bits))

    def numbers(self, subnets: Iterable[IPv4Network]) -> Iterator[int]:
        """Yield the numbers that overlap the subnets, which may have any size and lie outside the pool."""
        base, end = int(self.network.network_address), int(self.network.broadcast_address)
        for subnet in subnets:
            if subnet.overlaps(self.network):
                first = (max(int(subnet.network_address), base) - base) >> self.host_bits
                last = (min(int(subnet.broadcast_address), end) - base) >> self.host_bits
                yield from range(first, last + 1)


@dataclass(frozen=True, slots=True)
class SubnetPools:
    """Several pools, numbered consecutively, so a pool that is added at the end changes no number."""

    pools: tuple[SubnetPool, ...]

    @property
    def size(self) -> int:
        """Return the number of subnets."""
        return sum(pool.size for pool in self.pools)

    def __str__(self) -> str:
        return ", ".join(str(pool.network) for pool in self.pools)

    def allocate(self, count: int, used: Iterable[IPv4Network], cursor: int) -> tuple[list[IPv4Network], int]:
        """Return `count` subnets that do not overlap `used`, fewer if fewer are free, and the next cursor."""
        used_numbers = frozenset(self._numbers(tuple(used)))
        numbers, after = next_numbers(count, self.size, used_numbers, cursor)
        return [self._subnet(number) for number in numbers], after

    def _subnet(self, number: int) -> IPv4Network:
        for pool in self.pools:
            if number < pool.size:
                return pool.subnet(number)
            number -= pool.size
        raise IndexError(number)

    def _numbers(self, subnets: tuple[IPv4Network, ...]) -> Iterator[int]:
        base = 0
        for pool in self.pools:
            yield from (base + number for number in pool.numbers(subnets))
            base += pool.size


def allocate_vnids(count: int, used: Iterable[int], cursor: int) -> tuple[list[int], int]:
    """Return `count` unused VNIDs, fewer if fewer are free, and the next cursor."""
    used_numbers = frozenset(vnid - FIRST_VNID for vnid in used if FIRST_VNID <= vnid <= LAST_VNID)
    numbers, after = next_numbers(count, LAST_VNID - FIRST_VNID + 1, used_numbers, cursor)
    return [number + FIRST_VNID for number in numbers], after


class AllocatorCursor(Object, frozen=True):
    """The number at which an allocator continues. It is stored with the objects and not served."""

    API_VERSION = "internal"
    KIND: ClassVar[str] = "Cursor"

    next: int = 0
    """The position, modulo the number of values of the allocator."""


ALLOCATOR_CURSORS = GroupResource("internal", "cursors")
"""The resource as which cursors are stored."""
