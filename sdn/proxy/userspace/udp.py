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
"""Idle time after which a client is forgotten. The kernel's timeout is longer (nf_conntrack_udp_timeout, 30 s), so a
client that uses the same source port for another frontend is never taken for its earlier connection.
"""

IDLE_CHECK_SECONDS = 5.0
"""Interval of the check for idle clients."""

MAX_ASSOCIATIONS = 4096
"""Maximum number of sockets to endpoints; the least recently used is closed first."""

MAX_UNANSWERED = 16
"""Datagrams of a client that are sent again to the next endpoint if the first one refuses; older ones are lost."""

MAX_BATCH = 64
"""Datagrams that are read from one socket before other sockets are served."""

_IP_PKTINFO = 8
_MAX_DATAGRAM_BYTES = 1 << 16
_ANCILLARY_BYTES = socket.CMSG_SPACE(12)

log = logging.getLogger(__name__)

ClientKey = tuple[tuple[IPv4Address, int], IPv4Address]
"""Address and port of a client, and the address of this node to which its datagram was redirected."""


class _Association:
    """The datagrams between a client and a frontend.

    Until the endpoint replies, `candidates` are the endpoints to try next, and `unanswered` the datagrams sent so far.
    """

    def __init__(self, connection: ClientConnection, candidates: list[EndpointInfo]) -> None:
        self.connection = connection
        self.endpoint, *self.candidates = candidates
        self.unanswered: list[bytes] = []
        self.socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
        self.last_used = 0.0
        with contextlib.suppress(OSError):
            self.socket.connect((str(self.endpoint.address), self.endpoint.port))


class UdpProxy:
    """UDP listener of the userspace proxy.

    `candidates` returns the endpoints for a connection in the order in which to try them; `record` is called with the
    endpoint that gets it.
    """

    def __init__(
        self,
        candidates: Callable[[ClientConnection], list[EndpointInfo]],
        record: Callable[[ClientConnection, EndpointInfo], None],
    ) -> None:
        self._candidates = candidates
        self._record = record
        self._conntrack = Conntrack()
        self._listener: socket.socket | None = None
        self._port = 0
        self._associations: OrderedDict[ClientKey, _Association] = OrderedDict()
        self._idle_check: asyncio.TimerHandle | None = None

    def open(self, listener: socket.socket) -> None:
        """Receive datagrams from a bound, non-blocking socket."""
        loop = asyncio.get_running_loop()
        listener.setsockopt(socket.SOL_IP, _IP_PKTINFO, 1)
        self._listener = listener
        self._port = listener.getsockname()[1]
        loop.add_reader(listener, self._receive, listener)
        self._idle_check = loop.call_later(IDLE_CHECK_SECONDS, self._forget_idle)

    def forget_unless(self, is_valid: Callable[[ClientConnection, EndpointInfo], bool]) -> None:
        """Forget clients whose endpoint is not valid any more. Their next datagram gets another endpoint."""
        for key, association in tuple(self._associations.items()):
            if not is_valid(association.connection, association.endpoint):
                self._forget(key)

    def close(self) -> None:
        """Stop receiving, and forget all clients."""
        if self._listener is not None:
            asyncio.get_running_loop().remove_reader(self._listener)
            self._listener.close()
            self._listener = None
        if self._idle_check is not None:
            self._idle_check.cancel()
        for key in tuple(self._associations):
            self._forget(key)
        self._conntrack.close()

    def _receive(self, listener: socket.socket) -> None:
        for _ in range(MAX_BATCH):
            try:
                data, messages, _, (host, port) = listener.recvmsg(_MAX_DATAGRAM_BYTES, _ANCILLARY_BYTES)
            except OSError:
                return
            for level, kind, message in messages:
                if (level, kind) == (socket.SOL_IP, _IP_PKTINFO):
                    self._forward(((IPv4Address(host), port), IPv4Address(message[8:12])), data)

    def _forward(self, key: ClientKey, data: bytes) -> None:
        association = self._associations.get(key)
        if association is not None:
            self._send(key, association, data)
            return
        (client, port), local = key
        try:
            original = self._conntrack.original_tuple(client, port, local, self._port)
        except Refused as error:
            log.warning("datagram lost", extra={"client": client, "error": str(error)})
            return
        if original is not None:
            frontend = (original.frontend, Protocol.UDP, original.frontend_port)
            connection = ClientConnection(frontend, client, from_host=local.is_loopback)
            self._associate(key, connection, self._candidates(connection), [data])

    def _associate(
        self, key: ClientKey, connection: ClientConnection, candidates: list[EndpointInfo], datagrams: list[bytes]
    ) -> None:
        """Give a client the first candidate, and send datagrams to it. Without candidates they are dropped."""
        if not candidates:
            return
        while len(self._associations) >= MAX_ASSOCIATIONS:
            self._forget(next(iter(self._associations)))
        association = self._associations[key] = _Association(connection, candidates)
        asyncio.get_running_loop().add_reader(association.socket, self._receive_reply, key, association)
        self._record(connection, association.endpoint)
        for data in datagrams:
            if self._associations.get(key) is association:
                self._send(key, association, data)

    def _send(self, key: ClientKey, association: _Association, data: bytes) -> None:
        self._mark_used(key, association)
        if association.candidates:
            association.unanswered = [*association.unanswered[1 - MAX_UNANSWERED :], data]
        try:
            association.socket.send(data)
        except BlockingIOError:
            return
        except OSError as error:
            if error.errno != errno.EMSGSIZE:
                self._try_next_endpoint(key, association)

    def _try_next_endpoint(self, key: ClientKey, association: _Association) -> None:
        """Move a client away from an endpoint that refuses.

        If the endpoint has replied before, there are no candidates: the next datagram of the client selects anew.
        """
        if self._associations.get(key) is association:
            self._forget(key)
            self._associate(key, association.connection, association.candidates, association.unanswered)

    def _receive_reply(self, key: ClientKey, association: _Association) -> None:
        assert self._listener is not None
        (host, port), local = key
        # The reply must leave from the address to which the datagram was redirected, or conntrack does not know it.
        packet_info = struct.pack("i4s4s", 0, local.packed, bytes(4))
        for _ in range(MAX_BATCH):
            try:
                data = association.socket.recv(_MAX_DATAGRAM_BYTES)
            except BlockingIOError:
                return
            except OSError:
                self._try_next_endpoint(key, association)
                return
            self._mark_used(key, association)
            association.candidates = []
            association.unanswered = []
            with contextlib.suppress(OSError):
                self._listener.sendmsg([data], [(socket.SOL_IP, _IP_PKTINFO, packet_info)], 0, (str(host), port))

    def _mark_used(self, key: ClientKey, association: _Association) -> None:
        association.last_used = asyncio.get_running_loop().time()
        self._associations.move_to_end(key)

    def _forget(self, key: ClientKey) -> None:
        association = self._associations.pop(key)
        asyncio.get_running_loop().remove_reader(association.socket)
        association.socket.close()

    def _forget_idle(self) -> None:
        loop = asyncio.get_running_loop()
        while self._associations:
            key, association = next(iter(self._associations.items()))
            if association.last_used + IDLE_SECONDS > loop.time():
                break
            self._forget(key)
        self._idle_check = loop.call_later(IDLE_CHECK_SECONDS, self._forget_idle)
