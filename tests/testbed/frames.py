"""Ethernet frames as bytes, including frames that no correct network stack sends."""

from __future__ import annotations

import itertools
import struct
from ipaddress import IPv4Address

IPV4, ARP, IPV6 = 0x0800, 0x0806, 0x86DD
BROADCAST_MAC = 0xFFFFFFFFFFFF
MARK = b"podlane!"
MORE_FRAGMENTS = 0x2000
CUT = 1208
"""Bytes in the first of two fragments; a multiple of 8. Open vSwitch tracks no connection of smaller ones."""

_numbers = itertools.count(1)


def new_marker() -> bytes:
    """Return bytes by which one frame is recognised wherever it arrives."""
    return MARK + struct.pack("!Q", next(_numbers))


def marker_in(frame: bytes) -> bytes:
    """Return the first marker in a frame, empty if there is none."""
    begin = frame.find(MARK)
    return b"" if begin < 0 else frame[begin : begin + len(MARK) + 8]


def marker_number(marker: bytes) -> int:
    """Return the number of a marker. Markers are numbered one after the other."""
    return int.from_bytes(marker[len(MARK) :], "big")


def ethernet(dst: int, src: int, kind: int, payload: bytes, vlan: int | None = None) -> bytes:
    """Return a frame, padded to the minimum length."""
    tag = struct.pack("!HH", 0x8100, vlan) if vlan is not None else b""
    frame = dst.to_bytes(6, "big") + src.to_bytes(6, "big") + tag + struct.pack("!H", kind) + payload
    return frame.ljust(60, b"\0")


def ipv4(src: IPv4Address, dst: IPv4Address, proto: int, payload: bytes, fragment: int = 0, identity: int = 7) -> bytes:
    """Return a packet. `fragment` is the field of flags and offset; fragments of one packet have the same identity."""
    length = 20 + len(payload)
    head = struct.pack("!BBHHHBBH4s4s", 0x45, 0, length, identity, fragment, 64, proto, 0, src.packed, dst.packed)
    return head[:10] + struct.pack("!H", checksum(head)) + head[12:] + payload


def udp(
    src: IPv4Address, dst: IPv4Address, payload: bytes, port: int = 9999, fragment: int = 0, source_port: int = 40000
) -> bytes:
    """Return a UDP packet without a checksum, which is allowed."""
    return ipv4(src, dst, 17, struct.pack("!HHHH", source_port, port, 8 + len(payload), 0) + payload, fragment)


def fragmented_udp(
    src: IPv4Address, dst: IPv4Address, marker: bytes, port: int = 9999, source_port: int = 40000
) -> tuple[bytes, bytes]:
    """Return a UDP packet in two fragments, both with the marker. The identity of the packet follows from it."""
    body = marker.ljust(CUT, b"\0") + marker
    whole = struct.pack("!HHHH", source_port, port, 8 + len(body), 0) + body
    identity = marker_number(marker) & 0xFFFF
    first = ipv4(src, dst, 17, whole[:CUT], MORE_FRAGMENTS, identity)
    return first, ipv4(src, dst, 17, whole[CUT:], CUT // 8, identity)


def tcp_syn(src: IPv4Address, dst: IPv4Address, payload: bytes) -> bytes:
    """Return the first packet of a TCP connection."""
    return ipv4(src, dst, 6, struct.pack("!HHIIBBHHH", 40000, 80, 1, 0, 0x50, 2, 1000, 0, 0) + payload)


def icmp_echo(src: IPv4Address, dst: IPv4Address, payload: bytes) -> bytes:
    """Return an ICMP echo request."""
    head = struct.pack("!BBHHH", 8, 0, 0, 1, 1)
    return ipv4(src, dst, 1, head[:2] + struct.pack("!H", checksum(head + payload)) + head[4:] + payload)


def arp(op: int, sha: int, spa: IPv4Address, tpa: IPv4Address, trailer: bytes) -> bytes:
    """Return an ARP packet with a trailer, by which it is recognised."""
    head = struct.pack("!HHBBH", 1, IPV4, 6, 4, op)
    return head + sha.to_bytes(6, "big") + spa.packed + bytes(6) + tpa.packed + trailer


def ipv6(payload: bytes) -> bytes:
    """Return an IPv6 packet between link-local addresses."""
    address = bytes.fromhex("fe80" + "00" * 13)
    return struct.pack("!IHBB", 6 << 28, len(payload), 59, 64) + address + b"\1" + address + b"\2" + payload


def vxlan(vnid: int, inner: bytes) -> bytes:
    """Return the payload of a VXLAN datagram."""
    return struct.pack("!II", 0x08000000, vnid << 8) + inner


def checksum(data: bytes) -> int:
    """Return the Internet checksum (RFC 1071)."""
    data += b"\0" * (len(data) % 2)
    total: int = sum(struct.unpack(f"!{len(data) // 2}H", data))
    total = (total & 0xFFFF) + (total >> 16)
    return ~(total + (total >> 16)) & 0xFFFF
