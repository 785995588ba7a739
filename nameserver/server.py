"""A name server that listens at one address, for UDP and TCP."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import socket
from collections import Counter, deque
from collections.abc import Callable, Coroutine
from dataclasses import replace
from typing import Any

import dns.rcode

from nameserver.forwarder import Forwarder
from nameserver.messages import MAX_TCP_BYTES, EncodedResponse, Question, Response, decode, encode, udp_limit
from nameserver.resolver import UNKNOWN_CLIENT, ClusterZone, ForwardedQuestion
from reconcile.errors import NotReady

log = logging.getLogger(__name__)

MAX_QUESTION_BYTES = 4096
"""Maximum size of a question over UDP; questions have at most 300 bytes, not counting EDNS."""

BATCH, MISS_COST = 64, 8
"""Questions that are answered before other tasks run; a question that is not cached counts as MISS_COST more."""

RECEIVED_AT_ONCE = 512
"""Packets that are received before questions are answered. To receive one takes a fraction of the time of an answer."""

MAX_WAITING, MAX_WAITING_PER_CLIENT, MIN_WAITING_PER_CLIENT = 8192, 256, 4
"""Questions that wait for their answer. Further ones are dropped; clients repeat their questions. Half of all is for
clients with at most MIN_WAITING_PER_CLIENT.
"""

MAX_CACHED, RECORDS_PER_ENTRY = 4_000, 8
"""Maximum number of cached responses; a response counts once more for every RECORDS_PER_ENTRY addresses."""

MAX_FORWARDED_PER_CLIENT = 100
"""Maximum number of questions of one client that are forwarded at the same time."""

MAX_CONNECTIONS, MAX_CONNECTIONS_PER_CLIENT = 256, 32
IDLE_SECONDS = 10.0
BUFFER_BYTES = 1 << 20

VnidOf = Callable[[str], int]
"""Returns the VNID of a client by address, UNKNOWN_CLIENT if it is not known."""

SocketAddress = tuple[str, int]


class FairQueue:
    """A fair queue of questions: clients take turns, so one that floods does not delay the others."""

    def __init__(self) -> None:
        self._by_client: dict[str, deque[tuple[bytes, SocketAddress]]] = {}
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def add(self, packet: bytes, client: SocketAddress) -> None:
        """Add a question, or drop it if too many of its client wait."""
        waiting = self._by_client.get(client[0])
        if waiting is None:
            waiting = self._by_client[client[0]] = deque()
        is_frugal = len(waiting) < MIN_WAITING_PER_CLIENT
        limit = MAX_WAITING if is_frugal else MAX_WAITING // 2
        if len(waiting) < MAX_WAITING_PER_CLIENT and self._count < limit:
            waiting.append((packet, client))
            self._count += 1
        elif not waiting:
            del self._by_client[client[0]]

    def take(self) -> tuple[bytes, SocketAddress]:
        """Remove and return the next question. There must be one."""
        address = next(iter(self._by_client))
        waiting = self._by_client.pop(address)
        question = waiting.popleft()
        if waiting:
            self._by_client[address] = waiting
        self._count -= 1
        return question

    def clear(self) -> None:
        """Drop all questions."""
        self._by_client.clear()
        self._count = 0


class NameServer:
    """Name server of a cluster zone. Without a `forwarder`, questions about other zones are refused.

    Responses are cached by VNID and the bytes of the question, until the zone changes. `query_count` and
    `forwarded_count` count questions.
    """

    def __init__(self, zone: ClusterZone, vnid_of: VnidOf, forwarder: Forwarder | None = None) -> None:
        self.query_count = 0
        self.forwarded_count = 0
        self._zone = zone
        self._vnid_of = vnid_of
        self._forwarder = forwarder
        self._cached_revision = -1
        self._cache: dict[int, dict[bytes, EncodedResponse]] = {}
        self._cache_room = MAX_CACHED
        self._waiting = FairQueue()
        self._resumes = False
        self._udp: socket.socket | None = None
        self._tcp: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._connections: dict[int, dict[asyncio.StreamWriter, None]] = {}
        self._forwarded_by_client: Counter[str] = Counter()
        self._connections_by_client: Counter[str] = Counter()

    def update(self, zone: ClusterZone, vnid_of: VnidOf) -> None:
        """Replace the zone and the VNIDs of clients. May be called at any time."""
        self._zone = zone
        self._vnid_of = vnid_of
        self._clear_cache()

    async def start(self, address: str, port: int) -> int:
        """Listen, and return the port. Raises NotReady if the address is not available."""
        udp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
        tcp = None
        try:
            tcp = await asyncio.start_server(self._handle_connection, address, port, limit=MAX_TCP_BYTES)
            port = tcp.sockets[0].getsockname()[1]
            udp.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, BUFFER_BYTES)
            udp.bind((address, port))
        except OSError as error:
            udp.close()
            if tcp is not None:
                tcp.close()
            raise NotReady(f"the name server cannot listen at {address}:{port}: {error}") from error
        self._udp = udp
        self._tcp = tcp
        asyncio.get_running_loop().add_reader(udp, self._on_readable)
        log.info("name server listening", extra={"address": address, "port": port})
        return port

    async def stop(self) -> None:
        """Stop listening, and end all connections and forwarded questions."""
        if self._udp is not None:
            asyncio.get_running_loop().remove_reader(self._udp)
            self._udp.close()
            self._udp = None
            self._waiting.clear()
        if self._tcp is not None:
            self._tcp.close()
            self._tcp = None
        for writer in [writer for writers in self._connections.values() for writer in writers]:
            writer.transport.abort()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _clear_cache(self) -> None:
        self._cache.clear()
        self._cache_room = MAX_CACHED
        self._cached_revision = self._zone.store.revision

    def _on_readable(self) -> None:
        """Receive questions, and answer at most one batch of those that wait."""
        udp = self._udp
        if udp is None:
            return
        with contextlib.suppress(OSError):
            for _ in range(RECEIVED_AT_ONCE):
                self._waiting.add(*udp.recvfrom(MAX_QUESTION_BYTES))
        self._answer_waiting()

    def _answer_waiting(self) -> None:
        budget = BATCH
        while budget > 0 and self._waiting:
            packet, client = self._waiting.take()
            budget -= 1
            self.query_count += 1
            if self._cached_revision != self._zone.store.revision:
                self._clear_cache()
            vnid = self._vnid_of(client[0])
            responses = self._cache.get(vnid)
            response = responses.get(packet[2:]) if responses is not None else None
            if response is None:
                budget -= MISS_COST
                response = self._answer_uncached(packet, vnid, client)
                if response is None:
                    continue
            self._send(packet[:2] + _shuffled(response), client)
        if self._waiting and not self._resumes:
            self._resumes = True
            asyncio.get_running_loop().call_soon(self._resume)

    def _resume(self) -> None:
        self._resumes = False
        self._on_readable()

    def _answer_uncached(self, packet: bytes, vnid: int, client: SocketAddress) -> EncodedResponse | None:
        """Return the response to a question, and cache it.

        Returns None if the response is an error, which is sent at once, or if the question is forwarded.
        """
        question = decode(packet)
        if not isinstance(question, Question):
            if question is not None:
                self._send(question, client)
            return None
        result = self._resolve(question, vnid)
        if isinstance(result, ForwardedQuestion):
            self._start_task(self._forward_udp(packet, question, result, client))
            return None
        response = encode(question, result, udp_limit(question), recursion=self._forwarder is not None)
        if self._cache_room <= 0:
            self._clear_cache()
        self._cache_room -= 1 + len(response.records) // RECORDS_PER_ENTRY
        self._cache.setdefault(vnid, {})[packet[2:]] = response
        return response

    def _resolve(self, question: Question, vnid: int) -> Response | ForwardedQuestion:
        result = self._zone.resolve(question, vnid)
        if not isinstance(result, ForwardedQuestion):
            return result
        if self._forwarder is None or not question.recursion_desired or vnid == UNKNOWN_CLIENT:
            if result.answer:
                return Response(answer=result.answer, is_authoritative=True)
            return Response(dns.rcode.REFUSED)
        return result

    async def _forward(self, question: Question, forwarded: ForwardedQuestion, client: str) -> Response:
        """Return the response of upstream servers after our CNAMEs. A client with too many questions gets SERVFAIL."""
        if self._forwarder is None or self._forwarded_by_client[client] >= MAX_FORWARDED_PER_CLIENT:
            return Response(dns.rcode.SERVFAIL)
        self.forwarded_count += 1
        self._forwarded_by_client[client] += 1
        try:
            response = await self._forwarder.forward(question, forwarded.name, client)
        finally:
            self._forwarded_by_client[client] -= 1
            if not self._forwarded_by_client[client]:
                del self._forwarded_by_client[client]
        return replace(response, answer=(*forwarded.answer, *response.answer))

    async def _forward_udp(
        self, packet: bytes, question: Question, forwarded: ForwardedQuestion, client: SocketAddress
    ) -> None:
        response = await self._forward(question, forwarded, client[0])
        self._send(packet[:2] + encode(question, response, udp_limit(question), recursion=True).joined(), client)

    def _send(self, message: bytes, client: SocketAddress) -> None:
        """Send a message. If that fails, the message is lost, as on the network; clients repeat their questions."""
        if self._udp is not None:
            with contextlib.suppress(OSError):
                self._udp.sendto(message, client)

    def _start_task(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _handle_connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve a TCP connection until it is idle for too long (RFC 7766)."""
        client = writer.get_extra_info("peername")[0]
        vnid = self._vnid_of(client)
        self._connections_by_client[client] += 1
        try:
            if self._connections_by_client[client] <= MAX_CONNECTIONS_PER_CLIENT:
                self._make_room()
                self._connections.setdefault(vnid, {})[writer] = None
                await self._serve_tcp(reader, writer, client)
        except (TimeoutError, asyncio.IncompleteReadError, OSError):
            pass
        finally:
            self._remove_connection(writer, vnid)
            self._connections_by_client[client] -= 1
            if not self._connections_by_client[client]:
                del self._connections_by_client[client]
            writer.close()

    def _make_room(self) -> None:
        """If there are too many connections, abort the oldest one of the VNID that has the largest number."""
        if sum(map(len, self._connections.values())) < MAX_CONNECTIONS:
            return
        vnid = max(self._connections, key=lambda vnid: len(self._connections[vnid]))
        oldest = next(iter(self._connections[vnid]))
        self._remove_connection(oldest, vnid)
        oldest.transport.abort()

    def _remove_connection(self, writer: asyncio.StreamWriter, vnid: int) -> None:
        writers = self._connections.get(vnid, {})
        writers.pop(writer, None)
        if not writers:
            self._connections.pop(vnid, None)

    async def _serve_tcp(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, client: str) -> None:
        while True:
            async with asyncio.timeout(IDLE_SECONDS):
                length = int.from_bytes(await reader.readexactly(2))
                packet = await reader.readexactly(length)
            self.query_count += 1
            message = await self._answer_tcp(packet, client)
            if message is None:
                return
            writer.write(len(message).to_bytes(2) + message)
            async with asyncio.timeout(IDLE_SECONDS):
                await writer.drain()

    async def _answer_tcp(self, packet: bytes, client: str) -> bytes | None:
        """Return the response to a question over TCP, or None if the packet has no question."""
        question = decode(packet)
        if not isinstance(question, Question):
            return question
        result = self._resolve(question, self._vnid_of(client))
        if isinstance(result, ForwardedQuestion):
            result = await self._forward(question, result, client)
        return packet[:2] + _shuffled(encode(question, result, MAX_TCP_BYTES, recursion=self._forwarder is not None))


def _shuffled(response: EncodedResponse) -> bytes:
    """Return the message after its id with the addresses in random order.

    Clients that take the first address are so spread evenly.
    """
    if not response.records:
        return response.head
    return b"".join((response.head, *random.sample(response.records, response.max_records), response.tail))
