"""Forwards questions to upstream servers, and caches their responses as long as these allow (RFC 1035, 2308)."""

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

from nameserver.messages import MAX_UDP_BYTES, Question, Response
from nameserver.resolv_conf import Upstream

log = logging.getLogger(__name__)

UPSTREAM_TIMEOUT_SECONDS = 1.5
"""Timeout for one upstream server; clients repeat their question after 5 s."""

TIMEOUT_SECONDS = 4.5
"""Timeout for all upstream servers together."""

PENALTY_SECONDS = 10.0
"""Time for which a server that failed is tried after the others."""

MAX_TTL_SECONDS, MAX_NEGATIVE_TTL_SECONDS, FAILURE_SECONDS = 3600, 900, 1
"""Maximum time for which positive, negative and failed responses are cached (failures: RFC 9520)."""

MAX_CACHED, MAX_CACHED_BYTES = 2000, 4096
"""Maximum number of cached responses, and maximum size of one."""

MAX_IN_FLIGHT = 500
"""Maximum number of questions that are forwarded at the same time."""

CacheKey = tuple[dns.name.Name, dns.rdatatype.RdataType, bool, bool]
"""Name, type, and the flags DO and CD of a question."""


@dataclass(frozen=True, slots=True)
class _CacheEntry:
    """A response as bytes, which take a tenth of the memory of a decoded message. Times are monotonic seconds."""

    wire: bytes
    stored_at: float
    expires_at: float


class Forwarder:
    """Forwards each question once at a time, even if many clients wait for its response."""

    def __init__(self, upstreams: Callable[[], Iterable[Upstream]]) -> None:
        self._upstreams = upstreams
        self._cache: OrderedDict[CacheKey, _CacheEntry] = OrderedDict()
        self._in_flight: dict[CacheKey, asyncio.Task[bytes]] = {}
        self._penalized: dict[Upstream, float] = {}

    async def forward(self, question: Question, name: dns.name.Name, client: str) -> Response:
        """Return the upstream servers' response for a name, SERVFAIL if none responds.

        An upstream server may forward the question back to this server, directly or through the node's own resolver.
        To end such a loop, a question in flight that comes from an upstream server gets SERVFAIL.
        """
        key = (name, question.type, question.dnssec_ok, question.checking_disabled)
        entry = self._cached(key)
        if entry is None:
            is_loop = key in self._in_flight and client in {upstream.address for upstream in self._upstreams()}
            if is_loop or (key not in self._in_flight and len(self._in_flight) >= MAX_IN_FLIGHT):
                return Response(dns.rcode.SERVFAIL)
            task = self._task(key)
            await asyncio.wait((task,))
            if task.cancelled():
                return Response(dns.rcode.SERVFAIL)
            entry = _CacheEntry(task.result(), time.monotonic(), 0)
        return _response(entry, time.monotonic())

    async def close(self) -> None:
        """Cancel all questions in flight."""
        for task in self._in_flight.values():
            task.cancel()
        await asyncio.gather(*self._in_flight.values(), return_exceptions=True)

    def _task(self, key: CacheKey) -> asyncio.Task[bytes]:
        task = self._in_flight.get(key)
        if task is None:
            task = self._in_flight[key] = asyncio.create_task(self._exchange(key))
            task.add_done_callback(lambda _: self._in_flight.pop(key, None))
        return task

    def _cached(self, key: CacheKey) -> _CacheEntry | None:
        entry = self._cache.get(key)
        if entry is None or entry.expires_at <= time.monotonic():
            self._cache.pop(key, None)
            return None
        self._cache.move_to_end(key)
        return entry

    async def _exchange(self, key: CacheKey) -> bytes:
        """Try the upstream servers in turn until one knows. Return the best response."""
        name, kind, dnssec_ok, checking_disabled = key
        query = dns.message.make_query(
            name, kind, use_edns=0, payload=MAX_UDP_BYTES, want_dnssec=dnssec_ok, flags=dns.flags.RD
        )
        query.flags |= dns.flags.CD if checking_disabled else 0
        failed = dns.message.make_response(query, recursion_available=True)
        failed.set_rcode(dns.rcode.SERVFAIL)
        best = failed
        try:
            async with asyncio.timeout(TIMEOUT_SECONDS):
                for upstream in self._in_order():
                    answer = await self._exchange_with(query, upstream)
                    if answer is not None:
                        best = answer
                        if answer.rcode() in (dns.rcode.NOERROR, dns.rcode.NXDOMAIN):
                            break
        except TimeoutError:
            log.debug("upstream servers timed out", extra={"question": f"{name} {dns.rdatatype.to_text(kind)}"})
        return self._store(key, best)

    def _in_order(self) -> list[Upstream]:
        now = time.monotonic()
        self._penalized = {server: until for server, until in self._penalized.items() if until > now}
        return sorted(self._upstreams(), key=lambda upstream: upstream in self._penalized)

    async def _exchange_with(self, query: dns.message.Message, upstream: Upstream) -> dns.message.Message | None:
        """Return the response of one server, or None. EDNS is left away if the server lacks it (RFC 6891, 7)."""
        try:
            answer = await _exchange(query, upstream)
            if answer.rcode() == dns.rcode.FORMERR:
                rrset = query.question[0]
                answer = await _exchange(dns.message.make_query(rrset.name, rrset.rdtype), upstream)
        except (dns.exception.DNSException, OSError, EOFError, ValueError) as error:
            self._penalized[upstream] = time.monotonic() + PENALTY_SECONDS
            reason = str(error) or type(error).__name__
            log.debug("upstream server failed", extra={"server": upstream.address, "error": reason})
            return None
        return answer

    def _store(self, key: CacheKey, answer: dns.message.Message) -> bytes:
        wire = answer.to_wire(max_size=65535)
        seconds = _cache_seconds(answer)
        if seconds and len(wire) <= MAX_CACHED_BYTES:
            now = time.monotonic()
            self._cache[key] = _CacheEntry(wire, now, now + seconds)
            while len(self._cache) > MAX_CACHED:
                self._cache.popitem(last=False)
        return wire


