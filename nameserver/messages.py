"""DNS messages: what was asked, and answers in their bytes. Pure; RFC 1035, EDNS by RFC 6891."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from ipaddress import IPv4Address

import dns.exception
import dns.flags
import dns.message
import dns.name
import dns.opcode
import dns.rcode
import dns.rdataclass
import dns.rdatatype
import dns.renderer
import dns.rrset

HEADER_BYTES = 12
MAX_TCP_BYTES = 65535
PLAIN_UDP_BYTES = 512
OUR_PAYLOAD = 1232
"""Bytes of a UDP answer that no network has to take apart (DNS Flag Day 2020)."""

OPT_BYTES = 11
"""Bytes of what EDNS adds."""

TTL_SECONDS = 5
"""How long answers of ours may be kept, and that a name is not there: endpoints come and go."""


@dataclass(frozen=True, slots=True)
class Question:
    """One question. `payload` is how many bytes of UDP who asks can take, 0 if he does not speak EDNS."""

    name: dns.name.Name
    type: dns.rdatatype.RdataType
    wants_recursion: bool
    payload: int = 0
    wants_signatures: bool = False
    checks_itself: bool = False


@dataclass(frozen=True, slots=True)
class Response:
    """What an answer says, in RFC 1035's sections; behind `answer` the name `owner` has the addresses, in any order.

    `is_ours`: we are who knows.
    """

    rcode: dns.rcode.Rcode = dns.rcode.NOERROR
    answer: Sequence[dns.rrset.RRset] = ()
    authority: Sequence[dns.rrset.RRset] = ()
    additional: Sequence[dns.rrset.RRset] = ()
    owner: dns.name.Name = dns.name.root
    addresses: Sequence[str] = ()
    is_ours: bool = False


@dataclass(frozen=True, slots=True)
class EncodedResponse:
    """The bytes of a message after its id. `rows` may be in any order; of them, the first `most` are sent."""

    head: bytes
    rows: tuple[bytes, ...] = ()
    most: int = 0
    tail: bytes = b""

    def joined(self) -> bytes:
        """With the rows as they come."""
        return b"".join((self.head, *self.rows[: self.most], self.tail))


def error_response(packet: bytes, rcode: dns.rcode.Rcode) -> bytes:
    """A header alone, for what cannot be read."""
    opcode_and_recursion = packet[2] & 0x79
    return packet[:2] + bytes((0x80 | opcode_and_recursion, rcode & 0x0F)) + bytes(8)


def decode(packet: bytes) -> Question | bytes | None:
    """The question of a packet, or what to answer to one that asks none properly; None: say nothing."""
    if len(packet) < HEADER_BYTES or packet[2] & 0x80:
        return None
    if (packet[2] >> 3) & 0x0F != dns.opcode.QUERY:
        return error_response(packet, dns.rcode.NOTIMP)
    try:
        message = dns.message.from_wire(packet)
    except (dns.exception.DNSException, ValueError):
        return error_response(packet, dns.rcode.FORMERR)
    if len(message.question) != 1 or message.answer or message.authority:
        return error_response(packet, dns.rcode.FORMERR)
    question, rcode = _question(message)
    if rcode == dns.rcode.NOERROR:
        return question
    rdclass = message.question[0].rdclass
    return packet[:2] + encode(question, Response(rcode), PLAIN_UDP_BYTES, rdclass).joined()


def _question(message: dns.message.Message) -> tuple[Question, dns.rcode.Rcode]:
    """What a message asks, and why that is not to be answered, if so."""
    asked = message.question[0]
    question = Question(
        asked.name,
        asked.rdtype,
        bool(message.flags & dns.flags.RD),
        max(PLAIN_UDP_BYTES, message.payload) if message.edns >= 0 else 0,
        bool(message.ednsflags & dns.flags.DO),
        bool(message.flags & dns.flags.CD),
    )
    if message.edns > 0:
        return question, dns.rcode.BADVERS
    if asked.rdclass != dns.rdataclass.IN or asked.rdtype in (dns.rdatatype.AXFR, dns.rdatatype.IXFR):
        return question, dns.rcode.REFUSED
    return question, dns.rcode.NOERROR


def udp_limit(question: Question) -> int:
    """How long an answer over UDP may be, in bytes."""
    return min(question.payload, OUR_PAYLOAD) if question.payload else PLAIN_UDP_BYTES


def encode(
    question: Question,
    told: Response,
    limit: int,
    rdclass: dns.rdataclass.RdataClass = dns.rdataclass.IN,
    recursion: bool = False,
) -> EncodedResponse:
    """The answer within `limit` bytes, marked as truncated where not all rows of the answer itself fit."""
    low, high = dns.rcode.to_flags(told.rcode)
    renderer = dns.renderer.Renderer(0, _flags(question, told, recursion) | low, limit)
    renderer.add_question(question.name, question.type, rdclass)
    if question.payload:
        renderer.reserve(OPT_BYTES)
    rows: tuple[bytes, ...] = ()
    most, begin, end = 0, 0, 0
    try:
        _add(renderer, dns.renderer.ANSWER, told.answer)
        begin = end = renderer.output.tell()
        if told.addresses:
            rows, most = _address_rows(renderer, told)
            end = renderer.output.tell()
            if most < len(rows):
                raise dns.exception.TooBig
    except dns.exception.TooBig:
        renderer.flags |= dns.flags.TC
    else:
        with contextlib.suppress(dns.exception.TooBig):
            _add(renderer, dns.renderer.AUTHORITY, told.authority)
            _add(renderer, dns.renderer.ADDITIONAL, told.additional)
    if question.payload:
        renderer.release_reserved()
        renderer.add_edns(0, high | (dns.flags.DO if question.wants_signatures else 0), OUR_PAYLOAD)
    renderer.write_header()
    wire = renderer.get_wire()
    if most == 0:
        return EncodedResponse(wire[2:])
    return EncodedResponse(wire[2:begin], rows, most, wire[end:])


def _flags(question: Question, told: Response, recursion: bool) -> int:
    flags = dns.flags.QR | (dns.flags.AA if told.is_ours else 0) | (dns.flags.RA if recursion else 0)
    flags |= dns.flags.RD if question.wants_recursion else 0
    return int(flags | (dns.flags.CD if question.checks_itself else 0))


def _add(renderer: dns.renderer.Renderer, section: int, rrsets: Iterable[dns.rrset.RRset]) -> None:
    """Row by row, until no more fit. Raises TooBig."""
    for rrset in rrsets:
        for rdata in rrset:
            renderer.add_rrset(section, dns.rrset.from_rdata_list(rrset.name, rrset.ttl, [rdata]))


def _address_rows(renderer: dns.renderer.Renderer, told: Response) -> tuple[tuple[bytes, ...], int]:
    """Add as many addresses as fit; all of them as rows, and how many those were. Raises TooBig if none fits.

    The rows of one name differ in their last four bytes only: the first one is written by the library.
    """
    first = dns.rrset.from_text(told.owner, TTL_SECONDS, "IN", "A", told.addresses[0])
    begin = renderer.output.tell()
    renderer.add_rrset(dns.renderer.ANSWER, first)
    start = renderer.output.getvalue()[begin:-4]
    rows = tuple(start + IPv4Address(address).packed for address in told.addresses)
    most = min(len(rows), (renderer.max_size - begin) // len(rows[0]))
    renderer.output.write(b"".join(rows[1:most]))
    renderer.counts[dns.renderer.ANSWER] += most - 1
    return rows, most
