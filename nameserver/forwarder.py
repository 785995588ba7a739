"""Asks other servers what is not ours, and remembers what they said for as long as they allow it (RFC 1035, 2308)."""

from __future__ import annotations

import asyncio
import logging
import socket
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import cast

import dns.asyncbackend
import dns.asyncquery
import dns.exception
import dns.flags
import dns.message
import dns.name
import dns.rcode
import dns.rdatatype
import dns.rdtypes.ANY.SOA
import dns.rrset

from nameserver.messages import OUR_PAYLOAD, Question, Response
from nameserver.resolv_conf import Upstream

log = logging.getLogger(__name__)

TRY_SECONDS = 1.5
"""How long one server may take; who asks us asks again after 5 s."""

TIMEOUT_SECONDS = 4.5
"""How long all of them together may take."""

PENALTY_SECONDS = 10.0
"""How long a server that failed is asked after the others."""

MAX_TTL_SECONDS, MAX_NEGATIVE_TTL_SECONDS, FAILURE_SECONDS = 3600, 900, 1
"""How long an answer is kept at most, that there is none, and that nobody could say (RFC 9520)."""

MAX_CACHED, MAX_CACHED_BYTES = 2000, 4096
"""Answers, and bytes of one."""

MAX_IN_FLIGHT = 500
"""Questions at the same time."""

CacheKey = tuple[dns.name.Name, dns.rdatatype.RdataType, bool, bool]


@dataclass(frozen=True, slots=True)
class _CacheEntry:
    """An answer in its bytes, which are a tenth of what it is taken apart."""

    wire: bytes
    at: float
    until: float


class Forwarder:
    """The same question is asked once at a time, however many wait for its answer."""

    def __init__(self, upstreams: Callable[[], Iterable[Upstream]]) -> None:
        self._upstreams = upstreams
        self._kept: OrderedDict[CacheKey, _CacheEntry] = OrderedDict()
        self._asking: dict[CacheKey, asyncio.Task[bytes]] = {}
        self._shunned: dict[Upstream, float] = {}

    async def ask(self, question: Question, name: dns.name.Name, asker: str) -> Response:
        """What others say of a name; SERVFAIL where nobody does.

        A server that is asked may ask us, directly or through the node's own resolver, so that a question would never
        end: while it is being asked, none of them is told more than that.
        """
        asked = (name, question.type, question.wants_signatures, question.checks_itself)
        kept = self._remembered(asked)
        if kept is None:
            is_loop = asked in self._asking and asker in {one.address for one in self._upstreams()}
            if is_loop or (asked not in self._asking and len(self._asking) >= MAX_IN_FLIGHT):
                return Response(dns.rcode.SERVFAIL)
            task = self._task(asked)
            await asyncio.wait((task,))
            if task.cancelled():
                return Response(dns.rcode.SERVFAIL)
            kept = _CacheEntry(task.result(), time.monotonic(), 0)
        return _response(kept, time.monotonic())

    async def close(self) -> None:
        """Stop asking."""
        for task in self._asking.values():
            task.cancel()
        await asyncio.gather(*self._asking.values(), return_exceptions=True)

    def _task(self, asked: CacheKey) -> asyncio.Task[bytes]:
        task = self._asking.get(asked)
        if task is None:
            task = self._asking[asked] = asyncio.create_task(self._ask_all(asked))
            task.add_done_callback(lambda _: self._asking.pop(asked, None))
        return task

    def _remembered(self, asked: CacheKey) -> _CacheEntry | None:
        kept = self._kept.get(asked)
        if kept is None or kept.until <= time.monotonic():
            self._kept.pop(asked, None)
            return None
        self._kept.move_to_end(asked)
        return kept

    async def _ask_all(self, asked: CacheKey) -> bytes:
        name, kind, wants_signatures, checks_itself = asked
        query = dns.message.make_query(
            name, kind, use_edns=0, payload=OUR_PAYLOAD, want_dnssec=wants_signatures, flags=dns.flags.RD
        )
        query.flags |= dns.flags.CD if checks_itself else 0
        failed = dns.message.make_response(query, recursion_available=True)
        failed.set_rcode(dns.rcode.SERVFAIL)
        best = failed
        try:
            async with asyncio.timeout(TIMEOUT_SECONDS):
                for upstream in self._in_order():
                    answer = await self._ask_one(query, upstream)
                    if answer is not None:
                        best = answer
                        if answer.rcode() in (dns.rcode.NOERROR, dns.rcode.NXDOMAIN):
                            break
        except TimeoutError:
            log.debug("nobody knows in time", extra={"question": f"{name} {dns.rdatatype.to_text(kind)}"})
        return self._keep(asked, best)

    def _in_order(self) -> list[Upstream]:
        now = time.monotonic()
        self._shunned = {one: until for one, until in self._shunned.items() if until > now}
        return sorted(self._upstreams(), key=lambda one: one in self._shunned)

    async def _ask_one(self, query: dns.message.Message, upstream: Upstream) -> dns.message.Message | None:
        """What one server says, None if nothing. One that does not know EDNS is asked without it (RFC 6891, 7)."""
        try:
            answer = await _exchange(query, upstream)
            if answer.rcode() == dns.rcode.FORMERR:
                asked = query.question[0]
                answer = await _exchange(dns.message.make_query(asked.name, asked.rdtype), upstream)
        except (dns.exception.DNSException, OSError, EOFError, ValueError) as error:
            self._shunned[upstream] = time.monotonic() + PENALTY_SECONDS
            told = {"server": upstream.address, "error": str(error) or type(error).__name__}
            log.debug("a name server does not answer", extra=told)
            return None
        return answer

    def _keep(self, asked: CacheKey, answer: dns.message.Message) -> bytes:
        wire = answer.to_wire(max_size=65535)
        seconds = _seconds(answer)
        if seconds and len(wire) <= MAX_CACHED_BYTES:
            now = time.monotonic()
            self._kept[asked] = _CacheEntry(wire, now, now + seconds)
            while len(self._kept) > MAX_CACHED:
                self._kept.popitem(last=False)
        return wire


