"""What a question about a packet may say, and what makes no sense together. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator
from ipaddress import IPv4Address

from api.queries import TraceQuestion
from api.schema import FORBIDDEN, MISSING, NOT_SUPPORTED, Problem, shown

ENTRANCES = ("pod", "docker", "tunnel", "node")
PROTOCOLS = ("icmp", "tcp", "udp", "arp", "arp-reply", "ipv6")
WITH_FRAGMENTS = ("icmp", "tcp", "udp")
WITH_PORTS = ("tcp", "udp")
FRAGMENTS = ("first", "later")
LAST_VNID, LAST_PORT, LAST_VLAN = 0xFFFFFF, 65535, 4095
_MAC = re.compile(r"[0-9a-f]{2}(:[0-9a-f]{2}){5}", re.IGNORECASE)


def check(asked: TraceQuestion) -> Iterator[Problem]:
    """Every problem; the paths begin at the question."""
    for path, value, accepted in (("enters", asked.enters, ENTRANCES), ("protocol", asked.protocol, PROTOCOLS)):
        if value not in accepted:
            yield Problem(path, shown(value), f"{', '.join(accepted)} are accepted", NOT_SUPPORTED)
    yield from _check_addresses(asked)
    for path, number, last in (
        ("port", asked.port, LAST_PORT),
        ("vnid", asked.vnid, LAST_VNID),
        ("vlan", asked.vlan or 0, LAST_VLAN),
    ):
        if not 0 <= number <= last:
            yield Problem(path, shown(number), f"0 to {last} is accepted")
    for path, mac in (("sourceMac", asked.source_mac), ("targetMac", asked.target_mac)):
        if mac and not _MAC.fullmatch(mac):
            yield Problem(path, shown(mac), "a MAC such as 0a:58:0a:80:00:02 is accepted")
    yield from _check_sense(asked)


def _check_addresses(asked: TraceQuestion) -> Iterator[Problem]:
    yield from _check_address("source", asked.source)
    yield from _check_address("target", asked.target)
    for path, value, where in (
        ("sender", asked.sender, ("pod", "docker")),
        ("tunnelSource", asked.tunnel_source, ("tunnel",)),
    ):
        if asked.enters in where and not value:
            yield Problem(path, '""', f"required of what enters from {asked.enters}", MISSING)
        elif asked.enters in where:
            yield from _check_address(path, value)
        elif value:
            yield Problem(path, shown(value), f"goes with enters: {' or '.join(where)}", FORBIDDEN)


def _check_sense(asked: TraceQuestion) -> Iterator[Problem]:
    if asked.vnid and asked.enters != "tunnel":
        yield Problem(
            "vnid", shown(asked.vnid), "the switch notes it itself, but for what enters from a tunnel", FORBIDDEN
        )
    if asked.port and asked.protocol not in WITH_PORTS:
        yield Problem(
            "port", shown(asked.port), f"{asked.protocol} has no ports, {' and '.join(WITH_PORTS)} have", FORBIDDEN
        )
    elif asked.port and asked.fragment == "later":
        yield Problem("port", shown(asked.port), "only the first fragment carries the port", FORBIDDEN)
    if asked.fragment and asked.fragment not in FRAGMENTS:
        yield Problem("fragment", shown(asked.fragment), f"{', '.join(FRAGMENTS)} are accepted", NOT_SUPPORTED)
    elif asked.fragment and asked.protocol not in WITH_FRAGMENTS:
        yield Problem("fragment", shown(asked.fragment), f"goes with {', '.join(WITH_FRAGMENTS)}", FORBIDDEN)
    if asked.protocol == "ipv6" and asked.sender and asked.source != asked.sender:
        yield Problem("source", shown(asked.source), "an IPv6 packet carries no IPv4 address to borrow", FORBIDDEN)


def _check_address(path: str, text: str) -> Iterator[Problem]:
    try:
        IPv4Address(text)
    except ValueError:
        yield Problem(path, shown(text), "an IPv4 address is accepted")
