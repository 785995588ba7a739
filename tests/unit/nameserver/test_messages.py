"""Malformed DNS packets: nothing is raised, and every answer belongs to its query."""

from __future__ import annotations

import os
import random

import dns.message
import pytest

from nameserver.messages import MAX_TCP_BYTES, Question, decode, encode, udp_limit
from nameserver.resolver import ClusterZone, ForwardedQuestion
from nameserver.service_store import ServiceStore
from tests.unit.nameserver.examples import endpoint, names, service, slice_of

PACKETS = int(os.environ.get("PODLANE_FUZZ_PACKETS", "5000"))
SEED = int(os.environ.get("PODLANE_FUZZ_SEED", "0")) or random.SystemRandom().randrange(1, 1 << 32)
NAMES = ("web.red.svc.cluster.local", "_http._tcp.db.red.svc.cluster.local", "5.0.30.172.in-addr.arpa", "a.example.com")


def good(dice: random.Random) -> bytes:
    query = dns.message.make_query(dice.choice(NAMES), dice.choice(["A", "SRV", "PTR", "ANY", "SOA", "TXT"]))
    if dice.random() < 0.5:
        query.use_edns(dice.choice([0, 0, 1]), payload=dice.choice([0, 100, 512, 4096, 65535]))
    return query.to_wire()


def spoiled(packet: bytes, dice: random.Random) -> bytes:
    """Bytes changed, cut, doubled, appended, or names that point at themselves."""
    spoilt = bytearray(packet)
    for _ in range(dice.randrange(1, 5)):
        index = dice.randrange(len(spoilt)) if spoilt else 0
        match dice.randrange(6):
            case 0:
                spoilt[index : index + 1] = dice.randbytes(1)
            case 1:
                del spoilt[index:]
            case 2:
                spoilt[index:index] = dice.randbytes(dice.choice([1, 2, 60]))
            case 3:
                spoilt += dice.choice([packet, packet[12:], dice.randbytes(20)])
            case 4:
                spoilt[index : index + 2] = bytes((0xC0 | dice.randrange(4), dice.choice([12, index & 0xFF, 255])))
            case 5:
                spoilt[4:12] = dice.randbytes(8) if dice.random() < 0.5 else spoilt[4:12]
    return bytes(spoilt)


@pytest.fixture
def directory() -> ServiceStore:
    service_store = ServiceStore()
    service_store.replace(
        [
            service("red", "web", '{"clusterIP": "172.30.0.5", "ports": [{"port": 80, "name": "http"}]}'),
            service("red", "db", '{"clusterIP": "None"}'),
        ],
        [slice_of("db", "red", *(endpoint(f"10.128.0.{number}") for number in range(2, 90)))],
    )
    return service_store


def test_malformed_dns_packets_never_raise(directory: ServiceStore) -> None:
    dice, known, answered = random.Random(SEED), names(directory), 0
    for _ in range(PACKETS):
        packet = dice.randbytes(dice.randrange(80)) if dice.random() < 0.1 else spoiled(good(dice), dice)
        try:
            answered += check(packet, known)
        except Exception as error:
            raise AssertionError(f"seed {SEED}, packet {packet.hex()}") from error
    assert answered > PACKETS / 2


def check(packet: bytes, known: ClusterZone) -> bool:
    question = decode(packet)
    if question is None:
        assert len(packet) < 12 or packet[2] & 0x80
        return False
    if isinstance(question, Question):
        reported = known.resolve(question, 10)
        if isinstance(reported, ForwardedQuestion):
            return True
        limit = udp_limit(question)
        answer = packet[:2] + encode(question, reported, limit).joined()
        assert len(answer) <= limit
        assert len(packet[:2] + encode(question, reported, MAX_TCP_BYTES).joined()) <= MAX_TCP_BYTES
    else:
        answer = question
    message = dns.message.from_wire(answer)
    assert answer[:2] == packet[:2]
    assert answer[2] & 0x80
    if isinstance(question, Question):
        assert message.question[0].name == question.name
    return True
