"""Round-robin allocation of subnets, VNIDs, addresses and ports. Pure.

Allocation continues after the last number given, so a released number rests before it is used again.
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
    """Free numbers of 0 ... size-1, looked for from the cursor on and around, and the cursor after them.

    There are fewer than `count` when no more are free. `used` lies within 0 ... size-1, each number once.
    """
    wanted = min(count, size - len(used))
    found: list[int] = []
    number = cursor
    while len(found) < wanted:
        number %= size
        if number not in used:
            found.append(number)
        number += 1
    return found, found[-1] + 1 if found else cursor


@dataclass(frozen=True, slots=True)
class SubnetPool:
    """The cluster network, cut into subnets of `host_bits` host bits, numbered from 0 in the order of addresses."""

    network: IPv4Network
    host_bits: int

    @property
    def size(self) -> int:
        """How many subnets there are."""
        bits = 32 - self.network.prefixlen - self.host_bits
        return 1 << bits if bits >= 0 else 0

    def subnet(self, number: int) -> IPv4Network:
        """The subnet of a number."""
        address = int(self.network.network_address) + (number << self.host_bits)
        return IPv4Network((address, 32 - self.host_bits))

    def numbers(self, subnets: Iterable[IPv4Network]) -> Iterator[int]:
        """The numbers that subnets of whatever size lie on; what is outside the pool has none."""
        base, end = int(self.network.network_address), int(self.network.broadcast_address)
        for subnet in subnets:
            if subnet.overlaps(self.network):
                first = (max(int(subnet.network_address), base) - base) >> self.host_bits
                last = (min(int(subnet.broadcast_address), end) - base) >> self.host_bits
                yield from range(first, last + 1)


@dataclass(frozen=True, slots=True)
class SubnetPools:
    """Several pools, numbered one behind the other: one that is added at the end changes no number."""

    pools: tuple[SubnetPool, ...]

    @property
    def size(self) -> int:
        """How many subnets there are."""
        return sum(pool.size for pool in self.pools)

    def __str__(self) -> str:
        return ", ".join(str(pool.network) for pool in self.pools)

    def allocate(self, count: int, used: Iterable[IPv4Network], cursor: int) -> tuple[list[IPv4Network], int]:
        """Subnets that touch none of `used`, and the cursor after them; fewer than `count` when no more are free."""
        taken = frozenset(self._numbers(tuple(used)))
        numbers, after = next_numbers(count, self.size, taken, cursor)
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
    """VNIDs that no project has, and the cursor after them; fewer than `count` when no more are free."""
    taken = frozenset(vnid - FIRST_VNID for vnid in used if FIRST_VNID <= vnid <= LAST_VNID)
    numbers, after = next_numbers(count, LAST_VNID - FIRST_VNID + 1, taken, cursor)
    return [number + FIRST_VNID for number in numbers], after


class AllocatorCursor(Object, frozen=True):
    """Where an allocator goes on; kept in the store beside the objects, not served. Named subnets or vnids."""

    API_VERSION = "internal"
    KIND: ClassVar[str] = "Cursor"

    next: int = 0


ALLOCATOR_CURSORS = GroupResource("internal", "cursors")
"""The resource as which cursors are stored."""