async def _exchange(query: dns.message.Message, upstream: Upstream) -> dns.message.Message:
    """Query a server over UDP, and over TCP if the response is too long for UDP.

    Raises DNSException, OSError, EOFError, ValueError.
    """
    address, port = upstream.address, upstream.port
    backend = dns.asyncbackend.get_backend("asyncio")
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    try:
        async with await backend.make_socket(family, socket.SOCK_DGRAM, 0, None, (address, port)) as sock:
            return await dns.asyncquery.udp(
                query, address, UPSTREAM_TIMEOUT_SECONDS, port, sock=sock, raise_on_truncation=True, ignore_errors=True
            )
    except dns.message.Truncated:
        return await dns.asyncquery.tcp(query, address, UPSTREAM_TIMEOUT_SECONDS, port, backend=backend)


def _cache_seconds(answer: dns.message.Message) -> int:
    """Return for how many seconds a response may be cached."""
    if answer.rcode() not in (dns.rcode.NOERROR, dns.rcode.NXDOMAIN):
        return FAILURE_SECONDS
    if answer.answer and answer.rcode() == dns.rcode.NOERROR:
        return min(MAX_TTL_SECONDS, *(rrset.ttl for rrset in answer.answer))
    for rrset in answer.authority:
        if rrset.rdtype == dns.rdatatype.SOA and len(rrset):
            soa = cast("dns.rdtypes.ANY.SOA.SOA", rrset[0])
            return min(MAX_NEGATIVE_TTL_SECONDS, rrset.ttl, soa.minimum)
    return 0


def _response(entry: _CacheEntry, now: float) -> Response:
    answer = dns.message.from_wire(entry.wire)
    age = int(now - entry.stored_at)
    for rrset in (*answer.answer, *answer.authority, *answer.additional):
        rrset.ttl = max(0, rrset.ttl - age)
    return Response(answer.rcode(), answer.answer, answer.authority, answer.additional)
