"""A name server at one address: UDP and TCP."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import socket
from collections import Counter
from collections.abc import Callable, Coroutine
from dataclasses import replace
from typing import Any

import dns.rcode

from nameserver.forwarder import Forwarder
from nameserver.messages import MAX_TCP_BYTES, EncodedResponse, Question, Response, decode, encode, udp_limit
from nameserver.resolver import UNKNOWN_CLIENT, ClusterZone, Delegation
from reconcile.errors import NotReady

log = logging.getLogger(__name__)

MAX_QUESTION_BYTES = 4096
"""Bytes of a question over UDP; one has 300 at most, what EDNS may add aside."""

BATCH, MISS_COST = 64, 8
"""Questions that are answered before others of the process have their turn; one that is new counts as some more."""

MAX_CACHED, ROWS_OF_ONE = 4_000, 8
"""Answers that are kept in their bytes; so many addresses count as one more."""

MAX_WAITING = 100
"""Questions of one asker that others are asked about, at the same time."""

MAX_CONNECTIONS, MAX_CONNECTIONS_PER_CLIENT = 256, 32
IDLE_SECONDS = 10.0
BUFFER_BYTES = 1 << 20

VnidOf = Callable[[str], int]
"""In which lane who asks from an address is; STRANGER for who is not known."""

Pair = tuple[str, int]


class NameServer:
    """`show` says what is known and who asks; it may be called at any time. Without a `forwarder` no others are asked.

    Answers are remembered by the bytes of their question, per lane, until what is known changes.
    """

    def __init__(self, names: ClusterZone, lane_of: VnidOf, forwarder: Forwarder | None = None) -> None:
        self.asked = 0
        self.forwarded = 0
        self._names = names
        self._lane_of = lane_of
        self._forwarder = forwarder
        self._revision = -1
        self._remembered: dict[int, dict[bytes, EncodedResponse]] = {}
        self._room = MAX_CACHED
        self._udp: socket.socket | None = None
        self._tcp: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._open: dict[int, dict[asyncio.StreamWriter, None]] = {}
        self._waiting: Counter[str] = Counter()
        self._connected: Counter[str] = Counter()

    def show(self, names: ClusterZone, lane_of: VnidOf) -> None:
        """From now on these are known, and to those."""
        self._names, self._lane_of = names, lane_of
        self._forget()

    async def start(self, address: str, port: int) -> int:
        """Listen; returns the port. Raises NotReady when the address cannot be had."""
        udp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
        tcp = None
        try:
            tcp = await asyncio.start_server(self._connection, address, port, limit=MAX_TCP_BYTES)
            port = tcp.sockets[0].getsockname()[1]
            udp.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, BUFFER_BYTES)
            udp.bind((address, port))
        except OSError as error:
            udp.close()
            if tcp is not None:
                tcp.close()
            raise NotReady(f"cannot answer for names at {address}:{port}: {error}") from error
        self._udp, self._tcp = udp, tcp
        asyncio.get_running_loop().add_reader(udp, self._readable)
        log.info("answering for names", extra={"address": address, "port": port})
        return port

    async def stop(self) -> None:
        """Answer nobody any more."""
        if self._udp is not None:
            asyncio.get_running_loop().remove_reader(self._udp)
            self._udp.close()
            self._udp = None
        if self._tcp is not None:
            self._tcp.close()
            self._tcp = None
        for writer in [writer for crowd in self._open.values() for writer in crowd]:
            writer.transport.abort()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _forget(self) -> None:
        self._remembered.clear()
        self._room = MAX_CACHED
        self._revision = self._names.directory.revision

    def _readable(self) -> None:
        """Answer what waits, as far as it can be done at once."""
        udp = self._udp
        if udp is None:
            return
        left = BATCH
        while left > 0:
            left -= 1
            try:
                packet, pair = udp.recvfrom(MAX_QUESTION_BYTES)
            except OSError:
                return
            self.asked += 1
            if self._revision != self._names.directory.revision:
                self._forget()
            lane = self._lane_of(pair[0])
            known = self._remembered.get(lane)
            answer = known.get(packet[2:]) if known is not None else None
            if answer is None:
                left -= MISS_COST
                answer = self._found(packet, lane, pair)
                if answer is None:
                    continue
            self._send(packet[:2] + _shuffled(answer), pair)

    def _found(self, packet: bytes, lane: int, pair: Pair) -> EncodedResponse | None:
        """The answer to somebody's first such question; None if there is none, or not yet."""
        question = decode(packet)
        if not isinstance(question, Question):
            if question is not None:
                self._send(question, pair)
            return None
        told = self._told(question, lane)
        if isinstance(told, Delegation):
            self._begin(self._send_later(packet, question, told, pair))
            return None
        answer = encode(question, told, udp_limit(question), recursion=self._forwarder is not None)
        if self._room <= 0:
            self._forget()
        self._room -= 1 + len(answer.rows) // ROWS_OF_ONE
        self._remembered.setdefault(lane, {})[packet[2:]] = answer
        return answer

    def _told(self, question: Question, lane: int) -> Response | Delegation:
        told = self._names.tell(question, lane)
        if not isinstance(told, Delegation):
            return told
        if self._forwarder is None or not question.wants_recursion or lane == UNKNOWN_CLIENT:
            return Response(answer=told.answer, is_ours=True) if told.answer else Response(dns.rcode.REFUSED)
        return told

    async def _ask_others(self, question: Question, elsewhere: Delegation, asker: str) -> Response:
        """What others say, behind what we know. Who asks too much at the same time is told that it failed."""
        if self._forwarder is None or self._waiting[asker] >= MAX_WAITING:
            return Response(dns.rcode.SERVFAIL)
        self.forwarded += 1
        self._waiting[asker] += 1
        try:
            told = await self._forwarder.ask(question, elsewhere.name, asker)
        finally:
            self._waiting[asker] -= 1
            if not self._waiting[asker]:
                del self._waiting[asker]
        return replace(told, answer=(*elsewhere.answer, *told.answer))

    async def _send_later(self, packet: bytes, question: Question, elsewhere: Delegation, pair: Pair) -> None:
        told = await self._ask_others(question, elsewhere, pair[0])
        self._send(packet[:2] + encode(question, told, udp_limit(question), recursion=True).joined(), pair)

    def _send(self, answer: bytes, pair: Pair) -> None:
        """An answer that cannot be sent is lost, like one on its way; who asked asks again."""
        if self._udp is not None:
            with contextlib.suppress(OSError):
                self._udp.sendto(answer, pair)

    def _begin(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One TCP connection: questions one after the other, until it is idle for too long (RFC 7766)."""
        asker = writer.get_extra_info("peername")[0]
        lane = self._lane_of(asker)
        self._connected[asker] += 1
        try:
            if self._connected[asker] <= MAX_CONNECTIONS_PER_CLIENT:
                self._make_room()
                self._open.setdefault(lane, {})[writer] = None
                await self._converse(reader, writer, asker)
        except (TimeoutError, asyncio.IncompleteReadError, OSError):
            pass
        finally:
            self._leave(writer, lane)
            self._connected[asker] -= 1
            if not self._connected[asker]:
                del self._connected[asker]
            writer.close()

    def _make_room(self) -> None:
        """With too many connections the lane that has the most loses its oldest."""
        if sum(map(len, self._open.values())) < MAX_CONNECTIONS:
            return
        lane = max(self._open, key=lambda one: len(self._open[one]))
        oldest = next(iter(self._open[lane]))
        self._leave(oldest, lane)
        oldest.transport.abort()

    def _leave(self, writer: asyncio.StreamWriter, lane: int) -> None:
        crowd = self._open.get(lane, {})
        crowd.pop(writer, None)
        if not crowd:
            self._open.pop(lane, None)

    async def _converse(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, asker: str) -> None:
        while True:
            async with asyncio.timeout(IDLE_SECONDS):
                length = int.from_bytes(await reader.readexactly(2))
                packet = await reader.readexactly(length)
            self.asked += 1
            answer = await self._whole(packet, asker)
            if answer is None:
                return
            writer.write(len(answer).to_bytes(2) + answer)
            async with asyncio.timeout(IDLE_SECONDS):
                await writer.drain()

    async def _whole(self, packet: bytes, asker: str) -> bytes | None:
        """The answer to a question over TCP; None to one that is none."""
        question = decode(packet)
        if not isinstance(question, Question):
            return question
        told = self._told(question, self._lane_of(asker))
        if isinstance(told, Delegation):
            told = await self._ask_others(question, told, asker)
        return packet[:2] + _shuffled(encode(question, told, MAX_TCP_BYTES, recursion=self._forwarder is not None))


def _shuffled(answer: EncodedResponse) -> bytes:
    """In an order of its own each time, so that who takes the first one is led everywhere alike."""
    if not answer.rows:
        return answer.head
    return b"".join((answer.head, *random.sample(answer.rows, answer.most), answer.tail))
