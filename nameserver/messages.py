"""DNS messages: decodes questions and encodes responses (RFC 1035; EDNS: RFC 6891). Pure."""

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
MAX_UDP_BYTES = 1232
"""Maximum size of a UDP response that no network fragments (DNS Flag Day 2020)."""

OPT_BYTES = 11
"""Size of the record that EDNS adds."""

TTL_SECONDS = 5
"""Time for which responses, also negative ones, may be cached. It is short because endpoints change."""


@dataclass(frozen=True, slots=True)
class Question:
    """One question. `udp_payload` is the maximum size of a UDP response in bytes, 0 for a client without EDNS."""

    name: dns.name.Name
    type: dns.rdatatype.RdataType
    recursion_desired: bool
    udp_payload: int = 0
    dnssec_ok: bool = False
    checking_disabled: bool = False


@dataclass(frozen=True, slots=True)
class Response:
    """The sections of a response (RFC 1035). After `answer`, the name `owner` has `addresses`, in any order."""

    rcode: dns.rcode.Rcode = dns.rcode.NOERROR
    answer: Sequence[dns.rrset.RRset] = ()
    authority: Sequence[dns.rrset.RRset] = ()
    additional: Sequence[dns.rrset.RRset] = ()
    owner: dns.name.Name = dns.name.root
    addresses: Sequence[str] = ()
    is_authoritative: bool = False


@dataclass(frozen=True, slots=True)
class EncodedResponse:
    """The bytes of a message after its id. `records` may be sent in any order; `max_records` of them fit."""

    head: bytes
    records: tuple[bytes, ...] = ()
    max_records: int = 0
    tail: bytes = b""

    def joined(self) -> bytes:
        """Return the message after its id, with the records in their order."""
        return b"".join((self.head, *self.records[: self.max_records], self.tail))


def error_response(packet: bytes, rcode: dns.rcode.Rcode) -> bytes:
    """Return a response without sections to a message that cannot be decoded."""
    opcode_and_recursion = packet[2] & 0x79
    return packet[:2] + bytes((0x80 | opcode_and_recursion, rcode & 0x0F)) + bytes(8)


def decode(packet: bytes) -> Question | bytes | None:
    """Return the question of a packet, the error response to an invalid one, or None if none is to be sent."""
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
    """Return the question of a message, with an error if it is not supported."""
    rrset = message.question[0]
    question = Question(
        name=rrset.name,
        type=rrset.rdtype,
        recursion_desired=bool(message.flags & dns.flags.RD),
        udp_payload=max(PLAIN_UDP_BYTES, message.payload) if message.edns >= 0 else 0,
        dnssec_ok=bool(message.ednsflags & dns.flags.DO),
        checking_disabled=bool(message.flags & dns.flags.CD),
    )
    if message.edns > 0:
        return question, dns.rcode.BADVERS
    if rrset.rdclass != dns.rdataclass.IN or rrset.rdtype in (dns.rdatatype.AXFR, dns.rdatatype.IXFR):
        return question, dns.rcode.REFUSED
    return question, dns.rcode.NOERROR


def udp_limit(question: Question) -> int:
    """Return the maximum size of the response over UDP, in bytes."""
    return min(question.udp_payload, MAX_UDP_BYTES) if question.udp_payload else PLAIN_UDP_BYTES


def encode(
    question: Question,
    response: Response,
    limit: int,
    rdclass: dns.rdataclass.RdataClass = dns.rdataclass.IN,
    recursion: bool = False,
) -> EncodedResponse:
    """Encode a response within `limit` bytes. It is marked as truncated if not all records of the answer fit."""
    low, high = dns.rcode.to_flags(response.rcode)
    renderer = dns.renderer.Renderer(0, _flags(question, response, recursion) | low, limit)
    renderer.add_question(question.name, question.type, rdclass)
    if question.udp_payload:
        renderer.reserve(OPT_BYTES)
    records: tuple[bytes, ...] = ()
    max_records = 0
    begin = end = 0
    try:
        _add(renderer, dns.renderer.ANSWER, response.answer)
        begin = end = renderer.output.tell()
        if response.addresses:
            records, max_records = _address_records(renderer, response)
            end = renderer.output.tell()
            if max_records < len(records):
                raise dns.exception.TooBig
    except dns.exception.TooBig:
        renderer.flags |= dns.flags.TC
    else:
        with contextlib.suppress(dns.exception.TooBig):
            _add(renderer, dns.renderer.AUTHORITY, response.authority)
            _add(renderer, dns.renderer.ADDITIONAL, response.additional)
    if question.udp_payload:
        renderer.release_reserved()
        renderer.add_edns(0, high | (dns.flags.DO if question.dnssec_ok else 0), MAX_UDP_BYTES)
    renderer.write_header()
    wire = renderer.get_wire()
    if max_records == 0:
        return EncodedResponse(wire[2:])
    return EncodedResponse(wire[2:begin], records, max_records, wire[end:])


def _flags(question: Question, response: Response, recursion: bool) -> int:
    flags = dns.flags.QR | (dns.flags.AA if response.is_authoritative else 0) | (dns.flags.RA if recursion else 0)
    flags |= dns.flags.RD if question.recursion_desired else 0
    return int(flags | (dns.flags.CD if question.checking_disabled else 0))


def _add(renderer: dns.renderer.Renderer, section: int, rrsets: Iterable[dns.rrset.RRset]) -> None:
    """Add records one by one, until no more fit. Raises TooBig."""
    for rrset in rrsets:
        for rdata in rrset:
            renderer.add_rrset(section, dns.rrset.from_rdata_list(rrset.name, rrset.ttl, [rdata]))


def _address_records(renderer: dns.renderer.Renderer, response: Response) -> tuple[tuple[bytes, ...], int]:
    """Add as many addresses as fit. Return all of them as records, and how many fit. Raises TooBig if none fits.

    The records of one name differ in their last four bytes only, so the library writes the first one only.
    """
    first = dns.rrset.from_text(response.owner, TTL_SECONDS, "IN", "A", response.addresses[0])
    begin = renderer.output.tell()
    renderer.add_rrset(dns.renderer.ANSWER, first)
    start = renderer.output.getvalue()[begin:-4]
    records = tuple(start + IPv4Address(address).packed for address in response.addresses)
    max_records = min(len(records), (renderer.max_size - begin) // len(records[0]))
    renderer.output.write(b"".join(records[1:max_records]))
    renderer.counts[dns.renderer.ANSWER] += max_records - 1
    return records, max_records