async def _exchange(query: dns.message.Message, upstream: Upstream) -> dns.message.Message:
    """A question and its answer, by TCP when it is too long. Raises DNSException, OSError, EOFError, ValueError."""
    where, port = upstream.address, upstream.port
    backend = dns.asyncbackend.get_backend("asyncio")
    family = socket.AF_INET6 if ":" in where else socket.AF_INET
    try:
        async with await backend.make_socket(family, socket.SOCK_DGRAM, 0, None, (where, port)) as to:
            return await dns.asyncquery.udp(
                query, where, TRY_SECONDS, port, sock=to, raise_on_truncation=True, ignore_errors=True
            )
    except dns.message.Truncated:
        return await dns.asyncquery.tcp(query, where, TRY_SECONDS, port, backend=backend)


def _seconds(answer: dns.message.Message) -> int:
    """For how long it may be told again."""
    if answer.rcode() not in (dns.rcode.NOERROR, dns.rcode.NXDOMAIN):
        return FAILURE_SECONDS
    if answer.answer and answer.rcode() == dns.rcode.NOERROR:
        return min(MAX_TTL_SECONDS, *(rrset.ttl for rrset in answer.answer))
    for rrset in answer.authority:
        if rrset.rdtype == dns.rdatatype.SOA and len(rrset):
            soa = cast("dns.rdtypes.ANY.SOA.SOA", rrset[0])
            return min(MAX_NEGATIVE_TTL_SECONDS, rrset.ttl, soa.minimum)
    return 0


def _response(kept: _CacheEntry, now: float) -> Response:
    answer = dns.message.from_wire(kept.wire)
    age = int(now - kept.at)
    for rrset in (*answer.answer, *answer.authority, *answer.additional):
        rrset.ttl = max(0, rrset.ttl - age)
    return Response(answer.rcode(), answer.answer, answer.authority, answer.additional)
