"""Driver: connections of the master to machines of others, and to nobody else.

What is checked is the address that is dialled, after every lookup: a name cannot mean something else a moment later.
"""

from __future__ import annotations

import socket
from collections.abc import Callable
from contextvars import ContextVar
from ipaddress import ip_address
from typing import Any

import aiohttp
from aiohttp.client_proto import ResponseHandler

from api.network.addresses import out_of_reach, plain
from api.pki.pem import peer_subject

EXPECTED: ContextVar[str] = ContextVar("EXPECTED", default="")
"""Whose certificate the other side has to show, by its common name; empty: whatever it shows.

A connector learns nothing else of the request for which it makes a connection.
"""


class NotAllowed(OSError):
    """An address at which the master talks to nobody, in the words of kube-apiserver."""

    def __init__(self) -> None:
        super().__init__("address not allowed")


class Dialler(aiohttp.TCPConnector):
    """For one client. `own` says under which address and port the master itself is known."""

    def __init__(self, own: Callable[[], tuple[str, int]]) -> None:
        super().__init__(limit=0, force_close=True, socket_factory=self._socket)
        self._own = own

    def _socket(self, found: Any) -> socket.socket:
        """A socket for one address; raises NotAllowed. All connections are made with one from here."""
        family, kind, protocol, _, (host, port, *_) = found
        advertised, own_port = self._own()
        if out_of_reach(host) or (port == own_port and (_same(host, advertised) or _is_here(family, host))):
            raise NotAllowed
        return socket.socket(family, kind, protocol)

    async def _create_connection(
        self,
        req: aiohttp.ClientRequest,
        traces: list[Any],
        timeout: aiohttp.ClientTimeout,  # noqa: ASYNC109
    ) -> ResponseHandler:
        """What aiohttp asks a connector for: nothing is sent before it returns."""
        protocol = await super()._create_connection(req, traces, timeout)
        expected = EXPECTED.get()
        if expected:
            transport = protocol.transport
            certificate = None if transport is None else transport.get_extra_info("peercert")
            shown = peer_subject(certificate).user
            if shown != expected:
                protocol.abort()
                raise aiohttp.ClientConnectionError(
                    f"tls: failed to verify certificate: it is of {shown!r}, not of {expected!r}"
                )
        return protocol


def _same(one: str, other: str) -> bool:
    return plain(ip_address(one)) == plain(ip_address(other))


def _is_here(family: int, host: str) -> bool:
    """Whether an address is one of this machine's: only those can be bound."""
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        try:
            probe.bind((host, 0))
        except OSError:
            return False
    return True
