"""Whom a datagram was sent to before the firewall redirected it, asked of the kernel's conntrack."""

from __future__ import annotations

import errno
import socket
from ipaddress import IPv4Address

from pyroute2 import NetlinkError
from pyroute2.netlink.nfnetlink.nfctsocket import AsyncNFCTSocket, NFCTAttrTuple

from reconcile.errors import Refused

Address = tuple[IPv4Address, int]


class Redirected:
    """Of the network namespace in which it was made. SO_ORIGINAL_DST tells the same, but of connections only."""

    def __init__(self) -> None:
        self._conntrack = AsyncNFCTSocket()

    async def open(self) -> None:
        """Begin; several that ask at once would each open it by themselves."""
        await self._conntrack.setup_endpoint()

    async def target(self, received_at: Address, client: Address) -> Address | None:
        """The address and port that the client wrote; None when nothing is known of it. Raises Refused."""
        answer = NFCTAttrTuple(
            saddr=str(received_at[0]),
            sport=received_at[1],
            daddr=str(client[0]),
            dport=client[1],
            proto=socket.IPPROTO_UDP,
        )
        try:
            # An entry is found by the addresses of either way; the kernel sees the answer's when it undoes the change.
            found = await self._conntrack.entry("get", tuple_orig=answer)
        except NetlinkError as error:
            if error.code == errno.ENOENT:
                return None
            raise Refused(f"conntrack told nothing of a datagram of {client[0]}: {error}") from error
        if not found:
            return None
        asked = NFCTAttrTuple.from_netlink(socket.AF_INET, found[0].get_attr("CTA_TUPLE_ORIG"))
        return IPv4Address(asked.daddr), int(asked.dport)

    def close(self) -> None:
        """Let go of the socket."""
        self._conntrack.close()
