"""Sends ICMP echo requests. Driver."""

from __future__ import annotations

import asyncio
import itertools
import os
import secrets
import socket
import struct
import time
from ipaddress import IPv4Address
from types import TracebackType

from reconcile.errors import Refused

MIN_PAYLOAD = 16
"""Bytes of a request behind the ICMP header: a random value, which no one else knows."""

HEADERS = 28
"""Bytes of the IPv4 and the ICMP header."""

_ECHO_REQUEST, _ECHO_REPLY = 8, 0
_IP_MTU_DISCOVER, _IP_PMTUDISC_PROBE = 10, 3
"""Linux: set the bit Don't Fragment, and send packets up to the MTU of the link, whatever routers have reported."""


class IcmpEcho:
    """Sends ICMP echo requests from one address. Use as `async with IcmpEcho(gateway) as echo`.

    Requests are never fragmented. A reply counts if it comes from the target and carries what the request carried.
    """

    def __init__(self, source: IPv4Address) -> None:
        self._source = source
        self._identifier = os.getpid() & 0xFFFF
        self._numbers = itertools.count(1)
        self._pending: dict[int, tuple[bytes, asyncio.Future[float]]] = {}
        self._socket: socket.socket | None = None

    async def __aenter__(self) -> IcmpEcho:
        try:
            self._socket = socket.socket(socket.AF_INET, socket.SOCK_RAW | socket.SOCK_CLOEXEC, socket.IPPROTO_ICMP)
            self._socket.setblocking(False)
            self._socket.setsockopt(socket.IPPROTO_IP, _IP_MTU_DISCOVER, _IP_PMTUDISC_PROBE)
            self._socket.bind((str(self._source), 0))
        except OSError as error:
            if self._socket is not None:
                self._socket.close()
            raise Refused(f"echo from {self._source}: {error.strerror}") from None
        asyncio.get_running_loop().add_reader(self._socket, self._receive)
        return self

    async def __aexit__(
        self, _: type[BaseException] | None, __: BaseException | None, ___: TracebackType | None
    ) -> None:
        if self._socket is not None:
            asyncio.get_running_loop().remove_reader(self._socket)
            self._socket.close()

    async def milliseconds(self, target: str, timeout_seconds: float, packet_bytes: int = 0) -> float | None:
        """Return the time until the reply; None if there is none in time, or if the packet is too large to be sent.

        `packet_bytes` is the size of the IPv4 packet; the smallest possible one if it is less than that.
        """
        if self._socket is None:
            raise RuntimeError("use the echo in `async with`")
        number = next(self._numbers) & 0xFFFF
        payload = secrets.token_bytes(MIN_PAYLOAD) + bytes(max(packet_bytes - HEADERS - MIN_PAYLOAD, 0))
        packet = self._packet(number, payload)
        expected = IPv4Address(target).packed + payload[:MIN_PAYLOAD]
        future: asyncio.Future[float] = asyncio.get_running_loop().create_future()
        self._pending[number] = expected, future
        begin = time.perf_counter()
        try:
            self._socket.sendto(packet, (target, 0))
            replied_at = await asyncio.wait_for(future, timeout_seconds)
            return (replied_at - begin) * 1000
        except (TimeoutError, OSError):
            return None
        finally:
            del self._pending[number]

    def _packet(self, number: int, payload: bytes) -> bytes:
        head = struct.pack("!BBHHH", _ECHO_REQUEST, 0, 0, self._identifier, number)
        words = head + payload + bytes(len(payload) % 2)
        total = sum(struct.unpack(f"!{len(words) // 2}H", words))
        while total >> 16:
            total = (total & 0xFFFF) + (total >> 16)
        return struct.pack("!BBHHH", _ECHO_REQUEST, 0, ~total & 0xFFFF, self._identifier, number) + payload

    def _receive(self) -> None:
        """Receive one packet, IP header included, and complete its request."""
        if self._socket is None:
            return
        try:
            data = self._socket.recv(256)
        except OSError:
            return  # An error that a router has reported about an earlier request: no reply comes.
        begin = (data[0] & 0x0F) * 4
        if len(data) < begin + 8 + MIN_PAYLOAD:
            return
        kind, _, _, identifier, number = struct.unpack_from("!BBHHH", data, begin)
        expected, future = self._pending.get(number, (b"", None))
        found = data[12:16] + data[begin + 8 : begin + 8 + MIN_PAYLOAD]
        if (kind, identifier, found) != (_ECHO_REPLY, self._identifier, expected):
            return
        if future is not None and not future.done():
            future.set_result(time.perf_counter())
