"""Connections that the kernel remembers, as far as they were translated for services."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from errno import ENOENT
from ipaddress import IPv4Address
from typing import Any

from pyroute2 import AsyncNFCTSocket, NetlinkError
from pyroute2.netlink.nfnetlink.nfctsocket import NFCTAttrTuple

from reconcile.errors import Refused
from sdn.services.connections import Connection
from sdn.services.served_port import Protocol


class Conntrack:
    """Acts on the network namespace in which it was opened, and there not on zones."""

    def __init__(self) -> None:
        self._kernel = AsyncNFCTSocket()

    async def open(self) -> None:
        """Begin; several that ask at once would each open it by themselves."""
        await self._kernel.setup_endpoint()

    def close(self) -> None:
        """Let go of the socket."""
        self._kernel.close()

    async def to(self, address: IPv4Address, port: int) -> list[Connection]:
        """Connections over UDP that somebody has begun with this address and port."""
        wanted = NFCTAttrTuple(proto=int(Protocol.UDP), daddr=str(address), dport=port)
        return [one async for one in self._dump(wanted) if (one.front, one.front_port) == (address, port)]

    async def all(self) -> list[Connection]:
        """Every connection over UDP."""
        return [one async for one in self._dump(NFCTAttrTuple(proto=int(Protocol.UDP)))]

    async def forget(self, connections: Iterable[Connection]) -> None:
        """The next packet of each begins a new one; one that is not there any more is no error. Raises Refused."""
        for one in connections:
            asked = NFCTAttrTuple(
                saddr=str(one.client),
                daddr=str(one.front),
                proto=int(Protocol.UDP),
                sport=one.client_port,
                dport=one.front_port,
            )
            try:
                await self._kernel.entry("del", tuple_orig=asked)
            except NetlinkError as error:
                if error.code != ENOENT:
                    raise Refused(f"the connection {one} cannot be forgotten: {error}") from None

    async def _dump(self, wanted: NFCTAttrTuple) -> AsyncIterator[Connection]:
        async for message in await self._kernel.dump(tuple_orig=wanted):
            if message.get_attr("CTA_ZONE"):
                continue
            begun = _tuple(message, "CTA_TUPLE_ORIG")
            answered = _tuple(message, "CTA_TUPLE_REPLY")
            if begun.proto == Protocol.UDP:
                yield Connection(
                    IPv4Address(begun.saddr),
                    begun.sport,
                    IPv4Address(begun.daddr),
                    begun.dport,
                    IPv4Address(answered.saddr),
                    answered.sport,
                )


def _tuple(message: Any, name: str) -> Any:
    return NFCTAttrTuple.from_netlink(2, message.get_attr(name))
