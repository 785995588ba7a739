"""Proxies UDP: each client of each frontend has a socket of its own to one endpoint, until both are idle."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import socket
import struct
from collections import OrderedDict
from collections.abc import Callable
from ipaddress import IPv4Address

from reconcile.errors import Refused
from sdn.drivers.conntrack import Conntrack
from sdn.model.service_port import EndpointInfo, Protocol
from sdn.proxy.service_map import ClientConnection

IDLE_SECONDS = 20.0
"""After which a client is forgotten. The kernel remembers longer whom it called (nf_conntrack_udp_timeout, 30), so a
client that calls another front from the same port is never taken for the one it was."""

LOOK_SECONDS = 5.0
"""Between two looks for clients to forget."""

MAX_ASSOCIATIONS = 4096
"""Sockets to backends; who was silent longest makes room."""

MAX_UNANSWERED = 16
"""Datagrams of one client that the next backend gets too when the first one refuses; older ones are lost."""

MAX_BATCH = 64
"""Datagrams that are read of one socket before others have their turn."""

_IP_PKTINFO = 8
_MAX_DATAGRAM_BYTES = 1 << 16
_ROOM = socket.CMSG_SPACE(12)

log = logging.getLogger(__name__)

ClientKey = tuple[tuple[IPv4Address, int], IPv4Address]
"""A client as the datagram names it, and the address of this node to which it was redirected."""


class _Association:
    """What one client says to one front. Until there is an answer, others are `left` to ask the same."""

    def __init__(self, call: ClientConnection, candidates: list[EndpointInfo]) -> None:
        self.call = call
        self.backend, *self.left = candidates
        self.unanswered: list[bytes] = []
        self.upstream = socket.socket(socket.AF_INET, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
        self.last = 0.0
        with contextlib.suppress(OSError):
            self.upstream.connect((str(self.backend.address), self.backend.port))


class UdpProxy:
    """`choose` gives the backends for a call, in the order in which to try them; `took` hears which one took it."""

    def __init__(
        self,
        choose: Callable[[ClientConnection], list[EndpointInfo]],
        took: Callable[[ClientConnection, EndpointInfo], None],
    ) -> None:
        self._choose = choose
        self._took = took
        self._conntrack = Conntrack()
        self._listening: socket.socket | None = None
        self._port = 0
        self._known: OrderedDict[ClientKey, _Association] = OrderedDict()
        self._look: asyncio.TimerHandle | None = None

    def open(self, listening: socket.socket) -> None:
        """Take datagrams of a socket that does not block and is bound."""
        loop = asyncio.get_running_loop()
        listening.setsockopt(socket.SOL_IP, _IP_PKTINFO, 1)
        self._listening, self._port = listening, listening.getsockname()[1]
        loop.add_reader(listening, self._receive, listening)
        self._look = loop.call_later(LOOK_SECONDS, self._look_around)

    def recheck(self, still: Callable[[ClientConnection, EndpointInfo], bool]) -> None:
        """Forget clients whose backend is none any more: their next datagram finds another one."""
        for way, association in tuple(self._known.items()):
            if not still(association.call, association.backend):
                self._forget(way)

    def close(self) -> None:
        """Take no more, and forget all."""
        if self._listening is not None:
            asyncio.get_running_loop().remove_reader(self._listening)
            self._listening.close()
            self._listening = None
        if self._look is not None:
            self._look.cancel()
        for way in tuple(self._known):
            self._forget(way)
        self._conntrack.close()

    def _receive(self, listening: socket.socket) -> None:
        for _ in range(MAX_BATCH):
            try:
                data, notes, _, (host, port) = listening.recvmsg(_MAX_DATAGRAM_BYTES, _ROOM)
            except OSError:
                return
            here = next((note[8:12] for level, kind, note in notes if (level, kind) == (socket.SOL_IP, _IP_PKTINFO)))
            self._forward(((IPv4Address(host), port), IPv4Address(here)), data)

    def _forward(self, way: ClientKey, data: bytes) -> None:
        association = self._known.get(way)
        if association is not None:
            self._send(way, association, data)
            return
        (client, port), here = way
        try:
            begun = self._conntrack.original_tuple(client, port, here, self._port)
        except Refused as error:
            log.warning("a datagram is lost", extra={"error": str(error)})
            return
        if begun is not None:
            call = ClientConnection(
                (begun.frontend, Protocol.UDP, begun.frontend_port), client, is_own=here.is_loopback
            )
            self._open(way, call, self._choose(call), [data])

    def _open(
        self, way: ClientKey, call: ClientConnection, candidates: list[EndpointInfo], waiting: list[bytes]
    ) -> None:
        if not candidates:
            return
        while len(self._known) >= MAX_ASSOCIATIONS:
            self._forget(next(iter(self._known)))
        association = self._known[way] = _Association(call, candidates)
        asyncio.get_running_loop().add_reader(association.upstream, self._answer, way, association)
        self._took(call, association.backend)
        for data in waiting:
            if self._known.get(way) is association:
                self._send(way, association, data)

    def _send(self, way: ClientKey, association: _Association, data: bytes) -> None:
        self._touch(way, association)
        if association.left:
            association.unanswered = [*association.unanswered[1 - MAX_UNANSWERED :], data]
        try:
            association.upstream.send(data)
        except BlockingIOError:
            return
        except OSError as error:
            if error.errno != errno.EMSGSIZE:
                self._move_on(way, association)

    def _move_on(self, way: ClientKey, association: _Association) -> None:
        """The backend refuses: the next one is asked, or, if there was an answer before, whoever has the next turn."""
        if self._known.get(way) is association:
            self._forget(way)
            self._open(way, association.call, association.left, association.unanswered)

    def _answer(self, way: ClientKey, association: _Association) -> None:
        assert self._listening is not None
        (host, port), here = way
        # The answer has to leave with the address to which the question was redirected, or nobody knows it.
        note = struct.pack("i4s4s", 0, here.packed, bytes(4))
        for _ in range(MAX_BATCH):
            try:
                data = association.upstream.recv(_MAX_DATAGRAM_BYTES)
            except BlockingIOError:
                return
            except OSError:
                self._move_on(way, association)
                return
            self._touch(way, association)
            association.left, association.unanswered = [], []
            with contextlib.suppress(OSError):
                self._listening.sendmsg([data], [(socket.SOL_IP, _IP_PKTINFO, note)], 0, (str(host), port))

    def _touch(self, way: ClientKey, association: _Association) -> None:
        association.last = asyncio.get_running_loop().time()
        self._known.move_to_end(way)

    def _forget(self, way: ClientKey) -> None:
        association = self._known.pop(way)
        asyncio.get_running_loop().remove_reader(association.upstream)
        association.upstream.close()

    def _look_around(self) -> None:
        loop = asyncio.get_running_loop()
        while self._known and next(iter(self._known.values())).last + IDLE_SECONDS <= loop.time():
            self._forget(next(iter(self._known)))
        self._look = loop.call_later(LOOK_SECONDS, self._look_around)
